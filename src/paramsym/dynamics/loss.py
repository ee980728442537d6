"""The loss of a model as a function of its parameters, which the model itself does not notice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.arguments import module_of
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.precision import converted_inputs, lifted, plain_lookups
from paramsym.recording.record import Inputs
from paramsym.recording.running import call_at, exclusive, places_of, preserved, seeded

State = Mapping[str, torch.Tensor]
_COPIES = 2  # draws of what may be random


class NotFinite(ValueError):
    """A loss, or what is derived from it, is no finite number."""


@dataclass(frozen=True)
class Evaluated:
    """The loss, and the outputs that it may depend on."""

    value: torch.Tensor
    outputs: list[torch.Tensor]


class ModelLoss:
    """θ ↦ loss_fn(model(inputs; θ)), in the precision of the parameters.

    Everything happens inside of `running`, where the model has the wanted mode; afterwards it has
    its own again, with its buffers and its counters. Where parameters are float64, upcasts to
    float32 inside the model are lifted to it. Embeddings have the derivative of the function: no
    row's gradient is suppressed.

    Args:
        model: it is only read.
        loss_fn: from what the model returns, or what `outputs` chooses of it, to a real number.
        inputs: a tuple, or a dict of keyword arguments; they get the precision of the parameters.
        caller: the public function in whose name errors speak.
        outputs: which tensors count, as for `find_symmetry`.
        training: the mode in which the model runs.
        dtype: the precision of parameters, buffers and inputs; by default the model's own.

    Raises:
        ValueError: parameters without numbers, or with some that are not finite.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[[Any], torch.Tensor],
        inputs: Inputs,
        caller: str,
        outputs: Callable[[Any], Any] | None = None,
        training: bool = False,
        dtype: torch.dtype | None = None,
    ):
        model = module_of(model)
        self.model, self.loss_fn, self.inputs, self.caller = model, loss_fn, inputs, caller
        self.choose, self.training = outputs, training
        with exclusive:  # another thread may have put substitutes into the model
            self.own = dict(model.named_parameters())
            buffers = {n: b.detach() for n, b in model.named_buffers()}
        params = {n: p.detach() for n, p in self.own.items()}
        _require_numbers(model, params, buffers, caller)
        kinds = [p.dtype.to_real() for p in params.values() if has_values(p)]
        self.dtype = dtype or next(iter(kinds), torch.float32)
        self.params = params if dtype is None else {n: _in(p, dtype) for n, p in params.items()}
        self.buffers = buffers if dtype is None else {n: _in(b, dtype) for n, b in buffers.items()}
        self.arguments = converted_inputs(inputs, self.dtype)
        self._places = places_of(model, {**self.params, **self.buffers}.keys())

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers, as the model holds them."""
        return {**self.params, **self.buffers}

    def in_double(self) -> ModelLoss:
        """The same loss in float64."""
        return ModelLoss(
            self.model, self.loss_fn, self.inputs, self.caller, self.choose, self.training,
            torch.float64,
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        """The mode and the precision in which the loss is evaluated and differentiated."""
        with exclusive:
            kept = lifted() if self.dtype == torch.float64 else plain_lookups()
            with kept, preserved(self.model, self.training), torch.enable_grad():
                yield

    def at(self, state: State) -> Evaluated:
        """The loss at some parameters and buffers, differentiable by those that ask for it.

        Raises:
            ValueError: the loss is no real number.
        """
        chosen = self._returned(state)
        value = self.loss_fn(chosen)
        self._require_number(value)
        return Evaluated(value.reshape(()), floating_outputs(chosen))

    def function(self, state: State) -> list[torch.Tensor]:
        """The outputs at some parameters and buffers."""
        with self.running(), torch.no_grad():
            return floating_outputs(self._returned(state))

    def _returned(self, state: State) -> Any:
        """What the loss is computed from; a forward pass may write to buffers and inputs."""
        held = {n: t if n in self.params else t.clone() for n, t in state.items()}
        args, kwargs = pytree.tree_map(_copied, self.arguments)
        returned = call_at(self.model, held, args, kwargs, self._places)
        return returned if self.choose is None else self.choose(returned)

    def leaves(self, params: State) -> dict[str, torch.Tensor]:
        """Copies to differentiate by, frozen parameters among them."""
        return {
            n: p.detach().clone().requires_grad_() if has_values(p) else p
            for n, p in params.items()
        }

    def gradient(self, params: State) -> dict[str, torch.Tensor | None]:
        """∂L/∂θ at some parameters; None where autograd sees no way to the loss.

        Raises:
            ValueError: the loss or a gradient is no finite number, or autograd sees no way at all.
        """
        leaves = self.leaves(params)
        moving = {n: p for n, p in leaves.items() if p.requires_grad}
        with self.running():
            value = self.at({**self.buffers, **leaves}).value
            self.require_way(value)
            found = torch.autograd.grad(value, [*moving.values()], allow_unused=True)
        for name, slope in zip(moving, found, strict=True):
            if slope is not None and not bool(slope.isfinite().all()):
                raise NotFinite(
                    f"{self.caller}(loss_fn=…): the gradient of {name!r} holds numbers that are "
                    f"not finite, at a loss of {value.item():.3g}. Finite ones were expected; look "
                    "for a root at zero or an overflow behind that parameter."
                )
        return dict(zip(moving, found, strict=True))

    def require_way(self, value: torch.Tensor) -> None:
        """Refuse a loss that autograd cannot differentiate."""
        if not value.requires_grad:
            raise ValueError(
                f"{self.caller}(loss_fn=…): autograd sees no way from the loss to any parameter. A "
                "loss that depends on the outputs was expected; is there an .item(), a .detach(), "
                "a torch.no_grad() or an inference_mode in between?"
            )

    def require_of_outputs(self) -> None:
        """Refuse a loss that depends on the parameters by another way than the named outputs.

        With the gradients of the outputs held at zero nothing may reach the parameters, neither
        those that were put into the model nor its own.

        Raises:
            ValueError: something does.
        """
        leaves = self.leaves(self.params)
        ways = [(n, p) for each in (leaves, self.own) for n, p in each.items() if p.requires_grad]
        with self.running():
            found = self.at({**self.buffers, **leaves})
            self.require_way(found.value)
            for y in found.outputs:
                if y.requires_grad:
                    y.register_hook(torch.zeros_like)
            slopes = torch.autograd.grad(found.value, [p for _, p in ways], allow_unused=True)
        past = _moved(ways, slopes)
        if past:
            self._require_linear()
            raise ValueError(
                f"{self.caller}(loss_fn=…): the loss depends on {_few(past)} also past the outputs "
                f"({len(found.outputs)} tensors), as a penalty on weights does. A function of the "
                "outputs was expected, since orbits keep these alone. Leave the penalty out, and "
                "let outputs=… choose all that the loss reads, here as in find_symmetry."
            )

    def _require_linear(self) -> None:
        """Refuse a backward that makes something of nothing, which looks like a penalty."""
        leaves = self.leaves(self.params)
        ways = [(n, p) for n, p in leaves.items() if p.requires_grad]
        with self.running():
            outputs = floating_outputs(self._returned({**self.buffers, **leaves}))
            followed = [y for y in outputs if y.requires_grad]
            if not followed:
                return
            nothing = [torch.zeros_like(y) for y in followed]
            slopes = torch.autograd.grad(followed, [p for _, p in ways], nothing, allow_unused=True)
        if found := _moved(ways, slopes):
            raise ValueError(
                f"{self.caller}(model={type(self.model).__name__}): where the gradient of its "
                f"outputs is zero, its backward gives another one to {_few(found)}. A backward "
                "that is linear was expected. Look for a custom one behind that parameter that "
                "adds something, or for an auxiliary loss inside the model; leave that out."
            )

    def require_repeatable(self) -> None:
        """Refuse a model that draws random numbers: its function is another one in each run.

        Raises:
            ValueError: two runs differ.
        """
        runs, drew = [], False
        for seed in range(_COPIES):
            with self.running(), torch.no_grad():
                seeded(seed)
                before = torch.get_rng_state()
                runs.append(floating_outputs(self._returned(self.state)))
                drew = drew or not torch.equal(before, torch.get_rng_state())
        # kernels that add in any order differ by roundings, generators of a model's own by more
        allowed = 0.0 if drew else math.sqrt(torch.finfo(self.dtype).eps)
        if all(_near(y, z, allowed) for y, z in zip(*runs, strict=True)):
            return
        drops = [
            n for n, m in self.model.named_modules()
            if "Dropout" in type(m).__name__ and getattr(m, "p", 0)
        ]  # fmt: skip
        where = f" ({_few(drops)} of the model drop)" if drops and self.training else ""
        raise ValueError(
            f"{self.caller}(model={type(self.model).__name__}, training={self.training}): two runs "
            f"at the same parameters differ, so that the model draws random numbers{where}. A "
            "function of parameters and inputs was expected. Pass training=False, set the "
            "probability of dropout to zero, or leave noise to loss_fn, where it does no harm."
        )

    def _require_number(self, value: Any) -> None:
        single = isinstance(value, torch.Tensor) and value.numel() == 1
        if not single or not value.is_floating_point():
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ""
            kind = f" of {value.dtype}" if isinstance(value, torch.Tensor) else ""
            raise ValueError(
                f"{self.caller}(loss_fn=…): it returned a {type(value).__name__} {shape}{kind}, "
                "and one real number that autograd can follow was expected. Take a mean or a sum."
            )
        if not bool(value.isfinite()):
            raise NotFinite(
                f"{self.caller}(loss_fn=…): the loss is {value.item()}, and a finite number was "
                "expected. Look at the inputs and at where training broke."
            )


def _require_numbers(model: torch.nn.Module, params: State, buffers: State, caller: str) -> None:
    """Refuse parameters that cannot be computed with."""
    where = f"{caller}(model={type(model).__name__})"
    for name, tensor in {**params, **buffers}.items():
        if tensor.is_meta:
            raise ValueError(
                f"{where}: {name!r} is on the device 'meta' and has no numbers, and numbers were "
                "expected. Load the weights first."
            )
        if name in params and not bool(tensor.isfinite().all()):
            raise ValueError(
                f"{where}: {name!r} holds numbers that are not finite, and finite ones were "
                "expected. Look where training broke."
            )


def _moved(
    ways: Sequence[tuple[str, torch.Tensor]], slopes: Sequence[torch.Tensor | None]
) -> list[str]:
    """The names that a gradient of nothing reaches all the same."""
    return [n for (n, _), g in zip(ways, slopes, strict=True) if g is not None and bool(g.any())]


def _in(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in a precision, complex ones in that of their parts; integers as they are."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _near(y: torch.Tensor, z: torch.Tensor, allowed: float) -> bool:
    """Whether two outputs are equal up to an error relative to the largest entry."""
    if y.shape != z.shape:
        return False
    size = float(y.abs().max()) if y.numel() else 0.0
    return torch.equal(y, z) or bool((y - z).abs().max() <= allowed * size)


def has_values(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
