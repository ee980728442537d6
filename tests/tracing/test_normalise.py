# ruff: noqa: E501
"""Recognisers: each rewrites what it should into equal numbers, and leaves what is only alike.

The rewritten graph is run on numbers beside the model, and the symmetry of every spelling is
compared with that of the plain one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, audit, find_symmetry, orbit_dimension
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.lowering.data import Evaluator
from paramsym.lowering.normalise import normalise
from paramsym.lowering.recognisers.contractions import explicit
from paramsym.recording.graph import Graph
from paramsym.recording.layout import same_layout
from paramsym.recording.record import record
from paramsym.structure.origin import Diagonal, added
from tests.tracing.zoo import errors

L = nn.Linear


class Made(nn.Module):
    """A function of layers m and parameters p."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module, **shapes: Any):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        generator = torch.Generator().manual_seed(5)
        for name, shape in shapes.items():
            made = torch.randn(shape, generator=generator)
            self.register_parameter(name, nn.Parameter(made))
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layers, x)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    before = torch.random.get_rng_state()
    torch.manual_seed(0)
    made = build()
    torch.random.set_rng_state(before)
    return made


def x(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def computed(graph: Graph, model: nn.Module, given: Tensor) -> Tensor:
    """The output of a graph, call by call, on the numbers of a model."""
    known: dict[int, Any] = {v.id: model.get_parameter(n) for n, v in graph.parameters.items()}
    known |= {v.id: given for v in graph.values if v.kind == "input"}
    run = Evaluator(graph, invents=True)
    for call in graph.calls:
        run.run(call, known)
    (out,) = graph.outputs
    return known[out.id].detach()


def live(graph: Graph) -> list[str]:
    """Names of the calls that lead to the outputs, views left out, in order."""
    names, stack, seen = [], list(graph.outputs), set()
    while stack:
        value = stack.pop()
        if value.storage != value.id:
            stack.append(graph.values[value.storage])
        elif value.id not in seen and value.call is not None:
            names.append((value.call.index, value.call.name))
            stack += value.call.operands
        seen.add(value.id)
    return [name for _, name in sorted(set(names))]


def rewritten(model: nn.Module, given: Tensor) -> list[str] | None:
    """The live calls of the normal form, which computes what the model does; None for no change."""
    graph = record(model, (given,))
    before = repr(graph.calls), [(v.id, v.call and v.call.index) for v in graph.values]
    made = normalise(graph)
    assert before == (repr(graph.calls), [(v.id, v.call and v.call.index) for v in graph.values])
    if made is graph:
        return None
    wanted = model(given).detach()
    assert (computed(made, model, given) - wanted).abs().max() <= 1e-12 * wanted.abs().max()
    for old, new in zip(graph.outputs, made.outputs, strict=True):
        assert old is not new
        assert old.id == new.id and same_layout(old, new)
    return live(made)


def sound(model: nn.Module, symmetry: ParameterSymmetry, given: Tensor) -> None:
    """Every space and shift leaves the function, and a wrong move does not."""
    assert not symmetry.checked.refuted
    found = errors(model, symmetry, (given,))
    control = found.pop("a wrong move")
    assert max(found.values()) <= 1e-12 < 1e-3 <= control, found


def bare(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """A symmetry without reasons, which name lines of the source."""
    spaces = {name: replace(space, why="") for name, space in symmetry.spaces.items()}
    return replace(symmetry, spaces=spaces, reasons={})


# -- products that are summed ----------------------------------------------------------------------

SUMS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str] | None]] = {
    "dot product": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).sum(-1), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "einsum"]),
    "keepdim": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).sum(-1, keepdim=True), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "einsum", "reshape"]),
    "mean": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).mean(dim=-1), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "einsum", "mul"]),
    "all of it": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).sum(), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "einsum"]),
    "mean of all": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).mean((0, 1), keepdim=True), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "einsum", "mul", "reshape"]),
    "matrix product": (lambda s, m, x: (x.unsqueeze(-1) * s.a).sum(-2), {"a": (3, 5)}, ["einsum"]),
    "matrix product of expanded": (lambda s, m, x: (x.unsqueeze(-1).expand(-1, -1, 5) * s.a).sum(1), {"a": (3, 5)}, ["einsum"]),
    "a method": (lambda s, m, x: x.unsqueeze(1).mul(s.a.T).sum(dim=2), {"a": (3, 5)}, ["einsum"]),
    "also read elsewhere": (lambda s, m, x: (lambda p: p.sum(-1, keepdim=True) + p)((x @ s.a) * (x @ s.b)), {"a": (3, 5), "b": (3, 5)}, ["matmul", "matmul", "mul", "einsum", "reshape", "add"]),
    "summed over what one has": (lambda s, m, x: ((x @ s.a) * s.b).sum(0), {"a": (3, 5), "b": (5,)}, None),
    "summed beside": (lambda s, m, x: (x.unsqueeze(-1) * s.a[0]).sum(1), {"a": (3, 5)}, None),
    "a square": (lambda s, m, x: (lambda h: (h * h).sum(-1))(x @ s.a), {"a": (3, 5)}, None),
    "a square of a copy": (lambda s, m, x: (lambda h: (h * h.clone()).sum(-1))(x @ s.a), {"a": (3, 5)}, None),
    "a quotient": (lambda s, m, x: ((x @ s.a) / (x @ s.b)).sum(-1), {"a": (3, 5), "b": (3, 5)}, None),
    "a largest": (lambda s, m, x: ((x @ s.a) * (x @ s.b)).amax(-1), {"a": (3, 5), "b": (3, 5)}, None),
    "a multiple": (lambda s, m, x: ((x @ s.a) * 2).sum(-1), {"a": (3, 5)}, None),
    "a mask": (lambda s, m, x: ((x @ s.a) * (x[:, :1] > 0)).sum(-1), {"a": (3, 5)}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_a_product_that_is_summed_is_a_contraction(name: str) -> None:
    function, shapes, wanted = SUMS[name]
    assert rewritten(Made(function, **shapes), x(7, 3)) == wanted


# -- einsums ---------------------------------------------------------------------------------------

EINSUMS: dict[str, tuple[str, dict[str, Any], int]] = {
    "three": ("bi,ji,kj->bk", {"a": (5, 3), "b": (2, 5)}, 2),
    "ellipsis": ("...i,ij,jk->...k", {"a": (3, 5), "b": (5, 2)}, 2),
    "no arrow": ("bi,ij,jk", {"a": (3, 5), "b": (5, 2)}, 2),
    "four": ("bi,ij,jk,kl->bl", {"a": (3, 5), "b": (5, 2), "c": (2, 4)}, 3),
    "the middle last": ("bi,kl,ik->bl", {"a": (5, 2), "b": (3, 5)}, 2),
    "batched": ("bi,ij,bj->b", {"a": (3, 5), "b": (7, 5)}, 2),
    "summed alone": ("bi,ij,kj->b", {"a": (3, 5), "b": (4, 5)}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", EINSUMS)
def test_a_long_einsum_is_a_chain(name: str) -> None:
    equation, shapes, count = EINSUMS[name]
    model = Made(
        lambda s, m, x: torch.einsum(equation, x, *(getattr(s, n) for n in shapes)), **shapes
    )
    assert rewritten(model, x(7, 3)) == ["einsum"] * count


def test_einsums_that_are_left() -> None:
    two = Made(lambda s, m, x: torch.einsum("bi,ij->bj", x, s.a), a=(3, 5))
    assert rewritten(two, x(7, 3)) is None
    diagonal = Made(lambda s, m, x: torch.einsum("bi,ij,jj->bj", x, s.a, s.b), a=(3, 5), b=(5, 5))
    assert rewritten(diagonal, x(7, 3)) is None


def test_labels_are_spelled_out() -> None:
    class Shaped:
        def __init__(self, *shape: int):
            self.shape = shape

    labels, out = explicit(
        "...i, ij ,...j->...",
        [Shaped(2, 7, 3), Shaped(3, 5), Shaped(7, 5)],  # type: ignore[arg-type]
    ) or ([], "")
    first, second, third = labels
    assert second == "ij" and first[2] == "i" and third[1] == "j" and out == first[:2]
    assert third[0] == first[1] and len({*first, *third}) == 4
    assert explicit("ii,ij,jk->k", [Shaped(3, 3), Shaped(3, 5), Shaped(5, 2)]) is None  # type: ignore[arg-type]


# -- rectifiers ------------------------------------------------------------------------------------

RECTIFIERS: dict[str, tuple[Callable[[Tensor], Tensor], list[str] | None]] = {
    "where": (lambda h: torch.where(h > 0, h, 0.0), ["relu"]),
    "where zeros": (lambda h: torch.where(h > 0, h, torch.zeros_like(h)), ["relu"]),
    "where a constant": (lambda h: torch.where(h > 0, h, torch.tensor(0.0, dtype=h.dtype)), ["relu"]),
    "where not below": (lambda h: torch.where(h < 0, 0.0, h), ["relu"]),
    "the zero first": (lambda h: torch.where(torch.zeros_like(h) < h, h, 0.0), ["relu"]),
    "the method where": (lambda h: h.where(h >= 0, torch.zeros_like(h)), ["relu"]),
    "product": (lambda h: h * (h > 0), ["relu"]),
    "product, mask first": (lambda h: (h >= 0).to(h.dtype) * h, ["relu"]),
    "product with numbers": (lambda h: h * (h > 0).double(), ["relu"]),
    "product, type_as": (lambda h: h * h.gt(0).type_as(h), ["relu"]),
    "maximum": (lambda h: torch.maximum(h, torch.zeros_like(h)), ["relu"]),
    "maximum with a constant": (lambda h: torch.maximum(h, torch.tensor(0.0, dtype=h.dtype)), ["relu"]),
    "max": (lambda h: torch.max(torch.zeros_like(h), h), ["relu"]),
    "masked fill": (lambda h: h.masked_fill(h <= 0, 0.0), ["relu"]),
    "of a detached mask": (lambda h: h * (h.detach() > 0), ["relu"]),
    "leaky": (lambda h: torch.where(h > 0, h, 0.1 * h), ["leaky_relu"]),
    "leaky by parts": (lambda h: torch.where(h < 0, h / 4, h), ["leaky_relu"]),
    "leaky maximum": (lambda h: torch.maximum(h, 0.2 * h), ["leaky_relu"]),
    "leaky minimum": (lambda h: torch.minimum(h, 3 * h), ["leaky_relu"]),
    "steeper above": (lambda h: torch.maximum(h, 3 * h), ["leaky_relu", "mul"]),
    "absolute": (lambda h: torch.where(h > 0, h, -h), ["abs"]),
    "below": (lambda h: torch.where(h < 0, h, 0.0), ["clamp"]),
    "below by product": (lambda h: h * (h < 0), ["clamp"]),
    "minus relu": (lambda h: torch.where(h > 0, -h, 0.0), ["relu", "mul"]),
    "another threshold": (lambda h: torch.where(h > 0.1, h, 0.0), None),
    "another value": (lambda h: torch.where(h > 0, h, 1.0), None),
    "another tensor's sign": (lambda h: h * (h.flip(0) > 0), None),
    "another tensor's sign in where": (lambda h: torch.where(h.tanh() > 0, h, 0.0), None),
    "equality": (lambda h: torch.where(h == 0, h, 0.0), None),
    "a function above": (lambda h: torch.where(h > 0, h.exp(), 0.0 * h), None),
    "the same on both sides": (lambda h: torch.where(h > 0, h, 1.0 * h), ["mul"]),
    "the mask alone": (lambda h: (h > 0).to(h.dtype), None),
    "a mask of one": (lambda h: h * (h[:, :1] > 0), None),
    "maximum with one": (lambda h: torch.maximum(h, torch.ones_like(h)), None),
    "maximum of two": (lambda h: torch.maximum(h, h.flip(0)), None),
    "largest entry": (lambda h: h - h.max(1, keepdim=True)[0], None),
}  # fmt: skip


def rectified(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return seeded(lambda: Made(lambda s, m, x: m[1](function(m[0](x))), L(3, 5), L(5, 2)))


@pytest.mark.parametrize("name", RECTIFIERS)
def test_a_choice_by_the_sign_is_a_rectifier(name: str) -> None:
    function, wanted = RECTIFIERS[name]
    found = rewritten(rectified(function), x(7, 3))
    assert found == (None if wanted is None else ["linear", *wanted, "linear"])


@pytest.mark.parametrize("name", [n for n, (_, wanted) in RECTIFIERS.items() if wanted])
def test_a_rectifier_scales(name: str) -> None:
    function, (kind, *_) = RECTIFIERS[name][0], RECTIFIERS[name][1] or ["relu"]
    model = rectified(function)
    symmetry = find_symmetry(model, (x(7, 3),))
    plain: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "leaky_relu": F.leaky_relu, "abs": torch.abs, "clamp": lambda h: h.clamp(max=0), "mul": lambda h: h}  # fmt: skip
    assert bare(symmetry) == bare(find_symmetry(rectified(plain[kind]), (x(7, 3),)))
    sound(model, symmetry, x(7, 3))


@pytest.mark.parametrize("name", [n for n, (_, wanted) in RECTIFIERS.items() if not wanted])
def test_what_is_no_rectifier_is_sound(name: str) -> None:
    model = rectified(RECTIFIERS[name][0])
    sound(model, find_symmetry(model, (x(7, 3),)), x(7, 3))


@pytest.mark.parametrize("shape", [(1,), (5,)])
def test_a_learned_slope_is_a_prelu(shape: tuple[int, ...]) -> None:
    def made(function: Callable[..., Tensor]) -> nn.Module:
        return seeded(
            lambda: Made(lambda s, m, x: m[1](function(m[0](x), s.a)), L(3, 5), L(5, 2), a=shape)
        )

    model = made(lambda h, a: torch.where(h >= 0, h, a * h))
    assert rewritten(model, x(7, 3)) == ["linear", "prelu", "linear"]
    symmetry = find_symmetry(model, (x(7, 3),))
    assert bare(symmetry) == bare(find_symmetry(made(lambda h, a: F.prelu(h, a)), (x(7, 3),)))
    sound(model, symmetry, x(7, 3))
    assert rewritten(made(lambda h, a: torch.where(h >= 0, a * h, a + h)), x(7, 3)) is None


# -- linear skips ----------------------------------------------------------------------------------


def _around(
    function: Callable[..., Tensor], *layers: nn.Module, **shapes: Any
) -> Callable[[], nn.Module]:
    """A linear map into 5, what is tried, and one into 2."""
    return lambda: Made(lambda s, m, x: m[1](function(s, m[2:], m[0](x))), L(3, 5), L(5, 2), *layers, **shapes)  # fmt: skip


SKIPS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], int]] = {
    "plain": (_around(lambda s, m, h: h + m[0](h), L(5, 5)), {"layers.2.weight": Diagonal(1.0)}, 54),
    "swapped": (_around(lambda s, m, h: m[0](h) + h, L(5, 5)), {"layers.2.weight": Diagonal(1.0)}, 54),
    "alpha": (_around(lambda s, m, h: torch.add(h, m[0](h), alpha=0.5), L(5, 5)), {"layers.2.weight": Diagonal(2.0)}, 54),
    "multiples": (_around(lambda s, m, h: 0.5 * h + m[0](h) / 4, L(5, 5)), {"layers.2.weight": Diagonal(2.0)}, 54),
    "in place": (_around(lambda s, m, h: m[0](h).add_(h), L(5, 5)), {"layers.2.weight": Diagonal(1.0)}, 54),
    "a product": (_around(lambda s, m, h: h + h @ s.w, w=(5, 5)), {"w": Diagonal(1.0)}, 49),
    "a product with the transpose": (_around(lambda s, m, h: h @ s.w.T + h, w=(5, 5)), {"w": Diagonal(1.0)}, 49),
    "a rectifier behind": (_around(lambda s, m, h: F.relu(h + m[0](h)), L(5, 5)), {"layers.2.weight": Diagonal(1.0)}, 35),
    "two": (_around(lambda s, m, h: (lambda g: g + m[1](g))(h + m[0](h)), L(5, 5), L(5, 5)), {"layers.2.weight": Diagonal(1.0), "layers.3.weight": Diagonal(1.0)}, 84),
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPS)
def test_the_identity_joins_the_weight_of_a_linear_skip(name: str) -> None:
    build, offsets, dimension = SKIPS[name]
    model = seeded(build)
    assert rewritten(model, x(7, 3)) is not None
    symmetry = find_symmetry(model, (x(7, 3),))
    assert symmetry.offsets == offsets
    assert orbit_dimension(symmetry, model.state_dict()) == dimension
    assert audit(model, (x(7, 3),)).nullity == dimension
    sound(model, symmetry, x(7, 3))
    assert ParameterSymmetry.from_json(symmetry.to_json()) == symmetry


