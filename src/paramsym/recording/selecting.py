"""What numbers of data decide: it is run on the example's own numbers, beside the fake tensors.

Python reads a number (`mask.any().item()`, `lengths.tolist()`), or the shape of a result depends on
one (`nonzero`, `unique`, boolean indexing). Fake tensors cannot answer. Where inputs, buffers and
constants alone lead there, the recorded calls that do are run on real numbers, and what comes out
is a constant of the trace. What is found then holds for all inputs that *select likewise*: those
from which the same numbers come out. The graph lists the inputs in `decided`, so that checks leave
them as they are, and buffers of the state dict that decide are held.

A parameter must not decide: its numbers move under the symmetry that is looked for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from paramsym.recording.graph import Call, Value, values_in
from paramsym.recording.in_place import map_tensors
from paramsym.recording.ledger import Ledger, captured
from paramsym.recording.refusals import TraceError
from paramsym.recording.replay import RANDOM, Replay, numbers_of

_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}

Leaf = Value | Call  # what numbers come from; of calls, those that draw them or are not known


class Selector(Replay):
    """Runs on numbers what cannot be run on fake tensors.

    Args:
        ledger: of the record that is being made.
        start: how the model is named in errors.
        entered: makes a fake tensor like a real one.
    """

    def __init__(
        self, ledger: Ledger, start: str, entered: Callable[[Ledger, torch.Tensor], torch.Tensor]
    ):
        super().__init__(ledger.graph)
        self.ledger, self.start, self.entered = ledger, start, entered
        self.given: dict[int, torch.Tensor] = {}  # numbers of inputs and buffers, by value
        self.refused: TraceError | None = None  # also where the model catches it
        self._sources: dict[int, frozenset[Leaf]] = {}
        self._read = 0  # calls whose outputs have their sources

    def gives(self, value: Value, tensor: torch.Tensor) -> None:
        """Enter the numbers of an input or a buffer."""
        self.given[value.id] = tensor.detach()

    def source(self, value: Value) -> torch.Tensor:
        if value.id not in self.given:
            raise LookupError(value)
        given = self.given[value.id]
        return given if given.is_meta else given.to(torch.get_default_device())

    # -- where numbers come from ---------------------------------------------------------------
    def sources(self, value: Value) -> frozenset[Leaf]:
        """The leaves of the record whose numbers a value depends on."""
        while self._read < len(self.graph.calls):
            self._enter(self.graph.calls[self._read])
            self._read += 1
        return self._of(value)

    def _of(self, value: Value) -> frozenset[Leaf]:
        if value.storage != value.id and value.kind != "parameter":  # virtual ones lie anywhere
            value = self.graph.values[value.storage]
        return self._sources[value.id] if value.id in self._sources else frozenset([value])

    def _enter(self, call: Call) -> None:
        found: frozenset[Leaf] = frozenset()
        if call.target is None or draws(call):
            found = frozenset([call])
        else:
            found = found.union(*map(self._of, numbers_of(call)))
        for value in call.outputs:
            if value.storage == value.id:
                self._sources[value.id] = found

    def decides(self, call: Call) -> bool:
        """Whether all that a call reads has numbers that nothing moves."""
        return not any(map(self.moves, call.operands))

    def moves(self, value: Value) -> bool:
        """Whether a parameter, or what is not known, leads to a value."""
        return any(map(_moves, self.sources(value)))

    # -- running -------------------------------------------------------------------------------
    def on_numbers(self, call: Call) -> Any:
        """What a call gives on numbers; its tensors are entered as constants.

        Raises `TraceError` where a parameter, drawn numbers or none at all lead there.
        """
        args, kwargs = self.numbers(call, (call.args, call.kwargs))
        with torch.no_grad(), unset_fake_temporarily():
            result = call.target(*args, **kwargs)
        if isinstance(result, np.ndarray):  # it would be a window on an input
            return result.copy()
        return map_tensors(self.constant_of, result)

    def numbers(self, call: Call, tree: Any) -> Any:
        """The numbers of what decides at a call, in a structure."""
        values = list(values_in(tree))
        leaves = self._leaves(values)
        if any(map(_moves, leaves)):
            raise self.refusal(call, values)
        with torch.no_grad(), unset_fake_temporarily():
            known = {value.id: self.constant(value) for value in values}
        if any(t.is_meta or isinstance(t, FakeTensor) for t in known.values()):
            raise self._refuse(call, None)
        for leaf in leaves:
            self._note(call, leaf)
        return _filled(tree, known)

    def settled(self, name: str, item: Any) -> Any:
        """A structure with the numbers of data for tensors that are single integers."""
        if isinstance(item, slice):
            bounds = item.start, item.stop, item.step
            made = [self.settled(name, bound) for bound in bounds]
            return item if all(map(operator.is_, made, bounds)) else slice(*made)
        if isinstance(item, (tuple, list)):
            made = [self.settled(name, part) for part in item]
            return item if all(map(operator.is_, made, item)) else type(item)(made)
        if isinstance(item, dict):
            return {key: self.settled(name, part) for key, part in item.items()}
        if not isinstance(item, torch.Tensor) or item.ndim or item.dtype not in _INTEGERS:
            return item
        value = self.ledger.value(item)
        call = Call(0, name, None, (value,), {}, [], None, self.ledger.where)
        with unset_fake_temporarily():
            return int(self.numbers(call, value))

    def index(self, name: str, item: Any) -> Any:
        """An index with numbers for bounds of slices, and for places that constants say."""
        given = item if isinstance(item, tuple) else (item,)
        parts = [self._array(part) for part in given]
        lists = [
            p for p in parts if isinstance(p, list) or (isinstance(p, torch.Tensor) and p.ndim)
        ]
        made = [
            self.settled(name, part) if isinstance(part, slice)
            else self._place(part, alone=len(lists) < 2)
            for part in parts
        ]  # fmt: skip
        if all(map(operator.is_, made, given)):
            return item
        return tuple(made) if isinstance(item, tuple) else made[0]

    def _array(self, item: Any) -> Any:
        """An array of numpy, or a mask in a list, as the constant that torch takes it for."""
        mask = isinstance(item, list) and bool(item) and all(isinstance(i, bool) for i in item)
        if not mask and not isinstance(item, np.ndarray):
            return item
        with unset_fake_temporarily():
            numbers = torch.as_tensor(item)
        return self.constant_of(numbers)

    def _place(self, item: Any, *, alone: bool) -> Any:
        """The place that a constant of one entry says, as a window of its axis."""
        if not isinstance(item, torch.Tensor) or item.dtype not in _INTEGERS - {torch.uint8}:
            return item
        if item.shape not in ((), (1,)) or (item.ndim and not alone):
            return item
        value = self.ledger.value(item)
        if any(isinstance(leaf, Call) or leaf.kind != "constant" for leaf in self.sources(value)):
            return item
        with torch.no_grad(), unset_fake_temporarily():
            place = int(self.constant(value))
        if not item.ndim:
            return place
        return slice(place, place + 1) if place >= 0 else item

    def constant_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor that stands for numbers that the trace knows from now on."""
        with unset_fake_temporarily():
            numbers = tensor.detach().clone()
            made = self.entered(self.ledger, numbers)
        value = self.ledger.add(made, "constant", data=captured(numbers))
        self.known[value.id] = numbers
        return made

    def _note(self, call: Call, leaf: Leaf) -> None:
        """An input or a buffer has decided something: neither may change any more."""
        if isinstance(leaf, Call):
            return
        if leaf.kind == "input":
            self.graph.decided.setdefault(leaf.name, call.where)
        elif leaf.kind == "buffer":
            reason = f"its numbers decide what is computed at {call.where} ({call.name})"
            self.graph.held.setdefault(leaf.name, reason)

    def require_answered(self) -> None:
        """Raise what was refused: the model may have gone on without the numbers."""
        if self.refused is not None:
            raise self.refused

    def by_parameter(self, value: Value) -> bool:
        """Whether a parameter leads to a value."""
        found = self.sources(value)
        return any(isinstance(leaf, Value) and leaf.kind == "parameter" for leaf in found)

    def refusal(self, call: Call, values: Iterable[Value]) -> TraceError:
        """What to say of a call that is decided by what moves."""
        return self._refuse(call, next(filter(_moves, self._leaves(values)), None))

    def _leaves(self, values: Iterable[Value]) -> list[Leaf]:
        """What values come from, in the order of the record."""
        return sorted(
            {leaf for v in values for leaf in self.sources(v)},
            key=lambda leaf: leaf.id if isinstance(leaf, Value) else leaf.index,
        )

    def _refuse(self, call: Call, leaf: Leaf | None) -> TraceError:
        if isinstance(leaf, Value) and leaf.kind == "parameter":
            what = (
                f"the freed {leaf.name.strip()}" if leaf.name in self.graph.virtual
                else f"the parameter {leaf.name!r}"
            )  # fmt: skip
            instead = (
                "Choose by inputs, buffers or constants, or give the model without that branch."
            )
        elif isinstance(leaf, Call) and draws(leaf):
            what = f"random numbers ({leaf.name} at {leaf.where})"
            instead = "Give what is drawn as an input, or keep it as a buffer."
        elif leaf is None:
            what = "numbers that do not exist (an input, a buffer or a constant on the meta device)"
            instead = "Give example inputs with numbers, and buffers too; parameters need none."
        else:
            what = "a tensor whose origin was not seen"
            instead = "Compute it by torch functions from inputs, buffers or constants."
        self.refused = TraceError(
            f"{self.start}: what {call.name} gives at {call.where} depends on {what}. A forward "
            "pass whose control flow and shapes do not depend on numbers was expected, or at "
            f"most on those of inputs, buffers and constants, which do not move. {instead}"
        )
        return self.refused


def draws(call: Call) -> bool:
    """Whether a call draws numbers."""
    if "dropout" in call.name:
        given: Mapping[Any, Any] = {**dict(enumerate(call.args)), **call.kwargs}
        return bool(given.get(2, given.get("training", given.get("train", True))))
    return call.name in RANDOM


def _moves(leaf: Leaf) -> bool:
    return isinstance(leaf, Call) or leaf.kind == "parameter"


def _filled(tree: Any, known: Mapping[int, torch.Tensor]) -> Any:
    """A structure with numbers in the place of values."""
    if isinstance(tree, Value):
        return known[tree.id]
    if isinstance(tree, (tuple, list)):
        return type(tree)([_filled(item, known) for item in tree])
    if isinstance(tree, dict):
        return {key: _filled(item, known) for key, item in tree.items()}
    return tree
