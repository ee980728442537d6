"""Conserved quantities: the known ones, all that there are, and none that is not conserved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import (
    conserved_quantities,
    count_conservation_laws,
    find_symmetry,
    moment_map,
    relu,
)
from paramsym.recording.precision import converted, converted_inputs, functional
from paramsym.relu.conservation import LAWS
from tests.dynamics.gradient_twin import number_of_laws
from tests.tracing.zoo import build, perceptron, radial, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
Params = dict[str, Tensor]


def prepared(model: nn.Module, inputs: Any):
    symmetry = find_symmetry(randomise(model), inputs, check=False)
    return symmetry, converted(model, torch.float64)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def layers(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 5), activation, nn.Linear(5, 2))


def gradients(model: nn.Module, symmetry, params: Params, inputs: Any) -> Params:
    """The gradient of a generic loss on the outputs, for parameters alone."""
    args, kwargs = converted_inputs(inputs, torch.float64)
    point = {
        n: p.clone().requires_grad_(p.is_floating_point() and n not in symmetry.buffers)
        for n, p in params.items()
    }
    values = functional(model, point, args, kwargs, None, False)
    loss = sum((y * numbers(*y.shape).to(y)).sum() + y.square().sum() for y in values)
    names = [n for n, p in point.items() if p.requires_grad]
    slopes = torch.autograd.grad(loss, [point[n] for n in names], allow_unused=True)
    return {n: g for n, g in zip(names, slopes, strict=True) if g is not None}


# -- the known ones ----------------------------------------------------------------------------


def test_linear_layers_keep_their_gram_matrices_in_balance() -> None:
    """C.9.1: W₁W₁ᵀ + b₁b₁ᵀ − W₂ᵀW₂, entry by entry."""
    model = layers(nn.Identity())
    symmetry, params = prepared(model, (numbers(6, 3),))
    found = [*conserved_quantities(symmetry, params).values(params).values()]
    w, b = ([params[f"{k}.{x}"] for k in (0, 2, 4)] for x in ("weight", "bias"))
    for k, (first, bias, second) in enumerate(zip(w, b, w[1:], strict=False)):
        expected = first @ first.T + torch.outer(bias, bias) - second.T @ second
        torch.testing.assert_close(found[k], expected)


def test_rectified_layers_keep_the_diagonal() -> None:
    """C.9.3, and the table written by hand for ReLU networks: scales alone are global laws."""
    model = layers(nn.ReLU())
    symmetry, params = prepared(model, (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params)
    found = [*laws.values(params).values()]
    by_hand = [q.value(relu.as_network(model)) for q in relu.conserved_quantities(model)]
    torch.testing.assert_close(2 * torch.tensor(by_hand).double(), torch.cat(found))
    assert {law.move for law in LAWS if law.scope == "global"} == {"scale"}
    assert not laws.why


@pytest.mark.parametrize("head", range(2))
def test_attention_keeps_queries_against_keys_and_values_against_outputs(head: int) -> None:
    """W_Q W_Qᵀ − W_K W_Kᵀ and W_V W_Vᵀ − W_Oᵀ W_O, biases with them, in a fused tensor."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=7)
    inputs = {"input_ids": torch.arange(6)[None] % 11}
    symmetry, params = prepared(GPT2LMHeadModel(config), inputs)
    found = conserved_quantities(symmetry, params).values(params)
    fused = torch.cat([params["transformer.h.0.attn.c_attn.weight"],
                       params["transformer.h.0.attn.c_attn.bias"][None]]).T  # fmt: skip
    out = params["transformer.h.0.attn.c_proj.weight"]
    q, k, v = (part.reshape(2, 4, 9)[head] for part in fused.split(8))
    o = out.reshape(2, 4, 8)[head]
    matrices = [x[head] for x in found.values() if x.shape == (2, 4, 4)]
    for expected in (q @ q.T - k @ k.T, v @ v.T - o @ o.T):
        assert any(torch.allclose(abs(x), abs(expected), atol=1e-12) for x in matrices)


