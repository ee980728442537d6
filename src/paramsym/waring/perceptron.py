"""Multilayer perceptrons, read from an `nn.Sequential`, and what their activations compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

_PROBES = (-3.0, -1.5, -1.0, -0.25, 0.0, 0.5, 1.0, 1.75, 3.0)  # where activations are compared
_ROUNDINGS = 1e3


class Stage(NamedTuple):
    """A linear layer and the activation behind it, None behind the last."""

    name: str
    linear: nn.Linear
    activation_name: str
    activation: nn.Module | None


def stages(model: nn.Module, caller: str) -> list[Stage]:
    """The layers of a model of linear layers and activations in turns.

    Args:
        model: an `nn.Sequential`.
        caller: of the error message.

    Raises:
        ValueError: another module, or layers in another order, or no real numbers.
    """
    if not isinstance(model, nn.Sequential):
        raise ValueError(
            f"{caller}(model={type(model).__name__}): an nn.Sequential of nn.Linear and "
            "activations in turns was expected. Write the layers in the order in which they act."
        )
    modules = [*model._modules.items()]  # named_children leaves out what stands twice
    for at, (name, module) in enumerate(modules):
        if isinstance(module, nn.Linear) != (at % 2 == 0):
            wanted = "an activation" if at % 2 else "nn.Linear"
            raise ValueError(
                f"{caller}(model=…): module {name!r} is a {type(module).__name__}, where {wanted} "
                "was expected, since linear layers and activations alternate. Fold a batch norm "
                "into the linear layer before it, and multiply linear layers in a row."
            )
    if len(modules) % 2 == 0:
        raise ValueError(
            f"{caller}(model=…): {len(modules)} modules came, so that none or an activation is "
            "the last; nn.Linear was expected there. Append the identity as nn.Linear."
        )
    found = []
    for (name, linear), (own, activation) in zip(
        modules[::2], [*modules[1::2], ("", None)], strict=True
    ):
        assert isinstance(linear, nn.Linear)
        if not linear.weight.dtype.is_floating_point:
            raise ValueError(
                f"{caller}(model=…): layer {name!r} has weights of {linear.weight.dtype}; real "
                "floating-point ones were expected, since rectifiers order numbers. Write real "
                "and imaginary parts as units of their own."
            )
        found.append(Stage(name, linear, own, activation))
    _require_own(found, caller)
    return found


def _require_own(found: list[Stage], caller: str) -> None:
    if len({id(stage.linear.weight) for stage in found}) < len(found):
        raise ValueError(
            f"{caller}(model=…): {len(found)} linear layers share weights; a tensor for each was "
            "expected, since the copies of a converted network are trained apart. Clone the "
            "layer that stands twice."
        )


@torch.no_grad()
def require_equal(
    stage: Stage, function: Callable[[Tensor], Tensor], written: str, caller: str
) -> None:
    """Raise a `ValueError` unless an activation computes a function, tried on numbers.

    Args:
        stage: whose activation is tried.
        function: what it should compute, entry by entry.
        written: the function in the words of the message.
        caller: of the message.
    """
    activation, weight = stage.activation, stage.linear.weight
    assert activation is not None
    own = [*activation.parameters(), *activation.buffers()]
    z = torch.tensor(_PROBES, dtype=weight.dtype, device=weight.device)
    z = z[:, None].expand(-1, len(weight)).contiguous()
    wanted, why = function(z), "it has parameters or buffers of its own"
    if not own:
        try:
            found = activation(z.clone())
        except Exception as error:  # whatever the module of a user raises
            why = f"it fails with {type(error).__name__}: {error}"
        else:
            bound = _ROUNDINGS * torch.finfo(weight.dtype).eps
            if found.shape == z.shape and torch.allclose(found, wanted, rtol=bound, atol=bound):
                return
            why = "its values at numbers from -3 to 3 are others"
    raise ValueError(
        f"{caller}(model=…): module {stage.activation_name!r}, a {type(activation).__name__}, does "
        f"not compute {written}: {why}. Layers alternate with one fixed function of each entry; "
        "pass the one that the model has, or fold what has parameters into a linear layer."
    )


def require_coefficients(given: Sequence[float]) -> list[float]:
    """The coefficients c_0, c_1, … of a polynomial as numbers.

    Raises:
        ValueError: they are none, not real or not finite.
    """
    numbers = [*given] if isinstance(given, Sequence) and not isinstance(given, str) else []
    if not numbers or not all(isinstance(c, Real) and math.isfinite(c) for c in numbers):
        raise ValueError(
            f"from_activation(coefficients={given!r}): a list of finite real numbers c_0, c_1, … "
            "was expected. Pass [0, 0, 1] for z²."
        )
    return [float(c) for c in numbers]
