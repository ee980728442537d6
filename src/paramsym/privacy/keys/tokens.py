"""Orders of tokens: models that read integers, with the vocabulary numbered anew.

    f(π(x); g·θ) = g·f(x; θ),   (g·E)[π(k)] = E[k]

A table of embeddings is read by number, so that no derivation moves its rows while the numbers
stay. Let the numbers move: then the rows of every table that is read at them move along, and with
these what shares their units: the head that is tied to the table, its biases, and the logits. An
untied head has rows of its own; where its logits are freed, they take the same order, because the
targets are tokens.

What is proposed is read off one forward pass, and **whatever else the model does with the integers
refuses it**: a comparison with the number of a padding token, arithmetic, another table. Numbers at
generic weights then try the equation above, as for any symmetry.

**Held tokens.** The row of `padding_idx` gets no gradient in training, and the number of a token
that the model compares with is part of the model: both are held. An axis type can hold units at the
ends of an axis alone, so that all tokens between a held one and the nearer end are held with it;
most vocabularies have their special tokens there.

What that hides: the frequencies of the tokens, their order in the text and the distances between
rows of the tables are plain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from paramsym.algebra import Permutation
from paramsym.checking.ends import Ends
from paramsym.checking.generic import table_lengths
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.trial import Outputs, Trial, Unusable
from paramsym.lowering.builder import Builder
from paramsym.lowering.lower import lower
from paramsym.primitives import index as ix
from paramsym.primitives.index import Node
from paramsym.privacy.keys.readings import Reading, readings_of
from paramsym.recording.freed import named_arguments
from paramsym.recording.in_place import map_tensors, tensors_in
from paramsym.recording.record import Inputs, TraceError, record
from paramsym.recording.running import preserved, split_inputs
from paramsym.structure.action import act
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Fixed,
    Product,
    Sum,
    carried,
    parts_of,
    with_inside,
)
from paramsym.structure.feature import Feature
from paramsym.structure.interfaces import act_inputs
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

SMALL = 1_000_000  # parameters up to which the equation is tried in float64
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
_CALLS = 3  # forward passes on tokens drawn anew


def with_tokens(
    symmetry: ParameterSymmetry,
    model: torch.nn.Module,
    example_inputs: Inputs,
    name: str | Sequence[str] = "input_ids",
    outputs: Outputs = None,
    held: Collection[int] = (),
) -> ParameterSymmetry:
    """A symmetry with the order of the tokens that some integer inputs hold.

    Args:
        symmetry: of the model, from `find_symmetry`. With its logits freed, an untied head follows
            the order of the tokens, so that targets do; a tied one follows it in any case.
        model: is only read.
        example_inputs: as for `find_symmetry`.
        name: the integer input, or several that hold tokens of one vocabulary: `input_ids`, and
            `decoder_input_ids` of a model with both.
        outputs: as for `find_symmetry`.
        held: tokens that keep their numbers, besides those of `padding_idx`; with each of them all
            between it and the nearer end of the vocabulary.

    Returns:
        The symmetry with one more space, `tokens`, of the group `Permutation`. The inputs move by
        `act_inputs` and what they hold by `renumber`; logits that go along are among its `outputs`.

    Raises:
        TraceError: no table is read at the inputs, the model computes with the integers, rows of a
            table are read otherwise, or the equation above does not hold on numbers.
        ValueError: an input is missing or holds no integers, or no two tokens are free.
    """
    caller = f"with_tokens(symmetry, {type(model).__name__}, name={name!r})"
    names = [name] if isinstance(name, str) else [*name]
    args, kwargs = map_tensors(torch.clone, split_inputs(example_inputs))  # told apart by identity
    given = named_arguments(model, args, kwargs)
    _require_integers(caller, names, given)
    graph = record(model, kwargs or args, outputs)
    build = lower(graph)
    leaves = tensors_in((args, kwargs))
    at = [next(k for k, leaf in enumerate(leaves) if leaf is given[n]) for n in names]
    entered = [value for value in build.graph.values if value.kind == "input"]
    for k in at:
        if entered[k].name in graph.decided:
            raise TraceError(
                f"{caller}: the integers decide what is computed at "
                f"{graph.decided[entered[k].name]}, and such as only index tables were expected: "
                "other numbers would select otherwise. Leave the tokens of this model in their "
                "order, or give what they decide as an input of its own."
            )
    readings = readings_of(build, [entered[k] for k in at], held, caller)
    units = _units(caller, build, readings)
    fixed = {*held, *(r.padding for r in readings if r.padding is not None)}
    space, axis = _axis(caller, symmetry, next(iter(units)).size, fixed)
    found = _with_axes(symmetry, build, units, space, axis)
    found = replace(found, inputs={**found.inputs, **dict.fromkeys(names, Feature(axis))})
    with preserved(model, False):
        try:
            trial = _trial(model, found, kwargs or args, outputs, table_lengths(graph, model))
        except Unusable as error:
            raise TraceError(
                f"{caller}: nothing could be tried on numbers ({error}), and a model with outputs "
                "that can be compared was expected. Choose such outputs with outputs=…."
            ) from error
        found = _logits(found, [*trial.named], build, units, space, axis)
        _require_proved(caller, trial, found, space, names)
    return found


def renumber(
    symmetry: ParameterSymmetry, element: Any, integers: torch.Tensor, name: str | None = None
) -> torch.Tensor:
    """Integers that hold tokens, as an element numbers these: x ↦ π(x).

    Args:
        symmetry: from `with_tokens`, or a restriction of it.
        element: the one that moves the parameters.
        integers: tokens, as inputs or as targets; marks outside the vocabulary (−100) stay.
        name: the input whose tokens they are, where there are several vocabularies.

    Raises:
        ValueError: the symmetry orders no tokens, or those of several vocabularies and `name` does
            not say which.
    """
    found = {n: f for n, f in symmetry.inputs.items() if orders_units(symmetry, f.type)}
    chosen = found if name is None else {n: f for n, f in found.items() if n == name}
    if len({f.type for f in chosen.values()}) != 1:
        raise ValueError(
            f"renumber(symmetry, g, integers, name={name!r}): the symmetry orders the tokens of "
            f"{[*found]}, and one vocabulary was expected. Make it with with_tokens(…), and name "
            "the input whose tokens these are."
        )
    only = next(iter(chosen))
    return act_inputs(replace(symmetry, inputs={only: chosen[only]}), element, integers)


def orders_units(symmetry: ParameterSymmetry, axis: AxisType) -> bool:
    """Whether an axis carries orders alone, which integers can follow."""
    parts = axis.terms if isinstance(axis, Sum) else (axis,)
    free = [part for part in parts if not isinstance(part, Fixed)]
    groups = [
        symmetry.spaces[s].group for p in free if isinstance(p, Carried) for s, _ in p.factors
    ]
    return len(groups) == len(free) > 0 and all(type(group) is Permutation for group in groups)


# -- what is proposed ------------------------------------------------------------------------------


def _require_integers(caller: str, names: Sequence[str], given: Mapping[str, Any]) -> None:
    for name in names:
        found = given.get(name)
        if not isinstance(found, torch.Tensor) or found.dtype not in (torch.int64, torch.int32):
            what = found.dtype if isinstance(found, torch.Tensor) else type(found).__name__
            raise ValueError(
                f"{caller}: the input {name!r} is {what if name in given else 'missing'}, and "
                f"integers that number tokens were expected; the inputs are {[*given]}. Name the "
                "input as the parameters of forward do, and pass an example of it."
            )


def _units(caller: str, build: Builder, readings: Iterable[Reading]) -> dict[Node, str]:
    """The rows of all tables that are read, as units of the network, with the place."""
    found: dict[Node, str] = {}
    for reading in readings:
        node = ix.resolve(build.tensor(reading.table).axes[reading.dim])
        if node.kind != "leaf" or not build.tensor(reading.table).moves:
            raise TraceError(
                f"{caller}: the table of shape {reading.table.shape} that is read at "
                f"{reading.where} has rows that the model also reads by number, or is no function "
                "of its parameters. A table whose rows are all read at the tokens alone was "
                "expected. Leave the tokens of this model in their order."
            )
        found[node] = reading.where
    sizes = {node.size for node in found}
    if len(sizes) != 1:
        what = f"tables of {sorted(sizes)} rows are" if sizes else "no table that counts is"
        raise TraceError(
            f"{caller}: {what} read at these integers, and tables of one length were expected, "
            "which is the size of the vocabulary. Name the inputs that hold tokens of one "
            "vocabulary, and call with_tokens again for those of another."
        )
    return found


def _axis(
    caller: str, symmetry: ParameterSymmetry, size: int, held: Collection[int]
) -> tuple[Space, AxisType]:
    """The space of the tokens that are free, and the type of an axis of the whole vocabulary."""
    outside = sorted(k for k in held if not 0 <= k < size)
    first = max((k + 1 for k in held if k + 1 <= size - k), default=0)
    last = max((size - k for k in held if k + 1 > size - k), default=0)
    free = size - first - last
    if outside or free < 2:
        raise ValueError(
            f"{caller}: the tokens {sorted(held)[:8]} are held, with all between them and the "
            f"nearer end, and {max(free, 0)} of {size} are left; tokens of the vocabulary were "
            "expected, and at least two that are free. Number the special tokens first or last."
        )
    taken, number = "tokens", 2
    while taken in symmetry.spaces:
        taken, number = f"tokens.{number}", number + 1
    why = f"{size - free} tokens are held" if held else "tokens are told apart"
    space = Space(taken, Permutation(free), (), why)
    terms = [Fixed(first)] * (first > 0) + [carried(taken)] + [Fixed(last)] * (last > 0)
    return space, terms[0] if len(terms) == 1 else Sum(tuple(terms))


def _with_axes(
    symmetry: ParameterSymmetry,
    build: Builder,
    units: Collection[Node],
    space: Space,
    axis: AxisType,
) -> ParameterSymmetry:
    """The symmetry in which every axis of a parameter that counts these units has this type."""
    signature, reasons = dict(symmetry.signature), dict(symmetry.reasons)
    for name, value in {**build.graph.parameters, **build.graph.buffers}.items():
        if name != value.name or name not in signature or name in build.graph.held:
            continue
        places = [k for k, node in enumerate(build.tensor(value).axes) if ix.resolve(node) in units]
        signature[name] = tuple(
            _placed(old, axis, value.shape[k], name) if k in places else old
            for k, old in enumerate(signature[name])
        )
        if name in reasons:
            reasons[name] = tuple(
                "" if k in places else why for k, why in enumerate(reasons[name])
            )  # fmt: skip
    spaces = {**symmetry.spaces, space.name: space}
    return replace(symmetry, spaces=spaces, signature=signature, reasons=reasons)


def _placed(old: AxisType, axis: AxisType, size: int, name: str) -> AxisType:
    """The type of an axis whose units were told apart, with the order of the tokens instead."""
    if old == Fixed(size):
        return axis
    if isinstance(old, Product) and Fixed(size) in old.factors:
        return Product(tuple(axis if part == Fixed(size) else part for part in old.factors))
    raise TraceError(
        f"with_tokens(symmetry, …): {name!r} has an axis of one entry for each token whose type is "
        f"'{old}', and {size} entries that are told apart were expected there. Find the symmetry "
        "of this model anew, with the same outputs, and call with_tokens once for each vocabulary."
    )


def _logits(
    symmetry: ParameterSymmetry,
    names: Sequence[str],
    build: Builder,
    units: Collection[Node],
    space: Space,
    axis: AxisType,
) -> ParameterSymmetry:
    """The symmetry whose outputs follow the tokens: those that count their units, and freed ones
    of one number for each token."""
    size = axis.size({space.name: space.size})
    outputs = dict(symmetry.outputs)
    for name, value in zip(names, build.graph.outputs, strict=True):
        nodes = build.tensor(value).axes
        places = [k for k, node in enumerate(nodes) if ix.resolve(node) in units]
        if places:
            at = places[-1] - len(nodes)
            old = outputs.get(name, Feature(Fixed(size), at))
            outputs[name] = Feature(_placed(old.type, axis, size, name), at)
    found = replace(symmetry, outputs=outputs)
    for name, feature in symmetry.outputs.items():
        own = feature.type
        if outputs[name] is feature and isinstance(own, Carried) and len(own.factors) == 1:
            head = symmetry.spaces[own.factors[0][0]]
            if head.size == size and _stands_alone(found, head.name):
                found = _following(found, head.name, axis)
    return found


def _stands_alone(symmetry: ParameterSymmetry, head: str) -> bool:
    """Whether a space has no copies, and acts nowhere beside another one or in a frame."""
    typed = [*symmetry.signature.values(), *symmetry.interfaces.values()]
    carrying = [c for axes in typed for a in axes for c in parts_of(a) if head in dict(c.factors)]
    alone = all(len(c.factors) == 1 and not c.frame for c in carrying)
    return alone and not any(head in s.over or s.over and s.name == head
                             for s in symmetry.spaces.values())  # fmt: skip


def _following(symmetry: ParameterSymmetry, head: str, axis: AxisType) -> ParameterSymmetry:
    """The symmetry in which a space has given way to the tokens wherever it acted."""
    size = symmetry.spaces[head].size
    smaller = symmetry.restrict(groups={head: Permutation(size)})

    def typed(old: AxisType) -> AxisType:
        made = with_inside(old, typed)
        if isinstance(made, Sum):
            return Sum(tuple(part for term in made.terms for part in _terms(term)))
        return axis if isinstance(made, Carried) and made.factors[0][0] == head else made

    def features(found: Mapping[str, Feature]) -> dict[str, Feature]:
        return {n: replace(f, type=typed(f.type)) for n, f in found.items()}

    others = {n: s for n, s in smaller.spaces.items() if n != head}
    shifts = tuple(replace(s, space="") if s.space == head else s for s in smaller.shifts)
    return replace(
        smaller,
        spaces=others,
        signature={n: tuple(map(typed, axes)) for n, axes in smaller.signature.items()},
        inputs=features(smaller.inputs),
        outputs=features(smaller.outputs),
        shifts=shifts,
    )


def _terms(axis: AxisType) -> Iterator[AxisType]:
    yield from axis.terms if isinstance(axis, Sum) else (axis,)


# -- and tried on numbers --------------------------------------------------------------------------


def _trial(
    model: torch.nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    outputs: Outputs,
    lengths: dict[int, int],
) -> Trial:
    """The model at generic weights, over tokens drawn anew."""
    small = sum(p.numel() for p in model.parameters()) <= SMALL
    dtype = torch.float64 if small else torch.float32
    generator = torch.Generator().manual_seed(0)
    state = generic_state(model, symmetry.offsets, Source(generator, dtype, pooled=not small))
    calls = _CALLS if small else 1
    return Trial(model, state, inputs, lengths, outputs, False, generator, calls=calls)


def _require_proved(
    caller: str, trial: Trial, symmetry: ParameterSymmetry, space: Space, names: Sequence[str]
) -> None:
    """Raise a `TraceError` unless f(π(x); g·θ) = g·f(x; θ) for two orders that move every token."""
    tolerance = TOLERANCES[trial.dtype]
    turned = torch.arange(space.size).roll(1)
    mixed = torch.randperm(space.size, generator=torch.Generator().manual_seed(1))
    for order in (turned, mixed):
        element = symmetry.element({space.name: order})
        moved = act(symmetry, element, trial.state)
        try:
            error = trial.error(moved, Ends(symmetry, element, trial.state, moved), tolerance)
        except Exception as stopped:
            raise TraceError(
                f"{caller}: with the vocabulary numbered anew the model stops with "
                f"{type(stopped).__name__}: {str(stopped)[:200]}. One that runs at any tokens was "
                "expected. Hold the tokens that it treats by themselves: held=(…)."
            ) from stopped
        if not error <= tolerance:
            raise TraceError(
                f"{caller}: with the vocabulary numbered anew, in {[*names]} and in the tables "
                f"that are read at them, an output is another one by {error:.1e} of its size at "
                f"generic weights, and at most {tolerance:.0e} was expected. The model treats some "
                "token by its number: hold it by held=(…), or name the further inputs that hold "
                "tokens (decoder_input_ids); labels are better compared outside of the model."
            )
