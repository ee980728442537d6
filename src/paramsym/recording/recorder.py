"""The mode in which a model is recorded: what becomes of each torch function that it calls."""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.overrides import TorchFunctionMode

from paramsym.recording.graph import Call, Value, canonical_keywords, canonical_name
from paramsym.recording.in_place import (
    REWINDOWED,
    Written,
    aside,
    is_basic,
    is_inplace,
    is_result,
    map_tensors,
    place,
    same_entries,
    tensors_in,
    written_arguments,
)
from paramsym.recording.ledger import Ledger
from paramsym.recording.mapped import is_inside
from paramsym.recording.refusals import TraceError
from paramsym.recording.selecting import Selector
from paramsym.recording.selections import Selections
from paramsym.recording.shaped import SHAPED
from paramsym.recording.translating import translated

_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


class Recorder(TorchFunctionMode):
    """Writes each torch function that touches a tensor into a `Graph`."""

    def __init__(
        self, ledger: Ledger, selector: Selector, module_names: dict[int, str], caller: CodeType
    ):
        super().__init__()
        self.caller = caller  # what runs the model, and is no part of it
        self.ledger, self.selector = ledger, selector
        self.graph = ledger.graph
        self.module_names = module_names
        self.selections = Selections(self._record, selector)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = canonical_keywords(func, kwargs or {}), canonical_name(func)
        if name in _UNTRACED or getattr(func, "__name__", "") in _UNTRACED:
            return func(*args, **kwargs)
        if is_inside(tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        self.ledger.where = self.where()
        if name in ("getitem", "setitem"):
            args = (args[0], self.selector.index(name, args[1]), *args[2:])
        if name == "__set__":  # x.data = y
            func(*args, **kwargs)
            return self.ledger.forget(args[0])
        selected = self.selections.handled(name, func, args, kwargs)
        if selected is not None:
            return selected[0]
        if name == "setitem" and is_basic(args[1], args[2]):
            return self._write_entries(*args)
        result = self._record(name, func, args, kwargs)
        self.selections.follow(name, args, kwargs, result)
        return result

    def _record(self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run one function and enter its call, with the calls that its writes bring about."""
        given = tensors_in((args, kwargs))
        before = {id(t): (t._version, place(t)) for t in given}
        call_args, call_kwargs = map_tensors(self.ledger.value, (tuple(args), dict(kwargs)))
        call = Call(0, name, func, call_args, call_kwargs, [], None, self.ledger.where)
        instead = translated(self.selector, call, args, kwargs)
        if instead is not None:
            with self:
                return instead()
        try:
            result = (SHAPED.get(name) or func)(*args, **kwargs)
        except Exception as error:
            return self._on_numbers(call, (args, kwargs), error)
        moved = [t for t in given if place(t) != before[id(t)][1]]
        if moved:
            return self._reshaped(call, moved, result)
        risen = [t for t in given if t._version > before[id(t)][0]]
        written = written_arguments(func, args, kwargs, risen, result)
        self._enter_effects(call, written, (args, kwargs), result)
        return result

    def _on_numbers(self, call: Call, given: Any, error: Exception) -> Any:
        """What a call gives that fake tensors cannot run; see `recording.selecting`."""
        if is_inplace(getattr(call.target, "__name__", "")) or "out" in call.kwargs:
            raise error
        if isinstance(error, _UNANSWERED):
            args, kwargs = given
            sizes = args[isinstance(args[0], torch.Tensor) :] if args else ()
            settled = self.selector.settled(call.name, sizes)
            if settled is not sizes:
                with self:
                    return call.target(*args[: len(args) - len(sizes)], *settled, **kwargs)
        elif not self.selector.decides(call):
            raise error  # it is not for want of numbers
        try:
            return self.selector.on_numbers(call)
        except TraceError:
            raise
        except Exception:
            raise error from None

    def _enter_effects(
        self, call: Call, written: list[torch.Tensor], given: tuple[tuple, dict[str, Any]],
        result: Any,
    ) -> None:  # fmt: skip
        """Enter a call by what it returned or wrote, and one more for each further write."""
        func, (args, kwargs) = call.target, given
        main = written[0] if written and is_result(written[0], result, kwargs) else None
        places = {id(v): k for k, v in reversed([*enumerate(args), *kwargs.items()])}
        at = main is not None and id(main) in places
        if main is not None and at:
            call.target = Written(func, places[id(main)])
            self._enter_write(call, main)
        elif tensors_in(result):
            self._enter_results(call, result)
        for tensor in written:
            if tensor is not main or not at:  # an operator of its own, most often without a rule
                target = Written(func, places[id(tensor)]) if id(tensor) in places else func
                further = Call(0, aside(call.name), target, call.args, call.kwargs, [], None,
                               call.where)  # fmt: skip
                self._enter_write(further, tensor)

    def _enter(self, call: Call) -> None:
        call.index = len(self.graph.calls)
        for output in call.outputs:
            output.call = call
        self.graph.calls.append(call)

    def _enter_results(self, call: Call, result: Any) -> None:
        """Values for what a function returned; arguments that it returns keep theirs."""
        fresh: dict[int, Value] = {}
        for tensor in tensors_in(result):
            if id(tensor) in self.ledger.known:
                fresh[id(tensor)] = self.ledger.value(tensor)
            else:
                fresh[id(tensor)] = value = self.ledger.add(tensor, "activation")
                if value.call is None:  # otherwise it is read from a torn storage
                    value.call = call
        call.outputs = [v for v in fresh.values() if v.call is call]
        call.result = map_tensors(lambda tensor: fresh[id(tensor)], result)
        if call.outputs:
            self._enter(call)

    def _enter_write(self, call: Call, target: torch.Tensor) -> None:
        written, following = self.ledger.write(target)
        call.outputs, call.result = [written], written
        self._enter(call)
        if following is not None:
            self._enter(following)

    def _write_entries(self, target: torch.Tensor, index: Any, item: Any) -> None:
        """`target[index] = item` for slices and places: a copy into a window."""
        self.ledger.value(target)
        window = torch.Tensor.__getitem__(target, index)
        if not window.numel():
            return
        self.ledger.value(window)
        if not isinstance(item, torch.Tensor):
            self._record("fill", torch.Tensor.fill_, (window, item), {})
            return
        if same_entries(item, window):
            return  # y[a] += b writes to y[a] and then stores it where it is
        if item.ndim > window.ndim:  # leading axes of one entry
            self.ledger.value(item)
            item = torch.Tensor.__getitem__(item, (0,) * (item.ndim - window.ndim))
        self._record("copy", torch.Tensor.copy_, (window, item), {})

    def _reshaped(self, call: Call, moved: list[torch.Tensor], result: Any) -> Any:
        """A function gave its argument another layout or other memory.

        `transpose_` and its like make the tensor another window; of anything else it is only
        known that what the tensor holds depends on the arguments.
        """
        for tensor in moved:
            self.ledger.forget(tensor)
            if call.name in REWINDOWED:
                call.outputs = [self.ledger.add(tensor, "activation")]
            elif call.name != "set":
                self.ledger.tear(tensor, f"{call.name} changes the shape of its argument",
                                 call.operands)  # fmt: skip
                call.outputs = [self.ledger.value(tensor)]
            else:
                call.outputs = [self.ledger.value(tensor)]
        call.result = call.outputs[0]
        if call.name in REWINDOWED:
            self._enter(call)
        return result

    def where(self) -> str:
        """The innermost line of the user's model, and the module that it belongs to."""
        frame = sys._getframe(2)
        place = module = ""
        while frame is not None:
            code = frame.f_code
            if code is self.caller:
                break
            if not code.co_filename.startswith(_LIBRARIES[1]):
                inside_torch = code.co_filename.startswith(_LIBRARIES[0])
                if not place and not inside_torch:
                    place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
                if not module and code.co_varnames and code.co_varnames[0] == "self":
                    name = self.module_names.get(id(frame.f_locals.get("self")))
                    if name is not None:
                        module = name or "model"
                if place and module:
                    break
            frame = frame.f_back
        return _named_place(place, module)


def _named_place(place: str, module: str) -> str:
    """A line and the module that it belongs to, or what is known of the two."""
    if not place and module:  # the forward of nn.Sequential is a line of torch
        return "the model" if module == "model" else f"module {module}"
    return f"{place} ({module})" if module else place or "an unknown place"


# what fake tensors say of a function whose result depends on numbers
_UNANSWERED = (DataDependentOutputException, DynamicOutputShapeException)

_UNTRACED = {
    "shape", "dtype", "device", "ndim", "requires_grad", "size", "dim", "numel",
    "is_floating_point", "grad", "stride", "layout", "is_cuda", "requires_grad_", "backward",
    "storage_offset", "is_contiguous", "data_ptr", "is_sparse", "is_quantized", "is_meta",
    "detach_", "share_memory_", "retain_grad", "untyped_storage", "is_conj", "is_neg", "_version",
}  # fmt: skip
