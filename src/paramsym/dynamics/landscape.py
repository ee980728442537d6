"""The loss of a model on fixed data as a function of one vector: what a flow integrates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.recording.precision import converted, converted_inputs, lifted
from paramsym.recording.running import call_at, places_of

Params = dict[str, torch.Tensor]
LossFunction = Callable[[Any], torch.Tensor]

WIDE = torch.float64


class Landscape:
    """θ ↦ L(f(x; θ)) in float64, with θ as one vector; the model is only read.

    θ are the parameters that require a gradient, tied ones once; everything else stays as it is.
    Upcasts to float32 inside the model are lifted where there are any.

    Args:
        model: in the mode in which it runs.
        loss_fn: from what the model returns to a number.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        caller: the name of the function in whose errors this stands.

    Raises:
        ValueError: nothing requires a gradient, a parameter is complex or not finite, or the loss
            is no real number, not finite, not the same twice, not differentiable, or reads weights
            of the model past the outputs.
    """

    def __init__(
        self, model: torch.nn.Module, loss_fn: LossFunction, inputs: Any, caller: str
    ) -> None:
        self.model, self.loss_fn = model, loss_fn
        self.args, self.kwargs = converted_inputs(inputs, WIDE)
        self.rest = converted(model, WIDE)
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        self.place = f"{caller}(model={type(model).__name__})"
        self._check_parameters(trained)
        self.names = trained
        self.shapes = [self.rest[n].shape for n in trained]
        self.start = torch.cat([self.rest.pop(n).reshape(-1) for n in trained])
        self._sizes = [shape.numel() for shape in self.shapes]
        self._places = places_of(model, [*trained, *self.rest])
        first = {id(p): n for n, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self._ties = {n: first[id(p)] for n, p in every if first[id(p)] != n}
        held = first.values()
        self._buffers = [n for n in self.rest if n not in held]  # a forward pass may write to them
        self._lift = False
        self._check()

    def _check_parameters(self, trained: list[str]) -> None:
        """There are some, with real and finite numbers."""
        if not trained:
            raise ValueError(
                f"{self.place}: none of its parameters requires a gradient, so that nothing "
                "flows. Call model.requires_grad_() first, or thaw what is to move."
            )
        if bad := next((n for n in trained if self.rest[n].is_complex()), None):
            raise ValueError(
                f"{self.place}: {bad!r} is complex, real parameters were expected. Store its real "
                "and imaginary part as two parameters."
            )
        if bad := next((n for n in trained if not self.rest[n].isfinite().all()), None):
            raise ValueError(
                f"{self.place}: {bad!r} holds numbers that are not finite, finite ones were "
                "expected. Look where training broke."
            )

    def parts(self, vector: torch.Tensor) -> Params:
        """What flows, by name, as views of a vector."""
        parts = vector.split(self._sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def params(self, vector: torch.Tensor) -> Params:
        """Every parameter and buffer at a vector, which it shares, under all of their names."""
        state = {**self.parts(vector), **self.rest}
        return state | {alias: state[name] for alias, name in self._ties.items()}

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """L at a vector, with its graph where the vector requires a gradient."""
        state = self.params(vector) | {n: self.rest[n].clone() for n in self._buffers}
        args, kwargs = pytree.tree_map(_copied, (self.args, self.kwargs))
        with lifted() if self._lift else contextlib.nullcontext():
            return self.loss_fn(call_at(self.model, state, args, kwargs, self._places))

    def gradient(self, vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """L and ∇L at a vector."""
        theta = vector.detach().requires_grad_()
        loss = self(theta)
        return loss.detach(), torch.autograd.grad(loss, theta)[0]

    def _check(self) -> None:
        """One number, finite, in float64, and the same when asked again."""
        with torch.no_grad():
            self._lift = True
            wide = self(self.start)
            if not isinstance(wide, torch.Tensor) or wide.numel() != 1:
                shape = tuple(wide.shape) if isinstance(wide, torch.Tensor) else type(wide).__name__
                raise ValueError(
                    f"{self.place}: loss_fn(outputs) gave {shape}, one number was expected. Take "
                    "its mean or its sum."
                )
            if not wide.is_floating_point():
                raise ValueError(
                    f"{self.place}: loss_fn(outputs) gave a number of {wide.dtype}, a real one was "
                    "expected. Take a modulus or a square, and no count."
                )
            if not wide.isfinite():
                raise ValueError(
                    f"{self.place}: the loss is {float(wide)}, a finite number was expected. Look "
                    "for NaN among the weights and the inputs."
                )
            if not torch.equal(wide, self(self.start)):
                raise ValueError(
                    f"{self.place}: two evaluations gave two losses, a function of the parameters "
                    "was expected. Call model.eval(), and draw no noise in loss_fn."
                )
            self._lift = False
            try:
                plain = self(self.start)
            except RuntimeError:  # a constant in float32 met a float64
                plain = None
            self._lift = plain is None or plain.dtype != WIDE or not torch.equal(plain, wide)
        self._check_derivative()

    def _check_derivative(self) -> None:
        """Autograd sees the parameters, through the outputs alone, and finds finite slopes."""
        theta = self.start.clone().requires_grad_()
        own = [p for p in self.model.parameters() if p.requires_grad]
        with torch.enable_grad():
            loss = self(theta)
        if not loss.requires_grad:
            raise ValueError(
                f"{self.place}: autograd sees no way from the loss to a parameter, a loss that "
                "depends on the outputs was expected. Is there an .item(), a .detach() or a "
                "torch.no_grad() in between?"
            )
        slope, *past = torch.autograd.grad(loss, [theta, *own], allow_unused=True)
        if slope is None or any(p is not None for p in past):
            raise ValueError(
                f"{self.place}: the loss reads weights of the model itself, as a penalty in "
                "loss_fn does; a function of the outputs was expected. Return what the penalty "
                "needs from the forward pass."
            )
        if not slope.isfinite().all():
            raise ValueError(
                f"{self.place}: the gradient of the loss is not finite, finite numbers were "
                "expected. Look for a root or a norm at zero."
            )


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
