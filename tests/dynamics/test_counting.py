"""How many laws gradient flow conserves: two bounds that must meet, and what may not pass."""

from __future__ import annotations

import random
import time
from itertools import product as pairs

import numpy as np
import pytest
import sympy
import torch
from torch import Tensor, nn

from paramsym import conserved_quantities, count_conservation_laws, find_symmetry
from paramsym.checking.jacobian import NotFinite
from paramsym.dynamics.forward import WrongDerivative, _check, bracket
from paramsym.dynamics.growth import NotConserved
from paramsym.dynamics.layered import ACTIVATIONS, Layered
from paramsym.dynamics.modular import PRIME, ModularSpan, drawn, product, rank
from paramsym.dynamics.span import FloatSpan
from paramsym.dynamics.written_out import Patterns, differentiable


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Apply(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


# ------------------------------------------------------------------ linear algebra mod p


def test_rank_over_the_prime_field_is_that_of_rationals() -> None:
    generator = np.random.default_rng(0)
    for rows, columns, known in [(30, 40, 7), (200, 90, 90), (90, 300, 80), (5, 5, 0)]:
        left, right = drawn(generator, rows, known), drawn(generator, known, columns)
        assert rank(product(left, right)) == known


def test_products_are_exact_whatever_their_length() -> None:
    generator = np.random.default_rng(0)
    a, b = drawn(generator, 3, 2000), drawn(generator, 2000, 3)
    exact = (a.astype(object) @ b.astype(object)) % PRIME
    assert ((product(a, b).astype(object) - exact) % PRIME == 0).all()
    assert np.abs(product(a, b)).max() <= PRIME / 2


def test_span_grows_by_what_is_new_alone() -> None:
    generator = np.random.default_rng(0)
    rows, span = drawn(generator, 50, 70), ModularSpan(70)
    assert [span.add(rows[:30]), span.add(rows[10:]), span.add(rows)] == [30, 20, 0]
    sparse = np.zeros((3, 70))
    sparse[[0, 1, 2], [69, 0, 69]] = 1  # pivots outside of the columns searched first
    assert ModularSpan(70).add(sparse) == 2


def test_rounding_in_what_counted_before_is_not_counted_again() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    span = FloatSpan(9)
    faint = plane[:1] + 1e-8 * plane[1:]
    span.add(torch.cat([plane[:1], faint]), 1e-16)
    assert span.rank == 2
    span.add(plane, 1e-16)  # the second direction was known to eight digits
    assert span.rank == 2 and span.clear


# ------------------------------------------------------------------ layered networks


@pytest.mark.parametrize(
    ("widths", "activation", "bias", "count"),
    [
        ([3, 4, 2], "linear", True, 10),
        ([16, 16, 16, 16], "linear", False, 272),
        ([9, 3, 2, 6], "linear", False, 9),  # single paths stall in its bottleneck
        ([2, 9, 3], "linear", False, 35),  # 45 symmetric matrices; 10 of them move nothing
        ([4, 5, 6, 3], "relu", True, 11),
        ([4, 5, 3], "leaky_relu", False, 5),
        ([4, 5, 3], "square", True, 5),
        ([3, 4, 5, 2], "cube", False, 9),
        ([3, 2], "linear", True, 0),
    ],
)
def test_bounds_of_layered_networks_meet(widths, activation, bias, count) -> None:
    found = count_conservation_laws(widths, activation, bias=bias)
    assert (found.lower, found.upper, found.certain) == (count, count, True)
    assert found.count == count and not found.reasons


def test_bounds_of_random_networks_meet() -> None:
    draw, start = random.Random(0), time.process_time()
    for seed in range(100):
        widths = [draw.randint(2, 9) for _ in range(draw.randint(3, 5))]
        activation, bias = draw.choice(["linear", "relu"]), draw.random() < 0.5
        found = count_conservation_laws(widths, activation, bias=bias, seed=seed)
        assert found.count is not None, (widths, activation, bias, str(found))
    assert time.process_time() - start < 100 * 0.15


def test_one_path_has_more_laws_than_symmetries() -> None:
    """A network with one input and one output is one field, and all else is conserved."""
    found = count_conservation_laws([1, 7, 3, 1])
    assert (found.lower, found.upper, found.count) == (28, 30, None)
    assert "28 to 30 conservation laws of 31 parameters" in str(found)
    assert "neither moved by brackets" in found.reasons[0]


def closure(fields: list[sympy.Matrix], theta: list[sympy.Symbol], levels: int) -> int:
    """The rank at a rational point of all brackets, by symbolic derivatives."""
    point = {t: sympy.Rational(3 * k * k + 5 * k + 7, 11 + k) for k, t in enumerate(theta)}
    level, every = fields, list(fields)
    for _ in range(levels - 1):
        level = [
            (y.jacobian(theta) * x - x.jacobian(theta) * y).expand()
            for x, y in pairs(fields, level)
        ]
        every += level
    return sympy.Matrix.hstack(*[f.subs(point) for f in every]).rank()


@pytest.mark.parametrize(
    ("widths", "power", "bias", "levels"),
    [((2, 1, 2), 1, False, 2), ((1, 2, 1), 1, True, 3), ((1, 2, 1), 2, True, 2)],
)
def test_upper_bound_is_that_of_symbolic_brackets(widths, power, bias, levels) -> None:
    n, h, m = widths
    w, v = (
        sympy.Matrix(h, n, sympy.symbols(f"w:{h * n}")),
        sympy.Matrix(m, h, sympy.symbols(f"v:{m * h}")),
    )
    b, c = sympy.symbols(f"b:{h}"), sympy.symbols(f"c:{m}")
    theta = [*w, *v, *(b if bias else ()), *(c if bias else ())]
    x = sympy.symbols(f"x:{n}")
    hidden = w * sympy.Matrix(x) + (sympy.Matrix(b) if bias else sympy.zeros(h, 1))
    value = v * hidden.applyfunc(lambda z: z**power) + (
        sympy.Matrix(c) if bias else sympy.zeros(m, 1)
    )
    fields = []
    for output in value:
        for coefficient in sympy.Poly(sympy.expand(output), *x).coeffs():
            fields.append(sympy.Matrix([sympy.diff(coefficient, t) for t in theta]))
    activation = {1: "linear", 2: "square"}[power]
    found = count_conservation_laws(widths, activation, bias=bias)
    assert closure(fields, theta, levels) == len(theta) - found.upper


def test_a_wrong_law_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Layered.laws
    monkeypatch.setattr(Layered, "laws", lambda self: np.abs(right(self)))
    with pytest.raises(NotConserved, match="moves what the symmetry is to conserve"):
        count_conservation_laws([3, 4, 2], "relu")


def test_too_deep_for_the_budget_is_said() -> None:
    found = count_conservation_laws([3, 4, 2], bias=True, deepest=2)
    assert (found.lower, found.upper) == (10, 11)
    assert "still grow" in found.reasons[0]


# ------------------------------------------------------------------ models


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Linear(3, 4), nn.Linear(4, 5)
        self.down, self.last = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.down(torch.relu(self.up(x))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) @ self.first.weight


class Frozen(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        self[4].requires_grad_(False)


class Shifted(nn.Module):
    """What it adds depends on the input, so that no scale can be taken out of the ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x) + x.square().sum(-1, keepdim=True)))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), 3, 10),
    "ReLU": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)
        ), 3, 9,
    ),
    "ReLU6": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU6(), nn.Linear(4, 2)), 3, 0),
    "tanh": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), 3, 0),
    "squared ReLU": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), Apply(lambda x: torch.relu(x) ** 2), nn.Linear(4, 2)
        ), 3, 4,
    ),
    "softmax": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3), nn.Softmax(-1)), 3, 5,
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), 3, 8,
    ),
    "residual": (Residual, 3, 15),  # the stream is linear: 10, and 5 scales
    "tied": (Tied, 3, 0),
    "frozen": (Frozen, 3, 4),
    "shifted": (Shifted, 3, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_bounds_of_models_meet(name: str) -> None:
    build, width, count = MODELS[name]
    found = count_conservation_laws(build(), example_inputs=(normal(5, width),))
    assert (found.lower, found.upper) == (count, count), str(found)
    assert not found.certain and not found.reasons


def test_each_scale_of_a_convolution_before_batch_norm_counts() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ).eval()
    found = count_conservation_laws(model, example_inputs=(normal(5, 2, 4, 4),))
    assert (found.lower, found.upper) == (6, 6)  # 3 before the norm, 3 behind it


def gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=4, n_head=1, n_inner=4, vocab_size=5, n_positions=3, n_layer=1, use_cache=False,
        tie_word_embeddings=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def test_bounds_of_gpt_2_meet() -> None:
    tokens = {"input_ids": torch.arange(21).reshape(7, 3) % 5}
    found = count_conservation_laws(gpt(), example_inputs=tokens)
    assert (found.lower, found.upper, found.parameters) == (57, 57, 196), str(found)


@pytest.mark.parametrize("seed", range(6))
def test_models_and_widths_count_alike(seed: int) -> None:
    draw = random.Random(seed)
    widths, bias = [draw.randint(2, 4) for _ in range(3)], draw.random() < 0.5
    name = ["linear", "relu", "leaky_relu", "square", "cube", "absolute"][seed]
    functions = {
        "linear": lambda x: x, "relu": torch.relu, "leaky_relu": nn.functional.leaky_relu,
        "square": torch.square, "cube": lambda x: x**3, "absolute": torch.abs,
    }  # fmt: skip
    exact = count_conservation_laws(widths, name, bias=bias)
    found = count_conservation_laws(widths, Apply(functions[name]), bias=bias)
    assert found.count == exact.count is not None
    model = nn.Sequential(
        nn.Linear(widths[0], widths[1], bias), Apply(functions[name]),
        nn.Linear(widths[1], widths[2], bias),
    ).double()  # fmt: skip
    symmetry = find_symmetry(model, normal(5, widths[0]).double())
    laws = conserved_quantities(symmetry, model.state_dict())
    assert laws.count(model.state_dict()) == exact.lower


def test_laws_of_whitened_inputs_show_above_those_of_symmetries() -> None:
    """½‖U_k‖² − Σ ∫σ/σ′ of each hidden unit k follows from no symmetry."""
    model = nn.Sequential(nn.Embedding(4, 2), nn.SiLU(), nn.Linear(2, 3))
    found = count_conservation_laws(model, example_inputs=(torch.arange(4),), deepest=4)
    assert (found.lower, found.upper) == (0, 2)


class Root(nn.Module):
    """Finite for positive parameters alone, or for none."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.gain, self.sign = nn.Parameter(torch.ones(3)), sign

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sqrt(self.sign * self.gain)


def test_models_that_take_roots_are_counted_where_these_are_numbers() -> None:
    inputs = (normal(5, 3),)
    assert count_conservation_laws(Root(1.0), example_inputs=inputs).count == 0
    with pytest.raises(NotFinite, match="NaN or infinite"):
        count_conservation_laws(Root(float("nan")), example_inputs=inputs)


class Opaque(torch.autograd.Function):
    """Identity with neither forward mode nor batches."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, slope: Tensor) -> Tensor:
        return slope


def test_models_without_forward_mode_keep_their_interval() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Apply(Opaque.apply), nn.Linear(4, 2))
    symmetry = find_symmetry(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), normal(5, 3)
    )
    found = count_conservation_laws(model, example_inputs=(normal(5, 3),), symmetry=symmetry)
    assert (found.lower, found.upper) == (0, 26)
    assert found.reasons[0].startswith("brackets of 1 fields are left out")


def test_the_symmetry_of_another_model_is_not_passed() -> None:
    inputs = (normal(5, 3),)
    linear = nn.Sequential(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    wrong = find_symmetry(linear, inputs)
    with pytest.raises(NotConserved, match="belongs to another model"):
        count_conservation_laws(model, example_inputs=inputs, symmetry=wrong)


@pytest.mark.parametrize(
    ("arguments", "keywords", "match"),
    [
        (([3],), {}, "at least two positive widths"),
        (([3, 0, 2],), {}, "at least two positive widths"),
        ((3,), {}, "at least two positive widths"),
        ((nn.Linear,), {}, "at least two positive widths"),
        (([3, 4, 2], "tanh"), {}, r"Pass nn\.Tanh\(\)"),
        (([3, 4, 2],), {"training": True}, "belong to a model"),
        ((nn.Linear(3, 2), "relu"), {}, "its own activations"),
        ((nn.Linear(3, 2),), {}, "no example inputs"),
        ((nn.Linear(200, 200),), {"example_inputs": (torch.ones(1, 200),)}, "40,200 parameters"),
        (([200, 200, 200],), {}, "80,000 parameters"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, keywords, match) -> None:
    with pytest.raises(ValueError, match=match):
        count_conservation_laws(*arguments, **keywords)


def test_one_level_says_nothing_about_growth() -> None:
    (reason,) = count_conservation_laws([3, 4, 2], deepest=1).reasons
    assert "grow" not in reason
    assert "still grow" in count_conservation_laws([2, 6, 7, 1], deepest=2).reasons[0]


def test_complex_models_are_counted() -> None:
    """Each unit keeps |w|² + |b|² − ½ |v|²: z|z| is of degree 2, and phases are skew."""

    class Modulus(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Linear(n, m, dtype=torch.cfloat) for n, m in ((3, 4), (4, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.a(x)
            return torch.view_as_real(self.b(z * z.abs()))

    inputs = (torch.randn(6, 3, dtype=torch.cfloat, generator=torch.Generator().manual_seed(0)),)
    assert count_conservation_laws(Modulus(), example_inputs=inputs).count == 4


# ------------------------------------------------------------------ derivatives


NORMS = {
    "layer norm": nn.LayerNorm(4),
    "instance norm": Apply(lambda x: nn.functional.instance_norm(x[None])[0]),
    "batch norm": nn.BatchNorm1d(4, track_running_stats=False),
}
FINE = {
    "group norm": nn.GroupNorm(2, 4), "RMS norm": nn.RMSNorm(4), "GELU": nn.GELU(),
    "attention": Apply(
        lambda x: nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x * 2)
    ),
}  # fmt: skip


def fields_through(layer: nn.Module, seed: int = 0):
    """Three gradient fields of x ↦ layer(x·θ), and a point."""
    generator = torch.Generator().manual_seed(seed)
    layer = layer.double().requires_grad_(False)
    x, theta, *weights = (
        torch.randn(n, generator=generator, dtype=torch.float64) for n in (15, 12, 20, 20, 20)
    )

    def field(weight: Tensor):
        def value(t: Tensor) -> Tensor:
            y = layer(x.reshape(5, 3) @ t.reshape(3, 4)).reshape(-1)
            return (y * weight * torch.sin(y)).sum()

        return torch.func.grad(value)

    return [field(w) for w in weights], theta


@pytest.mark.parametrize("name", [*NORMS, *FINE])
def test_third_derivatives_are_those_of_differences(name: str) -> None:
    with differentiable():
        _check(*fields_through({**NORMS, **FINE}[name]))


@pytest.mark.parametrize("name", NORMS)
def test_third_derivatives_of_kernels_are_wrong(name: str) -> None:
    """The day that PyTorch has them right, norms need no longer be written out."""
    with pytest.raises(WrongDerivative, match="order 3"):
        _check(*fields_through(NORMS[name]))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.LayerNorm((3, 4)), normal(2, 3, 4)),
        (nn.LayerNorm(4, elementwise_affine=False), normal(2, 4)),
        (nn.BatchNorm2d(3), normal(4, 3, 2, 2)),
        (nn.BatchNorm2d(3).eval(), normal(4, 3, 2, 2)),
        (nn.GroupNorm(3, 6), normal(2, 6, 3)),
        (nn.InstanceNorm1d(3, affine=True), normal(2, 3, 5)),
        (nn.InstanceNorm1d(3, track_running_stats=True).eval(), normal(2, 3, 5)),
    ],
)
def test_norms_written_out_are_the_norms(layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        for tensor in layer.parameters():
            tensor.normal_(generator=torch.Generator().manual_seed(1))
    plain = layer(x)
    with differentiable():
        assert torch.allclose(layer(x), plain, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.ReLU(True), nn.LeakyReLU(0.1), nn.ReLU6()])
def test_patterns_make_the_pieces_linear(layer: nn.Module) -> None:
    x, y = 5 * normal(3, 4), normal(3, 4)
    with Patterns() as patterns:
        value = layer(x.clone())
    with Patterns(patterns.pieces):
        assert torch.allclose(layer(x.clone()), value)
    with Patterns(patterns.pieces):
        there = layer(x + y)
    with Patterns(patterns.pieces):
        back = layer(x - y)
    assert torch.allclose(there + back, 2 * value, atol=1e-5)


def test_brackets_are_those_of_matrices() -> None:
    """Of linear fields Aθ: [A, B] = BA − AB."""
    a, b, c = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    theta = normal(4).double()
    fields = [lambda t, m=m: m @ t for m in (a, b, c)]
    inner = c @ b - b @ c
    assert torch.allclose(bracket(fields)(theta), (inner @ a - a @ inner) @ theta)


def test_activations_are_homogeneous() -> None:
    assert {n for n, a in ACTIVATIONS.items() if a.mixes} == {"linear"}
