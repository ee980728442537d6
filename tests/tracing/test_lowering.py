"""The primitives compute what the model computes, and what they claim of it holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, seed, settings
from torch import nn

from paramsym import Primitive, assert_lowering, rule
from paramsym.checking.claims import check_claims
from paramsym.lowering import registry
from paramsym.lowering.builder import Builder
from paramsym.primitives import Choice, Map, Mask, Mix, Normalize, Reduce, Softmax
from paramsym.primitives import index as ix
from paramsym.recording.graph import Graph
from tests.tracing import zoo
from tests.tracing.operators import ROWS, M
from tests.tracing.programs import draw
from tests.tracing.random_networks import RandomNetwork
from tests.tracing.test_random_networks import networks

RECURRENT = ("LSTM", "GRU", "RNN", "RNN relu")  # one step stands for all
TORN = 0.01  # of the primitives of random programs: those of writes that the record gives up


def lowered(model: nn.Module, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return assert_lowering(model, inputs)


@pytest.mark.parametrize("name", zoo.ZOO, ids=zoo.names(list(zoo.ZOO)))
def test_the_primitives_of_the_zoo_compute_what_it_computes(name: str) -> None:
    found = lowered(*zoo.build(name))
    assert found.computed > 0
    assert bool(found.not_computed) == (name in RECURRENT)
    assert bool(found.outputs) == (name not in RECURRENT)


@pytest.mark.parametrize("name", ROWS)
def test_the_rule_of_an_operator_computes_what_it_computes(name: str) -> None:
    torch.manual_seed(0)
    found = lowered(*ROWS[name]())
    assert found.outputs
    recurrent = any(what.startswith("a tie at") for what in found.not_computed)
    assert not found.not_computed or recurrent


@seed(20261121)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_networks_compute_what_they_compute(network: RandomNetwork) -> None:
    found = lowered(network, (network.inputs.clone(),))
    recurrent = any(name == "recurrent" for name, *_ in network.taken)
    assert recurrent or not found.not_computed, network.taken


def test_random_programs_compute_what_they_compute() -> None:
    computed, missing = 0, 0
    for number in range(30):
        program = draw(number)
        inputs = program.draw_inputs(torch.Generator().manual_seed(0))
        found = lowered(program.build(0), inputs)
        computed, missing = computed + found.computed, missing + len(found.not_computed)
    assert computed > 250 and missing <= TORN * computed


# -- what was lost, one by one ---------------------------------------------------------------------

X = (torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64),)
CASES: dict[str, Callable] = {
    "the scale of attention": lambda s, x: F.scaled_dot_product_attention(x, x @ s.w, x, scale=3.0),
    "a causal mask": lambda s, x: F.scaled_dot_product_attention(x @ s.w, x, x, is_causal=True),
    "a mask of booleans": lambda s, x: F.scaled_dot_product_attention(
        x @ s.w, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril()),
    "a learned slope": lambda s, x: F.prelu(x @ s.w, s.w[0]),
    "the norm with p = 1": lambda s, x: (x @ s.w).norm(p=1, dim=-1),
    "the norm with p = 3": lambda s, x: (x @ s.w).norm(p=3, dim=-1),
    "the largest entry as a norm": lambda s, x: (x @ s.w).norm(p=float("inf"), dim=-1),
    "an unbiased variance": lambda s, x: (x @ s.w).var(0),
    "a biased deviation": lambda s, x: (x @ s.w).std(0, correction=0),
    "a mean of multiples of squares": lambda s, x: (3 * (x @ s.w).square()).mean(-1),
    "a number over an entry": lambda s, x: 3 / (x @ s.w),
    "the smaller of two": lambda s, x: torch.minimum(x @ s.w, x),
    "the smaller of an entry and zero": lambda s, x: torch.minimum(x @ s.w, torch.zeros(5, 6)),
    "nothing masked": lambda s, x: (x @ s.w).masked_fill(torch.zeros(5, 6, dtype=torch.bool), 0),
    "numbers chosen by entries": lambda s, x: torch.where(x @ s.w > 0, 2.0, -1.0) * (x @ s.w),
    "one of two, by data": lambda s, x: torch.where(x > 0, x @ s.w, -(x @ s.w).exp()),
    "a filled margin": lambda s, x: F.pad(x @ s.w, (1, 2), value=0.7),
    "a least norm": lambda s, x: F.normalize(x @ s.w, dim=-1, eps=2.0),
    "cosines": lambda s, x: F.cosine_similarity(x @ s.w, x, dim=-1),
    "softmin": lambda s, x: F.softmin(x @ s.w, dim=-1),
    "an approximate GELU": lambda s, x: F.gelu(x @ s.w, approximate="tanh"),
    "the sum of exponentials of nothing": lambda s, x: (x @ s.w)[:, :1] * torch.zeros_like(
        x @ s.w).logsumexp(-1, keepdim=True),
    "neighbours in channels": lambda s, x: F.local_response_norm((x @ s.w)[..., None], 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_rule_has_to_keep(name: str) -> None:
    found = lowered(M(CASES[name], w=(6, 6)).double(), X)
    assert found.outputs == 1 and not found.not_computed


# -- the check can fail ----------------------------------------------------------------------------


@pytest.fixture
def rules():
    before = dict(registry.RULES)
    yield registry.RULES
    registry.RULES.clear()
    registry.RULES.update(before)


def test_a_wrong_function_is_named_with_its_place(rules) -> None:
    @rule("tanh")
    def wrong(build, call):
        (x,) = build.arguments(call, "input|self")
        return build.unary(x, None, "odd", name="sin")

    model = M(lambda s, x: torch.tanh(x @ s.w) @ s.w, w=(6, 6)).double()
    with pytest.raises(
        AssertionError, match=r"sin, which stands for tanh, is off by .*1.0e-10"
    ) as e:
        assert_lowering(model, X)
    assert "test_lowering.py" in str(e.value) and "Correct the rule" in str(e.value)


def test_a_function_that_raises_is_named(rules) -> None:
    @rule("tanh")
    def wrong(build, call):
        (x,) = build.arguments(call, "input|self")
        return build.unary(x, name="mine", compute=lambda t: t.nowhere)

    with pytest.raises(AssertionError, match="mine, which stands for tanh, raises AttributeError"):
        assert_lowering(M(lambda s, x: torch.tanh(x @ s.w), w=(6, 6)).double(), X)


def test_a_misread_view_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = M(lambda s, x: F.glu(x @ s.w), w=(6, 6)).double()
    assert_lowering(model, X)
    right = Builder.narrow
    monkeypatch.setattr(
        Builder, "narrow", lambda build, x, dim, start, n: right(build, x, dim, 3 - start, n)
    )
    with pytest.raises(AssertionError, match="a product, which stands for glu, is off"):
        assert_lowering(model, X)


def test_a_wrong_claim_beside_the_right_function_is_named(rules) -> None:
    @rule("tanh")
    def wrong(build, call):
        (x,) = build.arguments(call, "input|self")
        return build.unary(x, 1, "odd", name="tanh")

    with pytest.raises(AssertionError, match=r"claims f\(1.7 x\) = 1.7\^1 f\(x\)"):
        assert_lowering(M(lambda s, x: torch.tanh(x @ s.w), w=(6, 6)).double(), X)


def test_a_recurrent_layer_is_listed_and_the_rest_goes_on() -> None:
    found = lowered(*ROWS["lstm"]())
    assert found.outputs == 1 and any(what.startswith("a tie at ") for what in found.not_computed)


# -- claims, one by one: a right one and a wrong one -----------------------------------------------


def primitive(kind: type[Primitive], compute=None, shape=(4, 6), out=None, **facts) -> Primitive:
    build = Builder(Graph())
    x = build.new(shape, [ix.leaf(n) for n in shape])
    if kind is Mix:  # as the builder does
        ix.freeze(x.axes[facts["dims"][0]], "it is mixed")
    made = build.new(shape if out is None else out, x.axes if out is None else None)
    if out is not None:
        made.nodes = [ix.leaf(n) for n in out]
    return kind(out=made, inputs=(x,), compute=compute, **facts)


CLAIMS = {
    "degree": (primitive(Map, torch.square, degree=Fraction(2)), "1.7^1",
               primitive(Map, torch.square, degree=Fraction(1))),
    "odd": (primitive(Map, torch.tanh, sign="odd"), "odd",
            primitive(Map, torch.square, sign="odd")),
    "even": (primitive(Map, torch.cos, sign="even"), "even",
             primitive(Map, torch.sin, sign="even")),
    "shift": (primitive(Map, lambda t: t + 2, shift=2.0), "x + 2",
              primitive(Map, lambda t: t + 3, shift=2.0)),
    "linear": (primitive(Mix, lambda t: t.cumsum(0), dims=(0,)), "f(x + y)",
               primitive(Mix, lambda t: t.square(), dims=(0,))),
    "mean": (primitive(Mix, lambda t: t.flip(0), dims=(0,), how="mean"), "mean",
             primitive(Mix, lambda t: t.cumsum(0), dims=(0,), how="mean")),
    "homogeneous": (primitive(Reduce, lambda t: t.amax(1), out=(4,), dims=(1,), how="max"),
                    "1.7 f(x)",
                    primitive(Reduce, lambda t: t.exp().sum(1), out=(4,), dims=(1,), how="max")),
    "symmetric": (primitive(Reduce, lambda t: t.exp().prod(1), out=(4,), dims=(1,), how="other"),
                  "symmetric",
                  primitive(Reduce, lambda t: t[:, 0], out=(4,), dims=(1,), how="other")),
    "norm": (primitive(Reduce, out=(4,), dims=(1,), how="norm2"), "reflections",
             primitive(Reduce, lambda t: t.abs().sum(1), out=(4,), dims=(1,), how="norm2")),
    "softmax": (primitive(Softmax, dim=1), "common shift",
                primitive(Softmax, torch.sigmoid, dim=1)),
    "centred": (primitive(Normalize, dims=(1,), center=True), "common shift",
                primitive(Normalize, lambda t: t / t.norm(dim=1, keepdim=True), dims=(1,),
                          center=True)),
    "normed": (primitive(Normalize, dims=(1,)), "reflections",
               primitive(Normalize, lambda t: t / t.abs().amax(1, True), dims=(1,))),
    "choice": (primitive(Choice, torch.relu), "1.7 f(x)", primitive(Choice, torch.sin)),
    "order": (primitive(Map, torch.exp), "no order",
              primitive(Map, lambda t: t * torch.arange(6))),
    "apart": (primitive(Softmax, dim=1), "do not meet",
              primitive(Map, lambda t: t - t.mean(1, True))),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_right_claim_passes_and_a_wrong_one_does_not(name: str) -> None:
    right, words, wrong = CLAIMS[name]
    assert check_claims(right) is None
    found = check_claims(wrong)
    assert found is not None and words in found


def test_a_fill_that_a_softmax_shows_is_not_hidden() -> None:
    axes = ((0, 1), (0, 1), (0, 1))
    build = Builder(Graph())
    x, mask = (build.new((4, 6), [ix.leaf(n) for n in (4, 6)]) for _ in range(2))
    numbers = torch.randn(4, 6), torch.ones(4, 6, dtype=torch.bool)

    def masked(fill: float) -> Mask:
        return Mask(
            out=build.new((4, 6), x.axes), inputs=(x, mask), axes=axes, hides=True, fill=fill
        )

    assert check_claims(masked(-1e4), *numbers) is None
    assert "softmax hides" in (check_claims(masked(-1.0), *numbers) or "")
