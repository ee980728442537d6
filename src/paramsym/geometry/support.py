"""What a function depends on where one side of a space stands against zeros.

Let x carry a space and y its dual, and let x vanish along some direction of it. Stretching that
direction leaves x as it is and takes y to zero along it, at a function that stays the same; in the
limit y can be zero there. Its entries are loose: nothing determines them, and where they stay there
is no least norm. The point without them lies in the closure of the orbit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, ComplexScaling, GeneralLinear
from paramsym.geometry.costs import scales_of
from paramsym.structure.element import GroupElement
from paramsym.structure.gram import Gram, gram
from paramsym.structure.layout import widened, working_dtype
from paramsym.structure.origin import added
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_ROUNDING = 1e-11  # eigenvalues below this share of the largest are zero: Gram matrices are squares
_TURNS = 64  # zeros travel one space further in each


def supported(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], bases_only: bool = False
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Parameters without what stands against zeros, and by space the number of such directions.

    Args:
        symmetry: whose scales and changes of basis they are, without frames.
        params: the complete state dict, which is only read.
        bases_only: whether only changes of basis take anything away.
    """
    moved, loose = dict(params), dict[str, int]()
    spaces = [name for name in symmetry.spaces if _stretches(symmetry, name)]
    if bases_only:
        spaces = [n for n in spaces if isinstance(symmetry.spaces[n].group, GeneralLinear)]
    for _ in range(_TURNS):
        changed = False
        for space in spaces:
            own = {n: p for n, p in moved.items() if n not in symmetry.buffers}
            carried = {n: widened(own[n]) for n in symmetry.parameters_of(space) if n in own}
            if not carried:
                continue
            kept, lost = _kept(symmetry, space, *gram(symmetry, carried, space))
            if lost:
                moved |= _projected(symmetry, space, moved, kept)
                loose[space] = loose.get(space, 0) + lost
                changed = True
        if not changed:
            break
    return moved, loose


def one_sided(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], held: Collection[str]
) -> tuple[GroupElement, dict[str, int], set[str]]:
    """The element by which weights whose size nothing feels get the norm one.

    Where a scale stands on one side alone, as on the weights behind a weight norm, or on a unit
    whose other side is zero, there is nothing to balance it against.

    Args:
        symmetry: one without frames.
        params: parameters outside of frames.
        held: spaces that do not move.

    Returns:
        The element; by space the number of units of which one side is zero at these parameters
        only; and the spaces of which all is on one side.
    """
    values: dict[str, Tensor] = {}
    loose: dict[str, int] = {}
    whole: set[str] = set()
    for name, space in symmetry.spaces.items():
        powers = _powers(symmetry, params, name)
        if name in held or not space.exact or not powers:
            continue
        value = _sized(symmetry, params, space, powers)
        if value is not None:
            values[name] = value
            if len({power > 0 for power in powers}) == 1:
                whole.add(name)
            else:
                loose[name] = int((value != 1).sum())
    element = symmetry.element(values) if values else GroupElement(symmetry)
    return element, loose, whole


def _sized(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], space: Space, powers: set[float]
) -> Tensor | None:
    """What gives the one-sided part of a space norm one; None where it has none."""
    own = {n: params[n] for n in symmetry.parameters_of(space.name) if n in params}
    own = {n: p.to(working_dtype(p)) for n, p in _counted(symmetry, own).items()}
    if scales_of(space) and isinstance(space.group, AbstractMonomial):
        return _normed(gram(symmetry, own, space.name), powers)
    if isinstance(space.group, GeneralLinear) and len(powers) == 1:
        return _whitened(*gram(symmetry, own, space.name))
    return None


def _normed(masses: Gram, powers: Collection[float]) -> Tensor | None:
    """The scales that give units with one side norm one; none where there are no such units.

    Where several powers meet it is a step towards them.
    """
    up, down = (
        max((abs(p) for p in powers if (p > 0) == side), default=1.0) for side in (True, False)
    )
    covariant, dual = (mass.double() for mass in masses)
    value = torch.where((covariant > 0) & (dual == 0), covariant / up, 1.0) ** (-0.5 / up)
    value = value * torch.where((dual > 0) & (covariant == 0), dual / down, 1.0) ** (0.5 / down)
    return value if bool(((covariant > 0) != (dual > 0)).any()) else None


