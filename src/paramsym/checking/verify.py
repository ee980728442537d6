"""`verify`: move the parameters along their symmetry and look whether the function notices.

For every space and every shift a random element that moves only it is applied, and the largest
relative change of any output is reported. Beside it stands a negative control: a wrong move of the
same size, which must be seen. A check that cannot fail proves nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.checking.bench import Bench, State, progress
from paramsym.checking.ends import Ends
from paramsym.recording.precision import converted
from paramsym.recording.record import Inputs
from paramsym.structure.action import act
from paramsym.structure.scale import to_scale
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import is_free

_DRAWS = 20  # until an element is not the identity
_SEEN = 1e-3  # a control below it says that the function hardly depends on what was moved
TOGETHER = "all together"


@dataclass(frozen=True)
class VerificationRow:
    """One space, one shift, or all together."""

    name: str
    kind: str  # "space", "shift" or "all"
    group: str  # the group, or the family of a shift
    dimension: int
    error: float  # worst relative change of the function under the symmetry
    control: float  # the same under a wrong move of the same size
    exact: bool
    moved: int  # entries of parameters, buffers and freed inputs that changed


@dataclass(frozen=True)
class Verification:
    """What `verify` measured; `str()` prints it as a table.

    `skipped` counts rows that were left out by `limit`; "all together" still covers them.
    `unmoved` names spaces and shifts of which no sampled element changed a parameter.
    """

    rows: tuple[VerificationRow, ...]
    dtype: torch.dtype
    skipped: int = 0
    unmoved: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The worst relative function error over the rows that claim to be exact."""
        return max((row.error for row in self.rows if row.exact), default=0.0)

    @property
    def approximate_error(self) -> float:
        """The worst relative function error over the rows that hold up to a stated quantity."""
        return max((row.error for row in self.rows if not row.exact), default=0.0)

    @property
    def control(self) -> float:
        """The smallest relative function error of the wrong moves."""
        return min((row.control for row in self.rows), default=float("inf"))

    def __str__(self) -> str:
        head = ("", "group", "dim", "moved", "error", "control", "")
        body = [
            (
                row.name, row.group, str(row.dimension), str(row.moved), f"{row.error:.1e}",
                f"{row.control:.1e}", "" if row.exact else "approximate",
            )
            for row in self.rows
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = []
        for row in (head, *body):
            cells = zip("<<>>>><", row, widths, strict=True)
            lines.append("  ".join(f"{text:{way}{width}}" for way, text, width in cells).rstrip())
        if self.skipped:
            lines.append(f"({self.skipped} more spaces and shifts were moved all together only)")
        return "\n".join(lines)


def verify(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    *,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    generator: torch.Generator | None = None,
    strength: float = 1.0,
    samples: int = 1,
    dtype: torch.dtype = torch.float64,
    spaces: Sequence[str] | None = None,
    limit: int = 200,
) -> Verification:
    """Measure how far the function changes under random elements of a symmetry.

    The relative function error is the maximum over outputs of max|f − f'| / max|f|; where inputs
    and outputs are freed, f' = g⁻¹ ∘ f(g·θ) ∘ g is the moved model by way of them. The wrong move
    of a row displaces the same parameters at random by the same Frobenius norms; where the
    function does not see these at all (a dead parameter), the same norm is spread over all
    parameters, or freed inputs are displaced likewise. At weights where even the wrong move changes
    next to nothing (attention that is still uniform) the row is measured at generic weights as
    well: its claim holds at any weights.
    A last row moves all exact spaces and shifts together, at half the strength, since
    the condition numbers of the elements multiply.

    Args:
        model: keeps its parameters, mode and dtype.
        symmetry: what `find_symmetry` derived, or a hand-written one.
        inputs: a tuple or a dict of keyword arguments; they are used as given.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: verify the function of the training mode.
        generator: source of the elements; by default one with seed 0.
        strength: of the elements; 1 mixes thoroughly.
        samples: elements per row; the worst counts.
        dtype: float64 with upcasts lifted to it, or float32 as the model would run.
        spaces: names of the spaces and shifts to check; all by default.
        limit: at most so many rows, evenly chosen; the last row still covers the others.

    Raises:
        KeyError: `spaces` names something that the symmetry does not have.
        ValueError: the symmetry does not fit the model, or the model has no weights.
    """
    generator = generator or torch.Generator().manual_seed(0)
    names = movable(symmetry, spaces)
    chosen = names if len(names) <= limit else _evenly(names, limit)
    bench = Bench(model, converted(model, dtype), inputs, outputs, training, generator)
    moves = [([name], strength) for name in chosen]
    exact = [n for n in names if n not in symmetry.spaces or symmetry.spaces[n].exact]
    if len(exact) > 1:
        moves.append((exact, strength / 2))
    rows, unmoved = [], []
    generic: Bench | None = None
    with progress(len(moves)) as advance:
        for only, size in moves:
            row = _measure(bench, symmetry, only, size, samples)
            if row.moved and row.control < _SEEN:  # weights at which next to nothing matters
                if generic is None:
                    generic = bench.generic(symmetry.offsets)
                row = _worse(row, _measure(generic, symmetry, only, size, samples))
            if row.moved:
                rows.append(row)
            else:
                unmoved += only
            advance()
    return Verification(tuple(rows), dtype, len(names) - len(chosen), tuple(unmoved))


def movable(symmetry: ParameterSymmetry, spaces: Iterable[str] | None = None) -> list[str]:
    """Names of the spaces and shifts that move at all, in the order of the symmetry."""
    found = [s.name for s in symmetry.spaces.values() if is_free(s)]
    found += [shift.name for shift in symmetry.shifts]
    if spaces is None:
        return found
    wanted = set(spaces)
    if missing := sorted(wanted - set(found)):
        raise KeyError(
            f"verify(spaces=…): {missing} are neither shifts nor spaces that move. Expected some "
            f"of {found[:12]}; print(symmetry) lists all."
        )
    return [name for name in found if name in wanted]


def _evenly(names: list[str], count: int) -> list[str]:
    return [names[k * len(names) // count] for k in range(count)]


def _measure(
    bench: Bench, symmetry: ParameterSymmetry, only: list[str], strength: float, samples: int
) -> VerificationRow:
    error, control, moved = 0.0, float("inf"), 0
    for _ in range(samples):
        state, changed, ends = _moved(bench, symmetry, only, strength)
        entries = sum(int((t != 0).sum()) for t in changed.values())
        entries += ends.entries(bench.model, bench.arguments)
        if entries:
            moved = max(moved, entries)
            error = max(error, bench.error(state, ends))
            wrong = bench.control(changed)
            if wrong < _SEEN:  # what moves may be inputs alone
                wrong = max(wrong, bench.error(bench.state, ends.astray(bench.generator)))
            control = min(control, wrong)
    kind, group, dimension, exact = _describe(symmetry, only)
    name = only[0] if kind != "all" else TOGETHER
    return VerificationRow(name, kind, group, dimension, error, control, exact, moved)


def _worse(at_given: VerificationRow, at_generic: VerificationRow) -> VerificationRow:
    """The worse error of two places, and the control of the one where the function is awake."""
    error = max(at_given.error, at_generic.error)
    return replace(at_given, error=error, control=max(at_given.control, at_generic.control))


def _moved(
    bench: Bench, symmetry: ParameterSymmetry, only: list[str], strength: float
) -> tuple[State, State, Ends]:
    """Parameters moved by a random element, what changed, and what it does to inputs and outputs;
    not by the identity if avoidable."""
    for draw in itertools.count(1):  # two heads keep their order in every other draw
        element = to_scale(symmetry.sample(bench.generator, strength, only=only), bench.state)
        state = act(symmetry, element, bench.state)
        ends = Ends(symmetry, element, bench.state, state)
        changed = {n: t - bench.state[n] for n, t in state.items() if t is not bench.state[n]}
        changed = {n: t for n, t in changed.items() if bool((t != 0).any())}
        if changed or draw == _DRAWS or ends.entries(bench.model, bench.arguments):
            return state, changed, ends
    raise AssertionError("the draws do not end")


def _describe(symmetry: ParameterSymmetry, only: list[str]) -> tuple[str, str, int, bool]:
    shifts = {shift.name: shift for shift in symmetry.shifts}
    exact = all(symmetry.spaces[name].exact for name in only if name in symmetry.spaces)
    if len(only) > 1:
        size = sum(
            shifts[n].dimension if n in shifts else symmetry.dimension(n) for n in only
        )  # fmt: skip
        return "all", "", size, exact
    name = only[0]
    if name in shifts:
        return "shift", shifts[name].family, shifts[name].dimension, True
    return "space", str(symmetry.group(name)), symmetry.dimension(name), exact


def assert_invariant(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Assert that a symmetry leaves the function of a model unchanged: for your own tests.

    Args:
        tolerance: of the relative function error; 1e-10 in float64 and 1e-5 in float32 by default.
        options: further arguments of `verify`.

    Raises `AssertionError` with the worst rows.
    """
    __tracebackhide__ = True
    found = verify(model, symmetry, inputs, **options)
    if tolerance is None:
        tolerance = 1e-10 if found.dtype == torch.float64 else 1e-5
    loose = max(tolerance, 1e-6)  # for families that hold up to the negligible ε of a norm
    if not (found.error <= tolerance and found.approximate_error <= loose):
        reached = max(found.error, found.approximate_error)
        worst = sorted(found.rows, key=lambda row: -row.error)[:5]
        raise AssertionError(
            f"assert_invariant(model={type(model).__name__}): the function changes by "
            f"{reached:.1e}, and at most {tolerance:.1e} was expected. The worst rows:\n"
            f"{Verification(tuple(worst), found.dtype)}\n"
            "Was the symmetry inferred from another model, or with other outputs or another mode?"
        )
