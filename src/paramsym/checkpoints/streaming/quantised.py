"""Quantised weights, moved in the form in which they are stored.

A quantised weight W is not in the files. What is there are codes, and scales that blocks share:

    W[i, j] = (codes[i, j] − zeros[i // b, j // c]) · scales[i // b, j // c]

Each of these parts follows the axes of W in blocks: of one entry for codes, of b for scales, of as
many as there are in one number for codes that are packed. An element acts on W, and what it does
can be said in the parts where along each axis of W it is

    an order     that takes whole blocks to whole blocks: then so it does with the blocks of every
                 part. Inside a block that shares a scale it is free; packed codes stay as they lie
    a scale      that is positive and constant on the blocks of the scales: then it multiplies them.
                 Each product is rounded once, to the dtype of the scales

Everything else (rotations, scales of entries, orders across blocks) would need other codes, and is
refused; the spaces that ask for it are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from paramsym.structure.axes import spaces_of
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.fast import AxisPlan, axis_plans
from paramsym.structure.needs import steps
from paramsym.structure.symmetry import ParameterSymmetry

# What the rounding of a product to each dtype of scales changes at most, relative to the product.
ROUNDING = {
    torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7, torch.float8_e8m0fnu: 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Follows:
    """How an axis of a part follows an axis of the weight.

    Entry j stands for the entries from j·unit up to (j + 1)·unit, the last one for those that are
    left. Where they are `packed` into one number, they keep their order.
    """

    axis: int
    unit: int = 1
    packed: bool = False


@dataclass(frozen=True)
class StoredPart:
    """One tensor of the files by which a weight is stored.

    `axes` say what each of its own axes follows; None where it follows nothing. Scales of the
    weight multiply what is `scales`.
    """

    name: str
    axes: tuple[Follows | None, ...]
    dtype: torch.dtype
    scales: bool = False


@dataclass(frozen=True)
class StoredWeight:
    """A quantised weight: what it is called, how it is stored, and by which parts.

    `unscaled` are axes that must not be scaled, and the tensor that says so.
    """

    name: str
    model: str
    layout: str
    shape: tuple[int, ...]
    parts: tuple[StoredPart, ...]
    unscaled: Mapping[int, str]


@dataclass(frozen=True)
class StoredMove:
    """What happens to one part: an order along each axis, and then factors, one for each axis."""

    orders: tuple[torch.Tensor | None, ...]
    factors: tuple[torch.Tensor, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it is another tensor afterwards."""
        return bool(self.factors) or any(order is not None for order in self.orders)


@dataclass(frozen=True)
class AxisMove:
    """Along one axis x ↦ scale · x[order], by some spaces; `stuck` says why it is no such thing."""

    order: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    movers: tuple[str, ...] = ()
    stuck: str = ""

    def then(self, plan: AxisPlan, movers: tuple[str, ...]) -> AxisMove:
        """This, and another one after it."""
        if self.stuck or plan.mixed is not None or plan.second is not None:
            return self.held("mixes its entries", movers)
        order, scale = self.order, self.scale
        if plan.order is not None:
            order = plan.order if order is None else order[plan.order]
            scale = None if scale is None else scale[plan.order]
        if plan.scale is not None:
            scale = plan.scale if scale is None else scale * plan.scale
        return AxisMove(order, scale, (*self.movers, *movers))

    def held(self, why: str, movers: tuple[str, ...]) -> AxisMove:
        """It is no order and no scale, because of these spaces and shifts."""
        return AxisMove(movers=(*self.movers, *movers), stuck=self.stuck or why)


class Unsaid(Exception):
    """What an element does to a weight cannot be said in its codes and scales.

    `reason` says why, and `movers` are the spaces and shifts that do it.
    """

    def __init__(self, reason: str, movers: tuple[str, ...]):
        super().__init__(reason)
        self.reason, self.movers = reason, movers


