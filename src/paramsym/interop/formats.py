"""One function for each tool."""

from __future__ import annotations

from torch import nn

from paramsym.interop.exporting import Export, export
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
        relative change of the function. `text()` is a recipe, `objects()` are `AWQMapping`s.

    Raises `NotProved` where a replayed map changes the function; nothing is returned then.
    """
    return export("awq", symmetry, model, inputs)


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
        Maps by names of modules; `objects()` are pairs (balance layers, smooth layer).

    Raises `NotProved` where a replayed map changes the function.
    """
    return export("smoothquant", symmetry, model, inputs)


def quark(symmetry: ParameterSymmetry, model: nn.Module, inputs: Inputs | None = None) -> Export:
    """The scaling layers of Quark and AutoAWQ, as for `awq`: prev_op, layers, inp, module2inspect.

    Neither converts norms that store their gain less one, so these are refused.

    Args:
        symmetry: of the model, from `find_symmetry`.
        model: for the types of modules; the meta device suffices.
        inputs: example inputs, for the replay.

    Returns:
        Maps by full names of modules; `text()` is JSON with `scaling_layers`.

    Raises `NotProved` where a replayed map changes the function.
    """
    return export("quark", symmetry, model, inputs)
