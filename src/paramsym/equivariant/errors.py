"""What can go wrong, one small class each: what came, what was expected, where, what to do."""

from collections.abc import Sequence


class NotAPermutationError(ValueError):
    """A generator is not a permutation of 0, …, n−1."""

    def __init__(self, where: str, given: str, reason: str) -> None:
        super().__init__(
            f"{where}: {given} is not a permutation: {reason}. Expected the list of images of "
            "0, 1, …, n−1 (each exactly once), or PermutationGroup.from_cycles([[0, 2, 3], "
            "[1, 4]], degree=5) for cycles."
        )


class RankTooLargeError(ValueError):
    """No matrix of this shape that commutes with the group has so large a rank."""

    def __init__(self, where: str, rank: int, largest: int) -> None:
        super().__init__(
            f"{where}: rank {rank} was asked for, but the ranks of equivariant matrices between "
            f"these spaces are 0 to {largest}. Pass a rank in that range."
        )


class NoSuchComponentError(ValueError):
    """A rank vector names no component; the nearest valid vectors are in `nearest`."""

    def __init__(
        self,
        where: str,
        ranks: Sequence[int],
        reason: str,
        nearest: Sequence[tuple[int, ...]],
    ) -> None:
        self.nearest = tuple(nearest)
        offered = (
            "The nearest valid rank vectors are " + " and ".join(map(str, self.nearest)) + "."
            if self.nearest
            else "No rank vector is valid for this rank: no choice of irreducibles adds up to it."
        )
        super().__init__(
            f"{where}: the rank vector {tuple(ranks)} names no component: {reason}. {offered} "
            "Pass one of them, or take them from components(group, rank)."
        )


class ShapeMismatchError(ValueError):
    """An array has another shape than the two permutation representations need."""

    def __init__(self, where: str, shape: Sequence[int], expected: Sequence[object]) -> None:
        super().__init__(
            f"{where}: an array of shape {tuple(shape)} came, but the group acts on spaces that "
            f"need {tuple(expected)}. Was the group built for images of another size?"
        )
