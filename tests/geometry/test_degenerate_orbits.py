"""Orbits where something is zero, equal or constant: an element where there is one, DIFFERENT only
where it is certain, and UNDECIDED rather than luck."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, align, same_orbit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import State, gap, generator, generic, moved, of_zoo, traced
from tests.geometry.small_networks import Attention, Net, mlp, rows, sequences
from tests.tracing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
Edit = Callable[[State], object]
EQUAL, DIFFERENT, UNDECIDED = Kind.EQUAL, Kind.DIFFERENT, Kind.UNDECIDED


def relu() -> tuple[ParameterSymmetry, State]:
    return generic(mlp(nn.ReLU()), rows())


def tanh() -> tuple[ParameterSymmetry, State]:
    return generic(mlp(nn.Tanh()), rows())


def attention() -> tuple[ParameterSymmetry, State]:
    return generic(Attention(8, 2, out=9), sequences())


def edited(params: State, *edits: Edit) -> State:
    made = {n: p.clone() for n, p in params.items()}
    for edit in edits:
        edit(made)
    return made


def low_rank(out: int, rank: int, into: int, seed: int) -> torch.Tensor:
    left, right = (torch.randn(s, generator=generator(seed + k), dtype=torch.float64)
                   for k, s in enumerate(((out, rank), (rank, into))))  # fmt: skip
    return 0.3 * left @ right


# -- units -------------------------------------------------------------------------------------


def dead(p: State) -> None:
    nothing_in(p), nothing_out(p)


def nothing_in(p: State) -> None:
    p["0.weight"][2], p["0.bias"][2] = 0, 0


def nothing_out(p: State) -> None:
    p["2.weight"][:, 2] = 0


def doubled(p: State) -> None:
    p["0.weight"][3], p["0.bias"][3] = p["0.weight"][2], p["0.bias"][2]
    p["2.weight"][:, 3] = p["2.weight"][:, 2]


def alike_in(p: State) -> None:
    p["0.weight"][3], p["0.bias"][3] = p["0.weight"][2], p["0.bias"][2]


def opposite(p: State) -> None:
    p["0.weight"][3], p["0.bias"][3] = -p["0.weight"][2], -p["0.bias"][2]
    p["2.weight"][:, 3] = -p["2.weight"][:, 2]


def unbiased(p: State) -> None:
    for name in p:
        if name.endswith("bias"):
            p[name].zero_()


def ones(p: State) -> None:
    for each in p.values():
        each.fill_(1.0)


UNITS: dict[str, Edit] = {
    "a dead unit": dead,
    "nothing in front of a unit": nothing_in,
    "nothing behind a unit": nothing_out,
    "a unit twice": doubled,
    "two units with one input": alike_in,
    "a unit and its negative": opposite,
    "no biases": unbiased,
    "all ones": ones,
}


@pytest.mark.parametrize("make", [relu, tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("case", UNITS)
def test_units_that_are_zero_or_alike_do_not_hide_an_element(
    case: str, make: Callable[[], tuple[ParameterSymmetry, State]]
) -> None:
    symmetry, params = make()
    params = edited(params, UNITS[case])
    for seed in range(3):
        other = moved(symmetry, params, seed)
        verdict = same_orbit(symmetry, params, other)
        assert verdict.kind is EQUAL, verdict
        assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-8


@pytest.mark.parametrize("make", [relu, tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("case", UNITS)
def test_with_units_that_are_zero_or_alike_another_network_is_never_equal(
    case: str, make: Callable[[], tuple[ParameterSymmetry, State]]
) -> None:
    """The control: what the two compute differs, by one weight behind the units in question."""

    def more(p: State) -> None:
        p["4.weight"][1, 4] += 0.01

    symmetry, params = make()
    params = edited(params, UNITS[case])
    verdict = same_orbit(symmetry, params, moved(symmetry, edited(params, more)))
    assert verdict.kind is not EQUAL
    assert verdict.kind is DIFFERENT or verdict.reason


@pytest.mark.parametrize("edit", [nothing_in, nothing_out], ids=["in front", "behind"])
def test_other_numbers_against_zeros_are_not_called_equal(edit: Edit) -> None:
    """A unit without input may write anything, and may read anything where nothing reads it: the
    functions agree, and no scale makes one of the other."""

    def stretched(p: State) -> None:
        side = p["2.weight"][:, 2] if edit is nothing_in else p["0.weight"][2]
        side *= torch.linspace(0.5, 2.0, len(side), dtype=torch.float64)

    def scaled(p: State) -> None:
        p["2.weight"][:, 2] *= 3.0
        p["0.weight"][2] *= 3.0
        p["0.bias"][2] *= 3.0

    symmetry, params = relu()
    params = edited(params, edit)
    verdict = same_orbit(symmetry, params, moved(symmetry, edited(params, stretched)))
    assert verdict.kind is not EQUAL and verdict.residual > 0.1
    assert same_orbit(symmetry, params, moved(symmetry, edited(params, scaled))).kind is EQUAL


def test_networks_with_equal_units_that_differ_are_not_matched_by_luck() -> None:
    """Both units of a pair have one input; which of them is which, only what follows could tell."""

    def swapped(p: State) -> None:  # a multiset of columns that no order makes the same
        p["2.weight"][0, [2, 3]] = p["2.weight"][0, [3, 2]]

    for make in (relu, tanh):
        symmetry, params = make()
        params = edited(params, alike_in)
        other = moved(symmetry, edited(params, swapped))
        assert same_orbit(symmetry, params, other).kind is not EQUAL
        whole = edited(params, lambda p: p["2.weight"].copy_(
            p["2.weight"][:, [0, 1, 3, 2, 4, 5, 6]]))  # fmt: skip
        assert same_orbit(symmetry, params, moved(symmetry, whole)).kind is EQUAL


def test_what_no_step_forces_is_undecided() -> None:
    """Who is who only a graph isomorphism would tell: a cycle of twelve, and two cycles of six.

    All units of either layer are alike in what is fixed, and have one norm.
    """
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    symmetry, params = generic(net, rows())
    params = {n: torch.full_like(p, 0.5) for n, p in params.items()}
    eye = torch.eye(6, dtype=torch.float64)
    one = {**params, "2.weight": eye + eye.roll(1, 0)}
    halves = torch.block_diag(*[torch.eye(3) + torch.eye(3).roll(1, 0)] * 2).double()
    two = {**params, "2.weight": halves}
    for other in (two, moved(symmetry, two)):
        verdict = same_orbit(symmetry, one, other)
        assert verdict.kind is UNDECIDED and verdict.reason, verdict
    for seed in range(3):
        assert same_orbit(symmetry, one, moved(symmetry, one, seed)).kind is not DIFFERENT


# -- heads -------------------------------------------------------------------------------------

FIRST = slice(0, 4)  # coordinates of the first head


def no_head(p: State) -> None:
    for name in "qkv":
        p[f"{name}.weight"][FIRST], p[f"{name}.bias"][FIRST] = 0, 0
    p["p.weight"][:, FIRST] = 0


def head_that_writes_nothing(p: State) -> None:
    p["p.weight"][:, FIRST] = 0


def head_that_asks_nothing(p: State) -> None:
    p["q.weight"][FIRST], p["q.bias"][FIRST] = 0, 0


def low_queries(p: State) -> None:
    p["q.weight"][FIRST], p["q.bias"][FIRST] = low_rank(4, 2, 8, 1), 0


def low_queries_and_keys(p: State) -> None:
    low_queries(p)
    p["k.weight"][FIRST], p["k.bias"][FIRST] = low_rank(4, 2, 8, 3), 0


def low_values(p: State) -> None:
    p["v.weight"][FIRST], p["v.bias"][FIRST] = low_rank(4, 1, 8, 5), 0


def equal_heads(p: State) -> None:
    for name in "qkv":
        for kind in ("weight", "bias"):
            own = p[f"{name}.{kind}"]
            own[4:] = own[:4]
    p["p.weight"][:, 4:] = p["p.weight"][:, :4]


HEADS: dict[str, Edit] = {
    "no head": no_head,
    "a head that writes nothing": head_that_writes_nothing,
    "a head that asks nothing": head_that_asks_nothing,
    "queries of rank two": low_queries,
    "queries and keys of rank two": low_queries_and_keys,
    "values of rank one": low_values,
    "equal heads": equal_heads,
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_without_full_rank_are_undone_or_said_to_be_undecided(case: str) -> None:
    symmetry, params = attention()
    params = edited(params, HEADS[case])
    for seed in range(2):
        other = moved(symmetry, params, seed)
        verdict = same_orbit(symmetry, params, other)
        assert verdict.kind is EQUAL, verdict
        assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-8


@pytest.mark.parametrize("case", HEADS)
def test_with_such_heads_another_network_is_never_equal(case: str) -> None:
    def more(p: State) -> None:
        p["p.weight"][3, 6] += 0.01

    symmetry, params = attention()
    params = edited(params, HEADS[case])
    verdict = same_orbit(symmetry, params, moved(symmetry, edited(params, more)))
    assert verdict.kind is not EQUAL, verdict


# -- gains -------------------------------------------------------------------------------------


class LessOne(nn.Module):
    """A root-mean-square norm whose gain is stored as its difference from one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


