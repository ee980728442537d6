"""A pair of linear maps that are the transpose of each other, each the derivative of the other."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from .base import Form


class PairedForm(Form):
    """A form that states qᵀ and q, of which each is the derivative of the other."""

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """From vectors (N × s) to coefficients (k × N), not yet differentiable."""

    @abstractmethod
    def inverse(self, y: Tensor) -> Tensor:
        """From coefficients (k × N) to vectors (N × s), not yet differentiable."""

    def analyse(self, x: Tensor) -> Tensor:
        return _paired(self, x, True)

    def synthesise(self, y: Tensor) -> Tensor:
        return _paired(self, y, False)


def _paired(form: PairedForm, x: Tensor, forwards: bool) -> Tensor:
    """qᵀx or q x, with the other of the two as its derivative."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        # A trace has no place for functions of our own
        return form.transform(x) if forwards else form.inverse(x)
    return Pair.apply(x, form, forwards)  # type: ignore[return-value]


class Pair(torch.autograd.Function):
    """qᵀ or q of one form."""

    @staticmethod
    def forward(x: Tensor, form: PairedForm, forwards: bool) -> Tensor:  # type: ignore[override]
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
