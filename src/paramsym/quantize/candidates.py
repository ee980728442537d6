"""Equivalent weights that may lose less when they are rounded: one for each idea."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from paramsym.geometry.balance import balance
from paramsym.geometry.costs import scaled_by
from paramsym.geometry.movers import movers_of
from paramsym.quantize.diagonals import with_diagonals
from paramsym.quantize.errors import minimize_quantization_error
from paramsym.quantize.grids import Grid
from paramsym.quantize.incidence import incidence_of
from paramsym.quantize.passes import equalised
from paramsym.quantize.ranges import minimize_range
from paramsym.structure.action import act
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
UNTOUCHED = "untouched"
TOLERANCE = 1e-2  # of the expected error: differences of interest are larger
_ROUNDS = 100  # of a few sweeps each
_SETTLED = 1e-3  # e-folds that scales still move


def equalise(symmetry: ParameterSymmetry, params: Params, hold: Patterns = ()) -> dict[str, Tensor]:
    """Cross-layer equalisation to convergence: what raises a unit is as large as what it lowers.

    Every parameter takes part, gains and biases too, and every scale of the symmetry that is not
    held or approximate, those inside changes of basis too.

    Args:
        symmetry: whose scales they are.
        params: the complete state dict; it is only read.
        hold: patterns of spaces to leave as they are.

    Raises:
        UnknownName: a pattern matches nothing.

    Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through weight
    equalization and bias correction" (2019).
    """
    symmetry = with_diagonals(symmetry)
    movers = movers_of(symmetry, 1.0, hold, (), shifts=False, call="equalise")
    logs: dict[str, Tensor] = {}
    moved = dict(params)
    for _ in range(_ROUNDS):
        incidence = incidence_of(symmetry, moved, movers.scales)
        step = incidence.split(equalised(incidence))
        logs = {n: y + logs[n] if n in logs else y for n, y in step.items()}
        moving = {n: y for n, y in logs.items() if bool(y.any())}
        if moving:
            moved = act(symmetry, scaled_by(symmetry, moving), params)
        if max((float(y.abs().max()) for y in step.values() if y.numel()), default=0) < _SETTLED:
            break
    return moved


def candidates(
    symmetry: ParameterSymmetry,
    params: Params,
    sensitivities: Params,
    grid: Grid,
    names: list[str],
    hold: Patterns = (),
    progress: Callable[[str], None] | None = None,
) -> dict[str, Callable[[], Params]]:
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

    def least_error() -> Params:
        return minimize_quantization_error(
            symmetry, params, sensitivities, grid, names, hold, (), TOLERANCE, progress
        ).params

    return {
        UNTOUCHED: lambda: params,
        "equalised": lambda: equalise(symmetry, params, hold),
        "range": lambda: minimize_range(
            with_diagonals(symmetry), params, hold=hold, progress=progress
        ).params,
        "l2": lambda: balance(
            symmetry, params, hold=hold, shifts=False, progress=progress
        ).params,
        "error": least_error,
    }  # fmt: skip
