"""The action: a homomorphism, sharing what does not move, agreeing with its derivative."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, act_dual, find_symmetry, infinitesimal
from paramsym.algebra import GeneralLinear, Monomial
from paramsym.structure.axes import parse_axis
from paramsym.structure.contraction import contracted
from paramsym.structure.element import AlgebraElement
from paramsym.structure.space import Space


def networks() -> dict[str, tuple[nn.Module, tuple]]:
    torch.manual_seed(0)
    relu = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    linear = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    encoder = nn.TransformerEncoderLayer(8, 2, 6, batch_first=True, norm_first=True)
    tables = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 5), nn.LayerNorm(5),
                           nn.Linear(5, 3, bias=False))  # fmt: skip
    return {
        "relu": (relu, (torch.randn(3, 4).double(),)),
        "linear": (linear, (torch.randn(3, 4).double(),)),
        "encoder": (encoder, (torch.randn(2, 5, 8).double(),)),
        "tables": (tables, (torch.randint(0, 7, (3, 5)),)),
    }


@pytest.fixture(params=["relu", "linear", "encoder", "tables"])
def case(request: pytest.FixtureRequest):
    model, inputs = networks()[request.param]
    model = model.double().eval()
    symmetry = find_symmetry(model, inputs)
    generator = torch.Generator().manual_seed(1)
    return model, inputs, symmetry, symmetry.sample(generator), symmetry.sample(generator)


def distance(a: dict, b: dict) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a if a[n].numel())


def test_product_acts_as_one_after_the_other(case) -> None:
    model, _, symmetry, g, h = case
    state = model.state_dict()
    assert distance(act(symmetry, g @ h, state), act(symmetry, g, act(symmetry, h, state))) < 1e-11


def test_inverse_undoes(case) -> None:
    model, _, symmetry, g, h = case
    state = model.state_dict()
    assert distance(act(symmetry, ~g, act(symmetry, g, state)), state) < 1e-11
    assert distance(act(symmetry, ~(g @ h), act(symmetry, g @ h, state)), state) < 1e-10
    assert distance(act(symmetry, g, state), state) > 1e-3


def test_inputs_are_never_modified_and_what_rests_is_shared(case) -> None:
    model, _, symmetry, g, _ = case
    state = {n: t.clone() for n, t in model.state_dict().items()}
    copies = {n: t.clone() for n, t in state.items()}
    act(symmetry, g, state)
    assert distance(state, copies) == 0.0
    still = act(symmetry, symmetry.sample(torch.Generator(), only=[]), state)
    assert all(still[n] is state[n] for n in state)


def test_half_precision_stays_half_precision() -> None:
    model, inputs = networks()["relu"]
    symmetry = find_symmetry(model.double(), inputs)
    g = symmetry.sample(torch.Generator().manual_seed(0))
    half = {n: t.to(torch.bfloat16) for n, t in model.state_dict().items()}
    moved = act(symmetry, g, half)
    wide = act(symmetry, g, {n: t.float() for n, t in half.items()})
    assert all(moved[n].dtype == torch.bfloat16 for n in moved)
    assert all(torch.allclose(moved[n].float(), wide[n].float(), rtol=0.01) for n in moved)


def test_derivative_is_the_limit_of_small_moves(case) -> None:
    model, _, symmetry, _, _ = case
    state = model.state_dict()
    generator = torch.Generator().manual_seed(2)
    values = {}
    for space in symmetry.spaces.values():
        if space.group.dimension:
            batch = tuple(symmetry.spaces[b].size for b in space.over)
            values[space.name] = space.group.random_algebra(generator, batch, torch.float64)
    algebra = AlgebraElement(symmetry, values, {})
    velocity = infinitesimal(symmetry, algebra, state)
    step = 1e-5
    plus = act(symmetry, algebra.exp(step), state)
    minus = act(symmetry, algebra.exp(-step), state)
    numeric = {n: (plus[n] - minus[n]) / (2 * step) for n in velocity}
    assert distance(velocity, numeric) < 1e-7


def test_gradients_move_by_the_dual(case) -> None:
    model, inputs, symmetry, g, _ = case
    state = {n: p.detach() for n, p in model.named_parameters()}

    def loss(params: dict) -> torch.Tensor:
        return torch.func.functional_call(model, params, inputs).sin().sum()

    moved = act(symmetry, g, state)
    expected = torch.func.grad(loss)(moved)
    found = act_dual(symmetry, g, state, torch.func.grad(loss)(state))
    assert distance(found, expected) < 1e-9 * max(1.0, max(float(t.abs().max())
                                                           for t in expected.values()))  # fmt: skip


def test_the_plain_dual_is_wrong_only_where_gains_are_frames(case) -> None:
    model, inputs, symmetry, _, _ = case
    if symmetry.frame_parameters or symmetry.shifts:
        return
    g = symmetry.sample(torch.Generator().manual_seed(5))
    state = {n: p.detach() for n, p in model.named_parameters()}
    gradients = {n: torch.randn_like(p) for n, p in state.items()}
    assert distance(act(symmetry.dual, _in(symmetry.dual, g), gradients),
                    act_dual(symmetry, g, state, gradients)) < 1e-10  # fmt: skip


def _in(symmetry: ParameterSymmetry, g):
    from paramsym import GroupElement

    return GroupElement(symmetry, g.parts)


def test_json_round_trip(case) -> None:
    _, _, symmetry, _, _ = case
    text = symmetry.to_json()
    assert ParameterSymmetry.from_json(text) == symmetry
    broken = json.loads(text)
    del broken["signature"]
    with pytest.raises(ValueError, match="lacks or misspells 'signature'"):
        ParameterSymmetry.from_json(json.dumps(broken))


@pytest.mark.parametrize(
    "text",
    ["784", "h1", "h1*", "c1^2", "h^0", "a⊙b*", "(c2 16)*", "h1 + 3", "(h1 + 3)*", "(q 2 d)",
     "(head (q + k + v))", "residual[ln.weight]*⊙norm*", "x[w + 1, v ^ -0.5]"],
)  # fmt: skip
def test_types_print_as_what_they_parse_from(text: str) -> None:
    assert str(parse_axis(text)) == text
    assert parse_axis(text).T.T == parse_axis(text)


@pytest.mark.parametrize("text", ["", "a +", "(a b", "a b", "^2", "a⊙3"])
def test_nonsense_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match="parse_axis"):
        parse_axis(text)


def by_hand(group) -> ParameterSymmetry:
    types = {"w": "h, 3", "v": "2, h*", "running_var": "h^2"}
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    return ParameterSymmetry({"h": Space("h", group)}, signature)


def test_a_signature_by_hand_moves_powers_too() -> None:
    symmetry = by_hand(Monomial(4))
    g = symmetry.sample(torch.Generator().manual_seed(0))
    state = {"w": torch.randn(4, 3).double(), "v": torch.randn(2, 4).double(),
             "running_var": torch.rand(4).double()}  # fmt: skip
    moved = act(symmetry, g, state)
    value = g["h"]
    torch.testing.assert_close(moved["v"] @ moved["w"], state["v"] @ state["w"])
    wanted = value.diagonal**2 * state["running_var"][value.order]
    torch.testing.assert_close(moved["running_var"], wanted)


def test_a_power_of_a_general_linear_space_is_an_error() -> None:
    with pytest.raises(ValueError, match="representation only of a monomial group. 'running_var'"):
        by_hand(GeneralLinear(4))


def test_what_does_not_fit_says_what_and_why() -> None:
    symmetry = by_hand(Monomial(4))
    g = symmetry.sample(torch.Generator())
    state = {"w": torch.randn(4, 3), "v": torch.randn(2, 4), "running_var": torch.rand(4)}
    with pytest.raises(ValueError, match=r"'w' has shape \(5, 3\).*needs \(4, 3\).*another model"):
        act(symmetry, g, {**state, "w": torch.randn(5, 3)})
    with pytest.raises(ValueError, match="'v' is missing.*complete state_dict"):
        act(symmetry, g, {n: t for n, t in state.items() if n != "v"})


def test_chains_are_contracted_from_their_cheap_end(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(letters: str) -> tuple[torch.Tensor, str]:
        shape = [{"a": 40, "b": 3, "c": 5, "d": 50}[c] for c in letters]
        return torch.randn(shape, generator=generator, dtype=torch.float64), letters

    chain = [drawn("d"), drawn("abc"), drawn("bcd"), drawn("b")]
    tensors = [x for x, _ in chain]
    expected = torch.einsum("d,abc,bcd,b->ba", *tensors)
    made, largest, einsum = [], [0], torch.einsum

    def counted(text: str, *operands: torch.Tensor) -> torch.Tensor:
        made.append(einsum(text, *operands))
        largest[0] = max(largest[0], made[-1].numel())
        return made[-1]

    monkeypatch.setattr(torch, "einsum", counted)
    found, letters = contracted(chain, "zba")  # what no operand has is left out
    assert letters == "ba" and largest[0] < 200  # 30,000 from left to right
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(contracted([*chain, drawn("b")], "ba")[0], expected)
