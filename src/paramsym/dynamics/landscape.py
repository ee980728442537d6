"""The loss of a model on fixed data as a function of one vector: what a flow integrates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

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
        ValueError: nothing requires a gradient, a parameter is complex, the loss is no number, not
            finite, or not the same twice.
    """

    def __init__(
        self, model: torch.nn.Module, loss_fn: LossFunction, inputs: Any, caller: str
    ) -> None:
        self.model, self.loss_fn = model, loss_fn
        self.args, self.kwargs = converted_inputs(inputs, WIDE)
        self.rest = converted(model, WIDE)
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        self.place = f"{caller}(model={type(model).__name__})"
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
        self.names = trained
        self.shapes = [self.rest[n].shape for n in trained]
        self.start = torch.cat([self.rest.pop(n).reshape(-1) for n in trained])
        self._sizes = [shape.numel() for shape in self.shapes]
        self._places = places_of(model, [*trained, *self.rest])
        self._writes = model.training and bool(self.rest)
        self._lift = False
        self._check()

    def parts(self, vector: torch.Tensor) -> Params:
        """What flows, by name, as views of a vector."""
        parts = vector.split(self._sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def params(self, vector: torch.Tensor) -> Params:
        """The complete state dict at a vector, which it shares."""
        return {**self.parts(vector), **self.rest}

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """L at a vector, with its graph where the vector requires a gradient."""
        state = self.params(vector)
        if self._writes:  # batch statistics
            state |= {n: t.clone() for n, t in self.rest.items()}
        with lifted() if self._lift else contextlib.nullcontext():
            return self.loss_fn(call_at(self.model, state, self.args, self.kwargs, self._places))

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
