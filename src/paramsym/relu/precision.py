"""What the storage of weights allows: how far rounding to a format can move a network's outputs.

With |ΔW_l| <= U_l and |Δb_l| <= v_l entry by entry (`formats`), two bounds on |f̂ - f| follow.

On the whole domain, with h_l >= |y_l| and r_l >= |ŷ_l - y_l| as (offset, slope) in |x|:

    h_l = |W_l| h_{l-1} + |b_l|        r_l = |W_l| r_{l-1} + U_l (h_{l-1} + r_{l-1}) + v_l

At one input, to first order and with the remainder: let G_l be the gradient of the outputs in the
pre-activations z_l, and D_l that in the values y_l, both at the stored weights. Then exactly

    f̂ - f = Σ_l G_l e_l + Σ_l D_l φ_l,     |e_l| <= U_l (|y_{l-1}| + r_{l-1}) + v_l,

with φ_l = 0 but for units whose sign rounding can change, where |φ| <= r_l. Choosing the sign of
every rounding attains Σ |G_l| (U_l |y_{l-1}| + v_l): this bound is what rounding can do there, up
to second order. The first one is a worst case over all sign patterns, and larger, the more so with
depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.formats import COMPUTED, EXACT, FLOAT64, UP, Rounding, formats_of
from paramsym.relu.network import Network
from paramsym.relu.rationals import nearest_float

NOISE_OF_EVALUATION = 128.0  # times 2^-53 times the magnitude: what rounding can do at an input
NOISE_OF_FORMS = 2048.0  # times 2^-53: what proved bounds on networks in float64 stay within


def coarse(*nets: Network) -> bool:
    """Whether some weights are stored in less than float64."""
    return any(f.coarse for net in nets for held in net.storage for f in formats_of(held))


def composed(*nets: Network) -> bool:
    """Whether some layers were composed of what is stored."""
    return any(isinstance(held, Rounding) for net in nets for held in net.storage)


def computed(*nets: Network) -> bool:
    """Whether some numbers were computed from the weights, in float64, before they were read."""
    return any(COMPUTED in formats_of(held) for net in nets for held in net.storage)


def storage_name(*nets: Network) -> str:
    """The formats in words, the coarsest first: "bfloat16 and float32"."""
    formats = {f for net in nets for held in net.storage for f in formats_of(held)}
    named = [f for f in formats if f not in (EXACT, COMPUTED)]
    named.sort(key=lambda f: (f.unit > 0, -f.unit, f.name))  # integers first: half a step
    return " and ".join(f.name for f in named)


def unit_roundoff(net: Network) -> float:
    """The coarsest unit roundoff of the stored weights."""
    found = FLOAT64.unit
    for (u, _), (weight, _) in zip(roundings(net), net.floats, strict=True):
        if weight.any():
            found = max(found, float(u.max() / np.abs(weight).max()))
    return found


def roundings(net: Network, unit: float | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """(U_l, v_l) of each layer, by its storage, or with one relative `unit` for every weight."""
    made = []
    for held, (weight, bias) in zip(net.storage, net.floats, strict=True):
        if unit is not None:
            made.append((unit * np.abs(weight), unit * np.abs(bias)))
        elif isinstance(held, Rounding):
            made.append((held.weight, held.bias))
        else:
            w, b = held
            made.append((w.rounding(np.abs(weight)), b.rounding(np.abs(bias))))
    return made


def budget(net: Network, unit: float | None = None) -> np.ndarray:
    """(m, 2): rounding the weights moves output o by at most offset + slope·|x|.

    `unit` is a relative rounding that every weight is taken to have, in place of its storage.
    """
    high, moved = np.zeros((0, 2)), np.zeros((0, 2))
    for index, ((weight, bias), (u, v)) in enumerate(
        zip(net.floats, roundings(net, unit), strict=True)
    ):
        if index == 0:
            high = np.stack([np.abs(bias), np.linalg.norm(weight, axis=1)], axis=1) * UP
            moved = np.stack([v, np.linalg.norm(u, axis=1)], axis=1) * UP
            continue
        size = np.abs(weight)
        moved = (size @ moved + u @ (high + moved)) * UP
        high = size @ high * UP
        moved[:, 0] += v
        high[:, 0] += np.abs(bias)
    return moved


def allowed(a: Network, b: Network, radius: float, unit: float | None = None) -> float:
    """What roundings of both networks' weights can move |f - g| by for |x| <= radius: the bound.

    Args:
        unit: a relative rounding for every weight, in place of the storage of both.
    """
    with np.errstate(all="ignore"):
        total = budget(a, unit) + budget(b, unit)
        return float((total[:, 0] + total[:, 1] * radius).max(initial=0.0))


def allowed_in_float64(a: Network, b: Network, radius: float) -> float:
    """The same in float64, with room for the rounding of what computed the weights.

    Layers that were composed of weights in float64 may have cancelled: theirs is the rounding of
    the weights behind them.
    """
    made = allowed(a, b, radius, NOISE_OF_FORMS * FLOAT64.unit)
    if composed(a, b) and not coarse(a, b):
        made += allowed(a, b, radius)
    return made


def threshold(a: Network, b: Network, x: Sequence[fmpq]) -> np.ndarray:
    """(m,): what rounding the weights of both networks can do to each output at one input.

    In formats coarser than float64 a difference beyond it shows that no two networks within
    rounding of these are equal.
    """
    at = np.array([nearest_float(v) for v in x])
    with np.errstate(all="ignore"):
        size = np.maximum(a.magnitude(at[None, :]), b.magnitude(at[None, :]))[0]
        noise = NOISE_OF_EVALUATION * FLOAT64.unit * size
        if coarse(a, b) or composed(a, b):
            noise = noise + rounding_at(a, at) + rounding_at(b, at)
    return noise


def rounding_at(net: Network, x: np.ndarray) -> np.ndarray:
    """(m,): rounding the stored weights moves each output at the input x (d,) by at most this."""
    value, moved = x, np.zeros_like(x)
    slacks, passed, flips = [], [], []
    for (weight, bias), (u, v) in zip(net.floats, roundings(net), strict=True):
        slack = u @ (np.abs(value) + moved) + v
        z = weight @ value + bias
        moved = (np.abs(weight) @ moved + slack) * UP
        slacks.append(slack)
        value = np.maximum(z, 0.0)
        passed.append(z > 0)
        flips.append(np.where(np.abs(z) <= moved, moved, 0.0))
    gradient = np.eye(net.output_dim)
    total = slacks[-1].copy()
    for index in range(net.depth - 1, -1, -1):
        gradient = gradient @ net.floats[index + 1].weight
        total += np.abs(gradient) @ flips[index]
        gradient = gradient * passed[index]
        total += np.abs(gradient) @ slacks[index]
    return total * (1 + 1e-6)


def unexplained(gaps: Sequence[fmpq], bounds: np.ndarray) -> bool:
    """Whether some difference is beyond its bound; never where a bound overflowed."""
    if not math.isfinite(float(bounds.sum())):
        return False
    return any(nearest_float(v) > n for v, n in zip(gaps, bounds.tolist(), strict=True))
