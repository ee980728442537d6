"""Names of spaces: what a space is between, after the path of the layer where it is local.

residual         many modules write and read it
attn.qk          contracted between two tensors of data
attn.vo          mixed by the weights of a softmax
attn.head        its units index copies of other spaces; attn.group within a head
x, logits        a freed input or output
channels, state  carried by a convolution; fed back by a recurrence
embedding, mlp   written by a table; by another linear map
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from paramsym.primitives.index import leaves
from paramsym.tracing.roles import roles_of

if TYPE_CHECKING:
    from paramsym.recording.freed import Virtual
    from paramsym.tracing.carrier import Carrier
    from paramsym.tracing.spaces import Spaces

_PLAIN = ("mlp", "channels", "embedding")  # roles of which the name of an input says more
_MANY = 3  # modules that touch a space before it is a residual stream


class Namer:
    """Chooses a short, unique name for each space."""

    def __init__(self, found: Spaces):
        self.found = found
        self.roles, slots, self.sums = roles_of(found.circuit)
        known = [(slot, role) for slot, role in slots if slot in found.mixing]
        # several changes of basis on one leaf: each has the role of its own slots
        self.bases = {id(found.mixing.class_of(slot)): role for slot, role in reversed(known)}
        self.ends = found.build.graph.virtual
        self.root = _common_root(name for name in found.parameters if name not in self.ends)

    def name(self) -> None:
        """Give every space its name: units first, as scales are named after them."""
        units = {id(c) for c in self.found.units.by.values()}
        ordered = self.found.in_order()
        taken: set[str] = set()
        for chosen in (
            [c for c in ordered if id(c) in units],
            [c for c in ordered if id(c) not in units],
        ):
            options = [self._options(c) for c in chosen]
            longer: dict[str, list[str]] = defaultdict(list)
            for first, second in options:
                longer[first].append(second)
            for carrier, (first, second) in zip(chosen, options, strict=True):
                told_apart = len(set(longer[first])) == len(longer[first])
                carrier.name = _unused(second if told_apart and longer[first][1:] else first, taken)
                taken.add(carrier.name)

    def _options(self, carrier: Carrier) -> tuple[str, str]:
        """The name by layer and role, and a longer one for where several share it."""
        if carrier.leaf is None:
            return "scale", "scale"
        slots, ends = self._without_ends(self.found.slots[carrier.serial])
        own = [item for item in slots if item[2] in carrier.everywhere] or slots
        path = _common(_modules(name for name, _, _ in own))
        role = self._role(carrier, [name for name, _, _ in slots])
        if carrier.mixing is None and carrier.exponents and not self._is_units(carrier):
            return self._scale(carrier, path, role, own)
        if ends and role in _PLAIN:
            name = self._join((), _end(ends[0]))
            return name, name
        if role == "residual":
            return role, self._join(self._stage(own), role)
        return self._join(_layer(path), role), self._join(path, role)

    def _without_ends(self, slots: Sequence[tuple]) -> tuple[Sequence[tuple], list]:
        """The slots of parameters, if there are any, and the freed ends among all."""
        ends = [self.ends[item[0]] for item in slots if item[0] in self.ends]
        return [item for item in slots if item[0] not in self.ends] or slots, ends

    @staticmethod
    def _stage(own: Sequence[tuple]) -> list[str]:
        """The layer of the matrices that write a stream, where there are several streams."""
        written = [path for path in _modules(name for name, axis, _ in own if axis == 0)
                   if any(part.isdigit() for part in path)]  # fmt: skip
        return _layer(_common(written))

    def _is_units(self, carrier: Carrier) -> bool:
        return any(carrier is units for units in self.found.units.by.values())

    def _scale(
        self, carrier: Carrier, path: Sequence[str], role: str, own: Sequence[tuple]
    ) -> tuple[str, str]:
        """A scale over units that many modules share is named after the norm whose gain it moves,
        or else after the module that writes it."""
        units = [c.name for c in carrier.bases if c.leaf is carrier.leaf]
        local = f"{units[0] if units else self._join(_layer(path), role)}.scale"
        if role != "residual":
            return local, local
        written = _modules(name for name, _, slot in own if carrier.exponents.get(slot, 0) > 0)
        matrices = _modules(name for name, _, _ in own if self.found.parameters[name].ndim > 1)
        gains = [path for path in _modules(name for name, _, _ in own) if path not in matrices]

        def named(paths: list[list[str]]) -> str:
            path = paths[0] if paths else []
            return self._join(path, "") if any(not part.isdigit() for part in path) else local

        return named(gains or written), named(written)

    def _join(self, path: Sequence[str], role: str) -> str:
        if tuple(path[: len(self.root)]) == self.root:
            path = path[len(self.root) :]
        text = ".".join([*path, role] if role else path)
        text = re.sub(r"[^\w.\-]", "_", text)
        return text if re.match(r"[A-Za-z_]", text) else f"layers.{text}"

    def _role(self, carrier: Carrier, names: Iterable[str]) -> str:
        """What the units of a space are between."""
        leaf = carrier.leaf
        assert leaf is not None
        if "turn its pairs" in leaf.frozen:
            if carrier.mixing is not None:
                return "attn.qk"
            return "attn.pair" if leaf.size == 2 else "attn.frequency"
        role = self.bases.get(id(carrier.mixing)) or self.roles.get(leaf.serial, "")
        if role:
            return "attn.group" if role == "attn.head" and carrier.over else role
        tensors = {name: self.found.parameters[name] for name in names}
        facts = {
            "head": self._is_base(carrier),
            "state": self._is_state(leaf.serial),
            "residual": leaf.serial in self.sums and len(_modules(tensors)) > _MANY,
            "channels": any(tensor.ndim > 2 for tensor in tensors.values()),
            "embedding": self._is_embedding(leaf.serial),
        }
        return next((role for role, holds in facts.items() if holds), "mlp")

    def _is_base(self, carrier: Carrier) -> bool:
        return any(
            carrier in other.bases
            for other in self.found.carriers
            if other.leaf is not carrier.leaf
        )

    def _is_state(self, serial: int) -> bool:
        """Whether one matrix reads and writes the same units."""
        axes: dict[str, set[int]] = defaultdict(set)
        for name, axis, _ in self.found.slots[serial]:
            axes[name].add(axis)
        return any(len(found) > 1 for found in axes.values())

    def _is_embedding(self, serial: int) -> bool:
        """Whether a table that data index writes the units."""
        return any(
            axis and any("indexed by data" in n.frozen for n in leaves(self._axis(name, 0)))
            for name, axis, _ in self.found.slots[serial]
        )

    def _axis(self, name: str, axis: int):
        return self.found.parameters[name].axes[axis]


def _end(end: Virtual) -> str:
    """The name of an input or output; of one that has a number alone, with its side."""
    return f"{end.side}.{end.name}" if end.name[0].isdigit() else end.name


def _unused(name: str, taken: set[str]) -> str:
    """A name, with a number if it is taken."""
    numbered = (f"{name}.{number}" for number in itertools.count(2))
    return name if name not in taken else next(n for n in numbered if n not in taken)


def _modules(names: Iterable[str]) -> list[list[str]]:
    """The paths of the modules of parameters, each once."""
    return [list(p) for p in dict.fromkeys(tuple(name.split(".")[:-1]) for name in names)]


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    """What all paths begin with."""
    shared = list(paths[0]) if paths else []
    for path in paths[1:]:
        length = next(
            (k for k, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b),
            min(len(shared), len(path)),
        )
        shared = shared[:length]
    return shared


def _layer(path: Sequence[str]) -> list[str]:
    """A path up to its last number: the layer."""
    last = max((k for k, part in enumerate(path) if part.isdigit()), default=-1)
    return list(path[: last + 1])


def _common_root(names: Iterable[str]) -> tuple[str, ...]:
    """What stands before the name of the list in all paths of layers: `model` in `model.layers`."""
    paths = [path for path in _modules(names) if any(part.isdigit() for part in path[:-1])]
    firsts = [path[: max(0, next(k for k, p in enumerate(path) if p.isdigit()) - 1)]
              for path in paths]  # fmt: skip
    return tuple(_common(firsts))
