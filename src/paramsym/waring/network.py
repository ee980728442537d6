"""Whole networks of the class, and where their powers overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .monomial import RectifiedMonomial
from .polynomial import Polynomial
from .terms import Degrees


def network(
    widths: Sequence[int],
    degrees: Degrees | Sequence[Degrees] = (1, 2, 3),
    power: float | Sequence[float] = 1.0,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    r"""The network f = P_L ∘ σ_{L−1} ∘ … ∘ σ_1 ∘ P_1 with activations that keep their scale.

    Args:
        widths: in, hidden widths…, out: L + 1 numbers for L polynomial layers.
        degrees: of the terms, for all outputs of all layers; or, as a list of L such lists, of
            each layer. What `Polynomial` takes for a single output goes to the layer itself.
        power: p of the rectified monomials; one number, or L − 1.
        generator: of the initial weights.
        dtype: of the weights; default torch's.

    Raises:
        ValueError: fewer than two widths, or numbers of degrees or powers that do not fit them.

    Source: "On a group of invariances in a class of functions", section I.
    """
    layers = len(widths) - 1
    by_layer = [degrees] * layers
    if any(isinstance(own, Sequence) for own in degrees):
        by_layer = [*degrees]
    powers = [*power] if isinstance(power, Sequence) else [power] * (layers - 1)
    if layers < 1 or len(by_layer) != layers or len(powers) != layers - 1:
        raise ValueError(
            f"network: {len(widths)} widths, degrees for {len(by_layer)} layers and {len(powers)} "
            f"powers came; for {max(layers, 1)} layers as many degrees and one power less were "
            "expected. Pass one list of degrees and one power to use them everywhere."
        )
    modules: list[nn.Module] = []
    for at, (inner, outer, own) in enumerate(zip(widths, widths[1:], by_layer, strict=False)):
        following = powers[at] if at < layers - 1 else None
        modules.append(
            Polynomial(inner, outer, own, power=following, generator=generator, dtype=dtype)  # pyright: ignore[reportArgumentType]
        )
        if following is not None:
            modules.append(RectifiedMonomial(following))
    return nn.Sequential(*modules)


@torch.no_grad()
def require_finite(model: nn.Module, *inputs: Any) -> None:
    """Raise an error that names the first layer and term of a model whose power overflows.

    Args:
        model: any module; its `Polynomial` and `RectifiedMonomial` layers are looked at.
        inputs: of the model, as in a call.

    Raises:
        ValueError: a layer's output is not finite where its input is; with the layer's name, the
            output, the term's degree, the size of its form and the largest that the dtype bears.
    """
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, (Polynomial, RectifiedMonomial)):
            handles.append(module.register_forward_hook(_watch(name), with_kwargs=True))
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def _watch(name: str) -> Any:
    def look(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        (x,) = (*args, *kwargs.values())
        if output.isfinite().all() or not x.isfinite().all():
            return
        if isinstance(module, RectifiedMonomial):
            what, degree = f"max(z, 0)^{module.power} at z = {float(x.max()):.3g}", module.power
        else:
            assert isinstance(module, Polynomial)
            what, degree = _overflow(module, x, output)
        raise ValueError(
            f"layer {name!r}: {what} overflows {output.dtype}, which bears up to "
            f"{torch.finfo(output.dtype).max ** (1 / degree):.3g}; finite activations were "
            "expected. Scale the inputs or the weights before it down, lower the degree, or take a "
            "wider dtype."
        )

    return look


def _overflow(layer: Polynomial, x: Tensor, output: Tensor) -> tuple[str, int]:
    """The largest term of the first output that is not finite, or its sum, and the degree."""
    k = int((~output.isfinite()).reshape(-1, output.shape[-1]).any(0).nonzero()[0])
    forms = nn.functional.linear(x, layer.weight, layer.bias).reshape(-1, len(layer.weight))
    sizes = forms[:, layer.rows(k)].abs().amax(0).double()
    degrees = torch.tensor(layer.degrees[k], device=sizes.device)
    most = int((sizes.log() * degrees).argmax())
    size, degree = float(sizes[most]), int(degrees[most])
    if degree * math.log(size) < math.log(torch.finfo(output.dtype).max):
        return f"the sum of output {k}, its largest term of degree {degree},", 1
    return f"the term of degree {degree} of output {k} at a form of size {size:.3g}", degree
