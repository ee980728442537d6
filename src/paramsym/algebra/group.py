"""What every group can do, stated once.

A group acts linearly on one space R^n. It holds no data: two groups with the same printed text are
the same group. `@` is not defined here, because an element does not know its group; write
`group.compose(g, h)`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

from .element import Element, Tangent, dense

Power: TypeAlias = int | Fraction
Shape: TypeAlias = tuple[int, ...] | torch.Size


def default_tolerance(dtype: torch.dtype) -> float:
    """A thousand units in the last place: what a few matrix products may lose."""
    return 1e3 * torch.finfo(dtype).eps


class Group(abc.ABC):
    """A group of invertible linear maps of R^n, as an immutable and hashable value without data.

    `str(group)` parses back with `parse_group`. `G & H` is the meet, the largest listed group
    inside both; `G <= H` says that G is a subgroup of H.
    """

    size: int

    # What the group is.

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """The dimension of the Lie algebra: the number of continuous degrees of freedom."""

    @property
    @abc.abstractmethod
    def log_order(self) -> float:
        """The logarithm of the number of connected components, e.g. log n! for permutations."""

    @abc.abstractmethod
    def contains_matrix(self, matrix: Tensor, tol: float | None = None) -> bool:
        """Whether every n×n matrix of a batch belongs to the group, up to `tol` per entry.

        The entries are compared at their own scale: `tol` is relative to the largest of them.
        Default: a thousand units in the last place of the dtype.
        """

    # Elements.

    @abc.abstractmethod
    def identity(
        self,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        """The identity, once for each place of the batch."""

    @abc.abstractmethod
    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Element:
        """A random element. Strength 0 gives the identity, 1 a thorough mixing.

        Scales are log-normal, exp(strength/2 · N(0, 1)); permutations at strength 1 and above are
        uniform, and below it only that share of the places is shuffled; rotations at strength 1 and
        above are uniform (Haar). Numbers are drawn on the generator's device and then moved.
        """

    @abc.abstractmethod
    def compose(self, g: Element, h: Element) -> Element:
        """The product gh: first h, then g."""

    @abc.abstractmethod
    def inverse(self, g: Element) -> Element:
        """The inverse."""

    @abc.abstractmethod
    def dual(self, g: Element) -> Element:
        """The inverse transpose, which is again in the group: (g⁻¹)ᵀ."""

    @abc.abstractmethod
    def polar(self, g: Element) -> tuple[Element, Element]:
        """The polar factors (k, p) of an element: g = compose(k, p), k orthogonal, p positive.

        p = (gᵀ g)^½ is symmetric and positive definite, and both factors lie in the group. k is in
        its compact part, the meet with Orthogonal(n): orders, signs, angles and rotations. p is the
        exponential of a symmetric velocity: scales, moduli, and of GL(n) the positive matrices.
        The factors are unique.
        """

    def matrix(self, g: Element, dtype: torch.dtype | None = None) -> Tensor:
        """The dense n×n matrix, of shape (*B, n, n): the slow twin of `apply`."""
        return dense(g, self.size, dtype)

    def contains(self, g: Element, tol: float | None = None) -> bool:
        """Whether g, or every element of a batch, belongs to this group; see `contains_matrix`."""
        return self.contains_matrix(self.matrix(g), tol)

    # The action.

    @abc.abstractmethod
    def apply(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        """Acts with g on one axis of x, of length n.

        Args:
            g: one element, or a batch B of them; then the leading dimensions of x broadcast with B.
            x: what is moved.
            axis: the axis that carries the space, counted in x; it may be negative.
            power: the entrywise power of the representation, D P ↦ Dᵖ P. It is a representation
                only of monomial groups; 0 keeps the order alone, −1 is the dual.

        Raises:
            ValueError: a wrong length, or a power that is no representation of this group.
        """

    def apply_dual(self, g: Element, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        """Acts by the inverse transpose, so that ⟨g ξ, g x⟩ = ⟨ξ, x⟩ for ξ on the dual axis."""
        return self.apply(self.dual(g), x, axis, power)

    # The Lie algebra.

    @abc.abstractmethod
    def tangent(self, coordinates: Tensor) -> Tangent:
        """The algebra element with these coordinates, of shape (*B, dimension).

        The coordinates are orthonormal: their Euclidean norm is the Frobenius norm of the matrix.
        """

    @abc.abstractmethod
    def coordinates(self, a: Tangent) -> Tensor:
        """The coordinates of an algebra element, of shape (*B, dimension).

        For a velocity outside the algebra (any matrix, say, where the algebra is the skew ones),
        those of its orthogonal projection onto it.
        """

    @abc.abstractmethod
    def exp(self, a: Tangent) -> Element:
        """The exponential map."""

    @abc.abstractmethod
    def dual_tangent(self, a: Tangent) -> Tangent:
        """The derivative of the dual: −aᵀ."""

    @abc.abstractmethod
    def infinitesimal(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        """The derivative of `apply(exp(t a), x, axis, power)` at t = 0."""

    def infinitesimal_dual(self, a: Tangent, x: Tensor, axis: int, power: Power = 1) -> Tensor:
        """The derivative of `apply_dual(exp(t a), x, axis, power)` at t = 0."""
        return self.infinitesimal(self.dual_tangent(a), x, axis, power)

    def random_algebra(
        self,
        generator: torch.Generator,
        batch: Shape = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Tangent:
        """An algebra element with independent standard normal coordinates."""
        shape = (*batch, self.dimension)
        return self.tangent(normal(generator, shape, dtype).to(device=device))

    # The lattice.

    def __and__(self, other: Group) -> Group:
        return meet(self, other)

    def __le__(self, other: Group) -> bool:
        return self & other == self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"


Meets: TypeAlias = Callable[[Group, Group], Group | None]
_LISTS: list[Meets] = []  # entered from above: the lattice knows every group


def lists_meets(meets: Meets) -> Meets:
    """Register what is known of meets; None for a pair, or an order of it, that is not listed."""
    _LISTS.append(meets)
    return meets


def meet(g: Group, h: Group) -> Group:
    """The largest listed group inside both g and h; written g & h.

    Raises:
        ValueError: the groups act on spaces of different dimensions.
        TypeError: a group that the lattice does not know.
    """
    if g.size != h.size:
        raise ValueError(
            f"{g} & {h}: expected groups on one space, but they act on {g.size} and {h.size} "
            "coordinates. Two axes of different lengths cannot carry the same space."
        )
    if g == h:
        return g
    for listed in _LISTS:
        if (found := listed(g, h) or listed(h, g)) is not None:
            return found
    raise TypeError(
        f"{g} & {h}: expected two groups of the lattice, but no meet is known for "
        f"{type(g).__name__} and {type(h).__name__}. Add the pair to algebra/lattice.py."
    )


def normal(generator: torch.Generator, shape: Shape, dtype: torch.dtype | None) -> Tensor:
    """Standard normal numbers on the generator's device."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)


