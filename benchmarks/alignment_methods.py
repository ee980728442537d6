"""How `alignment.py` brings two networks together, and what it measures between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from alignment_networks import Examples, State, Task, measured, moved, tuned
from torch import Tensor, nn

from paramsym import Balanced, ParameterSymmetry, balance
from paramsym.geometry.alignment import align
from paramsym.geometry.reduced import Reduced, reduce
from paramsym.merging.interpolation import interpolate, loss_barrier
from paramsym.merging.readings import readings

Inputs = tuple[Tensor, ...]
POINTS, READINGS = 11, 4096
REFITTED = 5  # points at which batch norms are refitted: each takes a run over training data


@dataclass(frozen=True)
class Pair:
    """Two networks of one architecture, brought together in some way.

    Attributes:
        seconds: of this process on its processor, reduction included.
        distance: as the aligner tells it, between reduced points.
    """

    first: State
    second: State
    seconds: float = 0.0
    distance: float = float("nan")


@dataclass(frozen=True)
class Question:
    """Two networks and what they have in common.

    Attributes:
        data: inputs to match activations on; without them weights are matched.
    """

    model: nn.Module
    symmetry: ParameterSymmetry
    first: State
    second: State
    data: Inputs | None = None

    def aligned(self, spaces: str | list[str] | None = None) -> Pair:
        """The second network next to the first."""
        data = None
        if self.data is not None:
            one, other = (
                readings(self.model, self.symmetry, params, self.data, READINGS)
                for params in (self.first, self.second)
            )
            data = one, other
        found = align(self.symmetry, self.first, self.second, data, spaces=spaces)
        return Pair(self.first, found.params, distance=found.distance)

    def at(self, move: Callable[[ParameterSymmetry, State], Balanced | Reduced]) -> Question:
        """The same question at another point of either orbit."""
        one, other = (move(self.symmetry, params).params for params in (self.first, self.second))
        return replace(self, first=one, second=other)


def refittable(symmetry: ParameterSymmetry) -> list[str]:
    """Spaces that keep the function also where batch norms are refitted afterwards.

    In evaluation a scale before a norm is undone by the mean and the gain alone. The variance stays
    as it was, and is no longer that of the activations.
    """
    means = [name for name in symmetry.signature if name.endswith("running_mean")]
    return [
        space for space in symmetry.spaces
        if all(
            space in symmetry.movers[name.replace("running_mean", "running_var")]
            for name in means if space in symmetry.movers[name]
        )
    ]  # fmt: skip


# -- methods -----------------------------------------------------------------------------------

NORMS_AS_ON_DATA = "whole group, norms as on data"
METHODS: dict[str, Callable[[Question], Pair]] = {
    "naive": lambda given: Pair(given.first, given.second),
    "permutations": lambda given: given.aligned("permutations"),
    "balance, permutations": lambda given: given.at(balance).aligned("permutations"),
    "whole group": lambda given: given.aligned(),
    NORMS_AS_ON_DATA: lambda given: given.aligned(refittable(given.symmetry)),
    "whole group, reduced": lambda given: given.at(reduce).aligned(),
}


def matched(method: str, question: Question) -> Pair:
    """Two networks brought together by a method of this name, with the seconds it took."""
    start = time.process_time()
    pair = METHODS[method](question)
    return replace(pair, seconds=time.process_time() - start)


# -- origins -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """Two networks, and how the second came about: "moved", "derived" or "independent"."""

    kind: str
    task: str
    first: State
    second: State


def origins(
    task: Task, symmetry: ParameterSymmetry, nets: list[State], generator: torch.Generator
) -> Iterator[Origin]:
    """Of every net one moved copy, one tuned and moved sibling, and the next net, moved."""
    for k, net in enumerate(nets):
        made = {
            "moved": net, "derived": tuned(task, net, k), "independent": nets[(k + 1) % len(nets)]
        }  # fmt: skip
        for kind, second in made.items():
            yield Origin(kind, task.name, net, moved(symmetry, second, generator))


# -- what lies between -------------------------------------------------------------------------


def recomputed(task: Task, params: State, batches: int = 2) -> State:
    """Running means and variances of batch norms, averaged anew over training data."""
    model = task.network()
    model.load_state_dict(params)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the plain average over what it sees
    with torch.no_grad():
        for inputs in model.train() and task.train[0][: 500 * batches].split(500):
            model(inputs)
    return {name: p.detach().clone() for name, p in model.state_dict().items()}


@dataclass(frozen=True)
class Barrier:
    """The largest rise over the line between the ends: of the loss, and of the share of errors."""

    loss: float
    accuracy: float
    middle: float


def barrier(
    task: Task, pair: Pair, examples: Examples | None = None, refit: bool = False
) -> Barrier:
    """max over t of L((1 − t) a + t b) − (1 − t) L(a) − t L(b), on data held out.

    Args:
        task: the architecture, its data and its loss.
        pair: the ends a and b.
        examples: to measure on, `task.test` by default.
        refit: whether running means and variances are computed anew at every point, ends included;
            there are fewer points then.

    Source: Frankle, Dziugaite, Roy and Carbin, "Linear mode connectivity and the lottery ticket
    hypothesis" (2020).
    """
    points, right = REFITTED if refit else POINTS, {}

    def evaluate(given: Mapping[str, Tensor]) -> float:
        params = {**given}
        found = measured(task, recomputed(task, params) if refit else params, examples)
        right[found[0]] = found[1]
        return found[0]

    found = loss_barrier(evaluate, pair.first, pair.second, points)
    shares = [right[loss] for loss in found.losses]
    falls = [
        (1 - t) * shares[0] + t * shares[-1] - share
        for t, share in zip(found.times, shares, strict=True)
    ]
    return Barrier(found.barrier, max(falls), found.losses[points // 2])


def bend(evaluate: Callable[[State], Tensor], pair: Pair) -> float:
    """How far the network in the middle is from the mean of both functions, where no labels are.

    The root mean square of f(½a + ½b) − ½f(a) − ½f(b), relative to that of the mean over inputs of
    ½f(a) + ½f(b) about its own mean.
    """
    ends = (evaluate(pair.first) + evaluate(pair.second)) / 2
    middle = evaluate(interpolate(pair.first, pair.second, 0.5))
    return float((middle - ends).square().mean().sqrt() / ends.std())


def distance(symmetry: ParameterSymmetry, pair: Pair) -> float:
    """‖a − b‖ / √(‖a‖² + ‖b‖²), as they lie, over parameters that count: no buffers, nothing dead.

    It is 0 for equal networks, and about 1 for independent ones."""
    names = symmetry.signature.keys() - {*symmetry.buffers, *symmetry.dead}
    ends = [(pair.first[n].double(), pair.second[n].double()) for n in names]
    apart = sum(float((a - b).square().sum()) for a, b in ends)
    return (apart / sum(float(a.square().sum() + b.square().sum()) for a, b in ends)) ** 0.5
