"""Terms of a sum of exponentials: a mass, and the families of scales that multiply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from paramsym.geometry.masses import power_sum
from paramsym.structure.contraction import contracted


@dataclass(frozen=True)
class Factor:
    """The scales of one family on axes of a mass, to a power q ≠ 0: exp(q · y[…])."""

    family: str
    axes: tuple[int, ...]
    power: float


@dataclass(frozen=True)
class Term:
    """A mass m ≥ 0 with the families of scales that multiply it.

    Where a power p is given the mass is |w|^p of weights w, which are kept as they are and read
    for each product: a mass as large as the weights takes no memory.
    """

    mass: Tensor
    factors: tuple[Factor, ...]
    power: float | None = None

    def read(self) -> Tensor:
        """The mass itself, in the precision that it came in or in double."""
        return self.mass if self.power is None else power_sum(self.mass, self.power)

    def as_from(self, logs: Mapping[str, Tensor]) -> Term:
        """The term as it was before scales of these logarithms, by family, came to the mass."""
        mass = self.read()
        for factor in self.factors:
            order = sorted(range(len(factor.axes)), key=factor.axes.__getitem__)
            shape = [n if k in factor.axes else 1 for k, n in enumerate(mass.shape)]
            mass = mass * (-factor.power * logs[factor.family].permute(order).reshape(shape)).exp()
        return Term(mass, self.factors)


def as_it_lies(term: Term) -> tuple[Factor, Factor]:
    """The two factors of a matrix, that of the first axis first: no transposition is needed."""
    a, b = term.factors
    return (a, b) if 0 in a.axes else (b, a)


def is_apart(term: Term) -> bool:
    """Whether each axis carries one of at most two factors."""
    axes = [axis for factor in term.factors for axis in factor.axes]
    return 0 < len(term.factors) < 3 and sorted(axes) == [*range(term.mass.ndim)]


def is_diagonal(term: Term) -> bool:
    """Whether two factors share all axes."""
    axes = {factor.axes for factor in term.factors}
    return len(term.factors) == 2 and len(axes) == 1 and len(*axes) == term.mass.ndim


def is_plain(term: Term) -> bool:
    """Whether it is a matrix between two different families, of which no entry cancels."""
    return is_apart(term) and len({factor.family for factor in term.factors}) == 2


def summed(term: Term, weights: Sequence[Tensor], k: int) -> Tensor:
    """Σ m · Π of the weights of all factors but the k-th, over the axes that it does not have."""
    letters = "".join(chr(ord("a") + i) for i in range(term.mass.ndim))
    named = ["".join(letters[i] for i in factor.axes) for factor in term.factors]
    out = named.pop(k)
    others = [*zip([*weights[:k], *weights[k + 1 :]], named, strict=True)]
    x, found = contracted([(term.mass, letters), *others], out)
    return x if found == out else x.permute([found.index(c) for c in out])


def without_cancelled(term: Term) -> tuple[Tensor, float]:
    """The mass without the entries on which its two factors cancel, and what these add up to.

    A map from a family to itself multiplies entry (i, j) by exp(q (y_i − y_j)), and its diagonal
    by one.
    """
    if len(term.factors) != 2:
        return term.read(), 0.0
    one, other = term.factors
    apart = [(a, b) for a, b in zip(one.axes, other.axes, strict=False) if a != b]
    if one.family != other.family or one.power != -other.power or len(apart) != 1:
        return term.read(), 0.0
    mass = term.read().clone()
    diagonal = mass.diagonal(0, *apart[0])
    fixed = float(diagonal.double().sum())
    diagonal.zero_()
    return mass, fixed
