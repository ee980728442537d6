"""The state of an optimiser moves as gradients and their squares do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, act_dual, act_state, find_symmetry
from paramsym.algebra import AbstractMonomial, Permutation
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def made(name: str) -> tuple[nn.Module, ParameterSymmetry, dict, dict]:
    """A network in float64 with its symmetry, its state, and random gradients by name."""
    model, _ = build(name)
    symmetry = derived(name)
    model = model.double()
    generator = torch.Generator().manual_seed(3)
    gradients = {
        n: torch.randn(p.shape, generator=generator).double() for n, p in model.named_parameters()
    }
    return model, symmetry, dict(model.state_dict()), gradients


def moments(gradients: dict) -> dict:
    """What Adam holds after one step without decay."""
    return {
        n: {"step": torch.tensor(1.0), "exp_avg": g, "exp_avg_sq": g**2, "max_exp_avg_sq": g**2}
        for n, g in gradients.items()
    }


def monomial_spaces(symmetry: ParameterSymmetry) -> list[str]:
    return [n for n, s in symmetry.spaces.items() if isinstance(s.group, AbstractMonomial)]


@pytest.mark.parametrize("name", ["MLP, ReLU", "convolutions", "ResNet", "Llama", "GPT-2"])
def test_moments_of_one_gradient_are_those_of_the_moved_gradient(name: str) -> None:
    _, symmetry, params, gradients = made(name)
    g = symmetry.sample(torch.Generator().manual_seed(1), only=monomial_spaces(symmetry))
    state = moments(gradients)
    moved = act_state(symmetry, g, state)
    expected = act_dual(symmetry, g, params, gradients)
    wrong = 0.0
    for n, gradient in expected.items():
        torch.testing.assert_close(moved[n]["exp_avg"], gradient)
        torch.testing.assert_close(moved[n]["exp_avg_sq"], gradient**2)
        torch.testing.assert_close(moved[n]["max_exp_avg_sq"], gradient**2)
        assert moved[n]["step"] is state[n]["step"]
        wrong = max(wrong, float((act(symmetry, g, params)[n] - gradient).abs().max()))
    assert wrong > 1e-2  # the parameters themselves move otherwise


def test_training_goes_on_as_if_it_had_begun_at_the_other_copy() -> None:
    """Permutations and signs commute with Adam: two steps, a move, two steps, and back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(16, 4).double()
    symmetry = find_symmetry(model, (x,))
    g = symmetry.sample(torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def steps() -> dict:
        for _ in range(2):
            optimizer.zero_grad()
            (model(x) - x[:, :2]).square().sum().backward()
            optimizer.step()
        return {n: p.clone() for n, p in model.state_dict().items()}

    start = steps()
    held = {n: optimizer.state[p] for n, p in model.named_parameters()}
    at_start = {n: {k: v.clone() for k, v in entries.items()} for n, entries in held.items()}
    expected = act(symmetry, g, steps())
    for state, agrees in ((act_state(symmetry, g, at_start), True), (at_start, False)):
        model.load_state_dict(act(symmetry, g, start))
        for n, p in model.named_parameters():
            optimizer.state[p] = {k: v.clone() for k, v in state[n].items()}
        reached = steps()
        gap = max(float((reached[n] - expected[n]).abs().max()) for n in expected)
        assert (gap < 1e-12) == agrees and (agrees or gap > 1e-3)


def test_first_moments_follow_any_element_with_the_parameters() -> None:
    _, symmetry, params, gradients = made("Llama")
    assert symmetry.frame_parameters
    g = symmetry.sample(torch.Generator().manual_seed(1))
    state = {n: {"momentum_buffer": x} for n, x in gradients.items()}
    moved = act_state(symmetry, g, state, params)
    expected = act_dual(symmetry, g, params, gradients)
    assert all(torch.equal(moved[n]["momentum_buffer"], x) for n, x in expected.items())
    with pytest.raises(ValueError, match="in the frame of a gain.*params=None came.*state_dict"):
        act_state(symmetry, g, state)
    empty = {n: {"momentum_buffer": None} for n in gradients}  # SGD before its first step
    assert act_state(symmetry, g, empty) == empty


def test_squares_under_a_change_of_basis_are_refused_with_the_reason() -> None:
    _, symmetry, _, gradients = made("MLP, identity")
    g = symmetry.sample(torch.Generator().manual_seed(1), only=list(symmetry.spaces))
    with pytest.raises(ValueError, match=r"GeneralLinear\(\d\), which mixes entries.*'exp_avg_sq'"):
        act_state(symmetry, g, moments(gradients))
    only_first = {n: {"exp_avg": x} for n, x in gradients.items()}
    assert act_state(symmetry, g, only_first).keys() == gradients.keys()
    shift = symmetry.shifts[0].name
    slide = symmetry.sample(torch.Generator().manual_seed(1), only=[shift])
    with pytest.raises(ValueError, match="along the shift .*mixes gradients.*orders, signs"):
        act_state(symmetry, slide, {n: {"exp_avg_sq": x**2} for n, x in gradients.items()})


def test_unknown_entries_and_names_are_refused() -> None:
    _, symmetry, _, gradients = made("MLP, ReLU")
    g = symmetry.sample(torch.Generator())
    name = next(iter(gradients))
    with pytest.raises(ValueError, match="'sum'.*action is not known.*exp_avg_sq.*anew"):
        act_state(symmetry, g, {name: {"sum": gradients[name]}})
    with pytest.raises(ValueError, match="0: ….*none of the .*named_parameters"):
        act_state(symmetry, g, {0: {"exp_avg": gradients[name]}})  # type: ignore[dict-item]


def test_squares_in_the_frame_of_a_gain_are_refused() -> None:
    """A permuted RMS-norm stream moves gradients of gains by more than their squares tell."""
    _, symmetry, _, gradients = made("Llama")
    small = symmetry.restrict(Permutation, translations=False)
    g = small.sample(torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match="'residual' in the frame of a gain"):
        act_state(small, g, {n: {"exp_avg_sq": v**2} for n, v in gradients.items()})
    rest = small.sample(torch.Generator().manual_seed(1), only="*.mlp")
    act_state(small, rest, {n: {"exp_avg_sq": v**2} for n, v in gradients.items()})


def test_an_element_of_a_smaller_group_moves_the_state_by_itself() -> None:
    _, symmetry, params, gradients = made("MLP, identity")
    small = symmetry.restrict(Permutation, translations=False)
    g = small.sample(torch.Generator().manual_seed(1))
    moved = act_state(symmetry, g, {n: {"exp_avg": v} for n, v in gradients.items()})
    expected = act_dual(small, g, params, gradients)
    for name, gradient in expected.items():
        torch.testing.assert_close(moved[name]["exp_avg"], gradient)
    assert max(float((expected[n] - gradients[n]).abs().max()) for n in expected) > 1e-2


def test_translations_by_constants_leave_the_state_where_it_is() -> None:
    """Their derivative is one: no parameters are asked for, and squares pass, too."""
    _, symmetry, params, gradients = made("GPT-2")
    constant = [shift.name for shift in symmetry.shifts if shift.is_constant]
    others = [shift.name for shift in symmetry.shifts if not shift.is_constant]
    assert constant and others
    g = symmetry.sample(torch.Generator().manual_seed(1), only=constant)
    assert any(bool((act(symmetry, g, params)[n] != params[n]).any()) for n in gradients)
    state = moments(gradients)
    moved, expected = act_state(symmetry, g, state), act_dual(symmetry, g, params, gradients)
    for n, gradient in gradients.items():
        torch.testing.assert_close(expected[n], gradient)
        for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            assert torch.equal(moved[n][key], state[n][key])
    slide = symmetry.sample(torch.Generator().manual_seed(1), only=others[:1])
    with pytest.raises(ValueError, match="slides along the shift"):
        act_state(symmetry, slide, {n: {"exp_avg": x} for n, x in gradients.items()})
