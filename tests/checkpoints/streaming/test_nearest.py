"""The nearest rows, by a tree of projections, against all distances."""

import pytest
import torch

from paramsym.checkpoints.streaming.nearest import _projected, nearest


def rows(kind: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices whose rows are alike, alike in part, or not at all."""
    x = torch.randn(300, 40, generator=generator)
    y = x[torch.randperm(300, generator=generator)]
    noise = torch.randn(300, 40, generator=generator)
    if kind == "rounded":
        y = y * (1 + 2**-9 * noise)
    elif kind == "half others":
        y = torch.where(torch.arange(300)[:, None] < 150, y, noise)
    elif kind == "trained on":
        y = y + 0.5 * noise
    elif kind == "others":
        y = noise
    elif kind == "narrow":
        x, y = x[:, :3], y[:, :3]
    elif kind == "far from zero":
        x, y = x + 50, y + 50
    return x, y


@pytest.mark.parametrize(
    "kind", ["same", "rounded", "half others", "trained on", "others", "narrow", "far from zero"]
)
def test_the_tree_finds_what_all_distances_say(kind: str, generator: torch.Generator) -> None:
    x, y = rows(kind, generator)
    apart = torch.cdist(x.double(), y.double())
    found = nearest(x, y, generator)
    assert torch.equal(found, apart.argmin(1)) or kind == "far from zero"
    torch.testing.assert_close(apart[torch.arange(300), found], apart.min(1).values)


def test_rows_that_are_alike_are_settled_and_others_are_not(generator: torch.Generator) -> None:
    assert _projected(*rows("rounded", generator), generator)[1].all()
    x, y = rows("others", generator)
    found, settled = _projected(x, y, generator)
    assert not settled.any()
    assert not torch.equal(found, torch.cdist(x, y).argmin(1))  # the projection alone is wrong


def test_two_rows_that_are_equal_are_both_as_near(generator: torch.Generator) -> None:
    x, y = rows("same", generator)
    y[1] = y[0]
    found = nearest(x, y, generator)
    twice = (torch.cdist(x.double(), y.double()) < 1e-12).sum(1) == 2
    assert twice.sum() == 1
    assert found[twice].item() in (0, 1)


def test_numbers_that_are_none_stop_nothing(generator: torch.Generator) -> None:
    x, y = rows("same", generator)
    x[3, 4] = float("nan")
    assert len(nearest(x, y, generator)) == 300
