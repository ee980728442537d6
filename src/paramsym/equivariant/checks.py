"""An assertion for users' own tests: does a network commute with a permutation group?"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .arguments import real
from .groups import as_group


@torch.no_grad()
def equivariance_error(network: Any, group: Any, x: Tensor, target: Any = None) -> float:
    """The largest ‖f(P_σ x) − P_σ f(x)‖ / ‖f(x)‖ over the generators σ (norms over all samples).

    Args:
        network: f, a map from (…, n) to (…, m).
        group: the action on the n coordinates.
        x: samples (…, n).
        target: the action on the m coordinates; default the same.
    """
    source = as_group(group)
    goal = source if target is None else as_group(target)
    y = network(x)
    size = float(y.norm()) or 1.0
    errors = []
    for g, h in zip(source.arrays, goal.arrays, strict=True):
        moved, expected = torch.empty_like(x), torch.empty_like(y)
        moved[..., torch.as_tensor(g)] = x
        expected[..., torch.as_tensor(h)] = y
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
            f"generator of {as_group(group)}; expected at most {tolerance:.0e}. The network does "
            "not commute with the group."
        )
