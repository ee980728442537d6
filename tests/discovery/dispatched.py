"""What operators of PyTorch return, watched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The largest number of entries among tensors that operators make; views make none."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _real(t)}
        made = [t for t in tree_leaves(found) if _real(t)]
        sizes = [t.numel() for t in made if t.untyped_storage().data_ptr() not in given]
        self.entries = max(self.entries, *sizes, 0)
        return found


def _real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided
