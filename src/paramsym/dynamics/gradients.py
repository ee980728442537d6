"""Is the gradient at right angles to the orbit? A test of every backward between two parameters.

The loss is constant along orbits, so that its gradient g pairs to zero with every velocity,

    ⟨g, X_j θ⟩ = 0    for each generator X_j,

at every θ, and space by space: what a space gives to the parameters that write it, it takes from
those that read it. The sum over the writers and that over the readers are two ways to contract
one cotangent, before and after what stands between them. They differ where the backward of
something in between is wrong; a mistake further back scales or turns the cotangent and leaves
the balance as it is. So a wrong backward is found, and the spaces that see it enclose it.

How large is zero? Rounding errors of g are measured. At parameters displaced by a few roundings the
pairing of a right gradient is zero again, up to rounding errors that are drawn anew, while that
of a wrong one hardly changes. The spread over such draws is the size of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from paramsym.checking.search import TOLERANCES
from paramsym.checking.verify import verify
from paramsym.dynamics.loss import ModelLoss
from paramsym.dynamics.pairings import RIGHT, WRONG, GradientRow, Pairings
from paramsym.dynamics.resting import at_rest_where_read
from paramsym.recording.record import Inputs
from paramsym.structure.symmetry import ParameterSymmetry

_DRAWS = 9
_PRECISION_ERRORS = (RuntimeError, TypeError, NotImplementedError)  # of kernels for one precision


@dataclass(frozen=True)
class GradientCheck:
    """What `check_gradients` measured; `str()` prints it as a table, and it is true if it passed.

    `precision` is the coarsest kind of numbers that the forward pass keeps for the backward one.
    """

    rows: tuple[GradientRow, ...]
    dtype: str
    precision: str
    draws: int
    level: float

    @property
    def spaces(self) -> dict[str, GradientRow]:
        """The rows by the name of the space or shift."""
        return {row.name: row for row in self.rows}

    @property
    def wrong(self) -> tuple[GradientRow, ...]:
        """The spaces at which the gradient is not that of the function, the narrowest first.

        The wrong backward stands between the writers and the readers of every one of them.
        """
        found = [row for row in self.rows if row.verdict == WRONG]
        return tuple(sorted(found, key=lambda row: len(row.parameters)))

    @property
    def passed(self) -> bool:
        """Nothing is wrong, and something has been seen."""
        return not self.wrong and any(row.verdict == RIGHT for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        head = ("", "dim", "measured", "floor", "")
        body = [
            (r.name, str(r.dimension), f"{r.measured:.1e}", f"{r.floor:.1e}", r.verdict)
            for r in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = []
        for row in (head, *body):
            cells = zip("<>>><", row, widths, strict=True)
            lines.append("  ".join(f"{text:{way}{width}}" for way, text, width in cells).rstrip())
        lines += [_place(row) for row in self.wrong[:1]]
        if not self.wrong and not self.passed:
            lines.append("(no space has a gradient to pair with, and nothing was shown)")
        return "\n".join(lines)


def _place(row: GradientRow) -> str:
    """Between which parameters a wrong backward stands."""
    if not (row.writers and row.readers):
        return f"(look at the backward beside {_listed(row.parameters)})"
    return f"(look at the backward between {_listed(row.writers)} and {_listed(row.readers)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")


def check_gradients(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    loss_fn: Callable[[Any], torch.Tensor],
    inputs: Inputs,
    *,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
    draws: int = _DRAWS,
    level: float = 1e-4,
) -> GradientCheck:
    """Check space by space that the gradient of the loss is at right angles to the orbit.

    For every generator ⟨∇L, X_j θ⟩ = 0, because the loss is constant along orbits. The norm of
    these pairings, relative to those of the gradient and of the velocities, is compared with a
    floor. It is measured: parameters are displaced `draws` times by four units in the last place
    of the coarsest numbers that the backward pass reads, where pairings of a right gradient are
    rounding errors drawn anew. The floor is Student's quantile of their spread, so that a right
    model raises an alarm with a probability of at most `level`, and a bound for the rounding of the
    pairing itself.

    Directions leave the floating buffers that the model reads where they are. Frozen parameters are
    differentiated as well. What a symmetry does not see, no wrong backward betrays: a mistake that
    commutes with the group, or stands before all writers or behind all readers of every space.

    Args:
        model: keeps its parameters, gradients, buffers and mode.
        symmetry: what `find_symmetry` derived, in the same mode and for the same outputs.
        loss_fn: from what the model returns (what `outputs` chooses of it) to a real number. It may
            draw random numbers and hold targets, but no parameters.
        inputs: a tuple or a dict of keyword arguments, used as given.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: the mode in which the model runs.
        generator: source of the displacements; by default one with seed 0.
        draws: displaced gradients that are taken; each costs a pass forwards and one in reverse.
        level: the probability of a false alarm, over all spaces.

    Returns:
        A `GradientCheck`, false if a space pairs with the gradient, or none says anything.

    Raises:
        ValueError: the loss depends on parameters past the outputs, is no finite number, or has no
            gradient; the model draws random numbers; the function itself changes along a space
            that pairs, so that the symmetry belongs to another mode, to other outputs or to another
            model; fewer than two draws, or a level outside (0, 1); or as `act`.

    Source: Zhao, Ganev, Walters, Yu and Dehmamy, "Symmetries, flat minima, and the conserved
    quantities of gradient flow" (2023), Proposition C.5; Higham and Mary, "A new approach to
    probabilistic rounding error analysis" (2019), for rounding errors as random numbers.
    """
    if draws < 2 or not 0 < level < 1:
        raise ValueError(
            f"check_gradients(draws={draws}, level={level}): at least two displaced gradients and "
            "a probability between 0 and 1 were expected. Leave them at 9 and 1e-4."
        )
    loss = ModelLoss(model, loss_fn, inputs, "check_gradients", outputs, training)
    generator = generator or torch.Generator().manual_seed(0)
    bench = Pairings(loss, at_rest_where_read(loss, symmetry), draws, generator)
    loss.require_of_outputs()
    loss.require_repeatable()
    rows = bench.rows(level)
    if loss.dtype != torch.float64 and any(row.verdict == WRONG for row in rows):
        rows = _confirmed(bench, rows, level)
    found = GradientCheck(tuple(rows), _named(loss.dtype), _named(bench.precision), draws, level)
    _require_symmetric(loss, symmetry, [row.name for row in found.wrong])
    return found


def _confirmed(bench: Pairings, rows: list[GradientRow], level: float) -> list[GradientRow]:
    """What pairs in float64 as well; the rounding of the others is known to the digit.

    Roundings that hardly change with the parameters escape the displacements: those of a softmax
    that is one to the last place, of a rate near zero.
    """
    try:
        double = Pairings(bench.loss.in_double(), bench.symmetry, bench.draws, bench.generator)
        finer = {row.name: row for row in double.rows(level)}
    except _PRECISION_ERRORS:
        return rows
    errors = bench.distances(double)

    def confirmed(row: GradientRow) -> GradientRow:
        if row.verdict != WRONG or finer[row.name].verdict == WRONG:
            return row
        floor = max(row.floor, errors[row.name] + finer[row.name].floor)
        return replace(row, floor=floor, verdict=RIGHT)

    return [confirmed(row) for row in rows]


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_symmetric(loss: ModelLoss, symmetry: ParameterSymmetry, names: Sequence[str]) -> None:
    """Refuse a symmetry that the function does not have: its gradient is not to blame."""
    errors = _function_errors(loss, symmetry, names) if names else {}
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        raise ValueError(
            f"check_gradients(symmetry=…, training={loss.training}): the outputs themselves change "
            f"by {errors[worst]:.0e} along {worst!r}, where they were expected to stay. The "
            "symmetry belongs to another mode, to other outputs or to another model; pass the same "
            "training=… and outputs=… to find_symmetry and here."
        )


def _function_errors(
    loss: ModelLoss, symmetry: ParameterSymmetry, names: Sequence[str]
) -> dict[str, float]:
    """By how much the outputs change along spaces that do not keep them.

    In float64, which autocasting leaves alone, or in float32 for kernels that know no other.
    """
    for dtype, tolerance in TOLERANCES.items():
        try:
            found = verify(
                loss.model, symmetry, loss.inputs, outputs=loss.choose, training=loss.training,
                spaces=names, dtype=dtype,
            )  # fmt: skip
        except _PRECISION_ERRORS:
            continue
        return {row.name: row.error for row in found.rows if row.exact and row.error > tolerance}
    return {}
