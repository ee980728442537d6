"""What once was called a symmetry and is none, each with its relatives.

Eleven mechanisms gave wrong symmetries: products of a parameter with itself, indices that are both
a sum and a product, writes through views, integers, dropout, overlapping memory, outputs that
nobody walked, copies that no axis tells apart, parts that do not commute, outputs that read
otherwise than was written, and windows that go by the name of the whole. Every network below is
derived without refutation, so that the engine alone has to be right; each space and shift alone and
all of them together are moved, and a move that is no symmetry must be seen.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, TraceError, act, find_symmetry
from paramsym.structure.action import infinitesimal
from paramsym.structure.element import AlgebraElement, GroupElement, Slide, batch_of
from paramsym.structure.scale import to_scale
from tests.tracing.test_claims import change
from tests.tracing.test_held import M, x
from tests.tracing.zoo import errors, randomise

Shapes = dict[str, Any]
Function = Callable[..., Any]


def derived(model: nn.Module, *inputs: Tensor, training: bool = False) -> ParameterSymmetry:
    """What the engine alone derives, after every move of it was tried."""
    symmetry = find_symmetry(model, inputs, training=training, check=False)
    assert not symmetry.unknown
    found = errors(model, symmetry, inputs)
    assert found.pop("a wrong move") > 1e-3
    assert max(found.values()) < 1e-9, (found, str(symmetry))
    return symmetry


def sliding(symmetry: ParameterSymmetry) -> set[str]:
    """The parameters that a shift moves."""
    return {name for shift in symmetry.shifts for name in shift.parameters}


def groups(symmetry: ParameterSymmetry) -> list[str]:
    return sorted(str(space.group) for space in symmetry.spaces.values())


# -- 1. a parameter times itself ------------------------------------------------------------------

SQUARES: dict[str, tuple[Function, Shapes]] = {
    "b + c c": (lambda s, h: torch.relu(h @ s.a.T + s.b + s.c * s.c) @ s.u,
                {"a": (4, 3), "b": (4,), "c": (4,), "u": (4, 2)}),
    "b + c²": (lambda s, h: torch.relu(h @ s.a.T + s.b + s.c.square()) @ s.u,
               {"a": (4, 3), "b": (4,), "c": (4,), "u": (4, 2)}),
    "b + c³ by powers": (lambda s, h: torch.tanh(h @ s.a.T + s.b + s.c * s.c.pow(2)) @ s.u,
                         {"a": (4, 3), "b": (4,), "c": (4,), "u": (4, 2)}),
    "b + c (c + 1)": (lambda s, h: torch.tanh(h @ s.a.T + s.b + s.c * (s.c + 1)) @ s.u,
                      {"a": (4, 3), "b": (4,), "c": (4,), "u": (4, 2)}),
    "b + v · v": (lambda s, h: torch.tanh(h @ s.a.T + s.b + (s.c @ s.c)) @ s.u,
                  {"a": (4, 3), "b": (4,), "c": (5,), "u": (4, 2)}),
    "w + v vᵀ": (lambda s, h: torch.tanh(h @ (s.w + s.v @ s.v.T)) @ s.u,
                 {"w": (4, 4), "v": (4, 2), "u": (4, 2)}),
    "w + v vᵀ, linear": (lambda s, h: h @ (s.w + s.v @ s.v.T), {"w": (4, 4), "v": (4, 2)}),
    "w + outer(v, v)": (lambda s, h: torch.relu(h @ (s.w + torch.outer(s.v, s.v))) @ s.u,
                        {"w": (4, 4), "v": (4,), "u": (4, 2)}),
    "w + v v": (lambda s, h: torch.relu(h @ (s.w + s.v * s.v)) @ s.u,
                {"w": (4, 5), "v": (4, 5), "u": (5, 2)}),
    "w + v A v": (lambda s, h: torch.tanh(h @ (s.w + s.v @ s.k @ s.v)) @ s.u,
                  {"w": (4, 5), "v": (4, 5), "k": (5, 4), "u": (5, 2)}),
    "a weight twice": (lambda s, h: torch.tanh(h @ s.w @ s.w + s.b) @ s.u,
                       {"w": (4, 4), "b": (4,), "u": (4, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SQUARES)
def test_a_parameter_does_not_slide_against_its_own_square(name: str) -> None:
    function, shapes = SQUARES[name]
    model = M(function, **shapes)
    width = 4 if "w" in shapes else 3
    symmetry = derived(model, x(7, width))
    assert not {"c", "v"} & {t.target.parameter for s in symmetry.shifts for t in s.terms
                             if any("c" == f.window.parameter for f in t.factors)}  # fmt: skip
    if name.startswith("b + "):
        assert "c" not in sliding(symmetry)


def test_a_parameter_slides_against_the_product_of_two_others() -> None:
    """Negative control: with two parameters in place of one, the bias does take up a change."""
    model = M(lambda s, h: torch.tanh(h @ s.a.T + s.b + s.c * s.d) @ s.u,
              a=(4, 3), b=(4,), c=(4,), d=(4,), u=(4, 2))  # fmt: skip
    assert {"b", "c", "d"} <= sliding(derived(model, x(7, 3)))
    model = M(lambda s, h: torch.tanh(h @ (s.w + s.v @ s.k.T)) @ s.u,
              w=(4, 4), v=(4, 2), k=(4, 2), u=(4, 2))  # fmt: skip
    assert {"w", "v", "k"} <= sliding(derived(model, x(7, 4)))


# -- 2. an index that is both a sum and a product -------------------------------------------------


def _tail(h: Tensor) -> Tensor:
    return torch.cat([h[..., :1].tanh(), h[..., 1:].relu()], -1)


TORN: dict[str, tuple[Function, Shapes, tuple[int, ...]]] = {
    "a weight and its reshape": (
        lambda s, h: F.linear(F.linear(h, s.w), s.w.reshape(3, 6)), {"w": (6, 3)}, (5, 3)),
    "a weight and its reshape, between relus": (
        lambda s, h: F.linear(F.linear(h, s.w).relu(), s.w.reshape(3, 6)), {"w": (6, 3)}, (5, 3)),
    "a weight and its view": (
        lambda s, h: (h @ s.w).tanh() @ s.w.view(6, 4), {"w": (4, 6)}, (5, 4)),
    "two branches before a reshape": (
        lambda s, h: torch.cat([h @ s.a.T, h @ s.b.T], -1) @ s.w.reshape(8, -1),
        {"a": (5, 5), "b": (3, 5), "w": (4, 8)}, (7, 5)),
    "two rectified branches before a reshape": (
        lambda s, h: torch.cat([h @ s.a.T, h @ s.b.T], -1).relu() @ s.w.reshape(8, -1),
        {"a": (5, 5), "b": (3, 5), "w": (4, 8)}, (7, 5)),
    "three branches before a reshape": (
        lambda s, h: torch.cat([h @ s.a, h @ s.b, h @ s.c], -1).relu() @ s.w.view(8, -1),
        {"a": (5, 3), "b": (5, 3), "c": (5, 2), "w": (4, 6)}, (7, 5)),
    "a tied convolution": (
        lambda s, h: F.conv1d(F.conv1d(h, s.w), s.w.reshape(3, 6, 2)), {"w": (6, 3, 2)}, (5, 3, 9)),
    "a tied convolution between relus": (
        lambda s, h: F.conv1d(F.conv1d(h, s.w).relu(), s.w.reshape(3, 6, 2)),
        {"w": (6, 3, 2)}, (5, 3, 9)),
    "a slope per channel": (
        lambda s, h: F.prelu(_tail(h @ s.a.T), s.p) @ s.w.reshape(6, -1),
        {"a": (6, 4), "p": (6,), "w": (3, 8)}, (5, 4)),
    "a slice of 1 + 5": (
        lambda s, h: _tail(h @ s.a.T) @ s.w.reshape(6, 4), {"a": (6, 4), "w": (3, 8)}, (5, 4)),
    "a slice of 4 + 2": (
        lambda s, h: ((h @ s.a.T)[:, :4].relu() @ s.v) * ((h @ s.a.T) @ s.w.reshape(6, 4)),
        {"a": (6, 4), "v": (4, 4), "w": (3, 8)}, (5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", TORN)
def test_an_index_that_is_torn_is_held(name: str) -> None:
    function, shapes, shape = TORN[name]
    derived(M(function, **shapes), x(*shape))


def test_a_torn_index_says_so() -> None:
    function, shapes, shape = TORN["two branches before a reshape"]
    symmetry = derived(M(function, **shapes), x(*shape))
    assert not symmetry.spaces
    assert any("cut across" in why for whys in symmetry.reasons.values() for why in whys)


def test_branches_before_a_weight_that_is_not_reshaped_are_free() -> None:
    """Negative control."""
    model = M(lambda s, h: torch.cat([h @ s.a.T, h @ s.b.T], -1) @ s.w,
              a=(5, 5), b=(3, 5), w=(8, 4))  # fmt: skip
    symmetry = derived(model, x(7, 5))
    assert groups(symmetry) == ["GeneralLinear(3)", "GeneralLinear(5)"]


# -- 3. writes through views ----------------------------------------------------------------------


def _scaled(view: Callable[[Tensor], Tensor]) -> Function:
    def run(s: Any, h: Tensor) -> Tensor:
        h = h @ s.w.T
        view(h).mul_(s.g)
        return torch.relu(h) @ s.u

    return run


def _of_a_mean(s: Any, h: Tensor) -> Tensor:
    m = h.mean(-1, keepdim=True).clone()
    m[..., 0] *= 3
    return (m - 2 * h) @ s.u


def _one_column(s: Any, h: Tensor) -> Tensor:
    h = h @ s.w.T
    h.select(-1, 0).mul_(3)
    return torch.relu(h) @ s.u


def _some_rows(s: Any, h: Tensor) -> Tensor:
    h = h @ s.w.T
    h[:, 1:].add_(s.g)
    return torch.relu(h) @ s.u


def _moved(s: Any, h: Tensor) -> Tensor:
    h = h @ s.w.T
    h.movedim(-1, 0).mul_(s.g[:, None, None])
    return torch.relu(h) @ s.u


_READERS: Shapes = {"w": (4, 3), "g": (4,), "u": (4, 2)}
WRITTEN: dict[str, tuple[Function, Shapes, tuple[int, ...]]] = {
    "transposed": (_scaled(lambda h: h.transpose(1, 2)), _READERS, (2, 4, 3)),
    "flattened": (_scaled(lambda h: h.view(-1, 4)), _READERS, (2, 4, 3)),
    "swapped": (_scaled(lambda h: h.swapaxes(0, 1)), _READERS, (2, 5, 3)),
    "as one column": (_scaled(lambda h: h.unsqueeze(0)), _READERS, (2, 4, 3)),
    "moved": (_moved, _READERS, (2, 5, 3)),
    "one unit": (_one_column, {"w": (4, 3), "u": (4, 2)}, (2, 5, 3)),
    "some rows": (_some_rows, _READERS, (2, 5, 3)),
    "a mean": (_of_a_mean, {"u": (3, 2)}, (2, 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_through_a_view_is_read_in_the_order_of_the_view(name: str) -> None:
    function, shapes, shape = WRITTEN[name]
    derived(M(function, **shapes), x(*shape))


def test_gains_over_positions_are_no_gains_over_units() -> None:
    transposed = derived(M(WRITTEN["transposed"][0], **_READERS), x(2, 4, 3))
    assert not any(transposed.spaces[s].group.dimension for s in transposed.spaces
                   if "g" in transposed.parameters_of(s) and "u" in transposed.parameters_of(s)
                   and transposed.signature["g"] == transposed.signature["u"][:1])  # fmt: skip
    flattened = derived(M(WRITTEN["flattened"][0], **_READERS), x(2, 4, 3))
    (order,) = {s for s in flattened.spaces if flattened.spaces[s].size == 4}
    assert set(flattened.parameters_of(order)) == {"w", "g", "u"}


def test_a_reader_of_the_mean_alone_keeps_its_sign() -> None:
    symmetry = derived(M(_of_a_mean, u=(3, 2)), x(2, 4, 3))
    assert not any("u" in symmetry.parameters_of(s) for s in symmetry.spaces)


# -- 4. integers and booleans ---------------------------------------------------------------------

_COUNTS = torch.tensor([1, 2, 1, 3, 1, 1])
INTEGERS: dict[str, tuple[Function, dict[str, Tensor], Shapes]] = {
    "counts": (lambda s, h: torch.relu((h @ s.w.T) * s.n) @ s.u, {"n": _COUNTS},
               {"w": (6, 4), "u": (6, 2)}),
    "counts added": (lambda s, h: (h @ s.w.T + s.n) @ s.u, {"n": _COUNTS},
                     {"w": (6, 4), "u": (6, 2)}),
    "a quantised weight": (
        lambda s, h: torch.relu(h @ (s.q * s.scale[:, None]).T) @ s.u,
        {"q": torch.arange(-12, 12).reshape(6, 4).to(torch.int8)}, {"scale": (6,), "u": (6, 2)}),
    "a quantised weight in floating point": (
        lambda s, h: torch.relu(h @ (s.q.double() * s.scale[:, None]).T) @ s.u,
        {"q": torch.arange(-12, 12).reshape(6, 4).to(torch.int8)}, {"scale": (6,), "u": (6, 2)}),
    "a mask": (lambda s, h: torch.relu((h @ s.w.T) * s.m) @ s.u,
               {"m": torch.tensor([True, False, True, True, True, False])},
               {"w": (6, 4), "u": (6, 2)}),
    "rows of a table": (lambda s, h: torch.relu(h @ s.w[s.t].T) @ s.u,
                        {"t": torch.tensor([0, 2, 1, 1, 3, 0])}, {"w": (4, 4), "u": (6, 2)}),
    "rows of a table of rows": (
        lambda s, h: torch.relu(h @ s.w[s.t[torch.tensor([0, 3, 2])]].T) @ s.u,
        {"t": torch.tensor([0, 2, 1, 1, 3, 0])}, {"w": (4, 4), "u": (3, 2)}),
    "gathered by a table": (
        lambda s, h: torch.relu((h @ s.w.T).gather(1, s.t[torch.arange(7) % 3])) @ s.u,
        {"t": torch.tensor([[0, 1, 2], [3, 1, 0], [2, 2, 1]])}, {"w": (4, 4), "u": (3, 2)}),
    "compared": (lambda s, h: torch.where(s.n > 1, h @ s.w.T, 0.0).relu() @ s.u, {"n": _COUNTS},
                 {"w": (6, 4), "u": (6, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_and_booleans_are_permuted_at_most(name: str) -> None:
    function, buffers, shapes = INTEGERS[name]
    model = M(function, buffers, **shapes)
    symmetry = derived(model, x(7, 4))
    state = model.state_dict()
    for seed in range(3):
        moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(seed)), state)
        for buffer, old in buffers.items():
            assert moved[buffer].dtype == old.dtype
            assert moved[buffer].flatten().sort().values.equal(old.flatten().sort().values)
            if buffer == "t":
                assert moved[buffer].equal(old)


def test_units_that_meet_integers_keep_their_positive_scales() -> None:
    function, buffers, shapes = INTEGERS["counts"]
    symmetry = derived(M(function, buffers, **shapes), x(7, 4))
    assert sum(map(symmetry.dimension, symmetry.spaces)) == 6
    assert round(10 ** symmetry.log_order()) == 720


# -- 5. dropout -----------------------------------------------------------------------------------

KEPT: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {  # function in training, its unit scales
    "dropout": (lambda h: F.dropout(h, 0.3, True), 6),
    "dropout of channels": (lambda h: F.dropout1d(h.T[None], 0.3, True)[0].T, 6),
    "alpha dropout": (lambda h: F.alpha_dropout(h, 0.3, True), 0),
    "alpha dropout of features": (lambda h: F.feature_alpha_dropout(h.T[None], 0.3, True)[0].T, 0),
}  # fmt: skip


class Dropped(nn.Module):
    """relu(x wᵀ), dropped in training, then u; the same numbers are dropped in every call."""

    def __init__(self, drop: Callable[[Tensor], Tensor]):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(6, 4, generator=draw, dtype=torch.float64))
        self.u = nn.Parameter(torch.randn(6, 2, generator=draw, dtype=torch.float64))
        self.drop = drop

    def forward(self, h: Tensor) -> Tensor:
        return self.drop(torch.relu(h @ self.w.T)) @ self.u


@pytest.mark.parametrize("name", KEPT)
def test_dropout_holds_what_is_not_linear_in_it(name: str) -> None:
    drop, scales = KEPT[name]
    model, inputs = Dropped(drop), (x(7, 4),)
    symmetry = find_symmetry(model, inputs, training=True, check=False)
    assert sum(map(symmetry.dimension, symmetry.spaces)) == scales
    assert round(10 ** symmetry.log_order()) == 720
    (values,) = symmetry.sample(torch.Generator().manual_seed(0)).parts
    assert not isinstance(values, Slide)
    still = {name: value._replace(order=None) for name, value in values.items()}

    def error(part: Any) -> float:
        """The change of the function where the same numbers are dropped before and after."""
        moved = act(symmetry, GroupElement(symmetry, (part,)), model.state_dict())
        outputs = []
        for state in (model.state_dict(), moved):
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(3)
                outputs.append(torch.func.functional_call(model, state, inputs))
        return float((outputs[1] - outputs[0]).abs().max())

    assert error(still) < 1e-12
    assert error(values) > 1e-3  # what is dropped does not follow a permutation …
    assert symmetry.random and "in distribution" in str(symmetry)  # … and that is said
    assert type(symmetry).from_json(symmetry.to_json()) == symmetry
    told = find_symmetry(model, inputs, training=True).checked.note
    assert "in distribution" in told or "draws random numbers" in told


def test_in_evaluation_nothing_is_random() -> None:
    symmetry = find_symmetry(Dropped(nn.Dropout(0.5)).eval(), (x(7, 4),))
    assert not symmetry.random and "in distribution" not in str(symmetry)


@pytest.mark.parametrize("name", ["dropout", "alpha dropout"])
def test_what_is_not_dropped_is_free(name: str) -> None:
    """Negative control: in evaluation, a module for either is the identity."""
    layer = nn.Dropout(0.3) if name == "dropout" else nn.AlphaDropout(0.3)
    model = Dropped(layer).eval()
    symmetry = derived(model, x(7, 4))
    assert sum(map(symmetry.dimension, symmetry.spaces)) == 6


# -- 6. parameters that overlap -------------------------------------------------------------------

_CUTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "rows and a flat window": lambda w: (w[:6], w.view(-1)[:24].view(6, 4)),
    "rows that meet": lambda w: (w[:6], w[2:]),
    "columns and rows": lambda w: (w[:6], w.view(-1)[8:].view(6, 4)),
    "a transposed copy": lambda w: (w[:4], w[:4].T),
}  # fmt: skip


@pytest.mark.parametrize("name", _CUTS)
@pytest.mark.parametrize("shared", [True, False])
def test_parameters_that_share_memory_are_held(name: str, shared: bool) -> None:
    whole = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = _CUTS[name](whole)
    model = M(lambda s, h: torch.relu(h @ s.a.T) @ s.b)
    model.a = nn.Parameter(first)
    model.b = nn.Parameter(second if shared else second.clone(), requires_grad=True)
    symmetry = derived(model, x(7, 4))
    assert bool(symmetry.spaces) is not shared
    before = model(x(7, 4)).detach()
    element = symmetry.sample(torch.Generator().manual_seed(2))
    model.load_state_dict(act(symmetry, element, copy.deepcopy(model.state_dict())))
    assert float((model(x(7, 4)) - before).detach().abs().max()) < 1e-11


# -- 7. outputs -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    scores: Any
    step: int = 0


_WRAPS: dict[str, Function] = {
    "a dataclass": lambda y: Answer(y),
    "a frozen dataclass": dataclasses.make_dataclass("Frozen", ["scores"], frozen=True),
    "a dataclass in a list": lambda y: [Answer({"y": (y, 3)})],
    "integers beside a tensor": lambda y: (y.argmax(-1), y),
}  # fmt: skip


@pytest.mark.parametrize("name", _WRAPS)
def test_an_output_inside_anything_counts(name: str) -> None:
    wrap = _WRAPS[name]
    model = M(lambda s, h: wrap(torch.relu(h @ s.a.T) @ s.b), a=(5, 4), b=(5, 2))
    symmetry = derived(model, x(7, 4))
    assert not symmetry.dead and groups(symmetry) == ["Monomial(5)"]


@pytest.mark.parametrize("wrap", [
    lambda y: y.argmax(-1), lambda y: Answer(y.argmax(-1)), lambda y: {"n": 3},
    lambda y: (y > 0, [y.int()]),
])  # fmt: skip
def test_a_model_that_returns_no_floating_tensor_is_refused(wrap: Function) -> None:
    model = M(lambda s, h: wrap(torch.relu(h @ s.a.T) @ s.b), a=(5, 4), b=(5, 2))
    with pytest.raises(TraceError, match="no floating tensor"):
        find_symmetry(model, (x(7, 4),), check=False)


# -- 8. copies that no axis tells apart -----------------------------------------------------------


def _transformer(name: str, **sizes: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=12,
        vocab_size=11, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes,
    )  # fmt: skip
    config._experts_implementation = "batched_mm"  # the default asks for bfloat16
    torch.manual_seed(0)
    return randomise(getattr(transformers, f"{name}ForCausalLM")(config).double())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "OLMo-2, grouped": lambda: _transformer("Olmo2", num_key_value_heads=2),
    "OLMo-2": lambda: _transformer("Olmo2", num_key_value_heads=4),
    "OLMo-2, one reader": lambda: _transformer("Olmo2", num_key_value_heads=1),
    "OLMoE": lambda: _transformer(
        "Olmoe", num_key_value_heads=4, num_experts=3, num_experts_per_tok=2),
    "OLMoE, grouped": lambda: _transformer(
        "Olmoe", num_key_value_heads=2, num_experts=3, num_experts_per_tok=2),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_what_was_derived_can_act(name: str) -> None:
    model = MODELS[name]()
    inputs = {"input_ids": torch.tensor([[1, 4, 9, 2, 7], [3, 3, 8, 5, 10]])}
    symmetry = find_symmetry(model, inputs, check=False)
    found = errors(model, symmetry, inputs)
    assert found.pop("a wrong move") > 1e-3
    assert max(found.values()) < 1e-9, found
    assert symmetry.spaces
    moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(0)), model.state_dict())
    assert moved.keys() == model.state_dict().keys()


def test_integers_and_complex_numbers_are_not_missing_from_a_velocity() -> None:
    buffers = {"n": _COUNTS, "z": torch.randn(6, dtype=torch.complex128)}
    model = M(lambda s, h: torch.relu((h @ s.w.T) * s.n * s.z.abs()) @ s.u, buffers,
              w=(6, 4), u=(6, 2))  # fmt: skip
    symmetry = derived(model, x(7, 4))
    state = model.state_dict()
    values = {
        name: space.group.random_algebra(
            torch.Generator().manual_seed(0), batch_of(symmetry, space), torch.float64)
        for name, space in symmetry.spaces.items() if space.group.dimension
    }  # fmt: skip
    velocity = infinitesimal(symmetry, AlgebraElement(symmetry, values, {}), state)
    assert {"w", "u"} <= velocity.keys() and "n" not in velocity  # counts have no velocity
    assert float(velocity["w"].abs().max()) > 0.1


# -- 9. products and inverses ---------------------------------------------------------------------

WORDS: dict[str, tuple[Function, Shapes]] = {
    "a gain between": (lambda s, h: torch.relu(h @ (s.U * s.S) @ s.V) @ s.u,
                       {"U": (4, 3), "S": (3,), "V": (3, 6), "u": (6, 2)}),
    "a gain on the other side": (lambda s, h: torch.relu(h @ s.U @ (s.S[:, None] * s.V)) @ s.u,
                                 {"U": (4, 3), "S": (3,), "V": (3, 6), "u": (6, 2)}),
    "two gains": (lambda s, h: torch.relu((h @ s.U * s.S * s.T) @ s.V) @ s.u,
                  {"U": (4, 3), "S": (3,), "T": (3,), "V": (3, 6), "u": (6, 2)}),
    "no gain": (lambda s, h: torch.relu(h @ s.U @ s.V) @ s.u,
                {"U": (4, 3), "V": (3, 6), "u": (6, 2)}),
    "biases": (lambda s, h: torch.relu(((h @ s.U + s.c) * s.S) @ s.V + s.b) @ s.u,
               {"U": (4, 3), "c": (3,), "S": (3,), "V": (3, 6), "b": (6,), "u": (6, 2)}),
    "a norm without bias": (
        lambda s, h: torch.tanh(F.layer_norm(h @ s.U, (5,), s.S, s.T) @ s.V + s.b) @ s.u,
        {"U": (4, 5), "S": (5,), "T": (5,), "V": (5, 6), "b": (6,), "u": (6, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_products_and_inverses_are_what_they_say(name: str) -> None:
    function, shapes = WORDS[name]
    model = M(function, **shapes)
    inputs = (x(7, 4),)
    symmetry = derived(model, *inputs)
    state = model.state_dict()
    draw = torch.Generator().manual_seed(5)
    g, h = symmetry.sample(draw, 0.5), symmetry.sample(draw, 0.5)

    def far(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
        return max(float((a[n] - b[n]).abs().max() / b[n].abs().max()) for n in state)

    one_by_one = act(symmetry, g, act(symmetry, h, state))
    assert far(act(symmetry, g @ h, state), one_by_one) < 1e-10
    assert far(act(symmetry, ~g, act(symmetry, g, state)), state) < 1e-9
    assert far(act(symmetry, g, act(symmetry, ~g, state)), state) < 1e-9
    assert far(act(symmetry, ~~g, state), act(symmetry, g, state)) < 1e-9
    scaled = to_scale(~g, state)
    for element in (g @ h, ~g, ~(g @ h), ~~g, scaled, ~scaled):
        assert change(model, inputs, act(symmetry, element, state)) < 1e-9
    assert far(one_by_one, state) > 1e-3


# -- 10. a query that sees no key -----------------------------------------------------------------


class Masked(nn.Module):
    """Two heads under a mask that is data, a buffer or an input."""

    def __init__(self, mask: Tensor, home: str):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(4, 6)
        self.o = nn.Linear(6, 3)
        self.choose = {"data": lambda given: mask, "input": lambda given: given}.get(home)
        if self.choose is None:
            self.register_buffer("mask", mask)

    def forward(self, h: Tensor, given: Tensor | None = None) -> Tensor:
        mask = self.mask if self.choose is None else self.choose(given)
        q, k, v = (f(h).view(2, 5, 2, 3).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).reshape(2, 5, 6))


_SEEN = torch.ones(5, 5).tril().bool()
_UNSEEN = torch.ones(5, 5).tril(-1).bool()  # the first query sees nothing


def _added(mask: Tensor) -> Tensor:
    return torch.zeros(5, 5).double().masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize(
    ("kind", "home"),
    [(bool, "data"), (bool, "buffer"), (bool, "input"), (float, "data"), (float, "input")],
)
def test_weights_that_may_sum_to_zero_carry_no_bias(kind: type, home: str) -> None:
    mask = _UNSEEN if kind is bool else _added(_UNSEEN)
    given = (mask,) if home == "input" else ()
    symmetry = derived(Masked(mask, home).double(), x(2, 5, 4), *given)
    assert "v.bias" not in sliding(symmetry)


@pytest.mark.parametrize("kind", [bool, float])
@pytest.mark.parametrize("home", ["data", "input"])
def test_weights_that_sum_to_one_carry_a_bias(kind: type, home: str) -> None:
    mask = _SEEN if kind is bool else _added(_SEEN)
    given = (mask,) if home == "input" else ()
    symmetry = derived(Masked(mask, home).double(), x(2, 5, 4), *given)
    assert {"v.bias", "o.bias"} <= sliding(symmetry)


# -- 10. outputs that read otherwise than was written ---------------------------------------------

SLICES: dict[str, tuple[Function, Shapes]] = {
    "one of interleaved copies": (
        lambda s, h: (torch.stack([h @ s.a.T] * 2, -1).flatten(-2) + s.b)[..., 3:4],
        {"a": (3, 3), "b": (6,)}),
    "some of interleaved copies": (
        lambda s, h: ((h @ s.a.T).repeat_interleave(2, -1) * s.b)[..., 1:3],
        {"a": (3, 3), "b": (6,)}),
    "a form of a sum of squares": (
        lambda s, h: ((z := h @ s.a.T).unflatten(-1, (2, 3)).square().sum(-1).relu() @ s.u,
                      z[:, 2]),
        {"a": (6, 3), "u": (2, 2)}),
    "an integer index": (
        lambda s, h: (torch.stack([h @ s.a.T] * 2, -1).flatten(-2) + s.b)[..., 1],
        {"a": (3, 3), "b": (6,)}),
}  # fmt: skip


# -- 11. windows that go by the name of the whole -------------------------------------------------

WINDOWS: dict[str, tuple[Function, Shapes]] = {
    "softmax of h h₀": (lambda s, h: torch.softmax((z := h @ s.a.T + s.b) * z[..., :1], -1),
                        {"a": (2, 3), "b": (2,)}),
    "norm of h h₁": (lambda s, h: F.layer_norm((z := h @ s.a.T + s.b) * z[..., 1:2], (3,)),
                     {"a": (3, 3), "b": (3,)}),
    "centred h h₀": (
        lambda s, h: (y := (z := h @ s.a.T + s.b) * z[:, 0, None]) - y.mean(-1, keepdim=True),
        {"a": (3, 3), "b": (3,)}),
    "h₀ less h₁": (
        lambda s, h: torch.relu(((z := h @ s.a.T + s.b) * z[..., :1] - z * z[..., 1:2]) @ s.u),
        {"a": (3, 3), "b": (3,), "u": (3, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*SLICES, *WINDOWS])
def test_a_part_is_not_the_whole(name: str) -> None:
    function, shapes = (SLICES | WINDOWS)[name]
    symmetry = derived(M(function, **shapes), x(7, 3))
    if name in WINDOWS:
        assert not sliding(symmetry) & {"b"}
