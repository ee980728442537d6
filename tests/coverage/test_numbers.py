"""Sizes of numbers without axes: ReZero, temperatures, and what must not move against them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from paramsym import act, audit, find_symmetry, same_orbit, verify
from paramsym.structure.symmetry import ParameterSymmetry


class Block(nn.Module):
    """A residual block on sequences whose branch is scaled by numbers, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.enter, self.leave = nn.Linear(6, 4), nn.Linear(4, 2)
        self.query, self.key = nn.Linear(4, 3), nn.Linear(4, 3)
        self.up, self.down = nn.Linear(4, 7), nn.Linear(7, 4)
        self.g, self.t = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(-1.3))

    def branch(self, h: torch.Tensor) -> torch.Tensor:
        made = functional.gelu(self.up(h))
        match self.way:
            case "rezero":
                return self.g * self.down(made)
            case "two numbers":
                return self.g * self.t * self.down(made)
            case "divided":
                return self.down(made) / self.t
            case "temperature":
                return torch.softmax(self.t * self.query(h) @ self.key(h).mT, -1) @ h
            case "shared":
                return self.g * self.down(made) + self.g * self.down(torch.tanh(self.up(h)))
            case "one more":
                return (1 + self.g) * self.down(made)
            case "added":
                return self.down(made) + self.t * self.down(made)
            case "positive":
                return self.g * torch.relu(self.up(h)[..., :4])
            case "quadratic":
                return self.g * self.up(h)[..., :4].square()
            case "activated":
                return self.g * functional.gelu(self.up(h)[..., :4])
        return self.down(functional.gelu(self.g * self.up(h) + self.t))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.gelu(self.enter(x))
        return self.leave(h + self.branch(h))


def found(way: str) -> tuple[nn.Module, torch.Tensor, ParameterSymmetry]:
    """A block, its inputs, and its symmetry."""
    torch.manual_seed(0)
    model, x = Block(way).double(), torch.randn(9, 5, 6).double()
    return model, x, find_symmetry(model, (x,))


def sizes(symmetry: ParameterSymmetry) -> list[str]:
    """The shifts that scale numbers."""
    return [shift.name for shift in symmetry.shifts if shift.name.endswith(".size")]


WAYS = {
    "rezero": ["shift:g.size"], "two numbers": ["shift:g.size", "shift:t.size"],
    "divided": ["shift:t.size"], "temperature": ["shift:t.size"], "shared": ["shift:g.size"],
    "inside": ["shift:g.size"], "one more": ["shift:g.size"], "added": ["shift:t.size"],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_number_is_traded_with_a_tensor(way: str) -> None:
    model, x, symmetry = found(way)
    assert sizes(symmetry) == WAYS[way]
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0
    checked = verify(model, symmetry, (x,))
    assert checked.error < 1e-12
    assert checked.control > 1e-2


@pytest.mark.parametrize("way", ["positive", "quadratic", "activated"])
def test_no_number_moves_where_no_tensor_takes_it(way: str) -> None:
    """Of a ReLU positive scales alone, of a square a root; of another activation none."""
    assert not sizes(found(way)[2])


@pytest.mark.parametrize("way", WAYS)
def test_negative_and_large_factors_are_exact(way: str) -> None:
    model, x, symmetry = found(way)
    before, state = model(x), model.state_dict()
    for name in sizes(symmetry):
        for delta in (-3.0, -0.9, 40.0):
            slide = symmetry.element({name: torch.tensor([delta]).double()})
            moved = act(symmetry, slide, state)
            number = name.split(":")[1].removesuffix(".size")
            one = symmetry.offsets.get(number, 0.0)
            assert torch.allclose(moved[number] + one, (1 + delta) * (state[number] + one))
            after = torch.func.functional_call(model, moved, (x,))
            assert torch.allclose(after, before, rtol=1e-11, atol=1e-11)
            back = act(symmetry, ~slide, moved)
            for key, tensor in state.items():
                assert torch.allclose(back[key], tensor, rtol=1e-11)


def test_a_copy_with_another_size_is_the_same_network() -> None:
    model, _, symmetry = found("two numbers")
    state = model.state_dict()
    names = sizes(symmetry)
    slides = {name: torch.tensor([2.0 - 3.5 * k]).double() for k, name in enumerate(names)}
    moved = act(symmetry, symmetry.element(slides), state)
    assert str(same_orbit(symmetry, state, moved).kind) == "EQUAL"
    moved["g"] = moved["g"] * 1.01
    assert str(same_orbit(symmetry, state, moved).kind) == "DIFFERENT"
