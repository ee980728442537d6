"""Twins: a small model of the same architecture, audited in the place of one that is too large.

What is certified of the twin is proved of the twin alone. That its symmetry is the large model's
with other sizes is derived for both, and compared by `same_structure`; that nothing else leaves the
function of the large model unchanged is then evidence, and no proof.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.checking.find import derived
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.recording.record import Inputs, record
from paramsym.structure.counting import Count, generic_dimension
from paramsym.structure.same_structure import difference_of_sets, differences
from paramsym.structure.symmetry import ParameterSymmetry

Twin = torch.nn.Module | tuple[torch.nn.Module, Inputs]
_SHOWN = 3  # differences in an error


class NotATwin(ValueError):
    """A model was given as the twin of another, and its symmetry is not the other's."""


@dataclass(frozen=True)
class FullSize:
    """The large model that an audit of its twin speaks for.

    `redundant` counts its redundant directions at generic weights of its shapes, and `twin` names
    the class of the twin.
    """

    model: str
    parameters: int
    redundant: Count

    def __str__(self) -> str:
        return (
            f"the same structure at full size ({self.parameters:,} parameters, {self.redundant} "
            "redundant directions): evidence, not proof"
        )


@dataclass(frozen=True)
class Structure:
    """What a model and its twin are compared by.

    `operators` are the names of the functions that the forward pass calls, and `ranks` the number
    of axes of each parameter.
    """

    symmetry: ParameterSymmetry
    operators: frozenset[str]
    ranks: Mapping[str, int]


def structure_of(
    model: torch.nn.Module,
    inputs: Inputs,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    symmetry: ParameterSymmetry | None = None,
    like: Structure | None = None,
) -> Structure:
    """Derive what a model is compared by; it may be on the meta device.

    Where something of the model that it is to be like fell at other lengths, its own is tried
    there, too: of models on the meta device that is not known.
    """
    elsewhere = like is None or bool(like.symmetry.checked and like.symmetry.checked.lengths)
    graph = record(model, inputs, outputs, training)
    named = model.named_parameters(remove_duplicate=False)
    return Structure(
        symmetry or derived(model, inputs, outputs, training, elsewhere=elsewhere),
        frozenset(call.name for call in graph.calls),
        {name: parameter.ndim for name, parameter in named},
    )


def differences_between(large: Structure, twin: Structure) -> tuple[str, ...]:
    """What keeps one model from being another with other sizes, by name; nothing if it is."""
    called = "the model", "the twin"
    operators = difference_of_sets("operators", {*large.operators}, {*twin.operators}, called)
    ranks = large.ranks, twin.ranks
    return (*operators, *differences(large.symmetry, twin.symmetry, ranks, called))


def require_twin(
    model: torch.nn.Module, large: Structure, twin: torch.nn.Module, small: Structure
) -> FullSize:
    """The large model in numbers, once its twin is accepted.

    Raises:
        NotATwin: the symmetry of one is not that of the other; the message names the differences.
    """
    found = differences_between(large, small)
    if found:
        more = f"; and {len(found) - _SHOWN} more differences" if len(found) > _SHOWN else ""
        raise NotATwin(
            f"audit(model={type(model).__name__}, twin={type(twin).__name__}): the symmetry of the "
            f"twin is not that of the model with other sizes: {'; '.join(found[:_SHOWN])}{more}. A "
            "model of the same class and the same configuration was expected, with smaller sizes "
            "and fewer repeated layers. Build the twin like the model, and keep its biases, ties, "
            "activations and the grouping of its heads."
        )
    count = sum(parameter.numel() for parameter in model.parameters())
    state = dict(model.state_dict())
    return FullSize(type(model).__name__, count, generic_dimension(large.symmetry, state))


def pair_of(model: torch.nn.Module, inputs: Inputs, twin: Twin) -> tuple[torch.nn.Module, Inputs]:
    """The twin with its inputs: those of the model if it was given alone."""
    if isinstance(twin, torch.nn.Module):
        return twin, inputs
    if isinstance(twin, tuple) and len(twin) == 2 and isinstance(twin[0], torch.nn.Module):
        return twin
    raise TypeError(
        f"audit(model={type(model).__name__}, twin={type(twin).__name__}): a module was expected, "
        "or a pair of a module and its inputs. Build a small model of the same class, and give "
        "twin=(small, small_inputs) where it takes other inputs."
    )


def at_generic_weights(
    twin: torch.nn.Module, symmetry: ParameterSymmetry, generator: torch.Generator
) -> torch.nn.Module:
    """A copy of a twin at generic weights: it has no weights of its own that would matter.

    Fresh ones, with biases of zero and gains of one, leave more unchanged than trained ones do.

    Raises:
        ValueError: it is on the meta device, so that its buffers have no numbers.
    """
    if any(t.device.type == "meta" for t in (*twin.parameters(), *twin.buffers())):
        raise ValueError(
            f"audit(twin={type(twin).__name__}): the twin is on the meta device, without numbers, "
            "but a model in memory was expected: its buffers are read. Build it outside "
            "torch.device('meta'); any weights will do."
        )
    made = copy.deepcopy(twin).double()
    drawn = generic_state(made, symmetry.offsets, Source(generator, torch.float64, pooled=False))
    with torch.no_grad():
        for name, tensor in (*made.named_parameters(), *made.named_buffers()):
            tensor.copy_(drawn[name])
    return made
