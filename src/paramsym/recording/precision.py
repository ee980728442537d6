"""Running a user's model in float64, whatever it says about dtypes, without touching it.

Certificates are issued in float64. Two things stand in the way: parameters that are float32, and
upcasts to float32 inside the forward pass (many RMS norms and softmaxes do it), which round every
activation to 1e-7 and so hide what is flat to 1e-16. Parameters and inputs are converted on the
side and substituted by `call_at`; requests for a narrower floating type are
lifted to float64 while they pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from paramsym.recording.graph import canonical_name
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.running import (
    Walk,
    exclusive,
    preserved,
    seeded_torch,
    split_inputs,
)

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_PROPERTY = type(vars(torch._C.TensorBase)["shape"].__get__)
_CASTS = {"float", "half", "bfloat16", "cfloat"}


class Lift(TorchFunctionMode):
    """Reads requests for a narrower floating type as float64; see `lifted`."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False  # whether anything was asked for that is read otherwise

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if type(func) is _PROPERTY:  # of which a model asks as often as it computes
            return func(*args)
        name = canonical_name(func)
        if name in _CASTS and isinstance(args[0], torch.Tensor):
            self.met = True
            return args[0].to(torch.complex128 if name == "cfloat" else torch.float64)
        kwargs = kwargs or {}
        # dtypes are never nested, and trees take long to walk
        if any(type(item) is torch.dtype and item in _WIDER for item in (*args, *kwargs.values())):
            self.met = True
            args = tuple(map(_widened, args))
            kwargs = {key: _widened(value) for key, value in kwargs.items()}
        if name == "embedding":  # whose values are the same
            args, kwargs = _plain_lookup(args, kwargs)
        if name in ("grouped_mm", "_grouped_mm"):
            self.met = True
            func = _grouped_product
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            # A constant that is neither parameter nor buffer meets a widened operand.
            if "dtype" not in str(error) and "scalar type" not in str(error):
                raise
            self.met = True
            args, kwargs = pytree.tree_map(_widened_tensor, (args, kwargs))
            return func(*args, **kwargs)


def _grouped_product(
    x: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor, **rest: Any
) -> torch.Tensor:
    """`grouped_mm` of rows by stacked matrices, of which no kernel is known in float64."""
    if x.ndim != 2 or weights.ndim != 3 or any(item is not None for item in rest.values()):
        raise NotImplementedError(f"grouped_mm of shapes {tuple(x.shape)}, {tuple(weights.shape)}")
    ends = offs.tolist()
    rows = [x[a:b] @ w for a, b, w in zip([0, *ends], ends, weights, strict=False)]
    return torch.cat([*rows, x.new_zeros(len(x) - ends[-1], weights.shape[-1])])


class _PlainLookups(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if canonical_name(func) == "embedding":
            args, kwargs = _plain_lookup(args, kwargs or {})
        return func(*args, **(kwargs or {}))


def plain_lookups() -> TorchFunctionMode:
    """A context in which derivatives of embeddings are those of the function, as in `lifted`."""
    return _PlainLookups()


def _widened(leaf: Any) -> Any:
    return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _widened_tensor(leaf: Any) -> Any:
    return leaf.to(_WIDER.get(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _plain_lookup(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """An embedding without its training recipes: no row's gradient is suppressed or rescaled.

    `padding_idx` makes autograd report a zero derivative for a row that the function reads, which
    would then be counted as a dead parameter.
    """
    names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args[2:], strict=False)), **kwargs}
    kept = {k: v for k, v in given.items() if k not in ("padding_idx", *names[3:])}
    if kept.get("max_norm") is None:
        kept.pop("norm_type", None)
    return args[:2], kept


@contextmanager
def lifted(needed: bool = True) -> Iterator[Lift]:
    """Read every request for a narrower floating type as float64, and create in float64.

    `.float()`, `.to(torch.float32)`, `dtype=torch.float32` and factories without a dtype all give
    float64 (complex128 for complex types). Derivatives of embeddings are those of the function.
    The default dtype belongs to the process, so that other threads of this library wait.

    Args:
        needed: False for values, not derivatives, of what ran before and met no such request but
            those of factories (`Lift.met`): listening takes as long as a small operator.
    """
    with exclusive:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            if needed:
                with Lift() as mode:
                    yield mode
            else:
                yield Lift()
        finally:
            torch.set_default_dtype(before)


def converted(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Detached copies of all parameters and buffers, floating ones in `dtype`, ties once."""
    with exclusive:  # another thread may have put substitutes into the model
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if meta := next((n for n, t in named.items() if t.device.type == "meta"), None):
        raise ValueError(
            f"verify/audit(model={type(model).__name__}): {meta!r} is on the meta device and has "
            "no numbers; a certificate needs weights. Load them, or materialise the model with "
            "model.to_empty(device='cpu') and initialise it."
        )
    return {
        name: tensor.detach().to(_target(tensor, dtype), copy=True)
        for name, tensor in named.items()
    }


def converted_inputs(inputs: Any, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs, floating ones in `dtype`."""

    def convert(leaf: Any) -> Any:
        return leaf.detach().to(_target(leaf, dtype)) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(convert, split_inputs(inputs))


def _target(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype


def functional(
    model: torch.nn.Module,
    params: Mapping[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    walk: Walk | None = None,
) -> list[torch.Tensor]:
    """The chosen floating outputs of a model at other parameters; the model is only read.

    Where the parameters are float64, upcasts are lifted to it. Buffers are cloned, since a forward
    pass may write to them, and what is random draws the same numbers every time. `walk` is that of
    a caller who comes often.

    Raises `TraceError` where tensors are hidden in what the model returns.
    """
    wide = any(p.dtype in (torch.float64, torch.complex128) for p in params.values())

    def run() -> list[torch.Tensor]:
        known = walk or Walk(model, params.keys())
        state = {n: t if n in known.trained else t.clone() for n, t in params.items()}
        with preserved(model, training, known.attributes):
            if training:
                seeded_torch(0)
            returned = known.call_at(state, args, dict(kwargs))
            return floating_outputs(returned if outputs is None else outputs(returned))

    with exclusive:
        if not wide:
            return run()
        with lifted():
            return run()
