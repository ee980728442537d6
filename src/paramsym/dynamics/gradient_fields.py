"""Which combinations of generators have a field that is a gradient, as sparse linear equations.

For a space the coefficients are those of a matrix A, and A = Aᵀ is asked. A shift must be constant:
what it adds to a parameter by reading others has no counterpart, unless another shift adds the same
multiple of the same numbers, which is asked of their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.algebra import Group
from paramsym.structure.axes import spaces_of
from paramsym.structure.coordinates import Generators
from paramsym.structure.rest import Equations
from paramsym.structure.shift import Factor, Shift, Term, Window
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_SKEW = "only velocities are tied, ⟨θ̇, Xθ⟩ = 0"


class Transpose(NamedTuple):
    """A ↦ Aᵀ in the coordinates of a Lie algebra: coordinate j of Aᵀ is sign_j · A_partner(j)."""

    partner: Tensor
    sign: Tensor

    @property
    def own(self) -> Tensor:
        """One coordinate for each direction with A = Aᵀ: the first that it moves."""
        return (self.sign > 0) & (self.partner >= torch.arange(len(self.partner)))


@lru_cache(maxsize=64)
def transpose(group: Group) -> Transpose:
    """The transpose in the coordinates of a group, read off one velocity with numbered ones."""
    labels = torch.arange(1, group.dimension + 1, dtype=torch.float64)
    found = -group.coordinates(group.dual_tangent(group.tangent(labels)))
    return Transpose(found.abs().round().long() - 1, found.sign())


@dataclass(frozen=True)
class GradientFields:
    """The equations for the coefficients c with which Σ c_j X_j θ is a gradient.

    `why` says of a space why not all of its directions take part, and of a shift why it does not
    do so alone.
    """

    equations: Equations
    why: dict[str, str]


def gradient_fields(
    symmetry: ParameterSymmetry, blocks: Sequence[Generators], still: Collection[str]
) -> GradientFields:
    """What constant coefficients c satisfy where Σ c_j X_j θ is a gradient.

    Args:
        symmetry: whose generators they are.
        blocks: the families of generators, in the order of the coordinates.
        still: parameters that do not flow; families that move them are left out.
    """
    freed = {s for axes in symmetry.interfaces.values() for axis in axes for s in spaces_of(axis)}
    shifts, why, constants = {s.name: s for s in symmetry.shifts}, {}, {*symmetry.buffers, *still}
    sums: list[list[tuple[Tensor, Tensor]]] = []  # each a list of places and factors, added up
    read: dict[object, list[tuple[Tensor, Tensor]]] = {}
    first = 0
    for block in blocks:
        places = torch.arange(first, first + block.size).reshape(block.shape)
        reason = _left_out(symmetry, block, still, freed)
        if reason:
            sums.append([_once(places)])
        elif block.is_shift:
            shift = shifts[block.name]
            reason = _about_shift(shift, constants)
            for term in shift.terms:
                if _reads(term, constants):
                    key, along = _canonical(term, shift.letters, places)
                    read.setdefault(key, []).append(_once(along, term.coefficient))
        else:
            space = symmetry.spaces[block.name]
            reason = _about_space(space, symmetry)
            sums += _symmetric(space, symmetry, places)
        if reason:
            why[block.name] = reason
        first += block.size
    return GradientFields(_assembled([*sums, *read.values()]), why)


def _once(places: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    flat = places.reshape(-1)
    return flat, torch.full(flat.shape, factor, dtype=torch.float64)


def _assembled(sums: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Equations:
    """The k-th entries of all members of a sum make one equation."""
    none = torch.zeros(0, dtype=torch.long)
    rows, places, values, first = [none], [none], [none.double()], 0
    for members in sums:
        for own, factors in members:
            rows.append(first + torch.arange(len(own)))
            places.append(own)
            values.append(factors)
        first += max(len(own) for own, _ in members)
    return Equations(torch.cat(rows), torch.cat(places), torch.cat(values))


def _left_out(
    symmetry: ParameterSymmetry, block: Generators, still: Collection[str], freed: set[str]
) -> str:
    """Why a family takes no part at all, if it does not."""
    if frozen := [n for n in block.parameters if n in still]:
        return f"it moves {frozen[0]!r}, which is not trained"
    if block.name in freed:
        return "it changes the basis of inputs or outputs, and with it the loss"
    space = symmetry.spaces.get(block.name)
    if space is not None and not space.exact:
        return "it does not hold exactly, so that the loss changes"
    return ""


# -- spaces ------------------------------------------------------------------------------------


def _symmetric(
    space: Space, symmetry: ParameterSymmetry, places: Tensor
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """A = Aᵀ for every copy; in the frame of a gain the diagonal alone."""
    partner, sign = transpose(space.group)
    own = torch.arange(len(partner))
    skew, pair = (partner == own) & (sign < 0), partner > own
    if _frame(space, symmetry):
        off = ~_diagonal(space.group)
        skew, pair = skew | off, pair & ~off
    yield [_once(places[..., skew])]
    factors = -sign[pair].expand(places[..., pair].shape).reshape(-1)
    yield [_once(places[..., pair]), (places[..., partner[pair]].reshape(-1), factors)]


def _frame(space: Space, symmetry: ParameterSymmetry) -> str:
    """A gain in whose frame a space acts, if there is one."""
    frames = (leg.frame for leg in symmetry.legs(space.name) if leg.frame)
    return next((frame[0].parameter for frame in frames), "")


def _diagonal(group: Group) -> Tensor:
    """Which coordinates stand on the diagonal of A."""
    labels = torch.arange(1, group.dimension + 1, dtype=torch.float64)
    found = torch.zeros(group.dimension + 1, dtype=torch.bool)
    if (matrix := group.tangent(labels).matrix) is not None:
        found[matrix.diagonal().round().long().abs()] = True
    return found[1:]


def _about_space(space: Space, symmetry: ParameterSymmetry) -> str:
    own = transpose(space.group).own
    if not own.any():
        return f"its generators are skew: {_SKEW}"
    if not own.all() and (gain := _frame(space, symmetry)):
        return (
            f"off the diagonal what it does in the frame of {gain!r} depends on that gain, which "
            f"does not depend on it in turn: {_SKEW}"
        )
    return "" if own.all() else f"half of its generators are skew: of them {_SKEW}"


# -- shifts ------------------------------------------------------------------------------------


def _reads(term: Term, constants: Collection[str]) -> list[str]:
    """The parameters that a term reads and that flow."""
    return [n for f in term.factors for n in f.reads if n not in constants]


def _about_shift(shift: Shift, constants: Collection[str]) -> str:
    for term in shift.terms:
        if read := _reads(term, constants):
            return (
                f"what it adds to {term.target.parameter!r} depends on {read[0]!r}, which does not "
                f"depend on it in turn: {_SKEW}"
            )
    return ""


def _canonical(term: Term, letters: str, places: Tensor) -> tuple[object, Tensor]:
    """What a term adds to which entries, whatever its letters are, and δ in the order of that."""

    def window(w: Window, names: dict[str, int]) -> tuple[object, ...]:
        own = tuple(names.setdefault(c, len(names)) for c in w.letters)
        return (w.parameter, w.start, w.shape, w.strides, own)

    def factor(f: Factor, names: dict[str, int]) -> tuple[object, ...]:
        # The letters of a kernel are its own: x, and A, B, … for what the factor's window names.
        kernel = tuple((w.parameter, w.start, w.shape, w.strides, w.letters) for w in f.kernel)
        return (*window(f.window, names), f.power, f.offset, kernel, f.flow)

    names: dict[str, int] = {}
    target = window(term.target, names)
    factors = sorted(term.factors, key=lambda f: (repr(factor(f, {})), f.window.letters))
    key = (target, *(factor(f, names) for f in factors))
    along = sorted(range(len(letters)), key=lambda k: names.setdefault(letters[k], len(names)))
    own = tuple(names[letters[k]] for k in along)
    return (key, own, tuple(places.shape[k] for k in along)), places.permute(along)
