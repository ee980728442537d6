"""Units that pass an entrywise function between linear maps, on numbers: u = U·σ(V·x + b).

`pointwise_site` reads off the traced network which parameters are V, b and U and which function σ
is, and tries what it read: with V and b moved by a random matrix, σ gets what that matrix makes of
it; and U moved by another one does what that other one does to the output of σ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from paramsym.lowering.lower import lower
from paramsym.recording.graph import Call, Graph, canonical_name
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.precision import converted, converted_inputs, lifted
from paramsym.recording.record import Inputs, record
from paramsym.recording.running import call_at, exclusive, preserved, seeded
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.pointwise import Carrier, NotPointwise, joined

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
    axis: int
    at: tuple[str, int]  # σ among the calls of that name

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
            inputs: a tuple or a dict of keyword arguments; by default the site's.
            differentiable: whether autograd follows it back to `params`.
        """
        return self._run(params, inputs, differentiable=differentiable)[0]

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
            self._multiply(moved, self.writers, before)
        if after is not None:
            self._multiply(moved, self.readers, after.mT)
        return moved

    def _multiply(
        self, params: dict[str, Any], carriers: tuple[Carrier, ...], matrix: Tensor
    ) -> None:
        """Replace parameters by their product with a matrix along the axis of the units."""
        for carrier in carriers:
            given = params[self._held(carrier, params)]
            found = given.movedim(carrier.axis, -1) @ matrix.to(given).mT
            found = found.movedim(-1, carrier.axis)
            params |= {n: found for n in self.aliases[carrier.parameter] if n in params}

    def _held(self, carrier: Carrier, params: State) -> str:
        return next(n for n in self.aliases[carrier.parameter] if n in params)

    def _run(
        self,
        params: State | None,
        inputs: Inputs | None = None,
        after: Tensor | None = None,
        differentiable: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """What σ gets, and the outputs of the model, with a matrix behind σ if there is one."""
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        state = {n: t.detach() for n, t in state.items()} | {**(params or {})}
        dtype = state[self._held(self.writers[0], state)].dtype
        args, kwargs = pytree.tree_map(
            lambda x: x.clone() if isinstance(x, Tensor) else x,
            converted_inputs(self.inputs if inputs is None else inputs, dtype),
        )
        trained = {name for name, _ in self.model.named_parameters()}
        held = {n: t if n in trained else t.clone() for n, t in state.items()}
        tap = _Tap(self.at, self.axis, after)
        with exclusive, lifted() if dtype == torch.float64 else nullcontext():
            with preserved(self.model, self.training), torch.set_grad_enabled(differentiable):
                seeded(0)
                with tap:
                    returned = call_at(self.model, held, args, kwargs)
                if self.outputs is not None:
                    returned = self.outputs(returned)
        if tap.got is None:
            raise RuntimeError(f"{self.name} at {self.where} was not called again")
        return tap.got.movedim(self.axis, 0).flatten(1), floating_outputs(returned)


class _Tap(TorchFunctionMode):
    """Keeps what one call gets, and puts a matrix behind what it gives."""

    def __init__(self, at: tuple[str, int], axis: int, after: Tensor | None):
        super().__init__()
        self.name, self.left = at
        self.axis, self.after = axis, after
        self.got: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if canonical_name(func) != self.name:
            return func(*args, **kwargs)
        self.left -= 1
        if self.left != -1:
            return func(*args, **kwargs)
        given = args[0] if args else kwargs["input"]
        self.got = given.clone()  # what follows may write to it
        made = func(*args, **kwargs)
        if self.after is None:
            return made
        turned = torch.tensordot(self.after.to(made), made.movedim(self.axis, 0), 1)
        return made.copy_(turned.movedim(0, self.axis)) if made is given else turned.movedim(
            0, self.axis
        )  # fmt: skip


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
            maps of parameters that are used once.
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
        _try(site)
    except NotPointwise as error:
        raise NotPointwise(
            f"pointwise_site(space={space!r}): {error}, and one entrywise function between two "
            "linear maps of parameters was expected: U·σ(V·x + b), where nothing else reads its "
            f"units and no parameter is used twice. Choose another space of {[*symmetry.spaces]}, "
            "or write the function as one call."
        ) from None
    return site


def _read(
    graph: Graph, model: nn.Module, symmetry: ParameterSymmetry, inputs: Inputs, space: str,
    outputs: Callable[[Any], Any] | None, training: bool,
) -> PointwiseSite:  # fmt: skip
    build = lower(graph)
    found = joined(build, symmetry, space)
    value = found.map.out.value
    if value is None or value.call is None:
        raise NotPointwise(f"{found.map.title} at {found.map.where} is no single call")
    call = value.call
    earlier = sum(c.name == call.name for c in graph.calls[: call.index])
    names: dict[int, list[str]] = {}
    for name, each in [*graph.parameters.items(), *graph.buffers.items()]:
        names.setdefault(each.id, []).append(name)
    every = {own[0]: tuple(own) for own in names.values()}
    return PointwiseSite(
        space, symmetry.spaces[space].size, call.name, found.map.where, _entrywise(call),
        found.writers, found.readers, model, inputs, outputs, training, every, found.axis,
        (call.name, earlier),
    )  # fmt: skip


def _entrywise(call: Call) -> Callable[[Tensor], Tensor]:
    """The function of a call of its first operand, with its other arguments as they were."""
    if len(call.operands) != 1:
        raise NotPointwise(f"{call.name} at {call.where} reads {len(call.operands)} tensors")
    operand = call.operands[0]

    def function(z: Tensor) -> Tensor:
        args, kwargs = pytree.tree_map(
            lambda leaf: z.clone() if leaf is operand else leaf, (call.args, call.kwargs),
            is_leaf=lambda leaf: leaf is operand,
        )  # fmt: skip
        return call.target(*args, **kwargs)

    return function


def _try(site: PointwiseSite) -> None:
    """Move what was read by random matrices, in float64.

    Raises `NotPointwise` where the model does something else.
    """
    state = converted(site.model, torch.float64)
    generator = torch.Generator().manual_seed(0)
    shape = site.units, site.units
    before, after = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    given, _ = site._run(state)
    moved, _ = site._run(site.carried(state, before, None))
    _require_equal(moved, before.to(given) @ given, f"what {site.name} gets does not follow")
    wanted = site._run(state, after=after)[1]
    found = site._run(site.carried(state, None, after))[1]
    for one, other in zip(found, wanted, strict=True):
        _require_equal(one, other, f"what {site.name} gives is not read as was traced")


def _require_equal(found: Tensor, wanted: Tensor, what: str) -> None:
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    if found.shape != wanted.shape or not float((found - wanted).abs().max()) <= _EXACT * size:
        raise NotPointwise(what)
