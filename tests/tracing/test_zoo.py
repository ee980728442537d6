"""Every architecture that the library promises to cover, at tiny sizes and random weights."""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.structure.axes import spaces_of
from tests.tracing.zoo import TRANSFORMERS, ZOO, build, derived, errors, randomise

NORMS = ("BERT", "RoBERTa", "DistilBERT", "ViT", "ConvNeXt")  # their norms have ε = 1e-12


@pytest.mark.parametrize("name", ZOO)
def test_the_symmetry_is_exact_and_nothing_is_unknown(name: str) -> None:
    model, inputs = build(name)
    symmetry = derived(name)
    assert not symmetry.unknown
    found = errors(model, symmetry, inputs, each=False)
    exact = all(space.exact for space in symmetry.spaces.values())
    assert found["everything"] <= (1e-12 if exact else 1e-9)
    assert found["a wrong move"] >= 1e-3
    assert exact or name in NORMS


@pytest.mark.parametrize("name", ZOO)
def test_it_holds_in_single_precision(name: str) -> None:
    model, inputs = build(name)
    found = errors(model, derived(name), inputs, torch.float32, strength=0.2, each=False)
    assert found["everything"] <= 1e-5


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "T5", "Qwen3", "convolutions", "GRU"])
def test_each_space_and_shift_is_a_symmetry_by_itself(name: str) -> None:
    model, inputs = build(name)
    found = errors(model, derived(name), inputs)
    control = found.pop("a wrong move")
    assert max(found.values()) <= 1e-12 < 1e-3 <= control, max(found, key=found.__getitem__)


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_moves_or_has_a_reason(name: str) -> None:
    model, _ = build(name)
    symmetry = derived(name)
    shifted = {n for shift in symmetry.shifts for n in shift.parameters}
    for parameter in (n for n, _ in model.named_parameters(remove_duplicate=False)):
        parameter = symmetry.ties.get(parameter, parameter)
        axes = symmetry.signature[parameter]
        if any(True for axis in axes for _ in spaces_of(axis)):
            continue
        if parameter in shifted or parameter in symmetry.dead:
            continue
        shape = symmetry.shape(parameter)
        reasons = symmetry.reasons.get(parameter, ())
        if all(n == 1 for n in shape):
            continue  # a number: there is nothing to exchange
        assert any(reasons), f"{parameter} {shape} stands still for no reason"


@pytest.mark.parametrize("name", ["Llama", "T5", "ResNet", "Transformer", "LSTM", "convolutions"])
def test_two_runs_say_the_same(name: str) -> None:
    model, inputs = build(name)
    first, second = find_symmetry(model, inputs), find_symmetry(model, inputs)
    assert str(first) == str(second)
    assert first == second


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "ResNet", "BERT", "LSTM"])
def test_the_model_comes_back_as_it_was(name: str) -> None:
    model, inputs = build(name)
    model.train()
    next(iter(model.children()), model).eval()
    modes = [module.training for module in model.modules()]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    identities = {n: id(p) for n, p in model.named_parameters()}
    fast = torch.backends.mha.get_fastpath_enabled()
    find_symmetry(model, inputs)
    assert [module.training for module in model.modules()] == modes
    assert {n: id(p) for n, p in model.named_parameters()} == identities
    assert torch.backends.mha.get_fastpath_enabled() == fast
    for n, t in model.state_dict().items():
        assert t.dtype == before[n].dtype and torch.equal(t, before[n])
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", [*TRANSFORMERS, "convolutions", "LSTM", "Transformer"])
def test_a_model_without_weights_has_the_same_symmetry(name: str) -> None:
    model, inputs = build(name)
    expected = derived(name)
    empty = copy.deepcopy(model).to("meta")
    if hasattr(empty, "tie_weights"):
        empty.tie_weights()  # moving a model to the meta device unties it
    found = find_symmetry(empty, inputs)
    assert found.signature == expected.signature
    assert found.spaces == expected.spaces


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_models_are_traced(dtype: torch.dtype) -> None:
    model, inputs = build("Llama")
    expected = str(derived("Llama"))
    model = model.to(dtype)
    assert str(find_symmetry(model, inputs)) == expected
    assert all(p.dtype == dtype for p in model.parameters())


class _BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5, eps=1e-12)
        self.last = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def test_batch_statistics_absorb_scales_and_shifts_in_training_mode() -> None:
    torch.manual_seed(0)
    model, inputs = _BatchNormed(), (torch.randn(7, 4),)
    symmetry = find_symmetry(model, inputs, training=True)
    assert model.training
    free = {t.target.parameter for shift in symmetry.shifts for t in shift.terms}
    assert "first.bias" in free  # the mean of the batch takes it away
    first = symmetry.signature["first.weight"][0]
    gain = symmetry.signature["norm.weight"][0]
    assert set(spaces_of(first)) - set(spaces_of(gain))  # a scale that ends at the norm
    found = errors(model, symmetry, inputs, training=True)
    assert max(v for k, v in found.items() if k != "a wrong move") < 1e-9 < 1e-3 < found[
        "a wrong move"
    ]  # fmt: skip


# -- printed signatures --------------------------------------------------------------------------


def _sequential(*layers: nn.Module, inputs: torch.Tensor):
    return lambda: (nn.Sequential(*layers), (inputs,))


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)
        self.down = nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T @ self.weight


class _Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 5), nn.Linear(4, 3)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], 1))


