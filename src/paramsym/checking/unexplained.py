"""What unexplained directions do: a sparse basis of them, and its shapes in words.

Directions are known up to combinations of each other and of what is explained. Of all these, those
that move few numbers are the ones that a reader recognises: a scale of one row of this tensor
against one column of that. They are found by elimination, then by least absolute values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from paramsym.checking.elimination import eliminate
from paramsym.structure.tangent import as_real

_ZERO = 1e-6  # relative to the largest entry of a direction
_ALIKE = 1e-5  # relative error up to which a direction has a shape
_WORK = 2e10  # operations up to which least absolute values are searched
_STEPS = 12
_SUPPORTS = (1e-1, 1e-2, 1e-3, 1e-4)  # relative to the largest entry


@dataclass(frozen=True)
class Unexplained:
    """Directions of one shape: how many, and what each does to which tensors."""

    count: int
    moves: tuple[tuple[str, str], ...]  # (tensor, what it does there)

    def __str__(self) -> str:
        text = " with ".join(f"{what} {name}" for name, what in self.moves[:6])
        more = f" and {len(self.moves) - 6} more tensors" if self.moves[6:] else ""
        return f"{self.count} × {text}{more}"


def sparse(directions: torch.Tensor, explained: torch.Tensor) -> torch.Tensor:
    """Combinations of the given directions, and of explained ones, that move few entries.

    Args:
        directions: independent of the explained ones, (parameters, directions).
        explained: (explained directions, parameters).

    Returns:
        As many columns of largest entry one, small entries set to zero.
    """
    found = _eliminated(directions)
    size, width = found.shape[0], found.shape[1] + len(explained)
    if _STEPS * found.shape[1] * size * width**2 <= _WORK:
        found = _least_absolute(found, explained)
    found = found / found.abs().amax(dim=0)
    return torch.where(found.abs() < _ZERO, 0.0, found)


def _eliminated(directions: torch.Tensor) -> torch.Tensor:
    """Reduced echelon form by columns: an entry of each is its own, by partial pivoting."""
    found = directions / torch.linalg.vector_norm(directions, dim=0)
    order = eliminate(found)
    lower = found.tril(-1).fill_diagonal_(1.0)
    top = lower[: lower.shape[1]]
    made = torch.linalg.solve_triangular(top, lower, upper=False, left=False, unitriangular=True)
    return torch.empty_like(made).index_copy_(0, order, made)


def _least_absolute(found: torch.Tensor, explained: torch.Tensor) -> torch.Tensor:
    """Each direction plus what of the others and of the explained makes Σ|entries| least.

    By iterated reweighting: a weighted least squares fit, with weights 1/|entry| of the last one.
    A result is taken where it is sparser and all of them stay independent of the explained ones.
    """
    known = torch.linalg.qr(explained.T).Q if len(explained) else found[:, :0]
    result = found.clone()
    for k in range(found.shape[1]):
        others = torch.cat([result[:, :k], result[:, k + 1 :], known], dim=1)
        if not others.shape[1]:
            continue
        current = result[:, k]
        for step in range(_STEPS):
            floor = 10.0 ** -(1 + step / 2) * float(current.abs().max())
            weight = (current.abs() + floor).rsqrt()[:, None]
            fit = torch.linalg.lstsq(others * weight, result[:, k, None] * weight, driver="gelsy")
            current = result[:, k] - (others @ fit.solution)[:, 0]
        for share in _SUPPORTS:  # what is small may be rounding of the search: try without it
            outside = current.abs() < share * current.abs().max()
            fit = torch.linalg.lstsq(others[outside], result[outside, k, None], driver="gelsy")
            trimmed = result[:, k] - (others @ fit.solution)[:, 0]
            if float(trimmed[outside].norm()) < _ZERO * float(trimmed.abs().max()):
                current = trimmed
                break
        if _entries(current) < _entries(result[:, k]):
            result[:, k] = current
    return result


def _entries(direction: torch.Tensor) -> int:
    return int((direction.abs() > _ZERO * direction.abs().max()).sum())


def describe(
    basis: torch.Tensor, params: Mapping[str, torch.Tensor], places: Mapping[str, slice]
) -> tuple[Unexplained, ...]:
    """Directions of equal shape together, the most frequent first.

    Args:
        basis: sparse directions as columns, (parameters, directions).
        params: the tensors at which they start.
        places: where each tensor stands among the rows of `basis`.
    """
    shapes: Counter[tuple[tuple[str, str], ...]] = Counter()
    for direction in basis.T:
        moves = []
        for name, place in places.items():
            part = direction[place]
            if bool(part.any()):
                tensor = as_real(params[name]).cpu()
                moves.append((name, _shape(part.reshape(tensor.shape), tensor)))
        shapes[tuple(moves)] += 1
    return tuple(Unexplained(count, moves) for moves, count in shapes.most_common())


def _shape(velocity: torch.Tensor, tensor: torch.Tensor) -> str:
    """What a velocity does to its tensor, in words that its name completes."""
    for axis in range(velocity.ndim):
        moving = velocity.movedim(axis, 0).reshape(velocity.shape[axis], -1).any(1).nonzero()
        if len(moving) == 1 and velocity.shape[axis] > 1:
            one, place = int(moving), _named(axis, velocity.ndim)
            kind = _kind(velocity.select(axis, one), tensor.select(axis, one))
            if not kind and _is_another(velocity.select(axis, one), tensor.movedim(axis, 0)):
                return f"another {place} added to a {place} of"
            return f"{kind or 'a change'} of one {place} of"
    return f"{_kind(velocity, tensor) or _mixed(velocity, tensor)} of"


def _named(axis: int, ndim: int) -> str:
    if ndim <= 2:
        return "entry" if ndim == 1 else ("row", "column")[axis]
    return f"slice along axis {axis}"


def _kind(part: torch.Tensor, own: torch.Tensor) -> str:
    """A multiple of the tensor itself, or the same number everywhere; empty if it is neither."""
    flat, base = part.reshape(-1), own.reshape(-1)
    size = float(flat.norm())
    if _residue(flat, base) < _ALIKE * size:
        return "a scale"
    if float((flat - flat.mean()).norm()) < _ALIKE * size:
        return "a shift"
    return ""


def _is_another(part: torch.Tensor, slices: torch.Tensor) -> bool:
    """Whether a slice moves along another one of the same tensor."""
    flat = part.reshape(-1)
    size = float(flat.norm())
    return any(_residue(flat, base.reshape(-1)) < _ALIKE * size for base in slices)


def _residue(flat: torch.Tensor, base: torch.Tensor) -> float:
    """What is left of a vector beside the line of another."""
    square = float(base @ base)
    along = (flat @ base) / square if square else 0.0
    return float((flat - along * base).norm())


def _mixed(velocity: torch.Tensor, tensor: torch.Tensor) -> str:
    """A matrix times the tensor, from either side; a change if it is neither."""
    if velocity.ndim == 2:
        for name, matrix, moved in (
            ("a mixing of the rows", tensor, velocity),
            ("a mixing of the columns", tensor.T, velocity.T),
        ):
            if matrix.shape[0] < matrix.shape[1]:  # otherwise any matrix is such a product
                fit = torch.linalg.lstsq(matrix.T, moved.T, driver="gelsy").solution
                if float((matrix.T @ fit - moved.T).norm()) < _ALIKE * float(moved.norm()):
                    return name
    return "a change"
