"""The lowered graph computes what the model computes, or says where it does not.

A model is read into a graph of calls, and the graph is lowered to primitives between typed tensors,
of which everything else is derived. Here both are evaluated on numbers: the calls as they were
recorded, and the primitives from parameters, inputs and data on, with every view read off the
layout of its owner. A rule that states the wrong function and a view that is misread show as a
number, at the first primitive that differs. That a primitive computes the right function does not
make its *claims* right, so that each of these is tried as well (`paramsym.checking.claims`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.arguments import module_of
from paramsym.checking.claims import check_claims
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.lowering.builder import Builder
from paramsym.lowering.lower import lower
from paramsym.primitives import NotComputed, Primitive
from paramsym.primitives.numbers import can_run, laid_out
from paramsym.primitives.tensor import Tensor
from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.precision import converted, converted_inputs, functional, lifted
from paramsym.recording.record import Inputs, record
from paramsym.recording.replay import run_call

Numbers = dict[int, torch.Tensor]


@dataclass(frozen=True)
class Lowering:
    """How far the primitives of a model reproduce its numbers.

    `outputs` are the outputs that were compared, of which `worst` is the largest relative error;
    `computed` counts the primitives that were evaluated, and `not_computed` names the others: they
    stand for many steps, draw numbers, are unknown, or read what such a primitive makes.
    """

    outputs: int
    worst: float
    computed: int
    not_computed: tuple[str, ...]


def assert_lowering(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    tolerance: float | None = None,
) -> Lowering:
    """Assert that the primitives to which a model is lowered compute what the model computes.

    This is for people who teach an operator. Everything is evaluated in float64 at generic weights
    (the model's own where these give no finite output). A primitive whose numbers are not known,
    such as the one step that stands for a recurrent layer, is listed in the result, and what
    follows goes on with the model's numbers.

    Args:
        model: only read.
        inputs: a tuple or a dict of keyword arguments; they are used as given.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: evaluate the training mode.
        tolerance: of the error of a tensor relative to its largest entry; 1e-10 by default.

    Returns:
        What was compared, and what could not be.

    Raises:
        AssertionError: a primitive computes other numbers than the call that it stands for, or
            what it claims of its function does not hold; the first one is named, with its place.
        ValueError: the model has no weights.
    """
    __tracebackhide__ = True
    model = module_of(model)
    limit = 1e-10 if tolerance is None else tolerance
    title = f"assert_lowering(model={type(model).__name__})"
    graph = record(model, inputs, outputs, training)
    build = lower(graph)
    args, kwargs = converted_inputs(inputs, torch.float64)
    state, expected = _at_weights(model, build, args, kwargs, outputs, training)
    with _numeric():
        truth = _Recorded(graph, state, (args, kwargs))
        lowered = _Lowered(build, truth.known, limit, title)
        lowered.run_all()
        found = [lowered.output(value) for value in graph.outputs]
    size = max((_size(y) for y in expected), default=0.0)
    errors = [
        (error(y, made, size), k)
        for k, (y, made) in enumerate(zip(expected, found, strict=True)) if made is not None
    ]  # fmt: skip
    worst, at = max(errors, default=(0.0, 0))
    if not worst <= limit:
        raise AssertionError(
            f"{title}: output {at} of the lowered graph is off by {worst:.1e}, and at most "
            f"{limit:.1e} was expected, although every primitive agrees with the recorded call. "
            "The record differs from the model at the given inputs; does the forward pass depend "
            "on numbers, or on anything but its parameters, buffers and inputs?"
        )
    return Lowering(len(errors), worst, len(lowered.known), tuple(lowered.missing.values()))


def error(truth: torch.Tensor, made: torch.Tensor, size: float = 0.0) -> float:
    """The largest difference where the truth is finite, relative to its size or a larger one."""
    if truth.shape != made.shape:
        return float("inf")
    finite = truth.isfinite()
    if not bool(finite.any()):
        return 0.0
    kind = torch.promote_types(truth.dtype, torch.float64)
    truth, made = truth.to(kind), made.to(kind)
    difference = float((truth - made)[finite].abs().max())
    scale = max(_size(truth), size, torch.finfo(torch.float64).tiny)
    return difference / scale if difference == difference else float("inf")


def _size(x: torch.Tensor) -> float:
    entries = (x.double() if x.dtype == torch.bool else x)[x.isfinite()].abs()
    return float(entries.max()) if entries.numel() else 0.0


@contextmanager
def _numeric() -> Iterator[None]:
    """In float64, without gradients, and with the random numbers that the model draws."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), lifted():
        torch.manual_seed(0)
        yield


def _at_weights(
    model: torch.nn.Module, build: Builder, args: tuple, kwargs: dict[str, Any], outputs: Any,
    training: bool,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """Weights at which the outputs are finite, and these outputs."""
    own = converted(model, torch.float64)
    generator = torch.Generator().manual_seed(0)
    source = Source(generator, torch.float64, pooled=sum(t.numel() for t in own.values()) > 1 << 20)
    offsets = {name: constant for name, (_, constant) in build.shifted.items()}
    found: tuple[dict[str, torch.Tensor], list[torch.Tensor]] = {}, []
    for state in (
        generic_state(model, offsets, source), generic_state(model, offsets, source, positive=True),
        own,
    ):  # fmt: skip
        given = pytree.tree_map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = state, functional(model, state, given[0], given[1], outputs, training)
        if all(bool(y.isfinite().all()) for y in found[1]):
            break
    return found


class _Recorded:
    """The numbers of every value of a graph, call by call; some are not known."""

    def __init__(self, graph: Graph, state: dict[str, torch.Tensor], inputs: Any):
        self.graph = graph
        self.known: Numbers = {}
        for value in graph.values:
            if value.name in state:
                self._enter(value, state[value.name])
            elif value.kind == "constant" and value.data is not None:
                self._enter(value, value.data)
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for value in graph.values:
            if value.kind == "input":
                self._enter(value, leaves[int(value.name.removeprefix("input"))])
        for call, following in zip(graph.calls, [*graph.calls[1:], None], strict=True):
            if can_run(call) and all(self._find(v) for v in call.operands):
                self._run(call, following is not None and not can_run(following))
        for value in graph.values:
            self._find(value)

    def _run(self, call: Call, writes: bool) -> None:
        known = {v.id: self.known[v.id] for v in call.operands}
        if writes:  # to an argument: the record has a value of its own for that
            known = {at: x.clone() for at, x in known.items()}
        run_call(call, known)
        for value in call.outputs:
            self._enter(value, known[value.id])

    def _enter(self, value: Value, numbers: torch.Tensor) -> None:
        """Numbers in the layout that the trace has seen: views depend on it."""
        numbers = numbers.detach()
        layout = tuple(numbers.shape), tuple(numbers.stride()), numbers.storage_offset()
        wanted = value.shape, value.strides, value.offset
        if layout != wanted and numbers.numel():
            if layout[0] != wanted[0]:  # the record says otherwise: no number for it
                return
            numbers = torch.as_strided(laid_out(numbers, wanted), *wanted)
        self.known[value.id] = numbers

    def _find(self, value: Value) -> bool:
        """Whether the numbers of a value are known; a window is read off its owner."""
        if value.id not in self.known and value.storage in self.known and value.call is None:
            owner = self.graph.values[value.storage]
            layout = owner.shape, owner.strides, owner.offset
            storage = laid_out(self.known[owner.id], layout)
            window = value.shape, value.strides, value.offset
            self.known[value.id] = torch.as_strided(storage, *window)
        return value.id in self.known


class _Lowered:
    """The numbers of typed tensors, from the primitives that write them."""

    def __init__(self, build: Builder, truth: Numbers, limit: float, title: str):
        self.build, self.truth, self.limit, self.title = build, truth, limit, title
        self.numbers: Numbers = {}  # by the serial of an owner
        self.storages: Numbers = {}
        self.known: set[int] = set()  # primitives that were evaluated
        self.missing: dict[int, str] = {}  # those that were not

    def run_all(self) -> None:
        """Evaluate every primitive, in order."""
        for op in list(self.build.ops):
            if id(op) not in self.known and id(op) not in self.missing:
                self._run(op)

    def output(self, value: Value) -> torch.Tensor | None:
        """What an output of the model is by the primitives; None if these cannot tell."""
        tensor = self.build.tensor(value)
        producer = tensor.owner.producer
        if producer is not None and id(producer) in self.missing:
            return None
        try:
            return self.number(tensor)
        except NotComputed:
            return None

    def number(self, tensor: Tensor) -> torch.Tensor:
        """The numbers of a typed tensor. Raises `NotComputed` where there are none."""
        owner = tensor.owner
        if owner.serial not in self.numbers:
            try:
                self.numbers[owner.serial] = self._made(owner)
            except NotComputed:
                if tensor.value is None or tensor.value.id not in self.truth:
                    raise
                return self.truth[tensor.value.id]
        if owner is tensor:
            return self.numbers[owner.serial]
        if owner.serial not in self.storages:
            self.storages[owner.serial] = laid_out(self.numbers[owner.serial], owner.layout)
        return torch.as_strided(self.storages[owner.serial], *tensor.layout)

    def _made(self, tensor: Tensor) -> torch.Tensor:
        if tensor.producer is not None:
            if id(tensor.producer) not in self.missing:
                self._run(tensor.producer)
            if tensor.serial not in self.numbers:
                raise NotComputed(tensor.producer.title)
            return self.numbers[tensor.serial]
        if tensor.value is not None and tensor.value.id in self.truth:
            return self.truth[tensor.value.id]
        if tensor.recipe is not None:
            function, sources = tensor.recipe
            return function(*map(self.number, sources))
        if tensor.zero:
            return torch.zeros(tensor.shape)
        raise NotComputed("a tensor without numbers")

    def _run(self, op: Primitive) -> None:
        """Evaluate a primitive and compare it with the recorded call, or go on with that."""
        truth = None if op.out.value is None else self.truth.get(op.out.value.id)
        try:
            numbers = [self.number(t) for t in (*op.inputs, *op.given)]
            made = op.run(*numbers)
        except NotComputed:
            self.missing[id(op)] = f"{op.title} at {op.where or 'an unknown place'}"
            if truth is not None:
                self.numbers[op.out.serial] = truth
            return
        except Exception as raised:
            raise self._failure(op, f"raises {type(raised).__name__}: {raised}") from raised
        self.known.add(id(op))
        if tuple(made.shape) != op.out.shape:
            raise self._failure(op, f"computes the shape {tuple(made.shape)}")
        if truth is not None:
            self._compare(op, truth, made, numbers)
        if (wrong := check_claims(op, *numbers)) is not None:
            raise self._failure(op, wrong)
        self.numbers[op.out.serial] = made

    def _compare(
        self, op: Primitive, truth: torch.Tensor, made: torch.Tensor, numbers: list[torch.Tensor]
    ) -> None:
        size = max((_size(x) for x in numbers[: len(op.inputs)]), default=0.0)
        found = error(truth, made, size)
        if not found <= self.limit:
            raise self._failure(op, f"is off by {found:.1e}")

    def _failure(self, op: Primitive, what: str) -> AssertionError:
        shapes = ", ".join(str(t.shape) for t in op.inputs)
        call = op.out.value.call if op.out.value is not None else None
        stands = f", which stands for {call.name}," if call is not None else ""
        place = op.where or "an unknown place"
        return AssertionError(
            f"{self.title}: {op.title}{stands} {what}, and what the model computes was expected, "
            f"to {self.limit:.1e}. It is the first primitive ({type(op).__name__}) that differs, "
            f"at {place}: {shapes} -> {op.out.shape}. Correct the rule that "
            "emits it: its arguments, the function that it computes, or the views that it reads."
        )
