"""Random networks of sums of powers: derived, verified with a negative control, counted.

    python benchmarks/waring_networks.py [--count 1000] [--json]

Two or three polynomial layers of up to five outputs, each with up to four terms of degrees 1 to 5
and random signs, one or two kinds of outputs in any order; exponents 0.5 to 3; with and without
biases; weights as the layers draw them. A network whose symmetry moves nothing that shows (its
rectifiers are closed, or nothing is free) is counted apart. The error is the worst relative change
of the function under any space and all together; the control that of a wrong move of the same size,
the largest of its rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paramsym import find_symmetry, verify
from paramsym.waring import Polynomial, RectifiedMonomial

ERROR, CONTROL = 1e-12, 1e-3
POWERS = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0)


def network(random: Random, seed: int) -> nn.Sequential:
    """A network of the class."""
    generator = torch.Generator().manual_seed(seed)
    widths = [random.randint(1, 5) for _ in range(random.randint(3, 4))]
    modules: list[nn.Module] = []
    for at, (inner, outer) in enumerate(zip(widths, widths[1:], strict=False)):
        kinds = [_terms(random) for _ in range(random.randint(1, 2))]
        chosen = [random.choice(kinds) for _ in range(outer)]
        power = None if at == len(widths) - 2 else random.choice(POWERS)
        modules.append(
            Polynomial(
                inner, outer, [[d for d, _ in row] for row in chosen],
                [[s for _, s in row] for row in chosen], power=power,
                bias=random.random() < 0.8, generator=generator, dtype=torch.float64,
            )
        )  # fmt: skip
        if power is not None:
            modules.append(RectifiedMonomial(power))
    return nn.Sequential(*modules)


def _terms(random: Random) -> list[tuple[int, int]]:
    degrees = [random.randint(1, 5) for _ in range(random.randint(1, 4))]
    return [(d, random.choice((1, -1)) if d % 2 == 0 else 1) for d in degrees]


def checked(seed: int) -> dict[str, Any]:
    """What was derived of one network, and how far it holds."""
    model = network(Random(seed), seed)
    inputs = (torch.randn(8, model[0].in_features, dtype=torch.float64),)  # pyright: ignore
    symmetry = find_symmetry(model, inputs, check=False)
    found = verify(model, symmetry, inputs, generator=torch.Generator().manual_seed(seed))
    shown = [row.control for row in found.rows if row.invisible != "everywhere"]
    return {
        "seed": seed, "spaces": len(symmetry.spaces), "error": found.error,
        "control": max(shown, default=None), "model": repr(model),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.process_time()
    rows = [checked(seed) for seed in tqdm(range(options.count), disable=None)]
    shown = [row for row in rows if row["control"] is not None]
    wrong = [row for row in rows if row["error"] > ERROR]
    weak = [row for row in shown if row["control"] < CONTROL]
    found = {
        "networks": len(rows), "that move something that shows": len(shown),
        "worst error": max(row["error"] for row in rows), "errors above": len(wrong),
        "least control": min(row["control"] for row in shown), "controls below": len(weak),
        "spaces": sum(row["spaces"] for row in rows), "seconds": time.process_time() - start,
    }  # fmt: skip
    print(json.dumps({**found, "wrong": wrong, "weak": weak}) if options.json else "\n".join(
        [f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}"
         for name, value in found.items()]
        + [f"seed {row['seed']}: error {row['error']:.1e}, control {row['control']}\n{row['model']}"
           for row in [*wrong, *weak]]))  # fmt: skip


if __name__ == "__main__":
    main()
