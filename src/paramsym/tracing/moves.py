"""Finite moves that a symmetry claims to be harmless, none of them the identity.

A claim is one space, one shift, one dead parameter, or the unread rows of one table. What the
spaces' values look like is read off the `Element`s, so that nothing here depends on how orders,
signs and scales are shared among spaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from paramsym.algebra import (
    ComplexScaling,
    Element,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    OrthogonalFixingOnes,
    Permutation,
    PositiveScaling,
    Scaling,
    SignedPermutation,
    Signs,
    Trivial,
    UnitComplex,
)
from paramsym.structure.action import act
from paramsym.structure.axes import Fixed, spaces_of
from paramsym.structure.element import SHIFT, GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.generic_weights import SPREAD, unit
from paramsym.tracing.trial import State
from paramsym.tracing.verify import movable

_SAME = 1e-3  # a matrix that is closer to the identity is one
_FEW = 4  # units, of which two orders or signs often agree


@dataclass(frozen=True)
class Claim:
    """One part of a symmetry that can be true or false by itself."""

    kind: Literal["space", "shift", "dead", "unreached"]
    name: str


@dataclass(frozen=True)
class Pass:
    """Claims that are moved together, and by how much."""

    claims: tuple[Claim, ...]
    strength: float


def claims_of(symmetry: ParameterSymmetry, exact: bool = True) -> tuple[Claim, ...]:
    """What a symmetry claims exactly; with exact=False, what it claims up to a small ε."""
    spaces = symmetry.spaces
    found = [
        Claim("space" if name in spaces else "shift", name)
        for name in movable(symmetry)
        if (name not in spaces or spaces[name].exact) == exact
    ]
    if exact:
        found += [Claim("dead", name) for name in symmetry.dead]
        found += [Claim("unreached", name) for name in symmetry.unreached]
    return tuple(found)


def passes_of(symmetry: ParameterSymmetry, many: bool) -> list[Pass]:
    """Everything at once, everything at half the strength, then every other space of each size.

    Two spaces that should be one may move alike where everything moves. With few orders to choose
    from they often do, so that with `many` each two of those are parted by some pass.
    """
    claims = claims_of(symmetry)
    ordered = sorted(claims, key=lambda claim: (claim.kind, _size(symmetry, claim)))
    passes = [Pass(claims, 1.0), Pass(claims, 0.5), Pass(tuple(ordered[::2]), 1.0)]
    few = [c for c in ordered if c.kind == "space" and _is_small(symmetry.spaces[c.name].group)]
    for bit in range((len(few) - 1).bit_length() if many and few else 0):
        part = tuple(claim for k, claim in enumerate(few) if k >> bit & 1)
        passes.append(Pass(part, 1.0))
    return [one for one in passes if one.claims]


def _size(symmetry: ParameterSymmetry, claim: Claim) -> tuple[int, ...]:
    if claim.kind == "space":
        return (symmetry.spaces[claim.name].size,)
    shapes = {shift.name: shift.shape for shift in symmetry.shifts}
    return shapes.get(claim.name, ())


def _is_small(group: Group) -> bool:
    """Whether two draws of an order or of signs often agree."""
    discrete = getattr(group, "permutes", False) or getattr(group, "signs", False)
    return discrete and group.size <= _FEW


def moved(
    symmetry: ParameterSymmetry,
    one: Pass,
    state: State,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The weights after a finite move of these claims that is not the identity anywhere."""
    only = [claim.name for claim in one.claims if claim.kind in ("space", "shift")]
    element = symmetry.sample(generator, one.strength, only=only, dtype=dtype)
    result = act(symmetry, _awake(element, state), state)
    for claim in one.claims:
        if claim.kind in ("dead", "unreached") and claim.name in state:
            rows = symmetry.unreached[claim.name] if claim.kind == "unreached" else None
            result[claim.name] = _displaced(result[claim.name], rows, one.strength, generator)
    return result


def _displaced(
    tensor: torch.Tensor, rows: tuple[int, ...] | None, strength: float, generator: torch.Generator
) -> torch.Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    tensor = tensor.clone()
    at = slice(None) if rows is None else torch.tensor(rows, device=tensor.device)
    part = tensor[at] if tensor.ndim else tensor
    noise = torch.randn(part.shape, generator=generator) * (strength * unit(tuple(tensor.shape)))
    if not tensor.ndim:
        return tensor + noise.to(tensor)
    tensor[at] = part + noise.to(tensor)
    return tensor


def _awake(element: GroupElement, state: State) -> GroupElement:
    """The element with no identity in it, and shifts as large as a part of what they move."""
    symmetry = element.symmetry
    seen: dict[int, torch.Tensor] = {}  # spaces that share an order keep sharing it
    shifts = {shift.name: shift for shift in symmetry.shifts}

    def size(name: str) -> float:
        shift = shifts[name]
        units = [unit(tuple(state[n].shape)) for n in shift.parameters if n in state]
        spread = 1.0 if shift.divisor is None else math.prod(shift.shape) ** -0.5
        return min(units, default=1.0) * spread * SPREAD / SHIFT

    return GroupElement(
        symmetry,
        tuple(
            (
                {n: _stirred(v, symmetry.spaces[n].group, seen) for n, v in values.items()},
                {n: delta * size(n) for n, delta in offsets.items()},
            )
            for values, offsets in element.parts
        ),
    )


