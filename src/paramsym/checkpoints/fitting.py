"""Example inputs that do not fit the model: which, what shape it has, and what would fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.source import Source
from paramsym.recording.record import preserved, split_inputs

# What an input that does not fit raises; other errors are the model's own.
_STOPS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
_CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@contextmanager
def fitting(checkpoint: Source, training: bool = False) -> Iterator[None]:
    """Inside, an error becomes one about the example inputs if the model itself stops on these.

    Only then is it their fault: a forward pass that stops on fake tensors alone, or whatever else
    goes wrong, stays what it is.

    Raises:
        CheckpointError: the model stops on the example inputs as they are.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        found = misfit(checkpoint, training)
        if found is None:
            raise
        raise found from error


def misfit(checkpoint: Source, training: bool = False) -> CheckpointError | None:
    """Run the model on its example inputs; what is wrong with these if it stops."""
    model = checkpoint.model
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), checkpoint.inputs)
    args, kwargs = split_inputs(inputs)
    try:
        with preserved(model, training), torch.no_grad():
            model(*args, **kwargs)
    except _STOPS as error:
        return _explained(checkpoint, _named_inputs(model, args, kwargs), error)
    except Exception:
        return None
    return None


def _explained(checkpoint: Source, inputs: dict[str, Any], error: Exception) -> CheckpointError:
    where = f"the example inputs of {checkpoint.label}"
    path, module, tensor = _stopped_in(checkpoint.model, error)
    if module is not None and tensor is not None:
        wanted = _wanted(module, tensor)
        if wanted is not None:
            expected, shape = wanted
            name = next((n for n, leaf in inputs.items() if leaf is tensor), None)
            place = f"module {path!r} ({type(module).__name__})"
            came = f"input {name!r} has shape" if name else f"{place} receives the shape"
            return CheckpointError(
                where,
                f"{came} {tuple(tensor.shape)} and dtype {_short(tensor.dtype)}"
                + ("" if name else f", from {_listed(inputs)}"),
                f"{expected}, for {place}" if name else expected,
                f"Give --inputs {_spelled(name, shape, inputs, module)}" if name and shape
                else "Give other --inputs",
            )  # fmt: skip
    place = f"module {path!r} ({type(module).__name__})" if path else "the model"
    return CheckpointError(
        where, f"{_listed(inputs)}: {place} stopped with {first_line(error)}",
        f"what forward{_signature(checkpoint.model)} takes",
        "Give other --inputs, or mend the model",
    )  # fmt: skip


def _named_inputs(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The inputs by the names that `forward` gives them."""
    names = [p.name for p in inspect.signature(model.forward).parameters.values()
             if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]  # fmt: skip
    names += [f"input {k}" for k in range(len(names), len(args))]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _stopped_in(
    model: nn.Module, error: BaseException
) -> tuple[str, nn.Module | None, torch.Tensor | None]:
    """The innermost module whose forward pass was under way, and the first tensor it was given."""
    paths = {id(module): path for path, module in model.named_modules()}
    found: tuple[str, nn.Module | None, torch.Tensor | None] = ("", None, None)
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "forward" and id(module) in paths:
            found = (paths[id(module)], module, _first_tensor(frame))
        trace = trace.tb_next
    return found


def _first_tensor(frame: FrameType) -> torch.Tensor | None:
    names = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
    values = (frame.f_locals.get(name) for name in names)
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _wanted(module: nn.Module, x: torch.Tensor) -> tuple[str, tuple[int, ...] | None] | None:
    """What a layer takes instead, in words and as a shape; None where it is not certain."""
    if isinstance(module, nn.Embedding):
        if x.dtype in (torch.int64, torch.int32):
            return f"whole numbers below {module.num_embeddings}", tuple(x.shape)
        return f"whole numbers (int64) below {module.num_embeddings}", tuple(x.shape)
    weight = next((p for p in module.parameters(recurse=False) if p.is_floating_point()), None)
    if weight is None:
        return None
    axis, size = _axis(module)
    if axis is None:
        return None
    rank = _CONVOLUTIONS.get(type(module), -2) + 2  # 0: any number of axes
    if rank and x.ndim not in (rank - 1, rank):
        axes = " × ".join(["batch", str(size), *["size"] * (rank - 2)])
        return f"{rank} axes, {axes}", None
    if rank and x.ndim == rank - 1:
        axis = 0
    if x.ndim and -x.ndim <= axis < x.ndim and x.shape[axis] != size:
        shape = list(x.shape)
        shape[axis] = size
        return f"{size} on {_ordinal(axis)} axis, as in {tuple(shape)}", tuple(shape)
    if x.dtype != weight.dtype:
        return f"numbers of dtype {_short(weight.dtype)}", None
    return None


def _axis(module: nn.Module) -> tuple[int | None, int]:
    """The axis on which a layer reads its features, and how many it reads."""
    if isinstance(module, nn.Linear):
        return -1, module.in_features
    if isinstance(module, nn.RNNBase):
        return -1, module.input_size
    if type(module) in _CONVOLUTIONS:
        return 1, int(module.in_channels)  # type: ignore[arg-type]
    if isinstance(module, _NORMS):
        return 1, module.num_features
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return -1, module.normalized_shape[0]
    return None, 0


def _ordinal(axis: int) -> str:
    return {-1: "the last", 0: "the first", 1: "the second"}[axis]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(inputs: dict[str, Any]) -> str:
    """Every input with its shape."""
    shown = [
        f"{name!r} {tuple(v.shape)} {_short(v.dtype)}" if isinstance(v, torch.Tensor)
        else f"{name!r} ({type(v).__name__})" for name, v in inputs.items()
    ]  # fmt: skip
    return ("input " if len(shown) == 1 else "inputs ") + ", ".join(shown)


def _signature(model: nn.Module) -> str:
    return "(" + ", ".join(inspect.signature(model.forward).parameters) + ")"


def _spelled(name: str, shape: tuple[int, ...], inputs: dict[str, Any], module: nn.Module) -> str:
    """As `--inputs` reads it, with the other inputs left as they are."""
    x = inputs[name]
    text = "x".join(map(str, shape))
    dtype = "" if x.is_floating_point() or x.is_complex() else f":{_short(x.dtype)}"
    if isinstance(module, nn.Embedding):
        dtype = f":int64<{module.num_embeddings}"
    return f"{text}{dtype}" if len(inputs) == 1 else f"with {name}={text}{dtype}"
