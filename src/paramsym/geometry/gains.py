"""The convention that gains which serve as frames are one, as anchors of their scales.

In the frame of a gain γ a rotation R of the stream acts by γ R γ⁻¹, which changes the norm. Where γ
is one in absolute value it keeps it, so that the least norm no longer depends on where in the orbit
of R one starts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paramsym.structure.gains import Unfoldable, folding
from paramsym.structure.layout import widened
from paramsym.structure.origin import Diagonal, added
from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry

GAINS = ("free", "unit")


def require_gains(gains: str) -> None:
    """Refuse what is no convention for gains."""
    if gains not in GAINS:
        raise ValueError(
            f"balance(gains={gains!r}): it is none of {[*GAINS]}. 'free' was expected, where gains "
            "take part as the other parameters do, or 'unit', where those that serve as frames are "
            "folded to one. Pass one of the two."
        )


def unit_scales(
    symmetry: ParameterSymmetry, params: Params
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The scales that make every gain that serves as a frame one in absolute value.

    Returns:
        Scales by space, positive, in the shape of the family; and by gain why it cannot be one: it
        has a zero, or no scale of the symmetry moves it alone.
    """
    scales: dict[str, Tensor] = {}
    kept: dict[str, str] = {}
    frames = symmetry.frame_parameters
    for name in sorted(frames):
        own, origin = {name: widened(params[name].detach())}, symmetry.offsets.get(name, 0.0)
        square = isinstance(origin, Diagonal)
        sign = torch.ones(()) if square else added(own[name], origin).sign()
        try:
            found, _ = folding(symmetry, own, name, sign, frames, scales)
        except Unfoldable as error:
            kept[name] = f"this gain stays as it is: {error.what}"
        else:
            scales |= found
    return scales, kept
