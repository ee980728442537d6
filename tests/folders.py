"""Tiny Hugging Face folders."""

import warnings
from pathlib import Path

import torch


def write_llama(path: Path, shard: int | None = None) -> Path:
    """A folder with a random two-layer Llama; in shards of so many bytes if given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

        from paramsym.checkpoints.quieting import quiet

        config = LlamaConfig(
            hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=12, vocab_size=11, max_position_embeddings=16, bos_token_id=0,
            eos_token_id=1,
        )  # fmt: skip
        with torch.random.fork_rng(), quiet():
            torch.manual_seed(0)
            model = LlamaForCausalLM(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.4)
            model.save_pretrained(path, max_shard_size=shard or 1 << 30)
    return path
