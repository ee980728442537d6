"""Models that a function of the user builds: `package.module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.checkpoints.errors import CheckpointError, first_line
from paramsym.checkpoints.inputs import floating_dtype
from paramsym.checkpoints.source import Inputs, Source, aliases, assign, check_model
from paramsym.checkpoints.tensors import (
    INDEX,
    check_kind,
    read_index,
    read_tensors,
    require_file,
)
from paramsym.checkpoints.weights import WeightsFile, open_weights
from paramsym.checkpoints.writing import ARCHIVES, write_tensors

_PLACE = "'package.module:factory', importable from the folder that the command runs in"


@dataclass
class FactorySource(Source):
    """A factory, with a weights file or with the weights that it draws itself."""

    weights: WeightsFile | None = None
    names: list[str] | None = None  # those that the weights file has

    def save(self, draft: Path, state: Mapping[str, torch.Tensor]) -> None:
        names = self.names
        if names is None:
            names = list(dict.fromkeys(group[0] for group in aliases(self.model).values()))
        written = {name: state[name] for name in names}
        if self.weights is None:
            write_tensors(self._file(draft), written)
        else:
            self.weights.write(self._file(draft), written)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return () if self._sharded else (".safetensors", *ARCHIVES)

    @property
    def _sharded(self) -> bool:
        return self.weights is not None and self.weights.path.name.endswith(INDEX)

    def reload(self, draft: Path) -> torch.nn.Module:
        path = self._file(draft)
        found = read_tensors(path) if self.weights is None else self.weights.read(path)
        assign(self.model, found, str(draft))
        return self.model

    def planned(self, out: Path) -> dict[str, int]:
        state = self.state()
        names = self.names or {group[0] for group in aliases(self.model).values()}
        if self.weights is None or not self._sharded:
            return {out.name: sum(state[n].numel() * state[n].element_size() for n in names)}
        index, prefix = self.weights.path, self.weights.prefix
        sizes = dict.fromkeys(read_index(index).values(), 0)
        for name, shard in read_index(index).items():
            tensor = state[name.removeprefix(prefix)]
            sizes[shard] += tensor.numel() * tensor.element_size()
        return {**sizes, index.name: index.stat().st_size}

    def _file(self, draft: Path) -> Path:
        """The file to write; shards and their index go into a folder."""
        if self.weights is None or not self._sharded:
            return draft
        draft.mkdir(exist_ok=True)
        return draft / self.weights.path.name


def open_factory(
    source: str, weights: Path | None, inputs: Inputs | None, key: str | None = None
) -> FactorySource:
    """Import and call a factory, and give its model the weights of a file if there is one.

    The factory is called without arguments and returns a `torch.nn.Module`. It may carry an
    attribute `example_inputs`: a tuple, a dict of keyword arguments, or a function that makes one.
    `key` is the path to the state dict in a weights file of nested dictionaries.
    """
    factory, module = _import(source)
    model = _build(source, factory)
    _check_kind(source, model)
    built, opened = floating_dtype(model), FactorySource(source, model, ())
    if weights is None:
        check_model(model, source)
        opened.has_weights = _has_numbers(model)
    else:
        opened = with_weights(opened, weights, key)
    if inputs is None:
        inputs = _example_inputs(source, factory, model, module)
    opened.inputs = inputs if floating_dtype(model) == built else _cast(inputs, model)
    return opened


def with_weights(checkpoint: Source, weights: Path, key: str | None = None) -> FactorySource:
    """The model of a checkpoint with the weights of a file, in the dtype of the file.

    What is opened so is written in the layout of that file. The model is shared, and used up.
    `key` is as for `open_factory`.
    """
    model, built = checkpoint.model, floating_dtype(checkpoint.model)
    path = _weights_file(weights)
    file, tensors = open_weights(path, model.state_dict().keys(), key)
    names = assign(model, tensors, str(path))
    check_model(model, str(path))
    same = floating_dtype(model) == built  # or the weights of the file have another precision
    return FactorySource(
        checkpoint.label, model, checkpoint.inputs if same else _cast(checkpoint.inputs, model),
        [path, path.parent] if path.name.endswith(INDEX) else [path], _has_numbers(model),
        checkpoint.fixed_mode, [*file.notes], file, names,
    )  # fmt: skip


def _has_numbers(model: torch.nn.Module) -> bool:
    return not any(t.device.type == "meta" for t in model.state_dict().values())


def _weights_file(path: Path) -> Path:
    if path.is_dir():
        found = [*sorted(path.glob(f"*{INDEX}")), *sorted(path.glob("*.safetensors"))]
        if found:
            return found[0]
    return require_file(path)


def _import(source: str) -> tuple[Any, Any]:
    place, _, name = source.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise CheckpointError(
            source, f"importing {place!r} stopped with {first_line(error)}", _PLACE,
            "Check the spelling, or run the command from the folder that holds the package",
        ) from error  # fmt: skip
    factory = module
    for part in name.split("."):
        if not hasattr(factory, part):
            known = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"][:6]
            raise CheckpointError(
                source, f"{place!r} has no {name!r}", _PLACE,
                f"The module has {', '.join(known)}" if known else "The module has no functions",
            )  # fmt: skip
        factory = getattr(factory, part)
    return factory, module


def _build(source: str, factory: Any) -> torch.nn.Module:
    expected = "a function without arguments that returns a torch.nn.Module"
    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        raise CheckpointError(
            source, f"it is a {type(factory).__name__}", expected, "Write a small function"
        )
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise CheckpointError(
            source, f"the factory stopped with {first_line(error)}", expected,
            "Give its arguments default values, or write a small function that calls it",
        ) from error  # fmt: skip
    if not isinstance(model, torch.nn.Module):
        raise CheckpointError(
            source, f"the factory returned a {type(model).__name__}", expected,
            "Return the model itself",
        )  # fmt: skip
    return model


def _check_kind(source: str, model: torch.nn.Module) -> None:
    """Refuse modules that do not compute in Python, tensor by tensor."""
    expected = "a torch.nn.Module that can be traced, with parameters of numbers"
    if isinstance(model, torch.jit.ScriptModule):
        raise CheckpointError(
            source, "the factory returned a TorchScript module, whose code cannot be traced",
            expected, "Return the module before torch.jit.script or torch.jit.trace",
        )  # fmt: skip
    for name, module in model.named_modules():
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
            raise CheckpointError(
                source, f"the module {name or 'itself'!r} is quantised ({type(module).__name__})",
                expected, "Return the model before quantisation",
            )  # fmt: skip
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        check_kind(name, tensor, source)


def _example_inputs(source: str, factory: Any, model: Any, module: Any) -> Inputs:
    for owner in (model, factory, module):
        try:
            found = getattr(owner, "example_inputs", None)
            found = found() if callable(found) else found
        except (Exception, SystemExit) as error:
            raise CheckpointError(
                f"{source}.example_inputs", f"it stopped with {first_line(error)}",
                "a tuple, a dict of keyword inputs, or a function without arguments",
                "Correct it, or give --inputs",
            ) from error  # fmt: skip
        if found is not None:
            return dict(found) if isinstance(found, Mapping) else _as_tuple(found)
    raise CheckpointError(
        source, "no example inputs", "something to call the model with",
        "Give --inputs, for example 2x3x32x32 or 2x7:int64<50257 (batch 2, then the sizes of one "
        "example); or set factory.example_inputs",
    )  # fmt: skip


def _cast(inputs: Inputs, model: torch.nn.Module) -> Inputs:
    """Floating inputs in the precision of a model."""
    dtype = floating_dtype(model)

    def one(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    return pytree.tree_map(one, inputs)


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)