def normed(norm: nn.Module | None = None) -> tuple[ParameterSymmetry, State]:
    layers = {"i": nn.Linear(5, 8), "n": norm or nn.RMSNorm(8), "a": nn.Linear(8, 6),
              "b": nn.Linear(6, 8), "o": nn.Linear(8, 9)}  # fmt: skip
    net = Net(lambda s, x: s.o((h := s.i(x)) + s.b(torch.relu(s.a(s.n(h))))), **layers)
    return generic(net, rows())


def test_gains_may_have_any_sign() -> None:
    symmetry, params = normed()
    assert symmetry.frame_parameters
    size = params["n.weight"].abs()
    for gains in (-size, size):
        made = {**params, "n.weight": gains}
        other = moved(symmetry, made)
        verdict = same_orbit(symmetry, made, other)
        assert verdict.kind is EQUAL and verdict.residual <= 1e-8


def test_a_gain_with_a_zero_stands_still_and_is_named() -> None:
    """The basis in its frame cannot act; everything else is undone."""
    symmetry, params = normed()
    params = edited(params, lambda p: p["n.weight"][3:4].zero_())
    stuck = {space for space in symmetry.spaces if any(leg.frame for leg in symmetry.legs(space))}
    free = [space for space in symmetry.spaces if space not in stuck]
    assert stuck and free
    other = moved(symmetry, params, only=free)
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is EQUAL and verdict.residual <= 1e-8
    aligned = align(symmetry, params, other)
    assert {*aligned.held} >= stuck
    assert all("'n.weight', which has a zero" in aligned.held[space] for space in stuck)
    assert not align(*normed(), moved(*normed())).held  # the control


