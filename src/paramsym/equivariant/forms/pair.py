"""A pair of linear maps that are the transpose of each other, each the derivative of the other."""

from typing import Any, Protocol

import torch
from torch import Tensor


class TransposedPair(Protocol):
    """qᵀ and q, not yet differentiable."""

    def transform(self, x: Tensor) -> Tensor:
        """From vectors (N × s) to coefficients (k × N)."""
        ...

    def inverse(self, y: Tensor) -> Tensor:
        """From coefficients (k × N) to vectors (N × s)."""
        ...


def paired(form: TransposedPair, x: Tensor, forwards: bool) -> Tensor:
    """qᵀx or q x, with the other of the two as its derivative."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        # A trace has no place for functions of our own
        return form.transform(x) if forwards else form.inverse(x)
    return Pair.apply(x, form, forwards)  # type: ignore[return-value]


class Pair(torch.autograd.Function):
    """qᵀ or q of one form."""

    @staticmethod
    def forward(x: Tensor, form: TransposedPair, forwards: bool) -> Tensor:  # type: ignore[override]
        return form.transform(x) if forwards else form.inverse(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.form, ctx.forwards = inputs

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return Pair.apply(gradient[0], ctx.form, not ctx.forwards), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return Pair.apply(tangents[0], ctx.form, ctx.forwards)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Further samples, as far as q is concerned."""
        x, form, forwards = args
        if forwards:  # (V, N, s) to (k, V, N)
            samples = x.movedim(in_dims[0], 0)
            rows: Tensor = Pair.apply(samples.flatten(0, 1), form, True)  # type: ignore[assignment]
            return rows.unflatten(1, samples.shape[:2]), 1
        rows = x.movedim(in_dims[0], 1)
        samples = Pair.apply(rows.flatten(1, 2), form, False)  # type: ignore[assignment]
        return samples.unflatten(0, rows.shape[1:]), 0
