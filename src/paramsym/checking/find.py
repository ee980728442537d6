"""`find_symmetry`: the thin door between a model and its parameter symmetry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from paramsym.arguments import module_of
from paramsym.checking.generic import table_lengths
from paramsym.checking.refute import refute
from paramsym.recording.freed import Freed
from paramsym.recording.record import Inputs, record
from paramsym.recording.running import collected_young, uncollected
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer


def find_symmetry(
    model: torch.nn.Module,
    example_inputs: Inputs,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    check: bool = True,
    free_inputs: Freed = None,
    free_outputs: Freed = None,
) -> ParameterSymmetry:
    """Find every known way in which the parameters of a model can change without its function.

    Inputs and outputs stay, unless they are freed: then they may change basis along their feature
    axis, f(g·x; g·θ) = g·f(x; θ), and a layer that reads an input has a basis on either side.

    The model is run once on fake tensors; no weight is read, and models on the meta device work
    as well. What has no rule is held fixed and listed in `unknown` with its place in the model.
    Then the result is tried on numbers, at generic weights that are drawn by shape; what fails
    there is taken out, and `checked` reports it. So is what fails at shorter or longer inputs with
    which a small model runs: a sum over a set, say, counts its elements.

    Where inputs, buffers or constants decide what is computed (`lengths.tolist()`, `x[mask]`,
    `if mask.any():`), the example's own numbers are used. What is found holds for all inputs that
    *select likewise*: from which the same lengths, places and branches come out. Such inputs stay
    as they are where others are drawn afresh, and buffers that decide are held. Parameters must
    not decide, nor numbers that are drawn. A forward pass that keeps something from call to call,
    or that does not repeat, is said to in `checked`.

    Args:
        model: any `torch.nn.Module`, or the program read from a `.pt2` file.
        example_inputs: a tuple of positional inputs, or a dict of keyword arguments. Distinct
            prime sizes of batch and sequence avoid accidental equalities.
        outputs: from what the model returns to the tensors whose values count; by default every
            floating tensor except caches.
        training: trace in training mode, where batch statistics absorb scales. Buffers that the
            forward pass writes then move as what is written: running means as the features,
            running variances as their squares.
        check: try the result by finite moves before it is returned; see `symmetry.checked`.
        free_inputs: inputs that may change basis, by the names of the parameters of `forward`: a
            mapping to their feature axes, or one name or several for the last axis; True frees all
            that float. They move by `act_inputs`.
        free_outputs: outputs likewise, named by how they are reached: `logits`, `0`, or `output`
            for a tensor that is returned by itself. They move by `act_outputs`.

    Returns:
        The derived `ParameterSymmetry`. The model keeps its mode, dtype and state.

    Raises:
        TraceError: the model or its inputs are of a kind that is refused (scripted, quantised,
            uninitialised, without parameters or entries), what the forward pass does depends on
            the numbers of a parameter, on drawn ones or on such that do not exist (inputs on the
            meta device), what it returns holds no floating tensor that is seen, or
            what is to be freed is unknown, is no floating-point tensor, or has no such axis.
    """
    return derived(
        model, example_inputs, outputs, training, check, free_inputs, free_outputs, elsewhere=True
    )


def derived(
    model: torch.nn.Module, inputs: Inputs, outputs: Callable[[Any], Any] | None = None,
    training: bool = False, check: bool = True, free_inputs: Freed = None,
    free_outputs: Freed = None, *, elsewhere: bool,
) -> ParameterSymmetry:  # fmt: skip
    """`find_symmetry`; `elsewhere` says whether what holds has to hold at other lengths as well."""
    model = module_of(model)
    with _numbers_exist(), collected_young():
        with uncollected():
            graph = record(model, inputs, outputs, training)
            if free_inputs or free_outputs:
                opened = record(model, inputs, outputs, training, free_inputs, free_outputs)
                symmetry = infer(opened, graph)
            else:
                symmetry = infer(graph)
        if not check:
            return symmetry
        lengths = table_lengths(graph, model)
        return refute(model, symmetry, inputs, outputs, training, lengths, elsewhere)


def _numbers_exist() -> AbstractContextManager[Any]:
    """Inside, new tensors have numbers, though the caller builds models on the meta device."""
    on_meta = torch.get_default_device().type == "meta"
    return torch.device("cpu") if on_meta else nullcontext()
