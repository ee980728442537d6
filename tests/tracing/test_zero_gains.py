"""A gain with an exact zero is no frame: what is sampled can act on the model's own values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, find_symmetry, verify
from paramsym.algebra import GeneralLinear, Orthogonal

PATTERN = (1.0, 0.0, 1.0, 1.0, 0.0, 1.0)
X = torch.linspace(-1, 1, 20).reshape(5, 4)


class Gated(nn.Module):
    """Two linear maps with a gain in between, stored as a buffer or a parameter, less an offset."""

    def __init__(self, entries: tuple[float, ...], kind: str, offset: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.offset = nn.Linear(4, 6), nn.Linear(6, 3), offset
        gain = torch.tensor(entries) - offset
        self.gain = nn.Parameter(gain) if kind == "parameter" else nn.Buffer(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * (self.gain + self.offset))


class Stream(nn.Module):
    """A residual stream that an RMS norm reads."""

    def __init__(self, entries: tuple[float, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.last = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)
        self.norm, self.block = nn.RMSNorm(6), nn.Linear(6, 6, bias=False)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor(entries))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        return self.last(x + self.block(self.norm(x)))


CASES = {
    "buffer": lambda entries: Gated(entries, "buffer"),
    "parameter": lambda entries: Gated(entries, "parameter"),
    "offset": lambda entries: Gated(entries, "parameter", 1.0),
    "norm": Stream,
}


def groups(symmetry: ParameterSymmetry) -> set[str]:
    return {str(space.group) for space in symmetry.spaces.values()}


@pytest.mark.parametrize("name", CASES)
def test_what_is_sampled_acts_on_a_gain_with_zeros(name: str) -> None:
    model = CASES[name](PATTERN)
    symmetry = find_symmetry(model, (X,))
    assert not symmetry.frame_parameters and not symmetry.checked.refuted, symmetry
    assert not groups(symmetry) & {str(GeneralLinear(6)), str(Orthogonal(6))}
    why = {space.why for space in symmetry.spaces.values()}
    assert name == "offset" or any("with zeros of" in text for text in why), why
    state = model.state_dict()
    (gain,) = (n for n in state if n in ("gain", "norm.weight"))
    offset = getattr(model, "offset", 0.0)
    for seed in range(5):
        moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(seed)), state)
        assert int((moved[gain] + offset == 0).sum()) == PATTERN.count(0.0)
    found = verify(model, symmetry, (X,))
    assert found.error <= 1e-10 and found.control >= 1e-4, found


@pytest.mark.parametrize("name", CASES)
def test_without_zeros_the_gain_is_a_frame(name: str) -> None:
    symmetry = find_symmetry(CASES[name]((1.0, 0.5, 1.0, 1.0, 2.0, 1.0)), (X,))
    assert symmetry.frame_parameters
    assert groups(symmetry) & {str(GeneralLinear(6)), str(Orthogonal(6))}


def test_stored_zeros_are_no_zeros_of_the_gain() -> None:
    model = Gated((1.0,) * 6, "parameter", 1.0)
    assert not model.gain.any()
    assert find_symmetry(model, (X,)).frame_parameters == {"gain"}


def test_without_numbers_gains_are_taken_to_be_invertible_and_act_says_which_is_not() -> None:
    model = Stream(PATTERN)
    symmetry = find_symmetry(Stream(PATTERN).to("meta"), (X.to("meta"),))
    assert symmetry.frame_parameters == {"norm.weight"}
    element = symmetry.sample(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"'norm.weight' has 2 zeros.*find_symmetry\(model"):
        act(symmetry, element, model.state_dict())
