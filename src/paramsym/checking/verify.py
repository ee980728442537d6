"""`verify`: move the parameters along their symmetry and look whether the function notices.

For every space and every shift a random element that moves only it is applied, and the largest
relative change of any output is reported. Beside it stands a negative control: a wrong move of the
same size, which must be seen. A check that cannot fail proves nothing; what no wrong move would
show at the given weights is therefore measured at generic ones as well, and said to be invisible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.arguments import module_of
from paramsym.checking.bench import Bench, State, progress
from paramsym.checking.ends import Ends
from paramsym.recording.precision import converted
from paramsym.recording.record import Inputs
from paramsym.structure.action import act
from paramsym.structure.scale import slides_first, to_scale
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import is_free

_DRAWS = 20  # until an element is not the identity
_FINITE = 5  # elements of orders and signs: every other one may lie in a subgroup that is true
_CHEAP = 20_000  # numbers of a model up to which so many are drawn
SEEN = 1e-3  # a control below it says that the function hardly depends on what was moved
TOGETHER = "all together"


@dataclass(frozen=True)
class VerificationRow:
    """One space, one shift, or all together."""

    name: str
    kind: str  # "space", "shift" or "all"
    group: str  # the group, or the family of a shift
    dimension: int
    error: float  # worst relative change of the function under the symmetry
    control: float  # the same under a wrong move of the same size, where it shows most
    exact: bool
    moved: int  # entries of parameters, buffers and freed inputs that changed
    here: float = math.inf  # the control at the given weights

    @property
    def invisible(self) -> str:
        """Where a wrong move would not show: at the given weights ("here"), or at generic ones as
        well ("everywhere"); empty if it shows."""
        if self.here > SEEN:
            return ""
        return "here" if self.control > SEEN else "everywhere"


@dataclass(frozen=True)
class Verification:
    """What `verify` measured; `str()` prints it as a table.

    `skipped` counts rows that were left out by `limit`; "all together" still covers them.
    `unmoved` names spaces and shifts of which no sampled element changed a parameter, and `note`
    says why nothing could be measured at generic weights, if so.
    """

    rows: tuple[VerificationRow, ...]
    dtype: torch.dtype
    skipped: int = 0
    unmoved: tuple[str, ...] = ()
    note: str = ""

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
        """The smallest relative function error of the wrong moves that can show; 0 without any."""
        shown = (row.control for row in self.rows if row.invisible != "everywhere")
        return min(shown, default=0.0)

    @property
    def invisible(self) -> tuple[str, ...]:
        """Names of the rows whose wrong moves do not show at the given weights."""
        return tuple(row.name for row in self.rows if row.invisible)

    def __str__(self) -> str:
        head = ("", "group", "dim", "moved", "error", "control", "")
        body = [
            (
                row.name, row.group, str(row.dimension), str(row.moved), f"{row.error:.1e}",
                f"{row.control:.1e}", _remark(row),
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
        if not self.rows:
            lines.append("(nothing moves, and nothing was shown)")
        return "\n".join([*lines, *([f"({self.note})"] if self.note else [])])


def _remark(row: VerificationRow) -> str:
    remarks = ["" if row.exact else "approximate", row.invisible and f"invisible {row.invisible}"]
    return ", ".join(filter(None, remarks))


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
    spaces: str | Sequence[str] | None = None,
    limit: int = 200,
) -> Verification:
    """Measure how far the function changes under random elements of a symmetry.

    Every row is measured at the given weights and at generic ones, where its claim has to hold as
    well; the worse error counts. The relative function error is the maximum of |f − f'| over the
    entries of all outputs, each relative to the largest |f| of the slices through it, or to how far
    it moves when the parameters change by a relative unit; where inputs and outputs are freed,
    f' = g⁻¹ ∘ f(g·θ) ∘ g is the moved model by way of them.

    The wrong move of a row displaces the same parameters at random by the same Frobenius norms, and
    freed inputs likewise. What the function does not depend on at the given weights (what a last
    layer of zeros hides) shows at the generic ones alone: the row is said to be invisible here; and
    invisible everywhere if no weights show it, as for a dead parameter.
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
        samples: elements per row; the worst counts. Of orders and signs of a small model five are
            drawn at least.
        dtype: float64 with upcasts lifted to it, or float32 as the model would run.
        spaces: names of the spaces and shifts to check; all by default.
        limit: at most so many rows, evenly chosen; the last row still covers the others.

    Raises:
        KeyError: `spaces` names something that the symmetry does not have.
        ValueError: the symmetry does not fit the model, the model has no weights, or some that are
            not finite.
    """
    _require_dtype(dtype)
    model = module_of(model)
    generator = generator or torch.Generator().manual_seed(0)
    names = movable(symmetry, spaces)
    chosen = names if len(names) <= limit else _evenly(names, limit)
    bench = Bench(model, converted(model, dtype), inputs, outputs, training, generator)
    moves = [([name], strength) for name in chosen]
    exact = [n for n in names if n not in symmetry.spaces or symmetry.spaces[n].exact]
    if len(exact) > 1:
        moves.append((exact, strength / 2))
    benches, note = [bench], ""
    generic = bench.generic(symmetry.offsets)
    if generic.is_finite:
        benches.append(generic)
    else:
        note = "at generic weights no output is finite; measured at the given ones alone"
    rows, unmoved = [], []
    with progress(len(moves)) as advance:
        for only, size in moves:
            found = [_measure(each, symmetry, only, size, samples) for each in benches]
            if any(row.moved for row in found):
                rows.append(_joined(found))
            else:
                unmoved += only
            advance()
    return Verification(tuple(rows), dtype, len(names) - len(chosen), tuple(unmoved), note)


def _require_dtype(dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"verify(dtype={dtype!r:.40}): a floating-point torch.dtype was expected, in which the "
            "function is compared. Leave it at torch.float64, or pass torch.float32."
        )


def movable(symmetry: ParameterSymmetry, spaces: Iterable[str] | None = None) -> list[str]:
    """Names of the spaces and shifts that move at all, in the order of the symmetry."""
    found = [s.name for s in symmetry.spaces.values() if is_free(s)]
    found += [shift.name for shift in symmetry.shifts]
    if spaces is None:
        return found
    wanted = {spaces} if isinstance(spaces, str) else set(spaces)
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
    error, controls, moved = 0.0, [], 0
    for draw in range(max(samples, _fewest(bench, symmetry, only))):
        state, changed, ends = _moved(bench, symmetry, only, strength)
        entries = sum(int((t != 0).sum()) for t in changed.values())
        entries += ends.entries(bench.model, bench.arguments)
        if entries:
            moved = max(moved, entries)
            error = max(error, bench.error(state, ends))
            if draw >= samples:
                continue
            wrong = bench.control(changed)
            if wrong <= SEEN:  # what moves may be inputs alone
                wrong = max(wrong, bench.error(bench.state, ends.astray(bench.generator)))
            controls.append(wrong)
    kind, group, dimension, exact = _describe(symmetry, only)
    name = only[0] if kind != "all" else TOGETHER
    control = min(controls, default=0.0)
    return VerificationRow(name, kind, group, dimension, error, control, exact, moved)


def _fewest(bench: Bench, symmetry: ParameterSymmetry, only: list[str]) -> int:
    """The least number of elements of a row: a continuous group shows itself in one."""
    spaces = [symmetry.spaces[name] for name in only if name in symmetry.spaces]
    cheap = sum(t.numel() for t in bench.state.values()) <= _CHEAP
    return _FINITE if len(only) == 1 and cheap and any(s.group.log_order for s in spaces) else 1


def _joined(found: list[VerificationRow]) -> VerificationRow:
    """The worst error of all places, and the control of the one where the function is awake."""
    error, control = max(row.error for row in found), max(row.control for row in found)
    moved = max(row.moved for row in found)
    return replace(found[0], error=error, control=control, moved=moved, here=found[0].control)


def _moved(
    bench: Bench, symmetry: ParameterSymmetry, only: list[str], strength: float
) -> tuple[State, State, Ends]:
    """Parameters moved by a random element, what changed, and what it does to inputs and outputs;
    not by the identity if avoidable."""
    for draw in itertools.count(1):  # two heads keep their order in every other draw
        element = slides_first(symmetry.sample(bench.generator, strength, only=only))
        element = to_scale(element, bench.state)
        state = act(symmetry, element, bench.state)
        ends = Ends(symmetry, element, bench.state, state)
        changed = {
            n: _numbers(t) - _numbers(bench.state[n])
            for n, t in state.items() if t is not bench.state[n]
        }  # fmt: skip
        changed = {n: t for n, t in changed.items() if bool((t != 0).any())}
        if changed or draw == _DRAWS or ends.entries(bench.model, bench.arguments):
            return state, changed, ends
    raise AssertionError("the draws do not end")


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose differences can be taken and measured."""
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double()


def _describe(symmetry: ParameterSymmetry, only: list[str]) -> tuple[str, str, int, bool]:
    shifts = symmetry.shift_of
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
