"""Whether parameters are numbers whose powers add up to one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from paramsym.geometry.costs import counts
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]


def require_finite(
    symmetry: ParameterSymmetry, params: Params, call: str = "balance", summed: bool = False
) -> None:
    """Refuse parameters that are not finite.

    Args:
        symmetry: whose parameters they are.
        params: the state dict.
        call: the function that is named in errors.
        summed: whether a sum of their powers is handed to `require_range` afterwards: it is finite
            only where they are, so that buffers alone have to be read for this.
    """
    for name in symmetry.signature:
        if name not in params or (summed and name not in symmetry.buffers):
            continue
        tensor = params[name]
        # a sum of numbers is finite only where they are, and takes less than to ask each of them
        if not (math.isfinite(abs(tensor.sum().item())) or bool(tensor.isfinite().all())):
            raise ValueError(
                f"{call}(params): {name!r} holds numbers that are not finite, and finite ones "
                "were expected: no orbit goes through such a point. Look where training broke."
            )


def require_range(symmetry: ParameterSymmetry, params: Params, cost: float) -> None:
    """Refuse parameters whose powers add up to no number of double precision, by their sum."""
    if math.isfinite(cost) and cost >= 1e-290:
        return
    require_finite(symmetry, params)
    own = [p for n, p in params.items() if n not in symmetry.buffers and counts(p)]
    sizes = [float(p.abs().max()) for p in own if p.numel()]
    if not math.isfinite(cost) or any(sizes):
        raise ValueError(
            f"balance(params): the largest number is {max(sizes):.1e}, and numbers whose squares "
            "neither overflow nor vanish in float64 were expected, between 1e-145 and 1e150. "
            "Multiply the parameters by a power of two first."
        )
