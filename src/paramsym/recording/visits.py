"""Loops over the units that some row chose, recorded as loops over all units.

    for e in (one_hot(i).sum((0, 1)) > 0).nonzero():
        n, j = torch.where(i == e);  y[n] += v[n, j, None] * f[e](x[n])

How many units were hit is not known before the numbers are. But to visit one that no row chose
changes nothing, if all that a visit leaves behind are rows of its own unit that are put back: it
has none. So every unit is visited, and in the end it is checked that nothing else that was computed
during a visit is read after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paramsym.recording.graph import Graph, Value

Chosen = tuple[Value, int]  # choices of units by rows, and one of the units


@dataclass(eq=False)
class Visit:
    """One turn of a loop: the calls between its beginning and its end, for one unit."""

    chosen: Chosen
    begin: int
    end: int | None = None
    put_back: set[int] = field(default_factory=set)  # the calls that put back rows of this unit


class Turns:
    """What is visited in turn, and not otherwise; each turn is noted."""

    def __init__(self, items: list[Any], visits: Visits, choices: Value):
        self.items, self.visits, self.choices = items, visits, choices

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        for unit, item in enumerate(self.items):
            visit = self.visits.begin((self.choices, unit))
            yield item
            visit.end = len(self.visits.graph.calls)


class Visits:
    """The turns of all loops over units of a trace."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.made: list[Visit] = []

    def begin(self, chosen: Chosen) -> Visit:
        """A turn begins."""
        self.made.append(Visit(chosen, len(self.graph.calls)))
        return self.made[-1]

    @contextmanager
    def putting_back(self, chosen: Chosen | None) -> Iterator[None]:
        """The calls of a block put rows back, which chose one unit."""
        begin = len(self.graph.calls)
        yield
        if self.made and self.made[-1].chosen == chosen:
            self.made[-1].put_back.update(range(begin, len(self.graph.calls)))

    def complaint(self, outputs: list[Value]) -> str:
        """What a loop does besides to put back rows of the unit that it visits, if it does."""
        for visit in self.made:
            if visit.end is None:
                return "a loop over units that ends early"
            if not visit.put_back:
                return "units that are not visited in turn"
            inner = {
                value.id for k in range(visit.begin, visit.end) if k not in visit.put_back
                for value in self.graph.calls[k].outputs
            }  # fmt: skip
            later = [v for call in self.graph.calls[visit.end :] for v in call.operands]
            if any({v.id, v.storage} & inner for v in [*later, *outputs]):
                return "what is computed in a loop over units, and read after it"
        return ""
