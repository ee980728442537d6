"""The Jacobian of a network over generic inputs, row by row.

What is wanted is the null space of J, the derivative of all outputs at all inputs with respect to
all p parameters. Rows are vector–Jacobian products, many at a time: random Gaussian combinations
of the outputs of a call, which have the same null space with probability one. A call gives at most
a quarter as many rows as it has outputs: many inputs tell more than many rows of a few.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.checking.computed import AsComputed
from paramsym.checking.generic import Arguments, Draws, draws, generic_inputs, table_lengths
from paramsym.checking.lengths import Lengths, at_lengths
from paramsym.checking.measure import NUDGES, SMALL, around, nudged, size_of, step_of
from paramsym.checking.together import Room, agree, gradients, together
from paramsym.lowering.normalise import normalise
from paramsym.lowering.rotary import turning_constants
from paramsym.recording.precision import converted, functional
from paramsym.recording.record import Inputs, record, split_inputs
from paramsym.recording.running import Walk
from paramsym.structure.tangent import as_real, real_entries

OVERSAMPLING = 1.1  # rows per direction that is not claimed
_SPARE_ROWS = 32
_FEWEST_CALLS, _MOST_CALLS = 128, 256  # unless the rows are that many
_BATCH = 1 << 21  # entries of one batch of rows: a fraction of a second, for an interrupt
_TOGETHER = 64  # calls in one pass, at most
_SEEN = 1 << 19  # entries of all their inputs
_ALONE = 8  # of so many passes one is held against itself alone, and each of the first ones
_LEAST = 1e-6  # of a vector's largest entry: the size that smaller ones count as


class NotFinite(ValueError):
    """Weights or outputs are not numbers, so that nothing can be measured."""


@dataclass
class Network:
    """A model as a function of its float64 parameters and of generic inputs.

    A complex parameter is differentiated by its real and imaginary parts.
    """

    model: torch.nn.Module
    inputs: Inputs
    outputs: Callable[[Any], Any] | None
    training: bool
    generator: torch.Generator

    def __post_init__(self) -> None:
        graph = record(self.model, self.inputs, self.outputs, self.training)
        self.lengths, self.room = table_lengths(graph, self.model), Room.of(graph)
        self.covering = covering(self.inputs, self.lengths)
        self.continuous = any(
            isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
            for leaf in pytree.tree_leaves(split_inputs(self.inputs))
        )
        self.state = converted(self.model, torch.float64)
        _check_numbers(self.model, self.state)
        self.walk = Walk(self.model, self.state.keys())
        # those that turn pairs and are not trained: numbers, as buffers are
        turning = turning_constants(normalise(graph)) if graph.frozen else {}
        names = [
            n for n, p in self.model.named_parameters()
            if (p.is_floating_point() or p.is_complex()) and n not in turning
        ]  # fmt: skip
        self.names = tuple(names)
        self.count = sum(real_entries(self.state[n]) for n in names)
        self.shapes: list[torch.Size] = []  # of the outputs, since the last call
        self.batched = True  # until several calls in one pass failed
        self.looked = 0  # passes of several calls
        self.kinds, self.turn = [self.inputs], 0  # of inputs, one in each pass, by turns
        # apart from the inputs, so that these are the same however many rows are taken
        self.seed = int(torch.randint(1 << 62, (), generator=self.generator))
        self.combining = torch.Generator().manual_seed(self.seed)

    def also_at(self, lengths: Sequence[Lengths]) -> None:
        """Draw inputs of other lengths as well, by turns."""
        self.kinds += [at_lengths(self.inputs, changes) for changes in lengths]

    def anew(self) -> Network:
        """The same network, with inputs that do not depend on how many were drawn before."""
        other = copy.copy(self)
        other.turn = 0
        other.generator = torch.Generator().manual_seed(self.seed + 1)
        return other

    def passes(self, calls: int, rows: int) -> Iterator[int]:
        """How many of so many calls, of so many rows each, are made at once, again and again."""
        inputs = pytree.tree_leaves(split_inputs(self.inputs))
        entries = sum(x.numel() for x in inputs if isinstance(x, torch.Tensor))
        held = max(1, self.count) * max(8, rows)
        most = min(_BATCH // held, _SEEN // max(1, entries), _TOGETHER, self.room.calls)
        most = max(1, min(most, calls // len(self.kinds)))
        while calls > 0:
            taken = min(calls, most if self.batched else 1)
            yield taken
            calls, self.turn = calls - taken, self.turn + 1

    def fresh_inputs(self) -> Arguments:
        """Generic positional and keyword arguments."""
        return generic_inputs(self.inputs, self.lengths, self.generator)

    def draws(self, spreads: Sequence[float]) -> Draws:
        """Generic arguments of as many calls as there are spreads."""
        kind = self.kinds[self.turn % len(self.kinds)]
        return draws(kind, self.lengths, self.generator, spreads)

    def outputs_of_fresh_inputs(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """All output entries of one call as a vector, and the parameters to derive by.

        Each is divided by the size of the outputs around it, which changes no null direction: an
        output of size 1e13 would make all that its neighbours depend on look dead.
        """
        return self.outputs_at(self.fresh_inputs(), scaled=True)

    def outputs_at(
        self, arguments: Arguments, scaled: bool = False
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """All output entries at given arguments, and the parameters to derive by."""
        leaves = [as_real(self.state[n]).clone().requires_grad_() for n in self.names]
        with torch.enable_grad():
            values = self.outputs_of(leaves, arguments)
            if scaled:
                values = values / self._sizes(values, lambda own: self.outputs_of(own, arguments))
        return values, leaves

    def sizes_at(self, arguments: Arguments) -> torch.Tensor:
        """The size of the outputs around each entry, (outputs,), in the order of `outputs_at`."""
        with torch.no_grad():
            own = [as_real(self.state[n]) for n in self.names]
            values = self.outputs_of(own, arguments)
            return self._sizes(values, lambda own: self.outputs_of(own, arguments))

    @torch.no_grad()
    def _sizes(
        self, values: torch.Tensor, again: Callable[[list[torch.Tensor]], torch.Tensor | None]
    ) -> torch.Tensor:
        """The size of the outputs around each entry, of one or several calls.

        Where some are so small that they may be the rounding of what cancels, `again` gives the
        outputs at parameters that differ by little more than rounding: noise is no size.
        """
        sizes = self._around(values)
        if bool((sizes < SMALL * size_of(values).amax(-1, keepdim=True)).any()):
            others = [again(own) for own in self._nudged()]
            sizes = self._around(values, [z for z in others if z is not None])
        return sizes

    def _around(self, values: torch.Tensor, others: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """The sizes around all output entries, (…, outputs), call by call and output by output."""
        if values.ndim > 1:
            calls = range(len(values))
            return torch.stack([self._around(values[k], [z[k] for z in others]) for k in calls])
        lengths = [math.prod(shape) for shape in self.shapes]
        found = []
        for shape, *each in zip(
            self.shapes, *(y.split(lengths) for y in (values, *others)), strict=True
        ):
            y, *rest = (z.reshape(shape) for z in each)
            sizes = around(y, rest, step_of(torch.float64)).reshape(-1)
            if sum(n > 1 for n in shape) == 1:  # a slice of a vector is one entry, and a loss of
                sizes = sizes.clamp_min(_LEAST * sizes.max())  # 1e-15 the rounding of log(1 + x)
            found.append(sizes)
        return torch.cat(found)

    def _nudged(self) -> Iterator[list[torch.Tensor]]:
        """The parameters displaced by little more than rounding, several times, always alike."""
        generator = torch.Generator().manual_seed(self.seed)

        def draw(x: torch.Tensor) -> torch.Tensor:
            return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)

        step = step_of(torch.float64)
        for _ in range(NUDGES):
            yield [nudged(as_real(self.state[n]).detach(), draw, step) for n in self.names]

    @torch.no_grad()
    def values(self, leaves: Sequence[torch.Tensor], draws: Draws) -> torch.Tensor:
        """All output entries of several calls: (calls, outputs).

        Args:
            leaves: the parameters of each call, (calls, *shape).
            draws: the arguments of each call.
        """
        calls = range(len(draws))
        if self.batched and len(draws) > 1:
            found = together(self.outputs_of, leaves, draws)
            if found is not None and not self._looks():
                return found
            last = self.outputs_of([x[-1] for x in leaves], draws[calls[-1]])
            if found is not None and agree(found[-1], last):
                return found
            self.batched = False
        return torch.stack([self.outputs_of([x[k] for x in leaves], draws[k]) for k in calls])

    def outputs_of(self, leaves: Sequence[torch.Tensor], arguments: Arguments) -> torch.Tensor:
        """All output entries of one call at given parameters, in real numbers."""
        moving = {  # copies, which a forward pass may write into
            n: torch.view_as_complex(leaf.clone()) if self.state[n].is_complex() else leaf.clone()
            for n, leaf in zip(self.names, leaves, strict=True)
        }
        state = {**self.state, **moving}
        with AsComputed():
            found = functional(
                self.model, state, *arguments, self.outputs, self.training, self.walk
            )
        flat = [torch.view_as_real(t) if t.is_complex() else t for t in found]
        if not flat:
            raise ValueError(
                f"audit(model={type(self.model).__name__}): the model returned no floating "
                "tensor, but a function with values is needed. Choose some with outputs=…."
            )
        self.shapes = [t.shape for t in flat]
        return torch.cat([t.reshape(-1) for t in flat])

    def rows(self, wanted: int, spreads: Sequence[float] = (1.0,)) -> list[torch.Tensor]:
        """At most `wanted` rows of the Jacobian at each of some fresh inputs: (rows, parameters).

        Rows that are not finite are left out.
        """
        draws = self.draws(spreads)
        if self.batched and len(draws) > 1:
            found = self._rows_together(wanted, draws)
            if found is not None:
                return [*map(_finite, found.unbind(1))]
            self.batched = False
        found = []
        for k in range(len(draws)):
            values, leaves = self.outputs_at(draws[k], scaled=True)
            found.append(_finite(self._rows(self.drawn(wanted, values), values, leaves)))
        return found

    def _rows_together(self, wanted: int, draws: Draws) -> torch.Tensor | None:
        """Rows at each of several inputs, (rows, calls, parameters); None where that cannot be.

        The last call is now and then held against itself alone, its outputs and a row.
        """
        own = [as_real(self.state[n]) for n in self.names]
        leaves = [x.expand(len(draws), *x.shape).clone().requires_grad_() for x in own]
        with torch.enable_grad():
            values = together(self.outputs_of, leaves, draws)
            if values is None:
                return None
            values = values / self._sizes(values, lambda own: self._repeated(own, draws))
        weights = self.drawn(wanted, values)
        try:
            found = self._rows(weights, values, leaves)
        except RuntimeError:  # as of convolutions whose batch torch has merged into their groups
            return None
        if not self._looks():
            return found
        alone, leaves = self.outputs_at(draws[len(draws) - 1], scaled=True)
        row = self._rows(weights[:1, -1], alone, leaves)
        same = agree(values[-1].detach(), alone.detach()) and agree(found[:1, -1], row)
        return found if same else None

    def _looks(self) -> bool:
        """Whether a call of this pass is held against itself alone."""
        self.looked += 1
        return self.looked <= _ALONE or self.looked % _ALONE == 0

    def _repeated(self, own: Sequence[torch.Tensor], draws: Draws) -> torch.Tensor | None:
        """The outputs of several calls at the same parameters."""
        return together(self.outputs_of, [x.expand(len(draws), *x.shape) for x in own], draws)

    def _rows(
        self, weights: torch.Tensor, values: torch.Tensor, leaves: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """weightsᵀ · J by parts; an output depends on the parameters of its own call alone."""
        if not values.requires_grad:
            return values.new_zeros(0, *values.shape[:-1], self.count)
        calls = values.numel() // values.shape[-1]
        entries = calls * max(4 * self.count, values.shape[-1])
        parts = weights.split(max(1, min(4 * _BATCH // max(1, entries), self.room.rows(calls))))
        products = [self.products(values, leaves, part) for part in parts]
        return products[0] if len(products) == 1 else torch.cat(products)

    def drawn(self, wanted: int, values: torch.Tensor) -> torch.Tensor:
        """At most `wanted` random combinations of the outputs: (rows, *values)."""
        n = values.shape[-1]
        if wanted >= n:
            eye = torch.eye(n, dtype=values.dtype, device=values.device)
            return eye if values.ndim == 1 else eye[:, None].expand(n, *values.shape)
        normal = torch.randn(wanted, *values.shape, generator=self.combining, dtype=torch.float32)
        return normal.to(values) / math.sqrt(n)  # drawn ten times faster, and as generic

    def products(
        self, values: torch.Tensor, leaves: Sequence[torch.Tensor], weights: torch.Tensor
    ) -> torch.Tensor:
        """weightsᵀ · J, many rows at a time where the operators allow it: (rows, parameters).

        With the outputs of several calls, (rows, calls, parameters).
        """
        found = gradients(type(self.model).__name__, values, leaves, weights)
        lead = len(weights), *values.shape[:-1]
        calls = math.prod(lead[1:])
        flat: list[torch.Tensor] = [
            weights.new_zeros(*lead, leaf.numel() // calls)
            if g is None
            else g.reshape(*lead, leaf.numel() // calls)
            for g, leaf in zip(found, leaves, strict=True)
        ]
        return torch.cat(flat, dim=-1).cpu()


def _finite(rows: torch.Tensor) -> torch.Tensor:
    """The rows that hold numbers."""
    finite = rows.sum(dim=1).isfinite()  # what is not finite stays so, in one pass
    return rows if bool(finite.all()) else rows[finite]


def _check_numbers(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, _ in model.named_parameters():
        tensor = state.get(name)
        if tensor is not None and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).sum())
            raise NotFinite(
                f"audit(model={type(model).__name__}): {bad} of {tensor.numel()} entries of "
                f"{name!r} are NaN or infinite, but a Jacobian needs numbers. Load weights that "
                "are finite, or initialise the model anew."
            )


@dataclass(frozen=True)
class Plan:
    """How many calls give how many rows each."""

    calls: int
    each: int

    @property
    def rows(self) -> int:
        return self.calls * self.each


def covering(inputs: Inputs, lengths: Mapping[int, int]) -> int:
    """Calls after which each place of a table was most probably drawn: a row that no input reads
    moves nothing, and is no symmetry.

    Of n places with k drawings in a call, n (ln n + 3) / k calls miss one with probability e⁻³.
    """
    leaves = [x for x in pytree.tree_leaves(split_inputs(inputs)) if isinstance(x, torch.Tensor)]
    calls = [
        math.ceil(length * (math.log(length) + 3) / leaves[at].numel())
        for at, length in lengths.items()
        if length > 0 and leaves[at].numel()
    ]
    return min(max([_FEWEST_CALLS, *calls]), _MOST_CALLS)


def planned(
    directions: int, outputs: int, samples: int | None = None, least: int = _FEWEST_CALLS
) -> Plan:
    """Enough rows to see `directions` independent directions.

    Args:
        directions: how many the network's outputs are to depend on.
        outputs: entries of the outputs of one call.
        samples: the number of calls, if it is given.
        least: the fewest calls, of fewer rows each, where no number is given.
    """
    rows = math.ceil(OVERSAMPLING * directions) + _SPARE_ROWS
    calls = samples or max(least, math.ceil(rows / max(1, outputs // 4)))
    return Plan(calls, max(1, min(math.ceil(rows / calls), outputs)))


def jacobian(network: Network, plan: Plan, called: Callable[[], None]) -> torch.Tensor:
    """Rows of the Jacobian at as many fresh inputs as planned: (rows, parameters).

    Raises:
        NotFinite: at more than half of the inputs the derivatives are not numbers.
    """
    found = torch.empty(plan.rows, network.count, dtype=torch.float64)
    filled = empty = 0
    for calls in network.passes(plan.calls, plan.each):
        for rows in network.rows(plan.each, [1.0] * calls):
            found[filled : filled + len(rows)] = rows
            filled += len(rows)
            empty += not len(rows)
            called()
    if 2 * empty > plan.calls and network.outputs_of_fresh_inputs()[0].requires_grad:
        raise NotFinite(
            f"audit(model={type(network.model).__name__}): at {empty} of {plan.calls} random "
            "inputs the outputs or their derivatives are NaN or infinite, but finite ones were "
            "expected. Look for a logarithm, root or division of what can be zero or negative, "
            "or choose other outputs with outputs=…."
        )
    return found[:filled]
