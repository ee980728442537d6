"""What can go wrong, one small class each: what came, what was expected, where, what to do."""

from collections.abc import Sequence


class EquivariantError(ValueError):
    """Something was asked of these groups, spaces and matrices that they do not have."""


class BadNumberError(EquivariantError):
    """A rank, a size, a count or a tolerance is no number that could be one."""

    def __init__(self, where: str, value: object, expected: str) -> None:
        super().__init__(
            f"{where}: {repr(value)[:60]} came; expected {expected}. Pass such a number."
        )


class NotFiniteError(EquivariantError):
    """A matrix has entries that are no finite real numbers."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(
            f"{where}: a matrix with {found} came; expected finite real numbers. Look for NaN in "
            "the data or the weights that it was computed from."
        )


class NotASecondMomentError(EquivariantError):
    """A matrix is no second moment E[x xᵀ]: not symmetric, or with a negative eigenvalue."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(
            f"{where}: a matrix with {found} came; expected a second moment, symmetric and without "
            "negative eigenvalues up to rounding. Compute x.T @ x / len(x) from samples (N × n), "
            "in float64; a cross moment E[x yᵀ] or a difference of covariances is none."
        )


class NotAPermutationError(EquivariantError):
    """A generator is not a permutation of 0, …, n−1."""

    def __init__(self, where: str, given: str, reason: str) -> None:
        super().__init__(
            f"{where}: {given} is not a permutation: {reason}. Expected the list of images of "
            "0, 1, …, n−1 (each exactly once), or PermutationGroup.from_cycles([[0, 2, 3], "
            "[1, 4]], degree=5) for cycles."
        )


class NotOrthogonalError(EquivariantError):
    """A generator is not an orthogonal matrix."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(
            f"{where}: {found} came; expected {expected}. Round less (float64), divide columns by "
            "their norms, or change the basis by the root of an inner product that the group keeps."
        )


class NearlyEqualError(EquivariantError, ArithmeticError):
    """Irreducibles that are too nearly equal to be told apart, or to be taken for equal."""

    def __init__(self, where: str, tolerance: float) -> None:
        super().__init__(
            f"{where} gave no subspaces that the generators keep to {tolerance:.0e}; expected a "
            "group whose irreducible actions are equal or differ by far more than rounding. Do two "
            "generators, or two angles of one, differ by rounding only? Compute them in one way."
        )


class RankTooLargeError(EquivariantError):
    """No matrix of this shape that commutes with the group has so large a rank."""

    def __init__(self, where: str, rank: int, largest: int) -> None:
        super().__init__(
            f"{where}: rank {rank} was asked for, but the ranks of equivariant matrices between "
            f"these spaces are 0 to {largest}. Pass a rank in that range."
        )


class NoSuchComponentError(EquivariantError):
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


class ShapeMismatchError(EquivariantError):
    """An array has another shape than the two permutation representations need."""

    def __init__(self, where: str, shape: Sequence[int], expected: Sequence[object]) -> None:
        super().__init__(
            f"{where}: an array of shape {tuple(shape)} came, but the group acts on spaces that "
            f"need {tuple(expected)}. Was the group built for images of another size?"
        )
