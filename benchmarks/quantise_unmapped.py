"""Models for which llm-compressor has no right table, quantised with maps derived from them.

Needs the environment of `maps.py`, and trains on one core for a minute or two a model:

    TQDM_DISABLE=1 PYTHONPATH=src:benchmarks python benchmarks/quantise_unmapped.py [--json FILE]

Two small mixtures of experts learn to predict the source of Python's standard library, byte by
byte: a Qwen2-MoE, whose entry in the table of llm-compressor leaves out the shared expert and its
gate, and an OLMoE, which has no entry and gets a fallback that leaves out the router. Each is saved
and quantised by `oneshot`, weights in groups of 32: with the recipe that `paramsym.interop.awq`
derives, with what llm-compressor takes for the class, and by rounding to nearest alone. Of each:

    change    of the logits by the smoothing alone, quantisation off: max |Δ| / max |logits|, in
              float64 (in float32 a router may be torn between two experts, and take the other)
    moved     the share of bytes of held-out text at which that is more than 1e-5
    smoothed  bits per byte of held-out text, quantisation off
    loss      bits per byte with it
    kl        divergence from the predictions of the original, in bits per byte
    again     how far the loss is off when a fresh process reads the saved checkpoint, with
              transformers and compressed-tensors and nothing else
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

COMMON = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "use_cache": False,
    "router_aux_loss_coef": 0.01, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
KINDS = {
    "qwen2_moe": {"intermediate_size": 128, "moe_intermediate_size": 64,
                  "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1},
    "olmoe": {"intermediate_size": 64},
}  # fmt: skip
LENGTH, BATCH = 128, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bits", type=int, nargs="+", default=[4])
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--loss-of", metavar="FOLDER", help="only print the loss of a checkpoint")
    options = parser.parse_args()
    from maps import quiet

    if options.loss_of:
        print(bits(logits_of(loaded(options.loss_of))))
        return
    import llmcompressor  # noqa: F401  (it starts a log, which is stopped next)

    quiet()
    found = []
    for kind in [options.only] if options.only else KINDS:
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                found += measured(kind, seed, options.steps, options.bits, Path(folder))
    print("\n" + table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


def measured(
    kind: str, seed: int, steps: int, widths: list[int], folder: Path
) -> list[dict[str, Any]]:
    """One model, trained and saved, and what becomes of it in three ways."""
    original = folder / "original"
    train(kind, seed, steps).save_pretrained(original)
    before = logits_of(exact(loaded(original)))
    loss = bits(before)
    rows = [{"kind": kind, "seed": seed, "way": "original", "smoothed": loss, "loss": loss}]
    print(json.dumps(rows[0]), flush=True)
    for way, recipe in recipes(original, widths).items():
        row = {"kind": kind, "seed": seed, "way": way}
        rows.append(row | quantised(original, folder / way, recipe, before))
        print(json.dumps(rows[-1]), flush=True)
    return rows


# -- a model that predicts ----------------------------------------------------------------------
def text() -> tuple[Tensor, Tensor]:
    """Bytes of the modules of Python's standard library: to train on, and every eighth held out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [b"".join(file.read_bytes() for file in files[k::8]) for k in range(8)]
    return to_tensor(b"".join(parts[1:])), to_tensor(parts[0])