class _Heads(nn.Module):
    """Attention with two query heads for one key head; sizes tell the axes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(5, 6, bias=False), nn.Linear(5, 3, bias=False)
        self.v, self.o = nn.Linear(5, 3, bias=False), nn.Linear(6, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (2, 3)).transpose(1, 2)
        k, v = (layer(x).unflatten(-1, (1, 3)).transpose(1, 2) for layer in (self.k, self.v))
        k, v = k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).flatten(2))


class _Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(y * y)


_VECTOR, _IMAGE = torch.zeros(2, 4), torch.zeros(2, 2, 6, 6)

PICO = {
    "relu": (
        _sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), inputs=_VECTOR),
        """
        0.weight  mlp, 4
        0.bias    mlp
        2.weight  3, mlp*
        2.bias    3

        mlp  Monomial(6)
        """,
    ),
    "tanh": (
        _sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), inputs=_VECTOR),
        """
        0.weight  mlp, 4
        0.bias    mlp
        2.weight  3, mlp
        2.bias    3

        mlp  SignedPermutation(6)
        """,
    ),
    "gelu": (
        _sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3), inputs=_VECTOR),
        """
        0.weight  mlp, 4
        0.bias    mlp
        2.weight  3, mlp
        2.bias    3

        mlp  Permutation(6)
        """,
    ),
    "squares": (
        lambda: (_Square(), (_VECTOR,)),
        """
        first.weight  (mlp mlp.scale^1/2⊙mlp.scale.2), 4
        last.weight   3, (mlp mlp.scale*)

        mlp          Permutation(6)
        mlp.scale    PositiveScaling(6)  over mlp
        mlp.scale.2  Signs(6)            over mlp
        """,
    ),
    "flatten": (
        _sequential(
            nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3),
            inputs=_IMAGE,
        ),
        """
        0.weight  channels, 2, 3, 3
        0.bias    channels
        4.weight  3, (channels 4)*
        4.bias    3

        channels  Monomial(5)
        """,
    ),
    "batch norm": (
        _sequential(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 3, 1), inputs=_IMAGE
        ),
        """
        0.weight               (channels channels.scale), 2, 3, 3
        0.bias                 (channels channels.scale)
        1.weight               (channels channels.scale*⊙channels.scale.2)
        1.bias                 (channels channels.scale.2)
        3.weight               3, (channels channels.scale.2*), 1, 1
        3.bias                 3
        1.running_mean         (channels channels.scale)
        1.running_var          channels
        1.num_batches_tracked

        channels          Permutation(5)
        channels.scale    Scaling(5)          over channels  translates
        channels.scale.2  PositiveScaling(5)  over channels
        """,
    ),
    "depthwise": (
        _sequential(
            nn.Conv2d(2, 5, 1), nn.ReLU(), nn.Conv2d(5, 5, 3, groups=5), nn.ReLU(),
            nn.Conv2d(5, 3, 1), inputs=_IMAGE,
        ),
        """
        0.weight  (channels channels.scale.2), 2, 1, 1
        0.bias    (channels channels.scale.2)
        2.weight  (channels channels.scale⊙channels.scale.2*), 1, 3, 3
        2.bias    (channels channels.scale)
        4.weight  3, (channels channels.scale*), 1, 1
        4.bias    3

        channels          Permutation(5)
        channels.scale    PositiveScaling(5)  over channels
        channels.scale.2  PositiveScaling(5)  over channels
        """,
    ),
    "layer norm": (
        _sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3), inputs=_VECTOR),
        """
        0.weight  mlp, 4
        0.bias    mlp
        1.weight  mlp.scale
        1.bias    mlp[1.weight]⊙mlp.scale
        2.weight  3, mlp[1.weight]*⊙mlp.scale*
        2.bias    3

        mlp        OrthogonalFixingOnes(5)  1 direction unread
        mlp.scale  Scaling(5)               translates, 2 directions unread, 1 direction absent
        """,
    ),
    "gated": (
        lambda: (_Gated(), (_VECTOR,)),
        """
        gate.weight  mlp, 4
        up.weight    (mlp mlp.scale), 4
        down.weight  3, (mlp mlp.scale*)

        mlp        Permutation(6)
        mlp.scale  Scaling(6)      over mlp
        """,
    ),
    "tied": (
        lambda: (_Tied(), (torch.zeros(2, 3),)),
        """
        weight  mlp, 3

        mlp  Orthogonal(5)
        """,
    ),
    "concatenated": (
        lambda: (_Concatenated(), (_VECTOR,)),
        """
        left.weight   mlp, 4
        left.bias     mlp
        right.weight  mlp.2, 4
        right.bias    mlp.2
        last.weight   2, mlp* + mlp.2
        last.bias     2

        mlp    Monomial(5)
        mlp.2  SignedPermutation(3)
        """,
    ),
    "heads": (
        lambda: (_Heads(), (torch.zeros(2, 7, 5),)),
        """
        q.weight  (attn.head attn.qk), 5
        k.weight  attn.qk*, 5
        v.weight  attn.vo, 5
        o.weight  5, (attn.head attn.vo*)

        attn.head  Permutation(2)
        attn.qk    GeneralLinear(3)
        attn.vo    GeneralLinear(3)
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICO)
def test_the_printed_signature(name: str) -> None:
    make, expected = PICO[name]
    model, inputs = make()
    lines = [line.rstrip() for line in str(find_symmetry(model.eval(), inputs)).splitlines()]
    assert lines == textwrap.dedent(expected).strip().splitlines()
    assert errors(randomise(model), find_symmetry(model, inputs), inputs)["everything"] < 1e-12
