"""Running a user's model so that nothing is left of it: one lock, and everything given back.

To run a model at other parameters they are put into its modules for a moment, and certificates
set the process's default dtype. Both are shared by all threads, so whoever does either holds the
one lock of this module; a second thread waits. A forward pass may also store activations on its
modules, count its calls or change a global setting: all of that is put back, also when it raises.
"""

from __future__ import annotations

import gc
import logging
import operator
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils import checkpoint

_NEVER = 1 << 30  # collections of the middle generation, until there is one of the oldest
exclusive = threading.RLock()  # held while a model or a setting of the process is changed


@contextmanager
def uncollected() -> Iterator[None]:
    """Run a block without the cyclic garbage collector.

    A derivation makes some 10⁵ objects that all live until its end; each full collection meanwhile
    walks everything that torch has loaded, which cost up to a quarter of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def collected_young() -> Iterator[None]:
    """Run a block in which the garbage collector looks at new objects alone.

    What models make as they run is collected, so that memory does not grow; all that torch has
    loaded is not walked for it.
    """
    new, young, old = gc.get_threshold()
    if old < _NEVER:  # else another thread has done so, and will undo it
        gc.set_threshold(new, young, _NEVER)
    try:
        yield
    finally:
        if old < _NEVER:
            gc.set_threshold(new, young, old)


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Run a block in which a logger is silent.

    torch logs the traceback of every function that stops on fake tensors; whoever runs the block
    turns that error into a message.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def split_inputs(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments of the model."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


@contextmanager
def preserved(
    model: torch.nn.Module, training: bool, attributes: Attributes | None = None
) -> Iterator[None]:
    """Run a block in the wanted mode, then give back the model and all that the block changed.

    Given back are the attributes of every module with the lists, dicts and sets inside of them,
    the default dtype, the grad mode and the states of the random generators. Other
    threads of this library wait meanwhile. `attributes` are those to be given back, for a caller
    that has walked the model before (`Walk`).
    """
    with exclusive:
        attributes = attributes or Attributes(model)
        restore_settings = _settings()
        try:
            try:
                model.train(training)
            except NotImplementedError:  # an exported program has the mode that it was exported in
                pass
            torch.backends.mha.set_fastpath_enabled(False)  # one opaque kernel otherwise
            with _uncompiled(), _uncheckpointed():
                yield
        finally:
            attributes.restore()
            restore_settings()


def _uncompiled() -> AbstractContextManager[Any]:
    """What torch.compile has wrapped, a module in the model or a function, runs as it was written.

    A graph that is compiled hides its functions, and is compiled anew for every kind of numbers.
    """
    known = "torch._dynamo" in sys.modules  # without it nothing is compiled
    return torch.compiler.set_stance("force_eager") if known else nullcontext()


@contextmanager
def _uncheckpointed() -> Iterator[None]:
    """What `torch.utils.checkpoint` would compute again in a backward pass is kept.

    A backward pass runs after a call at other weights has ended, and would compute again at the
    model's own. Both kinds of checkpoints reach what they do through a name of torch's module.
    """
    plain = {"CheckpointFunction": _Kept, "_checkpoint_without_reentrant_generator": _twice}
    before = {name: getattr(checkpoint, name) for name in plain if hasattr(checkpoint, name)}
    try:
        for name in before:
            setattr(checkpoint, name, plain[name])
        yield
    finally:
        for name, value in before.items():
            setattr(checkpoint, name, value)


class _Kept:
    """`torch.utils.checkpoint.CheckpointFunction` without a checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _twice(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What surrounds a function whose activations are kept: nothing before, nothing after."""
    yield


def _settings() -> Callable[[], None]:
    """What puts back the settings of the process and of this thread."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    threefold = torch.get_rng_state(), random.getstate(), np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore() -> None:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(threefold[0])
        random.setstate(threefold[1])
        np.random.set_state(threefold[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return restore


def seeded(seed: int) -> None:
    """Seed all generators of the process; inside of `preserved`, which gives their states back."""
    seeded_torch(seed)
    random.seed(seed)
    np.random.seed(seed)


def seeded_torch(seed: int) -> None:
    """Seed the generators of torch; where there is no accelerator, that of the processor alone.

    `torch.manual_seed` keeps each seed for accelerators that may come, with the traceback of who
    gave it, which takes as long as a layer.
    """
    if _accelerated():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()


_CONTAINERS = (dict, list, set, deque)
_KEPT = (*_CONTAINERS, torch.Tensor)
_CLONED = 1 << 20  # tensors that are plain attributes are kept up to this many entries


class Attributes:
    """The attributes of all modules, and the contents of containers in them.

    The tables of parameters, buffers, children and hooks are such containers. Tensors that are
    plain attributes may be written to; parameters and buffers are substituted and cannot be.
    """

    def __init__(self, model: torch.nn.Module):
        self.containers: list[tuple[Any, list[Any]]] = []
        self.empty: list[Any] = []  # containers without entries, as most tables of hooks
        self.tensors: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self.seen: set[int] = set()
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                self.seen.add(id(table))
                self._keep(table)
        for module in model.modules():
            self.save(module.__dict__)

    def save(self, item: Any) -> None:
        """Keep a container or a tensor, and what a container holds."""
        if id(item) in self.seen:
            return
        self.seen.add(id(item))
        if isinstance(item, _CONTAINERS):
            self._keep(item)
            for value in item.values() if isinstance(item, dict) else item:
                if isinstance(value, _KEPT):
                    self.save(value)
        elif item.device.type != "meta" and item.numel() <= _CLONED and not item.is_inference():
            self.tensors.append((item, item._version, item.detach().clone()))

    def _keep(self, container: Any) -> None:
        if container:
            self.containers.append((container, _entries(container)))
        else:
            self.empty.append(container)

    def restore(self) -> None:
        """Put everything back that is different now."""
        for item in filter(None, self.empty):
            item.clear()
        for item, before in self.containers:
            _refill(item, before)
        for tensor, version, before in self.tensors:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(before)


def _entries(item: Any) -> list[Any]:
    """What a container holds; of a dict, the keys and then the values."""
    return [*item.keys(), *item.values()] if isinstance(item, dict) else [*item]


def _refill(item: Any, before: list[Any]) -> None:
    """Put the entries of a container back if they are others than before."""
    now = _entries(item)
    if len(now) == len(before) and all(map(operator.is_, now, before)):
        return
    item.clear()
    if isinstance(item, dict):
        count = len(before) // 2
        item.update(zip(before[:count], before[count:], strict=True))
    else:
        (item.update if isinstance(item, set) else item.extend)(before)


def places_of(model: torch.nn.Module, names: Collection[str]) -> dict[str, str]:
    """Every place of a model that holds a named tensor, with its first name among these.

    A tied tensor has several names and several places, and a module may be registered twice.
    """
    given: dict[int, str] = {}
    with exclusive:
        for name, tensor in [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]:
            if name in names:
                given.setdefault(id(tensor), name)
        return {
            f"{prefix}.{name}" if prefix else name: given[id(tensor)]
            for prefix, module in model.named_modules()
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]
            if tensor is not None and id(tensor) in given
        }


_Slot = tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None, str]
"""A module's table, the key and the tensor in it, and by what name another one is given."""


class Walk:
    """What a walk over a model finds, for who runs it many times: a walk takes as long as a layer.

    Args:
        model: as it is to be given back after every run.
        names: of the tensors that will be substituted.
    """

    def __init__(self, model: torch.nn.Module, names: Collection[str]):
        self.model = model
        with exclusive:  # another thread may have put substitutes into the model
            self.attributes = Attributes(model)
            self.slots = [_slot(model, *each) for each in places_of(model, names).items()]
            self.trained = {name for name, _ in model.named_parameters()}

    def call_at(
        self, state: Mapping[str, torch.Tensor], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        """`call_at`, without looking for the tensors of the model again."""
        with exclusive:
            try:
                for table, key, _, name in self.slots:
                    table[key] = state[name]
                return self.model(*args, **kwargs)
            finally:
                for table, key, tensor, _ in self.slots:
                    table[key] = tensor


def _slot(model: torch.nn.Module, place: str, name: str) -> _Slot:
    path, _, key = place.rpartition(".")
    module = model.get_submodule(path)
    table: Any = module._parameters if key in module._parameters else module._buffers
    return table, key, table[key], name


def call_at(
    model: torch.nn.Module,
    state: Mapping[str, torch.Tensor],
    args: tuple,
    kwargs: dict[str, Any],
    places: Mapping[str, str] | None = None,
) -> Any:
    """Run a model at other parameters and buffers; the model is only read.

    `torch.func.functional_call` leaves the substitutes inside a module that is registered under
    two names. Here every module is filled once, and all names of a tied tensor get one value.
    `places` are those of the state, for a caller that comes often (see also `Walk`).
    """
    with exclusive:
        places = places_of(model, state.keys()) if places is None else places
        filled = {place: state[name] for place, name in places.items()}
        return torch.func.functional_call(model, filled, args, kwargs, tie_weights=False)
