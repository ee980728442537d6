"""Saturated losses: exact as long as there is a number for the gradient, then it is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paramsym.ensembles import MemberEnsemble, attack, robust_accuracy
from paramsym.ensembles.attacks.losses import THROUGH, cross_entropies, margins
from paramsym.ensembles.attacks.refusals import THROUGH as NAMES
from tests.ensembles.networks import CLIP, digits, seeded, trained


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def sure(factor: float) -> nn.Sequential:
    """The same classifier in float32 whatever the factor, which is a power of two."""
    model = nn.Sequential(*trained(), Times(factor))
    return nn.Sequential(*(m.float() if isinstance(m, Times) else _single(m) for m in model))


def _single(module: nn.Module) -> nn.Module:
    if not isinstance(module, nn.Linear):
        return module
    made = nn.Linear(module.in_features, module.out_features)
    made.load_state_dict(module.state_dict())
    return made


def images() -> tuple[Tensor, Tensor]:
    x, y = digits()
    x, y = x[:60].float(), y[:60]
    right = sure(1.0)(x).argmax(-1) == y
    return x[right], y[right]


@pytest.mark.parametrize("method", ["fgsm", "pgd"])
def test_scaled_logits_are_no_defence_against_the_margin(method: str) -> None:
    x, y = images()
    left = {}
    for factor in (1.0, 2.0**14):
        model = sure(factor)
        found = attack(model, x, y, method, epsilon=0.2, clip=CLIP, through="margin")
        left[factor] = robust_accuracy(model, y, {"margin": found}).value
    assert left[1.0] == left[2.0**14] < 0.4


def test_the_cross_entropy_says_where_it_has_no_gradient() -> None:
    x, y = images()
    model = sure(2.0**14)
    with pytest.warns(UserWarning, match=r"zero in every entry for \d+ of \d+ samples.*'margin'"):
        stuck = attack(model, x, y, "pgd", epsilon=0.2, clip=CLIP)
    assert float((stuck == x).all(-1).double().mean()) > 0.8
    assert robust_accuracy(model, y, {"stuck": stuck}).value > 0.8  # what the warning is about
    with pytest.warns(UserWarning, match="zero in every entry"):
        attack(MemberEnsemble(model, [{}]), x, y, epsilon=0.2, clip=CLIP, through="mean-loss")
    attack(
        model, x, y, epsilon=0.0, clip=CLIP
    )  # nothing was to move: no warning, which is an error
    attack(sure(1.0), x, y, "pgd", epsilon=0.2, clip=CLIP)


def test_dead_networks_are_told_of_by_the_margin_too() -> None:
    x, y = images()
    dead = sure(1.0)
    with torch.no_grad():
        dead.state_dict()["0.bias"].fill_(-1e6)
    dead[1] = nn.ReLU()
    with pytest.warns(UserWarning, match="look for saturated or dead units"):
        attack(dead, x, y, epsilon=0.2, clip=CLIP, through="margin")


def test_between_rounding_and_underflow_the_direction_is_exact() -> None:
    """p_y = 1 in float32 from a margin of 17; the gradient in the label's logit must not go."""
    logits = torch.tensor([[30.0, 0.0, 2.0]]).requires_grad_()
    label = torch.tensor([0])
    (found,) = torch.autograd.grad(cross_entropies(logits, label).sum(), logits)
    wanted = logits.detach().double().softmax(-1)
    wanted[0, 0] = -wanted[0, 1:].sum()
    assert torch.allclose(found.double(), wanted, rtol=1e-6, atol=0)
    (usual,) = torch.autograd.grad(cross_entropy(logits, label), logits)
    assert float(usual[0, 0]) == 0 != float(wanted[0, 0])  # the control
    x, y = images()
    left = [
        robust_accuracy(sure(f), y, {"a": attack(sure(f), x, y, epsilon=0.1, clip=CLIP)}).value
        for f in (1.0, 4.0)
    ]
    assert abs(left[0] - left[1]) < 0.1


def test_losses_are_the_usual_ones() -> None:
    logits = 5 * torch.randn(4, 7, 6, generator=seeded(), dtype=torch.float64)
    y = torch.randint(0, 6, (7,), generator=seeded())
    for k in range(4):
        usual = cross_entropy(logits[k], y, reduction="none")
        assert torch.allclose(cross_entropies(logits[k], y), usual, rtol=1e-12)
    assert torch.equal(margins(logits, y).isinf().sum(-1), torch.ones(4, 7).long())
    assert tuple(THROUGH) == NAMES
    ruled_out = logits[0].clone()
    ruled_out[:, 5] = -torch.inf
    low = y.clamp(max=4)
    usual = cross_entropy(ruled_out, low, reduction="none")
    assert torch.allclose(cross_entropies(ruled_out, low), usual, rtol=1e-12)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 10)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x,)


class One(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Constant(), "has no gradient in x"),
        (Pair(), "answers tuple to .* samples; logits"),
        (One(), r"answers \(\d+, 1\) to .* at least two classes"),
        (nn.Flatten(0), "answers .* samples; logits"),
        (lambda x: x, "a function came; an nn.Module"),
    ],
    ids=["constant", "tuple", "one class", "one axis", "function"],
)
def test_models_that_cannot_be_attacked(model: nn.Module, message: str) -> None:
    x, y = images()
    with pytest.raises(ValueError, match=message):
        attack(model, x, y, epsilon=0.1, clip=CLIP)


def test_classes_that_the_model_does_not_have() -> None:
    x, y = images()
    for model in (sure(1.0), MemberEnsemble(sure(1.0), [{}, {}])):
        with pytest.raises(ValueError, match="class 10 came; classes below 10"):
            attack(model, x, 0 * y + 10, epsilon=0.1, clip=CLIP)


def test_inference_mode_is_no_obstacle() -> None:
    x, y = images()
    wanted = attack(sure(1.0), x, y, "pgd", epsilon=0.1, clip=CLIP)
    model = sure(1.0)
    with torch.inference_mode():
        found = attack(model, x * 1, y * 1, "pgd", epsilon=0.1, clip=CLIP)
    assert torch.equal(found, wanted)
