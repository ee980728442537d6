"""Initialisations with given quantities: reached, or shown to be out of reach, never in between."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paramsym import act, balance, conserved_quantities, find_symmetry, initialise_with
from paramsym.dynamics import newton, reachable
from paramsym.dynamics.targets import targets
from paramsym.recording.precision import converted, converted_inputs, functional
from tests.tracing.zoo import build, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
Params = dict[str, Tensor]


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers(activation: nn.Module, *widths: int, bias: bool = True) -> nn.Module:
    parts = [nn.Linear(n, m, bias) for n, m in zip(widths, widths[1:], strict=False)]
    return nn.Sequential(parts[0], *(x for part in parts[1:] for x in (activation, part)))


def transformer() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=7, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config), {"input_ids": torch.arange(6)[None] % 11}


MODELS = {
    "ReLU": lambda: (layers(nn.ReLU(), 3, 4, 5, 2), (numbers(6, 3),)),
    "linear": lambda: (layers(nn.Identity(), 6, 4, 5), (numbers(6, 6),)),
    "GPT-2": transformer,
    "Llama": lambda: build("Llama"),
    "convolutions": lambda: build("convolutions"),
    "ResNet": lambda: build("ResNet"),
}


@cache
def prepared(name: str) -> tuple[nn.Module, Any, Any, Params]:
    model, inputs = MODELS[name]()
    symmetry = find_symmetry(randomise(model), inputs, check=False)
    return model, inputs, symmetry, converted(model, torch.float64)


def function_error(model: nn.Module, inputs: Any, params: Params, moved: Params) -> float:
    args, kwargs = converted_inputs(inputs, torch.float64)
    before, after = (functional(model, p, args, kwargs, None, False) for p in (params, moved))
    size = max(float(y.abs().max()) for y in before)
    return max(float((y - z).abs().max()) for y, z in zip(before, after, strict=True)) / size


def asked(symmetry, params: Params, seed: int, strength: float = 1.0) -> dict[str, Tensor]:
    """The quantities of another point of the orbit; with the buffers of this one."""
    laws = conserved_quantities(symmetry, params)
    there = act(symmetry, symmetry.sample(torch.Generator().manual_seed(seed), strength), params)
    found = laws.values({**there, **{n: params[n] for n in symmetry.buffers}})
    return {n: x for n, x in found.items() if n not in laws.constants}


def require_reached(name: str, quantities: dict[str, Tensor]) -> None:
    model, inputs, symmetry, params = prepared(name)
    laws = conserved_quantities(symmetry, params)
    proof = reachable.obstruction if len(laws.own) < 50 else reachable._by_ranks
    assert not proof(laws, params, targets(laws, params, quantities), 1e-10)
    found = initialise_with(symmetry, params, quantities)
    assert found.status == "REACHED" and found.residual <= 1e-10 and not found.why
    moved = act(symmetry, found.element, params)
    assert all(torch.equal(moved[n], found.params[n]) for n in params)
    assert function_error(model, inputs, params, found.params) <= 1e-12
    there = conserved_quantities(symmetry, found.params).values(found.params)
    for family, value in quantities.items():
        torch.testing.assert_close(there[family], value, rtol=1e-9, atol=1e-9)
    for buffer in symmetry.buffers:
        torch.testing.assert_close(moved[buffer], params[buffer], rtol=1e-13, atol=1e-15)


# -- reached -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=6)
@given(
    seed=st.integers(0, 10**6), strength=st.floats(0.1, 2), name=st.sampled_from(["ReLU", "linear"])
)
def test_the_quantities_of_any_point_of_the_orbit_are_reached(name, seed, strength) -> None:
    _, _, symmetry, params = prepared(name)
    require_reached(name, asked(symmetry, params, seed, strength))


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_attention_moves_queries_against_keys_and_values_against_outputs(name: str) -> None:
    _, _, symmetry, params = prepared(name)
    quantities = asked(symmetry, params, 3)
    assert any(x.ndim > 2 for x in quantities.values())
    require_reached(name, quantities)


@pytest.mark.parametrize("name", ["convolutions", "ResNet"])
def test_buffers_of_batch_norms_rest_under_finite_moves(name: str) -> None:
    _, _, symmetry, params = prepared(name)
    own = conserved_quantities(symmetry, params).values(params)
    quantities = {n: x + 0.2 * x.abs() + 0.1 for n, x in own.items()}
    before = initialise_with(symmetry, params, {}).element
    assert not before.parts  # nothing was asked for
    require_reached(name, quantities)


def test_balance_is_the_point_of_least_norm() -> None:
    _, _, symmetry, params = prepared("ReLU")
    found = initialise_with(symmetry, params, dict.fromkeys(symmetry.spaces, 0.0))
    least = balance(symmetry, params, objective="l2")
    assert all(torch.allclose(found.params[n], least.params[n], rtol=1e-9) for n in params)
    larger = initialise_with(symmetry, params, dict.fromkeys(symmetry.spaces, 1.0))
    assert sum(float(p.square().sum()) for p in larger.params.values()) > 1.01 * least.value
    assert all(torch.allclose(x, torch.ones_like(x)) for x in larger.quantities.values())


def test_a_linear_network_of_low_rank_is_balanced_where_its_rank_falls() -> None:
    """Hidden directions that nobody reads are taken away by shifts; bases only shrink them."""
    model = layers(nn.Identity(), 3, 6, 2)
    symmetry, params = find_symmetry(model, (numbers(6, 3),), check=False), _wide(model)
    found = initialise_with(symmetry, params, {"mlp": 0.0})
    assert found.status == "REACHED" and found.residual <= 1e-10
    assert function_error(model, (numbers(6, 3),), params, found.params) <= 1e-12


def test_a_family_without_a_name_keeps_its_values() -> None:
    _, _, symmetry, params = prepared("ReLU")
    first, second = symmetry.spaces
    before = conserved_quantities(symmetry, params).values(params)
    found = initialise_with(symmetry, params, {first: 2.0})
    torch.testing.assert_close(found.quantities[second], before[second])
    assert not torch.allclose(found.params["2.bias"], params["2.bias"])


def test_matrices_are_asked_for_by_numbers_and_diagonals() -> None:
    _, _, symmetry, params = prepared("linear")
    diagonal = torch.tensor([1.0, -1.0, 2.0, 0.0])
    for value, expected in ((0.5, 0.5 * torch.eye(4)), (diagonal, diagonal.diag())):
        found = initialise_with(symmetry, params, {"mlp": value})
        assert found.status == "REACHED"
        torch.testing.assert_close(found.quantities["mlp"], expected.double())


def test_linear_quantities_are_reached_however_far() -> None:
    """The sum of a column before a layer norm is no matter of e-folds."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    symmetry, params = find_symmetry(randomise(model), (numbers(6, 3),), check=False), _wide(model)
    found = initialise_with(symmetry, params, {"shift:0.weight": 1e4, "mlp.scale": 3.0})
    assert found.status == "REACHED" and len(found.element.parts) < 12
    torch.testing.assert_close(
        found.params["0.weight"].sum(0).abs(), torch.full((3,), 1e4).double()
    )


