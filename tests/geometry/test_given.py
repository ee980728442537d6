"""What comes in: no graph of gradients goes along, and what holds no numbers is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import act, balance, find_symmetry, minimize_quantization_error, minimize_range
from paramsym.geometry.result import Balanced, Status
from paramsym.quantize.grids import Grid

Find = Callable[..., Balanced]


def least_error(symmetry, params) -> Balanced:
    names = ("0.weight", "2.weight", "4.weight")
    slopes = {n: torch.ones(symmetry.shape(n), dtype=torch.float64) for n in names}
    return minimize_quantization_error(symmetry, params, slopes, Grid(4))


DOORS: dict[str, Find] = {
    "balance": balance, "minimize_range": minimize_range, "minimize_quantization_error": least_error
}  # fmt: skip


@pytest.fixture(params=DOORS)
def door(request) -> tuple[str, Find]:
    return request.param, DOORS[request.param]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    return model, find_symmetry(model, (torch.randn(2, 4),))


def test_parameters_that_are_trained_come_out_without_a_graph(network, door) -> None:
    model, symmetry = network
    params = dict(model.named_parameters())
    result = door[1](symmetry, params)
    assert not any(p.requires_grad for p in result.params.values())
    assert all(p.requires_grad for p in params.values())
    assert any(p.requires_grad for p in act(symmetry, result.element, params).values())
    expected = door[1](symmetry, model.state_dict()).params
    assert all(torch.equal(result.params[n], expected[n]) for n in params)


def test_infeasible_parameters_come_out_without_a_graph(network) -> None:
    model, symmetry = network
    found = balance(
        symmetry, dict(model.named_parameters()), bounds={"*": (0.5, 2.0)}, anchors={"*": 3.0}
    )
    assert found.status is Status.INFEASIBLE
    assert not any(p.requires_grad for p in found.params.values())


def test_what_is_no_parameter_goes_along(network, door) -> None:
    model, symmetry = network
    state = {**model.state_dict(), "extra": 3, "more": torch.ones(2)}
    result = door[1](symmetry, state)
    assert result.params["extra"] == 3 and result.params["more"] is not None


BAD = {
    "meta": (lambda w: w.to("meta"), "has no numbers"),
    "sparse": (lambda w: w.to_sparse(), "torch.sparse_coo"),
    "eight bits": (lambda w: w.to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "no numbers": (lambda w: w * float("nan"), "not finite"),
    "arrays": (lambda w: w.numpy(), "is a ndarray"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["2.weight", "2.bias"])
def test_tensors_without_numbers_are_refused_by_name(network, door, kind: str, name: str) -> None:
    """Those that are not rounded move along, too."""
    change, says = BAD[kind]
    state = network[0].state_dict()
    with pytest.raises(ValueError, match=says) as error:
        door[1](network[1], {**state, name: change(state[name])})
    assert repr(name) in str(error.value) and "expected" in str(error.value)
    assert door[0] in str(error.value) or kind == "arrays"


def test_a_model_in_the_place_of_its_parameters_is_refused(network, door) -> None:
    with pytest.raises(ValueError, match=r"a Sequential came.*state_dict\(\)"):
        door[1](network[1], network[0])


def test_an_error_beyond_double_precision_is_refused(network) -> None:
    huge = {n: p.double() * 1e160 for n, p in network[0].state_dict().items()}
    with pytest.raises(ValueError, match="overflows float64.*power of two"):
        least_error(network[1], huge)


@pytest.mark.parametrize("rounds", [0, 2.0, 1.5, float("nan"), float("inf"), "3", None])
def test_rounds_that_are_no_number_of_turns_are_refused(network, rounds) -> None:
    with pytest.raises(ValueError, match="a whole number of turns"):
        balance(network[1], network[0].state_dict(), rounds=rounds)
