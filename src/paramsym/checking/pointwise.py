"""Units that pass an entrywise function between linear maps, on numbers: u = U·σ(V·x + b).

`pointwise_site` reads off the traced network which parameters are V, b and U and which function σ
is, and tries what it read, at the weights that the model has and at generic ones:

    σ, by itself, gives what the model computes there, and the same again
    with V and b moved by a matrix, σ gets what that matrix makes of it
    and nothing else moves: with σ's answer held, the outputs stay
    U moved by another matrix does what that one does to σ's answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.tap import Mark, Tap
from paramsym.lowering.builder import Builder
from paramsym.lowering.lower import lower
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.precision import converted, converted_inputs, lifted
from paramsym.recording.record import Inputs, record
from paramsym.recording.running import call_at, exclusive, preserved, seeded
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.pointwise import Carrier, Joined, NotPointwise, joined

State = Mapping[str, Tensor]
_EXACT = 1e-9  # of the trial, in float64, relative to the largest entry


@dataclass(frozen=True, eq=False)
class PointwiseSite:
    """The units of a space where they pass one entrywise function σ between linear maps.

    Attributes:
        space: its name.
        units: how many they are.
        name: of the function, as the model calls it.
        where: its place in the user's model.
        function: σ, entrywise, for tensors of any shape.
        writers: V and b, that make what σ gets.
        readers: U, that multiply what it gives.
    """

    space: str
    units: int
    name: str
    where: str
    function: Callable[[Tensor], Tensor]
    writers: tuple[Carrier, ...]
    readers: tuple[Carrier, ...]
    model: nn.Module
    inputs: Inputs
    outputs: Callable[[Any], Any] | None
    training: bool
    aliases: Mapping[str, tuple[str, ...]]
    first: Mark  # the call whose operand is what σ gets
    last: Mark  # the call whose result is what it gives
    symmetry: ParameterSymmetry

    def on(self, inputs: Inputs) -> PointwiseSite:
        """The same site, read off again at other inputs.

        Raises:
            NotPointwise: the network is another one on them.
        """
        return pointwise_site(
            self.model, self.symmetry, inputs, self.space, self.outputs, self.training
        )

    def before(
        self,
        params: State | None = None,
        inputs: Inputs | None = None,
        differentiable: bool = False,
    ) -> Tensor:
        """What σ gets, a column for each sample: of shape (units, samples).

        Samples are all batches and positions, in order.

        Args:
            params: all parameters and buffers; by default the model's. It runs in their precision.
            inputs: a tuple or a dict of keyword arguments of the shapes of the site's, which are
                the default; `on` reads the site off others.
            differentiable: whether autograd follows it back to `params`.
        """
        return self._run(params, inputs, differentiable=differentiable).given

    def carried(self, params: State, before: Tensor | None, after: Tensor | None) -> dict[str, Any]:
        """The parameters with a matrix in front of σ and another one behind it.

            V → before·V,   b → before·b,   U → U·after

        Args:
            params: parameters by name; they are not touched, and other tensors are the same ones.
            before: of shape (units, units), or None for the identity.
            after: likewise.
        """
        moved: dict[str, Any] = dict(params)
        if before is not None:
            moved = self.along(moved, self.writers, lambda rows: rows @ before.to(rows).mT)
        if after is not None:
            moved = self.along(moved, self.readers, lambda rows: rows @ after.to(rows))
        return moved

    def along(
        self,
        params: State,
        carriers: tuple[Carrier, ...],
        by: Callable[[Tensor], Tensor],
    ) -> dict[str, Any]:
        """The parameters with what `by` makes of rows along the axis of the units.

        Args:
            params: parameters by name; they are not touched, and other tensors are the same ones.
            carriers: writers or readers.
            by: from rows, of shape (entries, units), to others of that shape.
        """
        moved: dict[str, Any] = dict(params)
        for carrier in carriers:
            given = moved[self.held(carrier.parameter, moved)]
            rows = given.movedim(carrier.axis, -1)
            found = by(rows.reshape(-1, self.units)).reshape(rows.shape)
            found = found.movedim(-1, carrier.axis).to(given)
            moved |= {n: found for n in self.aliases[carrier.parameter] if n in moved}
        return moved

    def held(self, parameter: str, params: State) -> str:
        """The first of a parameter's names that is there.

        Raises:
            ValueError: none of them is.
        """
        names = self.aliases[parameter]
        if found := [n for n in names if n in params]:
            return found[0]
        raise ValueError(
            f"moving space {self.space!r}: params of {len(params)} names came without "
            f"{names[0]!r}; all parameters of the model were expected. Pass "
            "dict(model.state_dict())."
        )

    def _run(
        self,
        params: State | None,
        inputs: Inputs | None = None,
        answer: Callable[[Tensor], Tensor] | None = None,
        differentiable: bool = False,
        seed: int = 0,
    ) -> _Seen:
        """Run the model, with what `answer` makes of σ's answer in its place, if that is given."""
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        state = {n: t.detach() for n, t in state.items()} | {**(params or {})}
        dtype = state[self.held(self.writers[0].parameter, state)].dtype
        args, kwargs = pytree.tree_map(
            lambda x: x.clone() if isinstance(x, Tensor) else x,
            converted_inputs(self.inputs if inputs is None else inputs, dtype),
        )
        trained = {name for name, _ in self.model.named_parameters()}
        held = {n: t if n in trained else t.clone() for n, t in state.items()}
        tap = Tap(self.first, self.last, answer)
        with exclusive, lifted() if dtype == torch.float64 else nullcontext():
            with preserved(self.model, self.training), torch.set_grad_enabled(differentiable):
                seeded(seed)
                with tap:
                    returned = call_at(self.model, held, args, kwargs)
                if self.outputs is not None:
                    returned = self.outputs(returned)
        if tap.given is None or tap.made is None:
            raise NotPointwise(f"{self.name} at {self.where} is called in another way on numbers")
        return _Seen(tap.given, tap.made, floating_outputs(returned))


