"""The one small graph that both readers produce: a list of calls between values.

A `Value` is a tensor at one moment of the forward pass. It knows its layout inside its storage
(strides and offset), because every chain of view operations is *read off the layout* instead of
being followed operator by operator; two values with the same `storage` look at the same numbers.
A `Call` is one operator application, named by its canonical name (`add`, never `__iadd__` or
`aten.add_.Tensor`), so that one rule serves both readers.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from paramsym.recording.freed import Virtual


@dataclass(eq=False)
class Value:
    """One tensor of the trace, without its numbers."""

    id: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int  # id of the value that owns the layout
    dtype: torch.dtype
    kind: str  # "parameter", "buffer", "input", "constant" or "activation"
    name: str = ""  # the name of a parameter, buffer or input
    data: torch.Tensor | None = None  # small constants that the trace captured
    vector: torch.Tensor | None = None  # the numbers of a parameter or buffer, up to one axis
    call: Call | None = None

    def __repr__(self) -> str:
        return f"%{self.id}{list(self.shape)}" + (f"={self.name}" if self.name else "")


@dataclass(eq=False)
class Call:
    """One operator application: `outputs = name(*args, **kwargs)` with `Value`s for tensors."""

    index: int
    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Value]
    result: Any  # the outputs in the structure in which the operator returned them
    where: str = ""  # file:line and module path in the user's model

    @cached_property
    def operands(self) -> Sequence[Value]:
        """Every value among the arguments, in order."""
        return (*values_in(self.args), *values_in(self.kwargs))

    def __repr__(self) -> str:
        return f"{self.outputs} = {self.name}({self.args}, {self.kwargs})  # {self.where}"


@dataclass(eq=False)
class Graph:
    """A traced forward pass."""

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)  # every name, tied ones share
    buffers: dict[str, Value] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)  # first names of parameters that are not trained
    outputs: list[Value] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # first name of what cannot move -> why
    # parameters that the model does not have: the weights of maps in front of it and behind it
    virtual: dict[str, Virtual] = field(default_factory=dict)
    written: dict[str, Value] = field(default_factory=dict)  # what buffers hold after the pass
    # inputs whose numbers decide what is computed -> where first; see `recording.selecting`
    decided: dict[str, str] = field(default_factory=dict)


def values_in(tree: Any):
    """Iterate over the `Value`s of nested tuples, lists and dicts."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from values_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from values_in(item)


_DUNDER = {
    "__rsub__": "rsub", "__truediv__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
    "__itruediv__": "div", "__rpow__": "rpow", "__getitem__": "getitem", "__setitem__": "setitem",
    "__matmul__": "matmul", "__rmatmul__": "rmatmul", "__imatmul__": "matmul",
    "__invert__": "bitwise_not", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "true_divide": "div", "subtract": "sub", "multiply": "mul", "divide": "div",
    "negative": "neg", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "swapdims": "transpose", "moveaxis": "movedim", "absolute": "abs", "greater": "gt",
    "clip": "clamp", "type_as": "to", "_to_copy": "to", "special_erf": "erf",
    "special_expit": "sigmoid", "square": "square", "float_power": "pow",
    "convolution": "convolution", "_softmax": "softmax", "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm", "_unsafe_view": "view", "hardtanh6": "relu6",
}  # fmt: skip


@cache
def canonical_name(target: Any) -> str:
    """The one name under which an operator is known, whichever reader saw it.

    >>> canonical_name(torch.Tensor.__iadd__), canonical_name(torch.ops.aten.add_.Tensor)
    ('add', 'add')
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, name = target._schema.name.split("::")
        if namespace != "aten":
            return f"{namespace}::{name}"
    elif isinstance(target, torch._ops.OpOverloadPacket):
        name = target.__name__
    elif isinstance(target, str):
        name = target
    else:
        name = getattr(target, "__name__", str(target))
        if name == "__get__":  # the getter of a property such as Tensor.mT
            name = getattr(getattr(target, "__self__", None), "__name__", name)
    return _plain_name(name)


_OF_NUMPY = {
    "axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "x1": "input", "x2": "other",
}  # fmt: skip
_BY_OWN_NAMES = {  # what has an argument of one of these names itself
    "segment_reduce", "quantize_per_channel", "fake_quantize_per_channel_affine", "cdist",
    "cosine_similarity", "pairwise_distance", "trapezoid", "trapz", "cumulative_trapezoid",
}  # fmt: skip
_BUILT_IN = types.BuiltinFunctionType, types.MethodDescriptorType


def canonical_keywords(target: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords by torch's names, where it takes numpy's for the same: `keepdims`, `axis`, `x`."""
    theirs = given.keys() & _OF_NUMPY.keys() and isinstance(target, _BUILT_IN)
    if not theirs or target.__name__ in _BY_OWN_NAMES:
        return dict(given)
    return {_OF_NUMPY.get(name, name): value for name, value in given.items()}


@cache
def _plain_name(name: str) -> str:
    """One name for the variants of an operator: its dunder, its reflection, its write in place."""
    if name in _DUNDER:
        return _DUNDER[name]
    match = re.fullmatch(r"__[ir]?(add|sub|mul|pow|floordiv|mod|neg|abs)__", name)
    if match:
        return "rsub" if name == "__rsub__" else match[1]
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return _DUNDER.get(name, name)
