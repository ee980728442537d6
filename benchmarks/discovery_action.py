"""The action of GL_h in closed form: exactness, group law, time, and a teleport by it.

    python benchmarks/discovery_action.py [--json] [--threads N] [--turns K]

**Action**: Uσ(Vx) with h = 512 units, n = 64 inputs, m = 32 outputs in float64; g = I + A/2 with A
normal of spectral norm about 2; the largest of five draws. CPU time is the least of the turns.

**Least change**: how far c(g₁, g₂Z)c(g₂, Z) is from c(g₁g₂, Z), relative, as medians; and how U and
the error on the batch grow with the condition number of σ(gZ).

**Teleport**: the network 5-6-7-8 of `teleportation.py`, by GL_6 × GL_7 on its batch of 4.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from teleportation import BEFORE, EPOCHS, RATE, SEEDS, small
from torch import Tensor, nn
from torch.nn import functional

from paramsym import find_symmetry
from paramsym.discovery.general_linear.cocycle import FORMS, change_between
from paramsym.discovery.general_linear.data_dependent import data_dependent_action
from paramsym.discovery.general_linear.frames import AbstractFrame, HouseholderFrame, SphericalFrame
from paramsym.discovery.general_linear.layers import move_two_layers
from paramsym.dynamics.teleportation import teleport

UNITS, INPUTS, OUTPUTS, DRAWS = 512, 64, 32, 5
EXACT, LAW, MILLISECONDS, SHARE = 1e-12, 1e-12, 5.0, 0.15
BOUNDS = (1.2, 1.5, 2.0, 5.0)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "leaky ReLU": lambda z: functional.leaky_relu(z, 0.1), "GELU": functional.gelu,
}  # fmt: skip
FRAMES: dict[str, Callable[[], AbstractFrame]] = {
    "householder": HouseholderFrame, "spherical": SphericalFrame,
}  # fmt: skip


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def element(generator: torch.Generator, h: int) -> Tensor:
    return torch.eye(h, dtype=torch.float64) + 0.5 * normal(generator, h, h) / h**0.5


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def milliseconds(call: Callable[[], Any], turns: int) -> float:
    """CPU time of one call, the least of several."""
    call()
    times = []
    for _ in range(turns):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def moves(
    function: Callable[[Tensor], Tensor], frame: AbstractFrame, turns: int
) -> dict[str, float]:
    """Errors on the sample and of the group law, and times."""
    row = {"sample": 0.0, "law": 0.0}
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)
        inner = normal(generator, UNITS, INPUTS) / INPUTS**0.5
        outer = normal(generator, OUTPUTS, UNITS) / UNITS**0.5
        x = normal(generator, INPUTS)
        g, other = element(generator, UNITS), element(generator, UNITS)
        u, v = move_two_layers(g, outer, inner, x, function, frame)
        row["sample"] = max(row["sample"], error(u @ function(v @ x), outer @ function(inner @ x)))
        twice = move_two_layers(other, u, v, x, function, frame)
        once = move_two_layers(other @ g, outer, inner, x, function, frame)
        row["law"] = max(row["law"], *map(error, twice, once))
    row["ms"] = milliseconds(lambda: move_two_layers(g, outer, inner, x, function, frame), turns)
    row["unchecked_ms"] = milliseconds(
        lambda: move_two_layers(g, outer, inner, x, function, frame, check=False), turns
    )
    row["product_ms"] = milliseconds(lambda: g @ inner, turns)
    return row


def traced(form: str, turns: int) -> dict[str, float]:
    """The same sizes through a traced model with GELU and biases: the error, and the time."""
    generator = torch.Generator().manual_seed(0)
    layers = nn.Linear(INPUTS, UNITS), nn.GELU(), nn.Linear(UNITS, OUTPUTS)
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        p.data = normal(generator, *p.shape) / p.shape[-1] ** 0.5
    x, g = normal(generator, 1, INPUTS), element(generator, UNITS)
    params = {n: p.detach() for n, p in model.named_parameters()}
    symmetry = find_symmetry(model, (x,), check=False)
    action = data_dependent_action(model, [*symmetry.spaces], (x,), symmetry, form=form)
    elements = dict.fromkeys(symmetry.spaces, g)
    with torch.no_grad():
        there = torch.func.functional_call(model, action(elements, params), (x,))
        apart = error(there, model(x))
    return {"sample": apart, "ms": milliseconds(lambda: action(elements, params), turns)}


def least_changes() -> dict[str, Any]:
    """The associativity defect by samples, and rounding by condition, of tanh at 32 units."""
    h, defects, rounding = 32, {}, {}
    eye = torch.eye(h, dtype=torch.float64)

    def c(form: str, before: Tensor, moved: Tensor) -> Tensor:
        return change_between(before, moved, torch.tanh, form=form, limit=1e12).times(eye)

    for k in (1, 4, 16, 28, 32):
        found: dict[str, list[float]] = {"least-change": [], "cocycle": []}
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            z, g, other = normal(generator, h, k), element(generator, h), element(generator, h)
            for form, own in found.items():
                product = c(form, g @ z, other @ g @ z) @ c(form, z, g @ z)
                whole = c(form, z, other @ g @ z)
                own.append(float((product - whole).norm() / whole.norm()))
        defects[k] = {form: statistics.median(own) for form, own in found.items()}
    for exponent in (0, 2, 4, 6):
        generator = torch.Generator().manual_seed(0)
        z, moved, outer = normal(generator, h, 2), normal(generator, h, 2), normal(generator, h, h)
        moved[:, 1] = moved[:, 0] + 10.0**-exponent * moved[:, 1]
        change = change_between(z, moved, torch.tanh, form="least-change", limit=1e12)
        there = change.undone(outer)
        apart = error(there @ torch.tanh(moved), outer @ torch.tanh(z))
        rounding[f"{change.condition:.0e}"] = apart, float(there.norm() / outer.norm())
    return {"defects": defects, "rounding": rounding}


def trained(seed: int, form: str | None, bound: float) -> tuple[float, float, float]:
    """The last loss, the relative change of it by the teleport, and CPU-seconds of that."""
    model, x, y = small(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    change = seconds = 0.0

    def loss(found: Tensor) -> Tensor:
        return (found - y).square().sum(1).mean()

    for epoch in range(EPOCHS):
        if epoch == BEFORE and form is not None:
            symmetry = find_symmetry(model, (x,), check=False)
            start = time.process_time()
            action = data_dependent_action(model, [*symmetry.spaces], (x,), symmetry, form=form)
            found = teleport(model, action, loss, (x,), optimizer, bound=bound)
            seconds, change = time.process_time() - start, found.loss_change
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    with torch.no_grad():
        return float(loss(model(x))), change, seconds


def teleports() -> dict[str, Any]:
    """Mean last losses by form and bound, the largest change of a loss, and the mean time."""
    plain = statistics.fmean(trained(seed, None, 0)[0] for seed in range(SEEDS))
    rows: dict[str, Any] = {}
    for form in ("least-change", "cocycle"):
        for bound in BOUNDS:
            runs = [trained(seed, form, bound) for seed in range(SEEDS)]
            rows[f"{form}, bound {bound:g}"] = {
                "loss": statistics.fmean(run[0] for run in runs),
                "change": max(run[1] for run in runs),
                "seconds": statistics.fmean(run[2] for run in runs),
            }
    return {"plain": plain, "by": rows}


def show(rows: dict[str, Any]) -> None:
    """The numbers, with the targets."""
    print(f"h = {UNITS}, n = {INPUTS}, m = {OUTPUTS}: largest relative errors of {DRAWS} draws")
    for name, row in rows["moves"].items():
        print(
            f"{name:24} sample {row['sample']:.0e}  law {row['law']:.0e}  {row['ms']:.2f} ms, "
            f"{row['unchecked_ms']:.2f} without the check of g, gV {row['product_ms']:.2f}"
        )
    for form, row in rows["traced"].items():
        print(f"{'traced, ' + form:24} sample {row['sample']:.0e}  {row['ms']:.2f} ms")
    print(f"(targets: {EXACT:.0e}, {LAW:.0e}, {MILLISECONDS:g} ms)\n\nleast change, 32 units")
    for k, own in rows["least"]["defects"].items():
        print(f"{k:2} samples: associativity defect {own['least-change']:.1e}, "
              f"of the cocycle {own['cocycle']:.0e}")  # fmt: skip
    for condition, (own, size) in rows["least"]["rounding"].items():
        print(f"σ(gZ) of condition number {condition}: error on the batch {own:.0e}, "
              f"U grows {size:.1g}-fold")  # fmt: skip
    plain = rows["teleports"]["plain"]
    print(f"\n5-6-7-8, loss at step {EPOCHS}, mean of {SEEDS} seeds: plain descent {plain:.1f}")
    for name, row in rows["teleports"]["by"].items():
        share = f"{row['loss'] / plain:.3f} of it" if math.isfinite(row["loss"]) else "diverges"
        print(
            f"{name:24} {row['loss']:9.3g}  {share}, a loss changed by {row['change']:.0e} at "
            f"most, {row['seconds']:.2f} CPU-seconds"
        )
    print(f"(target: at most {SHARE} at the default bound of 1.5)")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = {
        "moves": {
            f"{name}, {frame}": moves(function, by(), options.turns)
            for name, function in FUNCTIONS.items()
            for frame, by in FRAMES.items()
        },
        "traced": {form: traced(form, options.turns) for form in FORMS},
        "least": least_changes(),
        "teleports": teleports(),
    }
    print(json.dumps(rows, indent=1)) if options.json else show(rows)


if __name__ == "__main__":
    main()
