"""An assertion for users' own tests: does a network commute with a group?"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .arguments import real
from .orthogonal import Group, as_representation


def _acted(group: Group, index: int, x: Tensor) -> Tensor:
    """ρ x on the last axis; a permutation of numbers is exact in every dtype."""
    moved = group.act(index, x.detach().to("cpu", torch.float64).numpy())
    return torch.as_tensor(moved).to(x.device, x.dtype)


@torch.no_grad()
def equivariance_error(network: Any, group: Any, x: Tensor, target: Any = None) -> float:
    """The largest ‖f(P_σ x) − P_σ f(x)‖ / ‖f(x)‖ over the generators σ (norms over all samples).

    Args:
        network: f, a map from (…, n) to (…, m).
        group: the action on the n coordinates.
        x: samples (…, n).
        target: the action on the m coordinates; default the same.
    """
    source = as_representation(group)
    goal = source if target is None else as_representation(target)
    y = network(x)
    size = float(y.norm()) or 1.0
    errors = []
    for index in range(len(source.generators)):
        moved, expected = _acted(source, index, x), _acted(goal, index, y)
        errors.append(float((network(moved) - expected).norm()) / size)
    return float(np.max(errors))  # NaN stays NaN


def assert_equivariant(
    network: nn.Module, group: Any, x: Tensor, target: Any = None, tolerance: float | None = None
) -> None:
    """Fails unless a network commutes with every generator on the given samples.

    Args:
        network: f, a map from (…, n) to (…, m).
        group: the action on the n coordinates.
        x: samples (…, n).
        target: the action on the m coordinates; default the same.
        tolerance: of `equivariance_error`; default 1e-14 in float64, 2e-6 in float32.

    Raises:
        AssertionError: the error is larger, or NaN.
        BadNumberError: the tolerance is negative, NaN or infinite.
    """
    __tracebackhide__ = True
    if tolerance is None:
        tolerance = 1e-14 if x.dtype == torch.float64 else 2e-6
    real(tolerance, "assert_equivariant(tolerance=…)")
    error = equivariance_error(network, group, x, target)
    if not error <= tolerance:
        raise AssertionError(
            f"assert_equivariant({type(network).__name__}): relative error {error:.2e} under a "
            f"generator of {as_representation(group)}; expected at most {tolerance:.0e}. The "
            "network does not commute with the group."
        )
