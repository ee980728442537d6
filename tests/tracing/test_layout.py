"""Windows on a storage, compared with the sets of places that they select."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from paramsym.recording.layout import Window, box_of, compact_strides, covers


def window_of(tensor: torch.Tensor) -> Window:
    return Window(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def windows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An owner whose entries are their places, and a random window on it."""
    draw = random.Random(seed)
    shape = [draw.choice([1, 2, 3, 4, 6]) for _ in range(draw.randint(1, 3))]
    places = torch.arange(int(torch.tensor(shape).prod())).view(shape)
    owner = places.permute(*draw.sample(range(len(shape)), len(shape)))
    window = owner
    for _ in range(draw.randint(0, 3)):
        axis = draw.randrange(window.ndim) if window.ndim else 0
        kind = draw.choice(["slice", "step", "take", "turn", "merge"])
        if kind == "turn" and window.ndim > 1:
            window = window.transpose(axis, -1)
        elif kind == "merge" and window.is_contiguous():
            window = window.flatten()
        elif window.ndim and kind == "slice":
            low = draw.randrange(window.shape[axis])
            window = window.narrow(axis, low, draw.randint(1, window.shape[axis] - low))
        elif window.ndim and kind == "step":
            window = window[(slice(None),) * axis + (slice(None, None, 2),)]
        elif window.ndim and kind == "take":
            window = window.select(axis, draw.randrange(window.shape[axis]))
    return owner, window


@pytest.mark.parametrize("seed", range(200))
def test_a_box_selects_the_places_of_the_window_in_order(seed: int) -> None:
    owner, window = windows(seed)
    box = box_of(window_of(window), window_of(owner))
    same = window.numel() == owner.numel()
    assert covers(window_of(window), window_of(owner)) == same
    if box is None:
        return
    ranges = [range(s, s + c) for s, c in zip(box.starts, box.counts, strict=True)]
    places = [
        sum(i * u for i, u in zip(index, box.units, strict=True))
        for index in itertools.product(*ranges)
    ]
    copy = torch.empty_strided(window.shape, compact_strides(window_of(window)), dtype=torch.int64)
    copy.copy_(window)
    assert copy.as_strided(box.counts, box.inside).reshape(-1).tolist() == places


def test_most_windows_are_boxes_and_overlapping_ones_are_not() -> None:
    found = [box_of(*map(window_of, windows(seed)[::-1])) for seed in range(200)]
    assert sum(box is None for box in found) < 40
    owner = Window((2, 4), (4, 1), 0)
    assert box_of(Window((2, 4), (0, 1), 0), owner) is None  # expanded
    assert box_of(Window((3, 2), (1, 1), 0), owner) is None  # sliding
    assert box_of(Window((3,), (3,), 0), owner) is None  # across the rows
    assert box_of(Window((2,), (1,), 7), owner) is None  # beyond the end
    assert box_of(Window((2,), (1,), 0), Window((2, 4), (5, 1), 0)) is None  # an owner with gaps
    assert not covers(Window((8,), (1,), 0), Window((2, 4), (5, 1), 0))
