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

from paramsym.algebra import Element, Group
from paramsym.checking.ends import Ends
from paramsym.checking.generic_weights import SPREAD, unit
from paramsym.checking.trial import State
from paramsym.checking.verify import movable
from paramsym.structure.action import act
from paramsym.structure.element import SHIFT, GroupElement, Part, Slide
from paramsym.structure.symmetry import ParameterSymmetry

_SAME = 1e-3  # a matrix that is closer to the identity is one
_FEW = 4  # units, of which two orders or signs often agree


@dataclass(frozen=True)
class Claim:
    """One part of a symmetry that can be true or false by itself."""

    kind: Literal["space", "shift", "dead", "unreached"]
    name: str


@dataclass(frozen=True)
class Pass:
    """Claims that are moved together, and by how much; `lone` moves one unit of each space.

    Random orders and signs lie in a subgroup of index two (even ones, say) in every other draw. A
    single sign, or two neighbours exchanged, lie in none in which all units count alike.
    """

    claims: tuple[Claim, ...]
    strength: float
    lone: bool = False


def claims_of(symmetry: ParameterSymmetry, exact: bool = True) -> tuple[Claim, ...]:
    """What a symmetry claims exactly; with exact=False, what it claims up to a small ε.

    Trivial spaces are among them: `act` must be able to move the tensors that carry them.
    """
    found = [Claim("space", s.name) for s in symmetry.spaces.values() if s.exact == exact]
    if exact:
        found += [Claim("shift", shift.name) for shift in symmetry.shifts]
        found += [Claim("dead", name) for name in symmetry.dead]
        found += [Claim("unreached", name) for name in symmetry.unreached]
    return tuple(found)


def moves_nothing(symmetry: ParameterSymmetry) -> bool:
    """Whether there is nothing to refute."""
    return not (movable(symmetry) or symmetry.dead or symmetry.unreached)


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
    finite = (c for c in ordered if c.kind == "space" and _has_order(symmetry.spaces[c.name].group))
    passes.append(Pass(tuple(finite), 1.0, lone=True))
    return [one for one in passes if one.claims]


def _size(symmetry: ParameterSymmetry, claim: Claim) -> tuple[int, ...]:
    if claim.kind == "space":
        return (symmetry.spaces[claim.name].size,)
    shift = symmetry.shift_of.get(claim.name)
    return () if shift is None else shift.shape


def _is_small(group: Group) -> bool:
    """Whether two draws of an order or of signs often agree."""
    return _has_order(group) and group.size <= _FEW


def _has_order(group: Group) -> bool:
    """Whether units have an order or signs."""
    return getattr(group, "permutes", False) or getattr(group, "signs", False)


