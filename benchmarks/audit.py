"""Certifying completeness: CPU-seconds and peak memory for GPT-2, beside an SVD of the Jacobian.

    python benchmarks/audit.py [--only 1048 1920] [--json]

Each size runs in a fresh process on one thread; deriving the symmetry and imports are not counted.
The SVD is what an audit took before: 1.5 rows per parameter, folded by QR, all singular vectors.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings

# parameters: (layers, width, vocabulary, positions); the vocabulary is larger than the width
SIZES = {
    1048: (1, 8, 14, 6),
    1920: (2, 8, 14, 6),
    4176: (2, 12, 26, 6),
    8720: (2, 16, 117, 16),
    20580: (2, 28, 29, 6),
}
DEFAULT = (1048, 1920, 4176, 8720)
SVD_UP_TO = 1920


def measure(parameters: int) -> dict[str, float | int | bool | None]:
    """Audit one network in this process."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from paramsym import audit, find_symmetry

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    layers, width, vocabulary, positions = SIZES[parameters]
    torch.manual_seed(5)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=2, vocab_size=vocabulary, n_positions=positions
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # away from biases of zero and gains of one
            parameter += (0.3 if parameter.ndim < 2 else 0.5) * torch.randn_like(parameter)
    inputs = {"input_ids": torch.randint(0, vocabulary, (3, positions))}
    symmetry = find_symmetry(model, inputs)
    one = torch.ones(1)
    torch.func.jvp(torch.sin, (one,), (one,))  # imports the tables of forward derivatives
    start, begun = time.process_time(), time.perf_counter()
    found = audit(model, inputs, symmetry=symmetry, limit=parameters)
    seconds, wall = time.process_time() - start, time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    svd = by_svd(model, inputs) if parameters <= SVD_UP_TO else None
    return {
        "parameters": found.parameters, "redundant": found.nullity, "complete": found.complete,
        "seconds": seconds, "wall": wall, "estimated": found.cost.seconds, "peak_gb": peak,
        "smallest": found.gap.above, "noise": found.gap.below, "svd_seconds": svd,
        "pass_seconds": rows_at_64_inputs(model, inputs, True),
        "calls_seconds": rows_at_64_inputs(model, inputs, False),
    }  # fmt: skip


def rows_at_64_inputs(model, inputs, together: bool) -> float:
    """CPU-seconds of eight rows of the Jacobian at each of them, in one pass or one by one."""
    import torch

    from paramsym.checking.jacobian import Network

    network = Network(model, inputs, None, False, torch.Generator().manual_seed(0))
    network.batched = together
    network.rows(8, [1.0] * 2)
    start = time.process_time()
    network.rows(8, [1.0] * 64)
    return time.process_time() - start


def by_svd(model, inputs) -> float:
    """CPU-seconds of the null space by a singular value decomposition."""
    import torch

    from paramsym.checking.jacobian import Network, Plan, jacobian

    start = time.process_time()
    network = Network(model, inputs, None, False, torch.Generator().manual_seed(0))
    plan = Plan(32, -(-3 * network.count // 64) + 8)
    rows = torch.linalg.qr(jacobian(network, plan, lambda: None), mode="r").R
    norms = torch.linalg.vector_norm(rows, dim=0)
    alive = norms > 1e-12 * norms.max()
    torch.linalg.svd(rows[:, alive] / norms[alive], full_matrices=True)
    return time.process_time() - start


def run(sizes: tuple[int, ...] = DEFAULT) -> list[dict]:
    """Every size in a process of its own."""
    found = []
    for size in sizes:
        command = [sys.executable, __file__, "--one", str(size)]
        found.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    return found


def show(rows: list[dict]) -> None:
    """A table in Markdown."""
    print("| parameters | certificate | SVD | ratio | estimated | wall | peak | σ min | noise |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        svd = row["svd_seconds"]
        compared = f"{svd:.1f} s | {svd / row['seconds']:.1f} ×" if svd else "– | –"
        print(
            f"| {row['parameters']:,} | {row['seconds']:.1f} s | {compared} "
            f"| {row['estimated']:.1f} s | {row['wall']:.1f} s | {row['peak_gb']:.2f} GB "
            f"| {row['smallest']:.0e} | {row['noise']:.0e} |"
        )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", default=DEFAULT, choices=SIZES)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    found = run(tuple(options.only))
    print(json.dumps(found, indent=1)) if options.json else show(found)


if __name__ == "__main__":
    main()
