"""Twins: for how many default configurations a small model has the symmetry of the large one.

    python benchmarks/twins.py [--only gpt2 bert] [--audit] [--json]

The large models are built on the meta device from the default configurations of transformers; each
twin is the smallest model of the same configuration that passes the comparison. With `--audit` the
twins are certified as well. With `--folders` the command inspects six folders with a configuration
alone, each in a fresh process. CPU-seconds, one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

DECODERS = (
    "gpt2 gpt_neo gptj gpt_neox opt bloom llama mistral mixtral qwen2 qwen3 qwen2_moe gemma gemma2 "
    "gemma3_text phi phi3 stablelm starcoder2 olmo olmo2 cohere falcon mpt glm codegen xglm"
).split()
BASES = (
    "bert roberta distilbert albert electra deberta-v2 mpnet modernbert xlnet t5 bart pegasus vit "
    "deit beit dinov2 convnext swin resnet whisper wav2vec2"
).split()

# Published sizes; what is not named is the default.
FOLDERS = {
    "Llama-3-8B": (
        "LlamaForCausalLM", "llama",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 8192},
    ),
    "Qwen3-8B": (
        "Qwen3ForCausalLM", "qwen3",
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936},
    ),
    "Gemma-2-9B": (
        "Gemma2ForCausalLM", "gemma2",
        {"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256},
    ),
    "BERT": ("BertModel", "bert", {}),
    "ViT": ("ViTModel", "vit", {}),
    "GPT-2": ("GPT2LMHeadModel", "gpt2", {}),
}  # fmt: skip


def large(name: str):
    """A model of the default configuration, on the meta device, with its inputs."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto

    from paramsym.checkpoints.folder import quiet
    from paramsym.checkpoints.inputs import inputs_from_config

    table = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in DECODERS else auto.MODEL_MAPPING_NAMES
    kind = getattr(transformers, table[name])
    config = transformers.CONFIG_MAPPING[name]()
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "batched_mm"
    with quiet(), torch.device("meta"):
        model = kind._from_config(config).eval()
    return model, inputs_from_config(model, config)


def measure(name: str, certify: bool) -> dict:
    """One default configuration in this process."""
    from paramsym import audit
    from paramsym.checking.twin import structure_of
    from paramsym.checkpoints.smallest import NoTwin, smallest_twin

    start = time.process_time()
    model, inputs = large(name)
    structure = structure_of(model, inputs)
    derived = time.process_time()
    row = {
        "name": name, "class": type(model).__name__, "same": False, "why": "",
        "parameters": sum(p.numel() for p in model.parameters()), "derived": derived - start,
    }  # fmt: skip
    try:
        twin = smallest_twin(model, inputs, structure=structure)
    except NoTwin as error:
        row |= {"why": str(error), "searched": time.process_time() - derived}
        return row
    row |= {
        "same": True, "twin": sum(p.numel() for p in twin[0].parameters()),
        "searched": time.process_time() - derived,
    }  # fmt: skip
    if certify:
        start = time.process_time()
        found = audit(model, inputs, symmetry=structure.symmetry, twin=twin)
        row |= {
            "complete": found.complete, "unexplained": found.unexplained,
            "verdict": found.verdict, "seconds": time.process_time() - start,
        }  # fmt: skip
    return row


def inspect(name: str) -> dict:
    """`paramsym inspect FOLDER --audit --json` of a folder with a configuration alone."""
    import transformers

    kind, family, sizes = FOLDERS[name]
    config = transformers.CONFIG_MAPPING[family](**sizes)
    config.architectures = [kind]
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        command = [sys.executable, "-c", "from paramsym.cli import main; main()"]
        command += ["inspect", folder, "--audit", "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, check=True, cwd=Path.cwd())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "name": name, "parameters": found["parameters"], "redundant": found["redundant"],
        "exact": found["redundant_exact"], "seconds": seconds,
        "twin": found["audit"] and found["audit"]["parameters"],
        "complete": bool(found["audit"] and found["audit"]["complete"]),
    }  # fmt: skip


def show_defaults(rows: list[dict]) -> None:
    """A table in Markdown."""
    print("| configuration | parameters | twin | derived | searched | certified |")
    print("|---|---:|---:|---:|---:|---|")
    for row in rows:
        certified = row.get("complete")
        verdict = (
            ""
            if certified is None
            else f"{row['seconds']:.1f} s, "
            + ("complete" if certified else f"{row['unexplained']} unexplained")
        )
        twin = f"{row['twin']:,}" if row["same"] else "none"
        print(
            f"| {row['name']} | {row['parameters']:,} | {twin} | {row['derived']:.1f} s "
            f"| {row['searched']:.1f} s | {verdict or row['why']} |"
        )
    print(f"\n{sum(row['same'] for row in rows)} of {len(rows)} have a twin.")


def show_folders(rows: list[dict]) -> None:
    """A table in Markdown."""
    print("| folder | parameters | redundant | twin | certified | CPU |")
    print("|---|---:|---:|---:|---|---:|")
    for row in rows:
        print(
            f"| {row['name']} | {row['parameters']:,} "
            f"| {'' if row['exact'] else 'at most '}{row['redundant']:,} | {row['twin']:,} "
            f"| {'complete' if row['complete'] else 'no'} | {row['seconds']:.0f} s |"
        )


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="some of the configurations or folders")
    parser.add_argument("--audit", action="store_true", help="certify the twins, too")
    parser.add_argument("--folders", action="store_true", help="the command on six folders")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    if options.folders:
        found = [inspect(name) for name in options.only or FOLDERS]
    else:
        found = [measure(name, options.audit) for name in options.only or DECODERS + BASES]
    if options.json:
        print(json.dumps(found, indent=1))
    elif options.folders:
        show_folders(found)
    else:
        show_defaults(found)


if __name__ == "__main__":
    main()
