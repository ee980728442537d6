"""What is read in two ways that contradict each other is held, and so are integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import act, find_symmetry, rule
from paramsym.lowering.builder import Builder
from paramsym.lowering.builder import Tensor as Typed
from paramsym.lowering.lower import lower
from paramsym.lowering.registry import RULES
from paramsym.primitives import defects
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Layout, held_blocks, tensor_blocks
from paramsym.primitives.sums import Concatenate
from paramsym.recording.record import record
from tests.tracing.shared_views import SharedViews
from tests.tracing.test_claims import change
from tests.tracing.test_index import entries
from tests.tracing.zoo import errors


class M(nn.Module):
    """A function of parameters and buffers."""

    def __init__(self, function: Callable[..., Any], buffers: dict[str, Tensor] | None = None,
                 **shapes: tuple[int, ...]) -> None:  # fmt: skip
        super().__init__()
        self.function = function
        draw = torch.Generator().manual_seed(3)
        for name, shape in shapes.items():
            made = torch.randn(shape, generator=draw, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(made))
        for name, buffer in (buffers or {}).items():
            self.register_buffer(name, buffer)

    def forward(self, *x: Tensor) -> Any:
        return self.function(self, *x)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def worst(model: nn.Module, *inputs: Tensor) -> float:
    """The largest function error of a random element, after a look at the control."""
    found = errors(model, find_symmetry(model, inputs), inputs)
    assert found.pop("a wrong move") > 1e-3
    return max(found.values(), default=0.0)


# -- torn readings -------------------------------------------------------------------------------

Case = tuple[Callable[..., Any], dict[str, tuple[int, ...]], tuple[int, ...]]


def _tail(s: Any, h: Tensor) -> Tensor:
    return torch.cat([h[:, :1].tanh(), h[:, 1:].relu()], -1)


TORN: dict[str, Case] = {
    "a weight and its reshape": (
        lambda s, h: F.linear(F.linear(h, s.w), s.w.reshape(3, 6)), {"w": (6, 3)}, (5, 3)),
    "a concatenation before a reshape": (
        lambda s, h: torch.cat([h @ s.a.T, h @ s.b.T], -1) @ s.w.reshape(8, -1),
        {"a": (5, 5), "b": (3, 5), "w": (4, 8)}, (7, 5)),
    "a tied convolution": (
        lambda s, h: F.conv1d(F.conv1d(h, s.w), s.w.reshape(3, 6, 2)), {"w": (6, 3, 2)}, (5, 3, 9)),
    "a slope per channel": (
        lambda s, h: F.prelu(_tail(s, h @ s.a.T), s.p) @ s.w.reshape(6, -1),
        {"a": (6, 4), "p": (6,), "w": (3, 8)}, (5, 4)),
    "a slice of 1 + 5": (
        lambda s, h: _tail(s, h @ s.a.T) @ s.w.reshape(6, 4), {"a": (6, 4), "w": (3, 8)}, (5, 4)),
    "a transposed reshape": (
        lambda s, h: (h @ s.w).relu() @ s.w.reshape(6, 4), {"w": (4, 6)}, (5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", TORN)
def test_contradicting_readings_are_held(name: str) -> None:
    function, shapes, shape = TORN[name]
    assert worst(M(function, None, **shapes), x(*shape)) < 1e-10


def test_what_is_held_says_why() -> None:
    function, shapes, shape = TORN["a concatenation before a reshape"]
    symmetry = find_symmetry(M(function, None, **shapes), (x(*shape),))
    assert not symmetry.spaces
    assert "cut across each other" in symmetry.reasons["a"][0] + symmetry.reasons["w"][1]


def test_a_concatenation_read_as_copies_is_no_contradiction() -> None:
    def function(s: Any, h: Tensor) -> Tensor:
        both = torch.cat([h @ s.a.T, h @ s.b.T], -1).view(-1, 2, 4).relu()
        return (both * s.g).sum(1) @ s.u

    model = M(function, a=(4, 3), b=(4, 3), g=(2, 4), u=(4, 2))
    symmetry = find_symmetry(model, (x(5, 3),))
    assert round(10 ** symmetry.log_order()) == 24 * 2**4 and worst(model, x(5, 3)) < 1e-12


def _units(tensor: Typed, layout: Layout) -> Iterator[tuple[int, frozenset]]:
    """For every entry in storage, the units that it belongs to: one after the other."""
    for block in tensor_blocks(tensor, layout):
        found: list[tuple[int, frozenset]] = [(block.key[1], frozenset())]
        for _, leaf, stride in block.slots:
            found = [
                (at + k * stride, units | {(leaf.serial, k)})
                for at, units in found
                for k in range(leaf.size)
            ]
        yield from found


def broken(build: Builder, held: dict[int, str]) -> list[str]:
    """Where readers and writers, or tensors that meet, count entries differently: entry by entry.

    The slow twin of `paramsym.lowering.held`; what is `held` may break the rule.
    """
    layout, found = Layout(), []
    written: dict[tuple[int, int], frozenset] = {}
    for op in build.ops:
        for tensor in (*(t.owner for t in op.inputs if t.owner.producer is None), op.out):
            written.update({(tensor.serial, at): units for at, units in _units(tensor, layout)})
    for op in build.ops:
        for tensor in op.inputs:
            if tensor.moves and tensor.owner.serial not in held:
                serial = tensor.owner.serial
                if any(written.get((serial, at)) != units for at, units in _units(tensor, layout)):
                    found.append(f"a reader at {op.where}")
        ins, outs = op.labels()
        meeting: dict[Any, set] = {}
        for tensor, labels in [*zip(op.inputs, ins, strict=True), (op.out, outs)]:
            for node, size, label in zip(tensor.axes, tensor.shape, labels, strict=True):
                joined = isinstance(op, Concatenate) and label == op.dim
                if size > 1 and not joined and not (tensor.moves and tensor.owner.serial in held):
                    meeting.setdefault(label, set()).add(tuple(entries(node)))
        if any(len(ways) > 1 for ways in meeting.values()):
            found.append(f"a meeting at {op.where}")
    return found


def test_readers_and_writers_count_alike_or_are_held() -> None:
    torn = 0
    for seed in range(60):
        model = SharedViews(seed)
        build = lower(record(model, (model.inputs,)))
        assert not broken(build, build.held), (seed, model.text)
        torn += bool(broken(build, {}))
        pinned = {block.key for block, _ in held_blocks(build, Layout())}
        for op in build.ops:
            for tensor in (op.out, *op.inputs):
                if tensor.moves and tensor.owner.serial in build.held:
                    assert {b.key for b in tensor_blocks(tensor, Layout())} <= pinned
    assert torn > 3  # without holding, the rule is broken


def test_networks_with_shared_views_have_sound_symmetries() -> None:
    free = 0
    for seed in range(60, 120):
        model = SharedViews(seed)
        symmetry = find_symmetry(model, (model.inputs,))
        free += bool(symmetry.spaces)
        for only in (None, *([name] for name in symmetry.spaces)):
            draw = torch.Generator().manual_seed(1)
            moved = act(symmetry, symmetry.sample(draw, 0.5, only=only), model.state_dict())
            assert change(model, (model.inputs,), moved) < 1e-8, (seed, only, model.text)
    assert free > 20


# -- integers and booleans -----------------------------------------------------------------------

_TABLE = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0], [5, 4, 3]])
_IDS = torch.tensor([0, 2, 3, 1, 1])
INTEGERS: dict[str, tuple[Callable[..., Any], dict[str, Tensor], dict, tuple[Tensor, ...], int]] = {
    "an integer factor": (
        lambda s, h: (h @ s.w.T * s.q).relu() @ s.u, {"q": torch.tensor([1, 2, 1, 3, 1, 1])},
        {"w": (6, 4), "u": (6, 2)}, (x(5, 4),), 720),
    "quantised weights": (
        lambda s, h: (h @ (s.q * s.scale[:, None]).T).relu() @ s.u,
        {"q": torch.arange(-12, 12, dtype=torch.int8).reshape(6, 4), "scale": x(6)},
        {"u": (6, 2)}, (x(5, 4),), 720),
    "quantised weights, cast": (
        lambda s, h: (h @ (s.q.double() * s.scale[:, None]).T).relu() @ s.u,
        {"q": torch.arange(-12, 12, dtype=torch.int8).reshape(6, 4), "scale": x(6)},
        {"u": (6, 2)}, (x(5, 4),), 720),
    "a boolean factor": (
        lambda s, h: (h @ s.w.T).relu() * s.q @ s.u,
        {"q": torch.tensor([True, False, True, True, False, True])},
        {"w": (6, 4), "u": (6, 2)}, (x(5, 4),), 720),
    "a boolean factor between linear maps": (
        lambda s, h: h @ s.w.T * s.q @ s.u,
        {"q": torch.tensor([True, False, True, True, False, True])},
        {"w": (6, 4), "u": (6, 2)}, (x(5, 4),), 720 * 2**6),
    "positions from a table": (
        lambda s, h, i: (h @ s.w.T).relu().gather(1, s.q[i]) @ s.u, {"q": _TABLE},
        {"w": (6, 4), "u": (3, 2)}, (x(5, 4), _IDS), 1),
    "rows from a table": (
        lambda s, h, i: (h @ s.w[s.q[i][0]].T).relu() @ s.u, {"q": _TABLE},
        {"w": (6, 4), "u": (3, 2)}, (x(5, 4), _IDS), 1),
    "an embedding of a table": (
        lambda s, i: F.embedding((s.q + 1)[i], s.w).relu() @ s.u, {"q": _TABLE},
        {"w": (7, 4), "u": (4, 2)}, (_IDS,), 24),
    "an order in a buffer": (
        lambda s, h: (h @ s.w[s.q].T).relu() @ s.u, {"q": torch.tensor([3, 1, 0, 2])},
        {"w": (6, 4), "u": (4, 2)}, (x(5, 4),), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_permuted_at_most(name: str) -> None:
    function, buffers, shapes, inputs, copies = INTEGERS[name]
    model = M(function, buffers, **shapes)
    symmetry = find_symmetry(model, inputs)
    assert worst(model, *inputs) < 1e-10
    assert round(10 ** symmetry.log_order()) == copies, str(symmetry)
    draw = torch.Generator().manual_seed(1)
    moved = act(symmetry, symmetry.sample(draw), model.state_dict())["q"]
    assert moved.dtype == buffers["q"].dtype
    assert moved.sort(0).values.equal(buffers["q"].sort(0).values)
    if copies == 1:
        assert moved.equal(buffers["q"])


# -- masks and data that are the same for all units ----------------------------------------------


def _attend(mask: Callable[[Any], dict[str, Any]], **buffers: Tensor) -> nn.Module:
    def function(s: Any, h: Tensor) -> Tensor:
        q, k, v = (F.linear(h, w).view(2, 5, 2, 3).transpose(1, 2) for w in (s.q, s.k, s.v))
        out = F.scaled_dot_product_attention(q, k, v, **mask(s))
        return out.transpose(1, 2).reshape(2, 5, 6) @ s.o

    return M(function, buffers, q=(6, 4), k=(6, 4), v=(6, 4), o=(6, 3))


_PER_HEAD = torch.tensor([[[1, 1, 0, 1, 1]] * 5, [[1, 0, 1, 1, 1]] * 5]).bool()


@pytest.mark.parametrize(("model", "heads"), [
    (_attend(lambda s: {}), 2),
    (_attend(lambda s: {"attn_mask": s.b}, b=_PER_HEAD), 2),  # a buffer moves with the heads
    (_attend(lambda s: {"attn_mask": _PER_HEAD.clone()}), 1),  # data do not
    (_attend(lambda s: {"attn_mask": torch.where(
        torch.ones(5, 5).tril().bool(), torch.zeros(1, 2, 5, 5).double(), -1e9)}), 2),
    (_attend(lambda s: {"attn_mask": torch.ones(5, 5).tril().bool().expand(2, 2, 5, 5)}), 2),
])  # fmt: skip
def test_a_mask_counts_heads(model: nn.Module, heads: int) -> None:
    symmetry = find_symmetry(model, (x(2, 5, 4),))
    assert worst(model, x(2, 5, 4)) < 1e-10
    assert round(10 ** symmetry.log_order()) == heads * 2**4  # and the signs of four GL


@pytest.mark.parametrize(("causal", "copies"), [(False, 120**2), (True, 1)])
def test_a_causal_mask_counts_positions(causal: bool, copies: int) -> None:
    def function(s: Any, h: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(s.q, s.k, s.v, is_causal=causal)
        return (h[:, None] * mixed.tanh()).sum(1)

    model = M(function, q=(5, 3), k=(5, 3), v=(5, 3))
    symmetry = find_symmetry(model, (x(2, 3),))
    assert worst(model, x(2, 3)) < 1e-10
    assert round(10 ** symmetry.log_order()) == copies * 2, str(symmetry)


def test_an_expanded_constant_has_no_strides() -> None:
    def function(s: Any, h: Tensor) -> Tensor:
        fixed = torch.ones(1, 3, 4, dtype=torch.float64).expand(5, -1, -1)[:, :2]
        return torch.cat([fixed, (h @ s.a.T).relu()[:, None]], 1).softmax(1) @ s.u

    assert worst(M(function, a=(4, 3), u=(4, 2)), x(5, 3)) < 1e-12


def test_a_window_on_a_copy_that_runs_into_another_row_is_no_window_on_the_original() -> None:
    def function(s: Any, h: Tensor) -> Tensor:
        turned = (h @ s.a.T).relu().view(-1, 4, 6).transpose(1, 2).contiguous()
        return turned.view(-1, 24)[:, 2:6] @ s.u

    assert worst(M(function, a=(24, 3), u=(4, 2)), x(5, 3)) < 1e-12


def test_nothing_comes_of_what_is_multiplied_by_zero() -> None:
    model = M(lambda s, h: (h @ s.a.T + (h @ s.b.T) * 0).relu() @ s.u,
              a=(4, 3), b=(4, 3), u=(4, 2))  # fmt: skip
    symmetry = find_symmetry(model, (x(5, 3),))
    assert symmetry.dead == ("b",) and worst(model, x(5, 3)) < 1e-12
    assert sum(map(symmetry.dimension, symmetry.spaces)) == 4


# -- random operators ----------------------------------------------------------------------------

RANDOM: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "dropout": (lambda h: F.dropout(h, 0.3, True), "dropout"),
    "dropout of nothing": (lambda h: F.dropout(h, 0.0, True), ""),
    "dropout in evaluation": (lambda h: F.dropout(h, 0.3, False), ""),
    "whole channels": (lambda h: F.dropout1d(h, 0.3, True), "dropout1d"),
    "alpha dropout": (lambda h: F.alpha_dropout(h, 0.3, True), "alpha_dropout"),
    "a random slope": (lambda h: F.rrelu(h, training=True), "rrelu"),
    "a mean slope": (lambda h: F.rrelu(h), ""),
    "noise": (lambda h: h + torch.randn(6).double(), "randn"),
    "noise of the same shape": (lambda h: h * torch.rand_like(h), "rand_like"),
    "coins": (lambda h: h * torch.bernoulli(h.sigmoid()), "bernoulli"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_are_noted(name: str) -> None:
    function, operator = RANDOM[name]
    model = M(lambda s, h: function(h @ s.w.T) @ s.u, w=(6, 4), u=(6, 2))
    build = lower(record(model, (x(5, 4),)))
    assert list(build.random) == ([operator] if operator else [])
    assert all(place.startswith("test_held.py:") for place in build.random.values())


@pytest.mark.parametrize(("dropout", "free"), [(F.dropout, 6), (F.alpha_dropout, 0)])
def test_alpha_dropout_is_no_scaling(dropout: Callable[..., Tensor], free: int) -> None:
    model = M(lambda s, h: dropout(h @ s.w.T, 0.3, True) @ s.u, w=(6, 4), u=(6, 2))
    symmetry = find_symmetry(model, (x(5, 4),))
    assert sum(map(symmetry.dimension, symmetry.spaces)) == free


# -- defects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake", ["raises", "wrong shape"])
def test_a_defect_freezes_its_place_and_is_reported(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rule("i0")
    def i0(build: Builder, call: Any) -> Any:
        (h,) = build.arguments(call, "input")
        if mistake == "raises":
            raise KeyError("no such axis")
        return build.reduce(h, [0], False, "sum")

    def function(s: Any, h: Tensor) -> Tensor:
        return torch.i0(h @ s.w.T) @ s.u + (h @ s.a.T).relu() @ s.b

    model = M(function, w=(4, 3), u=(4, 2), a=(4, 3), b=(4, 2))
    try:
        with pytest.raises((KeyError, AssertionError)):
            find_symmetry(model, (x(5, 3),))
        monkeypatch.setattr(defects, "raising", False)
        symmetry = find_symmetry(model, (x(5, 3),))
    finally:
        del RULES["i0"]
    assert symmetry.unknown["i0"].startswith("test_held.py:")
    assert "a defect of paramsym, please report it" in symmetry.unknown["i0"]
    assert "a defect of paramsym in i0" in symmetry.reasons["w"][0]
    assert len(symmetry.spaces) == 1 and worst(model, x(5, 3)) < 1e-12  # the rest stays free


def test_a_view_that_cannot_be_read_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise AssertionError("two leaves at one stride")

    model = M(lambda s, h: h[:, :2] @ s.w[1:3], w=(4, 3))
    monkeypatch.setattr(ix, "split_sum", stop)
    with pytest.raises(AssertionError, match="two leaves"):
        find_symmetry(model, (x(5, 3),))
    monkeypatch.setattr(defects, "raising", False)
    symmetry = find_symmetry(model, (x(5, 3),))
    assert "a defect of paramsym" in symmetry.unknown["view"] and not symmetry.spaces


def test_a_defect_in_the_comparison_of_readings_holds_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: Any) -> None:
        raise KeyError("no such label")

    model = M(lambda s, h: (h @ s.w.T).relu() @ s.u, w=(4, 3), u=(4, 2))
    assert find_symmetry(model, (x(5, 3),)).spaces
    monkeypatch.setattr("paramsym.lowering.held.disagreements", stop)
    with pytest.raises(KeyError):
        find_symmetry(model, (x(5, 3),))
    monkeypatch.setattr(defects, "raising", False)
    symmetry = find_symmetry(model, (x(5, 3),))
    assert "a defect of paramsym" in symmetry.unknown["lowering"] and not symmetry.spaces
    assert not symmetry.shifts


@pytest.mark.parametrize("step", ["lower", "Spaces", "find_shifts"])
def test_a_defect_in_a_pass_never_aborts(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise RecursionError("too deep")

    model = M(
        lambda s, h: torch.tanh(h @ s.w.T + s.a) @ s.u + s.b, w=(4, 3), u=(4, 2), a=(4,), b=(2,)
    )
    whole = find_symmetry(model, (x(5, 3),))
    monkeypatch.setattr(f"paramsym.tracing.infer.{step}", stop)
    with pytest.raises(RecursionError):
        find_symmetry(model, (x(5, 3),))
    monkeypatch.setattr(defects, "raising", False)
    symmetry = find_symmetry(model, (x(5, 3),))
    assert any("a defect of paramsym" in place for place in symmetry.unknown.values())
    assert not symmetry.shifts and {*symmetry.signature} == {"w", "u", "a", "b"}
    assert symmetry.spaces == (whole.spaces if step == "find_shifts" else {})


def test_a_copy_of_what_cuts_across_the_units_can_be_written_to() -> None:
    def function(s: Any, h: Tensor) -> Tensor:
        copy = s.w.reshape(-1)[10:].reshape(2, 3).clone()
        copy[..., :1] += copy.mean(0)[:1]
        return h[:, :2] @ copy + h @ s.w[1:4, 0:3] + s.w.reshape(-1)[13:]

    symmetry = find_symmetry(M(function, w=(4, 4)), (x(2, 3),))
    assert not symmetry.spaces and not symmetry.shifts
