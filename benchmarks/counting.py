"""Conservation laws counted between two bounds, in CPU-seconds of one thread.

    python benchmarks/counting.py [--json]

Widths are counted by exact ranks over a prime field, models by numerical ranks of nested forward
mode; the derivation of the symmetry is part of the time. The published times, of symbolic brackets
for small linear and ReLU networks, are 41 and 136 seconds each on 64 cores (Marcotte, Gribonval and
Peyré, "Abide by the law and follow the flow", 2023).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from paramsym import count_conservation_laws

WIDTHS = [
    ([32, 32, 32], "linear", False, 528, 4.0),
    ([16, 16, 16, 16], "linear", False, 272, 0.8),
    ([28, 32, 32, 10], "relu", False, 64, 5.0),
    ([3, 4, 2], "linear", True, 10, None),
]
RANDOM, MEAN = 100, 0.15


def gpt() -> nn.Module:
    """Untied, of width 4: one head, one block, five tokens and three positions."""
    config = GPT2Config(
        n_embd=4, n_head=1, n_inner=4, vocab_size=5, n_positions=3, n_layer=1, use_cache=False,
        tie_word_embeddings=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def models() -> list[tuple[str, nn.Module, Any, int, float | None]]:
    """Name, model, example inputs, the number of laws, the seconds allowed."""
    convolution = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )
    normed = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    tokens = {"input_ids": torch.arange(21).reshape(7, 3) % 5}
    return [
        ("convolution, batch norm (eval), ReLU, linear", convolution.eval(),
         (torch.randn(5, 2, 4, 4),), 6, None),
        ("linear 3-4, layer norm, linear 2", normed, (torch.randn(5, 3),), 8, None),
        ("GPT-2 of width 4, 196 parameters", gpt(), tokens, 57, 10.0),
    ]  # fmt: skip


def timed(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    """Both bounds and the time that they took."""
    start = time.process_time()
    found = count_conservation_laws(*arguments, **keywords)
    return {
        "seconds": time.process_time() - start, "lower": found.lower, "upper": found.upper,
        "exact": found.certain,
    }  # fmt: skip


def run() -> list[dict[str, Any]]:
    """One row per network, and one for the random ones."""
    rows = []
    for widths, activation, bias, laws, limit in WIDTHS:
        name = f"{activation} {'-'.join(map(str, widths))}{', bias' if bias else ''}"
        found = timed(widths, activation, bias=bias)
        rows.append({"network": name, "laws": laws, "limit": limit, **found})
    torch.func.grad(torch.sum)(torch.ones(1))  # imports what all models need
    for name, model, inputs, laws, limit in models():
        found = timed(model, example_inputs=inputs)
        rows.append({"network": name, "laws": laws, "limit": limit, **found})
    draw, each = random.Random(0), []
    for seed in range(RANDOM):
        widths = [draw.randint(2, 9) for _ in range(draw.randint(3, 5))]
        activation, bias = draw.choice(["linear", "relu"]), draw.random() < 0.5
        each.append(timed(widths, activation, bias=bias, seed=seed))
    mismatches = sum(found["lower"] != found["upper"] for found in each)
    rows.append({
        "network": f"{RANDOM} random linear and ReLU networks, mismatches and mean",
        "laws": 0, "lower": mismatches, "upper": mismatches, "limit": MEAN, "exact": True,
        "seconds": statistics.mean(found["seconds"] for found in each),
    })  # fmt: skip
    return rows


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = run()
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("| network | laws | from below | from above | ranks | CPU-seconds | limit |")
    print("|---|---:|---:|---:|---|---:|---:|")
    for row in rows:
        cells = (
            row["network"], row["laws"], row["lower"], row["upper"],
            "exact" if row["exact"] else "numerical", f"{row['seconds']:.3g}", row["limit"] or "–",
        )  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
