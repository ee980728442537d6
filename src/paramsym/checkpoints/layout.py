"""The weights of a Hugging Face folder, written file by file as the source has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import torch

from paramsym.checkpoints.tensors import INDEX, names_of, read_index
from paramsym.checkpoints.writing import write_tensors
from paramsym.formats.weights import read_tensor

Lookup = Callable[[str], torch.Tensor]
# What files of weights are called, in whatever format.
WEIGHTS = (".safetensors", INDEX, ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx")


def others_in(folder: Path) -> list[str]:
    """The files of a folder, and of those below it, that have no name of weights, sorted."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(p.relative_to(folder)) for p in found if not p.name.endswith(WEIGHTS)]


def weights_of(folder: Path) -> Path:
    """The file or the index that transformers reads from a folder."""
    single = folder / "model.safetensors"
    if single.is_file():
        return single
    indices = [folder / f"model{INDEX}", *sorted(folder.glob(f"*{INDEX}"))]
    found = [path for path in indices if path.is_file()]
    return found[0] if found else sorted(folder.glob("*.safetensors"))[0]


def files_of(folder: Path) -> list[Path]:
    """The files with the weights of a folder, the index included."""
    main = weights_of(folder)
    if not main.name.endswith(INDEX):
        return [main]
    return [*(folder / shard for shard in dict.fromkeys(read_index(main).values())), main]


def write_like(
    source: Path, draft: Path, state: Mapping[str, torch.Tensor], ties: Mapping[str, list[str]],
    prefix: str, save: Callable[[Path], None],
) -> None:  # fmt: skip
    """Write the weights of a model into the files, and under the names, that a folder has.

    A tensor of the source that the model does not have is copied. Where names are others (experts
    that were joined when they were read) the library that read them says which, by `save`; where
    it divides the model otherwise than the source does, so it stays.

    Args:
        source: the folder that was read.
        draft: the folder to write to, which exists.
        state: the tensors of the model by name.
        ties: each name → all names of the same tensor.
        prefix: what may stand before the names of a base model, with a dot, or nothing.
        save: writes the model into a folder with the library's own names.
    """
    main = weights_of(source)
    names = names_of(main)
    found = _model_names(names, state, prefix)
    if {alias for name in found.values() for alias in ties[name]} >= set(state):
        original = _lookup(files_of(source))
        _write(main, draft, names,
               lambda name: state[found[name]] if name in found else original(name))  # fmt: skip
        return
    scratch = draft / ".saved"
    save(scratch)
    written = sorted(scratch.glob("*.safetensors"))
    same = {name for path in written for name in names_of(path)} == set(names)
    if same:
        _write(main, draft, names, _lookup(written))
    for path in list(scratch.iterdir()):
        if same or not path.name.endswith((".safetensors", INDEX)):
            path.unlink()
        else:
            path.rename(draft / path.name)
    scratch.rmdir()


def _model_names(
    names: Collection[str], state: Mapping[str, torch.Tensor], prefix: str
) -> dict[str, str]:
    """Name in the file → name in the model, which may have a prefix that the file lacks."""
    found = {}
    for name in names:
        spelled = (name, prefix + name, name.removeprefix(prefix))
        known = [one for one in spelled if one in state]
        if known:
            found[name] = known[0]
    return found


def _write(main: Path, draft: Path, names: Collection[str], lookup: Lookup) -> None:
    write_tensors(draft / main.name, _Lazy(names, lookup), main)


class _Lazy(Mapping[str, torch.Tensor]):
    """Tensors that are looked up when they are written, so that one shard is held at a time."""

    def __init__(self, names: Collection[str], lookup: Lookup):
        self.names, self.lookup = names, lookup

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.lookup(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _lookup(files: list[Path]) -> Lookup:
    """Tensors of several safetensors files by name."""
    homes = {
        name: path for path in files if path.suffix == ".safetensors" for name in names_of(path)
    }

    def tensor(name: str) -> torch.Tensor:
        return read_tensor(homes[name], name)

    return tensor
