"""Orders without frames: what acts in frames, written as what an optimiser commutes with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra import (
    Orthogonal,
    OrthogonalFixingOnes,
    Permutation,
    PositiveScaling,
    Scaling,
    Signs,
    Trivial,
)
from paramsym.privacy import plain_orders
from paramsym.recording.precision import converted
from paramsym.structure.axes import Frame, parse_axis, powers_of
from paramsym.structure.element import GroupElement
from paramsym.structure.space import Space
from tests.tracing.networks import randomise
from tests.tracing.zoo import build, derived, errors

State = dict[str, Tensor]


class Sequence(nn.Module):
    """A residual stream whose norms have one gain, two gains in a row, or share one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Linear(3, 6)
        self.first, self.second = nn.RMSNorm(6), nn.RMSNorm(6)
        self.further = nn.Parameter(torch.ones(6))
        self.up, self.down, self.out = nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        read = self.first(x)
        if self.kind == "two gains":
            read = read * self.further
        x = x + self.down(torch.tanh(self.up(read)))
        last = self.first if self.kind == "shared gain" else self.second
        return self.out(last(x))


def _sequence(kind: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    return randomise(Sequence(kind)), (x,)


def _gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=6, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return randomise(GPT2LMHeadModel(config)), {"input_ids": torch.arange(12).reshape(2, 6) % 11}


def _gemma() -> tuple[nn.Module, Any]:
    from transformers import GemmaConfig, GemmaForCausalLM

    torch.manual_seed(3)
    config = GemmaConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, num_key_value_heads=1,
        head_dim=4, intermediate_size=6, vocab_size=11, tie_word_embeddings=False,
    )  # fmt: skip
    return randomise(GemmaForCausalLM(config)), {"input_ids": torch.arange(10).reshape(2, 5) % 11}


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "one-gain": lambda: _sequence("one gain"),
    "two-gains": lambda: _sequence("two gains"),
    "shared-gain": lambda: _sequence("shared gain"),
    "GPT-2-untied": _gpt2,
    "Gemma-untied": _gemma,
    "Llama": lambda: build("Llama"),
    "ViT": lambda: build("ViT"),
}


@cache
def case(name: str) -> tuple[nn.Module, Any, ParameterSymmetry, ParameterSymmetry]:
    model, inputs = MODELS[name]()
    symmetry = find_symmetry(model, inputs, check=False)
    return model, inputs, symmetry, plain_orders(symmetry)


def order_of(symmetry: ParameterSymmetry, seed: int = 0) -> tuple[str, Tensor, Tensor]:
    """The space that acts in frames, a random order of it, and signs where its group has them."""
    (basis,) = {
        leg.space for made in symmetry.blocks.values() for b in made for leg in b.legs if leg.frame
    }
    size = symmetry.sizes[basis]
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1
    order = torch.randperm(size, generator=generator)
    signed = str(symmetry.spaces[basis].group).startswith("Orthogonal(")
    return basis, order, signs if signed else torch.ones(size, dtype=torch.float64)


def distance(a: State, b: State) -> float:
    return max(float((a[n] - b[n]).abs().max() / b[n].abs().max()) for n in b)


@pytest.mark.parametrize("name", ["one-gain", "shared-gain", "GPT-2-untied", "Llama", "ViT"])
def test_plain_orders_move_parameters_as_orders_in_frames_and_scales_do(name: str) -> None:
    model, _, symmetry, plain = case(name)
    state = converted(model, torch.float64)
    basis, order, signs = order_of(symmetry)
    matrix = signs[:, None] * torch.eye(len(order), dtype=torch.float64)[order]
    scales = {}
    for gain in symmetry.frame_parameters:  # each is typed s or s*, where s ↦ (Πγ)/γ
        ((scale, power),) = powers_of(symmetry.signature[gain][0])
        scales[scale] = (state[gain][order] / state[gain]) ** float(power)
    framed = act(symmetry, symmetry.element({basis: matrix, **scales}), state)
    signed = "Signed" in str(plain.spaces[basis].group)
    plainly = act(plain, plain.element({basis: (order, signs) if signed else order}), state)
    assert distance(plainly, framed) < 1e-12
    unscaled = act(symmetry, symmetry.element({basis: matrix}), state)
    assert distance(plainly, unscaled) > 0.1


def test_two_gains_in_a_row_are_both_carried() -> None:
    model, _, symmetry, plain = case("two-gains")
    state = converted(model, torch.float64)
    basis, order, signs = order_of(symmetry)
    assert {frame.parameter for frame in frames(symmetry)} == {
        "first.weight", "further", "second.weight",
    }  # fmt: skip
    expected = {
        **state,
        "embed.weight": signs[:, None] * state["embed.weight"][order],
        "embed.bias": signs * state["embed.bias"][order],
        "down.weight": signs[:, None] * state["down.weight"][order],
        "down.bias": signs * state["down.bias"][order],
        "up.weight": state["up.weight"][:, order] * signs,
        "out.weight": state["out.weight"][:, order] * signs,
        "first.weight": state["first.weight"][order],
        "further": state["further"][order],
        "second.weight": state["second.weight"][order],
    }
    moved = act(plain, plain.element({basis: (order, signs)}), state)
    assert distance(moved, expected) == 0.0


def frames(symmetry: ParameterSymmetry) -> set[Frame]:
    legs = (leg for made in symmetry.blocks.values() for block in made for leg in block.legs)
    return {item for leg in legs for item in leg.frame}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_without_frames_keeps_the_function(name: str) -> None:
    model, inputs, symmetry, plain = case(name)
    assert frames(symmetry) and not frames(plain)
    found = errors(model, plain, inputs)
    exact = {n: e for n, e in found.items() if n not in plain.spaces or plain.spaces[n].exact}
    assert exact.pop("a wrong move") > 1e-3
    assert max(exact.values()) < 1e-9, exact


@pytest.mark.parametrize("name", MODELS)
def test_its_orders_act_linearly_and_orthogonally_and_in_frames_they_do_not(name: str) -> None:
    model, _, symmetry, plain = case(name)
    one = {n: x for n, x in converted(model, torch.float64).items() if n in symmetry.signature}
    generator = torch.Generator().manual_seed(2)
    two = {n: torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in one.items()}
    basis, order, _ = order_of(symmetry)
    name_of = next(s for s in plain.spaces if "Permutation" in str(plain.spaces[s].group)
                   and (s == basis or s in plain.spaces[basis].over))  # fmt: skip
    element = plain.element({name_of: order})
    assert linear(plain, element, one, two) < 1e-13
    moved = act(plain, element, one)
    assert max(abs(float(moved[n].norm() / x.norm()) - 1) for n, x in one.items()) < 1e-13
    matrix = torch.eye(len(order), dtype=torch.float64)[order]
    assert linear(symmetry, symmetry.element({basis: matrix}), one, two) > 1e-2


def linear(symmetry: ParameterSymmetry, element: GroupElement, one: State, two: State) -> float:
    """How far an element is from additive, offsets of gains counted as they are stored."""
    both = act(symmetry, element, {n: 0.3 * one[n] + 0.7 * two[n] for n in one})
    apart = act(symmetry, element, one), act(symmetry, element, two)
    return distance(both, {n: 0.3 * apart[0][n] + 0.7 * apart[1][n] for n in one})


def test_an_order_that_gains_with_constants_have_already_gets_the_signs_of_the_frames() -> None:
    model, _, symmetry, plain = case("Gemma-untied")
    state = converted(model, torch.float64)
    basis, order, signs = order_of(symmetry)
    assert {frame.offset for frame in frames(symmetry)} == {1.0}
    plainly = act(plain, plain.element({"residual": order, basis: signs}), state)
    before = torch.diag(signs[order.argsort()])  # in frames the signs come before the order
    framed = act(symmetry, symmetry.element({"residual": order, basis: before}), state)
    assert distance(plainly, framed) < 1e-12
    assert distance(plainly, act(symmetry, symmetry.element({"residual": order}), state)) > 0.1


def test_a_symmetry_without_frames_is_returned_as_it_is() -> None:
    model, _ = build("MLP, ReLU")
    symmetry = derived("MLP, ReLU")
    assert plain_orders(symmetry) is symmetry
    plain = case("Llama")[3]
    assert plain_orders(plain) is plain


def test_other_spaces_and_all_shifts_stay_as_they_are() -> None:
    _, _, symmetry, plain = case("GPT-2-untied")
    gains = {n.removeprefix("transformer.").removesuffix(".weight")
             for n in symmetry.frame_parameters}  # fmt: skip
    for name in {*symmetry.spaces} - {"residual"} - gains:
        assert plain.spaces[name] == symmetry.spaces[name]
    assert plain.shifts == symmetry.shifts and gains


