"""How long it takes to derive a symmetry, next to what others take to read the same model.

    python benchmarks/derivation.py [--json] [--only NAME …]

Every number is CPU time of one thread (`time.process_time`), in a fresh process per model and
reader. All models are built on the meta device, where tensors have shapes but no numbers, so that
the peak of the memory shows whether anybody allocates weights; only torch-pruning, which needs a
real forward pass, gets weights, and no model above 300 million parameters.

    paramsym        find_symmetry, trace included
    torch.export    the graph alone, without any symmetry: the other reader
    torch-pruning   its dependency graph (permutations only); left out if it is not installed
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT = 300  # seconds for one reader of one model


@dataclass(frozen=True)
class Case:
    """A model by its configuration, and the seconds in which its symmetry must be found."""

    name: str
    model: str  # class and configuration in transformers
    config: str
    options: dict[str, Any]
    images: bool
    target: float


_LLAMA_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
_LLAMA_405B = {
    "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
    "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256,
}  # fmt: skip
CASES = [
    Case("ResNet-50", "ResNetForImageClassification", "ResNetConfig",
         {"num_labels": 1000}, True, 1),
    Case("ViT-B/16", "ViTForImageClassification", "ViTConfig", {"num_labels": 1000}, True, 1),
    Case("GPT-2 small", "GPT2LMHeadModel", "GPT2Config", {}, False, 1),
    Case("BERT-base", "BertModel", "BertConfig", {}, False, 1),
    Case("Llama-3-8B", "LlamaForCausalLM", "LlamaConfig", _LLAMA_8B, False, 2),
    Case("Llama-3.1-405B", "LlamaForCausalLM", "LlamaConfig", _LLAMA_405B, False, 25),
]  # fmt: skip
READERS = ("paramsym", "torch.export", "torch-pruning")
LARGEST_REAL = 300_000_000


def measure(case: Case, reader: str) -> dict[str, Any]:
    """One reader on one model, in this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    import torch
    import transformers

    torch.set_num_threads(1)
    config = getattr(transformers, case.config)(**case.options)
    config.use_cache = False  # neither torch.export nor torch-pruning can return a cache
    with torch.device("meta"):
        model = getattr(transformers, case.model)(config).eval()
    parameters = sum(p.numel() for p in model.parameters())
    found: dict[str, Any] = {"parameters": parameters}
    real = reader == "torch-pruning"
    if real and parameters > LARGEST_REAL:
        return {**found, "skipped": "needs the weights"}
    if real:
        model = getattr(transformers, case.model)(config).eval()
    inputs = _inputs(case, "cpu" if real else "meta")
    work = {"paramsym": _derive, "torch.export": _export, "torch-pruning": _depend}[reader]
    before = _peak()
    start = time.process_time()
    found.update(work(model, inputs))
    found.setdefault("seconds", time.process_time() - start)
    found["peak_gb"] = _peak()
    found["grown_gb"] = found["peak_gb"] - before
    found["meta"] = all(p.is_meta for p in model.parameters())
    if reader == "paramsym" and parameters < LARGEST_REAL:
        start = time.process_time()
        work(model, inputs)
        found["again"] = time.process_time() - start
    return found


def _inputs(case: Case, device: str) -> dict[str, Any]:
    import torch

    if case.images:
        return {"pixel_values": torch.zeros(2, 3, 224, 224, device=device)}
    return {"input_ids": torch.zeros(1, 16, dtype=torch.long, device=device)}


def _derive(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    from paramsym import find_symmetry

    start = time.process_time()
    symmetry = find_symmetry(model, inputs)
    seconds = time.process_time() - start
    shifts = sum(shift.dimension for shift in symmetry.shifts)
    dimension = sum(symmetry.dimension(name) for name in symmetry.spaces) + shifts
    return {
        "seconds": seconds, "spaces": len(symmetry.spaces), "shifts": len(symmetry.shifts),
        "dimension": dimension, "unknown": list(symmetry.unknown),
        "tensors": len(symmetry.signature),
    }  # fmt: skip


def _export(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        program = torch.export.export(model, (), inputs, strict=False)
    return {"nodes": len(program.graph.nodes)}


def _depend(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch_pruning

    start = time.process_time()
    graph = torch_pruning.DependencyGraph()
    graph.build_dependency(model, example_inputs=inputs)
    return {"seconds": time.process_time() - start}


def _peak() -> float:
    """The largest resident memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count what the parent held when it forked
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def run(names: list[str] | None = None) -> list[dict[str, Any]]:
    """All readers on all models, each in its own process."""
    rows = []
    for case in CASES:
        if names and case.name not in names:
            continue
        row: dict[str, Any] = {"name": case.name, "target": case.target}
        for reader in READERS:
            row[reader] = _child(case, reader)
        rows.append(row)
    return rows


def _child(case: Case, reader: str) -> dict[str, Any]:
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--child", case.name, reader]
    try:
        done = subprocess.run(
            command, env={**os.environ, **single}, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"skipped": f"more than {TIMEOUT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"skipped": f"fails: {last[:60]}"}
    return json.loads(lines[-1])


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Deriving the symmetry: CPU-seconds, one thread, no weights")
    for name in ("model", "parameters", "paramsym", "again", "target", "peak GB", "spaces",
                 "dimension", "torch.export", "torch-pruning"):  # fmt: skip
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        own = row["paramsym"]
        if "seconds" not in own:
            table.add_row(row["name"], "", own["skipped"])
            continue
        good = own["seconds"] <= row["target"]
        table.add_row(
            row["name"], f"{own['parameters'] / 1e6:,.0f} M",
            f"[{'green' if good else 'red'}]{own['seconds']:.2f}[/]",
            f"{own['again']:.2f}" if "again" in own else "", f"≤ {row['target']:g}",
            f"{own['peak_gb']:.2f}", str(own["spaces"]), f"{own['dimension']:,}",
            *(_seconds(row[reader]) for reader in READERS[1:]),
        )  # fmt: skip
    Console(width=130).print(table)


def _seconds(found: dict[str, Any]) -> str:
    return f"{found['seconds']:.2f}" if "seconds" in found else found["skipped"]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, reader = options.child
        print(json.dumps(measure(next(c for c in CASES if c.name == name), reader)))
        return
    rows = run(options.only)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