@dataclass(frozen=True)
class _Seen:
    """What σ got and gave in one run, (units, samples), and the outputs of the model."""

    given: Tensor
    made: Tensor
    outputs: list[Tensor]


def pointwise_site(
    model: nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    space: str,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
) -> PointwiseSite:
    """Find where the units of a space pass one entrywise function between linear maps.

    u = U·σ(V·x + b), anywhere in a traced model. What was read is tried on numbers in float64.

    Args:
        model: it is only read.
        symmetry: what `find_symmetry` derived of it on these inputs.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        space: a name in `symmetry.spaces`.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: the mode in which the model runs.

    Returns:
        The site, with σ as a function and the parameters on either side.

    Raises:
        KeyError: no such space.
        NotPointwise: its units do anything else than to pass one entrywise function between linear
            maps of parameters that are used once; or what it gets is drawn at random.
        TraceError: as `find_symmetry`.
    """
    if space not in symmetry.spaces:
        raise KeyError(
            f"pointwise_site(space={space!r}): it is no space of this symmetry. Expected one of "
            f"{[*symmetry.spaces][:12]}; print(symmetry) lists them."
        )
    graph = record(model, inputs, outputs, training)
    try:
        site = _read(graph, model, symmetry, inputs, space, outputs, training)
        _try(site, converted(model, torch.float64))
        _try(site, _generic(model), everywhere=False)
    except NotPointwise as error:
        raise NotPointwise(
            f"pointwise_site(space={space!r}): {error}, and one entrywise function between two "
            "linear maps of parameters was expected: U·σ(V·x + b), where nothing else reads its "
            f"units and no parameter is used twice. Choose another space of {[*symmetry.spaces]}, "
            "or write the function without other tensors."
        ) from None
    return site


def _read(
    graph: Graph, model: nn.Module, symmetry: ParameterSymmetry, inputs: Inputs, space: str,
    outputs: Callable[[Any], Any] | None, training: bool,
) -> PointwiseSite:  # fmt: skip
    build = lower(graph)
    found = joined(build, symmetry, space)
    calls, operand = _slice(build, found)
    names: dict[int, list[str]] = {}
    for name, each in [*graph.parameters.items(), *graph.buffers.items()]:
        names.setdefault(each.id, []).append(name)
    return PointwiseSite(
        space, symmetry.spaces[space].size, calls[-1].name, calls[-1].where,
        _entrywise(calls, operand), found.writers, found.readers, model, inputs, outputs, training,
        {own[0]: tuple(own) for own in names.values()},
        _mark(graph, build, calls[0], operand, found.node),
        _mark(graph, build, calls[-1], calls[-1].outputs[0], found.node), symmetry,
    )  # fmt: skip


def _mark(graph: Graph, build: Builder, call: Call, value: Value, node: ix.Node) -> Mark:
    """A call as it is met again when the model runs."""
    at = next((k for k, c in enumerate(graph.calls) if _is_same(c, call)), None)
    axes = [k for k, n in enumerate(build.tensor(value).axes) if ix.resolve(n) is ix.resolve(node)]
    if at is None or len(axes) != 1 or len(call.outputs) != 1:
        raise NotPointwise(f"{call.name} at {call.where} is no single call")
    earlier = sum(c.name == call.name for c in graph.calls[:at])
    return Mark(call.name, earlier, axes[0])


