"""A network as a function of parameters and inputs, which is what actions and losses are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from paramsym.recording.running import call_at, places_of, preserved, split_inputs

Function = Callable[[dict[str, Tensor], Any], Any]


class Network:
    """(θ, X) ↦ f(X; θ) for a module, which is only read; it runs under `torch.func` transforms.

    Args:
        model: the module.
        training: the mode it runs in.
    """

    def __init__(self, model: nn.Module, training: bool = False) -> None:
        self.model, self.training = model, training

    def __call__(self, params: Mapping[str, Tensor], inputs: Any) -> Any:
        """What the module returns.

        Args:
            params: by name; what is missing is the module's own.
            inputs: a tensor, a tuple of positional inputs, or a dict of keyword arguments.
        """
        with self.running(params) as run:
            return run(dict(params), inputs)

    @contextmanager
    def running(self, like: Mapping[str, Tensor]) -> Iterator[Function]:
        """The same function for many calls with the names of `like`: given back once, at the end.

        To give back all that a run may change takes longer than to run a small network.
        """
        # forward mode does not reach through the fused kernels of attention
        with preserved(self.model, self.training), sdpa_kernel(SDPBackend.MATH):
            buffers = dict(self.model.named_buffers(remove_duplicate=False))
            places = places_of(self.model, {*like, *buffers})

            def run(params: dict[str, Tensor], inputs: Any) -> Any:
                args, kwargs = split_inputs(inputs)
                own = {
                    n: params.get(n, b).clone() for n, b in buffers.items()
                }  # it may write there
                return call_at(self.model, {**params, **own}, args, kwargs, places)

            yield run


@contextmanager
def running(function: Function, like: Mapping[str, Tensor]) -> Iterator[Function]:
    """A function for many calls: networks are given back once."""
    if isinstance(function, Network):
        with function.running(like) as run:
            yield run
    else:
        yield function


def as_function(loss: nn.Module | Function, training: bool = False) -> Function:
    """A module as the function that it computes; functions as they are."""
    return Network(loss, training) if isinstance(loss, nn.Module) else loss


def aliases(model: nn.Module) -> dict[str, str]:
    """Further names of tied parameters, with the first name of each."""
    first = {id(p): n for n, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {n: first[id(p)] for n, p in every if first[id(p)] != n}


def require_tensor(output: Any, place: str) -> Tensor:
    """What a function returned, if it is one tensor of real finite numbers.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(output, torch.Tensor):
        raise ValueError(
            f"{place}: a {type(output).__name__} came back from the network, and one tensor was "
            "expected. Pass a function (params, inputs) -> tensor that picks it."
        )
    if not output.is_floating_point() or not torch.isfinite(output).all():
        raise ValueError(
            f"{place}: the network returned {output.detach().reshape(-1)[:4].tolist()} of "
            f"{output.dtype}, and finite real numbers were expected. Look for NaN among parameters "
            "and inputs, and take outputs before they are counted or rounded."
        )
    return output
