"""Measured constants: what the parts of a form cost on one CPU thread in float32.

They are constants rather than a measurement when a network is built, so that the same network
computes the same numbers on every machine and in every run. `benchmarks/equivariant.py` measures
the network in every form and says which one these constants chose.
"""

from math import log2

FLOPS = 75.0  # multiplications and additions in one nanosecond, in a product of matrices
MOVE = 1.0  # nanoseconds for one number that is written, or read in another order
BUTTERFLY = 0.4  # nanoseconds for one number in one stage of an FFT


def product(rows: int, inner: int, columns: float = 1) -> float:
    """Nanoseconds for rows × inner by inner × columns."""
    return columns * (2 * rows * inner / FLOPS + MOVE * (rows + inner))


def transform(size: int, kept: int) -> float:
    """Nanoseconds for an FFT of `size` numbers, and for taking `kept` coefficients out of it."""
    return BUTTERFLY * size * log2(max(size, 2)) + MOVE * 2 * (size + kept)


def gather(kept: int) -> float:
    """Nanoseconds for sums of two of many coefficients."""
    return MOVE * 6 * kept
