"""Additive freedom: what unread directions, absent ones and cancelling changes have to explain.

Every network has a twin in which one thing is changed, so that the freedom in question goes. Both
are audited: everything that is measured is explained, and the twin has less. Beside these stands
the algebra by itself: division of effects, canonical forms, meets of patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import audit, find_symmetry
from paramsym.lowering.builder import Builder
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Layout, tensor_blocks
from paramsym.primitives.directions import ONES, Columns, Profile, meet, minimal
from paramsym.primitives.words import Atom, Change, Word, fresh
from paramsym.recording.graph import Graph
from paramsym.tracing.division import canonical, divide, gathered
from paramsym.tracing.effects import Effects
from paramsym.tracing.sources import Source
from paramsym.tracing.translations import Translations
from tests.tracing.test_held import M, x
from tests.tracing.zoo import errors, randomise

Built = tuple[nn.Module, tuple[Tensor, ...]]
L = nn.Linear


@dataclass(frozen=True)
class Case:
    """A network with its nullity, and a twin without the freedom, with its own."""

    build: Callable[[], Built]
    nullity: int
    without: Callable[[], Built]
    rest: int


class Loop(nn.Module):
    """A recurrent cell unrolled by hand, from a given state."""

    def __init__(self, cell: type[nn.Module], start: float | None = 0.0, bias: bool = True):
        super().__init__()
        self.cell, self.out = cell(3, 4, bias=bias), L(4, 2)
        self.start, self.two = start, cell is nn.LSTMCell

    def forward(self, steps: Tensor) -> Tensor:
        state: Any = torch.zeros(steps.shape[0], 4, dtype=steps.dtype)
        state = (state, state) if self.two else state
        for t in range(steps.shape[1]):
            state = self.cell(steps[:, t], state)
        return self.out(state[0] if self.two else state)


class Layers(nn.Module):
    """A function of named layers."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module | nn.Parameter):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def built(model: nn.Module, *inputs: Tensor) -> Callable[[], Built]:
    return lambda: (randomise(model.double()), inputs)


def _loop(cell: type[nn.Module], **more: Any) -> Callable[[], Built]:
    return lambda: built(Loop(cell, **more), x(4, 3, 3))()


def _film(bias: bool) -> Callable[[], Built]:
    def run(s: Any, h: Tensor, z: Tensor) -> Tensor:
        return s.o(torch.tanh(s.g(z) * s.h(h) + s.b(z)))

    return lambda: built(
        Layers(run, h=L(3, 5, bias=bias), g=L(2, 5), b=L(2, 5), o=L(5, 2)), x(7, 3), x(7, 2)
    )()


def _adapter(paths: bool, weight: bool = True) -> Callable[[], Built]:
    def run(s: Any, h: Tensor) -> Tensor:
        if not weight:  # the weight reads something else
            low = s.b(s.a(h)) if paths else F.linear(h, s.b.weight @ s.a.weight)
            return s.o(torch.tanh(s.w(h.tanh()) + low))
        if paths:
            return s.o(torch.tanh(s.w(h) + s.b(s.a(h))))
        return s.o(torch.tanh(F.linear(h, s.w.weight + s.b.weight @ s.a.weight, s.w.bias)))

    return lambda: built(
        Layers(run, w=L(6, 7), a=L(6, 2, bias=False), b=L(2, 7, bias=False), o=L(7, 3)), x(9, 6)
    )()


def _highway(inside: int) -> Callable[[], Built]:
    def run(s: Any, h: Tensor) -> Tensor:
        h = s.e(h)
        t = torch.sigmoid(s.t(h))
        return s.o(torch.relu(s.h(h)) * t + h * (1 - t))

    return lambda: built(
        Layers(run, e=L(inside, 6), h=L(6, 6), t=L(6, 6), o=L(6, 3)), x(9, inside)
    )()


