"""Batches that look large and determine nothing: few different samples, or nearly the same ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym.ensembles import OrbitEnsemble
from paramsym.ensembles.fitting import tell_lost
from tests.ensembles.networks import HIDDEN, digits, seeded, trained


def made(x: Tensor, model: nn.Module | None = None, method: str = "group") -> OrbitEnsemble:
    return OrbitEnsemble(model or trained("Tanh"), x, "mlp", 3, method=method, generator=seeded())


@pytest.mark.parametrize("method", ["group", "shuffle"])
def test_few_different_samples_are_refused_however_often_they_come(method: str) -> None:
    x, _ = digits()
    for different in (1, 3, HIDDEN - 1):
        batch = x[:different].repeat(20, 1)
        said = f"{different} samples different from each other, of {20 * different}, came"
        with pytest.raises(ValueError, match=f"{said} for the {HIDDEN} units"):
            made(batch, method=method)
    with pytest.raises(ValueError, match="1 samples different from each other, of 40,"):
        made(0 * x[:40], method=method)
    made(x[:HIDDEN].repeat(3, 1), method=method)  # as many as units: a square fit, and no refusal
    made(x[:1].repeat(20, 1), method="inverse")  # it fits nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_that_are_nearly_the_same_are_told_of(dtype: torch.dtype) -> None:
    x, _ = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    near = torch.finfo(dtype).eps
    noise = torch.randn(60, 64, generator=seeded(), dtype=dtype)
    with pytest.warns(UserWarning, match=r"has rank \d for 8 units that are not zero"):
        made(x[:1].to(dtype) + near * noise, model)
    with pytest.warns(UserWarning, match=r"has rank \d for 8 units"):  # three, and near them
        made(x[:3].to(dtype).repeat(20, 1) + near * noise, model)
    made(x[:60].to(dtype), model)  # a warning would be an error


def test_members_are_arbitrary_where_it_is_said() -> None:
    x, _ = digits()
    model = trained("Tanh")
    noise = 1e-14 * torch.randn(60, 64, generator=seeded(), dtype=torch.float64)
    with pytest.warns(UserWarning, match="arbitrary elsewhere"):
        near = made(x[:1] + noise)
    apart = [
        float((e.logits(x[100:200]) - model(x[100:200])).norm(dim=(1, 2)).median().detach())
        for e in (near, made(x[:1000]))
    ]
    assert apart[0] > 3 * apart[1]


def test_dead_units_are_not_missed() -> None:
    x, _ = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)).double()
    with torch.no_grad():
        model.state_dict()["0.bias"][:5] = -1e3
    live = int(model[:2](x[:400]).ne(0).any(0).sum())
    ensemble = OrbitEnsemble(model, x[:400], "mlp", 3, 0.0, generator=seeded())
    assert [fit.rank for fit in ensemble.fits] == [live] * 3 and live <= HIDDEN - 5


def test_members_that_lose_rank_are_counted() -> None:
    with pytest.warns(UserWarning, match="the 4 of σ.H. for 2 of 3 members"):
        tell_lost([4, 3, 2], 4)
    tell_lost([4, 5], 4)
    x, _ = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).double()
    with torch.no_grad():
        model.state_dict()["0.bias"].fill_(
            20.0
        )  # all live on the batch, and none of them behind g = −I
    with pytest.warns(UserWarning, match="the 8 of σ.H. for 1 of 2 members"):
        elements = torch.stack([torch.eye(8), -torch.eye(8)]).double()
        OrbitEnsemble(model, x[:100], "mlp", 2, generator=seeded(), elements=elements)
