"""How files spell the names of a model, and their tensors by the model's names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import torch

from paramsym.structure.fast import Rows

PACKED = "qweight"  # what files call a weight whose codes are packed into integers


class Tensors(Protocol):
    """Tensors of files by the names that the files have."""

    def __getitem__(self, name: str, /) -> Rows: ...


def spelling(files: Collection[str], model: Collection[str], prefix: str = "") -> dict[str, str]:
    """Name in the files → name in the model, for those that the model knows.

    The codes of a quantised weight are called by its name.

    Args:
        files: the names in the files.
        model: the names in the model, each of a tied tensor.
        prefix: what may stand before the names of a base model, with a dot; where there is none,
            one that the files have in common, or that they all lack, is found.
    """
    known = set(model)
    for before in dict.fromkeys((prefix, *_prefixes(files, known))):
        found = {}
        for name in files:
            module, dot, last = name.rpartition(".")
            plain = f"{module}{dot}weight" if last == PACKED else name
            spelled = (plain, before + plain, plain.removeprefix(before))
            own = next((one for one in spelled if one in known), None)
            if own is not None:
                found[name] = own
        if found:
            return found
    return {}


def by_model(names: Mapping[str, str], ties: Mapping[str, str]) -> dict[str, str]:
    """Name in the model → name in the files, each tied tensor under the name in the signature, too.

    `names` are those of `spelling`; `ties` maps further names of a tensor to that one.
    """
    found = {model: file for file, model in names.items()}
    for alias, name in ties.items():
        if alias in found:
            found.setdefault(name, found[alias])
    return found


def _prefixes(files: Collection[str], known: set[str]) -> Iterator[str]:
    """What wrappers put before all names: the first parts of one of them, with a dot."""
    for names in (files, known):
        parts = next(iter(names), "").split(".")
        for count in range(1, len(parts)):
            yield ".".join(parts[:count]) + "."


class Named(Mapping[str, Rows]):
    """Tensors of files by the names of a model, tied ones under each of their names.

    `dtype` is that in which a model is run with them.
    """

    def __init__(
        self, tensors: Tensors, spelled: Mapping[str, str], aliases: Mapping[str, Collection[str]]
    ):
        self.tensors = tensors
        self.spelled = dict(spelled)
        for name in spelled:
            for alias in aliases.get(name, ()):
                self.spelled.setdefault(alias, spelled[name])
        dtypes = [self[name].dtype for name in spelled]
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32

    def __getitem__(self, name: str) -> Rows:
        return self.tensors[self.spelled[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spelled)

    def __len__(self) -> int:
        return len(self.spelled)

    def bytes(self, name: str) -> int:
        """The size of a tensor in its file; zero where there is none."""
        found = self[name] if name in self.spelled else None
        return 0 if found is None else found.shape.numel() * found.dtype.itemsize

    def whole(self, name: str) -> torch.Tensor:
        """A tensor to compute with."""
        found = self[name][:]
        return found.to(self.dtype) if found.is_floating_point() else found
