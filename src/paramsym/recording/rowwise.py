"""Functions that treat the rows of a tensor, along its first axis, one by one and alike."""

from __future__ import annotations

from typing import Any

import torch

_ENTRYWISE = {
    "add", "sub", "rsub", "mul", "div", "rdiv", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "pow",
    "square", "relu", "relu6", "leaky_relu", "gelu", "silu", "elu", "selu", "celu", "mish",
    "softplus", "sigmoid", "tanh", "hardswish", "hardsigmoid", "hardtanh", "clamp", "clamp_min",
    "clamp_max", "where", "sin", "cos", "erf", "maximum", "minimum", "lerp", "clone", "contiguous",
    "to", "float", "double", "half", "bfloat16", "detach", "dropout", "type_as", "reciprocal",
    "softsign", "logsigmoid", "positive", "gt", "ge", "lt", "le", "eq", "ne", "__gt__", "__ge__",
    "__lt__", "__le__", "__eq__", "__ne__", "masked_fill",
}  # fmt: skip
_ALONG = {  # along axes that are said, where the first is not among them: position, default
    **dict.fromkeys(
        ("softmax", "log_softmax", "sum", "mean", "amax", "cumsum", "flip", "unsqueeze", "squeeze",
         "narrow", "select", "unflatten"),
        (1, None),
    ),
    "chunk": (2, 0), "split": (2, 0), "unbind": (1, 0), "cat": (1, 0), "glu": (1, -1),
    "normalize": (2, 1),
}  # fmt: skip
_NORMS = {"layer_norm", "rms_norm"}
_MAPS = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}


def treats_rows_alike(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rows: list[torch.Tensor]
) -> bool:
    """Whether each row of the result is one function of that row of some tensors.

    Args:
        name: the canonical name of a function.
        args: its positional arguments.
        kwargs: its named arguments.
        rows: the arguments whose first axis counts the rows in question.
    """
    ids = {id(t) for t in rows}
    if name in _ENTRYWISE:
        return _entrywise(name, [*args, *kwargs.values()], rows)
    if name in _MAPS:
        at = _MAPS[name]
        return [k for k, t in enumerate(args) if id(t) in ids] == [at] and not _spans(args, at)
    if name in _NORMS:
        shape = kwargs.get("normalized_shape") or next(iter(args[1:2]), ())
        first = next(iter(args), None)
        return id(first) in ids and len(rows) == 1 and len(shape) < rows[0].ndim
    if name in _ALONG:
        return _along(name, args, kwargs, rows)
    return name == "getitem" and _keeps_rows(args[1], rows[0].ndim)


def _entrywise(name: str, given: list[Any], rows: list[torch.Tensor]) -> bool:
    """Whether what else enters is the same for all rows."""
    ids, ndim = {id(t) for t in rows}, rows[0].ndim
    if name == "to":
        return id(given[0]) in ids
    others = [t for t in given if isinstance(t, torch.Tensor) and id(t) not in ids]
    same = all(t.ndim < ndim or (t.ndim == ndim and t.shape[0] == 1) for t in others)
    return same and all(t.ndim == ndim for t in rows)


def _along(name: str, args: tuple, kwargs: dict[str, Any], rows: list[torch.Tensor]) -> bool:
    """Whether the axes that a function speaks of are others than the first."""
    at, default = _ALONG[name]
    dim = kwargs.get("dim", args[at] if len(args) > at else default)
    dims = dim if isinstance(dim, (tuple, list)) else [dim]
    ndim = rows[0].ndim + (name == "unsqueeze")
    if name == "cat" and {id(t) for t in args[0]} != {id(t) for t in rows}:
        return False
    return bool(dims) and all(isinstance(d, int) and d % ndim != 0 for d in dims)


def items_of(index: Any) -> list[Any]:
    """What stands between the brackets of an index, one by one."""
    return [*index] if isinstance(index, tuple) else [index]


def _keeps_rows(index: Any, ndim: int) -> bool:
    """Whether an index leaves the first axis as it is."""
    items = items_of(index)
    if any(isinstance(item, (torch.Tensor, list)) for item in items):
        return False
    return items[:1] == [slice(None)] or (items[:1] == [Ellipsis] and len(items) <= ndim)


def _spans(args: tuple, at: int) -> bool:
    """Whether another operand of a matrix product has axes beside those of the matrix."""
    x = args[at]
    return x.ndim < 2 or any(
        isinstance(t, torch.Tensor) and t.ndim > 2 - (at == 1 and k == 0)
        for k, t in enumerate(args) if k != at
    )  # fmt: skip
