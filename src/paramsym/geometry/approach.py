"""One point brought next to another by a compact group: what is fixed first, then all in turn.

Inputs and outputs do not move. A space can be read where everything else on its tensors is fixed or
has been read before; read in that order, each by its closed form, one pass is exact where both
points lie on one orbit. Sweeps follow for points that do not: every space anew while all others
stay, by which ⟨y, g x⟩ never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from paramsym.algebra import AbstractMonomial, Element
from paramsym.geometry.pair import Pair, Place, is_order, square, stands_on
from paramsym.geometry.parities import parities
from paramsym.geometry.visits import Visit, visited
from paramsym.structure.space import Space

Progress = Callable[[str], None]
_SAME = 100.0  # units in the last place: points that are nearer are one
_WIDEST = 4096  # entries of a block that are compared with all others at a time
_UNTOLD = 1 << 60  # what stands in doubt of a space that nothing tells: it is read last
_GAIN = 1e-10  # of the norms: a sweep that gains less is the last


@dataclass
class Approach:
    """The moving point of a pair brought next to the fixed one.

    Attributes:
        pair: the two points.
        preferred: parameters that are activations: spaces that they carry are read from them alone.
        witnesses: parameters that count nowhere, but tell what no other does.
        objective: ⟨y, g x⟩, of what is preferred if there is any, after the first pass and after
            every sweep.
        doubts: by space, what nothing determined when it was first read.
        visit: reads the best value of a space in the first pass.
    """

    pair: Pair
    preferred: Collection[str] = ()
    witnesses: Collection[str] = ()
    objective: list[float] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)
    visit: Callable[[Pair, Space, Sequence[Place], bool], Visit] = visited

    def __post_init__(self) -> None:
        spaces = self.pair.symmetry.spaces
        self.places = {n: self._chosen(found) for n, found in self.pair.places.items() if found}
        self.spaces = [spaces[name] for name in self.places]
        names = [n for n in self.pair.symmetry.signature if n not in self.witnesses]
        self.counts = [*self.preferred] or names
        self.seen: dict[str, tuple[int, ...]] = {}
        self.order: list[str] = []  # in which spaces are first read
        self.total = {
            name: sum(prod(p.block.shape) for p in places) for name, places in self.places.items()
        }

    def _chosen(self, places: list[Place]) -> list[Place]:
        found = [place for place in places if place.block.parameter in self.preferred]
        own = [place for place in places if place.block.parameter not in self.witnesses]
        return found or own or places

    def start(self, generator: torch.Generator | None = None) -> None:
        """Begin where the point stands, or at a random element, instead of the first pass."""
        if generator is not None:
            for part in self.pair.symmetry.sample(generator).parts:
                if isinstance(part, Mapping):
                    self.pair.apply(part)
        self.objective.append(self.pair.product(self.counts))

    # -- the first pass --------------------------------------------------------------------------

    def read(self, progress: Progress | None = None) -> None:
        """Visit every space once, those first that can be read from what is known.

        What can be read in part alone (from gains that are all one, say) waits until nothing else
        is left to read.
        """
        known: set[str] = set()
        left = [space.name for space in self.spaces]
        while left:
            name, visit = self._clearest(left, known)
            values = parities(self.pair, known, left) if visit.doubt else {}
            if visit.doubt and not values:
                count = "none" if visit.doubt == _UNTOLD else f"{visit.doubt} are not"
                self.doubts[name] = f"of its parts {count} told by what is fixed"
            values = values or {name: visit.value}
            self.pair.apply(values)
            left = [other for other in left if other not in values]
            known.update(values)
            self.order += values
            if progress:
                progress(f"read {', '.join(values)}")
        self.objective.append(self.pair.product(self.counts))

    def _clearest(self, left: Collection[str], known: Collection[str]) -> tuple[str, Visit]:
        """The space of which the largest share can be read without doubt, or with the least."""
        told = {name: self._told(self.places[name], known) for name in left}
        found: list[tuple[str, Visit]] = []
        for name in sorted(left, key=lambda name: -self._share(name, told[name])):
            found.append((name, self._visited(name, told[name], known)))
            if not found[-1][1].doubt:
                return found[-1]
        return min(found, key=lambda item: item[1].doubt)

    def _visited(self, name: str, told: list[Place], known: Collection[str]) -> Visit:
        """The value of a space as these places tell it, with witnesses where they do not."""
        space = self.pair.symmetry.spaces[name]
        found: Visit | None = None
        told = told or self._blind(space, known)
        for places in (told, self._told(self.pair.places[name], known)):
            if places and (found is None or found.doubt):
                found = self.visit(self.pair, space, places, True)
                if found.doubt:
                    found = found._replace(doubt=self._real(space, found.doubt))
        if found is not None:
            return found
        batch = [self.pair.symmetry.spaces[base].size for base in space.over]
        return Visit(space.group.identity(tuple(batch), torch.float64), _UNTOLD)

    def _real(self, space: Space, doubt: int) -> int:
        """What is in doubt, without directions in which nothing stands: these need not be told."""
        places = self.pair.places[space.name]
        if isinstance(space.group, AbstractMonomial):
            values = self.pair.diagonal(places, own=True)
        else:
            values = torch.linalg.eigvalsh(self.pair.cross(places, own=True))
        return max(0, doubt - int((values <= self.pair.clear * values.amax()).sum()))

    def _told(self, places: list[Place], known: Collection[str]) -> list[Place]:
        """Where everything beside a space is known, or acts on each of its units by itself."""
        symmetry = self.pair.symmetry
        space = symmetry.spaces[places[0].leg.space]
        own = is_order(space)
        return [
            place for place in places
            if all(
                leg.space in known or (own and stands_on(symmetry, leg, place.leg))
                for leg in place.beside
            )
        ]  # fmt: skip

    def _blind(self, space: Space, known: Collection[str]) -> list[Place]:
        """The places of an order, whose units are then read without what is not known."""
        if not is_order(space):
            return []
        found = [
            place._replace(unknown=tuple(leg for leg in place.beside if leg.space not in known))
            for place in self.places[space.name]
        ]
        return [place for place in found if _width(place) <= _WIDEST]

    def _share(self, name: str, places: list[Place]) -> float:
        """How much of what tells a space can be read."""
        return sum(prod(p.block.shape) for p in places) / self.total[name]

    # -- sweeps ----------------------------------------------------------------------------------

    def sweep(
        self,
        sweeps: int,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Visit all spaces in turn until nothing is gained; in a random order with a generator."""
        size = square([self.pair.fixed[n] for n in self.counts]) or 1.0
        for count in range(0 if self.is_met else sweeps):
            order = list(range(len(self.spaces)))
            if generator is not None:
                order = torch.randperm(len(order), generator=generator).tolist()
            gains = {self.spaces[k].name: self._improve(self.spaces[k]) for k in order}
            gained = sum(gain for name, gain in gains.items() if self._is_counted(name))
            self.objective.append(self.objective[-1] + gained)
            if progress:
                progress(f"sweep {count + 1}: gained {gained / size:.2e}")
            if gained <= _GAIN * size:
                break

    @property
    def is_met(self) -> bool:
        """Whether the two points are one, up to rounding of their numbers."""
        sides = (self.pair.fixed, self.pair.moving)
        squares = [square([side[n] for n in self.counts]) for side in sides]
        apart = squares[0] + squares[1] - 2 * self.objective[-1]
        return apart <= (_SAME * self.pair.rounding) ** 2 * sum(squares)

    def _is_counted(self, name: str) -> bool:
        """Whether a space is read from what the objective counts."""
        return not self.preferred or self.places[name][0].block.parameter in self.preferred

    def _improve(self, space: Space) -> float:
        """Visit one space; what it gained, at least zero."""
        pair = self.pair
        places = self.places[space.name]
        touched = [*{place.block.parameter: None for place in places}]
        state = tuple(pair.versions[name] for name in touched)
        if self.seen.get(space.name) == state:
            return 0.0
        before = pair.product(touched)
        start = pair.moving, pair.element, dict(pair.versions)
        gained = 0.0
        for attached in (False, True) if self._over(space) else (True,):
            self._try(space, places, attached)
            gained = pair.product(touched) - before
            if gained > 0:
                break
            pair.moving, pair.element, pair.versions = start[0], start[1], dict(start[2])
            gained = 0.0
        self.seen[space.name] = tuple(pair.versions[name] for name in touched)
        return gained

    def _over(self, space: Space) -> list[Space]:
        """The spaces of which each unit of an order has its own."""
        if not is_order(space):
            return []
        return [other for other in self.spaces if space.name in other.over]

    def _try(self, space: Space, places: list[Place], attached: bool) -> None:
        """The best value of a space; of an order with all that stands over it, or as it stands."""
        pair = self.pair
        if attached:
            alone = [place._replace(beside=()) for place in places]
            value = visited(pair, space, alone).value
            if not _still(value):
                pair.apply({space.name: value})
            return
        value = visited(pair, space, places).value
        if not _still(value):
            pair.apply({space.name: value})
        for other in sorted(self._over(space), key=lambda each: len(each.over)):
            pair.apply({other.name: visited(pair, other, self.places[other.name]).value})


def _still(value: Element) -> bool:
    """Whether an order leaves everything in its place."""
    order = value.order
    if order is None or value.diagonal is not None:
        return False
    return bool((order == torch.arange(order.shape[-1])).all())


def _width(place: Place) -> int:
    """How many entries stand on an axis and on those that are read without what acts on them."""
    shape = place.block.shape
    return shape[place.leg.axis] * prod(shape[leg.axis] for leg in place.unknown)