@pytest.mark.parametrize("name", ["ReLU", "linear"])
def test_without_a_matrix_the_same_point_is_found(name: str, monkeypatch) -> None:
    """Conjugate gradients, and their dense twin."""
    _, _, symmetry, params = prepared(name)
    quantities = asked(symmetry, params, 5)
    dense = initialise_with(symmetry, params, quantities)
    monkeypatch.setattr(newton, "_DENSE", 0)
    found = initialise_with(symmetry, params, quantities)
    assert found.status == "REACHED" and found.residual <= 1e-10
    if name == "ReLU":  # scales have one solution
        assert all(torch.allclose(found.params[n], dense.params[n], rtol=1e-8) for n in params)


def test_single_precision_is_rounded_once() -> None:
    _, _, symmetry, params = prepared("ReLU")
    single = {n: p.float() for n, p in params.items()}
    found = initialise_with(symmetry, single, dict.fromkeys(symmetry.spaces, 0.0))
    assert found.status == "REACHED" and 1e-10 < found.residual < 1e-5
    assert {p.dtype for p in found.params.values()} == {torch.float32}


# -- out of reach ------------------------------------------------------------------------------


def _wide(model: nn.Module) -> Params:
    return {n: p.detach().double() for n, p in model.state_dict().items()}


def with_dead_units() -> tuple[Any, Params]:
    """Unit 1 of the first layer has no output, unit 2 no input."""
    _, _, symmetry, params = prepared("ReLU")
    params = {n: p.clone() for n, p in params.items()}
    params["2.weight"][:, 1] = 0.0
    params["0.weight"][2], params["0.bias"][2] = 0.0, 0.0
    return symmetry, params


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([1.0, -2.0, -1.0, 1.0], r"− \S+\[1\] is below 0 .* 2 was asked for"),
        ([1.0, 1.0, 0.5, 1.0], r"\S+\[2\] is below 0 .* 0.5 was asked for"),
        ([1.0, 0.0, -1.0, 1.0], r"− \S+\[1\] is below 0 .* 0 was asked for"),  # a limit
        ([1.0, 1.0, -1.0, 1.0], ""),
    ],
)
def test_a_unit_without_outputs_has_a_positive_quantity(values: list[float], named: str) -> None:
    symmetry, params = with_dead_units()
    first, _ = symmetry.spaces
    found = initialise_with(symmetry, params, {first: torch.tensor(values)})
    assert found.status == ("UNREACHABLE" if named else "REACHED")
    if named:
        assert re.search(named, found.why), found.why
        assert all(torch.equal(found.params[n], p) for n, p in params.items())
        alive = prepared("ReLU")[3]
        assert initialise_with(symmetry, alive, {first: torch.tensor(values)}).status == "REACHED"


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10**6))
def test_scales_reach_a_value_or_a_certificate(seed: int) -> None:
    """The theorem of the alternative, at random patterns of zeros; and no certificate against what
    an element leads to."""
    _, _, symmetry, params = prepared("ReLU")
    draw = torch.Generator().manual_seed(seed)
    sparse = {n: p * (torch.rand(p.shape, generator=draw) < 0.35) for n, p in params.items()}
    quantities = {
        n: torch.randn(x.shape, generator=draw).round(decimals=1)
        for n, x in conserved_quantities(symmetry, sparse).values(sparse).items()
    }
    assert initialise_with(symmetry, sparse, quantities).status in ("REACHED", "UNREACHABLE")
    laws = conserved_quantities(symmetry, sparse)
    along = {n: torch.randn(x.shape, generator=draw).double() for n, x in quantities.items()}
    there = act(symmetry, symmetry.velocity(along).exp(), sparse)
    assert not reachable.obstruction(laws, sparse, laws.quantities(there), 1e-10)