def axis_moves(symmetry: ParameterSymmetry, element: GroupElement, name: str) -> list[AxisMove]:
    """What an element does along each axis of a tensor.

    Args:
        symmetry: that types the tensor.
        element: of the symmetry.
        name: of the tensor in the signature.

    Returns:
        One for each axis.
    """
    axes = symmetry.signature[name]
    found = [AxisMove() for _ in axes]
    for place, names in steps(symmetry, element, name).moved.items():
        part = element.parts[place]
        if name not in names:
            continue
        if isinstance(part, Slide):
            found[0] = found[0].held("is shifted", (part.shift,))
            continue
        plans = axis_plans(symmetry, element.symmetry.spaces, part, name, torch.float64, {})
        if plans is None:
            own = tuple(s for s in symmetry.movers[name] if s in part)
            found = [m.held("does not move by itself", own) for m in found]
            continue
        moving = [tuple(s for s in spaces_of(axis) if s in part) for axis in axes]
        found = [m.then(p, s) for m, p, s in zip(found, plans, moving, strict=True)]
    return found


def stored_move(weight: StoredWeight, part: StoredPart, moves: list[AxisMove]) -> StoredMove:
    """What becomes of one part of a weight that is moved along its axes.

    Args:
        weight: as it is stored.
        part: one of its parts, with m₁ × m₂ … entries.
        moves: what happens along each axis of the weight.

    Raises:
        Unsaid: it cannot be said in that part.
    """
    orders: list[torch.Tensor | None] = []
    for follows in part.axes:
        move = AxisMove() if follows is None else moves[follows.axis]
        if follows is None or move.order is None:
            orders.append(None)
            continue
        orders.append(_order_of_blocks(move.order, follows))
        if orders[-1] is None:
            kind = "packs" if follows.packed else "blocks"
            raise Unsaid(
                f"an order along axis {follows.axis} does not take whole {kind} of {follows.unit} "
                f"to whole {kind} of {part.name!r}", move.movers,
            )  # fmt: skip
    if not part.scales:
        return StoredMove(tuple(orders))
    factors = [_factor(weight, part, axis, move) for axis, move in enumerate(moves)]
    return StoredMove(tuple(orders), tuple(f for f in factors if f is not None))


def unsaid_by_any(weight: StoredWeight, moves: list[AxisMove]) -> Iterator[Unsaid]:
    """What no part of a weight could say, axis by axis."""
    for axis, move in enumerate(moves):
        if move.stuck:
            yield Unsaid(f"along axis {axis} it {move.stuck}", move.movers)
        elif move.scale is None:
            continue
        elif axis in weight.unscaled:
            who = f"{weight.unscaled[axis]!r} says of the inputs"
            yield Unsaid(f"a scale along axis {axis} changes what {who}", move.movers)
        elif not bool((move.scale > 0).all()):
            yield Unsaid(f"a scale along axis {axis} is negative", move.movers)
        elif not any(part.scales for part in weight.parts):
            yield Unsaid(f"nothing is there that a scale along axis {axis} multiplies", move.movers)


def _order_of_blocks(order: torch.Tensor, follows: Follows) -> torch.Tensor | None:
    """The order of the blocks of an axis, where each comes whole; None otherwise.

    A block at the end that is not full can then only stay: no other has as few entries.
    """
    unit, count = follows.unit, len(order)
    taken = order // unit
    blocks = taken[::unit]
    whole = bool((taken == blocks.repeat_interleave(unit)[:count]).all())
    if whole and follows.packed:
        whole = bool((order % unit == torch.arange(count) % unit).all())
    return blocks if whole and len(blocks.unique()) == len(blocks) else None


def _factor(
    weight: StoredWeight, part: StoredPart, axis: int, move: AxisMove
) -> torch.Tensor | None:
    """What a scale along one axis of a weight multiplies the scales by, to be broadcast."""
    if move.scale is None:
        return None
    own = next((k for k, f in enumerate(part.axes) if f is not None and f.axis == axis), None)
    follows = None if own is None else part.axes[own]
    unit = weight.shape[axis] if follows is None else follows.unit
    factors = move.scale[::unit]
    if not bool((move.scale == factors.repeat_interleave(unit)[: len(move.scale)]).all()):
        raise Unsaid(f"a scale along axis {axis} is not constant on blocks of {unit}", move.movers)
    if part.dtype not in ROUNDING:
        kind = str(part.dtype).removeprefix("torch.")
        raise Unsaid(f"scales of {kind}, {part.name!r}, are too coarse to multiply", move.movers)
    if not ROUNDING[part.dtype] and not bool((factors.frexp().mantissa == 0.5).all()):
        raise Unsaid(f"{part.name!r} holds powers of two, and a scale is none", move.movers)
    if own is None:
        return factors.reshape([1] * len(part.axes))
    return factors.reshape([-1 if k == own else 1 for k in range(len(part.axes))])
