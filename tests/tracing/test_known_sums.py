"""What has a known sum, read by a projection: the direction in which all of its columns agree.

Derived without a check, so that nothing but the derivation is asked.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import audit, verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer


def _gained(h: Tensor, gain: Tensor) -> Tensor:
    return gain * (functional.layer_norm(h, h.shape[-1:], eps=0.01) + 0.3)


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda h, _: torch.softmax(h, -1),
    "softmax of two": lambda h, _: torch.softmax(h, -1) + 2 * torch.softmax(h.square(), -1),
    "shares": lambda h, _: (e := h.square() + 0.1) / e.sum(-1, keepdim=True),
    "a norm and a number": lambda h, _: functional.layer_norm(h, h.shape[-1:], eps=0.01) + 0.3,
    "softmax and a number": lambda h, _: torch.softmax(h, -1) + 0.3,
    "softmax behind a gain": lambda h, gain: gain * torch.softmax(h, -1),
    "a norm, a number and a gain": _gained,
    "a norm and a bias": lambda h, gain: functional.layer_norm(h, h.shape[-1:], eps=0.01) + gain,
    "softmax and a bias": lambda h, gain: torch.softmax(h, -1) + gain,
}


class Projected(nn.Module):
    """What has a known sum, a linear map without a bias into a `wide` space, and its reader."""

    def __init__(self, way: str, wide: int):
        super().__init__()
        self.way = way
        self.enter, self.leave = nn.Linear(7, 4), nn.Linear(3, 2)
        self.project = nn.Linear(4, wide, bias=False)
        self.gain = nn.Parameter(torch.rand(4) + 0.5)
        self.read = nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = SUMS[self.way](self.enter(x), self.gain)
        return self.leave(functional.gelu(self.read(self.project(h))))


@pytest.mark.parametrize("wide", [4, 6])
@pytest.mark.parametrize("way", SUMS)
def test_a_projection_of_a_known_sum_has_one_along_the_direction_of_equal_columns(
    way: str, wide: int
) -> None:
    torch.manual_seed(0)
    model, x = Projected(way, wide).double(), torch.randn(40, 7).double()
    symmetry = infer(record(model, (x,)))
    checked = verify(model, symmetry, (x,), limit=100)
    assert checked.error < 1e-10
    assert checked.control > 1e-3
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0


class Copies(nn.Module):
    """A number written to several copies of four units, with a bias that they share or have."""

    def __init__(self, shared: bool):
        super().__init__()
        self.spread = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.randn(4) if shared else torch.randn(3, 4))
        self.read = nn.Parameter(torch.randn(3, 4, 2))
        self.last = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, :, None] * self.spread + self.bias
        return functional.gelu(torch.einsum("bed,edf->bef", h, self.read) + self.last)


@pytest.mark.parametrize("shared", [False, True], ids=["a bias each", "one bias"])
def test_each_copy_has_a_kernel_of_its_own(shared: bool) -> None:
    torch.manual_seed(0)
    model, x = Copies(shared).double(), torch.randn(40, 3).double()
    symmetry = infer(record(model, (x,)))
    checked = verify(model, symmetry, (x,), limit=100)
    assert checked.error < 1e-10
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0
