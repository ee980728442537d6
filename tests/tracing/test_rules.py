# ruff: noqa: E501
"""Operators one by one: what they let pass, what they stop, and what is not known.

Every row is a small network around one operator. All rows must be sound; the number of free
directions and of discrete copies says that nothing is held that need not be.
"""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry, rule
from paramsym.lowering.registry import RULES
from tests.tracing.zoo import errors, randomise

L = nn.Linear
_MASK = torch.tensor([True, False, True, True, False])
_ROWS = torch.tensor([[True], [False], [True], [True], [False], [True]])
_GRID = torch.rand(3, 4, 4, 2, generator=torch.Generator().manual_seed(0)).double() * 3 - 1


class Around(nn.Module):
    """A function of some layers and parameters."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module, **shapes: Any):
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)
        for name, shape in shapes.items():
            made = torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))
            self.register_parameter(name, nn.Parameter(made))

    def forward(self, *x: Tensor) -> Any:
        return self.function(self, self.layers, *x)


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9)).double()


def free(symmetry: ParameterSymmetry) -> tuple[int, int, float]:
    """(dimension of all groups, of all shifts, number of discrete copies)."""
    groups = sum(map(symmetry.dimension, symmetry.spaces))
    return groups, sum(s.dimension for s in symmetry.shifts), round(10 ** symmetry.log_order())


def _mlp(function: Callable[..., Any], width: int = 5, out: int | None = None) -> Around:
    return Around(lambda s, m, x: m[1](function(m[0](x))), L(4, width), L(out or width, 3))


def _conv(function: Callable[[Tensor], Tensor], width: int = 4) -> Around:
    return Around(
        lambda s, m, x: m[1](function(m[0](x)).mean((2, 3))), nn.Conv2d(2, 4, 3), L(width, 3)
    )


_V, _I = (_x(6, 4),), (_x(3, 2, 8, 8),)
Row = tuple[Callable[[], nn.Module], tuple[Tensor, ...]]

SOUND: dict[str, Row] = {
    "where: a scalar tensor": (
        lambda: _mlp(lambda y: torch.where(_MASK, y, torch.tensor(1.0).double())), _V),
    "where: a scalar tensor for some rows": (
        lambda: _mlp(lambda y: torch.where(_ROWS, y, torch.tensor(1.0).double())), _V),
    "where: two numbers": (lambda: _mlp(lambda y: torch.where(y > 0, 1.0, 0.0).double()), _V),
    "masked_fill: a tensor": (
        lambda: _mlp(lambda y: y.masked_fill(_ROWS, torch.tensor(2.0).double())), _V),
    "masked_fill: a large number": (
        lambda: _mlp(lambda y: F.relu(y.masked_fill(_ROWS, 2e4))), _V),
    "masked_fill: a very negative number that is seen": (
        lambda: _mlp(lambda y: y.masked_fill(_ROWS, -2e4)), _V),
    "masked_fill before a norm": (
        lambda: _mlp(lambda y: F.layer_norm(y.masked_fill(_MASK, -1e5), (5,))), _V),
    "normalize with a floor that is met": (
        lambda: _mlp(lambda y: F.normalize(y, dim=-1, eps=3.0)), _V),
    "normalize by a sum with a floor that is met": (
        lambda: _mlp(lambda y: F.normalize(y, 1.0, dim=-1, eps=3.0)), _V),
    "cosine similarity with a floor that is met": (
        lambda: Around(lambda s, m, x: F.cosine_similarity(m[0](x), m[1](x), dim=-1, eps=3.0),
                       L(4, 5), L(4, 5)), _V),
    "the number of entries that are not zero": (
        lambda: Around(lambda s, m, x: m[0](x).norm(p=0, dim=-1) * m[1](x)[:, 0], L(4, 5), L(4, 3)),
        _V),
    "the largest entry as a norm": (
        lambda: Around(lambda s, m, x: m[0](x).norm(p=math.inf, dim=-1) * m[1](x)[:, 0], L(4, 5),
                       L(4, 3)), _V),
    "a norm of matrices": (
        lambda: Around(lambda s, m, x: torch.linalg.norm(m[0](x)[:, None] * s.a, ord=2, dim=(1, 2)),
                       L(4, 5), a=(3, 5)), _V),
    "max pooling without a batch": (
        lambda: Around(lambda s, m, x: m[1](F.max_pool2d(m[0](x), 2).flatten(1).T),
                       nn.Conv2d(2, 4, 3), L(4, 3)), (_x(2, 8, 8),)),
    "average pooling that sums": (
        lambda: _conv(lambda y: F.avg_pool2d(y, 2, divisor_override=1)), _I),
    "average pooling of a padded image": (lambda: _conv(lambda y: F.avg_pool2d(y, 3, 1, 1)), _I),
    "sampling outside of an image": (
        lambda: Around(lambda s, m, x: m[1](F.grid_sample(m[0](x), _GRID, align_corners=False)
                       .mean((2, 3))), nn.Conv2d(2, 4, 1), L(4, 3)), (_x(3, 2, 4, 4),)),
    "a grid that is learned": (
        lambda: Around(lambda s, m, x: m[1](F.grid_sample(
            x, F.affine_grid(m[0](x.flatten(1)).view(-1, 2, 3), x.shape, align_corners=False),
            align_corners=False).flatten(1)), L(32, 6), L(32, 3)), (_x(3, 2, 4, 4),)),
    "1 + w in two places": (
        lambda: Around(lambda s, m, x: m[1](F.relu(m[0](x) * (1 + s.w)) * (1 + s.w)), L(4, 5),
                       L(5, 3), w=5), _V),
    "1 + w in three places": (
        lambda: Around(lambda s, m, x: m[1](F.relu(F.relu(m[0](x) * (1 + s.w)) * (1 + s.w))
                       * (1 + s.w)), L(4, 5), L(5, 3), w=5), _V),
    "1 + w here and w there": (
        lambda: Around(lambda s, m, x: m[1](F.relu(m[0](x) * (1 + s.w)) * s.w), L(4, 5), L(5, 3),
                       w=5), _V),
    "1 + w here and 2 + w there": (
        lambda: Around(lambda s, m, x: m[1](F.relu(m[0](x) * (1 + s.w)) * (2 + s.w)), L(4, 5),
                       L(5, 3), w=5), _V),
    "steps from different layers": (
        lambda: Around(lambda s, m, x: m[2](torch.stack([m[0](x), m[1](x)], 0))[0], L(4, 5),
                       L(4, 5), nn.LSTM(5, 3)), _V),
    "final cell states alone": (
        lambda: Around(lambda s, m, x: m[1](m[0](x)[1][1].transpose(0, 1).flatten(1)),
                       nn.LSTM(4, 5, 2), L(10, 3)), (_x(6, 2, 4),)),
    "final states of both directions": (
        lambda: Around(lambda s, m, x: m[1](m[0](x)[1].view(2, 2, 2, 5)[1].permute(1, 0, 2)
                       .reshape(2, 10)), nn.GRU(4, 5, 2, bidirectional=True), L(10, 3)),
        (_x(6, 2, 4),)),
    "a state that starts another pass": (
        lambda: Around(lambda s, m, x: m[0](x, m[0](x)[1])[0], nn.GRU(4, 5, 2)), (_x(6, 2, 4),)),
    "from one sequence to another": (
        lambda: Around(lambda s, m, x: m[2](m[1](x, m[0](x)[1])[0]), nn.LSTM(4, 5), nn.LSTM(4, 5),
                       L(5, 3)), (_x(6, 2, 4),)),
    "an initial state that is data": (
        lambda: Around(lambda s, m, x, h: m[1](m[0](x, h)[0]), nn.GRU(4, 5), L(5, 3)),
        (_x(6, 2, 4), _x(1, 2, 5))),
    "a projected state": (
        lambda: Around(lambda s, m, x: m[1](m[0](x)[0]), nn.LSTM(4, 5, proj_size=3), L(3, 3)),
        (_x(6, 2, 4),)),
    "a weight as an output": (
        lambda: Around(lambda s, m, x: (m[1](F.relu(m[0](x))), m[0].weight), L(4, 5), L(5, 3)), _V),
    "an order that is computed": (
        lambda: Around(lambda s, m, x: m[1](m[0](x)[:, m[0](x).sum(0).argsort()]), L(4, 5), L(5, 3)),
        _V),
    "a row that is chosen": (
        lambda: Around(lambda s, m, x: m[1](m[0](x).argmax(-1)), L(4, 5), nn.Embedding(5, 3)), _V),
    "an inverse": (lambda: Around(lambda s, m, x: x @ torch.linalg.inv(s.a), a=(4, 4)), _V),
    "a spectrum": (
        lambda: Around(lambda s, m, x: m[1](torch.fft.rfft(m[0](x)).abs()), L(4, 6), L(4, 3)), _V),
    "a slice that is written": (
        lambda: Around(lambda s, m, x: m[1](_written(m[0](x))), L(4, 5), L(5, 3)), _V),
    "a diagonal": (
        lambda: Around(lambda s, m, x: torch.diagonal(m[0](x)[:4] @ s.w), L(4, 5), w=(5, 4)), _V),
    "a cell applied twice": (
        lambda: Around(lambda s, m, x: m[1](m[0](x, m[0](x))), nn.GRUCell(4, 5), L(5, 3)), _V),
}  # fmt: skip


def _written(y: Tensor) -> Tensor:
    z = torch.zeros_like(y)
    z[:, :3] = y[:, :3]
    return z


def _double(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return randomise(model.double()), inputs


@pytest.mark.parametrize("name", SOUND)
def test_what_is_found_around_an_operator_is_sound(name: str) -> None:
    make, inputs = SOUND[name]
    torch.manual_seed(0)
    model, inputs = _double(make(), inputs)
    found = errors(model, find_symmetry(model, inputs), inputs)
    control = found.pop("a wrong move")
    assert max(found.values()) < 1e-10, max(found, key=found.__getitem__)
    assert control > 1e-4


# name: network, inputs, (groups, shifts, copies)
FREE: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], tuple[int, int, int]]] = {
    "relu6 is clipped": (lambda: _mlp(F.relu6), _V, (0, 0, 120)),
    "clamp from below is a ReLU": (lambda: _mlp(lambda y: y.clamp(min=0)), _V, (5, 0, 120)),
    "clamp between opposites is odd": (lambda: _mlp(lambda y: y.clamp(-1, 1)), _V, (0, 0, 3840)),
    "softshrink is odd": (lambda: _mlp(F.softshrink), _V, (0, 0, 3840)),
    "abs": (lambda: _mlp(torch.abs), _V, (5, 0, 3840)),
    "maximum with a multiple": (lambda: _mlp(lambda y: torch.maximum(y, 0.5 * y)), _V, (5, 0, 120)),
    "torch.maximum with zero": (
        lambda: _mlp(lambda y: torch.maximum(y, torch.zeros_like(y))), _V, (5, 0, 120)),
    "a positive power": (lambda: _mlp(lambda y: F.relu(y) ** 1.5), _V, (5, 0, 120)),
    "in place": (lambda: _mlp(lambda y: y.relu_()), _V, (5, 0, 120)),
    "in place by argument": (lambda: _mlp(lambda y: F.relu(y, inplace=True)), _V, (5, 0, 120)),
    "unit vectors": (lambda: _mlp(lambda y: F.normalize(y, dim=-1)), _V, (11, 0, 2)),
    "unit vectors of another norm": (
        lambda: _mlp(lambda y: F.normalize(y, 3.0, dim=-1)), _V, (1, 0, 3840)),
    "the norm of each weight": (
        lambda: Around(lambda s, m, x: m[0](F.relu(F.linear(x, s.w / s.w.norm(dim=1, keepdim=True))
                       )), L(5, 3), w=(5, 4)), _V, (5, 0, 120)),
    "weight_norm": (
        lambda: Around(lambda s, m, x: m[1](F.relu(m[0](x))),
                       torch.nn.utils.parametrizations.weight_norm(L(4, 5)), L(5, 3)), _V,
        (10, 0, 3840)),
    "values of a maximum over pieces": (
        lambda: _mlp(lambda y: y.view(-1, 3, 2).max(-1).values, 6, 3), _V, (3, 3, 48)),
    "a table of bags": (
        lambda: Around(lambda s, m, x: m[1](m[0](x)), nn.EmbeddingBag(9, 5, mode="sum"), L(5, 3)),
        (torch.arange(24).reshape(6, 4) % 9,), (25, 18, 2)),
    "distances to centres": (
        lambda: Around(lambda s, m, x: m[1]((-torch.cdist(m[0](x), s.c).square()).exp()), L(4, 5),
                       L(7, 3), c=(7, 5)), _V, (10, 5, 10080)),
    "einsum with shared letters": (
        lambda: Around(lambda s, m, x: m[0](torch.einsum("bi,io->bo", x, s.w)), L(5, 3), w=(4, 5)),
        _V, (25, 11, 2)),
    "addmm": (
        lambda: Around(lambda s, m, x: m[0](torch.addmm(s.b, x, s.w).relu()), L(5, 3), w=(4, 5),
                       b=5), _V, (5, 0, 120)),
    "checkpointed": (
        lambda: Around(lambda s, m, x: torch.utils.checkpoint.checkpoint(
            lambda z: m[1](F.relu(m[0](z))), x, use_reentrant=False), L(4, 5), L(5, 3)), _V,
        (5, 0, 120)),
    "depthwise": (
        lambda: Around(lambda s, m, x: m[2](F.relu(m[1](F.relu(m[0](x)))).mean((2, 3))),
                       nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4), L(4, 3)), _I, (8, 0, 24)),
    "pixel shuffle": (
        lambda: _conv(lambda y: F.pixel_shuffle(F.relu(y), 2), 1), _I, (1, 0, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", FREE)
def test_what_an_operator_lets_pass(name: str) -> None:
    make, inputs, (groups, shifts, copies) = FREE[name]
    torch.manual_seed(0)
    model, inputs = _double(make(), inputs)
    symmetry = find_symmetry(model, inputs)
    assert not symmetry.unknown
    found = errors(model, symmetry, inputs)
    found.pop("a wrong move")
    assert max(found.values()) < 1e-10, max(found, key=found.__getitem__)
    assert free(symmetry) == (groups, shifts, copies), str(symmetry)


class _Strange(nn.Module):
    """An operator that the library does not know, with a function that commutes with orders."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.i0(self.first(x)))


