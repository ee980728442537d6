"""Systems of linear equations: solutions are linear in the right side, whose basis may change."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.linear import matmul_tensors
from paramsym.primitives import Opaque
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call


@rule("linalg_solve_triangular")
def solve_triangular(build: Builder, call: Call) -> Tensor:
    """A X = B or X A = B, of which one triangle of A is read."""
    a, b = build.arguments(call, "input|A|self", "B")
    upper, unit = bool(call.kwargs["upper"]), bool(call.kwargs.get("unitriangular"))

    def inverse(x: torch.Tensor) -> torch.Tensor:
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand_as(x)
        return torch.linalg.solve_triangular(x, eye, upper=upper, unitriangular=unit)

    made = _made_of(build, a, inverse, f"a system is solved at {build.where}")
    return matmul_tensors(build, *((made, b) if call.kwargs.get("left", True) else (b, made)))


@rule("linalg_solve", "solve")
def solve(build: Builder, call: Call) -> Tensor | None:
    """A X = B or X A = B; a B of one axis less is a vector."""
    a, b = build.arguments(call, "input|A|self", "B|other")
    made = _made_of(build, a, torch.linalg.inv, f"a system is solved at {build.where}")
    if not call.kwargs.get("left", True):
        return matmul_tensors(build, b, made)
    if b.ndim > 1 and b.ndim == a.ndim - 1 and b.shape == a.shape[:-1]:  # a batch of vectors
        columns = build.reshape(b, (*b.shape, 1))
        return build.reshape(matmul_tensors(build, made, columns), b.shape)
    return matmul_tensors(build, made, b)


@rule(
    "linalg_inv", "inverse", "linalg_matrix_exp", "matrix_exp", "linalg_householder_product",
    "orgqr",
)  # fmt: skip
def function_of_a_matrix(build: Builder, call: Call) -> Tensor:
    """A matrix made of all entries of others, whose order and scale stay."""
    reason = f"a matrix is made of another one as a whole at {build.where}"
    return build.opaque_call(call, call.outputs, reason)[0]


def _made_of(
    build: Builder, a: Tensor, compute: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> Tensor:
    """A matrix of the same shape made of another one, which stays as it is."""
    if not a.moves:
        return build.frozen(a.shape, reason, moves=False, recipe=(compute, (a,)))
    for node in a.axes:
        ix.freeze(node, reason)
    out = build.frozen(a.shape, reason)
    return build.emit(Opaque, out, [a], reason=reason, compute=compute)