def to_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def drawn(source: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Pieces of the text at random places, as (count, length)."""
    starts = torch.randint(len(source) - LENGTH, (count, 1), generator=generator)
    return source[starts + torch.arange(LENGTH)]


def train(kind: str, seed: int, steps: int) -> torch.nn.Module:
    import transformers

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    config = transformers.CONFIG_MAPPING[kind](**COMMON, **KINDS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    source, _ = text()
    for _ in range(steps):
        batch = drawn(source, BATCH, generator)
        loss = model(input_ids=batch, labels=batch, output_router_logits=True).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def loaded(folder: Path | str) -> torch.nn.Module:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def exact(model: torch.nn.Module) -> torch.nn.Module:
    """A model in float64, with experts as linear layers: stacked ones run in float32 only."""
    from llmcompressor.modeling.moe.linearize import linearize_moe

    linearize_moe(model)
    return model.double().eval()


def held_out() -> Tensor:
    return drawn(text()[1], 256, torch.Generator().manual_seed(0))


def logits_of(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(input_ids=part).logits for part in held_out().split(32)])


def bits(logits: Tensor) -> float:
    """The mean of −log₂ of the probability of the next byte of held-out text."""
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).double(), held_out()[:, 1:].flatten())
    return float(loss) / math.log(2)


# -- three ways to quantise it --------------------------------------------------------------------
def recipes(folder: Path, widths: list[int]) -> dict[str, dict[str, Any]]:
    """Recipes of llm-compressor: what moves scales, then what quantises."""
    from paramsym import find_symmetry, interop

    model, inputs = loaded(folder), {"input_ids": held_out()[:2, :16]}
    derived = interop.awq(find_symmetry(model, inputs), model, inputs).recipe()
    table = {"awq_stage": {"awq_modifiers": {"AWQModifier": {}}}}
    ways = {"derived": derived, "table": table, "rounded": {}}
    return {f"{way}, W{b}A16": ways[way] | rounding(b) for b in widths for way in ways}


def rounding(bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group",
               "group_size": 32}  # fmt: skip
    return {"quantise_stage": {"quantise_modifiers": {"QuantizationModifier": {
        "ignore": ["lm_head", "re:.*shared_expert_gate$"],
        "config_groups": {"all": {"targets": ["Linear"], "weights": weights}}}}}}  # fmt: skip


def quantised(
    original: Path, folder: Path, recipe: dict[str, Any], before: Tensor
) -> dict[str, Any]:
    """A checkpoint through `oneshot`: what the recipe does to the function, and what is saved."""
    import yaml
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache
    from llmcompressor.utils.helpers import DisableQuantization

    IntermediatesCache.pin_memory = lambda *_: None  # there is no accelerator to pin it for
    model = loaded(original)
    oneshot(model=model, recipe=yaml.safe_dump(recipe, sort_keys=False), dataset=calibration())
    after = logits_of(model)
    with DisableQuantization(model):
        smoothed = logits_of(exact(model))
    model.float().save_pretrained(folder, save_compressed=True)
    loss, change = bits(after), (smoothed - before).abs().amax(-1) / before.abs().max()
    return {
        "change": float(change.max()), "moved": float((change > 1e-5).double().mean()),
        "smoothed": bits(smoothed), "loss": loss, "kl": divergence(before, after),
        "again": abs(loss_in_a_fresh_process(folder) - loss),
        "bytes": sum(f.stat().st_size for f in folder.glob("*.safetensors")),
    }  # fmt: skip


def calibration() -> torch.utils.data.DataLoader[Any]:
    batches = drawn(text()[0], 64, torch.Generator().manual_seed(1)).split(8)
    return torch.utils.data.DataLoader([{"input_ids": b} for b in batches], batch_size=None)


def divergence(before: Tensor, after: Tensor) -> float:
    p, q = before.double().log_softmax(-1), after.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean()) / math.log(2)


def loss_in_a_fresh_process(folder: Path) -> float:
    command = [sys.executable, __file__, "--loss-of", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(found: list[dict[str, Any]]) -> str:
    """Means over seeds, the largest `change` and `again`, and how far losses above the original
    spread."""
    lines = ["| model | way | change | moved | smoothed | loss | loss − original | kl | again |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    first = {(r["kind"], r["seed"]): r["loss"] for r in found if r["way"] == "original"}
    for kind, way in dict.fromkeys((r["kind"], r["way"]) for r in found):
        rows = [r for r in found if (r["kind"], r["way"]) == (kind, way)]
        apart = [r["loss"] - first[kind, r["seed"]] for r in rows]
        spread = statistics.stdev(apart) if len(apart) > 1 else 0.0
        change, again = (max(r.get(key, 0.0) for r in rows) for key in ("change", "again"))
        moved, smoothed, loss, kl = (
            statistics.fmean(r.get(key, 0.0) for r in rows)
            for key in ("moved", "smoothed", "loss", "kl")
        )
        lines.append(
            f"| {kind} | {way} | {change:.1e} | {moved:.1%} | {smoothed:.4f} | {loss:.4f} "
            f"| {statistics.fmean(apart):+.4f} ± {spread:.4f} | {kl:.4f} | {again:.0e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