def test_a_gain_with_a_zero_in_one_network_alone_is_not_equal() -> None:
    symmetry, params = normed()
    other = edited(moved(symmetry, params), lambda p: p["n.weight"][3:4].zero_())
    assert same_orbit(symmetry, params, other).kind is not EQUAL


def test_gains_that_are_stored_less_one_may_vanish_in_storage() -> None:
    """A stored zero is a gain of one, and a stored −1 is a gain of zero."""
    symmetry, params = normed(LessOne(8))
    name = "n.weight"
    assert name in symmetry.frame_parameters and symmetry.offsets[name] == 1.0
    fresh = edited(params, lambda p: p[name].zero_())
    verdict = same_orbit(symmetry, fresh, moved(symmetry, fresh))
    assert verdict.kind is EQUAL and verdict.residual <= 1e-8
    gone = edited(params, lambda p: p[name][:1].fill_(-1.0))
    held = align(symmetry, gone, gone).held
    assert any(f"{name!r}, which has a zero" in why for why in held.values())


# -- as they are initialised -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MLP, ReLU", "GPT-2", "Llama", "BERT", "ViT"])
def test_a_network_as_it_is_initialised_is_undone(name: str) -> None:
    """Biases are zeros and gains are ones: they tell nothing, and stand in nobody's way."""
    torch.manual_seed(0)
    model, inputs = ZOO[name]()
    symmetry, params = traced(model.eval(), inputs)
    constant = [n for n in symmetry.signature if params[n].unique().numel() == 1]
    assert constant or name == "MLP, ReLU"
    other = moved(symmetry, params)
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is EQUAL, verdict
    assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-8


@pytest.mark.parametrize("out", [9, 3])
def test_an_adapter_that_starts_at_zero_is_undone(out: int) -> None:
    """Where fewer numbers read the stream than it has, shifts move the zeros, too."""
    layers = {"i": nn.Linear(5, 6), "down": nn.Linear(6, 2, bias=False),
              "up": nn.Linear(2, 6, bias=False), "o": nn.Linear(6, out)}  # fmt: skip
    net = Net(lambda s, x: s.o((h := torch.tanh(s.i(x))) + s.up(s.down(h))), **layers)
    symmetry, params = generic(net, rows())
    params = edited(params, lambda p: p["up.weight"].zero_())
    other = moved(symmetry, params)
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is EQUAL, verdict
    assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-8


def test_tied_embeddings_leave_the_stream_its_order() -> None:
    """Where the table of tokens is the head as well, the stream has permutations alone."""
    symmetry, params = of_zoo("GPT-2")
    assert symmetry.ties
    other = moved(symmetry, params)
    table = "transformer.wte.weight"
    assert same_orbit(symmetry, params, other).kind is EQUAL
    turned = edited(other, lambda p: p[table].copy_(-p[table]))
    turned |= {n: turned[table] for n in symmetry.aliases[table] if n in turned}
    assert same_orbit(symmetry, params, turned).kind is DIFFERENT
