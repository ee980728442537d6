"""A model run with weights that stay in their files: each is read when its module is called.

The model is built without its parameters. A module gets its own when it is called and gives them
back when it returns; of large linear maps and tables only some rows are in memory at a time.
Arithmetic is in float32, or in float64 where the files have it, so that what differs is what the
files hold and not how a half is rounded on its way.

Where that is too much to read, layers of a stack are passed over. A layer that leads from a stream
to the same stream may be left out of both models: what is left of the network has what is left of
the symmetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from paramsym.checkpoints.streaming.spelling import Named
from paramsym.recording.record import floating_outputs, preserved, split_inputs
from paramsym.structure.panels import spans

BUDGET = 1 << 31  # bytes of weights that a run reads, about
_ROWS = 1 << 26  # bytes of rows that are in memory at a time
Inputs = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Passed:
    """Which layers of which stack are run; all of them where `kept` has all."""

    stack: str
    kept: tuple[int, ...]
    layers: int

    def __str__(self) -> str:
        return f"{len(self.kept)} of {self.layers} layers of {self.stack!r}"


def outputs_of_files(
    model: torch.nn.Module,
    weights: Named,
    inputs: Inputs,
    passed: Passed | None = None,
    whole: bool = False,
) -> list[torch.Tensor]:
    """The floating outputs of a model whose weights are in files, in evaluation mode.

    Args:
        model: with its parameters on the meta device, and its other buffers in memory.
        weights: its parameters and persistent buffers by name.
        inputs: what it is called with.
        passed: layers to leave out.
        whole: have all weights in memory, for models whose modules read each other's.

    Raises:
        RuntimeError: a module reads a parameter of another one, so that it is not there.
    """
    args, kwargs = split_inputs(_cast(inputs, weights.dtype))
    with preserved(model, training=False), torch.no_grad(), ExitStack() as stack:
        modules = [("", model)] if whole else [*model.named_modules()]
        for name, module in modules:
            stack.enter_context(_lent(name, module, weights, whole))
        if passed is not None:
            stack.enter_context(_passing(model.get_submodule(passed.stack), passed))
        return [out.clone() for out in floating_outputs(model(*args, **kwargs))]


def sampled_layers(model: torch.nn.Module, weights: Named) -> Passed | None:
    """The layers to run where all of them are too much to read; None for all.

    They are spread over the largest stack, its first and last layers among them.
    """
    sizes = {name: weights.bytes(name) for name, _ in model.named_parameters()}
    total = sum(sizes.values())
    if total <= BUDGET:
        return None
    stacks = {
        name: len(module) for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) > 2
    }  # fmt: skip
    inside = {s: sum(b for n, b in sizes.items() if n.startswith(f"{s}.")) for s in stacks}
    if not inside:
        return None
    best = max(inside, key=lambda name: inside[name])
    count = stacks[best]
    fit = int((BUDGET - (total - inside[best])) / max(1, inside[best] / count))
    wanted = max(2, min(count, fit))
    kept = {round(k * (count - 1) / (wanted - 1)) for k in range(wanted)}
    return Passed(best, tuple(sorted(kept)), count) if len(kept) < count else None


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    def one(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    return pytree.tree_map(one, inputs)


# -- lending -----------------------------------------------------------------------------------


@contextmanager
def _lent(path: str, module: torch.nn.Module, weights: Named, all_below: bool) -> Iterator[None]:
    """The parameters and buffers of a module, its own or all below it, there while it runs."""
    own = [each for each in _slots(path, module, all_below) if each.name in weights]
    by_rows = None if all_below else _BY_ROWS.get(type(module))
    if by_rows is not None and own and weights.bytes(own[0].name) > _ROWS:
        module.forward = partial(by_rows, {each.leaf: each.name for each in own}, weights)
        try:
            yield
        finally:
            vars(module).pop("forward")
        return
    held: list[list[Any]] = []

    def arrive(*_: Any) -> None:
        held.append([each.get() for each in own])
        same: dict[int, Any] = {}  # tied ones stay one parameter
        for each, old in zip(own, held[-1], strict=True):
            if id(old) not in same:
                same[id(old)] = each.lent(weights, all_below)
            each.set(same[id(old)])

    def leave(*_: Any) -> None:
        for each, old in zip(own, held.pop(), strict=True):
            each.set(old)

    hooks = [
        module.register_forward_pre_hook(arrive),
        module.register_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, eq=False)
class _Slot:
    """A parameter or buffer of a module, by its name in the model."""

    name: str
    leaf: str
    table: dict[str, Any]
    trained: bool

    def get(self) -> Any:
        return self.table[self.leaf]

    def set(self, tensor: Any) -> None:
        self.table[self.leaf] = tensor

    def lent(self, weights: Named, whole: bool) -> Any:
        """What stands for it while its module runs."""
        if not whole and len(weights[self.name].shape) > 2 and weights.bytes(self.name) > _ROWS:
            return _Stack(weights, self.name)
        tensor = weights.whole(self.name)
        return torch.nn.Parameter(tensor, False) if self.trained else tensor


def _slots(path: str, module: torch.nn.Module, all_below: bool) -> Iterator[_Slot]:
    for below, each in module.named_modules(prefix=path) if all_below else [(path, module)]:
        prefix = f"{below}." if below else ""
        for table, trained in ((each._parameters, True), (each._buffers, False)):
            for leaf, tensor in table.items():
                if tensor is not None:
                    yield _Slot(prefix + leaf, leaf, table, trained)


class _Stack:
    """A stack of matrices in files, such as those of experts: each is read when it is asked for."""

    def __init__(self, weights: Named, name: str):
        self._weights, self._name = weights, name

    def __getitem__(self, index: Any) -> torch.Tensor:
        plain = isinstance(index, torch.Tensor) and index.ndim == 0 and index.dtype == torch.int64
        if not plain and type(index) is not int:
            return self._whole()[index]
        k = range(self._weights[self._name].shape[0])[int(index)]
        return self._weights[self._name][k : k + 1][0].to(self._weights.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole(), name)

    def _whole(self) -> torch.Tensor:
        return self._weights.whole(self._name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def tensor(leaf: Any) -> Any:
            return leaf._whole() if isinstance(leaf, _Stack) else leaf

        args, kwargs = pytree.tree_map(tensor, (args, kwargs or {}))
        return function(*args, **kwargs)


def _linear(own: Mapping[str, str], weights: Named, x: torch.Tensor) -> torch.Tensor:
    """x Wᵀ + b, some rows of W at a time."""
    weight = weights[own["weight"]]
    parts = [F.linear(x, weight[a:b].to(weights.dtype)) for a, b in spans(weight, _ROWS)]
    made = torch.cat(parts, dim=-1)
    return made + weights.whole(own["bias"]) if "bias" in own else made


def _embedding(own: Mapping[str, str], weights: Named, x: torch.Tensor) -> torch.Tensor:
    """The rows of a table that are asked for, and no others."""
    used, places = torch.unique(x, return_inverse=True)
    table = weights[own["weight"]]
    rows = torch.cat([table[int(i) : int(i) + 1] for i in used]).to(weights.dtype)
    return rows[places]


_BY_ROWS: dict[type, Callable[..., torch.Tensor]] = {
    torch.nn.Linear: _linear, torch.nn.Embedding: _embedding,
}  # fmt: skip


# -- passing over ------------------------------------------------------------------------------


@contextmanager
def _passing(layers: torch.nn.Module, passed: Passed) -> Iterator[None]:
    """Some layers of a stack give back the stream that they get."""
    seen: list[Any] = []
    with ExitStack() as stack:
        for k, layer in enumerate(layers.children()):
            if k in passed.kept:
                hook = layer.register_forward_hook(lambda *call: seen.append(call[-1]))
                stack.callback(hook.remove)
            else:
                layer.forward = partial(_stream, seen)
                stack.callback(vars(layer).pop, "forward")
        yield


def _stream(seen: list[Any], *args: Any, **kwargs: Any) -> Any:
    """The stream that came, in the form in which the layers before gave theirs."""
    x = args[0] if args else kwargs["hidden_states"]
    form = seen[-1]
    if isinstance(form, tuple):
        return (x, *form[1:])
    return x
