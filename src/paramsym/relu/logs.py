"""What certificates say: the records that finders write and checkers replay, without any method.

Finder and checker share these words and nothing that computes with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paramsym.relu.arithmetic import fmpq

CONSTANT, DEAD, LINEAR, PLAIN, UNBEND, UNBEND_NEGATIVE = range(6)  # rules of the float form
RULES = ("constant", "dead", "linear", "plain", "unbend", "unbend negative")  # of the exact form
IDENTITIES = ("tie", "minimum")


class Step(NamedTuple):
    """How one neuron was rewritten in the absolute-value form.

    `rule` is one of `RULES`; `units` the previous neurons unbent; `identities` the identities
    between atoms that this neuron contributed: kind, and the units of both readings.
    """

    rule: str
    units: tuple[int, ...] = ()
    identities: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()


Log = list[list[Step]]  # one list of steps per hidden layer


class Split(NamedTuple):
    """A case distinction: first the unit active (z >= 0), then inactive (z <= 0)."""

    layer: int
    unit: int


class Leaf(NamedTuple):
    """How one case is closed, by bounding each value w·relu(z) below the target by slope·z.

    With `goal` 1 the target ∓p is shown <= 0, with 0 the case is shown empty: 1 <= 0 follows.
    `slopes` has per layer the pairs (unit, slope) that are not zero.
    """

    goal: int
    slopes: tuple[tuple[tuple[int, fmpq], ...], ...]


class SignProof(NamedTuple):
    """Why the pre-activation of a unit, or a part of it, keeps one sign on the whole domain.

    `network` is 0 or 1, `layer` counts hidden layers from 0. With p the pre-activation of `unit`
    without what it reads of the units `without` of the layer before (in ascending order; mostly
    none), `sign` -1 claims p <= 0 and 1 claims p >= 0. `tree` lists splits and leaves in preorder.
    """

    network: int
    layer: int
    unit: int
    without: tuple[int, ...]
    sign: int
    tree: tuple[Split | Leaf, ...]


@dataclass
class LayerLog:
    """How each neuron of a layer was read in the float form.

    Attributes:
        rule: one of CONSTANT … UNBEND_NEGATIVE.
        atom, sign, scale: the row under the ReLU is sign·scale·atom, up to what is paid for.
        units: for unbent neurons, those of the layer before that were unbent.
    """

    rule: np.ndarray
    atom: np.ndarray
    sign: np.ndarray
    scale: np.ndarray
    units: dict[int, tuple[int, ...]]


def fits(log: list[LayerLog], widths: Sequence[int]) -> bool:
    """Whether a log has a record per hidden layer that names units of the layer before only.

    `widths` are (d, n_1, …, m).
    """
    return len(log) == len(widths) - 2 and all(
        0 <= k < before
        for layer, before in zip(log, widths, strict=False)
        for chosen in layer.units.values()
        for k in chosen
    )


class LeafBound(NamedTuple):
    """|Δ_k(x)| <= offset + slope·(direction·x) on a cell; `tight` hints, two per output."""

    offset: float
    slope: float
    direction: tuple[float, ...]
    tight: tuple[int, ...]
