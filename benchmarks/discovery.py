"""Linear symmetries by the null space of sampled constraints: dimensions, gaps and times.

    python benchmarks/discovery.py [--json]

CPU-seconds of one thread, gradients and certificates included; the first call, which loads parts
of PyTorch, is made before. Beside each number stands what the theory says and what was asked for.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paramsym.discovery import linear_symmetries
from tests.discovery.networks import Branches, example, identity, leaky, perceptron

RESIDUAL, NEXT = 1e-13, 1e-4
# name, function, sizes, level, dimension, seconds asked for
NETWORKS = (
    ("linear", identity, (2, 3, 2), "full", 9, None),
    ("linear", identity, (4, 5, 4), "full", 25, None),
    ("linear", identity, (5, 6, 5), "full", 36, None),
    ("linear", identity, (5, 6, 5), "tensors", 36, 1.0),
    ("ReLU", torch.relu, (3, 4, 3), "full", 4, None),
    ("leaky ReLU", leaky, (3, 4, 3), "full", 4, None),
    ("square", torch.square, (3, 4, 3), "full", 4, None),
    ("tanh", torch.tanh, (3, 4, 3), "full", 0, None),
    ("ReLU", torch.relu, (5, 6, 5), "full", 6, None),
    ("ReLU", torch.relu, (5, 6, 5), "tensors", 6, 1.0),
    ("ReLU", torch.relu, (30, 32, 30), "sides", 32, 8.0),
)


def measured(
    name: str, model: nn.Module, width: int, level: str, dimension: int, target: float | None
) -> dict[str, Any]:
    start = time.process_time()
    found = linear_symmetries(model, example(width), level)
    seconds = time.process_time() - start
    good = found.gap.largest_null <= RESIDUAL and found.gap.next >= NEXT
    good &= found.dimension == dimension and (target is None or seconds <= target)
    return {
        "network": name, "level": level, "unknowns": found.unknowns, "generators": found.dimension,
        "theory": dimension, "residual": found.gap.largest_null, "next": found.gap.next,
        "trivial": found.trivial, "seconds": seconds, "target": target, "met": good,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    linear_symmetries(perceptron((2, 2, 2), torch.relu), example(2))
    cases: list[tuple[str, nn.Module, int, str, int, float | None]] = [
        (
            f"{name} {'-'.join(map(str, sizes))}",
            perceptron(sizes, f),
            sizes[0],
            level,
            dimension,
            target,
        )
        for name, f, sizes, level, dimension, target in NETWORKS
    ]
    cases.append(("two linear branches 3-2-3", Branches((2, 2), identity), 3, "tensors", 16, None))
    cases.append(("two linear branches 3-2-3", Branches((2, 2), identity), 3, "sides", 8, None))
    for case in cases:
        row = measured(*case)
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            head = f"| {row['network']} | {row['level']} | {row['unknowns']:,} | "
            sizes = f"{row['residual']:.0e} | {row['next']:.0e} | {row['seconds']:.2f} |"
            note = "" if row["met"] else "  not as asked"
            print(f"{head}{row['generators']} | {sizes}{note}", flush=True)


if __name__ == "__main__":
    main()