def uniform(generator: torch.Generator, shape: Shape, dtype: torch.dtype | None) -> Tensor:
    """Uniform numbers in [0, 1) on the generator's device."""
    return torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)


def random_order(generator: torch.Generator, n: int, strength: float, batch: Shape) -> Tensor:
    """Random permutations of n places, of shape (*batch, n), that shuffle a share of the places.

    Each place is chosen with probability `strength`, and the chosen ones are shuffled uniformly.
    """
    shape = (*batch, n)
    chosen = uniform(generator, shape, torch.float64) < strength
    shuffled = uniform(generator, shape, torch.float64)
    places = torch.arange(n, dtype=torch.float64, device=generator.device).expand(shape)
    # Two sorts that begin with the chosen places, once in their order and once in a random one;
    # both end with the others in their order (keys from 1 on and from n on, past all chosen ones).
    source = torch.where(chosen, places, n + places).argsort(-1)
    target = torch.where(chosen, shuffled, 1 + places).argsort(-1)
    return torch.empty(shape, dtype=torch.long, device=generator.device).scatter(-1, source, target)


def check_size(name: str, size: int) -> None:
    """Raises where a group is asked to act on fewer than one coordinate."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            f"{name}({size!r}): expected a whole number of coordinates, 1 or more. "
            "A space without coordinates has no group; leave the axis fixed."
        )


def require_plain_power(group: Group, power: Power) -> None:
    """Raises unless the power is 1, for groups that mix coordinates."""
    if power != 1:
        raise ValueError(
            f"{group} was asked for its entrywise power {power}; an entrywise power is a "
            "representation only of a monomial group. The axis therefore needs a space that is "
            "monomial, or it stays fixed."
        )
