"""`minimize_quantization_error`: the equivalent weights that lose least when they are rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from paramsym.geometry.costs import balanced_scales, cost_along_scales
from paramsym.geometry.given import numbers_of
from paramsym.geometry.movers import Movers, movers_of
from paramsym.geometry.result import Balanced, Status
from paramsym.geometry.turns import Params
from paramsym.quantize.components import least_error_apart
from paramsym.quantize.diagonals import scaled_within, with_diagonals
from paramsym.quantize.expected_error import ExpectedError
from paramsym.quantize.grids import Grid
from paramsym.quantize.shares import tensors_to_round
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

_CALL = "minimize_quantization_error"
TOLERANCE = 1e-3  # gap relative to the error up to which a point is called optimal


def minimize_quantization_error(
    symmetry: ParameterSymmetry,
    params: Params,
    sensitivities: Mapping[str, Tensor],
    grid: Grid,
    quantized: Patterns | None = None,
    hold: Patterns = (),
    include: Patterns = (),
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] | None = None,
) -> Balanced:
    """The equivalent parameters whose rounding changes the outputs least, and what is left to gain.

    With steps Δ_G on the groups of the grid, and F the summed squared sensitivities of the outputs,
    the expected squared change is to second order

        E = Σ_G Δ_G²/12 · Σ_{i∈G} F_i.

    Scales multiply w_i by e^{⟨c_i,y⟩} and F_i by e^{−2⟨c_i,y⟩}, so that E is convex in y. All
    quantised tensors count at once, those that take up a scale included. Of a change of basis the
    positive diagonal matrices move, as the scales that they are. Where E does not depend on a
    scale, the least squared norm decides. Scales that share no group of weights are independent,
    and solved one after the other.

    Args:
        symmetry: derived or written by hand.
        params: the complete state dict; it is only read.
        sensitivities: F by name for every quantised tensor, in its shape: see `sensitivities`.
        grid: bits, groups and symmetry of the integers to round to.
        quantized: patterns of the tensors that are rounded; by default all parameters of two axes
            or more.
        hold: patterns of spaces to leave as they are.
        include: patterns of approximate spaces (`exact=False`) to move all the same.
        tolerance: gap relative to E at which to stop, and up to which a point is called OPTIMAL.
        progress: called with one line per stage.

    Returns:
        A `Balanced`: `before` and `value` are E of the given parameters and of these, `moment` by
        space the largest derivative of the certificate along its scales, relative to E. The value
        is never above `before`.

    Raises:
        ValueError: sensitivities that are missing, negative, not finite or of another shape;
            numbers in `params` that are not finite; nothing to quantise; a tolerance that is not
            positive; a tensor that is missing or of another shape than its type.
        UnknownName: a pattern that matches nothing.

    Source: the expected error of rounding by a diagonal Gauss–Newton matrix, as in Hassibi and
    Stork, "Optimal brain surgeon" (1993); the scales of Nagel, van Baalen, Blankevoort and Welling,
    "Data-free quantization through weight equalization and bias correction" (2019).
    """
    if not tolerance > 0:
        raise ValueError(
            f"{_CALL}(tolerance={tolerance}): a positive number was expected, the gap relative to "
            f"the error at which to stop. Pass for example tolerance={TOLERANCE}."
        )
    params = numbers_of(symmetry, params, _CALL)
    names = tensors_to_round(symmetry, params, quantized, _CALL)
    _require_finite(symmetry, params)
    _check_sensitivities(params, sensitivities, names)
    scaling = with_diagonals(symmetry)
    movers = _movers(scaling, names, hold, include)
    cost = cost_along_scales(scaling, params, movers.scales, 2.0)
    free, astray = balanced_scales(cost)
    movers.held |= astray
    error = ExpectedError(scaling, params, sensitivities, names, grid, cost)
    try:
        before, solved = least_error_apart(error, free, tolerance, progress)
    except OverflowError as far:
        raise ValueError(
            f"{_CALL}(params, sensitivities): the error that is expected overflows float64, and a "
            "number was expected. Multiply the sensitivities by a power of two first: the best "
            "scales stay the same."
        ) from far
    gap = max(solved.value - solved.bound, 0.0)
    status = Status.OPTIMAL if gap <= tolerance * solved.value else Status.LOCAL
    element = scaled_within(symmetry, cost.split(solved.y))
    moment = {
        n: float(s.abs().max()) if s.numel() else 0.0 for n, s in cost.split(solved.slope).items()
    }
    return Balanced(
        params, element, before, solved.value,
        status, gap, moment, movers.held, solved.rounds,
    )  # fmt: skip


def _require_finite(symmetry: ParameterSymmetry, params: Params) -> None:
    """Those that are not rounded move along, and decide where the error does not."""
    for name in symmetry.signature:
        if name in params and not bool(params[name].isfinite().all()):
            raise ValueError(
                f"{_CALL}(params): {name!r} holds numbers that are not finite, and finite ones "
                "were expected: no grid holds such weights. Look where training broke."
            )


def _check_sensitivities(
    params: Params, sensitivities: Mapping[str, Tensor], names: list[str]
) -> None:
    for name in names:
        if name not in sensitivities:
            raise ValueError(
                f"{_CALL}(sensitivities=…): {name!r} is missing among the {len(sensitivities)} "
                "tensors that came, but is to be rounded. Measure it with "
                "sensitivities(model, batches), or leave it out of quantized=."
            )
        found, shape = sensitivities[name], tuple(params[name].shape)
        if tuple(found.shape) != shape:
            raise ValueError(
                f"{_CALL}(sensitivities=…): that of {name!r} has shape {tuple(found.shape)}, but "
                f"the tensor has {shape}, and one number for each weight was expected. Were they "
                "measured on another model?"
            )
        if not bool((found.isfinite() & (found >= 0)).all()):
            raise ValueError(
                f"{_CALL}(sensitivities=…): that of {name!r} holds numbers that are negative or "
                "not finite; sums of squares were expected. Measure them again with "
                "sensitivities(model, batches)."
            )


def _movers(
    symmetry: ParameterSymmetry, names: list[str], hold: Patterns, include: Patterns
) -> Movers:
    """The spaces whose scales move, those inside changes of basis too; along the rest ranges are
    not convex."""
    movers = movers_of(symmetry, 2.0, hold, include, shifts=False, call=_CALL)
    for name in list(movers.scales):
        stored = [n for n in symmetry.parameters_of(name) if n in names and n in symmetry.offsets]
        if stored:
            movers.scales.remove(name)
            movers.held[name] = (
                f"it scales {stored[0]!r} plus a constant, and what is stored has another range"
            )
    return movers
