"""How numbers are stored: the formats of floating point, and what one rounding to them can move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paramsym.relu.errors import ReLUError

UP = 1 + 1e-9  # absorbs the rounding of sums and products of positive bounds


class Format(NamedTuple):
    """A stored w stands for any real number within `unit`·|w| + `tiny` of it.

    The unit roundoff and half the least subnormal number: this contains half a unit in the last
    place of every w.
    """

    name: str
    unit: float
    tiny: float

    def rounding(self, sizes: np.ndarray) -> np.ndarray:
        """How far the numbers of these sizes |w| may be from what they stand for."""
        if self.unit == self.tiny == 0.0:
            return np.zeros_like(sizes)
        return self.unit * UP * sizes + self.tiny

    @property
    def coarse(self) -> bool:
        """Whether this is less than float64."""
        return self.unit > FLOAT64.unit or self.tiny > FLOAT64.tiny


EXACT = Format("rational", 0.0, 0.0)
FLOAT64 = Format("float64", 2.0**-53, 2.0**-1074)  # half of the least subnormal is no float64
# What a network computes from its weights before it reads its input, as batch norm its factors.
COMPUTED = Format("computed in float64", 2.0**-53, 0.0)
# Eight bits of integer hold a weight on a grid, to half a step of it; a scale follows in the
# network. Wider integers, and booleans, are the numbers that they are.
FORMATS = {
    held.name: held
    for held in (
        FLOAT64,
        Format("float32", 2.0**-24, 2.0**-150),
        Format("float16", 2.0**-11, 2.0**-25),
        Format("bfloat16", 2.0**-8, 2.0**-134),
        Format("float8_e4m3fn", 2.0**-4, 2.0**-10),
        Format("float8_e4m3fnuz", 2.0**-4, 2.0**-11),
        Format("float8_e5m2", 2.0**-3, 2.0**-17),
        Format("float8_e5m2fnuz", 2.0**-3, 2.0**-18),
        Format("int8", 0.0, 0.5),
        Format("uint8", 0.0, 0.5),
    )
}
_EXACT = ("int16", "int32", "int64", "uint16", "uint32", "uint64", "bool", "object")
_WIDE = ("longdouble", "float80", "float96", "float128")  # read as float64


class Rounding(NamedTuple):
    """Entrywise bounds on the rounding of one layer: `weight` (n, d), `bias` (n,).

    `formats` are those that the numbers behind it are stored in.
    """

    weight: np.ndarray
    bias: np.ndarray
    formats: frozenset[Format] = frozenset()


Storage = tuple[Format, Format] | Rounding  # of a layer's W and b; or, composed, entry by entry


def formats_of(held: Storage) -> frozenset[Format]:
    """The formats behind one layer."""
    return held.formats if isinstance(held, Rounding) else frozenset(held)


def format_of(value: object) -> Format:
    """The format of an array or tensor by its dtype; numbers without one are float64.

    Raises `ReLUError` for a dtype whose rounding is not known.
    """
    name = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    if name in FORMATS or name in _WIDE:
        return FORMATS.get(name, FLOAT64)
    if name in _EXACT or name.startswith("<U"):
        return EXACT
    raise ReLUError(
        f"numbers of the dtype {name}",
        f"one of {', '.join([*FORMATS, *_EXACT[:-1]])}",
        "the weights",
        "Convert them to one of these first.",
    )