# -- what gains cannot carry -----------------------------------------------------------------------


def written(signature: dict[str, str], **spaces: Space) -> ParameterSymmetry:
    """A symmetry by hand: types of axes, apart by commas, by the name of the parameter."""
    axes = {n: tuple(parse_axis(t) for t in text.split(",")) for n, text in signature.items()}
    return ParameterSymmetry(spaces={s.name: s for s in spaces.values()}, signature=axes)


STREAM = Space("stream", Orthogonal(4))
GAIN = Space("gain", Scaling(4))
HAND: dict[str, tuple[ParameterSymmetry, str]] = {
    "a gain that nothing scales": (
        written({"in": "stream, 3", "gain": "4", "out": "2, stream[gain]*"}, a=STREAM),
        "no scale of its own",
    ),
    "a gain that serves two spaces": (
        written(
            {"in": "stream, 3", "other": "more, 3", "gain": "gain", "out": "2, stream[gain]*⊙gain*",
             "out2": "2, more[gain]*⊙gain*"},
            a=STREAM, b=Space("more", Orthogonal(4)), c=GAIN,
        ),
        "no scales carry",
    ),
    "scales that keep the sign": (
        written(
            {"in": "stream, 3", "gain": "gain", "out": "2, stream[gain]*⊙gain*"},
            a=Space("stream", OrthogonalFixingOnes(4)), b=Space("gain", PositiveScaling(4)),
        ),
        "the sign of the gain",
    ),
    "copies for each unit of a gain": (
        written(
            {"in": "stream, 3", "gain": "(gain copy)", "out": "2, stream[gain]*⊙gain*"},
            a=STREAM, b=GAIN, c=Space("copy", Signs(1), ("gain",)),
        ),
        "a copy for each unit",
    ),
    "a constant that is not always added": (
        written({"in": "stream, 3", "gain": "gain", "out": "2, stream[gain + 1]*⊙gain*"},
                a=STREAM, b=GAIN),
        "with and without a constant",
    ),
    "a root of a gain": (
        written({"in": "stream, 3", "gain": "gain", "out": "2, stream[gain ^ 0.5]*⊙gain*"},
                a=STREAM, b=GAIN),
        "a root",
    ),
    "one order for each head": (
        written(
            {"in": "(head stream), 3", "gain": "gain", "out": "2, (head stream[gain]*⊙gain*)"},
            a=Space("head", Permutation(2)), b=Space("stream", Orthogonal(4), ("head",)), c=GAIN,
        ),
        "an order of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("symmetry, why", HAND.values(), ids=[n.replace(" ", "-") for n in HAND])
def test_orders_that_no_gain_carries_are_given_up_and_signs_are_kept(
    symmetry: ParameterSymmetry, why: str
) -> None:
    plain = plain_orders(symmetry)
    assert not frames(plain)
    assert why in plain.spaces["stream"].why
    assert plain.spaces["stream"].group <= Signs(4)
    generator = torch.Generator().manual_seed(0)
    state = {n: torch.rand(symmetry.shape(n), generator=generator, dtype=torch.float64) + 0.5
             for n in symmetry.signature}  # fmt: skip
    if isinstance(plain.spaces["stream"].group, Signs):
        signs = torch.tensor([1.0, -1, -1, 1], dtype=torch.float64)
        value = signs.expand(2, 4) if plain.spaces["stream"].over else signs
        matrix = torch.diag_embed(value)
        framed = act(symmetry, symmetry.element({"stream": matrix}), state)
        assert distance(act(plain, plain.element({"stream": value}), state), framed) < 1e-12


def test_scales_that_act_without_the_order_as_well_are_held_still() -> None:
    symmetry = written(
        {"in": "stream⊙else, 3", "gain": "gain", "out": "2, stream[gain]*⊙gain*", "aside": "else"},
        a=STREAM, b=GAIN, c=Space("else", Scaling(4)),
    )  # fmt: skip
    plain = plain_orders(symmetry)
    assert list(map(str, plain.signature["in"])) == ["stream", "3"]
    assert list(map(str, plain.signature["aside"])) == ["4"]
    assert plain.spaces["else"].group == Trivial(4) and "as well" in plain.spaces["else"].why
    assert plain.spaces["gain"] == Space("gain", Scaling(1), ("stream",))
