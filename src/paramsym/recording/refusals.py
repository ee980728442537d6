"""Models and inputs whose symmetry is not derived, each refused with its way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils import _pytree as pytree

from paramsym.structure.whole import is_sharded


class TraceError(RuntimeError):
    """The symmetry of this model cannot be derived from a run on fake tensors."""


def refuse(model: torch.nn.Module, example_inputs: Any) -> None:
    """Raise `TraceError` if a model or its example inputs can be told not to be readable.

    Refused are scripted, quantised and uninitialised modules, models without parameters,
    parameters without entries or spread over ranks, and inputs without entries.
    """
    start = f"find_symmetry(model={type(model).__name__})"
    for path, module in model.named_modules():
        place = f"module {path!r} ({type(module).__name__})" if path else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{start}: {place} is a ScriptModule; an ordinary torch.nn.Module was expected, "
                "since a compiled graph hides the functions that it calls. Give the module that "
                "was scripted, or a program written by torch.export.save."
            )
        if _is_quantised(module):
            raise TraceError(
                f"{start}: {place} is quantised; floating weights were expected, since packed "
                "integers can only be permuted. Derive the symmetry of the floating model "
                "before it is converted."
            )
    count = 0
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        _refuse_tensor(start, name, tensor)
        count += isinstance(tensor, torch.nn.Parameter) and tensor.numel() > 0
    if not count:
        raise TraceError(
            f"{start}: the model has no parameters with entries, but at least one was expected "
            "in model.named_parameters(). Register weights as torch.nn.Parameter, or give the "
            "module that holds them."
        )
    _refuse_inputs(start, example_inputs)


def _is_quantised(module: torch.nn.Module) -> bool:
    path = type(module).__module__
    return path.startswith(("torch.ao.nn.", "torch.nn.")) and "quantized" in path.split(".")


def _refuse_tensor(start: str, name: str, tensor: torch.Tensor) -> None:
    if is_sharded(tensor):
        raise TraceError(
            f"{start}: {name!r} is a DTensor, spread over ranks; ordinary tensors were expected, "
            "on the device 'meta' if they do not fit. Derive the symmetry before fully_shard or "
            "parallelize_module, and let it act on the DTensors afterwards."
        )
    if isinstance(tensor, (UninitializedBuffer, UninitializedParameter)):
        raise TraceError(
            f"{start}: {name!r} is not initialised yet (a lazy module); a tensor with a shape was "
            "expected. Run the model once on the example inputs before."
        )
    if tensor.is_quantized:
        raise TraceError(
            f"{start}: {name!r} is quantised ({tensor.dtype}); a floating tensor was expected. "
            "Derive the symmetry of the floating model before it is converted."
        )


def _refuse_inputs(start: str, example_inputs: Any) -> None:
    given: Any = example_inputs
    if not isinstance(example_inputs, (Mapping, tuple, list)):
        given = (example_inputs,)
    for path, leaf in pytree.tree_flatten_with_path(given)[0]:
        if isinstance(leaf, torch.Tensor) and not leaf.numel():
            raise TraceError(
                f"{start}: example_inputs{pytree.keystr(path)} has shape {tuple(leaf.shape)} and "
                "no entries; every axis of an example needs a positive length, or nothing would "
                "be computed. Give a batch of at least one example (better two or more)."
            )
