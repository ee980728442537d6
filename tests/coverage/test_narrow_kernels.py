"""A kernel of one position along an axis looks at each coordinate there as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramsym.checking.lowering import assert_lowering
from tests.coverage.measure import measured

HEADS, WIDTH = 2, 3


class ConvolvedValues(nn.Module):
    """Attention whose values a depthwise convolution over tokens reads, too (Nyströmformer)."""

    def __init__(self, kernel: tuple[int, int], padding: tuple[int, int], written: bool) -> None:
        super().__init__()
        wide = HEADS * WIDTH
        self.qkv = nn.Linear(5, 3 * wide)
        self.conv = nn.Conv2d(HEADS, HEADS, kernel, padding=padding, groups=HEADS, bias=False)
        self.out, self.last, self.written = nn.Linear(wide, 4), nn.Linear(4, 3), written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        split = self.qkv(x).view(batch, time, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        found = F.softmax(query @ key.mT, -1) @ value
        if self.written:
            found += self.conv(value)
        else:
            found = found + self.conv(value)
        return self.last(F.gelu(self.out(found.transpose(1, 2).flatten(2))))


@pytest.mark.parametrize("written", [False, True])
def test_values_of_a_head_keep_their_basis_under_a_convolution_over_tokens(written: bool) -> None:
    found = measured(ConvolvedValues((3, 1), (1, 0), written), (torch.randn(3, 6, 5),))
    assert found.error < 1e-9 and not found.refuted
    # queries and keys 18 and 6 dead biases; values 18, and the scale of a kernel is in each
    assert (found.explained, found.unexplained) == (18 + 6 + 18, 0)


def test_a_kernel_over_coordinates_holds_them() -> None:
    found = measured(ConvolvedValues((3, 3), (1, 1), False), (torch.randn(3, 6, 5),))
    assert found.error < 1e-9 and not found.refuted
    assert not any("vo" in name for name in found.symmetry.spaces)


class Slid(nn.Module):
    """A linear layer over one axis of images, a convolution, and a linear layer again."""

    def __init__(self, size: int, step: int, padding: int, bias: bool) -> None:
        super().__init__()
        self.rows = nn.Linear(5, 4)
        self.conv = nn.Conv2d(2, 3, (3, size), (1, step), (1, padding), bias=bias)
        wide = (4 + 2 * padding - size) // step + 1
        self.last = nn.Linear(wide, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(self.rows(x))).tanh()


@pytest.mark.parametrize("bias", [False, True])
def test_an_axis_under_a_kernel_of_one_position_is_carried_through(bias: bool) -> None:
    model, inputs = Slid(1, 1, 0, bias), (torch.randn(4, 2, 5, 5),)
    assert_lowering(model.double(), (inputs[0].double(),))
    found = measured(model, inputs)
    assert found.error < 1e-9 and not found.refuted
    if not bias:  # what is added alike to all coordinates has no basis of theirs
        assert (found.explained, found.unexplained) == (19, 0)


@pytest.mark.parametrize(("size", "step", "padding"), [(2, 1, 0), (1, 2, 0), (1, 1, 1), (3, 1, 1)])
def test_an_axis_that_is_slid_over_keeps_its_positions(size: int, step: int, padding: int) -> None:
    model, inputs = Slid(size, step, padding, False), (torch.randn(4, 2, 5, 5),)
    assert_lowering(model.double(), (inputs[0].double(),))
    found = measured(model, inputs)
    assert found.error < 1e-9 and not found.refuted
    assert all(space.size < 4 for space in found.symmetry.spaces.values())
