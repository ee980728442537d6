"""Draws keep spectra and what is fixed, and share nothing else."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.geometry.alignment import align
from paramsym.geometry.reduced import reduce
from paramsym.origin.nulls import independent_draw

State = dict[str, Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
        )  # fmt: skip


class Tied(nn.Module):
    """A table that is read and written through."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.table(ids))))


@cache
def convolutional() -> tuple[ParameterSymmetry, State]:
    torch.manual_seed(0)
    model = Convolutional().double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=generator(1)).double() + 0.1)
    return find_symmetry(model, (torch.zeros(2, 2, 8, 8).double(),)), dict(model.state_dict())


@cache
def tied() -> tuple[ParameterSymmetry, State]:
    torch.manual_seed(0)
    model = Tied().double()
    return find_symmetry(model, (torch.zeros(1, 4).long(),)), dict(model.state_dict())


def unfolded(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0).flatten(1)


@pytest.mark.parametrize("make", [convolutional, tied], ids=["convolutional", "tied"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_unfolding_keeps_its_singular_values(make, seed: int) -> None:
    symmetry, params = make()
    drawn = independent_draw(symmetry, params, generator(seed))
    for name, tensor in params.items():
        if tensor.ndim < 2:
            continue
        assert not torch.allclose(drawn[name], tensor)
        for axis in range(tensor.ndim):
            before, after = (unfolded(t, axis) for t in (tensor, drawn[name]))
            torch.testing.assert_close(
                torch.linalg.svdvals(after), torch.linalg.svdvals(before), atol=1e-12, rtol=0
            )


def test_covariance_along_fixed_axes_stays_and_along_others_does_not() -> None:
    symmetry, params = convolutional()
    drawn = independent_draw(symmetry, params, generator(0))
    # channels and pixels of the input stay, filters do not
    pixels = [t["0.weight"].flatten(1).T @ t["0.weight"].flatten(1) for t in (params, drawn)]
    filters = [t["0.weight"].flatten(1) @ t["0.weight"].flatten(1).T for t in (params, drawn)]
    torch.testing.assert_close(pixels[1], pixels[0], atol=1e-12, rtol=0)
    assert not torch.allclose(filters[1], filters[0], atol=1e-2)


def test_means_over_units_stay() -> None:
    symmetry, params = convolutional()
    drawn = independent_draw(symmetry, params, generator(0))
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(drawn[name].mean(0).sum(0), params[name].mean(0).sum(0))


def test_vectors_are_put_in_another_order_and_buffers_stay() -> None:
    symmetry, params = convolutional()
    drawn = independent_draw(symmetry, params, generator(3))
    assert not torch.equal(drawn["1.bias"], params["1.bias"])
    assert torch.equal(drawn["1.bias"].sort().values, params["1.bias"].sort().values)
    assert torch.equal(drawn["7.bias"], params["7.bias"])  # the outputs do not move
    for name in symmetry.buffers:
        assert torch.equal(drawn[name], params[name])


def test_tied_tensors_stay_tied() -> None:
    symmetry, params = tied()
    drawn = independent_draw(symmetry, params, generator(0))
    assert torch.equal(drawn["table.weight"], drawn["head.weight"])
    assert not torch.equal(drawn["table.weight"], params["table.weight"])


def test_a_seed_says_which_draw() -> None:
    symmetry, params = convolutional()
    one, same, other = (independent_draw(symmetry, params, generator(k)) for k in (0, 0, 1))
    assert all(torch.equal(one[n], same[n]) for n in params)
    assert not torch.equal(one["3.weight"], other["3.weight"])


def test_what_is_given_stays_as_it_is() -> None:
    symmetry, params = convolutional()
    before = {n: t.clone() for n, t in params.items()}
    independent_draw(symmetry, params, generator(0))
    assert all(torch.equal(params[n], before[n]) for n in params)


def test_draws_are_far_from_each_other_and_a_moved_copy_is_not() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=13, n_positions=6, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double().eval()
    symmetry = find_symmetry(model, {"input_ids": torch.zeros(1, 6).long(), "use_cache": False})
    place = reduce(symmetry, dict(model.state_dict())).params
    one, other = (independent_draw(symmetry, place, generator(k)) for k in (0, 1))
    assert align(symmetry, one, other).distance > 0.2
    # the control: one draw on both sides is found again, wherever it lies on its orbit
    moved = symmetry.sample(generator(5), only=["*mlp*", "*head*"])
    assert align(symmetry, one, act(symmetry, moved, one)).distance < 1e-9