def test_ranks_bound_the_signs_of_eigenvalues() -> None:
    model = layers(nn.Identity(), 6, 4, 2, bias=False)
    symmetry, params = find_symmetry(model, (numbers(6, 6),), check=False), _wide(model)
    found = initialise_with(symmetry, params, {"mlp": torch.tensor([1.0, -1.0, -2.0, -3.0])})
    assert found.status == "UNREACHABLE"
    assert "mlp: at most 2 negative eigenvalues" in found.why and "3 were asked for" in found.why
    reached = initialise_with(symmetry, params, {"mlp": torch.tensor([1.0, 1.0, -2.0, -3.0])})
    assert reached.status == "REACHED" and reached.residual <= 1e-10


def test_directions_that_the_other_side_does_not_meet_keep_their_sign() -> None:
    """W₁ of rank 4 and W₂ of rank 2 leave two directions in which only W₁ counts."""
    model = layers(nn.Identity(), 6, 4, 2, bias=False)
    symmetry, params = find_symmetry(model, (numbers(6, 6),), check=False), _wide(model)
    symmetry = dataclasses.replace(symmetry, shifts=())
    found = initialise_with(symmetry, params, {"mlp": torch.tensor([1.0, 0.0, 0.0, -1.0])})
    assert found.status == "UNREACHABLE" and "at least 2 positive eigenvalues" in found.why


def test_families_that_say_the_same_twice_are_found_out() -> None:
    model, inputs = build("MLP, softmax")
    symmetry = find_symmetry(randomise(model), inputs, check=False)
    params = converted(model, torch.float64)
    laws = conserved_quantities(symmetry, params)
    quantities = asked(symmetry, params, 2)
    assert laws.count(params) < len(laws.own)
    assert initialise_with(symmetry, params, quantities).status == "REACHED"
    shifted = {n: x + numbers(*x.shape).double() for n, x in quantities.items()}
    found = initialise_with(symmetry, params, shifted)
    assert found.status == "UNREACHABLE" and "say the same twice" in found.why


def test_what_is_neither_reached_nor_refuted_is_called_undecided(monkeypatch) -> None:
    symmetry, params = with_dead_units()
    first, _ = symmetry.spaces
    monkeypatch.setattr(reachable, "_DENSE", 0)
    found = initialise_with(symmetry, params, {first: torch.tensor([1.0, 0.0, -1.0, 1.0])})
    assert (
        found.status == "UNDECIDED" and "is not proved" in found.why and "UNDECIDED" in str(found)
    )


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "quantities", "message"),
    [
        (KeyError, {"none": 0.0}, "no quantity is conserved under this name, and some of"),
        (
            ValueError,
            {"mlp": torch.ones(3)},
            r"it has shape \(3,\), and real, finite numbers of shape",
        ),
        (ValueError, {"mlp": torch.tensor([[1.0, 2], [0, 1]]).repeat(2, 2)}, r"entry \[.*\(Q \+ Q"),
        (ValueError, {"mlp": float("nan")}, "it holds numbers that are not finite"),
        (ValueError, {"mlp": torch.ones(4, dtype=torch.complex64)}, "complex64, and real"),
    ],
)
def test_bad_quantities_are_refused(error, quantities, message: str) -> None:
    _, _, symmetry, params = prepared("linear")
    with pytest.raises(error, match=message):
        initialise_with(symmetry, params, quantities)


def test_bad_parameters_and_tolerances_are_refused() -> None:
    _, _, symmetry, params = prepared("linear")
    broken = {**params, "0.weight": params["0.weight"] * float("nan")}
    with pytest.raises(ValueError, match=r"initialise_with\(params\): '0.weight' holds numbers"):
        initialise_with(symmetry, broken, {"mlp": 0.0})
    with pytest.raises(ValueError, match=r"tolerance=0\): a positive number was expected.*1e-10"):
        initialise_with(symmetry, params, {"mlp": 0.0}, tolerance=0)
