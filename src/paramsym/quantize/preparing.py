"""`prepare_for_quantization`: equivalent weights, rounded and measured on held-out inputs.

No formula says which equivalent weights a grid harms least, so that all are tried. To win, a
candidate has to beat the weights as they are by more than the held-out inputs leave open, and must
not raise the activations: what a weight gains, the numbers that it meets may lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paramsym.arguments import module_of
from paramsym.quantize.activations import Meetings
from paramsym.quantize.candidates import UNTOUCHED, candidates
from paramsym.quantize.grids import Grid
from paramsym.quantize.sensitivities import sensitivities
from paramsym.quantize.shares import tensors_to_round
from paramsym.recording.outputs import named_outputs, require_outputs
from paramsym.recording.running import call_at, preserved, split_inputs
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.patterns import Patterns
from paramsym.structure.symmetry import ParameterSymmetry

_CALL = "prepare_for_quantization"
ACTIVATIONS = 10.0  # factor by which the largest activation of a layer may grow
_SURE = 2.0  # standard errors by which a candidate has to be better


@dataclass(frozen=True)
class Candidate:
    """One row: equivalent weights, and what rounding them does on held-out inputs.

    Attributes:
        name: "untouched", "equalised", "range", "l2" or "error".
        change: the mean squared change of the outputs when the weights are rounded.
        noise: standard error of its difference to that of the untouched weights, from the spread
            over held-out batches.
        divergence: mean Kullback–Leibler divergence of the softmax of the outputs named `logits`,
            in nats; None where there are none.
        growth: the largest factor by which numbers that a rounded tensor meets are larger than with
            the untouched weights.
        where: that tensor.
        verdict: why it was not chosen; empty for the one that was.
    """

    name: str
    change: float
    noise: float
    divergence: float | None
    growth: float
    where: str
    verdict: str = ""


@dataclass(frozen=True)
class Prepared:
    """Weights for a quantiser to round, and the table by which they were chosen.

    Attributes:
        params: equivalent to the weights given, and not rounded; those themselves if none is
            better.
        element: the group element that leads to them.
        chosen: the name of the candidate.
        candidates: all rows, the untouched weights first.
    """

    params: dict[str, Tensor]
    element: GroupElement
    chosen: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        first = self.candidates[0].change
        lines = [f"{'candidate':<10} {'change':>9}  {'ratio':>6}  {'activations':>11}"]
        for row in self.candidates:
            ratio = f"{row.change / first:.3g}" if first else "–"
            says = row.verdict or "chosen"
            lines.append(
                f"{row.name:<10} {row.change:>9.3g}  {ratio:>6}  {row.growth:>9.3g} ×  {says}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class _Measured:
    """Squared changes and their number by batch, divergences by row of logits, largest data."""

    squares: Tensor
    counts: Tensor
    divergence: float | None
    largest: dict[str, float]

    @property
    def change(self) -> float:
        return float(self.squares.sum() / self.counts.sum())


def prepare_for_quantization(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    calibration: Iterable[Any],
    held_out: Iterable[Any],
    grid: Grid,
    quantized: Patterns | None = None,
    hold: Patterns = (),
    activations: float = ACTIVATIONS,
    progress: Callable[[str], None] | None = None,
) -> Prepared:
    """The equivalent weights whose rounding changes the outputs least on held-out inputs.

    Tried are the weights as they are, cross-layer equalisation to convergence, the least range, the
    least squared norm and the least expected error. Each is rounded to the nearest points of the
    grid, and the mean squared change of the outputs is measured against the model as it is.

    Args:
        model: run in evaluation mode; it keeps its mode and its state.
        symmetry: that of the model.
        calibration: inputs for the sensitivities, each a tuple of positional or a dict of keyword
            inputs.
        held_out: other inputs, on which all candidates are measured.
        grid: bits, groups and symmetry of the integers to round to.
        quantized: patterns of the tensors that are rounded; by default all parameters of two axes
            or more.
        hold: patterns of spaces to leave as they are.
        activations: a candidate is rejected if the largest number that meets one of these tensors
            grows by more than this factor.
        progress: called with a line per stage.

    Returns:
        A `Prepared`: the untouched weights unless another candidate is better by two standard
        errors of the difference, over the held-out batches.

    Raises:
        ValueError: no inputs; outputs that are not finite; a factor below 1; nothing to
            round; or as `sensitivities` and `balance`.
        UnknownName: a pattern matches nothing.
        TraceError: the model returns no floating tensor.

    Source: Nagel et al., "Data-free quantization through weight equalization and bias correction"
    (2019), for equalisation.
    """
    model = module_of(model)
    say = progress or (lambda line: None)
    held_out = [*held_out]
    _require(held_out, activations)
    params = {n: t.detach().clone() for n, t in model.state_dict().items()}
    names = tensors_to_round(symmetry, params, quantized, _CALL)
    say("measuring the sensitivities")
    slopes = sensitivities(model, calibration)
    trial = _Trial(model, symmetry, params, names, grid, held_out)
    rows, chosen, least = [], (UNTOUCHED, symmetry.identity()), math.inf
    first: _Measured | None = None
    current = ""
    found = candidates(
        symmetry, params, slopes, grid, names, hold, lambda line: say(f"{current}: {line}")
    )
    for current, find in found.items():
        say(f"{current}: finding the weights")
        element = find()
        say(f"{current}: rounding and measuring")
        here = trial.measured(act(symmetry, element, params))
        first = first or here
        row = _row(current, here, first, activations)
        if not row.verdict and row.change < least:
            chosen, least = (current, element), row.change
        rows.append(row)
    best, element = chosen
    told = tuple(row if row.name == best or row.verdict else _beaten(row, best) for row in rows)
    return Prepared(act(symmetry, element, params), element, best, told)


class _Trial:
    """Held-out inputs, on which weights are rounded and compared with the model as it is."""

    def __init__(
        self,
        model: torch.nn.Module,
        symmetry: ParameterSymmetry,
        params: Mapping[str, Tensor],
        names: list[str],
        grid: Grid,
        batches: list[Any],
    ) -> None:
        self.model, self.params, self.grid, self.batches = model, params, grid, batches
        self.names = names
        self.rounded = {*names, *(n for n, first in symmetry.ties.items() if first in names)}

    def measured(self, point: Mapping[str, Tensor]) -> _Measured:
        """What rounding does to the outputs at a point, and the data that its weights meet."""
        coarse = {n: self.grid.rounded(t) if n in self.rounded else t for n, t in point.items()}
        squares, counts, divergences = [], [], []
        meetings = Meetings(point, self.names)
        with preserved(self.model, training=False), torch.no_grad():
            for batch in self.batches:
                reference, other = self._outputs(self.params, batch), self._outputs(coarse, batch)
                with meetings:
                    self._outputs(point, batch)
                squares.append(sum(_squares(a, b) for (_, a), (_, b) in _pairs(reference, other)))
                counts.append(sum(a.numel() for _, a in reference))
                divergences += [
                    _divergence(a, b) for (n, a), (_, b) in _pairs(reference, other) if _logits(n)
                ]
        mean = sum(divergences) / len(divergences) if divergences else None
        return _Measured(
            torch.tensor(squares, dtype=torch.float64), torch.tensor(counts), mean, meetings.largest
        )

    def _outputs(self, params: Mapping[str, Tensor], batch: Any) -> list[tuple[str, Tensor]]:
        args, kwargs = split_inputs(batch)
        found = named_outputs(call_at(self.model, params, args, kwargs))
        require_outputs([tensor for _, tensor in found], _CALL)
        if params is self.params and not all(bool(t.isfinite().all()) for _, t in found):
            raise ValueError(
                f"{_CALL}(held_out=…): the model's outputs are not finite there, and finite ones "
                "were expected, since changes are measured. Look for broken inputs or weights."
            )
        return found


def _pairs(
    a: list[tuple[str, Tensor]], b: list[tuple[str, Tensor]]
) -> Iterable[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
    return zip(a, b, strict=True)


def _squares(a: Tensor, b: Tensor) -> float:
    """Σ |a − b|², infinite where an output is no number any more."""
    found = float((_wide(a) - _wide(b)).abs().square().sum())
    return found if math.isfinite(found) else math.inf


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double()


def _logits(name: str) -> bool:
    return name.rpartition(".")[2] == "logits"


def _divergence(a: Tensor, b: Tensor) -> float:
    """The mean of KL(softmax a ‖ softmax b) over all but the last axis."""
    p, q = (x.double().log_softmax(-1) for x in (a, b))
    return float((p.exp() * (p - q)).sum(-1).mean())


def _row(name: str, here: _Measured, first: _Measured, activations: float) -> Candidate:
    """The measurements of a candidate beside those of the untouched weights, and why it fails."""
    growth, where = max(
        (
            (value / before if before else math.inf if value else 1.0, tensor)
            for tensor, value in here.largest.items()
            for before in [first.largest.get(tensor, 0.0)]
        ),
        default=(1.0, ""),
    )
    noise = _noise(here, first)
    verdict = ""
    if here is not first and growth > activations:
        verdict = (
            f"rejected: what meets {where} grows from {first.largest.get(where, 0.0):.3g} to "
            f"{here.largest[where]:.3g}, by more than {activations:g} ×"
        )
    elif here is not first and not here.change < first.change - _SURE * noise:
        verdict = "no better than untouched, as far as the held-out inputs tell"
    return Candidate(name, here.change, noise, here.divergence, growth, where, verdict)


def _noise(here: _Measured, first: _Measured) -> float:
    """The standard error of the difference of two mean changes on the same batches."""
    apart = here.squares - first.squares
    if len(apart) < 2 or not bool(apart.isfinite().all()):
        return 0.0
    return float(apart.std() * math.sqrt(len(apart)) / first.counts.sum())


def _beaten(row: Candidate, best: str) -> Candidate:
    return replace(row, verdict=f"{best} is better")


def _require(held_out: list[Any], activations: float) -> None:
    if not held_out:
        raise ValueError(
            f"{_CALL}(held_out=…): no inputs came, and without any no candidate can be measured. "
            "Pass a list of inputs that are not in calibration=, for example [(x,)]."
        )
    if not activations >= 1:
        raise ValueError(
            f"{_CALL}(activations={activations}): a factor of at least 1 was expected, by which "
            f"activations may grow. Pass for example activations={ACTIVATIONS:g}."
        )
