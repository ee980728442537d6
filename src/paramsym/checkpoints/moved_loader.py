"""A moved model as an input of tools that ask for its tensors one by one.

mergekit reads each model of a merge through a loader: `index.tensor_paths` says which tensors there
are, `get_tensor` gives one of them. A loader that moves what it gives makes an aligned model an
input without writing it first:

    model = ModelReference.model_validate("B")
    LoaderCache().loaders[model] = MovedLoader(model.lazy_loader(), symmetry, element)
    run_merge(config, "out", options)

mergekit 0.1.5 has no official place for such a step; its cache of loaders is one that stands open,
and is shared by all threads of the process. To write the model with `paramsym transform` or
`paramsym align`, and to name that folder in the configuration, is simpler, and the only way to keep
what was merged.

Source: mergekit 0.1.5, `io/lazy_tensor_loader.py` and `io/tasks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from paramsym.checkpoints.converting import SymmetryConverter
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry


class Loader(Protocol):
    """What gives the tensors of a model by name, as mergekit's `LazyTensorLoader` does."""

    index: Any

    def get_tensor(self, key: str, device: str = "cpu") -> torch.Tensor | None: ...

    def flush(self) -> None: ...


class MovedLoader:
    """A loader whose tensors are those of another one, moved along the symmetry: θ ↦ g·θ.

    Args:
        loader: of the model as it is, of which `index.tensor_paths` has a key for each tensor.
        symmetry: of the model, as for `act`.
        element: what moves it, as from `align`.

    Raises:
        CheckpointError: a tensor that moves is not in the model, or two of them need each other.
    """

    def __init__(self, loader: Loader, symmetry: ParameterSymmetry, element: GroupElement):
        self.loader, self.index = loader, loader.index
        self.move = SymmetryConverter(symmetry, element, [*loader.index.tensor_paths])

    def get_tensor(
        self, key: str, device: str = "cpu", aliases: Sequence[str] | None = None,
        raise_on_missing: bool = True,
    ) -> torch.Tensor | None:  # fmt: skip
        """One tensor of the moved model; what it needs is read with it, and not kept.

        Args:
            key: its name.
            device: on which it is moved, and comes.
            aliases: other names, of which the first that is there is taken where `key` is not.
            raise_on_missing: whether a tensor that is not there is an error; else None comes.

        Raises:
            KeyError: there is no such tensor, as the loaders of mergekit say it.
            CheckpointError: it is quantised, or has another shape than its type.
        """
        names = [n for n in (key, *(aliases or ())) if n in self.index.tensor_paths]
        if not names:
            if raise_on_missing:
                raise KeyError(key)
            return None
        needed = sorted(self.move.get_dependencies(names[0]) | {names[0]})
        found = {name: self.loader.get_tensor(name, device=device) for name in needed}
        tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
        return self.move.moved(names[0], tensors)

    def flush(self) -> None:
        """Close what is open."""
        self.loader.flush()
