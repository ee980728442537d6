"""Rectified monomials, max(z, 0)^p."""

from __future__ import annotations

import sys
from numbers import Real

import torch
from torch import Tensor, nn


def exponent(power: float, where: str) -> int | float:
    """The exponent of a rectified monomial as a plain number, whole where it can be."""
    good = isinstance(power, Real) and not isinstance(power, bool)
    if not good or not 0 < power < sys.float_info.max:
        raise ValueError(
            f"{where}(power={power!r}): a positive finite number was expected, the exponent p of "
            "max(z, 0)^p. Pass 1 for the rectifier, 2 for its square."
        )
    return int(power) if float(power).is_integer() else float(power)


class RectifiedMonomial(nn.Module):
    r"""The rectified monomial σ(z)_i = max(z_i, 0)^p, entry by entry.

    It commutes with permutations Π and positive diagonals Λ up to a power,
    σ(ΠΛz) = ΠΛ^p σ(z). The gradient at z ≤ 0 is zero, for p < 1 as well; forward-mode derivatives
    are not a number there, since the power is unbounded at 0.

    Args:
        power: the exponent p > 0, a fixed number; it need not be whole.

    Raises:
        ValueError: the power is not positive and finite; called with complex or integer numbers.

    Source: "On a group of invariances in a class of functions", section I and equation of
    equivariance in section II.
    """

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = exponent(power, "RectifiedMonomial")

    def forward(self, z: Tensor) -> Tensor:
        """The activations of inputs of any shape."""
        if not z.is_floating_point():
            raise ValueError(
                f"RectifiedMonomial: numbers of {z.dtype} came; real floating-point numbers were "
                "expected, since max(z, 0) orders them. Convert the input with .float()."
            )
        z = torch.relu(z)
        return z if self.power == 1 else z**self.power

    def extra_repr(self) -> str:
        """The exponent."""
        return f"power={self.power}"
