"""Programs written by `torch.export.save` (`.pt2`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.source import Inputs, Source, check_model
from paramsym.checkpoints.tensors import require_file
from paramsym.formats.programs import load_program


class Program(torch.nn.Module):
    """An exported program as a module: same names, called with the original arguments.

    The module that `ExportedProgram.module()` makes refuses `eval()` and checks its arguments by
    guards that fake tensors fail; here the mode is that of the export and stays what it was.
    """

    def __init__(self, graph: torch.nn.Module, names: tuple[str, ...] = ()):
        super().__init__()
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[table] = graph.__dict__[table]
        self.__dict__["_source"] = (graph, names)

    @property
    def code(self) -> str:
        """The text of what is computed."""
        return str(self.__dict__["_source"][0].code)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        graph, names = self.__dict__["_source"]
        given = [*args, *(kwargs.pop(name) for name in names[len(args) :] if name in kwargs)]
        return graph.forward(*given, **kwargs)

    def train(self, mode: bool = True) -> Program:
        return self

    def __deepcopy__(self, memo: dict) -> Program:
        graph, names = self.__dict__["_source"]
        return Program(copy.deepcopy(graph, memo), names)


class ProgramSource(Source):
    """A `.pt2` file; it is written back as the same program with other weights."""

    def save(self, draft: Path, state: Mapping[str, torch.Tensor]) -> None:
        program = load_program(self.files[0])
        same: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for name, tensor in program.state_dict.items():
                done = same.setdefault(tensor.data_ptr(), state[name])
                tensor.copy_(done)
        torch.export.save(program, draft)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".pt2",)

    def reload(self, draft: Path) -> torch.nn.Module:
        return _module(load_program(draft), positional_names(self.inputs))


def open_program(path: Path, inputs: Inputs | None) -> ProgramSource:
    """Read a program; its example inputs are those that it was exported with."""
    program = load_program(require_file(path))
    if inputs is None:
        if program.example_inputs is None:
            raise CheckpointError(
                str(path), "the program carries no example inputs", "inputs to trace it with",
                "Give --inputs, for example --inputs 2x3x32x32",
            )  # fmt: skip
        args, kwargs = program.example_inputs
        inputs = _merged(program, tuple(args), dict(kwargs))
    model = _module(program, positional_names(inputs))
    check_model(model, str(path))
    return ProgramSource(path.name, model, inputs, [path], fixed_mode=True)


def _merged(program, args: tuple, kwargs: dict[str, Any]) -> Inputs:
    """Positional inputs alone as a tuple; mixed ones all by name."""
    if not kwargs:
        return args
    return {**{f"positional_{k}": value for k, value in enumerate(args)}, **kwargs}


def positional_names(inputs: Inputs) -> tuple[str, ...]:
    """The names that stand for positional inputs among keywords."""
    return tuple(n for n in inputs if str(n).startswith("positional_")) \
        if isinstance(inputs, dict) else ()  # fmt: skip


def _module(program: Any, names: tuple[str, ...]) -> Program:
    graph = program.module(check_guards=False)
    _tie(graph)
    return Program(graph, names)


def _tie(graph: torch.nn.Module) -> None:
    """Parameters that an export found tied are written once and read as two; tie them again."""
    first: dict[tuple, torch.nn.Parameter] = {}
    for module in graph.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.numel():
                where = (parameter.data_ptr(), parameter.shape, parameter.stride())
                module._parameters[name] = first.setdefault(where, parameter)
