"""Whether two networks lie on one orbit: a moved copy does, and one changed weight forbids it."""

from __future__ import annotations

import pytest
import torch

from paramsym import act, same_orbit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import counted, gap, generator, moved, of_zoo, state_of
from tests.tracing.zoo import ZOO, build, names

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

# One graph under another name.
TWINS = {
    "GPT-2 eager", "Llama eager", "Mistral", "RoBERTa", "DistilBERT",
    "MLP, ReLU in place", "MLP, SiLU", "MLP, sin", "MLP, hardtanh",
}  # fmt: skip
NETWORKS = [name for name in ZOO if name not in TWINS]
SINGLE = ["MLP, ReLU", "MLP, PReLU", "convolutions", "MultiheadAttention", "Llama", "BERT"]


@pytest.mark.parametrize("name", NETWORKS, ids=names(NETWORKS))
def test_a_random_element_of_everything_is_undone(name: str) -> None:
    symmetry, params = of_zoo(name)
    other = moved(symmetry, params)
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is Kind.EQUAL, verdict
    assert verdict.where == "" and verdict.residual <= 1e-7  # rounding of 135 parts
    assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-7


def test_moved_copies_are_far_from_where_they_came_from() -> None:
    """The control: what the element above undoes is large."""
    for name in ["MLP, ReLU", "MLP, GELU", "MLP, tanh", "Llama", "BERT"]:
        symmetry, params = of_zoo(name)
        assert gap(symmetry, params, moved(symmetry, params)) > 0.3, name


@pytest.mark.parametrize("name", SINGLE, ids=names(SINGLE))
def test_single_precision_is_undone_to_four_digits(name: str) -> None:
    symmetry, params = of_zoo(name)
    params = state_of(build(name)[0], torch.float32)
    other = moved(symmetry, params)
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is Kind.EQUAL, verdict
    assert gap(symmetry, params, act(symmetry, verdict.element, other)) <= 1e-4


def test_equal_tensors_need_no_element() -> None:
    symmetry, params = of_zoo("Llama")
    verdict = same_orbit(symmetry, params, dict(params))
    assert verdict.kind is Kind.EQUAL and verdict.residual == 0.0 and not verdict.element.parts


@pytest.mark.parametrize("name", ["MLP, tanh", "MultiheadAttention", "Llama"])
def test_the_verdict_goes_both_ways(name: str) -> None:
    symmetry, params = of_zoo(name)
    other = moved(symmetry, params)
    there, back = same_orbit(symmetry, params, other), same_orbit(symmetry, other, params)
    assert there.kind is back.kind is Kind.EQUAL
    round_trip = act(symmetry, there.element @ back.element, params)
    assert gap(symmetry, params, round_trip) <= 1e-8


@pytest.mark.parametrize("name", ["MLP, ReLU", "MLP, tanh", "MultiheadAttention"])
def test_two_networks_drawn_apart_differ(name: str) -> None:
    symmetry, params = of_zoo(name)
    source = generator(3)
    other = {
        n: p + torch.randn(p.shape, generator=source).to(p) if p.is_floating_point() else p
        for n, p in params.items()
    }
    verdict = same_orbit(symmetry, params, other)
    assert verdict.kind is Kind.DIFFERENT and verdict.residual > 0.1, verdict
    assert verdict.where.split("[")[0] in counted(symmetry)


def test_what_nothing_determines_does_not_count() -> None:
    """Rows that are never read and parameters that are dead may hold anything."""
    symmetry, params = of_zoo("OPT")
    name, rows = next((n, rows) for n, rows in symmetry.unreached.items() if rows)
    other = {**params, name: params[name].clone()}
    other[name][list(rows)] += 1.0
    assert same_orbit(symmetry, params, moved(symmetry, other)).kind is Kind.EQUAL
    seen = next(k for k in range(len(params[name])) if k not in rows)
    other[name][seen, 0] += 1.0  # the control
    assert same_orbit(symmetry, params, moved(symmetry, other)).kind is Kind.DIFFERENT


def test_the_tolerance_decides() -> None:
    symmetry, params = of_zoo("MLP, ReLU")
    other = {**params, "2.weight": params["2.weight"].clone()}
    other["2.weight"][3, 1] += 1e-4
    other = moved(symmetry, other)
    assert same_orbit(symmetry, params, other).kind is Kind.DIFFERENT
    assert same_orbit(symmetry, params, other, tol=1e-2).kind is Kind.EQUAL


@pytest.mark.parametrize("rounded", [False, True], ids=["kept", "rounded"])
def test_what_a_moved_copy_of_the_second_point_loses_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, rounded: bool
) -> None:
    """Where one of two equivalent points holds rounding for zeros, only its own copies tell."""
    symmetry, a = of_zoo("MLP, ReLU")
    name = next(n for n, p in a.items() if p.ndim == 2)
    b = {n: p.clone() for n, p in a.items()}
    b[name][0, 0] *= 1.2

    def copied(symmetry, params):
        made = moved(symmetry, params)
        if rounded and torch.equal(params[name], b[name]):
            made[name] = made[name] * (1 + 0.2 * torch.rand_like(made[name]))
        return made

    monkeypatch.setattr("paramsym.geometry.same_orbit.moved_copy", copied)
    kind = Kind.UNDECIDED if rounded else Kind.DIFFERENT
    assert same_orbit(symmetry, a, b).kind is kind
