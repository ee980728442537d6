"""Checkpoints larger than memory: `transform` beside copying the files.

    python benchmarks/streaming.py [FOLDER] [--gigabytes 8] [--kinds …] [--compare]

A synthetic sharded checkpoint with the shapes of Llama-3-8B at reduced depth is written to FOLDER
(by default a temporary one) once, copied and moved; each line is a ratio in one run. Peak memory is
that of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VOCABULARY, WIDTH, HIDDEN, HEADS, KEYS = 128256, 4096, 14336, 32, 8
KINDS = {
    "permutations and scalings": [
        "*layernorm", "norm", "*.attn.head", "*.attn.group", "*.attn.qk", "*.mlp", "*.mlp.scale",
    ],
    "per-head bases": ["*.attn.*", "*.mlp*"],
    "rotations": ["residual", "*.attn.*", "*.mlp*"],
}  # fmt: skip


def written(folder: Path, gigabytes: float) -> Path:
    """A sharded bfloat16 checkpoint with the shapes of Llama-3-8B, of about this size."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    layer = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH * KEYS // HEADS + 3 * WIDTH * HIDDEN)
    ends = 2 * 2 * VOCABULARY * WIDTH
    layers = max(1, round((gigabytes * 1e9 - ends) / layer))
    path = folder / f"llama-{layers}"
    if (path / "config.json").is_file():
        return path
    path.mkdir(parents=True)
    key = WIDTH * KEYS // HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (key, WIDTH),
        "self_attn.v_proj": (key, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH),
        "mlp.down_proj": (WIDTH, HIDDEN),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)

    def gain() -> torch.Tensor:
        return (1 + 5 * drawn(WIDTH).float()).bfloat16()

    table: dict[str, str] = {}
    count = layers + 2

    def shard(k: int, tensors: dict[str, torch.Tensor]) -> None:
        name = f"model-{k + 1:05}-of-{count:05}.safetensors"
        save_file(tensors, path / name, metadata={"format": "pt"})
        table.update(dict.fromkeys(tensors, name))

    shard(0, {"model.embed_tokens.weight": drawn(VOCABULARY, WIDTH)})
    for k in range(layers):
        at = f"model.layers.{k}."
        tensors = {f"{at}{name}.weight": drawn(*shape) for name, shape in shapes.items()}
        tensors |= {f"{at}{n}_layernorm.weight": gain() for n in ("input", "post_attention")}
        shard(k + 1, tensors)
    shard(count - 1, {"model.norm.weight": gain(), "lm_head.weight": drawn(VOCABULARY, WIDTH)})
    size = sum(p.stat().st_size for p in path.glob("*.safetensors"))
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": table})
    )
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN,
        num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KEYS,
        architectures=["LlamaForCausalLM"], dtype="bfloat16", tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(path)
    return path


def size_of(path: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(p.stat().st_size for p in path.iterdir())


def copied(source: Path, target: Path) -> float:
    """Seconds to copy a folder and have it on the disk."""
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    started = time.perf_counter()
    shutil.copytree(source, target)
    for path in target.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds


ALONE = """
import json, resource, sys, time
started = time.perf_counter()
import torch
from paramsym.checkpoints import transform
imported, cpu = time.perf_counter(), time.process_time()
first = []
def progress(step):
    if step.startswith("moving") and not first:
        first.append(time.perf_counter())
source, target, verify, *only = sys.argv[1:]
done = transform(
    source, target, torch.Generator().manual_seed(0), only=only or None, force=True,
    verify=verify == "verify", progress=progress,
)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "import": imported - started, "start": first[0] - imported,
    "seconds": time.perf_counter() - imported, "cpu": time.process_time() - cpu,
    "peak": usage.ru_maxrss * 1024, "error": done.error, "notes": done.notes,
}))
"""


def moved(source: Path, target: Path, only: list[str], verify: bool) -> dict:
    """What a process that moves a folder says of itself."""
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, source, target, "verify" if verify else "no", *only],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    shutil.rmtree(target, ignore_errors=True)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


COMPARED = """
import json, resource, sys, time
from paramsym.checkpoints import compare_checkpoints, open_alike
from pathlib import Path
sources = sys.argv[1:]
started = time.perf_counter()
for source in sources:
    for path in Path(source).glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            room = bytearray(1 << 24)
            while file.readinto(room):
                pass
reading = time.perf_counter() - started
started = time.perf_counter()
found = compare_checkpoints(open_alike(sources, lazily=True)).comparison
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "reading": reading, "seconds": time.perf_counter() - started, "kind": str(found.kind),
    "peak": usage.ru_maxrss * 1024,
}))
"""


def compared(source: Path, target: Path, only: list[str]) -> dict:
    """What a process says of a folder and its moved copy, compared in their files."""
    from paramsym.checkpoints import transform

    shutil.rmtree(target, ignore_errors=True)
    import torch

    transform(
        source, target, torch.Generator().manual_seed(0), only=only, verify=False, force=True
    )  # fmt: skip
    call = [sys.executable, "-c", COMPARED, source, target]
    ran = subprocess.run(call, capture_output=True, text=True, check=False)
    shutil.rmtree(target)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    """Print one line for each kind of element."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--compare", action="store_true", help="compare in files as well")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = chosen.folder or Path(made)
        source = written(folder, chosen.gigabytes)
        size = size_of(source)
        copying = min(copied(source, folder / "copy") for _ in range(2))
        print(f"{size / 1e9:.2f} GB copied in {copying:.1f} s, {size / copying / 1e9:.2f} GB/s")
        for kind in chosen.kinds:
            for verify in (False, True):
                said = moved(source, folder / "moved", KINDS[kind], verify)
                print(
                    f"{kind}{' and verified' if verify else ''}: {said['seconds']:.1f} s, "
                    f"{copying / said['seconds']:.2f} of the speed of copying, "
                    f"{size / said['cpu'] / 1e9:.2f} GB per CPU-second, "
                    f"peak {said['peak'] / 1e9:.2f} GB, start-up {said['start']:.1f} s after "
                    f"{said['import']:.1f} s of imports, error {said['error']}, {said['notes']}",
                    flush=True,
                )
        if chosen.compare:
            said = compared(source, folder / "compared", KINDS[chosen.kinds[0]])
            print(
                f"compare: {said['kind']} in {said['seconds']:.1f} s, "
                f"{said['seconds'] / said['reading']:.1f} times reading both, "
                f"peak {said['peak'] / 1e9:.2f} GB"
            )


if __name__ == "__main__":
    main()