def _heads(width: int, bias: bool = True, value_bias: bool = True, key_bias: bool = True,
           out: int = 3) -> Callable[[], Built]:  # fmt: skip
    def run(s: Any, h: Tensor) -> Tensor:
        q, k, v = (layer(h).unflatten(-1, (2, width)).transpose(1, 2) for layer in (s.q, s.k, s.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return s.o(mixed.transpose(1, 2).flatten(2))

    return lambda: built(
        Layers(run, q=L(5, 2 * width), k=L(5, 2 * width, bias=key_bias),
               v=L(5, 2 * width, bias=value_bias), o=L(2 * width, out, bias=bias)), x(4, 6, 5)
    )()  # fmt: skip


def _function(function: Callable[..., Tensor], width: int, **shapes: Any) -> Callable[[], Built]:
    return lambda: (M(function, **shapes), (x(9, width),))


def _low_rank(rank: int) -> Callable[[], Built]:
    """A stream of width 6 written with less rank, read as a whole and unit by unit, no norm."""
    return _function(
        lambda s, h: torch.tanh((h @ s.e) @ s.a.T + s.b) @ s.u + torch.relu(h @ s.e) @ s.c, rank,
        e=(rank, 6), a=(4, 6), b=(4,), u=(4, 3), c=(6, 3),
    )  # fmt: skip


def _normed_head(norm: bool) -> Callable[[], Built]:
    def run(s: Any, h: Tensor) -> Tensor:
        h = torch.tanh(h @ s.e)
        h = F.layer_norm(h, (5,), s.g, s.t) if norm else torch.tanh(h) * s.g + s.t
        return h @ s.u

    return _function(run, 4, e=(4, 5), g=(5,), t=(5,), u=(5, 7))


CASES: dict[str, Case] = {
    "LSTMCell from zeros": Case(_loop(nn.LSTMCell), 16, _loop(nn.LSTMCell, bias=False), 0),
    "GRUCell from zeros": Case(_loop(nn.GRUCell), 8, _loop(nn.GRUCell, bias=False), 0),
    "RNNCell from zeros": Case(_loop(nn.RNNCell), 4, _loop(nn.RNNCell, bias=False), 0),
    "biases of FiLM": Case(_film(True), 10, _film(False), 5),
    "W + BA, two paths": Case(_adapter(True), 26, _adapter(True, False), 4),
    "W + BA, one weight": Case(_adapter(False), 26, _adapter(False, False), 4),
    "parallel weights": Case(
        _function(lambda s, h: torch.tanh(h @ s.a.T + h @ s.b.T) @ s.u, 3,
                  a=(4, 3), b=(4, 3), u=(4, 2)), 12,
        _function(lambda s, h: torch.tanh(h @ s.a.T + h.tanh() @ s.b.T) @ s.u, 3,
                  a=(4, 3), b=(4, 3), u=(4, 2)), 0),
    "a highway of rank 4 in width 6": Case(_highway(4), 30, _highway(6), 6),
    "heads wider than the output": Case(_heads(4), 82, _heads(3), 48),
    "a value bias": Case(_heads(2), 24, _heads(2, value_bias=False), 20),
    "a key bias": Case(_heads(2), 24, _heads(2, key_bias=False), 20),
    "a head without bias": Case(_normed_head(True), 10, _normed_head(False), 5),
    "a stream of low rank": Case(_low_rank(4), 14, _low_rank(6), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_everything_is_explained_with_and_without(name: str) -> None:
    case = CASES[name]
    assert case.rest < case.nullity
    for build, nullity in ((case.build, case.nullity), (case.without, case.rest)):
        model, inputs = build()
        symmetry = find_symmetry(model, inputs, check=False)
        found = errors(model, symmetry, inputs)
        assert found.pop("a wrong move") > 1e-3
        assert max(found.values()) < 1e-11, found
        measured = audit(model, inputs, symmetry=symmetry)
        assert (measured.nullity, measured.explained) == (nullity, nullity), str(measured)
        assert measured.residual < 1e-11


def test_the_cells_are_tried_on_other_states() -> None:
    """Negative control of the loops: a state that is given and varies leaves nothing to move."""

    def run(s: Any, h: Tensor, z: Tensor) -> Tensor:
        return s.o(s.c(h, z))

    model = randomise(Layers(run, c=nn.RNNCell(3, 4), o=L(4, 2)).double())
    symmetry = find_symmetry(model, (x(7, 3), x(7, 4)), check=False)
    assert {n for shift in symmetry.shifts for n in shift.parameters} == {"c.bias_ih", "c.bias_hh"}


# -- words and division --------------------------------------------------------------------------


def _word(parameter: str, *letters: int, power: float = 1.0) -> Word:
    return Word(parameter, 0, tuple((1, 4) for _ in letters), letters, power)


def test_equal_monomials_add_up_and_opposite_ones_go() -> None:
    own, i, j = fresh(), fresh(), fresh()
    one = Change(2.0, {1: own}, (_word("w", own, i),))
    two = Change(3.0, {1: own}, (_word("w", own, j),))  # the summed letter has another name
    (only,) = gathered([((0, 0), one), ((0, 0), two)], frozenset([own])).values()
    assert only[1].coefficient == 5.0
    assert not gathered([((0, 0), one), ((0, 0), two.moved({1: own}, -2 / 3))], frozenset([own]))
    assert len(gathered([((0, 0), one), ((1, 0), two)], frozenset([own]))) == 2  # other places


def test_canonical_forms_know_which_letters_are_tied() -> None:
    a, b, c = fresh(), fresh(), fresh()
    tied = Change(1.0, {1: a}, (_word("w", a), _word("v", a)))
    loose = Change(1.0, {1: a}, (_word("w", a), _word("v", b)))
    renamed = Change(1.0, {1: c}, (_word("w", c), _word("v", c)))
    none: frozenset[int] = frozenset()
    assert canonical((0, 0), tied, none) == canonical((0, 0), renamed, none)
    assert canonical((0, 0), tied, none) != canonical((0, 0), loose, none)
    assert canonical((0, 0), tied, none) != canonical((0, 0), tied, frozenset([a]))
    assert canonical((0, 0), tied, none) != canonical((0, 1), tied, none)


def test_a_bias_takes_up_a_product_and_not_the_other_way_round() -> None:
    p, q, s = fresh(), fresh(), fresh()
    bias = Change(1.0, {1: q})
    product = Change(1.0, {1: p}, (_word("w", s, p),))  # δ over s, contracted with w
    match = divide(bias, product, frozenset([q]), frozenset([s]))
    assert match is not None
    put, prefix = match
    assert put == {q: p} and prefix == product.factors
    assert divide(product, bias, frozenset([s]), frozenset([q])) is None
    # a factor that δ cannot take up: the same parameter, to another power
    other = Change(1.0, {1: q}, (_word("w", s, q, power=-1.0),))
    assert divide(other, product, frozenset([q]), frozenset([s])) is None


def test_data_is_divided_by_the_same_data_alone() -> None:
    i, j, k, m = (fresh() for _ in range(4))
    first = Change(1.0, {1: i}, (), Atom((5, 0), ((1, j),)))
    second = Change(1.0, {1: k}, (), Atom((5, 0), ((1, m),)))
    other = Change(1.0, {1: k}, (), Atom((6, 0), ((1, m),)))
    assert divide(first, second, frozenset([i, j]), frozenset([k, m])) == ({i: k, j: m}, ())
    assert divide(first, other, frozenset([i, j]), frozenset([k, m])) is None
    assert divide(Change(1.0, {1: i}), second, frozenset([i]), frozenset([k, m])) is None


def test_where_data_alone_vary_what_absorbs_is_constant() -> None:
    """δ of four rows, which data weigh, takes up the sum of the data: each row moves alike."""
    rows, i, m = (fresh() for _ in range(3))
    weighed = Change(1.0, {}, (), Atom((5, 0), ((1, rows),)))
    summed = Change(1.0, {}, (), Atom((5, 0), ((1, m),)))
    assert divide(weighed, summed, frozenset([rows]), frozenset()) == ({}, ())
    assert divide(weighed, summed, frozenset([rows]), frozenset([m])) == ({rows: m}, ())
    shown = Change(1.0, {4: rows}, (), Atom((5, 0), ((1, rows),)))
    wanted = Change(1.0, {4: i}, (), Atom((5, 0), ((1, i),)))
    source = _rows_of(rows)
    assert divide(shown, wanted, frozenset([rows]), frozenset()) == ({}, ())
    assert source.replaced(shown, {}, ()).at.keys() == {4}  # the data still vary along it
    assert source.replaced(Change(1.0, {}), {}, ()).coefficient == 4.0  # of every row


def _rows_of(letter: int) -> Source:
    build = Builder(Graph())
    table = build.new((4,), [ix.leaf(4)])
    (block,) = tensor_blocks(table, Layout())
    return Source("table", block, {1: letter}, (), {})


@pytest.mark.parametrize("rows", [5, 8])
def test_rows_that_are_not_reached_change_no_sum_over_the_others(rows: int) -> None:
    """They tie the first row to themselves, so that the five that are read are two windows."""

    def run(s: Any, h: Tensor) -> Tensor:
        h = torch.relu(s.e(h)) + s.table.weight[:5]
        h = h + h.new_ones(5, 5).tril() @ s.w(h)
        return s.o(torch.tanh(s.u(h.sum(1))))

    model = Layers(run, e=L(3, 4), table=nn.Embedding(rows, 4), w=L(4, 4), u=L(4, 4), o=L(4, 2))
    randomise(model.double())
    symmetry = find_symmetry(model, (x(2, 5, 3),), check=False)
    moved = errors(model, symmetry, (x(2, 5, 3),))
    assert moved.pop("a wrong move") > 1e-3
    assert max(moved.values()) < 1e-11, moved
    assert any({"table.weight", "u.bias"} <= {*shift.parameters} for shift in symmetry.shifts)


def test_a_bias_is_absorbed_by_pieces_that_are_met_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions between tokens are interpolated, and absorb what is alike at all of them alone."""

    def run(s: Any, h: Tensor) -> Tensor:
        table = s.table.weight
        between = F.interpolate(table[None, 1:3].mT, size=4, mode="linear")[0].mT
        h = torch.cat([h[:, :1].tanh(), h[:, 1:5], h[:, 5:].tanh()], 1)
        h = s.e(h) + torch.cat([table[:1], between, table[3:]])
        return s.o(F.layer_norm(h, (4,), s.n.weight, s.n.bias))

    model = Layers(run, e=L(3, 4), table=nn.Embedding(5, 4), n=nn.LayerNorm(4), o=L(4, 5))
    model, inputs = randomise(model.double()), (x(6, 7, 3),)
    symmetry = find_symmetry(model, inputs, check=False)
    moved = errors(model, symmetry, inputs)
    assert moved.pop("a wrong move") > 1e-3 and max(moved.values()) < 1e-11, moved
    assert audit(model, inputs, symmetry=symmetry).complete
    monkeypatch.setattr(Translations, "_among", lambda *_: ())  # the control: one way through
    once = find_symmetry(model, inputs, check=False)
    assert len(once.shifts) < len(symmetry.shifts)
    assert not audit(model, inputs, symmetry=once).complete


def test_what_is_constant_along_a_slot_needs_a_letter_of_its_own() -> None:
    """δ of a bias over units can be constant; a factor over units cannot."""
    i, k = fresh(), fresh()
    constant = Change(1.0, {})
    assert divide(Change(1.0, {1: i}), constant, frozenset([i]), frozenset([k])) == ({}, ())
    assert divide(Change(1.0, {1: i}, (_word("w", i),)), constant, frozenset(), frozenset()) is None
    assert divide(constant, Change(1.0, {1: k}), frozenset(), frozenset([k])) is None


def test_fresh_letters_keep_the_shape() -> None:
    i, j = fresh(), fresh()
    change = Change(2.0, {1: i, 4: j}, (_word("w", i, j),), Atom((3, 0), ((1, j),)))
    copy = change.with_fresh_letters()
    none: frozenset[int] = frozenset()
    assert canonical((0, 0), copy, none) == canonical((0, 0), change, none)
    assert not copy.letters() & change.letters()
    assert change.with_fresh_letters({i: i}).at[1] == i


# -- directions ----------------------------------------------------------------------------------


def _kernel(parameter: str, count: int) -> Profile:
    return Profile(kernel=(Columns(parameter, 0, ((1, 6), (6, count)), 1),))


def test_profiles_meet_in_what_has_both() -> None:
    w, v = _kernel("w", 2), _kernel("v", 3)
    both = w & v
    assert both is not None and both.parameters == {"w", "v"} and both == v & w
    assert w & w == w and ONES & ONES == ONES
    assert ONES & w is None and w.framed(((("g", 0.0), 1.0),)) & v is None
    assert both.fits(6) and not both.fits(5)  # 2 + 3 columns leave one direction of six


def test_patterns_meet_where_their_profiles_do() -> None:
    w, v = _kernel("w", 2), _kernel("v", 3)
    assert meet([{1: w}], [{1: v}], {1: 6}) == [{1: w & v}]
    assert meet([{1: w}], [{1: v}], {1: 5}) == []
    assert meet([{1: ONES}], [{2: ONES}], {1: 6, 2: 4}) == [{1: ONES, 2: ONES}]
    assert meet([{1: ONES}], [{1: w}], {1: 6}) == []
    assert meet([{}], [{1: w}], {1: 6}) == [{1: w}] and meet([], [{}], {}) == []
    assert minimal([{1: ONES, 2: ONES}, {1: ONES}]) == [{1: ONES}]


def _doubled(s: Any, h: Tensor) -> Tensor:
    table = s.a + s.a.sum(0)
    table[:1] *= 2
    return table[h]


def _summed(s: Any, h: Tensor) -> Tensor:
    inner = s.c + ((s.a + s.b) * s.a.sum(0)) @ s.d
    return ((h @ s.e).unsqueeze(-1) * inner).sum(-2)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (M(_doubled, a=(5, 4)), torch.arange(4)),
        (M(_summed, a=(4, 8), b=(4, 8), c=(4, 6), d=(8, 6), e=(2, 4)), x(8, 2)),
    ],
    ids=["a row", "a product"],
)
def test_a_division_that_only_turns_monomials_around_ends(model: nn.Module, inputs: Tensor) -> None:
    symmetry = find_symmetry(model, (inputs,), check=False)
    found = errors(model, symmetry, (inputs,))
    found.pop("a wrong move")
    assert max(found.values(), default=0.0) < 1e-12


def _probabilities(s: Any, h: Tensor) -> Tensor:
    """What sums to one, scaled entry by entry, moved, and scaled again."""
    return s.last(s.b * (s.c + s.a * torch.softmax(s.first(h), -1)))


ONCE_CONSTANT = {
    "batch norm": lambda: nn.Sequential(
        L(3, 2), nn.ReLU(), L(2, 4), nn.BatchNorm1d(4), L(4, 3, bias=False), nn.BatchNorm1d(3)
    ),
    "two of them": lambda: nn.Sequential(
        L(3, 2), nn.ReLU(), L(2, 5), nn.BatchNorm1d(5), nn.BatchNorm1d(5), L(5, 3)
    ),
    "probabilities": lambda: Layers(
        _probabilities, first=L(3, 4), last=L(4, 2), a=nn.Parameter(torch.rand(4) + 1),
        b=nn.Parameter(torch.rand(4) + 1), c=nn.Parameter(torch.rand(4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONCE_CONSTANT)
def test_a_constant_grows_with_the_gain_behind_it(name: str) -> None:
    """A bias counts by the gains that multiply it, a later one without: what the next layer can
    absorb of a direction that its input never has is their sum."""
    model = randomise(ONCE_CONSTANT[name]())
    symmetry = find_symmetry(model, (x(8, 3),), check=False)
    assert any(s.kind == "absent" for s in symmetry.shifts)
    found = errors(model, symmetry, (x(8, 3),))
    assert found.pop("a wrong move") > 1e-3
    assert max(found.values()) < 1e-12


def _faint(factor: float) -> nn.Module:
    return Layers(lambda s, h: factor * s.last(torch.sign(s.first(h))), first=L(3, 4), last=L(4, 2))


@pytest.mark.parametrize("factor", [1e-13, -1e-30])
def test_nothing_is_absent_because_it_is_small(factor: float) -> None:
    small, zero = (find_symmetry(_faint(c), (x(8, 3),), check=False) for c in (factor, 0.0))
    freed = {name for shift in small.shifts for name in shift.parameters} | {*small.dead}
    assert not {"last.weight", "last.bias"} & freed
    assert {"last.weight", "last.bias"} <= {*zero.dead}


@pytest.mark.parametrize(("rest", "left"), [(1e-9, 1e-9), (0.0, 0.0), (1e-16, 0.0)])
def test_sums_cancel_relative_to_their_terms(rest: float, left: float) -> None:
    w = _word("w", 1, 2)
    for size in (1e-13, 1.0, 1e13):
        sink = ("sink",)
        terms = [(sink, Change(c * size, {0: 1}, (w,))) for c in (1.0, rest - 1.0)]
        found = gathered(terms, frozenset({1}))
        assert [c.coefficient for _, c in found.values()] == pytest.approx(
            [left * size] * bool(left)
        )


class Residual(nn.Module):
    """Linear blocks in a row, each beside its input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Forgetful(set):
    """Where changes spread too far is forgotten at once."""

    def __contains__(self, item: object) -> bool:
        return False


def test_ways_that_double_with_each_block_are_not_all_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked = []
    followed = Effects.of

    def counted(effects: Effects, *arguments: Any) -> Any:
        walked.append(1)
        return followed(effects, *arguments)

    def shifts(count: int) -> list[str]:
        walked.clear()
        return [shift.name for shift in find_symmetry(Residual(count), torch.rand(5, 3)).shifts]

    monkeypatch.setattr(Effects, "of", counted)
    quick, few = shifts(10), len(walked)
    assert shifts(20) and len(walked) < 10 * few  # 2¹⁰ times as many ways
    made = Effects.__init__

    def forgetful(effects: Effects, *arguments: Any) -> None:
        made(effects, *arguments)
        effects._many = Forgetful()

    monkeypatch.setattr(Effects, "__init__", forgetful)
    assert shifts(10) == quick
    assert len(walked) > 3 * few
