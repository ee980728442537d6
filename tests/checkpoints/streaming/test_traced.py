"""Traced tensors say where their entries come from; numbers that count entries are the twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paramsym.checkpoints.streaming.traced import Traced, traced

SHAPES = {"a": (4, 6), "b": (4, 6), "c": (4, 6)}
Made = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SAID: dict[str, Made] = {
    "stacked": lambda a, b, c: torch.stack([a, b, c]),
    "joined": lambda a, b, c: torch.cat([a, b, c], dim=1),
    "experts": lambda a, b, c: torch.cat([torch.stack([a, b]), torch.stack([c, a])], dim=-2),
    "transposed": lambda a, b, c: torch.stack([a, b], dim=1).transpose(0, 2).contiguous(),
    "chunked": lambda a, b, c: torch.cat(torch.chunk(torch.cat([a, b]), 4, dim=0)[::-1]),
    "split": lambda a, b, c: torch.cat([*torch.split(a, [1, 4, 1], dim=1)][::-1], dim=1),
    "cut": lambda a, b, c: torch.stack([a, b, c])[1:, 1, 2:5].T,
    "unbound": lambda a, b, c: torch.stack(torch.stack([a, b]).unbind(1)[::-1]).squeeze(0),
    "viewed": lambda a, b, c: a[:1].view(6, 1).unsqueeze(0)[..., 0].to(torch.float64),
    "padded": lambda a, b, c: torch.nn.functional.pad(a, (0, 0)),
}
UNSAID: dict[str, Made] = {
    "added": lambda a, b, c: a + b,
    "reshaped": lambda a, b, c: a.view(6, 4),
    "every second": lambda a, b, c: torch.cat([a[::2], a[1::2]]),
    "written": lambda a, b, c: a.clone().mul_(2),
    "padded": lambda a, b, c: torch.nn.functional.pad(a, (0, 1)),
}


@pytest.mark.parametrize("name", SAID)
def test_patches_say_where_entries_come_from(name: str) -> None:
    numbers = {n: torch.arange(24.0).view(SHAPES[n]) + 100 * k for k, n in enumerate(SHAPES)}
    made = SAID[name](*(traced(n, shape, torch.float32) for n, shape in SHAPES.items()))
    expected = SAID[name](*numbers.values())
    assert (
        isinstance(made, Traced) and made.shape == expected.shape and made.dtype == expected.dtype
    )
    found = torch.full(expected.shape, -1.0)
    for patch in made.patches:
        box = [slice(at, at + n) for at, n in zip(patch.corner, patch.size, strict=True)]
        own = numbers[patch.name][
            tuple(map(slice, patch.start, map(sum, zip(patch.start, patch.shape, strict=True))))
        ]
        order = [axis for axis in patch.axes if axis is not None]
        left = [k for k in range(own.ndim) if k not in order]
        assert all(own.shape[k] == 1 for k in left)
        found[tuple(box)] = own.permute(*order, *left).reshape(patch.size)
    assert torch.equal(found.to(expected.dtype), expected)


@pytest.mark.parametrize("name", UNSAID)
def test_what_is_computed_is_of_no_file(name: str) -> None:
    made = UNSAID[name](*(traced(n, shape, torch.float32) for n, shape in SHAPES.items()))
    assert isinstance(made, Traced)
    assert sum(torch.Size(p.size).numel() for p in made.patches) < made.numel()
