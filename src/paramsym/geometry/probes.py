"""What is seen of a network through fixed random numbers, the same for all of one architecture.

Where units cannot be told apart, the numbers are constant on them, and say the same in any order.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paramsym.geometry.orders import patterns_of
from paramsym.geometry.pair import Pair, Place
from paramsym.structure.layout import widened
from paramsym.structure.space import Space

Classes = Mapping[str, Tensor]  # by order, the first of its equals for each unit: (*copies, n)
_KEYS = 4


def probe_like(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Random tensors with the shapes and dtypes of some parameters, drawn by their names."""
    return {n: _drawn(n, tuple(p.shape)).to(p) for n, p in params.items()}


def _drawn(text: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def keys_of(pair: Pair, space: Space, places: Sequence[Place], classes: Classes) -> Tensor:
    """Numbers that tell units of an order apart, whatever acts on each unit by itself.

    Products of what a unit carries with random numbers; where signs or bases act on each unit, the
    lengths of these, summed over the blocks on which the same ones act.

    Args:
        pair: whose moving point is looked at.
        space: the order.
        places: where its units are read.
        classes: what is known of other orders.

    Returns:
        Of shape (*copies, n, keys).
    """
    keys = []
    for pattern, own in patterns_of(pair, space, places).items():
        found = torch.stack([_products(pair, place, blind, classes) for place, blind in own]).sum(0)
        signed = getattr(space.group, "signs", False)
        plain = not pattern and not signed and not found.is_complex()
        keys.append(found[..., 0, :] if plain else torch.linalg.vector_norm(found, dim=-2))
    return torch.cat(keys, -1).double()


def _products(pair: Pair, place: Place, blind: Sequence[int], classes: Classes) -> Tensor:
    """Of shape (*copies, n, everything blind, keys)."""
    front = (*place.leg.copies, place.leg.axis, *blind)
    lead = len(place.leg.copies) + 1
    x = place.block.view(pair.moving[place.block.parameter])
    rest = [axis for axis in range(x.ndim) if axis not in front]
    x = widened(x.permute(*front, *rest))
    shape = tuple(place.block.shape[axis] for axis in rest)
    text = f"{place.block.parameter} {place.block.start} {place.leg.axis}"
    probe = constant_on(_drawn(text, (*shape, _KEYS)), place, rest, classes)
    x = x.reshape(*x.shape[:lead], -1, max(1, probe[..., 0].numel()))
    return x @ probe.reshape(-1, _KEYS).to(x)


def constant_on(probe: Tensor, place: Place, axes: Sequence[int], classes: Classes) -> Tensor:
    """Random numbers made equal for units that cannot be told apart.

    Args:
        probe: with a dimension for each of `axes`, and perhaps more behind.
        place: the block whose axes they are.
        axes: plain axes of the block.
        classes: by order; orders with copies of their own are left as they are.
    """
    for leg in place.beside:
        own = classes.get(leg.space)
        if own is not None and own.ndim == 1 and leg.axis in axes:
            probe = probe.index_select(list(axes).index(leg.axis), own)
    return probe


def classes_of(keys: Tensor, clear: float) -> Tensor:
    """The place of the first unit that each one equals, of shape (*copies, n), units in order.

    Args:
        keys: sorted by the first of them, of shape (*copies, n, keys).
        clear: up to which numbers are equal, relative to the largest.
    """
    level = clear * keys.abs().amax((-2, -1)).clamp(min=1e-300)
    new = (keys[..., 1:, :] - keys[..., :-1, :]).abs().amax(-1) > level[..., None]
    new = torch.nn.functional.pad(new, (1, 0), value=True)
    places = torch.arange(keys.shape[-2]).expand(new.shape)
    return torch.where(new, places, 0).cummax(-1).values