def test_radial_layers_keep_nothing() -> None:
    """C.9.5: the generators are skew."""
    model, inputs = perceptron(radial)()
    symmetry, params = prepared(model, inputs)
    laws = conserved_quantities(symmetry, params)
    assert laws.values(params) == {} and laws.count(params) == 0
    assert all("skew" in laws.why[n] for n in symmetry.spaces)


def test_sums_that_a_norm_does_not_see_are_linear_quantities() -> None:
    """Columns before a layer norm sum to what they summed to; so does the bias."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    symmetry, params = prepared(model, (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params)
    values = laws.values(params)
    linear = {n: x for n, x in values.items() if n not in symmetry.spaces}
    sums = torch.cat([params["0.weight"].sum(0), params["0.bias"].sum()[None]])
    found = torch.cat([x.reshape(-1) for x in linear.values()])
    torch.testing.assert_close(found.abs().sort().values, sums.abs().sort().values)
    assert laws.count(params) == 8


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_buffers_at_rest_need_the_offset_of_the_bias() -> None:
    """The scale in front of a batch norm moves its mean, which two offsets bring back:
    |W|² + (b − mean)² − γ² is kept, and b² alone is not."""
    model, inputs = Normed(), (numbers(4, 2, 5, 5),)
    symmetry, params = prepared(model, inputs)
    laws = conserved_quantities(symmetry, params)
    values = laws.values(params)
    assert laws.count(params) == 6 and len(values) == 2
    w, b, mean, gain = (params[n] for n in ("conv.weight", "conv.bias", "norm.running_mean",
                                            "norm.weight"))  # fmt: skip
    expected = w.square().sum((1, 2, 3)) + b * (b - 2 * mean) - gain.square()
    assert any(torch.allclose(x.reshape(-1), expected) for x in values.values())


# -- all, and no others ------------------------------------------------------------------------

SMALL = ["MLP, ReLU", "MLP, softmax", "MLP, radial", "RNN", "MultiheadAttention", "MLP, tanh"]


@pytest.mark.parametrize("name", SMALL)
def test_there_are_as_many_as_finite_differences_find(name: str) -> None:
    model, inputs = build(name)
    symmetry, params = prepared(model, inputs)
    laws = conserved_quantities(symmetry, params)
    dead = sum(params[n].numel() for n in laws.constants)
    assert laws.count(params) - dead == number_of_laws(symmetry, params)


@pytest.mark.parametrize("name", [*SMALL, "GPT-2", "Llama", "ResNet", "convolutions", "BERT"])
def test_gradients_are_orthogonal_to_the_fields(name: str) -> None:
    """Proposition C.5, and the control: another loss than one of the outputs."""
    model, inputs = build(name)
    symmetry, params = prepared(model, inputs)
    laws = conserved_quantities(symmetry, params)
    slopes = gradients(model, symmetry, params, inputs)
    size = sum(float(g.square().sum()) for g in slopes.values()) ** 0.5
    size *= sum(float(params[n].square().sum()) for n in slopes) ** 0.5
    paired = laws.basis.lowered(laws.pairing(params, slopes))
    assert not len(paired) or float(paired.abs().max()) <= 1e-13 * size
    wrong = {n: g + 1e-3 * params[n] for n, g in slopes.items()}
    assert not len(paired) or (laws.basis.lowered(laws.pairing(params, wrong)).abs() > 1e-7).any()


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "convolutions", "ResNet"])
def test_the_fields_are_the_gradients_of_the_quantities(name: str) -> None:
    model, inputs = build(name)
    symmetry, params = prepared(model, inputs)
    symmetry = dataclasses.replace(symmetry, offsets={**symmetry.offsets, "out.bias": 0.3})
    laws = conserved_quantities(symmetry, params)
    names = [n for n in laws.operator.names if n not in symmetry.buffers]
    along = {n: numbers(*params[n].shape).double() for n in names}

    def at(step: float) -> Tensor:
        return laws.quantities({**params, **{n: params[n] + step * along[n] for n in names}})

    slope = (at(1e-4) - at(-1e-4)) / 2e-4
    expected = laws.degrees * laws.basis.lowered(laws.pairing(params, along))
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)
    by_operator = laws.degrees * laws.tangent(params).rmatvec(along)
    torch.testing.assert_close(by_operator, expected, rtol=1e-10, atol=1e-10)


def test_no_quantity_moves_what_rests() -> None:
    model, inputs = build("convolutions")
    symmetry, params = prepared(model, inputs)
    operator = conserved_quantities(symmetry, params).tangent(params)
    matrix = operator.dense()
    for name in symmetry.buffers:
        if name in operator.columns:
            assert float(matrix[:, operator.columns[name]].abs().max()) < 1e-12


def test_what_would_move_a_frozen_parameter_gives_nothing() -> None:
    model = layers(nn.ReLU())
    symmetry, params = prepared(model, (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params, frozen=["0.bias"])
    assert [x.shape for x in laws.values(params).values()] == [(5,)]
    assert "'0.bias', which is not trained" in next(iter(laws.why.values()))
    with pytest.raises(ValueError, match=r"frozen=\['none'\].*Names of the state dict.*lists them"):
        conserved_quantities(symmetry, params, frozen=["none"])


def test_what_a_shift_reads_may_be_frozen() -> None:
    """With W₂ frozen (b₁, b₂) → (b₁ + δ, b₂ − W₂δ) is constant, and so is W₁ in ker W₂."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    symmetry, params = prepared(model, (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params, frozen=["1.weight"])
    expected = params["0.bias"] - params["1.weight"].mT @ params["1.bias"]
    vectors = [x for x in laws.values(params).values() if x.shape == expected.shape]
    assert any(torch.allclose(x, expected) for x in vectors)
    assert "'1.weight', which is not trained" in laws.why[next(iter(symmetry.spaces))]
    model[1].weight.requires_grad_(False)
    found = count_conservation_laws(model, example_inputs=(numbers(6, 3),))
    assert found.count == laws.count(params) == 10


