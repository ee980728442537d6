"""How `alignment.py` brings two networks together, and what it measures between them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from alignment_networks import Examples, State, Task, measured, recomputed
from torch import Tensor

from paramsym import ParameterSymmetry, balance

Inputs = tuple[Tensor, ...]
POINTS = 21


@dataclass(frozen=True)
class Pair:
    """Two networks of one architecture, brought together in some way.

    Attributes:
        seconds: of this process on its processor, reduction included.
        objective: ⟨a, g·b⟩ along the way, as the aligner tells it.
    """

    first: State
    second: State
    seconds: float = 0.0
    objective: tuple[float, ...] = ()


def aligner() -> Callable | None:
    """`paramsym.geometry.align.align`, where this version has it."""
    try:
        return importlib.import_module("paramsym.geometry.align").align
    except ModuleNotFoundError:
        return None


# -- methods -----------------------------------------------------------------------------------


def _aligned(
    symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None, **spaces: object
) -> tuple[State, tuple[float, ...]]:
    align = aligner()
    if align is None:
        raise SystemExit("paramsym.geometry.align: this version has no aligner to study")
    found = align(symmetry, first, second, data=data, **spaces)
    return found.params, tuple(found.objective)


def naive(symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None) -> Pair:
    """As trained."""
    return Pair(first, second)


def permuted(symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None) -> Pair:
    """Orders alone."""
    moved, objective = _aligned(symmetry, first, second, data, spaces="permutations")
    return Pair(first, moved, objective=objective)


def balanced(symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None) -> Pair:
    """Orders between the points of least norm."""
    one, other = (balance(symmetry, params).params for params in (first, second))
    return permuted(symmetry, one, other, data)


def whole(symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None) -> Pair:
    """All of the group, the second network carried to the first as it was trained."""
    moved, objective = _aligned(symmetry, first, second, data)
    return Pair(first, moved, objective=objective)


def reduced(symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None) -> Pair:
    """All of the group, between the representatives modulo its compact part."""
    reduce = importlib.import_module("paramsym.geometry.reduced").reduce
    one, other = (reduce(symmetry, params).params for params in (first, second))
    return whole(symmetry, one, other, data)


METHODS: dict[str, Callable[[ParameterSymmetry, State, State, Inputs | None], Pair]] = {
    "naive": naive,
    "permutations": permuted,
    "balance, permutations": balanced,
    "whole group": whole,
    "whole group, reduced": reduced,
}


def matched(
    method: str, symmetry: ParameterSymmetry, first: State, second: State, data: Inputs | None
) -> Pair:
    """Two networks brought together by a method of this name, by weights, or by activations on
    the data, with the seconds it took."""
    start = time.process_time()
    pair = METHODS[method](symmetry, first, second, data)
    seconds = time.process_time() - start
    return Pair(pair.first, pair.second, seconds, pair.objective)


# -- what lies between -------------------------------------------------------------------------


def between(first: State, second: State, share: float) -> State:
    """(1 − t) a + t b, of numbers; counters stay those of a."""
    return {
        name: torch.lerp(p, second[name], share) if p.is_floating_point() else p
        for name, p in first.items()
    }


@dataclass(frozen=True)
class Barrier:
    """The largest rise over the line between the ends: of the loss, and of the share of errors."""

    loss: float
    accuracy: float
    middle: float


def barrier(
    task: Task, pair: Pair, examples: Examples | None = None, refit: bool = False
) -> Barrier:
    """max over t of L((1 − t) a + t b) − (1 − t) L(a) − t L(b), at 21 points, on data held out.

    Args:
        task: the architecture, its data and its loss.
        pair: the ends a and b.
        examples: to measure on, `task.test` by default.
        refit: whether running means and variances are computed anew at every point, ends included.

    Source: Frankle, Dziugaite, Roy and Carbin, "Linear mode connectivity and the lottery ticket
    hypothesis" (2020).
    """
    shares = [k / (POINTS - 1) for k in range(POINTS)]
    values = []
    for share in shares:
        params = between(pair.first, pair.second, share)
        values.append(measured(task, recomputed(task, params) if refit else params, examples))
    rises = []
    for share, (loss, right) in zip(shares, values, strict=True):
        straight = [(1 - share) * a + share * b for a, b in zip(values[0], values[-1], strict=True)]
        rises.append((loss - straight[0], straight[1] - right))
    middle = values[POINTS // 2][0]
    return Barrier(max(r[0] for r in rises), max(r[1] for r in rises), middle)


def bend(evaluate: Callable[[State], Tensor], pair: Pair) -> float:
    """How far the network in the middle is from the mean of both functions, where no labels are.

    The root mean square of f(½a + ½b) − ½f(a) − ½f(b), relative to that of the mean over inputs of
    ½f(a) + ½f(b) about its own mean.
    """
    ends = (evaluate(pair.first) + evaluate(pair.second)) / 2
    middle = evaluate(between(pair.first, pair.second, 0.5))
    return float((middle - ends).square().mean().sqrt() / ends.std())


def distance(symmetry: ParameterSymmetry, pair: Pair) -> float:
    """‖a − b‖ / ‖a‖ over parameters that something determines; buffers are left out."""
    names = [n for n in symmetry.signature if pair.first[n].is_floating_point()]
    names = [n for n in names if not n.endswith(("running_mean", "running_var"))]
    apart = sum(float((pair.first[n] - pair.second[n]).double().square().sum()) for n in names)
    return (apart / sum(float(pair.first[n].double().square().sum()) for n in names)) ** 0.5
