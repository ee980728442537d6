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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.tracing.generic import generic_inputs, table_lengths
from paramsym.tracing.precision import converted, functional
from paramsym.tracing.record import Inputs, record

OVERSAMPLING = 1.3  # output entries per parameter
_FEWEST_ROWS = 2000  # for small networks, so that the inputs reach both sides of every ReLU
_FEWEST_CALLS = 4
_BATCH = 1 << 24  # entries of one batch of rows


@dataclass
class Network:
    """A model as a function of its float64 parameters and of generic inputs."""

    model: torch.nn.Module
    inputs: Inputs
    outputs: Callable[[Any], Any] | None
    training: bool
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.lengths = table_lengths(
            record(self.model, self.inputs, self.outputs, self.training)
        )
        self.spread = 1.0
        self.state = converted(self.model, torch.float64)
        names = [n for n, p in self.model.named_parameters() if p.is_floating_point()]
        self.names = tuple(names)
        self.count = sum(self.state[n].numel() for n in names)

    def outputs_of_fresh_inputs(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """All output entries of one call as a vector, and the parameters to derive by."""
        leaves = [self.state[n].clone().requires_grad_() for n in self.names]
        state = {**self.state, **dict(zip(self.names, leaves, strict=True))}
        args, kwargs = generic_inputs(
            self.inputs, self.lengths, self.generator, self.spread
        )
        with torch.enable_grad():
            found = functional(
                self.model, state, args, kwargs, self.outputs, self.training
            )
        flat = [torch.view_as_real(t) if t.is_complex() else t for t in found]
        if not flat:
            raise ValueError(
                f"audit(model={type(self.model).__name__}): the model returned no floating "
                "tensor, but a function with values is needed. Choose some with outputs=…."
            )
        return torch.cat([t.reshape(-1) for t in flat]), leaves

    def rows(self, wanted: int) -> torch.Tensor:
        """At most `wanted` rows of the Jacobian at one fresh input: (rows, parameters)."""
        values, leaves = self.outputs_of_fresh_inputs()
        if not values.requires_grad:
            return torch.zeros(1, self.count, dtype=values.dtype, device=values.device)
        n = values.numel()
        if wanted >= n:
            weights = torch.eye(n, dtype=values.dtype, device=values.device)
        else:
            drawn = torch.randn(wanted, n, generator=self.generator, dtype=values.dtype)
            weights = drawn.to(values.device) / math.sqrt(n)
        step = max(1, min(_BATCH // self.count, _BATCH // max(1, n)))
        batches = [_products(values, leaves, part) for part in weights.split(step)]
        return torch.cat(batches)


def _products(
    values: torch.Tensor, leaves: list[torch.Tensor], weights: torch.Tensor
) -> torch.Tensor:
    try:
        found = torch.autograd.grad(
            values, leaves, weights, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError:  # an operator without a batching rule, or a hand-written backward
        each = [
            torch.autograd.grad(values, leaves, w, retain_graph=True, allow_unused=True)
            for w in weights
        ]
        found = [
            None if parts[0] is None else torch.stack([p for p in parts if p is not None])
            for parts in zip(*each, strict=True)
        ]
    count = len(weights)
    return torch.cat(
        [
            weights.new_zeros(count, leaf.numel()) if g is None else g.reshape(count, -1)
            for g, leaf in zip(found, leaves, strict=True)
        ],
        dim=1,
    )


def planned_calls(network: Network, per_call: int, samples: int | None) -> tuple[int, int]:
    """(calls, rows of each) that give enough rows for the rank to be generic."""
    rows = max(math.ceil(OVERSAMPLING * network.count) + 64, _FEWEST_ROWS)
    calls = samples or max(_FEWEST_CALLS, math.ceil(rows / per_call))
    return calls, math.ceil(rows / calls) + 8


def triangular_jacobian(
    network: Network, calls: int, wanted: int, factor: torch.Tensor | None = None
) -> torch.Tensor:
    """R with at most p rows and the null space and singular values of J, for `calls` inputs.

    Rows are added to those of an earlier `factor`, if one is given.
    """
    if factor is None:
        factor = torch.zeros(0, network.count, dtype=torch.float64)
    pending: list[torch.Tensor] = []
    for k in range(calls):
        pending.append(network.rows(wanted).cpu())
        if sum(map(len, pending)) >= network.count or k == calls - 1:
            factor = torch.cat([factor, *pending])
            pending = []
            if len(factor) > network.count:
                factor = torch.linalg.qr(factor, mode="r").R
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
    seconds = forward * calls * (1 + min(rows, outputs) / 16) + 40e-11 * p**3
    return Cost(p, outputs, calls, rows, 8 * 6 * p * p, seconds)
