"""Which first-layer hyperplanes show in the function of a three-layer bottleneck network.

With W_1 of full row rank, y = relu(W_1 x + b_1) runs through the whole orthant y >= 0, and
H_j = {z_j = 0} is seen iff some live second-layer unit fires somewhere on the face y_j = 0. "Live"
means not dead on the orthant and read by some output. Three answers to the same question:

* `visible`: the closed form, β_i > 0 or W2_il > 0 for some l != j and some live i;
* `visible_by_program`: the linear program max {w_i·y + β_i : y >= 0, y_j = 0};
* `truly_visible`: exact for all W_2, b_2, W_3, accidental cancellation included. The slope of the
  function in y_j along the face is piecewise constant; H_j is a breakpoint iff it is not zero.

The first two agree always; the third differs from them only at degenerate parameters.
"""

from __future__ import annotations

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.domains import Orthant
from paramsym.relu.hyperplanes import SMOOTH_SHARE, Key, add_at, hyperplane
from paramsym.relu.network import Network
from paramsym.relu.rationals import HALF, ZERO, along, nearest_float, sign


def live_units(net: Network) -> list[int]:
    """Second-layer units that fire somewhere on y >= 0 and are read."""
    weight, bias = net.exact[1]
    out = net.exact[2].weight.transpose().tolist()
    return [
        i
        for i, (row, t) in enumerate(zip(weight.tolist(), bias, strict=True))
        if (t > 0 or any(x > 0 for x in row)) and any(out[i])
    ]


def visible(net: Network, unit: int) -> bool:
    """Closed form: some live unit has β_i > 0 or W2_il > 0 for some l != unit."""
    weight, bias = net.exact[1]
    table = weight.tolist()
    return any(
        bias[i] > 0 or any(x > 0 for k, x in enumerate(table[i]) if k != unit)
        for i in live_units(net)
    )


def visible_by_program(net: Network, unit: int) -> bool:
    """The same by linear programming (HiGHS), unit by unit: an independent second opinion."""
    import numpy as np
    from scipy.optimize import linprog

    weight, bias = net.exact[1]
    table = weight.tolist()
    for i in live_units(net):
        w = np.array([nearest_float(x) for x in table[i]])
        bounds = [(0, 0) if k == unit else (0, 1e6) for k in range(len(w))]
        result = linprog(-w, bounds=bounds)
        if -result.fun + nearest_float(bias[i]) > 1e-12:
            return True
    return False


def truly_visible(net: Network, unit: int) -> bool:
    """Whether H_unit is a breakpoint of the function, cancellations included.

    On the face y_j = 0+ unit i is active where its trace l_i is positive and then adds c_i·W2_ij
    to the slope: half of it always and half with the sign of l_i. Traces that cross the face are
    grouped by hyperplane; the slope is zero iff each group's sum and the rest, the base, are.
    """
    weight, bias = net.exact[1]
    face = Orthant(net.widths[1] - 1)
    base = [ZERO] * net.output_dim
    jumps: dict[Key, list[fmpq]] = {}
    out = net.exact[2].weight.transpose().tolist()
    for row, t, column in zip(weight.tolist(), bias, out, strict=True):
        slope = [c * row[unit] for c in column]
        trace = [*row[:unit], *row[unit + 1 :]]
        side = face.side(trace, t) if t or any(trace) else sign(row[unit])
        base = along(base, SMOOTH_SHARE[side], slope)
        if side == 0 and any(trace):
            lead, key = hyperplane(trace, t)
            add_at(jumps, key, HALF * sign(lead), slope)
    return any(base) or any(any(jump) for jump in jumps.values())
