"""What `paramsym.align` is measured beside in `alignment.py`, in the same run.

* `rebasin` (PyPI, MIT), permutations of networks that it traces; read from its wheels, which are
  not installed;
* weight matching of a plain perceptron as published, written here from the paper alone.

Seconds are of this process on its processor.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from alignment_packages import wheel
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

State = dict[str, Tensor]
WHEELS = (("rebasin", "0.0.47"), ("torchview", "0.2.7"), ("graphviz", "0.21"))


@dataclass(frozen=True)
class Matched:
    """The second network moved to the first.

    Attributes:
        objective: ⟨a, g·b⟩ after each round, summed over all weights and biases.
    """

    params: State
    objective: list[float]
    seconds: float


def inner(first: State, second: State) -> float:
    """⟨a, b⟩ over parameters in float64; counters and the like are left out."""
    return sum(
        float((first[n].double() * second[n].double()).sum())
        for n in first
        if first[n].is_floating_point() and not n.endswith(("running_mean", "running_var"))
    )


def weight_matching(
    first: State, second: State, generator: torch.Generator, rounds: int = 100
) -> Matched:
    """The permutations of hidden units that bring a perceptron to another, one layer at a time.

    With W_l, b_l of the first network, V_l, c_l of the second and orders P_l of its hidden units,
    Σ_l ⟨W_l, P_l V_l P_{l−1}ᵀ⟩ + ⟨b_l, P_l c_l⟩ is linear in each P_l alone: an assignment with the
    gains W_l (V_l P_{l−1}ᵀ)ᵀ + b_l c_lᵀ + W_{l+1}ᵀ (P_{l+1} V_{l+1}). Layers are visited in random
    order until a round changes nothing.

    Args:
        first, second: weights and biases of linear layers, in the order in which they act.
        generator: of the order of the visits.
        rounds: at most so many.

    Source: Ainsworth, Hayase and Srinivasa, "Git Re-Basin: merging models modulo permutation
    symmetries" (2023), algorithm 1.
    """
    start = time.process_time()
    layers = [name.removesuffix(".weight") for name in first if name.endswith(".weight")]
    moved = {n: p.clone() for n, p in second.items()}
    history = [inner(first, moved)]
    for _ in range(rounds):
        changed = False
        for k in torch.randperm(len(layers) - 1, generator=generator).tolist():
            here, after = layers[k], layers[k + 1]
            gains = first[f"{here}.weight"] @ moved[f"{here}.weight"].T
            gains = gains + torch.outer(first[f"{here}.bias"], moved[f"{here}.bias"])
            gains = gains + first[f"{after}.weight"].T @ moved[f"{after}.weight"]
            _, found = linear_sum_assignment(gains.numpy(), maximize=True)
            order, now = torch.from_numpy(found), float(gains.trace())
            if float(gains[torch.arange(len(order)), order].sum()) <= now + 1e-6 * abs(now):
                continue  # no better than as it is, up to rounding: dead units swap for ever
            changed = True
            for name in (f"{here}.weight", f"{here}.bias"):
                moved[name] = moved[name][order]
            moved[f"{after}.weight"] = moved[f"{after}.weight"][:, order]
        history.append(inner(first, moved))
        if not changed:
            break
    return Matched(moved, history, time.process_time() - start)


def rebasin_or_reason(folder: Path) -> type | str:
    """The class of `rebasin` that matches weights, or why it cannot be had.

    It draws graphs with `torchview`, which imports `graphviz`: pure Python, all three imported from
    their wheels. The program `graphviz` itself is not needed.
    """
    for package, version in WHEELS:
        path = wheel(package, version, folder)
        if isinstance(path, str):
            return path
        if str(path) not in sys.path:
            sys.path.append(str(path))
    try:
        from rebasin import (  # pyright: ignore[reportMissingImports]
            PermutationCoordinateDescent,
        )
    except ImportError as error:
        return f"rebasin: {error}"
    return PermutationCoordinateDescent


def rebasin_matching(
    descent: type,
    make: Callable[[], nn.Module],
    first: State,
    second: State,
    inputs: Tensor,
    seed: int,
) -> Matched | str:
    """The same by `rebasin`, tracing of both networks included; the seed draws its orders."""
    models = []
    for params in (first, second):
        models.append(make().eval())
        models[-1].load_state_dict(copy.deepcopy(params))
    before = inner(first, second)
    start = time.process_time()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            descent(*models, inputs).rebasin()
    except Exception as error:  # whatever a peer raises is a result  # noqa: BLE001
        return f"rebasin: {type(error).__name__}: {error}"
    seconds = time.process_time() - start
    found = {n: p.detach().clone() for n, p in models[1].state_dict().items()}
    return Matched(found, [before, inner(first, found)], seconds)