def moved(
    symmetry: ParameterSymmetry,
    one: Pass,
    state: State,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> tuple[dict[str, Any], Ends]:
    """The weights after a finite move of these claims that is not the identity anywhere, and what
    it does to inputs and outputs."""
    only = [claim.name for claim in one.claims if claim.kind in ("space", "shift")]
    element = symmetry.sample(generator, one.strength, only=only, dtype=dtype)
    element = _lonely(element, generator) if one.lone else _awake(element, state)
    result = act(symmetry, element, state)
    ends = Ends(symmetry, element, state, result)
    for claim in one.claims:
        if claim.kind in ("dead", "unreached") and claim.name in state:
            rows = symmetry.unreached[claim.name] if claim.kind == "unreached" else None
            result[claim.name] = _displaced(result[claim.name], rows, one.strength, generator)
    return result, ends


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
    shifts = symmetry.shift_of

    def size(name: str) -> float:
        shift = shifts[name]
        units = [unit(tuple(state[n].shape)) for n in shift.parameters if n in state]
        spread = 1.0 if shift.divisor is None else math.prod(shift.shape) ** -0.5
        return min(units, default=1.0) * spread * SPREAD / SHIFT

    def stirred(part: Part) -> Part:
        if isinstance(part, Slide):
            return replace(part, offset=part.offset * size(part.shift))
        return {n: _stirred(v, symmetry.spaces[n].group, seen) for n, v in part.items()}

    return GroupElement(symmetry, tuple(map(stirred, element.parts)))


def _lonely(element: GroupElement, generator: torch.Generator) -> GroupElement:
    """The element with one unit of each space moved alone: its sign, or its place and the next."""
    spaces = element.symmetry.spaces
    seen: dict[int, torch.Tensor] = {}  # spaces that share an order keep sharing it

    def alone(part: Part) -> Part:
        if isinstance(part, Slide):
            return part
        return {n: _single(v, spaces[n].group, seen, generator) for n, v in part.items()}

    return GroupElement(element.symmetry, tuple(map(alone, element.parts)))


def _single(
    value: Element, group: Group, seen: dict[int, torch.Tensor], generator: torch.Generator
) -> Element:
    order, diagonal = value.order, value.diagonal
    if order is not None:
        if id(order) not in seen:
            places = torch.arange(order.shape[-1], device=order.device).expand(order.shape).clone()
            at = int(torch.randint(max(1, order.shape[-1] - 1), (), generator=generator))
            places[..., at : at + 2] = places[..., at : at + 2].flip(-1)
            seen[id(order)] = places
        value = value._replace(order=seen[id(order)])
    if diagonal is not None:
        still = torch.ones_like(diagonal)
        if getattr(group, "signs", False):
            still.view(-1)[int(torch.randint(still.numel(), (), generator=generator))] = -1
        value = value._replace(diagonal=still)
    return value


def _stirred(value: Element, group: Group, seen: dict[int, torch.Tensor]) -> Element:
    """A value of which no order is the identity, and no signs are all equal.

    Of several copies one may stand still, but they do not all move alike: that they move apart is
    part of the claim.
    """
    order, diagonal, matrix = value.order, value.diagonal, value.matrix
    if order is not None:
        if id(order) not in seen:
            places = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
            seen[id(order)] = _apart(order, places, places.roll(1, -1), tail=1)
        value = value._replace(order=seen[id(order)])
    if diagonal is not None and getattr(group, "signs", False):
        size = diagonal.abs()
        first = torch.arange(size.shape[-1], device=size.device) == 0
        signs = _apart(diagonal.sign(), size.sign(), torch.where(first, -1.0, 1.0).to(size), 1)
        value = value._replace(diagonal=size * _mixed(signs))
    if matrix is not None and matrix.shape[-1] <= 2 and (group.dimension or group.log_order):
        # Small orthogonal groups hold the identity with positive probability.
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        turned = -eye if len(eye) == 1 else eye.flip(0)
        near = ((matrix - eye).abs() < _SAME).all(-1).all(-1)[..., None, None]
        matrix = torch.where(near, eye, matrix)
        value = value._replace(matrix=_apart(matrix, eye.expand(matrix.shape), turned, tail=2))
    return value


def _apart(
    drawn: torch.Tensor, identity: torch.Tensor, other: torch.Tensor, tail: int
) -> torch.Tensor:
    """Copies that are not all the identity, and if there are several, not all the same."""
    batch = drawn.shape[: drawn.ndim - tail]
    copies = drawn.reshape(-1, *drawn.shape[len(batch) :])
    if not len(copies) or not bool((copies == copies[:1]).all()):
        return drawn
    still = bool((drawn == identity).all())
    if not still and len(copies) == 1:
        return drawn
    copies = copies.clone()
    copies[0] = other.expand(drawn.shape).reshape(copies.shape)[0] if still else (
        identity.expand(drawn.shape).reshape(copies.shape)[0]
    )  # fmt: skip
    return copies.reshape(drawn.shape)


def _mixed(signs: torch.Tensor) -> torch.Tensor:
    """A single copy whose signs are all negative has its first one turned."""
    equal = bool((signs == signs.reshape(-1)[:1]).all())
    if not equal or signs.shape[-1] < 2:
        return signs
    signs = signs.clone()
    signs[..., 0] *= -1
    return signs
