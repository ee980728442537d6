"""Seconds to derive the symmetry of a full-size model on the meta device, and to export from it.

python benchmarks/maps_full_size.py [llama-3-8b qwen3-moe-30b deepseek-v3]
"""

from __future__ import annotations

import sys
import time

import torch
import transformers

from paramsym import find_symmetry, interop

MODELS = {
    "llama-3-8b": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256)),
    "qwen3-moe-30b": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128,
        num_experts_per_tok=8, vocab_size=151936)),
    "deepseek-v3": lambda: transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config()),
}  # fmt: skip

COUNTED = {"awq": "entries", "spinquant": "rotations", "optimizer": "blocks"}


def main() -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        with torch.device("meta"):
            model = MODELS[name]().eval()
            inputs = {"input_ids": torch.zeros(2, 7, dtype=torch.long)}
        began = time.process_time()
        symmetry = find_symmetry(model, inputs)
        derived = time.process_time() - began
        print(f"{name}: derived in {derived:.2f} s", flush=True)
        for tool, count in (
            ("awq", "entries"),
            ("spinquant", "rotations"),
            ("optimizer", "blocks"),
        ):
            began = time.process_time()
            made = interop.export(tool, symmetry, model)
            seconds = time.process_time() - began
            print(f"    {tool}: {seconds:.2f} s, {len(getattr(made, count))} {count}", flush=True)


if __name__ == "__main__":
    main()
