"""Moments of a GPT with 11 million parameters, as a share of one step of its training, and
projections onto the tangent space of its orbit.

    python benchmarks/moments.py [--json] [--threads N] [--turns K]

Six layers of GPT-2 at width 384, in float32: 336,524 generators. One step is forward, backward and
AdamW on 16 × 128 tokens. `moment_map` reads Gram matrices off the blocks, for the spaces alone and
with the shifts; its twin is one reverse pass through `act` at the identity. They alternate in one
process; times are medians. The projection of the weights, in float64 and to an error of 1e-8,
takes conjugate gradients without a dense matrix; its time is CPU-seconds.
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
from transformers import GPT2Config, GPT2LMHeadModel

from paramsym import find_symmetry, moment_map, tangent

TARGET, TARGET_PROJECTION = 0.015, 30.0
BATCH, TIME, VOCABULARY = 16, 128, 65


def model() -> torch.nn.Module:
    """As in nanoGPT's model of characters, at random weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=6, n_head=6, n_embd=384, n_positions=256, vocab_size=VOCABULARY,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def seconds(turns: int, *calls: Callable[[], Any]) -> list[float]:
    """The median time of each call, the calls in turn."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(turns + 1):  # the first warms up
        for times, call in zip(taken, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in taken]


def run(turns: int = 5) -> dict[str, Any]:
    """Times of a step, of moments, and of their twin, which must agree."""
    network = model()
    tokens = torch.randint(0, VOCABULARY, (BATCH, TIME))
    symmetry = find_symmetry(network.eval(), {"input_ids": tokens[:, :8]}, check=False)
    optimizer = torch.optim.AdamW(network.train().parameters())
    params = network.state_dict()
    operator = tangent(symmetry, params)
    own = {n: p for n, p in params.items() if n in operator.names}

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        network(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    def reverse() -> torch.Tensor:
        moved, pull = torch.func.vjp(operator._curve(operator.names), operator.zero)[:2]
        return pull({n: own[n] for n in moved})[0]

    def gram() -> object:
        return moment_map(symmetry, params)

    spaces = symmetry.restrict(translations=False)

    def plain() -> object:
        return moment_map(spaces, params)

    error = float((operator.rmatvec(own) - reverse()).abs().max() / reverse().abs().max())
    training, plainly, fast, slow = seconds(turns, step, plain, gram, reverse)
    return {
        "parameters": sum(p.numel() for p in network.parameters()), "generators": operator.shape[0],
        "generators_of_spaces": tangent(spaces, params).shape[0], "step": training,
        "spaces": plainly, "spaces_share": plainly / training, "moments": fast, "reverse": slow,
        "share": fast / training,
        "reverse_share": slow / training, "error": error, "threads": torch.get_num_threads(),
    }  # fmt: skip


def projection() -> dict[str, Any]:
    """CPU-seconds, steps and the error of a projection, which is measured by projecting again."""
    network = model().double().eval()
    tokens = torch.randint(0, VOCABULARY, (1, 8))
    symmetry = find_symmetry(network, {"input_ids": tokens}, check=False)
    params = network.state_dict()
    operator = tangent(symmetry, params)
    weights = {n: params[n] for n in operator.names}
    steps = []
    start = time.process_time()
    along = operator.project(weights, progress=lambda step, error: steps.append((step, error)))
    taken = time.process_time() - start
    left = {n: x - along.get(n, 0.0) for n, x in weights.items()}
    again = operator.project(left, tolerance=1e-6)
    norm = math.sqrt(sum(float(x.square().sum()) for x in weights.values()))
    error = math.sqrt(sum(float(x.square().sum()) for x in again.values())) / norm
    return {
        "generators": operator.shape[0], "seconds": taken, "steps": steps[-1][0],
        "estimate": steps[-1][1], "error": error,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """The numbers, with the target."""
    print(
        f"{row['parameters']:,} parameters, {row['generators']:,} generators, "
        f"{row['threads']} thread(s)\n"
        f"training step   {row['step']:8.3f} s\n"
        f"Gram form       {row['spaces']:8.4f} s  {row['spaces_share']:6.2%}  (target ≤ "
        f"{TARGET:.1%}; {row['generators_of_spaces']:,} generators of spaces)\n"
        f"with shifts     {row['moments']:8.4f} s  {row['share']:6.2%}\n"
        f"reverse pass    {row['reverse']:8.4f} s  {row['reverse_share']:6.2%}\n"
        f"largest difference {row['error']:.0e} of the largest moment"
    )
    found = row["projection"]
    print(
        f"projection      {found['seconds']:8.1f} CPU-seconds, {found['steps']} steps, to "
        f"{found['estimate']:.0e} (target ≤ {TARGET_PROJECTION:.0f} s); what is left projects to "
        f"{found['error']:.0e}"
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    row = {**run(options.turns), "projection": projection()}
    if options.json:
        print(json.dumps(row, indent=1))
    else:
        show(row)


if __name__ == "__main__":
    main()
