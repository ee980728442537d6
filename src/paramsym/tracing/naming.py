"""Names of spaces, after the modules that write them."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Namer:
    """Chooses a short, unique, readable name for each space.

    A space is named after the module of the first parameter whose rows write it; one that many
    modules write is a `residual`; factors of a product are told apart as `head` and `dim`.
    """

    def __init__(self, slots: dict, layout: Any, parameters: dict):
        self.slots, self.layout, self.parameters = slots, layout, parameters
        self.used: Counter[str] = Counter()

    def name(self, carriers: list) -> None:
        """Give every carrier its name."""
        for carrier in carriers:
            if carrier.leaf is None:
                base = "scale"
            else:
                base = self._base(carrier)
            carrier.name = self._unique(base)

    def _unique(self, base: str) -> str:
        self.used[base] += 1
        count = self.used[base]
        if count == 1:
            return base
        return self._unique(f"{base}.{count}")

    def _base(self, carrier) -> str:
        found = self.slots[carrier.leaf.serial]
        if carrier.exponents:
            own = [item for item in found if item[2] in carrier.exponents]
            found = [i for i in own if carrier.exponents[i[2]] > 0] or own or found
        written = [item for item in found if item[1] == self._row(item[0])] or found
        writers = list(dict.fromkeys(_module(name) for name, _, _ in written))
        role = self._role(carrier.leaf, written[:1])
        if len(writers) > 3 and not role and not carrier.exponents:
            return "residual"
        return writers[0] + role

    def _row(self, name: str) -> int:
        """The axis that a parameter writes: its first, except for tables."""
        return 1 if self.parameters[name].ndim == 2 and self._is_table(name) else 0

    def _is_table(self, name: str) -> bool:
        node = self.parameters[name].axes[0]
        return any("indexed by data" in n.frozen for n in _leaves(node))

    def _role(self, leaf, found) -> str:
        for name, axis, _ in found:
            tensor = self.parameters[name]
            for place in self.layout.places(tensor.axes[axis]):
                members = [n for n, _ in place.leaves]
                if leaf in members and len(members) > 1:
                    position = members.index(leaf)
                    if leaf.frozen:
                        return (
                            ".pair"
                            if leaf.size == 2 and "turn its pairs" in leaf.frozen
                            else (".frequency" if "turn its pairs" in leaf.frozen else ".index")
                        )
                    if position == 0:
                        return ".head"
                    return ".dim" if position == len(members) - 1 else ".group"
        return ""


def _leaves(node):
    from paramsym.tracing.index import leaves

    return leaves(node)


def _module(name: str) -> str:
    """The module of a parameter as a name that can start a type."""
    path = name.rpartition(".")[0] or name
    return "h" + path if path[:1].isdigit() else path
