"""What the configuration of an adapter says of its numbers, and what cannot be said after a move.

Most settings say how to train, and nothing of the function. Those that change how the tensors are
used are known here one by one; any other that is switched on is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paramsym.artefacts.refusals import refused

Settings = Mapping[str, Any]

# how it was trained, where it is applied, or what it is called
_HARMLESS = {
    "alora_invocation_tokens", "auto_mapping", "base_model_name_or_path", "bias", "eva_config",
    "exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config", "megatron_core",
    "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type", "ensure_weight_tying",
}  # fmt: skip
# read by `scaling_of` and by the types
_READ = {
    "alpha_pattern", "fan_in_fan_out", "lora_alpha", "lora_bias", "peft_type", "r", "rank_pattern",
    "use_dora", "use_rslora",
}  # fmt: skip
# `fan_in_fan_out` may also be a mapping from weights to what holds for each
# a start that subtracts from the weights of the model what a decomposition of them says
_SUBTRACTS = ("pissa", "olora", "corda", "loftq", "lora_ga")


def check_settings(settings: Settings) -> None:
    """Raise where an adapter is of another kind, or its weights depend on those of the model.

    Raises:
        CheckpointError: a method other than LoRA, a setting that changes the use of the tensors,
            or a start that is derived from the weights of the model whenever it is loaded.
    """
    kind = str(settings.get("peft_type", "LORA")).rpartition(".")[2].upper()
    if kind != "LORA":
        raise refused(
            f"peft_type={kind!r}", "the tensors are no low-rank pairs, and no rule says which axes "
            "they have", "LORA, with DoRA, rank-stabilised scaling, biases and saved modules",
            "State the types of all of its tensors, types={name: 'residual, 8'}, without config",
        )  # fmt: skip
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_SUBTRACTS):
        raise refused(
            f"init_lora_weights={start!r}", "the weights of the model are decomposed and changed "
            "whenever this adapter is loaded, which for moved weights gives other factors",
            "an adapter that is added to the weights as they are",
            "Convert it first (save_pretrained with path_initial_model_for_weight_conversion)",
        )  # fmt: skip
    unknown = [k for k, v in settings.items() if v and k not in _HARMLESS | _READ]
    if unknown:
        raise refused(
            f"{unknown[0]}={settings[unknown[0]]!r:.60}", "it may change what the tensors mean",
            "an adapter without it", "Merge the adapter into its model, and move the whole; or "
            "state the types of all of its tensors without config",
        )  # fmt: skip


def scaling_of(settings: Settings, module: str) -> float | None:
    """The factor before B A of a module: α / r, or α / √r; None where nothing says it."""
    alpha = _of_module(settings.get("alpha_pattern"), module, settings.get("lora_alpha"))
    rank = _of_module(settings.get("rank_pattern"), module, settings.get("r"))
    if alpha is None or not rank:
        return None
    return float(alpha) / (float(rank) ** 0.5 if settings.get("use_rslora") else float(rank))


def _of_module(patterns: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """What the first pattern says that the name of a module is, or ends with."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise
