"""The one walk over the blocks of a tensor: pieces and sums are cut, products are unfolded.

What is left are blocks with plain axes, of which each carries single spaces (or nothing). A block
is a window on the row-major tensor, with its *legs*: which space acts on which plain axis, to which
power, in which frame, and which other axes of the block tell its copies apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import torch

from paramsym.structure.axes import AxisType, Carried, Frame, Product, Sizes, Sum
from paramsym.structure.pieces import first_pieces, unfolded
from paramsym.structure.space import Space

Signature: TypeAlias = Mapping[str, tuple[AxisType, ...]]
Visit: TypeAlias = Callable[[torch.Tensor, list[AxisType], tuple[int, ...]], torch.Tensor]


@dataclass(frozen=True)
class Leg:
    """One space on one plain axis of a block.

    `axis` counts the plain axes of the block; `power` is that of the representation (−1: the dual);
    `copies` are the axes that tell the copy of the group, one for each space that this one stands
    over (−1 where none does: no symmetry can be built so); `frame` are the gains in whose frame a
    change of basis acts.
    """

    axis: int
    space: str
    power: Fraction
    copies: tuple[int, ...] = ()
    frame: tuple[Frame, ...] = ()

    @property
    def is_dual(self) -> bool:
        """Whether the axis carries the dual: x ↦ f⁻¹ g⁻ᵀ f x in the frame f, and not f g f⁻¹ x."""
        return self.power.numerator < 0  # which is quicker than to compare a fraction


@dataclass(frozen=True)
class Block:
    """A block of one tensor: a window on its row-major entries, and what acts on it.

    `shape`, `strides` and `start` count entries of the parameter in row-major order; `legs` come in
    the order in which they act: copies are permuted before each of them moves.
    """

    parameter: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    legs: tuple[Leg, ...]

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The block of a tensor, of shape `shape`; a view where the tensor is contiguous."""
        return tensor.contiguous().as_strided(
            self.shape, self.strides, tensor.storage_offset() * tensor.is_contiguous() + self.start
        )


Blocks: TypeAlias = Mapping[str, tuple[Block, ...]]


def walked(x: torch.Tensor, axes: Sequence[AxisType], sizes: Sizes, visit: Visit) -> torch.Tensor:
    """A tensor whose every block is replaced by what `visit` makes of it.

    `visit` gets the block, its plain axes, and the axis of the tensor that each of them comes from;
    it returns a tensor of the same shape. Blocks come in the order of `blocks`.
    """
    return _walk(x, list(axes), tuple(range(len(axes))), sizes, visit)


def _walk(
    x: torch.Tensor, axes: list[AxisType], origins: tuple[int, ...], sizes: Sizes, visit: Visit
) -> torch.Tensor:
    if found := first_pieces(axes, sizes):
        by, cuts = found
        parts = torch.split(x, [count for count, _ in cuts], dim=by)
        made = [
            _walk(part, plain, origins, sizes, visit)
            for part, (_, plain) in zip(parts, cuts, strict=True)
        ]
        return torch.cat(made, dim=by)
    for k, axis in enumerate(axes):
        if isinstance(axis, Product):
            inner = [f.size(sizes) for f in axis.factors]
            split = (*origins[:k], *[origins[k]] * len(inner), *origins[k + 1 :])
            wide = x.unflatten(k, inner)
            return _walk(wide, unfolded(axes, k), split, sizes, visit).reshape(x.shape)
        if isinstance(axis, Sum):
            pieces = torch.split(x, [t.size(sizes) for t in axis.terms], dim=k)
            made = [
                _walk(piece, [*axes[:k], term, *axes[k + 1 :]], origins, sizes, visit)
                for piece, term in zip(pieces, axis.terms, strict=True)
            ]
            return torch.cat(made, dim=k)
    return visit(x, axes, origins)


def blocks_of(spaces: Mapping[str, Space], signature: Signature) -> Blocks:
    """The blocks of every tensor of a signature, in the order of `walked`."""
    sizes = {space.name: space.size for space in spaces.values()}
    found: dict[str, tuple[Block, ...]] = {}
    for name, axes in signature.items():
        shape = [axis.size(sizes) for axis in axes]
        strides = [math.prod(max(1, n) for n in shape[k + 1 :]) for k in range(len(shape))]
        windows = _windows(list(axes), tuple(range(len(axes))), strides, 0, sizes)
        found[name] = tuple(
            Block(
                name, tuple(axis.size(sizes) for axis in plain), tuple(steps), start,
                tuple(_legs(spaces, plain, origins)),
            )
            for plain, origins, steps, start in windows
        )  # fmt: skip
    return found


def _windows(
    axes: list[AxisType], origins: tuple[int, ...], strides: list[int], start: int, sizes: Sizes
) -> Iterator[tuple[list[AxisType], tuple[int, ...], list[int], int]]:
    """The plain axes of each block, their origins and strides, and its first entry, as `walked`."""
    if found := first_pieces(axes, sizes):
        by, cuts = found
        for count, plain in cuts:
            yield from _windows(plain, origins, strides, start, sizes)
            start += strides[by] * count
        return
    for k, axis in enumerate(axes):
        if isinstance(axis, Product):
            inner = [f.size(sizes) for f in axis.factors]
            steps = [strides[k] * math.prod(inner[n + 1 :]) for n in range(len(inner))]
            split = (*origins[:k], *[origins[k]] * len(inner), *origins[k + 1 :])
            wider = [*strides[:k], *steps, *strides[k + 1 :]]
            yield from _windows(unfolded(axes, k), split, wider, start, sizes)
            return
        if isinstance(axis, Sum):
            for term in axis.terms:
                cut = [*axes[:k], term, *axes[k + 1 :]]
                yield from _windows(cut, origins, strides, start, sizes)
                start += strides[k] * term.size(sizes)
            return
    yield axes, origins, strides, start


def _legs(
    spaces: Mapping[str, Space], axes: list[AxisType], origins: tuple[int, ...]
) -> Iterator[Leg]:
    """The legs of a block, those with fewer copies first."""
    carried = [(k, axis) for k, axis in enumerate(axes) if isinstance(axis, Carried)]
    for k, axis in sorted(
        carried, key=lambda item: max(len(spaces[s].over) for s, _ in item[1].factors)
    ):
        for position, (name, power) in enumerate(axis.factors):
            copies = tuple(_base_axis(base, axes, origins, k) for base in spaces[name].over)
            yield Leg(k, name, power, copies, axis.frame if position == 0 else ())


def _base_axis(base: str, axes: Sequence[AxisType], origins: Sequence[int], at: int) -> int:
    """The plain axis that tells the copy for what stands on the axis `at`.

    It is looked for on the same axis of the tensor first, closest from the outside inwards, then
    from the first axis on. −1 if the block does not carry the base.
    """
    found = [
        k
        for k, axis in enumerate(axes)
        if isinstance(axis, Carried) and any(s == base for s, _ in axis.factors)
    ]
    own = [k for k in found if origins[k] == origins[at] and k != at]
    before = [k for k in own if k < at]
    return (before[-1:] or own or [k for k in found if k != at] or [-1])[0]