def _is_same(recorded: Call, call: Call) -> bool:
    """Whether a call was recorded so, and not made by normalising."""
    ids = [v.id for v in recorded.outputs], [v.id for v in call.outputs]
    return recorded.name == call.name and ids[0] == ids[1]


def _slice(build: Builder, found: Joined) -> tuple[list[Call], Value]:
    """The calls that make σ's answer of what it gets, in order, and that operand of the first."""
    operands: dict[int, Value] = {}
    calls: dict[int, Call] = {}
    pending = [found.made.value]
    while pending:
        value = pending.pop()
        if value is None or value.call is None or value.call.target is None:
            raise NotPointwise("its function is not made by calls of its own")
        if value.call.index in calls:
            continue
        calls[value.call.index] = value.call
        for each in value.call.operands:
            if build.tensor(each).owner is found.given:
                operands[each.id] = each
            elif each.data is None or each.data.numel() != 1:
                pending.append(each)
    order = [calls[k] for k in sorted(calls)]
    if len(operands) != 1 or not any(v.id in operands for v in order[0].operands):
        raise NotPointwise(f"its units are looked at in {len(operands)} ways by their function")
    return order, next(iter(operands.values()))


def _entrywise(calls: list[Call], operand: Value) -> Callable[[Tensor], Tensor]:
    """Calls as a function of one tensor of any shape, with all else as it was."""

    def function(z: Tensor) -> Tensor:
        known = {operand.id: z}

        def number(leaf: Any) -> Any:
            if not isinstance(leaf, Value):
                return leaf
            # a copy, since a call may write to what it gets
            return known[leaf.id].clone() if leaf.id in known else leaf.data

        for call in calls:
            args, kwargs = pytree.tree_map(
                number, (call.args, call.kwargs), is_leaf=lambda leaf: isinstance(leaf, Value)
            )
            known[call.outputs[0].id] = call.target(*args, **kwargs)
        return known[calls[-1].outputs[0].id]

    return function


# -- on numbers ----------------------------------------------------------------------------------


def _generic(model: nn.Module) -> State:
    """Generic weights: at the model's own a zero may hide who reads what."""
    generator = torch.Generator().manual_seed(0)
    entries = sum(t.numel() for t in (*model.parameters(), *model.buffers()))
    return generic_state(model, {}, Source(generator, torch.float64, pooled=entries > 1 << 20))


def _try(site: PointwiseSite, state: State, everywhere: bool = True) -> None:
    """Move what was read by random matrices, in float64.

    Raises `NotPointwise` where the model does something else or, if it is to be defined
    `everywhere`, has no finite numbers.
    """
    generator = torch.Generator().manual_seed(1)
    shape = site.units, site.units
    before, after = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    rest = site._run(state)
    if not all(bool(x.isfinite().all()) for x in (rest.given, rest.made, *rest.outputs)):
        if not everywhere:
            return
        raise NotPointwise(f"what {site.name} gets or gives, or an output, is not finite")
    before, after = before.to(rest.given), after.to(rest.given)
    _require_equal(site._run(state, seed=1).given, rest.given, "what it gets is drawn at random")
    _require_equal(_answer(site, rest.given), rest.made, f"{site.name} is no function of one entry")
    held = site._run(site.carried(state, before, None), answer=lambda _: rest.made)
    _require_equal(held.given, before @ rest.given, f"what {site.name} gets does not follow")
    for one, other in zip(held.outputs, rest.outputs, strict=True):
        _require_equal(one, other, f"what {site.name} gets is read by others as well")
    wanted = site._run(state, answer=lambda made: after @ made).outputs
    found = site._run(site.carried(state, None, after)).outputs
    for one, other in zip(found, wanted, strict=True):
        _require_equal(one, other, f"what {site.name} gives is not read as was traced")


def _answer(site: PointwiseSite, given: Tensor) -> Tensor:
    """σ by itself, on a matrix in place of the tensor that the model has."""
    with torch.no_grad(), lifted():
        try:
            return site.function(given)
        except RuntimeError as error:  # shapes of the traced call are written into it
            raise NotPointwise(f"{site.name} is no function of one entry") from error


def _require_equal(found: Tensor, wanted: Tensor, what: str) -> None:
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    if found.shape != wanted.shape or not _apart(found, wanted) <= _EXACT * size:
        raise NotPointwise(what)


def _apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max()) if found.numel() else 0.0
