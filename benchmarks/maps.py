"""Derived scale maps through llm-compressor's own modifiers, beside its own tables.

Needs an environment of its own: llmcompressor 0.14, scipy, and this repository on the path:

    PYTHONPATH=src:benchmarks python benchmarks/maps.py [--json FILE] [--only NAME ...]

Each causal class of transformers is built small and random, in float64. Maps go through the real
`AWQModifier` and `SmoothQuantModifier` (resolution, hooks, smoothing); only the search for scales
is replaced by random positive ones, so that logits must not change. Forward passes of transformers
cast to float32 here and there: what changes by less than 1e-5 is kept.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

KEPT = 1e-5
LIMIT = 60  # seconds for a small model and its symmetry


class Late(BaseException):
    """A class took longer; no handler of exceptions takes it for another."""


def late(*_: object) -> None:
    raise Late(f"longer than {LIMIT} seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    quiet()
    signal.signal(signal.SIGALRM, late)
    from transformers.models.auto import modeling_auto

    found: dict[str, Any] = {}
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for model_type, kind in names.items():
        if isinstance(kind, str) and (not options.only or kind in options.only):
            began = time.process_time()
            row = measured(model_type, kind)
            if row is not None:
                found[kind] = row
                print(f"{kind:40} {json.dumps(row)[:220]} {time.process_time() - began:.1f}s",
                      flush=True)  # fmt: skip
    print(json.dumps(summary(found), indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


def quiet() -> None:
    import transformers
    from loguru import logger

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    logger.remove()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def measured(model_type: str, kind: str) -> dict[str, Any] | None:
    """One class: what becomes of our maps, of theirs, and of the check of theirs."""
    import transformers

    from paramsym import find_symmetry, interop, twin

    signal.alarm(LIMIT)
    try:
        model, inputs = twin(transformers.CONFIG_MAPPING[model_type](), kind=kind)
        randomise(model)
        symmetry = find_symmetry(model, inputs)
    except (Exception, Late) as error:
        return {"built": False, "why": str(error)[:100]}
    finally:
        signal.alarm(0)
    row: dict[str, Any] = {}
    began = time.process_time()
    made: dict[str, Any] = {}
    for tool in ("awq", "smoothquant"):
        own = made[tool] = interop.export(tool, symmetry, model, inputs)
        row[tool] = {
            "maps": len(own.entries), "refused": len(own.refused), "replayed": own.error,
            "ours": through(tool, model, inputs, [list(group) for group in own.rounds]),
        }  # fmt: skip
    row["seconds"] = round(time.process_time() - began, 2)
    for tool in ("awq", "smoothquant"):
        theirs = table_of(tool, model)
        if theirs is not None:
            checked = interop.check(symmetry, model, theirs, inputs, tool)
            row[tool]["theirs"] = through(tool, model, inputs, [theirs])
            row[tool]["checked"] = dict(Counter(each.verdict.kind for each in checked.maps))
            row[tool]["wrong"] = [
                [str(each.map), str(each.verdict)[:200], each.change]
                for each in checked.maps
                if each.change and each.sound != (each.change < 1e-8)
            ]
            ours = {entry.smooth: {*entry.balance} for entry in made[tool].entries}
            row[tool]["lacking"] = [
                str(e.map) for e in checked.maps
                if e.sound and e.map is not None and ours.get(e.map.smooth) != {*e.map.balance}
            ]  # fmt: skip
            row[tool]["unreached"] = sum(not e.sound and e.change == 0 for e in checked.maps)
    return row


def randomise(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator).to(p))
    model.double().eval()


def table_of(tool: str, model: torch.nn.Module) -> list[Any] | None:
    """What llm-compressor takes for a class: its table, or its fallback; None where it refuses."""
    import importlib

    where = "awq.base" if tool == "awq" else "smoothquant.base"
    module = importlib.import_module(f"llmcompressor.modifiers.transform.{where}")
    try:
        return module.get_layer_mappings_from_model(model)
    except Exception:
        return None


def through(tool: str, model: torch.nn.Module, inputs: Any, rounds: list[list[Any]]) -> Any:
    """The relative change of the logits after maps went through a modifier, or what stopped it."""
    if not any(rounds):
        return 0.0
    try:
        own = linear(model)
        before = outputs(own, inputs)
        for group in rounds:
            (awq if tool == "awq" else smoothquant)(own, inputs, group)
        after = outputs(own, inputs)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return float((before - after).abs().max() / before.abs().max())


def linear(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with its experts as linear layers."""
    from llmcompressor.modeling.moe.linearize import linearize_moe

    own = copy.deepcopy(model)
    for config in (own.config, getattr(own.config, "text_config", None)):
        if config is not None:
            config.use_cache = False  # modules are run again on what they were given
    linearize_moe(own)
    for module in own.modules():
        if isinstance(module, torch.nn.Linear):
            module.quantization_scheme = object()  # what is targeted
    return own.double().eval()