@pytest.mark.parametrize("affine", [True, False])
def test_buffers_that_nothing_moves_are_at_rest(affine: bool) -> None:
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, affine=affine), nn.ReLU(), nn.Linear(4, 2)
    )
    symmetry, params = prepared(model, (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params)
    slopes = gradients(model, symmetry, params, (numbers(6, 3),))
    assert laws.count(params) == (8 if affine else 4)
    assert float(laws.tangent(params).rmatvec(slopes).abs().max()) < 1e-12


def test_every_quantity_has_a_name_of_its_own() -> None:
    """Between fixed matrices A and B are tied by B w = w A; the echelon form has large entries."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.c, self.d = nn.Linear(3, 4), nn.Linear(5, 4), nn.Linear(4, 2)
            self.register_buffer("w", numbers(5, 4))
            self.register_buffer("v", numbers(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.d(self.c(self.a(x) @ self.get_buffer("w").T) @ self.get_buffer("v"))

    symmetry, params = prepared(Fixed(), (numbers(6, 3),))
    laws = conserved_quantities(symmetry, params)
    assert len(laws.own.unique()) == laws.basis.width
    assert sum(x.numel() for x in laws.values(params).values()) == laws.basis.width


def test_approximate_families_give_nothing() -> None:
    symmetry, params = prepared(layers(nn.ReLU()), (numbers(6, 3),))
    first, *_ = symmetry.spaces
    loose = dataclasses.replace(symmetry.spaces[first], exact=False)
    laws = conserved_quantities(
        dataclasses.replace(symmetry, spaces={**symmetry.spaces, first: loose}), params
    )
    assert first not in laws.values(params) and "not hold exactly" in laws.why[first]


def test_moments_have_the_shapes_of_the_quantities() -> None:
    symmetry, params = prepared(layers(nn.Identity()), (numbers(6, 3),))
    moments = moment_map(symmetry, params)
    for name, found in conserved_quantities(symmetry, params).values(params).items():
        torch.testing.assert_close(found, moments[name])


def test_it_prints_what_there_is_and_why_not() -> None:
    symmetry, params = prepared(layers(nn.Identity()), (numbers(6, 3),))
    text = str(conserved_quantities(symmetry, params))
    assert "4 × 4" in text and "5 × 5" in text and "depends on" in text
