"""Within ε in exact arithmetic, and as near to it as the precision has numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from paramsym.ensembles import attack
from paramsym.ensembles.attacks.ball import projection
from tests.ensembles.networks import seeded

PRECISIONS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def drawn(dtype: torch.dtype, clip: tuple[float, float]) -> Tensor:
    unit = torch.rand(20, 6, generator=seeded(), dtype=torch.float64)
    return (clip[0] + unit * (clip[1] - clip[0])).to(dtype).clamp(*clip)


@pytest.mark.filterwarnings("ignore:.*entries cannot move:UserWarning")
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(("epsilon", "clip"), [(0.3, (0, 255)), (3e-4, (0, 1)), (0.1, (-0.5, 0.5))])
def test_the_ball_is_not_left_by_any_rounding(
    dtype: torch.dtype, epsilon: float, clip: tuple[float, float]
) -> None:
    x = drawn(dtype, clip)
    into = projection(x, epsilon, clip)
    radius, range_ = Fraction(epsilon), [Fraction(value) for value in clip]
    for sign in (-1.0, 1.0):
        found = into(x + sign * torch.inf)
        further = torch.nextafter(found, found + sign * torch.inf)
        numbers = [map(Fraction, t.flatten().double().tolist()) for t in (x, found, further)]
        for a, b, c in zip(*numbers, strict=True):
            assert abs(b - a) <= radius and range_[0] <= b <= range_[1]
            beyond = abs(c - a) > radius or not range_[0] <= c <= range_[1]
            assert beyond  # the next number would be outside: nothing of the ball is given away
    assert bool((into(x) == x).all())
    plain = torch.stack([x + epsilon, x - epsilon]).clamp(*clip).double()
    gone = [abs(Fraction(b) - Fraction(a)) for a, b in zip(
        x.double().expand_as(plain).flatten().tolist(), plain.flatten().tolist(), strict=True
    )]  # fmt: skip
    if dtype != torch.float64:  # where ε is a number, and all may be rounded to one side
        assert max(gone) > radius  # the control: what is rounded to the nearest leaves the ball


@pytest.mark.filterwarnings("ignore:.*entries cannot move:UserWarning")
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("method", ["fgsm", "pgd"])
def test_attacks_stay_within_the_radius_in_every_precision(dtype: torch.dtype, method: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x, y = drawn(dtype, (0, 1)), torch.randint(0, 3, (20,), generator=seeded())
    for random_start in (False, True):
        found = attack(model, x, y, method, epsilon=0.013, clip=(0, 1), random_start=random_start,
                       generator=seeded(), through="margin")  # fmt: skip
        assert found.dtype == dtype and not torch.equal(found, x)
        assert float((found.double() - x.double()).abs().max()) <= 0.013


def test_entries_that_cannot_move_are_counted() -> None:
    x = torch.tensor([[0.001, 0.9]], dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match=r"1 of 2 entries cannot move.*torch.bfloat16"):
        into = projection(x, 3e-4, (0, 1))
    assert (into(x + 1) != x).tolist() == [[True, False]]
    projection(x, 0.0, (0, 1))  # none is to move, and nothing is said
    projection(x.float(), 3e-4, (0, 1))
