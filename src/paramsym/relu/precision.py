"""What the storage of weights allows: how far rounding to a format can move a network's outputs.

A weight that a file holds as w stands for any real number within `unit`·|w| + `tiny` of it, the
unit roundoff and half the least subnormal number of its format (this contains half a unit in the
last place). With |ΔW| <= U_l and |Δb| <= v_l entry by entry, two bounds on |f̂ - f| follow.

On the whole domain, with h_l >= |y_l| and r_l >= |ŷ_l - y_l| as (offset, slope) in |x|:

    h_l = |W_l| h_{l-1} + |b_l|        r_l = |W_l| r_{l-1} + U_l (h_{l-1} + r_{l-1}) + v_l

At one input, to first order and with the remainder: let G_l be the gradient of the outputs in the
pre-activations z_l, and D_l that in the values y_l, both at the stored weights. Then exactly

    f̂ - f = Σ_l G_l e_l + Σ_l D_l φ_l,     |e_l| <= U_l (|y_{l-1}| + r_{l-1}) + v_l,

with φ_l = 0 but for units whose sign rounding can change, where |φ| <= r_l. Choosing the sign of
every rounding attains Σ |G_l| U_l |y_{l-1}|: the bound is what rounding can do there, up to second
order. The first bound is a worst case over all sign patterns and larger, the more so with depth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from paramsym.relu.network import Network

_UP = 1 + 1e-9  # absorbs the rounding of sums of positive bounds


class Format(NamedTuple):
    """How numbers are stored: relative and absolute size of one rounding."""

    name: str
    unit: float
    tiny: float


EXACT = Format("rational", 0.0, 0.0)
FLOAT64 = Format("float64", 2.0**-53, 2.0**-1074)  # half of it is no float
FORMATS = {
    held.name: held
    for held in (
        FLOAT64,
        Format("float32", 2.0**-24, 2.0**-150),
        Format("float16", 2.0**-11, 2.0**-25),
        Format("bfloat16", 2.0**-8, 2.0**-134),
    )
}


class Rounding(NamedTuple):
    """Entrywise bounds on the rounding of one layer: `weight` (n, d), `bias` (n,)."""

    weight: np.ndarray
    bias: np.ndarray


Storage = tuple[Format, Format] | Rounding  # of a layer's W and b; or, composed, entry by entry


def format_of(value: object) -> Format:
    """The format of an array or tensor by its dtype; float64 for Python floats and wide types."""
    name = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    return FORMATS.get(name, FLOAT64 if name.startswith(("float", "longdouble")) else EXACT)


def coarse(net: Network) -> bool:
    """Whether some weights are stored in less than float64."""
    return any(
        isinstance(held, Rounding) or max(held[0].unit, held[1].unit) > FLOAT64.unit
        for held in net.storage
    )


def storage_name(net: Network) -> str:
    """The formats of a network in words, the coarsest first: "bfloat16 and float32"."""
    formats = {
        f for held in net.storage if not isinstance(held, Rounding) for f in held
    } or {FLOAT64}  # fmt: skip
    return " and ".join(f.name for f in sorted(formats, key=lambda f: -f.unit))


def unit(net: Network) -> float:
    """The coarsest unit roundoff."""
    found = FLOAT64.unit
    for held, (weight, _) in zip(net.storage, net.floats, strict=True):
        if isinstance(held, Rounding):
            size = np.abs(weight).max(initial=0.0)
            found = max(found, float(held.weight.max(initial=0.0) / size) if size else 0.0)
        else:
            found = max(found, held[0].unit, held[1].unit)
    return found


def _roundings(net: Network) -> list[Rounding]:
    made = []
    for held, (weight, bias) in zip(net.storage, net.floats, strict=True):
        if isinstance(held, Rounding):
            made.append(held)
            continue
        (_, u, t), (_, v, s) = held
        made.append(Rounding(u * np.abs(weight) * _UP + t, v * np.abs(bias) * _UP + s))
    return made


def composed(first: Network, second: Network) -> Rounding:
    """Bounds for the product of two affine layers that a file stores apart, both one layer."""
    (w1, b1), (w2, b2) = first.floats[0], second.floats[0]
    (u1, v1), (u2, v2) = _roundings(first)[0], _roundings(second)[0]
    weight = np.abs(w2) @ u1 + u2 @ (np.abs(w1) + u1)
    bias = np.abs(w2) @ v1 + u2 @ (np.abs(b1) + v1) + v2
    return Rounding(weight * _UP, bias * _UP)


def budget(net: Network) -> np.ndarray:
    """(m, 2): rounding the stored weights moves output o by at most offset + slope·|x|."""
    high, moved = np.zeros((0, 2)), np.zeros((0, 2))
    for index, ((weight, bias), (u, v)) in enumerate(
        zip(net.floats, _roundings(net), strict=True)
    ):
        if index == 0:
            high = np.stack([np.abs(bias), np.linalg.norm(weight, axis=1)], axis=1) * _UP
            moved = np.stack([v, np.linalg.norm(u, axis=1)], axis=1) * _UP
            continue
        size = np.abs(weight)
        moved = (size @ moved + u @ (high + moved)) * _UP
        high = size @ high * _UP
        moved[:, 0] += v
        high[:, 0] += np.abs(bias)
    return moved


def allowed(a: Network, b: Network, radius: float) -> float:
    """What roundings of both networks' weights can move |f - g| by for |x| <= radius: its bound."""
    total = budget(a) + budget(b)
    far = total[:, 0] + (total[:, 1] * radius if math.isfinite(radius) else 0.0)
    return float(far.max(initial=0.0))


def rounding_at(net: Network, x: np.ndarray) -> np.ndarray:
    """(m,): rounding the stored weights moves each output at the input x (d,) by at most this."""
    value, moved = x, np.zeros_like(x)
    slacks, passed, flips = [], [], []
    for index, ((weight, bias), (u, v)) in enumerate(
        zip(net.floats, _roundings(net), strict=True)
    ):
        slack = u @ (np.abs(value) + moved) + v
        z = weight @ value + bias
        moved = (np.abs(weight) @ moved + slack) * _UP
        slacks.append(slack)
        if index < net.depth:
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
