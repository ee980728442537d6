"""The Jacobian of a network over generic inputs, up to its null space.

What is wanted is the null space of J, the derivative of all outputs at all inputs with respect to
all p parameters. Rows are vector–Jacobian products, many at a time: every output of a call where
its outputs are few, and otherwise as many random Gaussian combinations of them as are needed,
which have the same null space with probability one. Rows are folded into a triangular factor as
they come, J = Q R, so that memory stays at 2 p × p numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.checking.generic import generic_inputs, table_lengths
from paramsym.recording.precision import converted, functional
from paramsym.recording.record import Inputs, record, split_inputs
from paramsym.structure.tangent import as_real, real_entries

OVERSAMPLING = 1.5  # rows per parameter; outputs of wide heads depend on each other
_FEWEST_ROWS = 2000  # for small networks, so that the inputs reach both sides of every ReLU
_FEWEST_CALLS = 32
_BATCH = 1 << 24  # entries of one batch of rows


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
        self.lengths = table_lengths(record(self.model, self.inputs, self.outputs, self.training))
        self.spread = 1.0
        self.continuous = any(
            isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            for leaf in pytree.tree_leaves(split_inputs(self.inputs))
        )
        self.state = converted(self.model, torch.float64)
        names = [
            n for n, p in self.model.named_parameters() if p.is_floating_point() or p.is_complex()
        ]
        self.names = tuple(names)
        self.count = sum(real_entries(self.state[n]) for n in names)

    def outputs_of_fresh_inputs(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """All output entries of one call as a vector, and the parameters to derive by."""
        leaves = [as_real(self.state[n]).clone().requires_grad_() for n in self.names]
        moving = {
            n: torch.view_as_complex(leaf) if self.state[n].is_complex() else leaf
            for n, leaf in zip(self.names, leaves, strict=True)
        }
        state = {**self.state, **moving}
        args, kwargs = generic_inputs(self.inputs, self.lengths, self.generator, self.spread)
        with torch.enable_grad():
            found = functional(self.model, state, args, kwargs, self.outputs, self.training)
        flat = [torch.view_as_real(t) if t.is_complex() else t for t in found]
        if not flat:
            raise ValueError(
                f"audit(model={type(self.model).__name__}): the model returned no floating "
                "tensor, but a function with values is needed. Choose some with outputs=…."
            )
        return torch.cat([t.reshape(-1) for t in flat]), leaves

    def rows(self, wanted: int, probe: torch.Tensor | None = None) -> torch.Tensor:
        """At most `wanted` rows of the Jacobian at one fresh input: (rows, parameters).

        With a `probe`, directions as columns, only where the input tells them apart from zero:
        one random combination of the outputs is differentiated first.
        """
        values, leaves = self.outputs_of_fresh_inputs()
        if not values.requires_grad:
            return torch.zeros(0, self.count, dtype=values.dtype)
        n = values.numel()
        if probe is not None:
            row = self._products(values, leaves, self._weights(1, values))
            if float((row @ probe).abs().max()) < 1e-9 * float(row.norm()):
                return row[:0]
        step = max(1, min(_BATCH // self.count, _BATCH // max(1, n)))
        batches = self._weights(wanted, values).split(step)
        return torch.cat([self._products(values, leaves, part) for part in batches])

    def _weights(self, wanted: int, values: torch.Tensor) -> torch.Tensor:
        n = values.numel()
        if wanted >= n:
            return torch.eye(n, dtype=values.dtype, device=values.device)
        drawn = torch.randn(wanted, n, generator=self.generator, dtype=values.dtype)
        return drawn.to(values.device) / math.sqrt(n)

    def _products(
        self, values: torch.Tensor, leaves: list[torch.Tensor], weights: torch.Tensor
    ) -> torch.Tensor:
        """weightsᵀ · J, many rows at a time where the operators allow it."""
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
        found: Sequence[torch.Tensor | None]
        try:
            found = torch.autograd.grad(values, leaves, weights, is_grads_batched=True, **options)
        except RuntimeError:  # an operator without a batching rule, or a hand-written backward
            each = [torch.autograd.grad(values, leaves, w, **options) for w in weights]
            found = [
                torch.stack(present) if (present := [p for p in parts if p is not None]) else None
                for parts in zip(*each, strict=True)
            ]
        count = len(weights)
        flat: list[torch.Tensor] = [
            weights.new_zeros(count, leaf.numel()) if g is None else g.reshape(count, -1)
            for g, leaf in zip(found, leaves, strict=True)
        ]
        return torch.cat(flat, dim=1).cpu()


def planned_calls(network: Network, per_call: int, samples: int | None) -> tuple[int, int]:
    """(calls, rows of each) that give enough rows for the rank to be generic."""
    rows = max(math.ceil(OVERSAMPLING * network.count) + 64, _FEWEST_ROWS)
    calls = samples or max(_FEWEST_CALLS, math.ceil(rows / per_call))
    return calls, math.ceil(rows / calls) + 8


def triangular_jacobian(network: Network, calls: int, wanted: int) -> torch.Tensor:
    """R with at most p rows and the null space and singular values of J, for `calls` inputs."""
    factor = torch.zeros(0, network.count, dtype=torch.float64)
    pending: list[torch.Tensor] = []
    for k in range(calls):
        pending.append(network.rows(wanted))
        if sum(map(len, pending)) >= network.count or k == calls - 1:
            factor = fold(torch.cat([factor, *pending]))
            pending = []
    return factor


def fold(rows: torch.Tensor) -> torch.Tensor:
    """Rows with the same inner products between columns, no more than there are columns."""
    if len(rows) <= rows.shape[1]:
        return rows
    _, factor = torch.linalg.qr(rows, mode="r")
    return factor


@dataclass(frozen=True)
class Cost:
    """What an audit takes, stated before it starts."""

    parameters: int
    outputs: int  # entries per call
    calls: int
    rows: int  # of the Jacobian, per call
    bytes: int
    seconds: float  # estimated, one thread

    def __str__(self) -> str:
        return (
            f"{self.parameters} parameters, {self.calls} calls with {self.outputs} outputs each, "
            f"{self.bytes / 1e9:.2g} GB, about {self.seconds:.2g} s"
        )


def cost_of(network: Network, samples: int | None = None) -> Cost:
    """The cost, from one timed call and the cubic work of the decomposition."""
    network.outputs_of_fresh_inputs()  # the first call of an operator is slow
    start = time.perf_counter()
    outputs = network.outputs_of_fresh_inputs()[0].numel()
    forward = time.perf_counter() - start
    p = network.count
    calls, rows = planned_calls(network, outputs, samples)
    seconds = forward * calls * (1 + min(rows, outputs) / 16) + 9e-10 * p**3
    return Cost(p, outputs, calls, rows, 8 * 6 * p * p, seconds)
