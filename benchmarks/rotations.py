"""Derived rotation maps through llm-compressor's own `SpinQuantModifier`, beside its own tables.

Needs the environment of `maps.py`:

    PYTHONPATH=src:benchmarks python benchmarks/rotations.py [--json FILE] [--only NAME ...]

Each causal class of transformers is built small and random, in float64, with its output head
untied, as the modifier does it. Nothing is quantised, so that logits must not change; what changes
by less than 1e-5 is kept. Its own tables (R1 and R2) are tried as they are and without the step
that centres embeddings; random Hadamard matrices, which it has for more sizes.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from maps import KEPT, LIMIT, Late, late, linear, outputs, quiet, randomise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    import llmcompressor.modifiers.transform  # noqa: F401  # it sets its own log up first

    quiet()
    signal.signal(signal.SIGALRM, late)
    from transformers.models.auto import modeling_auto

    found: dict[str, Any] = {}
    for model_type, kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if isinstance(kind, str) and (not options.only or kind in options.only):
            found[kind] = measured(model_type, kind)
            print(f"{kind:36} {json.dumps(found[kind])[:230]}", flush=True)
    print(json.dumps(summary(found), indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


def measured(model_type: str, kind: str) -> dict[str, Any]:
    """One class: what our maps and theirs do to its logits."""
    import transformers

    from paramsym import find_symmetry, interop, twin

    signal.alarm(LIMIT)
    try:
        model, inputs = twin(transformers.CONFIG_MAPPING[model_type](), kind=kind)
        randomise(model)
        model = interop.untied(model)
        symmetry = find_symmetry(model, inputs)
        made = interop.spinquant(symmetry, model, inputs)
    except (Exception, Late) as error:
        return {"built": False, "why": f"{type(error).__name__}: {error}"[:100]}
    finally:
        signal.alarm(0)
    streams = [
        r for r in made.rotations if any("emb" in name or "wte" in name for name in r.writers)
    ]
    return {
        "rotations": len(made.rotations), "stream": bool(streams), "replayed": made.error,
        "refused": dict(Counter(r.kind for r in made.refused)),
        "ours": through(model, inputs, made),
        "theirs": through(model, inputs, None),
        "theirs without centring": through(model, inputs, None, centring=False),
    }  # fmt: skip


def through(model: torch.nn.Module, inputs: Any, made: Any, centring: bool = True) -> Any:
    """The relative change of the logits, or what stopped the modifier."""
    from llmcompressor.core import State
    from llmcompressor.modifiers.transform import SpinQuantModifier

    class Uncentred(SpinQuantModifier):
        def _center_embeddings(self, model: Any) -> None:
            pass

    if made is not None and not made.rotations:
        return 0.0
    try:
        own = linear(model)
        before, weights = outputs(own, inputs), copied(own)
        kind = SpinQuantModifier if centring else Uncentred
        modifier = kind(transform_type="random-hadamard") if made is None else made.objects()
        state = State(model=own)
        modifier.on_initialize(state)
        modifier.on_calibration_start(state, None)
        after = outputs(own, inputs)
        if all(torch.equal(x, weights[name]) for name, x in own.named_parameters()):
            return "nothing was turned"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return float((before - after).abs().max() / before.abs().max())


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in model.named_parameters(remove_duplicate=False)}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in found.values() if "ours" in row]
    made: dict[str, Any] = {
        "classes": len(rows), "rotations": sum(row["rotations"] for row in rows),
        "with a rotation": sum(row["rotations"] > 0 for row in rows),
        "with the stream": sum(row["stream"] for row in rows),
    }  # fmt: skip
    for side in ("ours", "theirs", "theirs without centring"):
        numbers = [row[side] for row in rows if isinstance(row[side], float)]
        made[side] = {
            "kept": sum(n <= KEPT for n in numbers),
            "silently changed": sum(not n <= KEPT for n in numbers),
            "stopped": len(rows) - len(numbers),
        }
    return made


if __name__ == "__main__":
    main()
