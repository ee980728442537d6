"""Tables and masks that are cut to the length of the inputs: longer inputs read more of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from paramsym import act, audit, find_symmetry
from tests.tracing.zoo import randomise

MOST, SHORT, WIDTH = 9, 6, 4


class Cut(nn.Module):
    """A stream to which positions are added, or which a mask of positions mixes."""

    def __init__(self, read: Callable[[Cut, Tensor], Tensor]) -> None:
        super().__init__()
        self.read = read
        self.positions = nn.Parameter(torch.randn(1, MOST, WIDTH))
        self.rows = nn.Parameter(torch.randn(MOST, WIDTH))
        self.register_buffer("table", torch.randn(MOST, WIDTH))
        self.register_buffer("mask", torch.tril(torch.ones(MOST, MOST)))
        self.enter, self.inner, self.leave = nn.Linear(7, WIDTH), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.inner(self.read(self, self.enter(x)))))


def attended(model: Cut, h: Tensor) -> Tensor:
    hidden = model.mask[: h.shape[1], : h.shape[1]] == 0
    return (h @ h.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ h


READ: dict[str, Callable[[Cut, Tensor], Tensor]] = {
    "a slice": lambda m, h: h + m.positions[:, : h.shape[1]],
    "a slice of rows": lambda m, h: h + m.rows[: h.shape[1]],
    "the last rows": lambda m, h: h + m.rows[-h.shape[1] :],
    "narrow": lambda m, h: h + m.positions.narrow(1, 0, h.shape[1]),
    "an index": lambda m, h: h + m.positions[:, torch.arange(h.shape[1])],
    "index_select": lambda m, h: h + m.rows.index_select(0, torch.arange(h.shape[1])),
    "a lookup": lambda m, h: h + functional.embedding(torch.arange(h.shape[1]), m.rows),
    "a buffer": lambda m, h: h + m.table[: h.shape[1]],
    "a class token apart": lambda m, h: torch.cat(
        [h[:, :1] + m.positions[:, :1], h[:, 1:] + m.positions[:, 1 : h.shape[1]]], 1
    ),
    "a mask": attended,
    "a mask as weights": lambda m, h: m.mask[: h.shape[1], : h.shape[1]] @ h,
}


@pytest.mark.parametrize("name", READ)
def test_what_is_found_holds_for_longer_inputs(name: str) -> None:
    model = randomise(Cut(READ[name]), 0).double()
    symmetry = find_symmetry(model, torch.randn(8, SHORT, 7, dtype=torch.float64))
    state = {n: t.detach() for n, t in model.state_dict().items()}
    assert symmetry.spaces
    for seed in range(4):
        element = symmetry.sample(torch.Generator().manual_seed(seed))
        moved = act(symmetry, element, state)
        assert not torch.equal(moved["enter.weight"], state["enter.weight"])
        for length in (3, SHORT, MOST):
            x = torch.randn(2, length, 7, dtype=torch.float64)
            before, after = (functional_call(model, s, (x,)) for s in (state, moved))
            torch.testing.assert_close(after, before)


@pytest.mark.parametrize("name", ["a slice", "a slice of rows", "the last rows", "a buffer"])
def test_the_stream_changes_basis_with_all_rows(name: str) -> None:
    model = randomise(Cut(READ[name]), 0)
    inputs = torch.randn(8, SHORT, 7)
    symmetry = find_symmetry(model, inputs)
    assert f"GeneralLinear({WIDTH})" in {str(space.group) for space in symmetry.spaces.values()}
    found = audit(model, inputs, symmetry=symmetry)
    assert (found.unexplained, found.refuted) == (0, {})


def test_units_that_are_not_used_are_no_rows() -> None:
    """The control: a window of units leaves the others free."""
    model = Cut(lambda m, h: h * m.rows[0, :WIDTH])
    model.rows = nn.Parameter(torch.randn(1, WIDTH + 3))
    symmetry = find_symmetry(randomise(model, 0), torch.randn(8, SHORT, 7))
    assert all("beyond" not in reason for reason in symmetry.reasons.get("rows", ()))
