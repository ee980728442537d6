"""All linear vector fields on the parameters of a network that leave its function unchanged.

    ⟨∇_θ F(θ, x), Mθ⟩ = 0    for all θ and x

is linear in M: each random (θ, x), and each random combination of the outputs, is one row. M is in
the null space of all rows, and with a few more rows than unknowns the null space is what holds
everywhere, for almost all samples of an analytic function. No rule of any operator is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paramsym.recording.record import Inputs
from paramsym.structure.patterns import UnknownName, matching
from paramsym.terminal.progress import silent

from .ansatz import Ansatz
from .certificate import Judged, judged, narrowed
from .constraints import Constraints
from .door import (
    require_derivatives,
    require_function,
    require_gradients,
    require_numbers,
    require_variety,
)
from .finite import Finite, finite, limit_for, trial
from .found import LinearSymmetries
from .full import full
from .generators import Gap, Shapes
from .null_space import smallest
from .sampling import Sampler
from .sides import sides
from .tensors import tensors

LEVELS: dict[str, Callable[[Shapes, bool], Ansatz]] = {
    "full": full, "tensors": tensors, "sides": sides,
}  # fmt: skip
LIMIT = 6000  # unknowns: about a gigabyte, and half a minute

_MATRICES = 4.3  # of unknowns × unknowns, in memory at one time
_OPERATIONS = 1.6  # times the cube of the unknowns
_RATE = 2e10  # operations in a second, of one core


def linear_symmetries(
    model: torch.nn.Module,
    inputs: Inputs,
    level: str = "auto",
    *,
    affine: bool = False,
    names: str | Iterable[str] | None = None,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    fresh: bool = True,
    threshold: float | None = None,
    limit: int = LIMIT,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
    progress: Callable[[str], None] = silent,
) -> LinearSymmetries:
    """All linear symmetries of a network in an ansatz, by the null space of sampled constraints.

    A matrix M generates a symmetry θ ↦ exp(tM) θ of F if and only if ⟨∇_θ F(θ, x), Mθ⟩ = 0 at all
    θ and x. Each row of a linear system is this constraint at fresh random weights, fresh random
    inputs and a random combination of the outputs. Generators are certified by the largest residual
    on samples that they were not found on, some of them with inputs up to eight times as large,
    and by finite elements exp(tM)θ of random combinations. What keeps the constraints and changes
    the function, as a jump does, is listed as infinitesimal.

    Weights are drawn normal, and those of the model are not read; buffers are constants. What is
    found holds at the weights and inputs that are drawn: a unit that none of them switches, or a
    deviation below rounding, is not seen.

    Args:
        model: any module with floating parameters; it is only read. F is all that it returns.
        inputs: examples, as the model takes them: positional, or by name. Floats are replaced by
            fresh normal numbers and integers that index a table by fresh ones, in the same shape;
            masks beside them and other integers stay. 256 copies are held: one or two samples
            cost least.
        level: "full", all P² unknowns; "tensors", a block for each tensor and each ordered pair of
            tensors of equal shape, or of shapes that differ along one axis, as parallel branches
            have; "sides", a matrix along each axis of each tensor; "auto", the first of these with
            at most `limit` unknowns.
        affine: search θ ↦ Mθ + m, with a constant for each entry.
        names: of the parameters that may move, in dependence on each other alone: a name or a
            pattern as "encoder.*", or several; by default all. The others are drawn as well.
        outputs: chooses F from what the model returns.
        training: run in training mode.
        fresh: False keeps the inputs as they are, for symmetries on these samples only.
        threshold: the largest residual of a generator, where constraints and coefficients have norm
            one. None: 1e-11, or 32 times the noise of a direction's constraints if this is more:
            that of nine samples in ten, or the sample's own, by differences along lines of
            parameters (Moré and Wild 2011).
        limit: unknowns; time is about 1.6 n³ operations and memory 34 n² bytes.
        dtype: float64, with upcasts in the forward pass lifted; or float32, to run it as it is.
        generator: of the samples; by default one with seed 0.
        progress: is told what is being done.

    Returns:
        The generators, the gap, and what was searched.

    Raises:
        ValueError: numbers that are NaN; outputs that are random, no function, or without
            derivatives of their own; noise that hides everything; one sample that stays; more
            unknowns than `limit`; an unknown level.
        TypeError: a model that is no module.

    Source: the infinitesimal form of invariance is equation (4) of "Finding symmetry in neural
    network parameter spaces" for actions that are linear and do not depend on data; inverse
    iteration with refinement: Björck, "Numerical methods for least squares problems" (1996).
    """
    _require_settings(level, threshold, dtype, limit)
    with torch.inference_mode(False), torch.enable_grad():
        require_numbers(model, inputs)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        sampler = Sampler(model, inputs, outputs, training, generator, dtype, fresh)
        require_variety(sampler)
        require_function(sampler)
        live = require_gradients(sampler)
        dead = tuple(n for n, entries in live.items() if not bool(entries.any()))
        require_derivatives(sampler)
        chosen = _named(names, sampler.shapes)
        shapes = {n: s for n, s in sampler.shapes.items() if n in chosen and n not in dead}
        _require_shapes(shapes, names)
        ansatz = _chosen(level, shapes, affine, limit)
        constraints = Constraints(sampler, ansatz, generator)
        trivial = ansatz.trivial()
        found = smallest(constraints, ansatz.unknowns, trivial, generator, progress)
        sampler.generator = generator
        progress("certificates")
        verdict = judged(constraints, found, threshold)
        progress("finite elements")
        verdict, moved = _moved(constraints, verdict, threshold)
        generators, infinitesimal = (
            tuple(
                ansatz.generator(columns[:, k], *numbers)
                for k, numbers in enumerate(verdict.of(columns))
            )
            for columns in (moved.kept, moved.lost)
        )
        gap = Gap(max((g.residual for g in generators), default=0.0), verdict.next)
        return LinearSymmetries(
            generators, gap, ansatz.level,
            _searched(sampler, ansatz, constraints, found.dead, dead, moved), dead, shapes,
            ansatz.unknowns, trivial.shape[1], found.dead, constraints.count, verdict.noise, affine,
            infinitesimal, moved.change, {n: live[n] for n in shapes},
        )  # fmt: skip


def _moved(
    constraints: Constraints, verdict: Judged, threshold: float | None
) -> tuple[Judged, Finite]:
    """What passes, with finite elements tried.

    An element that changes the function has met a kink that no sample saw, and then constraints on
    its way reject a part of the span; or a jump, and then they reject nothing.
    """
    sampler, ansatz = constraints.sampler, constraints.ansatz
    while True:
        residuals = [size for size, _ in verdict.of(verdict.vectors)]
        limit = limit_for(max(residuals, default=0.0), threshold)
        tried = trial(sampler, ansatz, verdict.vectors, limit)
        if tried.passed:
            break
        less = narrowed(constraints, verdict, tried.suspects, threshold)
        if less.vectors.shape[1] == verdict.vectors.shape[1]:
            break
        verdict = less
    return verdict, finite(sampler, ansatz, verdict.vectors, tried)


def _require_settings(level: str, threshold: float | None, dtype: torch.dtype, limit: int) -> None:
    if level != "auto" and level not in LEVELS:
        raise ValueError(
            f"linear_symmetries(level={level!r}): one of 'auto', "
            f"{', '.join(map(repr, LEVELS))} was expected. Choose 'auto' for the largest that fits."
        )
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(
            f"linear_symmetries(threshold={threshold!r}): a number between 0 and 1 was expected, "
            "for residuals of constraints of norm one. Leave it out to have it measured."
        )
    if not limit >= 1:
        raise ValueError(
            f"linear_symmetries(limit={limit!r}): one unknown or more was expected. Leave it out."
        )
    if dtype not in (torch.float64, torch.float32):
        raise ValueError(
            f"linear_symmetries(dtype={dtype}): torch.float64 or torch.float32 was expected, since "
            "the noise of coarser numbers is not measured. Use float64 for a model of any dtype."
        )


def _named(names: str | Iterable[str] | None, known: Shapes) -> set[str]:
    """The parameters that may move."""
    if names is None:
        return set(known)
    try:
        return matching([names] if isinstance(names, str) else [*names], known, "")
    except UnknownName as error:
        near = ", ".join(error.near) or "none"
        raise ValueError(
            f"linear_symmetries(names=…): {error.pattern!r} matches no floating parameter; a name "
            f"or a pattern of some of {near} was expected. Names are those of "
            "model.named_parameters(), where a tied tensor has its first one."
        ) from None


def _require_shapes(shapes: Shapes, names: object) -> None:
    if not shapes:
        raise ValueError(
            f"linear_symmetries(names={names!r}): the outputs depend on none of these parameters, "
            "but at least one was expected to matter. Choose others."
        )


def _chosen(level: str, shapes: Shapes, affine: bool, limit: int) -> Ansatz:
    """The ansatz of a level, or the first that fits.

    Raises:
        ValueError: if it has more unknowns than the limit.
    """
    sizes = {name: make(shapes, affine) for name, make in LEVELS.items()}
    fits = [name for name, ansatz in sizes.items() if ansatz.unknowns <= limit]
    chosen = level if level != "auto" else (fits[0] if fits else "sides")
    if chosen in fits:
        return sizes[chosen]
    after = [name for name in fits if [*LEVELS].index(name) > [*LEVELS].index(chosen)]
    n = sizes[chosen].unknowns
    entries = sum(math.prod(shape) for shape in shapes.values())
    offer = (
        f"Take level={after[0]!r}, with {sizes[after[0]].unknowns:,} unknowns"
        if after
        else "Search a part of the parameters with names=…, or a smaller network of the same kind"
    )
    raise ValueError(
        f"linear_symmetries(level={level!r}): {n:,} unknowns for P = {entries:,} parameters at "
        f"level {chosen!r}, but at most limit={limit:,} were expected; they would need about "
        f"{_bytes(n)} of memory and {_time(n)} on one core. {offer}, or pass limit={n}."
    )


def _bytes(unknowns: int) -> str:
    size, units = 8 * _MATRICES * unknowns**2, ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def _time(unknowns: int) -> str:
    seconds = _OPERATIONS * unknowns**3 / _RATE
    for unit, length in (("years", 3.2e7), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} seconds"


def _searched(
    sampler: Sampler, ansatz: Ansatz, constraints: Constraints, idle: int, dead: tuple[str, ...],
    moved: Finite,
) -> str:  # fmt: skip
    """What was searched, and where, in words."""
    trivial, shapes = ansatz.trivial().shape[1], ansatz.shapes
    words = [
        f"{ansatz.searched}; {ansatz.unknowns:,} unknowns, {constraints.count:,} constraints at "
        "random weights"
    ]
    kept = ", ".join(sampler.keeps)
    if not sampler.keeps:
        words[0] += " and inputs"
    elif sampler.varies:
        words[0] += f" and inputs, of which these stayed as given: {kept}"
    else:
        words[0] += f", at the given inputs only: {kept}"
    if sampler.near:
        words.append(f"near the given values of {', '.join(sampler.numbers)}")
    still = [n for n in sampler.shapes if n not in shapes and n not in dead]
    if still:
        words.append(f"nothing that moves {', '.join(still)}, or by them")
    if trivial:
        words.append(f"{trivial} trivial directions of the ansatz left out (multiples of the "
                     "identity along two axes that cancel)")  # fmt: skip
    if idle:
        words.append(f"{idle} coefficients that enter no constraint left out")
    if dead:
        words.append(f"tensors that nothing depends on left out: {', '.join(dead)}")
    if moved.samples:
        words.append(f"finite elements tried at {moved.samples} random weights and inputs")
    if count := moved.lost.shape[1]:
        words.append(
            f"{count} direction{'s' * (count > 1)} infinitesimal only: constraints are zero, but "
            f"finite elements change the function by up to {moved.broken:.1e} of its range, as "
            "where it jumps; combinations of them may keep it"
        )
    return "; ".join(words)
