"""Modules that make a feature axis: where it is in their weight, and where in what they return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules import batchnorm, conv, instancenorm

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)
_NORMS = ("RMSNorm", "LayerNorm")  # how norms that are no module of torch are called


@dataclass(frozen=True)
class Layer:
    """A module with the places of its feature axis.

    Attributes:
        module: it has a `weight`, and perhaps a `bias` along the feature axis.
        name: the path of the module.
        weight_axis: the feature axis of the weight.
        output_axis: that of what the module returns.
        linear: whether what it returns is linear in the weight and adds the bias at last.
    """

    module: nn.Module
    name: str
    weight_axis: int
    output_axis: int
    linear: bool

    @property
    def weight(self) -> str:
        """The name of the weight."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias(self) -> str:
        """The name that the bias has, if there is one."""
        return f"{self.name}.bias" if self.name else "bias"


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """The modules of a model that make a feature axis, by name, in the order of `named_modules`.

    They are linear layers, convolutions and embeddings, and norms with gains; of `transformers`
    also `Conv1D`, whose weight is transposed, and its own norms.
    """
    found: dict[str, Layer] = {}
    for name, module in model.named_modules():
        axes = _axes(module)
        if axes is not None and getattr(module, "weight", None) is not None:
            linear = isinstance(module, (nn.Linear, conv._ConvNd)) or _is_transposed(module)
            found[name] = Layer(module, name, *axes, linear)
    return found


def _axes(module: nn.Module) -> tuple[int, int] | None:
    """The feature axis of the weight and of the output, or None if the kind is not known."""
    if isinstance(module, conv._ConvNd):
        positions = len(module.kernel_size)
        if isinstance(module, _TRANSPOSED):
            return (1, -1 - positions) if module.groups == 1 else None
        return 0, -1 - positions
    if isinstance(module, nn.Linear):
        return 0, -1
    if isinstance(module, nn.Embedding) or _is_transposed(module):
        return 1, -1
    return _axes_of_norm(module)


def _axes_of_norm(module: nn.Module) -> tuple[int, int] | None:
    if isinstance(module, _CHANNELS):
        return 0, 1  # the one axis that is counted from the front: (samples, channels, …)
    weight = getattr(module, "weight", None)
    if type(module).__name__.endswith(_NORMS) and getattr(weight, "ndim", 0) == 1:
        return 0, 1 if getattr(module, "data_format", "") == "channels_first" else -1
    return None


def _is_transposed(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
