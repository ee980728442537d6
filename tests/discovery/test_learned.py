"""Training on the objective, and what is measured afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paramsym.discovery import Verdict, check_action
from paramsym.discovery.learned import (
    DATA_DEPENDENT,
    HOMOGENEOUS,
    Learned,
    Problem,
    Samples,
    Schedule,
    Weights,
    layered,
    learn,
    matrix_action,
    terms_on,
)
from paramsym.discovery.learned.measures import (
    Median,
    finite_errors,
    invariant_share,
    known_share,
    velocities,
)

WIDE = torch.float64
SCALAR = layered([1, 1, 1])
SHORT = Schedule(steps=120, batch=32, samples=500, fresh=100)
MOVING = Weights(size=10.0)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def learned() -> Learned:
    """The scalar net, with the weight that makes it move, in a second."""
    schedule = Schedule(steps=700, batch=64, samples=2000, rate=3e-3, fresh=1000)
    return learn(SCALAR, generator=seeded(0), weights=MOVING, schedule=schedule)


def test_training_finds_the_direction_of_the_rescaling(learned: Learned) -> None:
    report = learned.report
    assert learned.curve[-1]["objective"] < learned.curve[0]["objective"] / 3
    assert report.known is not None and report.known.value > 0.95
    assert report.speed.value > 0.8
    untrained = learn(SCALAR, generator=seeded(0), schedule=replace(SHORT, steps=1))
    assert untrained.report.known is not None and untrained.report.known.value < 0.9


def test_finite_elements_are_not_invariant(learned: Learned) -> None:
    """The report says so: the objective holds at the identity alone."""
    (each,) = learned.report.finite
    assert each.distance.low > 0.1
    assert each.change.low > 1e-2


def test_report_is_what_the_functions_measure(learned: Learned) -> None:
    report = learned.report
    samples = SCALAR.draw(4000, seeded(5), WIDE)
    (again,) = finite_errors(learned.network, learned.generators, SCALAR, samples, seeded(6))
    assert again.distance.value == pytest.approx(report.finite[0].distance.value, rel=0.1)
    assert again.change.value == pytest.approx(report.finite[0].change.value, rel=0.25)
    for law in ("published", "commutator", "second-order"):
        found = terms_on(learned.network, learned.generators, SCALAR, samples, associativity=law)
        assert found["associativity"] == pytest.approx(report.associativity[law], rel=0.1)
        assert found["size"] == pytest.approx(report.terms["size"], rel=0.2)
    assert report.exact_associativity is not None and report.exact is not None
    assert report.exact_associativity["published"] == pytest.approx(1.2533, rel=0.05)
    assert max(report.exact_associativity[law] for law in ("commutator", "second-order")) < 1e-14
    assert report.exact["invariance"] < 1e-14
    text = str(report)
    assert "cosine to what is known" in text and "in a random direction" in text


def test_action_at_one_point_is_a_row_of_the_network(learned: Learned) -> None:
    samples = SCALAR.draw(3, seeded(2), WIDE)
    g = torch.linalg.matrix_exp(learned.generators[0])
    rows = learned.network(g.repeat(3, 1, 1), samples.parameters, samples)
    params = {name: part[1] for name, part in SCALAR.parts(samples.parameters).items()}
    moved = learned.action(g, params, (samples.inputs[1], samples.targets[1]))
    assert {name: part.shape for name, part in moved.items()} == {"W1": (1, 1), "W2": (1, 1)}
    flat = torch.cat([part.flatten() for part in moved.values()])
    assert torch.allclose(flat, rows[1], atol=1e-14)


def test_exact_action_has_no_finite_error_and_the_right_angle(generator: torch.Generator) -> None:
    for widths, activation in (([1, 2, 1], "identity"), ([2, 3, 2], "relu")):
        problem = layered(widths, activation)
        samples = problem.draw(300, generator, WIDE)
        assert problem.known is not None
        finite = finite_errors(matrix_action, problem.known[:2], problem, samples, generator)
        assert max(each.change.value for each in finite) < 1e-13
        assert min(each.elsewhere.value for each in finite) > 1e-2
        fields = velocities(matrix_action, problem.known[:2], problem, samples)
        for share in (known_share, invariant_share):
            assert float(share(problem, samples, fields)[0].nanmedian()) == pytest.approx(1)
        random = torch.randn(fields.shape, generator=generator, dtype=WIDE)
        assert float(known_share(problem, samples, random).median()) < 0.95


def test_kernel_of_the_scalar_net_is_the_rescaling(generator: torch.Generator) -> None:
    samples = SCALAR.draw(200, generator, WIDE)
    directions = torch.randn(4, 200, 2, generator=generator, dtype=WIDE)
    found = invariant_share(SCALAR, samples, directions)
    assert torch.allclose(found, known_share(SCALAR, samples, directions), atol=1e-9)
    theta = samples.parameters
    tangent = theta * torch.tensor([1.0, -1.0], dtype=WIDE)
    cosine = (directions * tangent).sum(-1).abs() / directions.norm(dim=-1) / theta.norm(dim=1)
    assert torch.allclose(found, cosine, atol=1e-9)


def test_published_term_has_a_slope_at_the_exact_action_and_the_laws_have_none(
    generator: torch.Generator,
) -> None:
    """Where training arrives at the rescaling, the published term drives it away."""
    samples = SCALAR.draw(500, generator, WIDE)
    assert SCALAR.known is not None
    bent = torch.tensor([[0.0, 0.0], [0.0, 0.2]], dtype=WIDE)
    found = {
        law: [
            terms_on(matrix_action, SCALAR.known + t * bent, SCALAR, samples, associativity=law)
            for t in (0.0, 1.0)
        ]
        for law in ("published", "second-order")
    }
    exact, off = found["published"]
    assert off["associativity"] < 0.9 * exact["associativity"]
    assert off["invariance"] > 0.1 and exact["invariance"] == 0
    assert all(each["associativity"] < 1e-14 for each in found["second-order"])


def test_objective_of_doing_nothing_is_the_weight_of_size(generator: torch.Generator) -> None:
    """With the published γ₄ it is 1, less than that of the rescaling h = diag(1, −1) itself."""
    samples = SCALAR.draw(2000, generator, WIDE)
    assert SCALAR.known is not None

    def objective(h: torch.Tensor) -> float:
        terms = terms_on(matrix_action, h, SCALAR, samples)
        return float(HOMOGENEOUS.total({n: torch.tensor(v) for n, v in terms.items()}))

    assert objective(1e-9 * SCALAR.known) == pytest.approx(HOMOGENEOUS.size, rel=1e-6)
    assert objective(SCALAR.known) > 1.9


@pytest.mark.parametrize(
    ("objective", "law"),
    [("infinitesimal", "published"), ("infinitesimal", "commutator"),
     ("infinitesimal", "second-order"), ("integrated", "commutator")],
)  # fmt: skip
def test_a_seed_decides_everything(objective: str, law: str) -> None:
    def curve(seed: int) -> tuple:
        problem = layered([1, 2, 1])
        found = learn(
            problem, generator=seeded(seed), generators=2, associativity=law,
            objective=objective, schedule=replace(SHORT, steps=8), signed=False, size=3,
        )  # fmt: skip
        assert found.generators.shape == (2, 3, 3)
        return found.curve, found.generators.tolist(), found.report

    state = torch.get_rng_state()
    first = curve(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert curve(1) == first
    assert curve(2)[1] != first[1]


@pytest.mark.parametrize("widths", [[3, 3, 1], [2, 2, 2, 1]])
def test_networks_without_known_symmetry_lower_the_objective(widths: list[int]) -> None:
    problem = layered(widths, "sigmoid" if len(widths) == 3 else "tanh")
    found = learn(
        problem, generator=seeded(0), generators=2, weights=DATA_DEPENDENT,
        schedule=replace(SHORT, decay=1.0),
    )  # fmt: skip
    assert found.curve[-1]["objective"] < 0.8 * found.curve[0]["objective"]
    assert found.report.known is None and found.report.exact is None
    assert "known" not in str(found.report)
    samples = problem.draw(3, seeded(1), WIDE)
    with pytest.raises(ValueError, match="no symmetry of this problem is known.*invariant_share"):
        known_share(problem, samples, samples.parameters)


def test_median_and_its_interval(generator: torch.Generator) -> None:
    found = Median.of(torch.arange(101, dtype=WIDE))
    assert (found.value, found.lowest_tenth) == (50, 10)
    inside = sum(
        (m := Median.of(torch.randn(101, generator=generator, dtype=WIDE))).low <= 0 <= m.high
        for _ in range(400)
    )
    assert 365 <= inside <= 397  # of 95 %
    assert Median.of(torch.tensor([2.0])).high == 2


def broken(params: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    return params["W1"] @ inputs / 0


BAD = [
    (SCALAR, {"associativity": "none"}, "'none' was expected to be one of.*Pass"),
    (SCALAR, {"objective": "other"}, "'other' was expected to be \"infinitesimal\".*Pass"),
    (SCALAR, {"generators": 0}, "generators=0 came, a positive number.*at least 1"),
    (SCALAR, {"size": 0}, "size=0 came, a positive number"),
    (SCALAR, {"schedule": Schedule(steps=0)}, "steps=0 came"),
    (SCALAR, {"schedule": Schedule(batch=20, samples=10)}, "20 out of 10 samples.*smaller"),
    (replace(SCALAR, function=lambda p, x: x[:, :, 0]), {}, r"outputs \(2, 1\).*\(2, 1, 1\) were"),
    (replace(SCALAR, function=broken), {}, "not finite at standard normal.*Rescale"),
    (SCALAR, {"schedule": replace(SHORT, rate=1e30)}, "at step .*, a finite number.*Lower"),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "options", "message"), BAD, ids=[str(i) for i in range(9)])
def test_what_cannot_be_learned_is_refused(problem: Problem, options: dict, message: str) -> None:
    options = {"schedule": SHORT, **options}
    with pytest.raises(ValueError, match=f"learn\\(problem with P = 2\\).*{message}"):
        learn(problem, generator=seeded(0), **options)


def test_samples_are_rows(generator: torch.Generator) -> None:
    samples = layered([2, 3, 1], data=2).draw(4, generator, WIDE)
    assert isinstance(samples[:2], Samples) and len(samples[:2]) == 2
    assert samples.data().shape == (4, 6) and len(samples.repeated(3)) == 12


def test_check_action_takes_it_and_refuses_it_as_a_symmetry(learned: Learned) -> None:
    """The same definitions, by the same function, hold on gθ and fail on what was learned."""
    problem, h = learned.problem, learned.generators[0]

    def loss(params: dict[str, torch.Tensor], data: tuple) -> torch.Tensor:
        theta = problem.flat({name: part[None] for name, part in params.items()})
        return problem.loss(Samples(theta, data[0][None], data[1][None]))[0]

    def elements(generator: torch.Generator) -> torch.Tensor:
        return torch.linalg.matrix_exp(h * torch.rand((), generator=generator, dtype=WIDE))

    def drawn(generator: torch.Generator) -> Samples:
        return problem.draw(1, generator, WIDE)

    def params(generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {n: part[0] for n, part in problem.parts(drawn(generator).parameters).items()}

    def data(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        one = drawn(generator)
        return one.inputs[0], one.targets[0]

    checked = check_action(
        learned.action, loss, elements=elements, params=params, data=data, samples=16
    )
    assert checked["loss invariance"].verdict is Verdict.FAILS
    assert checked["associativity"].verdict is Verdict.FAILS

    exact = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=WIDE)

    def rescaling(g: torch.Tensor, params: dict[str, torch.Tensor], data: tuple) -> dict:
        return {"W1": g[0, 0] * params["W1"], "W2": g[1, 1] * params["W2"]}

    held = check_action(
        rescaling, loss, params=params, data=data, samples=16,
        elements=lambda generator: torch.linalg.matrix_exp(
            exact * torch.rand((), generator=generator, dtype=WIDE)
        ),
    )  # fmt: skip
    assert held.is_symmetry
