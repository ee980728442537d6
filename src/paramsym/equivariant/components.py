r"""All irreducible components of the equivariant matrices of rank ≤ r: counted, listed, found.

A matrix with block ranks ρ_i has rank Σ p_i ρ_i, so the variety is the union over all vectors with
Σ p_i r_i ≤ r of the irreducible sets of `component`; its components belong to the maximal ones.

- Vectors with Σ p_i r_i = r: the components that contain a matrix of rank r. The source counts
  these: the coefficient of t^r in ∏_i (1 + t^{p_i} + … + t^{p_i min(d_i, e_i)}).
- Vectors with a smaller sum that cannot be enlarged within r: every block whose p_i fits into the
  slack r − Σ p_i r_i is already full. They are components too, of lower rank, and
  `Components.smaller` lists them.

Everything is one table: the number of ways to spend what is left on the blocks i, i + 1, …, with
Python integers. It counts, steers the enumeration past dead ends, and finds the k-th component.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import rank_up_to, whole
from .component import Component
from .decomposition import Decomposition, decompose
from .errors import NoSuchComponentError

Bounds = tuple[tuple[int, int], ...]  # smallest and largest r_i


class _Family:
    """The vectors with Σ p_i r_i = total and low_i ≤ r_i ≤ high_i, in descending order."""

    def __init__(self, costs: Sequence[int], bounds: Bounds, total: int) -> None:
        self.costs, self.bounds, self.total = costs, bounds, total
        table = [[0] * (total + 1) for _ in range(len(costs) + 1)]
        table[-1][0] = 1
        for i in reversed(range(len(costs))):
            cost, (low, high) = costs[i], bounds[i]
            for left in range(total + 1):
                top = min(high, left // cost)
                table[i][left] = sum(table[i + 1][left - cost * k] for k in range(low, top + 1))
        self.table = table

    @property
    def count(self) -> int:
        return self.table[0][self.total]

    def _choices(self, i: int, left: int) -> Iterator[tuple[int, int]]:
        """Values of r_i that lead somewhere, largest first, each with the number of ways."""
        low, high = self.bounds[i]
        for k in range(min(high, left // self.costs[i]), low - 1, -1):
            ways = self.table[i + 1][left - k * self.costs[i]]
            if ways:
                yield k, ways

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        def extend(i: int, left: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if i == len(self.costs):
                yield chosen
                return
            for k, _ in self._choices(i, left):
                yield from extend(i + 1, left - k * self.costs[i], (*chosen, k))

        if self.count:
            yield from extend(0, self.total, ())

    def unrank(self, index: int) -> tuple[int, ...]:
        chosen, left = [], self.total
        for i in range(len(self.costs)):
            for k, ways in self._choices(i, left):
                if index < ways:
                    chosen.append(k)
                    left -= k * self.costs[i]
                    break
                index -= ways
        return tuple(chosen)

    def index(self, ranks: Sequence[int]) -> int:
        position, left = 0, self.total
        for i, r in enumerate(ranks):
            position += sum(ways for k, ways in self._choices(i, left) if k > r)
            left -= r * self.costs[i]
        return position


class Components:
    """The irreducible components of the equivariant matrices of rank ≤ r, lazily.

    Iteration gives every component that contains a matrix of rank exactly r, in descending
    lexicographic order of rank vectors; `components[k]` is the k-th without listing the others;
    `count` is a Python integer of any size.

    Args:
        decomposition: the representations.
        rank: r.

    Raises:
        BadNumberError: r is no integer.
        RankTooLargeError: no equivariant matrix has rank r.
    """

    def __init__(self, decomposition: Decomposition, rank: int) -> None:
        self.decomposition = decomposition
        self.rank = rank_up_to(decomposition.largest_rank, rank, "components(rank=…)")
        # A block that is absent on one side costs nothing to leave out; its bound is (0, 0).
        self._costs = [v.dimension for v in decomposition.isotypics]
        self._tops = [v.largest_rank for v in decomposition.isotypics]

    @cached_property
    def _family(self) -> _Family:
        return _Family(self._costs, tuple((0, top) for top in self._tops), self.rank)

    @property
    def count(self) -> int:
        """The number of components that contain a matrix of rank r, exactly."""
        return self._family.count

    def __iter__(self) -> Iterator[Component]:
        return (Component(self.decomposition, ranks) for ranks in self._family)

    def __getitem__(self, index: int) -> Component:
        """The component of this number, 0 ≤ index < count.

        Raises:
            IndexError: there are fewer components.
        """
        index = whole(index, f"components(rank={self.rank})[…]", low=None)
        if not 0 <= index < self.count:
            raise IndexError(
                f"components(rank={self.rank})[{index}]: there are {self.count} components; "
                f"expected an index from 0 to {self.count - 1}. Use .count first."
            )
        return Component(self.decomposition, self._family.unrank(index))

    def index(self, component: Component) -> int:
        """The number of a component: the inverse of indexing."""
        return self._family.index(self.component(component.ranks).ranks)

    def __contains__(self, component: object) -> bool:
        return (
            isinstance(component, Component)
            and component.decomposition == self.decomposition
            and component.rank == self.rank
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Components):
            return NotImplemented
        return self.decomposition == other.decomposition and self.rank == other.rank

    def __hash__(self) -> int:
        return hash((self.decomposition, self.rank))

    def sample(self, generator: np.random.Generator) -> Component:
        """A component drawn uniformly."""
        if not self.count:
            self.component((0,) * len(self._costs))  # raises, and says why
        bits = self.count.bit_length()
        while True:
            draws = generator.integers(0, 2, size=bits)
            index = int("0" + "".join(map(str, draws.tolist())), 2)
            if index < self.count:
                return self[index]

    @cached_property
    def smaller(self) -> "SmallerComponents":
        """The components of the variety whose matrices all have rank below r."""
        return SmallerComponents(self)

    def component(self, ranks: Sequence[int]) -> Component:
        """The component with this rank vector.

        Args:
            ranks: r_i in the order of `decomposition.isotypics`, with Σ p_i r_i = rank.

        Raises:
            NoSuchComponentError: there is none; `nearest` holds the closest valid vectors.
        """
        where = f"components(rank={self.rank}).component"
        ranks = tuple(whole(r, f"{where}(ranks)", low=None) for r in ranks)
        if len(ranks) != len(self._costs):
            reason = f"it has {len(ranks)} entries and the group has {len(self._costs)} blocks"
            padded = (ranks + (0,) * len(self._costs))[: len(self._costs)]
            raise NoSuchComponentError(where, ranks, reason, self.nearest(padded))
        for v, r, top in zip(self.decomposition.isotypics, ranks, self._tops, strict=True):
            if not 0 <= r <= top:
                reason = f"block {v.name} allows ranks 0 to {top}, not {r}"
                raise NoSuchComponentError(where, ranks, reason, self.nearest(ranks))
        total = sum(c * r for c, r in zip(self._costs, ranks, strict=True))
        if total != self.rank:
            reason = f"its total rank is {total}, not {self.rank}"
            raise NoSuchComponentError(where, ranks, reason, self.nearest(ranks))
        return Component(self.decomposition, ranks)

    def nearest(self, ranks: Sequence[int], count: int = 3) -> tuple[tuple[int, ...], ...]:
        """The valid rank vectors nearest to a given one (sum of absolute differences).

        Args:
            ranks: any integers, one for each block.
            count: how many at most.
        """
        count = whole(count, "Components.nearest(count=…)")
        best: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(self.rank + 1)]
        best[0] = [(0, ())]
        for cost, top, wanted in zip(self._costs, self._tops, ranks, strict=True):
            following: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in best]
            for spent, partial in enumerate(best):
                for distance, chosen in partial:
                    for k in range(min(top, (self.rank - spent) // cost) + 1):
                        entry = (distance + abs(k - wanted), (*chosen, k))
                        following[spent + cost * k].append(entry)
            best = [sorted(entries)[:count] for entries in following]
        return tuple(chosen for _, chosen in best[self.rank])

    def is_singular(self, matrix: NDArray[Any], tolerance: float = 1e-10) -> bool:
        """Whether an equivariant matrix of rank ≤ r is a singular point of the whole variety.

        It is where it is singular on its component or lies on two of them: unless the block ranks
        of the matrix themselves are a maximal vector, its rank can grow in more than one way.
        """
        ranks = Component(self.decomposition, tuple(self._tops)).block_ranks(matrix, tolerance)
        slack = self.rank - sum(c * r for c, r in zip(self._costs, ranks, strict=True))
        rows = list(zip(self._costs, ranks, self._tops, strict=True))
        growing = [(c, r, top) for c, r, top in rows if r < top and c <= slack]
        if not growing:
            return False  # a maximal vector, attained: smooth on its only component
        # One component only if every block that can grow can become full; then it is linear there.
        return sum(c * (top - r) for c, r, top in growing) > slack

    def __repr__(self) -> str:
        m, n = self.decomposition.shape
        return f"<Components: rank <= {self.rank}, {m} x {n}, count {self.count}>"


class SmallerComponents:
    """The components of lower rank: maximal vectors with Σ p_i r_i < r."""

    def __init__(self, parent: Components) -> None:
        self._parent = parent

    @cached_property
    def _families(self) -> list[_Family]:
        parent = self._parent
        families = []
        for slack in range(1, max(parent._costs, default=0)):
            full = tuple(
                (top if cost <= slack else 0, top)
                for cost, top in zip(parent._costs, parent._tops, strict=True)
            )
            if parent.rank >= slack:
                families.append(_Family(parent._costs, full, parent.rank - slack))
        return [family for family in families if family.count]

    @property
    def count(self) -> int:
        """Their number, exactly."""
        return sum(family.count for family in self._families)

    def __iter__(self) -> Iterator[Component]:
        for family in self._families:
            for ranks in family:
                yield Component(self._parent.decomposition, ranks)


def components(permutation_or_group: Any, rank: int, target: Any = None) -> Components:
    """All irreducible components of the equivariant matrices of rank ≤ r.

    Args:
        permutation_or_group: the group (or one permutation, or a `Decomposition`) on ℝⁿ.
        rank: r.
        target: the action of the same generators on ℝᵐ, for maps between two spaces; default ℝⁿ.

    Returns:
        The components: `.count`, lazy iteration, indexing; see `Components`.

    Raises:
        NotAPermutationError: not a permutation.
        RankTooLargeError: no equivariant matrix has rank r.

    Source: arXiv:2309.13736 for cyclic groups and square matrices; here for any finite group.
    """
    if isinstance(permutation_or_group, Decomposition):
        return Components(permutation_or_group, rank)
    return Components(decompose(permutation_or_group, target), rank)
