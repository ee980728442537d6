"""What it costs to encode 100 million parameters by a key, and to decode them.

    python benchmarks/privacy_speed.py [--json] [--only mlp] [--turns 5]

CPU-seconds of one thread in float32, each case in a process of its own, the best of several turns;
the symmetry and the key are there. *copy* is `torch.clone` of every tensor, *encode* and *decode*
are `privacy.encode` (without its trial on samples) and `privacy.decode`, *checked* is
`privacy.encode` with that trial. *round trip* is the largest relative change of a tensor by both.
*momentum* is `privacy.encode_state` of one buffer for each parameter, as a multiple of `act`.
*evaluated* is the time of the encoded network on a batch, as a multiple of the plain one's.
*memory* is the peak while encoding beyond what is held before, in copies of the parameters.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paramsym import ParameterSymmetry, act, find_symmetry, privacy

SECONDS, ROUND_TRIP, MOMENTUM, EVALUATED = 5.0, 1e-6, 1.5, 1.05
WIDTH = 6_870  # three layers of it between 784 pixels and 10 classes: 99.9 million


def mlp() -> tuple[nn.Module, Any, Any]:
    """A network of pixels, its example inputs, and a batch."""
    sizes = (784, WIDTH, WIDTH, WIDTH, 10)
    layers: list[nn.Module] = []
    for ahead, behind in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(ahead, behind), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), (torch.randn(3, 784),), torch.randn(256, 784)


def gpt2() -> tuple[nn.Module, Any, Any]:
    """A language model of the shape of GPT-2: 13 blocks of 672, tied embeddings, 98.1 million."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = 40_000
    config = GPT2Config(
        vocab_size=tokens, n_embd=672, n_layer=13, n_head=12, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    batch = torch.randint(tokens, (1, 128))
    return GPT2LMHeadModel(config), {"input_ids": batch[:, :7]}, {"input_ids": batch}


# network, optimiser, loss, what the key moves inputs by
CASES = {
    "mlp, nobody trains": (mlp, None, None),
    "mlp, momentum": (mlp, "sgd", "mse"),
    "mlp, Adam": (mlp, "adam", "cross-entropy"),
    "gpt2, momentum": (gpt2, "sgd", None),
    "gpt2, Adam": (gpt2, "adam", None),
}


def measure(name: str, turns: int) -> dict[str, Any]:
    """All numbers of one case."""
    build, optimizer, loss = CASES[name]
    model, example, batch = build()
    model.eval()
    freed = build is mlp
    symmetry = find_symmetry(
        model, example, training=True, free_inputs=freed or None, free_outputs=freed or None
    )
    key = privacy.Key.generate(symmetry, torch.Generator().manual_seed(0), optimizer, loss)
    inputs = example[0] if freed else example
    params = {n: p.detach() for n, p in model.state_dict().items()}
    size = sum(p.numel() for p in model.parameters())
    encoded, memory = _peak(lambda: privacy.encode(model, inputs, key, check=False).state_dict)
    decoded = privacy.decode(encoded, key)
    found: dict[str, list[float]] = {}
    state = {n: {"momentum_buffer": torch.randn_like(p)} for n, p in model.named_parameters()}

    def timed(what: str, action: Callable[[], Any]) -> None:
        start = time.process_time()
        action()
        found.setdefault(what, []).append(time.process_time() - start)

    for _ in range(turns):
        timed("copy", lambda: {n: p.clone() for n, p in params.items()})
        timed("encode", lambda: privacy.encode(model, inputs, key, check=False))
        timed("decode", lambda: privacy.decode(encoded, key))
        timed("act", lambda: act(key.acting, key.element, params))
        timed("state", lambda: privacy.encode_state(state, key, params))
    timed("checked", lambda: privacy.encode(model, inputs, key))
    seconds = {what: min(times) for what, times in found.items()}
    return {
        "case": name, "million": size / 1e6, **seconds,
        "momentum": seconds["state"] / seconds["act"], "round_trip": _change(params, decoded),
        "memory": memory / (4 * size), "evaluated": _evaluated(model, encoded, batch, turns),
        "moves": _moves(key.acting),
    }  # fmt: skip


def _change(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    """The largest relative change of a tensor."""
    floating = [n for n, x in before.items() if x.is_floating_point() and bool(x.any())]
    return max(float((after[n] - before[n]).norm() / before[n].norm()) for n in floating)


def _evaluated(model: nn.Module, encoded: dict[str, torch.Tensor], batch: Any, turns: int) -> float:
    """The time of the encoded network on a batch, as a multiple of the plain one's."""
    plain = {n: p.clone() for n, p in model.state_dict().items()}
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(turns):
        for moved, state in ((False, plain), (True, encoded)):
            model.load_state_dict(state)
            start = time.process_time()
            with torch.no_grad():
                model(batch) if isinstance(batch, torch.Tensor) else model(**batch)
            times[moved].append(time.process_time() - start)
    return min(times[True]) / min(times[False])


def _peak(action: Callable[[], Any]) -> tuple[Any, int]:
    """What an action returns, and by how many bytes the process grew meanwhile, at most."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed before would be taken again
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def told(what: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(what))
        return 1024 * int(line.split()[1])

    clear.write_text("5")  # the peak begins anew
    before = told("VmRSS")
    made = action()
    return made, told("VmHWM") - before


def _moves(symmetry: ParameterSymmetry) -> dict[str, int]:
    """How many spaces each kind of group moves."""
    kinds = [type(space.group).__name__ for space in symmetry.spaces.values()]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if asked.case:
        return print(json.dumps(measure(asked.case, asked.turns)))
    rows = []
    for name in CASES:
        if name.startswith(asked.only):
            call = [sys.executable, __file__, "--case", name, "--turns", str(asked.turns)]
            done = subprocess.run(call, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            if not asked.json:
                _print(rows[-1], first=len(rows) == 1)
    if asked.json:
        print(json.dumps(rows, indent=1))


def _print(row: dict[str, Any], first: bool) -> None:
    columns = {
        "key of": row["case"], "million": f"{row['million']:.1f}", "copy": f"{row['copy']:.2f}",
        f"encode ≤ {SECONDS:g}": f"{row['encode']:.2f}",
        f"decode ≤ {SECONDS:g}": f"{row['decode']:.2f}", "checked": f"{row['checked']:.2f}",
        f"round trip ≤ {ROUND_TRIP:g}": f"{row['round_trip']:.1e}",
        f"momentum ≤ {MOMENTUM:g}": f"{row['momentum']:.2f}",
        f"evaluated ≤ {EVALUATED:g}": f"{row['evaluated']:.2f}", "memory": f"{row['memory']:.2f}",
    }  # fmt: skip
    if first:
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    print(f"| {' | '.join(columns.values())} |", flush=True)


if __name__ == "__main__":
    main()
