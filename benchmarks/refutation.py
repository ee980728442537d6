"""What it costs to try a symmetry on numbers before it is returned.

    python benchmarks/refutation.py [--json] [--only NAME …]

CPU-seconds of one thread (`time.process_time`), each model in a fresh process, imports and the
derivation not counted. Tiny models are tried in float64, large ones in float32. Beside it stands
one forward pass at the given inputs: refutation makes at least four of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

_TINY = {"n_layer": 2, "n_embd": 16, "n_head": 4, "vocab_size": 11, "n_positions": 9,
         "bos_token_id": None, "eos_token_id": None}  # fmt: skip
_SMALL_RESNET = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [2, 2],
                 "layer_type": "basic"}  # fmt: skip
# name: class, configuration and options in transformers, the shape of the input, seconds allowed
CASES: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...], float]] = {
    "tiny ResNet": ("ResNetForImageClassification", "ResNetConfig", _SMALL_RESNET,
                    (2, 3, 32, 32), 0.1),
    "tiny GPT-2": ("GPT2LMHeadModel", "GPT2Config", _TINY, (2, 7), 0.1),
    "ResNet-50": ("ResNetForImageClassification", "ResNetConfig", {"num_labels": 1000},
                  (1, 3, 64, 64), 0.7),
    "ResNet-50 at 224": ("ResNetForImageClassification", "ResNetConfig", {"num_labels": 1000},
                         (1, 3, 224, 224), 2.0),
    "GPT-2 small": ("GPT2LMHeadModel", "GPT2Config", {}, (1, 16), 3.5),
}  # fmt: skip


def measure(name: str) -> dict[str, Any]:
    """One model, in this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    import torch
    import transformers

    from paramsym import find_symmetry
    from paramsym.checking.refute import refute

    torch.set_num_threads(1)
    cls, config, options, shape, target = CASES[name]
    made = getattr(transformers, config)(**options)
    made.use_cache = False
    model = getattr(transformers, cls)(made).eval()
    if len(shape) == 4:
        inputs: dict[str, torch.Tensor] = {"pixel_values": torch.randn(shape)}
    else:
        inputs = {"input_ids": torch.randint(0, made.vocab_size, shape)}
    symmetry = find_symmetry(model, inputs, check=False)
    start = time.process_time()
    with torch.no_grad():
        model(**inputs)
    forward = time.process_time() - start
    seconds = []
    for _ in range(2):
        start = time.process_time()
        checked = refute(model, symmetry, inputs).checked
        seconds.append(time.process_time() - start)
    return {
        "model": name, "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": seconds[0], "again": seconds[1], "target": target, "forward": forward,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "checked": str(checked),
    }  # fmt: skip


def run(only: list[str] | None = None) -> list[dict[str, Any]]:
    """Every model in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    rows = []
    for name in only or CASES:
        command = [sys.executable, __file__, "--child", name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """The table, and what was found."""
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "parameters", "refutation", "again", "target", "one forward", "peak")
    for row in rows:
        table.add_row(
            row["model"], f"{row['parameters'] / 1e6:.3g} M", f"{row['seconds']:.2f}",
            f"{row['again']:.2f}", f"≤ {row['target']}", f"{row['forward']:.3f}",
            f"{row['peak_gb']:.2f} GB",
        )  # fmt: skip
    console = Console(width=110)
    console.print(table)
    for row in rows:
        console.print(f"{row['model']}: {row['checked']}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    rows = run(options.only)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
