"""How numbers are stored: the formats of floating point, and what one rounding to them can move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Format(NamedTuple):
    """A stored w stands for any real number within `unit`·|w| + `tiny` of it.

    The unit roundoff and half the least subnormal number: this contains half a unit in the last
    place of every w.
    """

    name: str
    unit: float
    tiny: float


EXACT = Format("rational", 0.0, 0.0)
FLOAT64 = Format("float64", 2.0**-53, 2.0**-1074)  # half of the least subnormal is no float64
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
    """The format of an array or tensor by its dtype: integers are exact, wide floats float64."""
    name = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    return FORMATS.get(name, FLOAT64 if name.startswith(("float", "longdouble")) else EXACT)
