"""Sensitivities against the Jacobian, and against what rounding does to the outputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paramsym.quantize.sensitivities import sensitivities


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    return model, torch.randn(6, 3, dtype=torch.float64)


def jacobian(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    params = {n: p.detach() for n, p in model.named_parameters()}
    model.eval()
    found = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    return {n: j.square().sum((0, 1)) for n, j in found.items()}


def test_exact_sums_are_the_squared_columns_of_the_jacobian() -> None:
    model, x = network()
    model.train()
    found = sensitivities(model, [(x[:2],), {"input": x[2:]}], projections=None)
    assert model.training  # and dropout took no part:
    for name, expected in jacobian(model, x).items():
        torch.testing.assert_close(found[name], expected)


def test_projections_converge_to_the_exact_sums() -> None:
    model, x = network()
    expected = jacobian(model, x)
    errors = []
    for count in (4, 1000):
        found = sensitivities(model, [(x,)], count, torch.Generator().manual_seed(0))
        errors.append(max(float((found[n] / e - 1).nan_to_num().abs().max())
                          for n, e in expected.items()))  # fmt: skip
    assert errors[1] < 0.3 < errors[0]


def test_small_independent_errors_of_the_weights_change_the_outputs_as_foretold() -> None:
    model, x = network()
    found = sensitivities(model, [(x,)], projections=None)
    model.eval()
    generator, changes, size = torch.Generator().manual_seed(0), [], 1e-4
    params = {n: p.detach() for n, p in model.named_parameters()}
    before = model(x).detach()
    for _ in range(400):
        moved = {n: p + size * torch.randn(p.shape, generator=generator, dtype=p.dtype)
                 for n, p in params.items()}  # fmt: skip
        changes.append(
            float((torch.func.functional_call(model, moved, (x,)) - before).square().sum())
        )
    foretold = size**2 * sum(float(f.sum()) for f in found.values())
    assert sum(changes) / 400 == pytest.approx(foretold, rel=0.1)


def test_what_cannot_be_measured_is_refused() -> None:
    model, x = network()
    with pytest.raises(ValueError, match=r"no batches came.*Pass a list"):
        sensitivities(model, [])
    with pytest.raises(ValueError, match=r"projections=0.*at least 1"):
        sensitivities(model, [(x,)], projections=0)
    with torch.no_grad():
        model[0].weight[0, 0] = math.inf  # pyright: ignore
    with pytest.raises(ValueError, match=r"'.*weight' are not finite"):
        sensitivities(model, [(x,)])
