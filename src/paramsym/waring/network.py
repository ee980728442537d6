"""Whole networks of the class, and where their powers overflow."""

from __future__ import annotations

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
    if degrees and isinstance(degrees[0], Sequence):
        by_layer = [*degrees]
    powers = [power] * (layers - 1) if isinstance(power, (int, float)) else [*power]
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
            handles.append(module.register_forward_hook(_watch(name)))
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def _watch(name: str) -> Any:
    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        (x,) = args
        if output.isfinite().all() or not x.isfinite().all():
            return
        if isinstance(module, RectifiedMonomial):
            what = f"max(z, 0)^{module.power} at z = {float(x.max()):.3g}"
            degree = float(module.power)
        else:
            assert isinstance(module, Polynomial)
            what, degree = _largest_term(module, x)
        limit = float(torch.finfo(output.dtype).max) ** (1 / degree)
        raise ValueError(
            f"layer {name!r}: {what} overflows {output.dtype}, which bears up to {limit:.3g}; "
            "finite activations were expected. Scale the inputs or the weights before it down, "
            "lower the degree, or take a wider dtype."
        )

    return look


def _largest_term(layer: Polynomial, x: Tensor) -> tuple[str, float]:
    """The term whose power is the largest, in words, and its degree."""
    forms = nn.functional.linear(x, layer.weight, layer.bias).abs()
    sizes = forms.reshape(-1, forms.shape[-1]).amax(0)
    found = [
        (float(sizes[row].log()) * degree, k, degree, float(sizes[row]))
        for k, kinds in enumerate(layer.kinds)
        for (degree, _), row in zip(kinds, layer.rows(k), strict=True)
    ]
    _, k, degree, size = max(found)
    return f"the term of degree {degree} of output {k} at a form of size {size:.3g}", degree
