"""Equivalent weights that may lose less when they are rounded: one for each idea."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.movers import movers_of
from paramsym.quantize.diagonals import in_whole, scaled_within, with_diagonals
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.passes import equalised
from paramsym.quantize.ranges import minimize_range
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
UNTOUCHED = "untouched"
TOLERANCE = 1e-2  # of the expected error: differences of interest are larger
_ROUNDS = 100  # of a few sweeps each
_SETTLED = 1e-3  # e-folds that scales still move


def equalise(symmetry: ParameterSymmetry, params: Params, hold: Patterns = ()) -> GroupElement:
    """Cross-layer equalisation to convergence: what raises a unit is as large as what it lowers.

    Every parameter takes part, gains and biases too, and every scale of the symmetry that is not
    held or approximate, those inside changes of basis too.

    Args:
        symmetry: whose scales they are.
        params: the complete state dict; it is only read.
        hold: patterns of spaces to leave as they are.

    Returns:
        The element that leads there.

    Raises:
        UnknownName: a pattern matches nothing.

    Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through weight
    equalization and bias correction" (2019).
    """
    scaling = with_diagonals(symmetry)
    movers = movers_of(scaling, 1.0, hold, (), shifts=False, call="equalise")
    logs: dict[str, Tensor] = {}
    moved, element = dict(params), GroupElement(symmetry)
    for _ in range(_ROUNDS):
        incidence = incidence_of(scaling, moved, movers.scales)
        step = incidence.split(equalised(incidence))
        logs = {n: y + logs[n] if n in logs else y for n, y in step.items()}
        element = scaled_within(symmetry, {n: y for n, y in logs.items() if bool(y.any())})
        moved = act(symmetry, element, params)
        if max((float(y.abs().max()) for y in step.values() if y.numel()), default=0) < _SETTLED:
            break
    return element


def candidates(
    symmetry: ParameterSymmetry,
    params: Params,
    sensitivities: Params,
    grid: Grid,
    names: list[str],
    hold: Patterns = (),
    progress: Callable[[str], None] | None = None,
) -> dict[str, Callable[[], GroupElement]]:
    """What finds each candidate, by its name; the first are the weights as they are.

    Args:
        symmetry: derived or written by hand.
        params: the complete state dict; it is only read.
        sensitivities: F of the tensors to round, see `sensitivities`.
        grid: what they are rounded to.
        names: the tensors to round.
        hold: patterns of spaces to leave as they are.
        progress: called with a line per stage.
    """

    def least_error() -> GroupElement:
        return minimize_quantization_error(
            symmetry, params, sensitivities, grid, names, hold, (), TOLERANCE, progress
        ).element

    def least_range() -> GroupElement:
        scaling = with_diagonals(symmetry)
        found = minimize_range(scaling, params, hold=hold, progress=progress)
        return in_whole(symmetry, found.element)

    def least_norm() -> GroupElement:
        return balance(symmetry, params, hold=hold, shifts=False, progress=progress).element

    return {
        UNTOUCHED: symmetry.identity,
        "equalised": lambda: equalise(symmetry, params, hold),
        "range": least_range,
        "l2": least_norm,
        "error": least_error,
    }