def _stirred(value: Element, group: Group, seen: dict[int, torch.Tensor]) -> Element:
    """A value of which no order is the identity, and no signs are all equal."""
    if value.order is not None:
        if id(value.order) not in seen:
            seen[id(value.order)] = _cycled(value.order)
        value = value._replace(order=seen[id(value.order)])
    diagonal, matrix = value.diagonal, value.matrix
    if diagonal is not None and getattr(group, "signs", False):
        value = value._replace(diagonal=_mixed(diagonal))
    if matrix is not None and (group.dimension or group.log_order):
        value = value._replace(matrix=_turned(matrix))
    return value


def _cycled(order: torch.Tensor) -> torch.Tensor:
    places = torch.arange(order.shape[-1], device=order.device)
    still = (order == places).all(-1, keepdim=True)
    return torch.where(still, places.roll(1), order)


def _mixed(diagonal: torch.Tensor) -> torch.Tensor:
    """Equal signs become mixed ones; a single sign becomes negative."""
    signs = diagonal.sign()
    equal = (signs == signs[..., :1]).all(-1, keepdim=True)
    first = torch.arange(diagonal.shape[-1], device=diagonal.device) == 0
    if diagonal.shape[-1] == 1:
        return -diagonal.abs()
    return torch.where(equal & first, -diagonal, diagonal)


def _turned(matrix: torch.Tensor) -> torch.Tensor:
    """Small orthogonal groups hold the identity with positive probability."""
    n = matrix.shape[-1]
    if n > 2:
        return matrix
    eye = torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    still = ((matrix - eye).abs() < _SAME).all(-1).all(-1)[..., None, None]
    return torch.where(still, -eye if n == 1 else eye.flip(0), matrix)


# -- less -----------------------------------------------------------------------------------------


def weaker(symmetry: ParameterSymmetry, claim: Claim) -> list[tuple[ParameterSymmetry, str]]:
    """The symmetry with less of one claim, the most that may be left first, and what became of it.

    A space tries the smaller groups of the same size (its scale alone, its order alone, …) and
    ends as `Trivial`, its types and copies kept; everything else is taken out.
    """
    if claim.kind == "shift":
        left = tuple(s for s in symmetry.shifts if s.name != claim.name)
        return [(replace(symmetry, shifts=left), f"shift {claim.name} removed")]
    if claim.kind == "dead":
        left = tuple(n for n in symmetry.dead if n != claim.name)
        return [(replace(symmetry, dead=left), f"{claim.name} is not dead")]
    if claim.kind == "unreached":
        rest = {n: rows for n, rows in symmetry.unreached.items() if n != claim.name}
        return [(replace(symmetry, unreached=rest), f"rows of {claim.name} are reached")]
    group = symmetry.spaces[claim.name].group
    return [
        (with_group(symmetry, claim.name, less), f"{claim.name}: {group} became {less}")
        for less in _subgroups(group)
    ]


def with_group(symmetry: ParameterSymmetry, name: str, group: Group) -> ParameterSymmetry:
    """The same symmetry with another group on one space."""
    space = replace(symmetry.spaces[name], group=group)
    return replace(symmetry, spaces={**symmetry.spaces, name: space})


def _subgroups(group: Group) -> list[Group]:
    """The listed groups strictly inside one, larger ones first; the last is trivial."""
    n = group.size
    listed: list[Group] = [
        Orthogonal(n), OrthogonalFixingOnes(n), Monomial(n, signed=True), Monomial(n), Scaling(n),
        PositiveScaling(n), SignedPermutation(n), Permutation(n), Signs(n), Trivial(n),
    ]  # fmt: skip
    if n % 2 == 0:
        listed += [ComplexScaling(n), UnitComplex(n)]
    listed.append(GeneralLinear(n))
    inside = [g for g in listed if g != group and g <= group]
    return sorted(inside, key=lambda g: (-g.dimension, -g.log_order))


def fitting(symmetry: ParameterSymmetry, state: State) -> tuple[ParameterSymmetry, tuple[str, ...]]:
    """The symmetry without types that do not fit their tensors, and what was taken out.

    A wrong type on one tensor makes `act` refuse every move, so that it cannot be found by
    leaving claims out: the tensor is held fixed, and the spaces that it named become trivial.
    """
    signature, lost = dict(symmetry.signature), []
    for name, axes in symmetry.signature.items():
        carried = {space for axis in axes for space in spaces_of(axis)}
        shape = tuple(state[name].shape) if name in state else None
        if shape == symmetry.shape(name) or (shape is None and not carried):
            continue
        text = f"{name}: its type ({', '.join(map(str, axes))}) does not fit"
        if shape is None:
            del signature[name]
        else:
            signature[name] = tuple(map(Fixed, shape))
        lost.append((text, carried))
    if not lost:
        return symmetry, ()
    symmetry = replace(symmetry, signature=signature)
    for space in set().union(*(carried for _, carried in lost)):
        symmetry = with_group(symmetry, space, Trivial(symmetry.spaces[space].size))
    return symmetry, tuple(text for text, _ in lost)