def test_an_unknown_operator_is_frozen_and_named_and_can_be_taught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that cannot be asked on numbers either, as an operator without a kernel for the CPU."""
    monkeypatch.setattr("paramsym.lowering.lower.by_probing", lambda build, call: None)
    model, inputs = _Strange(), (torch.randn(6, 4),)
    symmetry = find_symmetry(model, inputs)
    place = symmetry.unknown["i0"]
    assert place.startswith("test_rules.py:") and "(model)" in place
    assert not symmetry.spaces
    assert "no rule for i0 at test_rules.py:" in symmetry.reasons["first.weight"][0]

    @rule(torch.i0)
    def i0(build, call):
        (x,) = build.arguments(call, "input")
        return build.unary(x, None, "even", name="i0")

    try:
        taught = find_symmetry(model, inputs)
    finally:
        del RULES["i0"]
    assert not taught.unknown
    assert free(taught)[2] == 3840  # orders, and signs that the even function forgets
    assert errors(randomise(model), taught, inputs)["everything"] < 1e-12


def test_a_rule_of_the_user_replaces_ours_whatever_is_imported_first() -> None:
    code = """
import torch
from paramsym import rule

@rule("tanh")
def tanh(build, call):
    return None  # nothing is known of it

from paramsym import find_symmetry
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
print(*find_symmetry(model, (torch.randn(2, 2),)).unknown)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["tanh"], ran.stderr


def test_a_rule_of_the_wrong_shape_says_so() -> None:
    @rule("i0")
    def i0(build, call):
        (x,) = build.arguments(call, "input")
        return build.reduce(x, [0], False, "sum")

    try:
        with pytest.raises(AssertionError, match="gave shape .* returns"):
            find_symmetry(_Strange(), (torch.randn(6, 4),))
    finally:
        del RULES["i0"]


def test_warnings_of_the_model_are_not_swallowed() -> None:
    def loud(y: Tensor) -> Tensor:
        warnings.warn("look here", UserWarning, stacklevel=1)
        return y.relu()

    with pytest.warns(UserWarning, match="look here"):
        find_symmetry(_mlp(loud).double(), _V)