NO_SKIPS: dict[str, Callable[[], nn.Module]] = {
    "used twice": _around(lambda s, m, h: (lambda g: g + m[0](g))(h + m[0](h)), L(5, 5)),
    "read elsewhere": _around(lambda s, m, h: h + m[0](h) + s.w * m[0].weight.sum(), L(5, 5), w=(5,)),
    "what is added is read elsewhere": _around(lambda s, m, h: (lambda y: (h + y) * y)(m[0](h)), L(5, 5)),
    "another input": _around(lambda s, m, h: h + m[0](h.tanh()), L(5, 5)),
    "a function between": _around(lambda s, m, h: h + m[0](h).tanh(), L(5, 5)),
    "both factors": _around(lambda s, m, h: (h.T + s.w @ h.T.tanh()).T, w=(5, 5)),
    "a window of the weight": _around(lambda s, m, h: h + h @ s.w[:5], w=(6, 5)),
    "a derived weight": _around(lambda s, m, h: h + h @ s.w.tanh(), w=(5, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SKIPS)
def test_what_is_no_linear_skip(name: str) -> None:
    model = seeded(NO_SKIPS[name])
    assert rewritten(model, x(7, 3)) is None
    symmetry = find_symmetry(model, (x(7, 3),))
    assert not symmetry.offsets
    sound(model, symmetry, x(7, 3))


def test_a_skip_around_pieces_of_a_stream() -> None:
    """Where the units of the sum are one block and those of the stream two, no letter says what
    the identity adds to a piece: GL acts on both sides, but the bias of the piece (2 directions
    of 39) does not slide."""

    def forward(s: Any, m: Any, x: Tensor) -> Tensor:
        h = torch.cat([m[0](x), F.relu(m[1](x))], -1)
        return m[3](h + m[2](h))

    model = seeded(lambda: Made(forward, L(3, 2), L(3, 3), L(5, 5), L(5, 2)))
    symmetry = find_symmetry(model, (x(7, 3),))
    assert symmetry.offsets == {"layers.2.weight": Diagonal(1.0)}
    assert orbit_dimension(symmetry, model.state_dict()) == 37
    sound(model, symmetry, x(7, 3))


def test_a_skip_around_a_skip() -> None:
    """The weight of the inner skip is W + I already: it has no second origin."""
    model = seeded(_around(lambda s, m, h: h + (h + m[0](h)), L(5, 5)))
    assert rewritten(model, x(7, 3)) is not None
    symmetry = find_symmetry(model, (x(7, 3),))
    assert symmetry.offsets == {"layers.2.weight": Diagonal(1.0)}
    sound(model, symmetry, x(7, 3))


def test_without_the_origin_the_function_changes() -> None:
    """The negative control: the same symmetry that acts on W instead of W + I, or on W + 2 I."""
    model = seeded(SKIPS["plain"][0])
    symmetry = find_symmetry(model, (x(7, 3),))
    for origins in ({}, {"layers.2.weight": 1.0}, {"layers.2.weight": Diagonal(2.0)}):
        wrong = copy.copy(symmetry)
        object.__setattr__(wrong, "offsets", origins)
        assert errors(model, wrong, (x(7, 3),), each=False)["everything"] >= 1e-3


# -- origins ---------------------------------------------------------------------------------------


def test_constants_on_the_diagonal() -> None:
    square = torch.ones(2, 2)
    assert added(square, Diagonal(3.0)).tolist() == [[4, 1], [1, 4]]
    assert added(added(square, Diagonal(3.0)), -Diagonal(3.0)).equal(square)
    assert added(square, 3.0).tolist() == [[4, 4], [4, 4]]
    assert added(square, 0.0) is square


def test_generic_weights_leave_out_the_origin() -> None:
    model = seeded(lambda: L(3, 3).double())

    def drawn(origins: dict[str, Any]) -> Tensor:
        return generic_state(
            model, origins, Source(torch.Generator().manual_seed(0), torch.float64, False)
        )["weight"]

    assert torch.allclose(drawn({}) - drawn({"weight": Diagonal(2.0)}), 2 * torch.eye(3).double())


def test_an_unknown_kind_of_origin_is_refused() -> None:
    text = find_symmetry(seeded(SKIPS["plain"][0]), (x(7, 3),)).to_json()
    with pytest.raises(ValueError, match="the kind of offset 'antidiagonal'"):
        ParameterSymmetry.from_json(text.replace('"identity"', '"antidiagonal"'))


def test_gradients_have_no_origin() -> None:
    """The dual of W + I acts on the gradient itself."""
    model = seeded(SKIPS["plain"][0])
    symmetry = find_symmetry(model, (x(7, 3),))
    state = model.state_dict()
    element = symmetry.restrict(translations=False).sample(torch.Generator().manual_seed(1), 0.5)

    def gradient(params: dict[str, Tensor]) -> dict[str, Tensor]:
        return torch.func.grad(
            lambda p: torch.func.functional_call(model, p, (x(7, 3),)).square().sum()
        )(params)

    dual = symmetry.restrict(translations=False).dual
    assert not dual.offsets
    moved = act(dual, element, gradient(state))
    for name, wanted in gradient(
        act(symmetry.restrict(translations=False), element, state)
    ).items():
        assert torch.allclose(moved[name], wanted, rtol=1e-9, atol=1e-9)


# -- spellings end to end --------------------------------------------------------------------------


SPELLINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "a dot product": (
        lambda s, m, x: ((x @ s.a) * (x @ s.b)).sum(-1),
        lambda s, m, x: torch.einsum("bi,bi->b", x @ s.a, x @ s.b),
        {"a": (3, 5), "b": (3, 5)},
    ),
    "a linear network by broadcasting": (
        lambda s, m, x: ((x.unsqueeze(-1) * s.a).sum(-2).unsqueeze(1) * s.b.T).sum(-1),
        lambda s, m, x: torch.einsum("bi,ji->bj", torch.einsum("bi,ij->bj", x, s.a), s.b.T),
        {"a": (3, 5), "b": (5, 2)},
    ),
    "attention by hand": (
        lambda s, m, x: (((x @ s.a).unsqueeze(1) * (x @ s.b).unsqueeze(0)).sum(-1).softmax(-1).unsqueeze(-1) * (x @ s.c)).sum(1) @ s.d,
        lambda s, m, x: torch.einsum("ij,jk->ik", torch.einsum("ik,jk->ij", x @ s.a, x @ s.b).softmax(-1), x @ s.c) @ s.d,
        {"a": (3, 5), "b": (3, 5), "c": (3, 4), "d": (4, 2)},
    ),
    "three at once": (
        lambda s, m, x: torch.einsum("bi,ij,jk->bk", x, s.a, s.b),
        lambda s, m, x: torch.einsum("bj,jk->bk", torch.einsum("bi,ij->bj", x, s.a), s.b),
        {"a": (3, 5), "b": (5, 2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_two_spellings_have_one_symmetry(name: str) -> None:
    spelled, plain, shapes = SPELLINGS[name]
    model = Made(spelled, **shapes)
    symmetry = find_symmetry(model, (x(7, 3),))
    assert bare(symmetry) == bare(find_symmetry(Made(plain, **shapes), (x(7, 3),)))
    assert any("GeneralLinear" in str(space.group) for space in symmetry.spaces.values())
    sound(model, symmetry, x(7, 3))
