"""The table of contents of the command: every question, and the commands that answer it.

What a command does in one line, and calls to begin with, stand here and not beside its function, so
that `paramsym --help` is written without importing any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A command, or a group of commands.

    `module` is the module of this package with its function, which has the name of the command;
    `examples` are calls, as they are typed, each with a remark behind `#`. `foreign` says that what
    follows the first argument belongs to another program.
    """

    name: str
    line: str
    module: str = ""
    examples: tuple[str, ...] = ()
    foreign: bool = False
    inner: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A question of somebody who has a network, and the commands that answer it."""

    question: str
    entries: tuple[Entry, ...]


CONTENTS = (
    Chapter("What may change?", (
        Entry(
            "inspect", "Every change of weights that leaves the function unchanged.",
            "reading", (
                "paramsym inspect model.pt2  # an exported program",
                "paramsym inspect package.module:factory --weights file.safetensors",
                "paramsym inspect folder --audit --html report.html  # is anything missing?",
                "paramsym inspect package.module:factory --inputs 2x3x32x32 --json",
            ),
        ),
        Entry(
            "discover", "All linear symmetries by linear algebra, whatever the layers.",
            "discovering", (
                "paramsym discover package.module:factory",
                "paramsym discover model.pt2 --level tensors --names 'layers.{0..3}.*'",
                "paramsym discover package.module:factory --affine --no-compare --json",
            ),
        ),
    )),
    Chapter("Are these the same?", (
        Entry(
            "compare", "Are two checkpoints one network, related, or unrelated?",
            "pairs", (
                "paramsym compare folder other-folder",
                "paramsym compare a.safetensors b.safetensors --model package.module:factory",
                "paramsym compare folder other-folder --element element.safetensors --json",
            ),
        ),
        Entry(
            "relu-equal", "Are two ReLU networks one function? A proof, or an input.",
            "deciding", (
                "paramsym relu-equal a.safetensors b.safetensors",
                "paramsym relu-equal a.onnx b.pt2 --input-shape 1x28x28 --budget 300",
                "paramsym relu-equal a.json b.json --exact --box -1 1 --certificate proof.json",
            ),
        ),
        Entry(
            "relu-verify", "Check a proof that relu-equal wrote.",
            "deciding", (
                "paramsym relu-verify proof.json a.safetensors b.safetensors",
                "paramsym relu-verify proof.json a.onnx b.onnx --json",
            ),
        ),
    )),
    Chapter("Move or improve weights", (
        Entry(
            "transform", "Write an equivalent checkpoint: new numbers, same function.",
            "writing", (
                "paramsym transform folder moved-folder --seed 1",
                "paramsym transform package.module:factory moved.safetensors "
                "--weights file.safetensors",
                "paramsym transform folder moved-folder --only '*.mlp' --dry-run",
                "paramsym transform folder moved-folder --element element.safetensors --resume",
            ),
        ),
        Entry(
            "balance", "Write the equivalent checkpoint of least norm or range.",
            "writing", (
                "paramsym balance folder balanced-folder",
                "paramsym balance folder balanced-folder --objective range --dry-run",
                "paramsym balance model.pt2 out.pt2 --objective error --data inputs.npz --bits 4",
            ),
        ),
        Entry(
            "quantize-prep", "Write equivalent weights that lose least when rounded.",
            "writing", (
                "paramsym quantize-prep folder prepared-folder --data inputs.npz",
                "paramsym quantize-prep model.pt2 out.pt2 --bits 4 --groups 128 --asymmetric",
            ),
        ),
        Entry(
            "transport", "Move an adapter, head or autoencoder along with its model.",
            "transporting", (
                "paramsym transport adapter moved-adapter --along moved-folder.element.safetensors "
                "--of folder",
                "paramsym transport probe.safetensors out.safetensors --along element.safetensors "
                "--of folder --types types.json",
            ),
        ),
    )),
    Chapter("Merge", (
        Entry(
            "align", "Write one network moved as near to another as it comes.",
            "pairs", (
                "paramsym align folder other-folder aligned-folder",
                "paramsym align a.safetensors b.safetensors aligned.safetensors "
                "--model package.module:factory --permutations",
                "paramsym align folder other-folder aligned-folder --data inputs.npz --restarts 4",
            ),
        ),
        Entry(
            "merge", "Write the mean of networks, aligned before they are averaged.",
            "pairs", (
                "paramsym merge folder other-folder merged-folder",
                "paramsym merge a.safetensors b.safetensors c.safetensors merged.safetensors "
                "--model package.module:factory --weight 0.5 --weight 0.3 --weight 0.2",
                "paramsym merge folder other-folder merged-folder --spherical --data inputs.npz",
            ),
        ),
    )),
    Chapter("Tell other tools", (
        Entry(
            "export", "Write scale or rotation maps for quantisers, blocks for Muon.",
            "mapping", (
                "paramsym export folder --for awq --output recipe.yaml",
                "paramsym export folder --for spinquant --output recipe.yaml --apply moved-folder",
                "paramsym export package.module:factory --for optimizer --json",
            ),
        ),
        Entry(
            "check-mapping", "Is a mapping for a quantiser right for this model?",
            "mapping", (
                "paramsym check-mapping folder recipe.yaml",
                "paramsym check-mapping folder mapping.json --for quark --json",
            ),
        ),
    )),
    Chapter("Watch training", (
        Entry(
            "watch", "Run a training script; does it conserve what it should?",
            "watching", (
                "paramsym watch train.py --epochs 3  # what follows the script is its own",
                "paramsym watch --html ledger.html --decoupled weight_decay train.py",
                "paramsym watch --json train.py",
            ),
            foreign=True,
        ),
    )),
    Chapter("Train on machines that you do not trust", (
        Entry(
            "protect", "Have others train or evaluate in coordinates kept from them.",
            inner=(
                Entry(
                    "encode", "Write weights, and samples, as a new secret key moves them.",
                    "protecting", (
                        "paramsym protect encode folder encoded-folder --key key.safetensors",
                        "paramsym protect encode package.module:factory encoded.safetensors "
                        "--key key.safetensors --optimizer adamw --loss mse --data samples.npz",
                    ),
                ),
                Entry(
                    "decode", "Undo a key on weights that come back, trained or not.",
                    "protecting", (
                        "paramsym protect decode encoded-folder plain-folder "
                        "--key key.safetensors",
                        "paramsym protect decode package.module:factory plain.safetensors "
                        "--weights returned.safetensors --key key.safetensors",
                    ),
                ),
                Entry(
                    "serve", "Evaluate a network over HTTP on inputs in the basis of who asks.",
                    "protecting", (
                        "paramsym protect serve folder --port 8765 --symmetry symmetry.json",
                        "paramsym protect serve package.module:factory --port 0 --json",
                    ),
                ),
                Entry(
                    "query", "Ask such a service for outputs on samples in a secret basis.",
                    "protecting", (
                        "paramsym protect query http://127.0.0.1:8765 folder "
                        "--data samples.npz --out outputs.npz",
                        "paramsym protect query http://127.0.0.1:8765 symmetry.json "
                        "--data samples.npz --out outputs.npz --orthogonal",
                    ),
                ),
            ),
        ),
    )),
    Chapter("Build symmetry in", (
        Entry(
            "equivariant", "Count and fit linear autoencoders that commute with shifts.",
            "counting", (
                "paramsym equivariant --shift 28x28 --rank 99",
                "paramsym equivariant --shift 28x28 --rank 99 --data images.npz --output pictures",
            ),
        ),
    )),
)  # fmt: skip


def commands() -> Iterator[tuple[str, str, Entry]]:
    """Every command that does something: its question, its full name behind `paramsym`, itself."""
    for chapter in CONTENTS:
        for entry in chapter.entries:
            for own in entry.inner or (entry,):
                name = own.name if own is entry else f"{entry.name} {own.name}"
                yield chapter.question, name, own
