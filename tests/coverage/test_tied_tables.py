"""A table of tokens that is the last layer as well, and is projected in front of the stream.

Its rows may move by e ↦ e + w (z·e) along the w that the last norm never has a part of: the
projection takes it back, and the bias of the logits the constant.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paramsym import act, audit, same_orbit, verify
from paramsym.geometry.same_orbit import Kind
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WORDS, WIDTH = 11, 4


class Tied(nn.Module):
    """Words, joined to others or not, through a projection, to a norm and the table again."""

    def __init__(self, norm: nn.Module, bias: bool = True, joined: bool = False, again: str = ""):
        super().__init__()
        self.table, self.again = nn.Embedding(WORDS, WIDTH), again
        self.other = nn.Embedding(WORDS, 3) if joined else None
        self.project, self.back = nn.Linear(WIDTH + 3 * joined, 9), nn.Linear(9, WIDTH)
        self.norm, self.bias = norm, nn.Parameter(torch.randn(WORDS)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        e = self.table(x)
        if self.other is not None:
            e = torch.cat([self.other(x), e], -1)
        h = self.norm(self.back(torch.tanh(self.project(e))))
        y = h @ self.table.weight.T
        if self.bias is not None:
            y = y + self.bias
        if self.again == "bias" and self.bias is not None:
            return y * self.bias
        if self.again == "logits":
            return torch.cat([y, h @ self.table.weight.T], -1)
        return y + torch.tanh(self.table(x)).sum(-1, keepdim=True) if self.again == "table" else y


def common(model: nn.Module) -> tuple[ParameterSymmetry, int]:
    """The derivation alone, verified, and in how many directions a table moves so."""
    x = torch.randint(WORDS, (5, 7), generator=torch.Generator().manual_seed(0))
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    found = [s.dimension for s in symmetry.shifts if s.name == "shift:table.weight.common"]
    return symmetry, sum(found)


def made(norm: nn.Module, bias: bool = True, joined: bool = False, again: str = "") -> nn.Module:
    torch.manual_seed(0)
    return randomise(Tied(copy.deepcopy(norm), bias, joined, again)).double()


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("norm", "bias", "count"),
    [
        (nn.LayerNorm(WIDTH), True, WIDTH),
        (nn.LayerNorm(WIDTH), False, 0),  # nothing takes up the constant
        (nn.LayerNorm(WIDTH, bias=False), False, WIDTH),  # there is none
        (nn.LayerNorm(WIDTH, elementwise_affine=False), True, WIDTH),
        (nn.RMSNorm(WIDTH, eps=0.01), True, 0),  # it has a part of everything
    ],
)
def test_a_table_moves_along_what_the_last_norm_never_has(norm, bias, count, joined) -> None:
    assert common(made(norm, bias, joined))[1] == count


@pytest.mark.parametrize("again", ["bias", "logits", "table"])
def test_it_stays_where_anything_is_read_once_more(again: str) -> None:
    assert common(made(nn.LayerNorm(WIDTH), True, False, again))[1] == 0


def test_the_finite_motion_is_exact_and_undone() -> None:
    model = made(nn.LayerNorm(WIDTH))
    symmetry, _ = common(model)
    here = {name: p.detach() for name, p in model.named_parameters()}
    z = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)).double()
    element = symmetry.element({"shift:table.weight.common": z})
    there = act(symmetry, element, here)
    x = torch.arange(WORDS)[None]
    moved = torch.func.functional_call(model, there, (x,))
    torch.testing.assert_close(moved, model(x), rtol=0.0, atol=1e-11)
    wrong = torch.func.functional_call(model, {**there, "bias": here["bias"]}, (x,))
    assert float((wrong - model(x)).detach().abs().max()) > 1e-3
    assert float((there["table.weight"] - here["table.weight"]).abs().max()) > 0.1
    back = act(symmetry, ~element, there)
    for name, value in here.items():
        torch.testing.assert_close(back[name], value, rtol=0.0, atol=1e-11)
    assert same_orbit(symmetry, here, there).kind is not Kind.DIFFERENT


def test_an_audit_counts_it() -> None:
    model = made(nn.LayerNorm(WIDTH))
    x = torch.randint(WORDS, (5, 7), generator=torch.Generator().manual_seed(0))
    symmetry, count = common(model)
    without = {s.name: s for s in symmetry.shifts if s.name != "shift:table.weight.common"}
    left = audit(model, (x,), symmetry=replace(symmetry, shifts=tuple(without.values())))
    assert left.unexplained - audit(model, (x,), symmetry=symmetry).unexplained == count