def _whitened(covariant: Tensor, dual: Tensor) -> Tensor | None:
    """The basis in which a Gram matrix is one."""
    side = -0.5 if bool(covariant.any()) else 0.5
    values, vectors = torch.linalg.eigh((covariant + dual).double())
    if bool((values <= _ROUNDING * values[..., -1:]).any()):
        return None  # what does not stand in all directions has none
    return (vectors * values[..., None, :] ** side) @ vectors.mT


def _powers(symmetry: ParameterSymmetry, params: Mapping[str, Tensor], space: str) -> set[float]:
    """The powers to which a space stands on what counts."""
    own = {n: params[n] for n in symmetry.parameters_of(space) if n in params}
    return {
        float(leg.power)
        for name in _counted(symmetry, own)
        for block in symmetry.blocks[name]
        for leg in block.legs
        if leg.space == space and leg.power
    }


def _counted(symmetry: ParameterSymmetry, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a norm is taken of: no buffers, and nothing dead."""
    left_out = {*symmetry.buffers, *symmetry.dead}
    return {n: p for n, p in params.items() if n not in left_out}


def _stretches(symmetry: ParameterSymmetry, name: str) -> bool:
    space = symmetry.spaces[name]
    legs = symmetry.legs(name)
    both = {leg.is_dual for leg in legs if leg.power} == {True, False}
    return (
        both and space.exact and not any(leg.frame for leg in legs)
        and bool(scales_of(space) or isinstance(space.group, GeneralLinear))
    )  # fmt: skip


def _kept(
    symmetry: ParameterSymmetry, space: str, covariant: Tensor, dual: Tensor
) -> tuple[tuple[Tensor, Tensor], int]:
    """Projectors for the covariant and the dual side, and how many directions they take away."""
    group = symmetry.spaces[space].group
    if isinstance(group, AbstractMonomial | ComplexScaling):
        if not isinstance(group, AbstractMonomial):  # a modulus stands for both of its coordinates
            covariant, dual = (m.diagonal(dim1=-2, dim2=-1) for m in (covariant, dual))
            covariant, dual = (m + m.roll(group.size // 2, -1) for m in (covariant, dual))
        one, other = (covariant > 0).double(), (dual > 0).double()
        return (other, one), int((one != other).sum())
    one, other = _onto_range(covariant), _onto_range(dual)
    shared = int(torch.linalg.matrix_rank(other @ one, atol=1e-6).sum())
    everything = torch.eye(group.size, dtype=one.dtype).expand(one.shape)
    if unseen := _rank(one) - shared:  # this side first: the rest of it tells the other what it is
        return (other, everything), unseen
    return (everything, one), _rank(other) - shared


def _rank(projector: Tensor) -> int:
    return int(projector.diagonal(dim1=-2, dim2=-1).sum(-1).round().sum())


def _onto_range(matrix: Tensor) -> Tensor:
    """The orthogonal projector onto the range of Gram matrices, of shape (copies…, n, n)."""
    values, vectors = torch.linalg.eigh(matrix)
    real = values > _ROUNDING * values[..., -1:].clamp(min=1e-300)
    return (vectors * real[..., None, :]) @ vectors.mT


def _projected(
    symmetry: ParameterSymmetry,
    space: str,
    params: Mapping[str, Tensor],
    kept: tuple[Tensor, Tensor],
) -> dict[str, Tensor]:
    """The tensors of a space with each side projected onto what the other one sees."""
    found: dict[str, Tensor] = {}
    for name in symmetry.parameters_of(space):
        if name not in params or name in symmetry.buffers:
            continue
        origin = symmetry.offsets.get(name, 0.0)
        tensor = added(widened(params[name]), origin).clone(memory_format=torch.contiguous_format)
        for block in symmetry.blocks[name]:
            for leg in (leg for leg in block.legs if leg.space == space and leg.power):
                view = block.view(tensor)
                front = (*leg.copies, leg.axis)
                rows = view.movedim(front, tuple(range(len(front))))
                projector = kept[leg.is_dual]
                shape = rows.shape
                flat = rows.reshape(*shape[: len(front)], -1)
                if projector.ndim == len(front):
                    made = flat * projector[..., None]
                else:
                    made = projector @ flat
                rows.copy_(made.reshape(shape))
        moved = (added(tensor, -origin) if origin else tensor).to(params[name].dtype)
        found |= {n: moved for n in (name, *symmetry.aliases.get(name, ())) if n in params}
    return found