def outputs(model: torch.nn.Module, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def drawn(columns: int) -> torch.Tensor:
    return torch.exp(0.5 * torch.randn(columns, dtype=torch.float64))


def awq(model: torch.nn.Module, inputs: Any, entries: list[Any]) -> None:
    from llmcompressor.core import State
    from llmcompressor.modeling.offset_norm import norm_calibration_context
    from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
    from llmcompressor.pipelines.cache import IntermediatesCache

    class Random(AWQModifier):
        def _compute_best_scale(self, mapping: Any, *_: Any) -> torch.Tensor:
            return drawn(mapping.balance_layers[0].weight.shape[-1])

    mappings = [
        AWQMapping(e.smooth, list(e.balance)) if hasattr(e, "smooth") else e for e in entries
    ]
    IntermediatesCache.pin_memory = lambda *_: None  # there is no accelerator to pin it for
    modifier = Random(mappings=mappings, duo_scaling=False, offload_device=None)
    state = State(model=model)
    with norm_calibration_context(model):
        modifier.on_initialize(state)
        modifier.on_calibration_start(state, None)
        outputs(model, inputs)
        modifier._apply_smoothing(model)
        modifier.remove_hooks()


def smoothquant(model: torch.nn.Module, inputs: Any, entries: list[Any]) -> None:
    from llmcompressor.modeling.offset_norm import norm_calibration_context
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    class Random(SmoothQuantModifier):
        def _calculate_smoothing_scales(self, balance: Any, *_: Any) -> torch.Tensor:
            return drawn(balance[0].weight.shape[-1])

    mappings = [(list(e.balance), e.smooth) if hasattr(e, "smooth") else e for e in entries]
    modifier = Random(mappings=mappings)
    with norm_calibration_context(model):
        modifier.ignore = []
        modifier.resolved_mappings_ = modifier._resolve_mappings(model)
        modifier.scales_ = {}
        modifier._setup_scale_hooks()
        outputs(model, inputs)
        modifier._apply_smoothing(model)
        modifier.remove_hooks()


def summary(found: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in found.values() if "awq" in row]
    made: dict[str, Any] = {"classes": len(rows)}
    for tool in ("awq", "smoothquant"):
        made[f"{tool} maps"] = sum(row[tool]["maps"] for row in rows)
        for side in ("ours", "theirs"):
            results = [row[tool][side] for row in rows if side in row[tool]]
            numbers = [r for r in results if isinstance(r, float)]
            made[f"{tool} {side}"] = {
                "kept": sum(r <= KEPT for r in numbers),
                "silently changed": sum(not r <= KEPT for r in numbers),
                "stopped": len(results) - len(numbers),
            }
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update(row[tool].get("checked", {}))
        made[f"{tool} entries of theirs"] = dict(counts)
        made[f"{tool} entries that no token reaches"] = sum(
            r[tool].get("unreached", 0) for r in rows
        )
        made[f"{tool} sound entries of theirs that ours lack"] = sum(
            len(row[tool].get("lacking", ())) for row in rows
        )
        made[f"{tool} misjudged"] = sum(len(row[tool].get("wrong", ())) for row in rows)
    return made


if __name__ == "__main__":
    main()
