"""What `paramsym transform FOLDER` takes in memory, beside the plan that `--dry-run` prints.

    python benchmarks/transform.py [--json] [--megabytes 400] [--dtype float32 bfloat16]

A folder with a small configuration and a few shards is made, and moved by the command in a fresh
process. The peak of that process, less the peak of the same command on a folder with hardly any
weights (Python, torch, transformers, the derivation), is what the weights took: it should stay
below `Plan.memory`, and not far below.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARDS = 4
WIDTH = 1024
_COMMAND = "import sys; from paramsym.cli import main; sys.exit(main())"
_PEAK = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"
)
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make(folder: Path, megabytes: int, dtype: str) -> int:
    """Write a Llama of about that size in a few shards; the bytes of its weights.

    In a process of its own: what this one has held would be inherited by the peak of its children.
    """
    code = f"""
import torch, transformers
torch.set_default_dtype(torch.{dtype})
per_layer, bytes_each = 16 * {WIDTH}**2, torch.{dtype}.itemsize
layers = max(1, round({megabytes} * 1e6 / bytes_each / per_layer))
width = {WIDTH} if {megabytes} else 64
config = transformers.LlamaConfig(hidden_size=width, intermediate_size=4 * width, vocab_size=4096,
    num_hidden_layers=layers, num_attention_heads=width // 64, tie_word_embeddings=False)
model = transformers.LlamaForCausalLM(config)
size = sum(p.numel() * p.element_size() for p in model.parameters())
model.save_pretrained({str(folder)!r}, max_shard_size=size // {SHARDS} + 1)
print(size)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_ENVIRONMENT, check=True
    )
    return int(done.stdout.split()[-1])


def transform(source: Path, out: Path, *options: str) -> tuple[str, int]:
    """What the command printed in a fresh process, and the peak of that process in bytes."""
    command = [sys.executable, "-c", _COMMAND, "transform", str(source), str(out), *options]
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *command], capture_output=True, text=True, env=_ENVIRONMENT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    text, _, peak = done.stdout.rpartition("peak ")
    return text, int(peak)


def measure(megabytes: int, dtype: str) -> dict[str, Any]:
    """One folder: planned and measured memory."""
    room = Path(tempfile.mkdtemp(prefix="paramsym-transform-"))
    try:
        make(room / "tiny", 0, dtype)
        _, baseline = transform(room / "tiny", room / "tiny-out")
        size = make(room / "model", megabytes, dtype)
        shards = len([*(room / "model").glob("*.safetensors")])
        planned, _ = transform(room / "model", room / "out", "--dry-run")
        found = re.search(r"([\d,]+) +bytes of memory", planned)
        assert found is not None, planned
        plan = int(found[1].replace(",", ""))
        start = time.monotonic()
        _, peak = transform(room / "model", room / "out")
        return {
            "dtype": dtype, "bytes": size, "shards": shards, "plan": plan, "baseline": baseline,
            "peak": peak, "took": peak - baseline, "copies": (peak - baseline) / size,
            "share": plan / (peak - baseline), "seconds": time.monotonic() - start,
        }  # fmt: skip
    finally:
        shutil.rmtree(room, ignore_errors=True)


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("dtype", "weights", "shards", "plan", "took", "copies", "plan / took", "seconds")
    for row in rows:
        table.add_row(
            row["dtype"], f"{row['bytes'] / 1e6:,.0f} MB", str(row["shards"]),
            f"{row['plan'] / 1e6:,.0f} MB", f"{row['took'] / 1e6:,.0f} MB",
            f"{row['copies']:.2f}", f"{row['share']:.2f}", f"{row['seconds']:.0f}",
        )  # fmt: skip
    Console(width=100).print(table)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--megabytes", type=int, default=400, help="of weights in the folder")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    rows = [measure(options.megabytes, dtype) for dtype in options.dtype]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
