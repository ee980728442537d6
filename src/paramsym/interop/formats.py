"""One function for each tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import nn

from paramsym.interop.blocks import OptimizerGroups, optimizer_groups
from paramsym.interop.exporting import Export, export_scales
from paramsym.interop.spinning import RotationExport, export_rotations
from paramsym.recording.record import Inputs
from paramsym.structure.symmetry import ParameterSymmetry


def awq(symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None) -> Export:
    """The AWQ maps of a model: who absorbs a scale, and all who read it.

    For every space with scales the one module that writes it and every layer whose columns carry
    it: norm → projections, value → output where one vector says it, up → down, routers and shared
    experts. A map is an element of the symmetry for every scale (Lin et al., AWQ, 2023, eq. 4).

    Args:
        symmetry: of the model, from `find_symmetry`.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs; with them all maps are replayed with random scales, and compared.

    Returns:
        Maps by names of modules, what the format cannot say with the reason, and the largest
        relative change of the function. `text()` is a recipe, `objects()` are `AWQMapping`s, a list
        for each modifier.

    A map that changes the function when it is replayed is among the refused ones, as a defect.
    Raises `NotProved` where the others change it all the same; nothing is returned then.
    """
    return export_scales("awq", symmetry, model, inputs)


def smoothquant(
    symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None
) -> Export:
    """The SmoothQuant maps of a model, as for `awq`; a writer has as many rows as there are scales.

    The modifier divides all rows of the writer by s (Xiao et al., SmoothQuant, 2022, eq. 3), so
    that a fused projection cannot be named; everything else is as in `awq`.

    Args:
        symmetry: of the model, from `find_symmetry`.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs, for the replay.

    Returns:
        Maps by names of modules; `objects()` is one list of pairs (balance layers, smooth
        layer).

    Raises `NotProved` as `awq`.
    """
    return export_scales("smoothquant", symmetry, model, inputs)


def quark(symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None) -> Export:
    """The scaling layers of Quark and AutoAWQ, as for `awq`: prev_op, layers, inp, module2inspect.

    Neither converts norms that store their gain less one, so these are refused.

    Args:
        symmetry: of the model, from `find_symmetry`.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs, for the replay.

    Returns:
        Maps by full names of modules; `text()` is JSON with `scaling_layers`.

    Raises `NotProved` as `awq`.
    """
    return export_scales("quark", symmetry, model, inputs)


def spinquant(
    symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None
) -> RotationExport:
    """The rotation maps of a model: what SpinQuant and QuaRot may turn, and the norms to fold.

    Every space whose group has all rotations and that rows and columns of linear layers and
    embeddings alone carry: the stream (R1), values of a head (R2), and latent spaces as well. The
    gain of a norm in between is folded into all who read it (Ashkboos et al., SliceGPT, 2024,
    theorem 1). Centring the embeddings under RMS norm is no symmetry, and is left out.

    Args:
        symmetry: of the model, from `find_symmetry`; of `untied(model)` where the head is tied.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs; with them all rotations are replayed at random, and compared.

    Returns:
        Rotations and norms by names of modules, and what cannot be turned, with the reason.
        `text()` is a recipe, `objects()` is the `SpinQuantModifier`.

    Raises `NotProved` as `awq`.
    """
    return export_rotations(symmetry, model, inputs)


Exports: TypeAlias = Export | RotationExport | OptimizerGroups
_TOOLS: dict[str, Callable[..., Any]] = {
    "awq": awq, "smoothquant": smoothquant, "quark": quark, "spinquant": spinquant,
    "optimizer": lambda symmetry, _model, _inputs: optimizer_groups(symmetry),
}  # fmt: skip


def export(
    tool: str, symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None
) -> Exports:
    """What a tool wants to be told, by the name of the tool.

    Args:
        tool: awq, smoothquant, quark, spinquant or optimizer.
        symmetry: of the model.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs, for the replay.

    Returns:
        What the function of that name returns; each has `text()`.

    Raises:
        ValueError: there is no such tool.
        NotProved: replayed maps change the function.
    """
    if tool not in _TOOLS:
        raise ValueError(f"export(tool={tool!r}): no such tool. Expected one of {[*_TOOLS]}.")
    return _TOOLS[tool](symmetry, model, inputs)
