"""The six terms on exact actions against closed values, and against finite differences."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch

from paramsym.discovery.acting.commutators import commutator_defect, published_associativity
from paramsym.discovery.learned import Problem, Samples, layered, matrix_action, terms_on
from paramsym.discovery.learned.fields import Fields
from paramsym.discovery.learned.integrated import integrated
from paramsym.discovery.learned.objective import ASSOCIATIVITY
from paramsym.discovery.learned.orthogonality import orthogonality

WIDE = torch.float64
SCALAR = layered([1, 1, 1])
EXACT = [
    ([1, 1, 1], "identity"), ([1, 2, 1], "identity"), ([2, 2, 2], "identity"),
    ([2, 3, 1], "relu"), ([2, 2, 2, 1], "leaky_relu"), ([1, 2, 2], "square"),
]  # fmt: skip


def known(problem: Problem) -> torch.Tensor:
    assert problem.known is not None
    return problem.known


def conjugate(g: torch.Tensor, theta: torch.Tensor, samples: Samples) -> torch.Tensor:
    """θ ↦ φ⁻¹(gφ(θ)) with φ = sinh: an action that is linear in neither g nor θ."""
    return torch.asinh((g @ torch.sinh(theta)[:, :, None])[:, :, 0])


def curved(g: torch.Tensor, theta: torch.Tensor, samples: Samples) -> torch.Tensor:
    """No action: it depends on g, θ and X as a network would."""
    turned = torch.sin(g @ theta[:, :, None])[:, :, 0]
    return (
        turned + torch.tanh(theta) * samples.inputs[:, :1, 0] + (g**2).sum((1, 2))[:, None] * theta
    )


def test_scalar_generator_is_the_rescaling() -> None:
    assert torch.equal(known(SCALAR)[0], torch.diag(torch.tensor([1.0, -1.0], dtype=WIDE)))


@pytest.mark.parametrize(("widths", "activation"), EXACT)
@pytest.mark.parametrize("law", ["commutator", "second-order"])
def test_conditions_vanish_on_what_is_known(
    widths: list[int], activation: str, law: str, generator: torch.Generator
) -> None:
    problem = layered(widths, activation, data=2)
    samples = problem.draw(50, generator, WIDE)
    terms = terms_on(matrix_action, known(problem), problem, samples, associativity=law)
    assert max(terms["invariance"], terms["identity"], terms["associativity"]) <= 1e-12
    tilted = known(problem) + 0.1 * torch.eye(problem.size, dtype=WIDE)
    assert terms_on(matrix_action, tilted, problem, samples)["invariance"] > 1e-2


def test_published_associativity_is_the_length_of_parameters(generator: torch.Generator) -> None:
    samples = SCALAR.draw(20_000, generator, WIDE)
    terms = terms_on(matrix_action, known(SCALAR), SCALAR, samples)
    assert terms["associativity"] == pytest.approx(float(samples.parameters.norm(dim=1).mean()))
    assert terms["associativity"] == pytest.approx(sqrt(pi / 2), rel=0.02)  # E|θ| in the plane
    assert terms["size"] == pytest.approx(
        float((1 - samples.parameters.norm(dim=1)).abs().mean()), rel=1e-12
    )
    assert terms["sparsity"] == 2


@pytest.mark.parametrize("law", ["commutator", "second-order"])
def test_laws_hold_on_a_nonlinear_action_and_fail_off_it(
    law: str, generator: torch.Generator
) -> None:
    problem = layered([1, 2, 1])
    samples = problem.draw(40, generator, WIDE)
    h = torch.randn(3, 4, 4, generator=generator, dtype=WIDE) / 4
    holds = terms_on(conjugate, h, problem, samples, associativity=law)
    fails = terms_on(curved, h, problem, samples, associativity=law)
    assert holds["associativity"] <= 1e-11 and holds["identity"] <= 1e-14
    assert fails["associativity"] > 0.1 and fails["identity"] > 0.1
    assert terms_on(conjugate, h, problem, samples)["associativity"] > 0.1  # published


@pytest.mark.parametrize("action", [conjugate, curved])
def test_terms_are_those_of_the_slow_twin(action, generator: torch.Generator) -> None:
    """`commutators` takes one sample at a time, from dicts, and nests `torch.func`."""
    problem = layered([1, 2, 1])
    samples = problem.draw(4, generator, WIDE)
    h = torch.randn(2, 4, 4, generator=generator, dtype=WIDE) / 4

    def single(g, params, data):
        theta = problem.flat({name: params[name][None] for name in problem.shapes})
        moved = problem.parts(action(g[None], theta, Samples(theta, *data)))
        return {name: part[0] for name, part in moved.items()}

    def slow(measure) -> float:
        total = 0.0
        for row in range(len(samples)):
            one = samples[row : row + 1]
            params = {name: part[0] for name, part in problem.parts(one.parameters).items()}
            total += float(measure(single, params, (one.inputs, one.targets), h).sum())
        return total / len(samples)

    for law, measure in (("commutator", commutator_defect), ("published", published_associativity)):
        fast = terms_on(action, h, problem, samples, associativity=law)["associativity"]
        assert fast == pytest.approx(slow(measure), rel=1e-10, abs=1e-13)


def test_derivatives_are_those_of_finite_differences(generator: torch.Generator) -> None:
    problem = layered([2, 2, 2, 1], "tanh", data=2)
    samples = problem.draw(7, generator, WIDE)
    h = torch.randn(2, problem.size, problem.size, generator=generator, dtype=WIDE) / 10
    fields, step = Fields(curved, h, problem, samples), 1e-5
    unit = torch.eye(problem.size, dtype=WIDE).repeat(len(samples), 1, 1)

    def act(g: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return curved(g, theta, samples)

    def velocity(i: int, theta: torch.Tensor) -> torch.Tensor:
        return (act(unit + step * h[i], theta) - act(unit - step * h[i], theta)) / (2 * step)

    theta = samples.parameters
    for i in range(2):
        own = velocity(i, theta)
        assert torch.allclose(fields.velocity[i], own, atol=1e-8)
        ends = [problem.loss(samples.at(theta + s * own)) for s in (step, -step)]
        assert torch.allclose(fields.loss_slope()[i], (ends[0] - ends[1]) / (2 * step), atol=1e-6)
        for j in range(2):
            ends = [velocity(j, theta + s * own) for s in (1e-3, -1e-3)]
            found = (ends[0] - ends[1]) / 2e-3
            assert torch.allclose(fields.derivative()[i, j], found, atol=1e-4)
            ends = [
                act(unit + 1e-3 * (a * h[i] + b * h[j]), theta) for a, b in
                ((1, 1), (1, -1), (-1, 1), (-1, -1))
            ]  # fmt: skip
            found = (ends[0] - ends[1] - ends[2] + ends[3]) / 4e-6
            assert torch.allclose(fields.second()[i, j], found, atol=1e-4)


def test_published_orthogonality_is_least_at_opposite_generators() -> None:
    h = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=WIDE)
    apart = torch.stack([h, torch.diag(torch.tensor([1.0, 3.0], dtype=WIDE))])
    opposite = torch.stack([h, -3 * h])
    assert float(orthogonality(apart)) == 0 and float(orthogonality(apart, signed=False)) == 0
    assert float(orthogonality(opposite)) == pytest.approx(-1)
    assert float(orthogonality(opposite, signed=False)) == pytest.approx(1)


def test_integrated_terms_vanish_on_the_exact_action_alone(generator: torch.Generator) -> None:
    problem = layered([1, 2, 1])
    samples = problem.draw(30, generator, WIDE)
    times = 2 * torch.rand(30, generator=generator, dtype=WIDE) - 1
    exact = integrated(matrix_action, known(problem), problem, samples, times)
    assert max(float(term) for term in exact.values()) <= 1e-12
    law = integrated(conjugate, known(problem), problem, samples, times)
    assert float(law["associativity"]) <= 1e-12 and float(law["invariance"]) > 0.1
    wrong = integrated(curved, known(problem), problem, samples, times)
    assert min(float(term) for term in wrong.values()) > 0.1


def test_what_does_not_fit_is_refused(generator: torch.Generator) -> None:
    samples = SCALAR.draw(3, generator, WIDE)
    with pytest.raises(ValueError, match=r"\(2, 2\) came, .*was expected.*Pass h\[None\]"):
        terms_on(matrix_action, torch.eye(2, dtype=WIDE), SCALAR, samples)
    with pytest.raises(ValueError, match="invariance is nan, a finite number.*Look for NaN"):
        terms_on(matrix_action, known(SCALAR) * float("nan"), SCALAR, samples)
    with pytest.raises(ValueError, match=r"action gave \(3,\), the shape \(B, P\).*Wrap"):
        terms_on(lambda g, theta, _: theta.sum(1) * g[:, 0, 0], known(SCALAR), SCALAR, samples)
    with pytest.raises(ValueError, match="'wrong' was expected to be one of .*commutator.*Pass"):
        terms_on(matrix_action, known(SCALAR), SCALAR, samples, associativity="wrong")
    with pytest.raises(ValueError, match="at least three positive widths.*Pass for example"):
        layered([1, 1])
    with pytest.raises(ValueError, match="'gelu'.*expected to be one of.*build a Problem"):
        layered([1, 1, 1], "gelu")
    assert set(ASSOCIATIVITY) == {"published", "commutator", "second-order"}
