"""`torch.vmap` inside a forward pass, where it maps over data alone: masks are made that way.

The functions that run inside see tensors with a hidden axis, which have no place in the record.
So the map is run on numbers as a whole, with those also of what it closes over. Where it maps over
what moves it runs as it is, and what comes out is an unknown function of all parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import apis as _apis
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import Call
from paramsym.recording.in_place import map_tensors, tensors_in
from paramsym.recording.refusals import TraceError
from paramsym.recording.selecting import Selector

# what torch does not export, under names that a type checker leaves alone
apis: Any = _apis
hidden: Any = torch._C


def is_inside(tensors: list[torch.Tensor]) -> bool:
    """Whether functions run inside of a transform of functions, on tensors that it has wrapped."""
    return any(map(hidden._functorch.is_functorch_wrapped_tensor, tensors))


class _OnNumbers(TorchFunctionMode):
    """Gives functions the numbers of the fake tensors that they are given."""

    def __init__(self, selector: Selector, call: Call):
        super().__init__()
        self.selector, self.call = selector, call

    def number(self, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return tensor
        return self.selector.numbers(self.call, self.selector.ledger.value(tensor)).clone()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = map_tensors(self.number, (tuple(args), kwargs or {}))
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)


@contextmanager
def maps_on_numbers(selector: Selector, where: Callable[[], str]) -> Iterator[None]:
    """Run the maps of a block over data on numbers; other threads map as ever."""
    thread, original = threading.get_ident(), apis.vmap_impl
    busy: list[bool] = []

    def seen(func: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any,
             *args: Any, **kwargs: Any) -> Any:  # fmt: skip
        given = in_dims, out_dims, randomness, chunk_size
        tensors = tensors_in((args, kwargs))
        if threading.get_ident() != thread or busy or is_inside(tensors) or randomness != "error":
            return original(func, *given, *args, **kwargs)
        call = Call(0, "vmap", func, (), {}, [], None, where())
        before = selector.refused
        busy.append(True)
        try:
            mode = _OnNumbers(selector, call)
            with torch.no_grad(), unset_fake_temporarily(), mode:
                with torch._C.DisableTorchFunction():
                    numbers = map_tensors(mode.number, (args, kwargs))
                result = original(func, *given, *numbers[0], **numbers[1])
            return map_tensors(selector.constant_of, result)
        except TraceError:
            selector.refused = before
            return original(func, *given, *args, **kwargs)
        finally:
            busy.pop()

    apis.vmap_impl = seen
    try:
        yield
    finally:
        apis.vmap_impl = original
