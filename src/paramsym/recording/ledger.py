"""Which value each tensor of a running model holds at this moment.

A tensor is a window on a storage, and a storage belongs to one value, its *owner*, whose layout
the windows are read off. A write through any window gives the storage a new owner: the written
tensor itself if the window holds every entry of the old owner, and otherwise the old owner with
the written entries put in (`partial_write`). All other windows become windows on the new owner.
So everything that follows sees a program without writes.

**The record agrees with itself.** Whenever a value is looked up for a tensor, its shape, strides,
offset, dtype and owner must be those of the tensor. If they are not, the recorder has misread
something: the storage is *torn*, and whatever is read from it is an unknown function of
everything that was ever kept there, so that all of it is held fixed and reported as our defect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.layout import (
    Layout,
    Window,
    compact_strides,
    covers,
    is_dense,
    lies_within,
    same_layout,
)

_CAPTURE_LIMIT = 1 << 20  # constants up to this many entries are kept, to be evaluated later

DEFECT = "a defect of paramsym (please report it): the record of a tensor disagrees with it"
REINTERPRETED = "a write to memory that is read under two types"
UNSEEN = "a tensor that no recorded function made"


def captured(tensor: torch.Tensor, limit: int = _CAPTURE_LIMIT) -> torch.Tensor | None:
    """The numbers of a small constant; the tensor itself, as its copy would be fake here."""
    return None if tensor.device.type == "meta" or tensor.numel() > limit else tensor


def write_window(
    owner: torch.Tensor, part: torch.Tensor, window: tuple[tuple[int, ...], tuple[int, ...], int]
) -> torch.Tensor:
    """The owner with the entries of a window (shape, strides, offset) replaced by those of part."""
    shape, strides, offset = window
    whole = torch.empty_strided(owner.shape, owner.stride(), dtype=owner.dtype).copy_(owner)
    first = offset - owner.storage_offset()
    torch.as_strided(whole, shape, strides, first).copy_(part)
    return whole


class Ledger:
    """Values by tensor, owners by storage."""

    def __init__(self, graph: Graph, fake_mode: FakeTensorMode):
        self.graph = graph
        self.fake_mode = fake_mode
        self.known: dict[int, Value] = {}  # id(tensor) -> value
        self.owners: dict[int, Value] = {}  # storage -> the value whose layout it has
        self.kinds: dict[int, tuple] = {}  # storage -> how its numbers are read
        self.sharers: dict[int, list[torch.Tensor]] = defaultdict(list)  # alive, so ids stay valid
        self.kept: dict[int, list[Value]] = defaultdict(list)  # storage -> all it ever held
        self.storages: list[torch.UntypedStorage] = []  # alive, so that keys stay valid
        self.shadows: dict[int, int] = {}  # storage of a fake -> that of the tensor it stands for
        self.readings: dict[tuple, Value] = {}  # storage and reading, of others than its owner's
        self.mixed: set[int] = set()  # storages that are read under two types
        self.torn: dict[int, str] = {}  # storages of which nothing is known, and why
        self.constants: list[tuple[torch.Tensor, str]] = []  # what the model brought along, where
        self.where = ""  # the place that is being recorded

    def add(self, tensor: torch.Tensor, kind: str, name: str = "", data=None) -> Value:
        """Enter a tensor that was not seen before; on a known storage it is a window."""
        key, reading = self._key(tensor), _reading(tensor)
        if key in self.torn:
            return self._from_torn(tensor, key)
        window, owner = Window(*_layout(tensor)), self._owner(key, reading)
        plain = self.kinds.setdefault(key, reading) == reading
        if not plain:  # complex numbers as pairs, bits as integers: nobody may write any more
            self.mixed.add(key)
            owner = owner if owner is not None and lies_within(window, owner) else None
        value = self._new(window, owner, tensor.dtype, kind, name, data)
        if plain:
            self.owners.setdefault(key, value)
        elif owner is None and is_dense(value):  # another function, which later ones look at
            self.readings.setdefault((key, reading), value)
        self.known[id(tensor)] = value
        self.storages.append(tensor.untyped_storage())
        self.sharers[key].append(tensor)
        self.kept[key].append(value)
        return value

    def value(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor holds now."""
        key = self._key(tensor)
        if key in self.torn:
            return self._from_torn(tensor, key)
        found = self.known.get(id(tensor))
        if found is None:
            return self._found_outside(tensor, key)
        if not self._agrees(found, tensor, key):
            self.tear(tensor, DEFECT)
            return self._from_torn(tensor, key)
        return found

    def tensor(self, value: Value) -> torch.Tensor | None:
        """A tensor that holds a value now, if there is one."""
        tensors = (t for found in self.sharers.values() for t in found)
        return next((t for t in tensors if self.known.get(id(t)) is value), None)

    def forget(self, tensor: torch.Tensor) -> None:
        """A tensor was pointed to other memory, or shaped anew: it is entered afresh."""
        self.known.pop(id(tensor), None)

    def write(self, tensor: torch.Tensor) -> tuple[Value, Call | None]:
        """The value that was written through a tensor, and the call that puts it into the owner.

        The call is None where the written value itself is the new owner.
        """
        key = self._key(tensor)
        if key in self.mixed:
            self.tear(tensor, REINTERPRETED)
        if key in self.torn:
            written = self._new(_own_layout(tensor), None, tensor.dtype)
            self.kept[key].append(written)
            return written, None
        old, owner = self.known[id(tensor)], self.owners[key]
        if covers(old, owner):
            whole = written = self._new(old, None, old.dtype)
            following = None
        else:
            written = self._new(_own_layout(tensor), None, old.dtype)
            whole = self._new(owner, None, owner.dtype)
            window = (old.shape, old.strides, old.offset)
            following = Call(
                0, "partial_write", write_window, (owner, written, window), {}, [whole], whole,
                self.where,
            )  # fmt: skip
            whole.call = following
        self._hand_over(key, whole, written)
        return written, following

    def _hand_over(self, key: int, whole: Value, written: Value) -> None:
        """Make a value the owner of a storage, and read every window off it."""
        self.owners[key] = whole
        self.kept[key] += [written, whole]
        for other in self.sharers[key]:
            seen = self.known.get(id(other))
            if seen is not None and self._key(other) == key:  # it may look at other memory by now
                new = whole if same_layout(seen, whole) else self._new(seen, whole, seen.dtype)
                self.known[id(other)] = new

    def tear(self, tensor: torch.Tensor, why: str, more: Sequence[Value] = ()) -> None:
        """Give up a storage: what is read from it depends on all that it held, and on `more`."""
        key = self._key(tensor)
        self.torn.setdefault(key, why)
        self.kept[key] += more

    # -- inside ------------------------------------------------------------------------------
    def _key(self, tensor: torch.Tensor) -> int:
        key = int(tensor.untyped_storage()._cdata)
        return self.shadows.get(key, key)

    def _owner(self, key: int, reading: tuple) -> Value | None:
        """The value on whose layout tensors that read a storage alike are windows."""
        if self.kinds.get(key) == reading:
            return self.owners.get(key)
        return self.readings.get((key, reading))

    def _new(
        self, layout: Layout, owner: Value | None, dtype: torch.dtype, kind: str = "activation",
        name: str = "", data: torch.Tensor | None = None,
    ) -> Value:  # fmt: skip
        number = len(self.graph.values)
        value = Value(
            number, layout.shape, layout.strides, layout.offset,
            number if owner is None else owner.id, dtype, kind, name, data,
        )  # fmt: skip
        self.graph.values.append(value)
        return value

    def _agrees(self, value: Value, tensor: torch.Tensor, key: int) -> bool:
        layout = _layout(tensor)
        if (value.shape, value.strides, value.offset) != layout or value.dtype != tensor.dtype:
            return False
        reading = _reading(tensor)
        owner, plain = self._owner(key, reading), self.kinds.get(key, reading) == reading
        alone = value.storage == value.id and not plain
        return alone or (owner is not None and value.storage == owner.id)

    def _found_outside(self, tensor: torch.Tensor, key: int) -> Value:
        """A tensor that no call returned: a window made unseen, a constant of the model, or else
        an unknown function of all parameters."""
        if key in self.owners:
            return self.add(tensor, "activation")
        if not isinstance(tensor, FakeTensor):
            value = self.add(tensor, "constant", data=captured(tensor))
            self.constants.append((tensor, self.where))
            self._enter_shadow(tensor, value)
            return value
        if tensor.constant is not None:
            return self.add(tensor, "constant", data=captured(tensor.constant))
        value = self.add(tensor, "activation")
        value.call = self._unknown(self._sources(), UNSEEN, value)
        return value

    def _enter_shadow(self, tensor: torch.Tensor, value: Value) -> None:
        """Views of a real tensor are windows on the fake one that stands for it."""
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            return
        shadow = self.fake_mode.from_tensor(tensor)
        if shadow.untyped_storage()._cdata not in self.owners and _layout(shadow) == _layout(
            tensor
        ):
            self.shadows[shadow.untyped_storage()._cdata] = self._key(tensor)
            self.storages.append(shadow.untyped_storage())
            self.sharers[self._key(tensor)].append(shadow)
            self.known[id(shadow)] = value

    def _sources(self) -> list[Value]:
        return [*self.graph.parameters.values(), *self.graph.buffers.values()]

    def _from_torn(self, tensor: torch.Tensor, key: int) -> Value:
        value = self._new(_own_layout(tensor), None, tensor.dtype)
        value.call = self._unknown(list(self.kept[key]), self.torn[key], value)
        return value

    def _unknown(self, operands: list[Value], why: str, output: Value) -> Call:
        """A value as an unknown function of others."""
        call = Call(
            len(self.graph.calls), "torn", None, (tuple(operands), why), {}, [output], output,
            self.where,
        )  # fmt: skip
        self.graph.calls.append(call)
        return call


def _reading(tensor: torch.Tensor) -> tuple:
    """How the numbers of a storage are read; windows share a reading with their owner."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _layout(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _own_layout(tensor: torch.Tensor) -> Window:
    """The layout of a dense copy with its axes in the same order."""
    shape = tuple(tensor.shape)
    given = Window(shape, tuple(tensor.stride()), 0)
    return Window(shape, compact_strides(given), 0)
