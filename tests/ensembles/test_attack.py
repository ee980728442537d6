"""Attacks do what their formulas say, stay in the ball and in the range, and go through members."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paramsym.ensembles import OrbitEnsemble, attack, robust_accuracy
from paramsym.ensembles.attacks.losses import THROUGH
from tests.ensembles.networks import CLIP, apart, digits, seeded, trained

COUNT = 60


def data() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[:COUNT], y[:COUNT]


def ensemble(strength: float = 0.4) -> OrbitEnsemble:
    x, _ = digits()
    return OrbitEnsemble(trained(), x[:400], "mlp", 5, strength, generator=seeded())


def slope(score, x: Tensor) -> Tensor:
    """∇ by automatic differentiation of one sample after the other."""
    rows = []
    for sample in x:
        given = sample[None].clone().requires_grad_()
        rows.append(torch.autograd.grad(score(given, len(rows)), given)[0])
    return torch.cat(rows)


def through(name: str, model: OrbitEnsemble, y: Tensor):
    """The losses again, one sample and one member at a time."""

    def score(x: Tensor, place: int) -> Tensor:
        logits, label = model.logits(x)[:, 0], y[place]
        if name == "mean-logits":
            return cross_entropy(logits.mean(0), label)
        if name == "mean-probabilities":
            return -logits.softmax(-1).mean(0)[label].log()
        if name == "margin":
            mean = logits.mean(0)
            return torch.cat([mean[:label], mean[label + 1 :]]).max() - mean[label]
        return torch.stack([cross_entropy(member, label) for member in logits]).mean()

    return score


def test_fgsm_of_one_network_is_the_formula() -> None:
    x, y = data()
    model = trained()
    signs = slope(lambda z, place: cross_entropy(model(z)[0], y[place]), x).sign()
    wanted = (x + 0.05 * signs).clamp(0, 1)
    for labels, same in ((y, True), (y.int(), True), ((y + 1) % 10, False)):
        found = attack(model, x, labels, epsilon=0.05, clip=CLIP)  # rounded inward: one unit off
        assert torch.allclose(found, wanted, rtol=0, atol=2e-16) == same


@pytest.mark.parametrize("name", THROUGH)
def test_adaptive_pgd_is_a_loop_written_by_hand(name: str) -> None:
    x, y = data()
    model, epsilon = ensemble(), 0.06
    moved = x.clone()
    for _ in range(4):
        moved = moved + 0.025 * slope(through(name, model, y), moved).sign()
        moved = torch.min(torch.max(moved, x - epsilon), x + epsilon).clamp(0, 1)
    found = attack(model, x, y, "pgd", epsilon=epsilon, clip=CLIP, steps=4, step_size=0.025,
                   through=name)  # fmt: skip
    assert float((found - moved).abs().max()) < 1e-12
    once = attack(model, x, y, epsilon=epsilon, clip=CLIP, through=name)
    assert apart(once, found) > 1e-2


@pytest.mark.parametrize("method", ["fgsm", "pgd"])
@pytest.mark.parametrize("random_start", [False, True])
def test_attacks_stay_in_the_ball_and_in_the_range(method: str, random_start: bool) -> None:
    x, y = data()
    for epsilon in (0.0, 0.03, 0.3, 2.0):
        found = attack(
            ensemble(), x, y, method, epsilon=epsilon, clip=CLIP, step_size=1.0, steps=3,
            random_start=random_start, generator=seeded(),
        )  # fmt: skip
        assert float((found - x).abs().max()) <= epsilon
        assert float(found.min()) >= 0 and float(found.max()) <= 1
        assert not found.requires_grad
        assert torch.equal(found, x) == (epsilon == 0)
    wide = attack(trained(), x, y, epsilon=0.3, clip=(-math.inf, math.inf))
    assert float(wide.min()) < 0  # it is the range that keeps the others inside


def test_a_random_start_is_that_of_its_generator() -> None:
    x, y = data()
    starts = [
        attack(trained(), x, y, "pgd", epsilon=0.1, clip=CLIP, steps=1, step_size=1e-6,
               random_start=True, generator=seeded(s))
        for s in (0, 0, 1)
    ]  # fmt: skip
    assert torch.equal(starts[0], starts[1]) and not torch.equal(starts[0], starts[2])
    still = attack(trained(), x, y, "pgd", epsilon=0.1, clip=CLIP, steps=1, step_size=1e-6)
    assert float((starts[0] - still).abs().max()) > 0.05


def test_attacks_work_and_more_steps_work_better() -> None:
    x, y = data()
    model = trained()
    right = [float((model(z).argmax(-1) == y).double().mean()) for z in (
        x, attack(model, x, y, epsilon=0.12, clip=CLIP),
        attack(model, x, y, "pgd", epsilon=0.12, clip=CLIP, steps=20),
    )]  # fmt: skip
    assert right[0] > 0.95 and right[2] <= right[1] < right[0] - 0.2
    noise = x + 0.12 * torch.randn(x.shape, generator=seeded()).double().sign()
    assert float((model(noise.clamp(0, 1)).argmax(-1) == y).double().mean()) > right[1] + 0.2


def test_a_second_softmax_flattens_the_loss_and_an_attack_through_it_fails() -> None:
    """A confident network saturates its softmax: the gradient of the second loss vanishes."""
    x, y = data()
    bare = trained()
    sure = nn.Sequential(*bare, _Times(200.0), nn.Softmax(-1))
    with pytest.warns(UserWarning, match="gradient is zero in every entry for .* of 60 samples"):
        flat = attack(sure, x, y, epsilon=0.12, clip=CLIP)
    through_logits = attack(bare, x, y, epsilon=0.12, clip=CLIP)
    answers = [(bare(z).argmax(-1) == y).double().mean() for z in (flat, through_logits)]
    assert answers[0] > answers[1] + 0.2
    stuck = (flat == x).flatten(1).all(1)
    assert stuck.double().mean() > 0.3  # no gradient is left at these


class _Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def test_clipping_centred_images_to_zero_and_one_would_cost_more_than_the_attack() -> None:
    x, y = data()
    centred, model = x - 0.5, nn.Sequential(_Plus(0.5), *trained())
    right = attack(model, centred, y, epsilon=0.01, clip=(-0.5, 0.5))
    free = attack(model, centred, y, epsilon=0.01, clip=(-math.inf, math.inf))
    wrong = free.clamp(0, 1)  # as published
    shares = [float((model(z).argmax(-1) == y).double().mean()) for z in (centred, right, wrong)]
    assert shares[1] > 0.9 and shares[2] < 0.75
    with pytest.raises(ValueError, match=r"entries from -0\.5 to 0\.5 came.*lose half"):
        attack(model, centred, y, epsilon=0.01, clip=(0, 1))


class _Plus(nn.Module):
    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


def test_the_model_is_as_it_was() -> None:
    x, y = data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 10))
    model = model.double().train()
    model[2].eval()
    mean = model.state_dict()["1.running_mean"].clone()
    with (
        torch.no_grad()
    ):  # a caller may judge without gradients; the attack needs them all the same
        found = attack(model, x, y, "pgd", epsilon=0.1, clip=CLIP)
    assert not torch.equal(found, x)
    assert [m.training for m in model] == [True, True, False, True]
    assert torch.equal(mean, model.state_dict()["1.running_mean"])
    assert all(p.grad is None for p in model.parameters())


def test_robust_accuracy_is_the_worst_of_all_attempts_sample_by_sample() -> None:
    x, y = data()
    model, of = trained(), ensemble()
    attempts = {
        "clean": x,
        "transferred": attack(model, x, y, epsilon=0.08, clip=CLIP),
        "adaptive": attack(of, x, y, "pgd", epsilon=0.08, clip=CLIP),
    }
    found = robust_accuracy(of, y, attempts)
    votes = {name: of.vote(tried) == y for name, tried in attempts.items()}
    worst = [all(bool(v[k]) for v in votes.values()) for k in range(COUNT)]
    assert found.right.tolist() == worst
    assert found.value == sum(worst) / COUNT <= min(found.by_attack.values())
    assert found.error == pytest.approx(math.sqrt(found.value * (1 - found.value) / COUNT))
    assert found.strongest == min(found.by_attack, key=found.by_attack.__getitem__)
    assert found.by_attack == {n: pytest.approx(float(v.double().mean())) for n, v in votes.items()}
    by_function = robust_accuracy(of.vote, y, attempts)
    assert torch.equal(by_function.right, found.right)
    by_mean = robust_accuracy(lambda z: of.mean_logits(z).argmax(-1), y, attempts)
    assert by_mean.by_attack["clean"] > 0.9
    single = robust_accuracy(model, y, attempts)
    assert single.by_attack["clean"] == float((model(x).argmax(-1) == y).double().mean())
    failing = {name: attempts[name] for name in ("clean", "transferred")}
    assert robust_accuracy(of, y, failing).value >= found.value  # fewer attempts show more


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [1.0]}, "list came; a floating tensor"),
        ({"x": torch.zeros(COUNT, 64, dtype=torch.uint8)}, "torch.uint8 came"),
        ({"x": torch.full((COUNT, 64), float("nan"))}, "not finite came"),
        ({"x": torch.full((COUNT, 64), 2.0)}, r"entries from 2 to 2 came; entries in \[0.0, 1.0\]"),
        ({"y": torch.zeros(3).long()}, r"torch.int64 of shape \(3,\) came; one class"),
        ({"y": torch.zeros(COUNT)}, "torch.float32"),
        ({"y": -torch.ones(COUNT).long()}, "one class was expected, a whole number ≥ 0"),
        ({"clip": None}, "clip=None.*low < high was expected"),
        ({"clip": (1.0, 0.0)}, "it is no range"),
        ({"epsilon": -0.1}, "epsilon=-0.1.*finite radius ≥ 0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"method": "newton"}, "method='newton'.*'fgsm', 'pgd'"),
        ({"through": "vote"}, "through='vote'.*'mean-logits'"),
        ({"steps": 0}, "steps=0.*at least one"),
        ({"step_size": 0.0}, "step_size=0.0.*Leave it out"),
        ({"random_start": True}, "generator=None.*torch.Generator was expected"),
    ],
    ids=lambda v: v if isinstance(v, str) else ", ".join(v),
)
def test_what_attacks_refuse(change: dict, message: str) -> None:
    x, y = data()
    given = {"x": x, "y": y, "epsilon": 0.1, "clip": CLIP, **change}
    with pytest.raises(ValueError, match=message):
        attack(trained(), given.pop("x"), given.pop("y"), **given)


def test_the_range_has_no_default() -> None:
    x, y = data()
    with pytest.raises(TypeError, match="clip"):
        attack(trained(), x, y, epsilon=0.1)  # pyright: ignore[reportCallIssue]


def test_gradients_that_are_not_finite_are_no_attack() -> None:
    x, y = data()
    broken = nn.Sequential(*trained(), _Times(math.nan))
    with pytest.raises(ValueError, match="gradient of the loss has entries that are not finite"):
        attack(broken, x, y, epsilon=0.1, clip=CLIP)


def test_attempts_that_are_none() -> None:
    x, y = data()
    with pytest.raises(ValueError, match="no attempt came"):
        robust_accuracy(trained(), y, {})
    with pytest.raises(ValueError, match=r"attempts\['clean'\].*one class for each"):
        robust_accuracy(lambda z: trained()(z), y, {"clean": x})
