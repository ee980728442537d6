"""Sparse autoencoders, control vectors and probes, known by the names that they are saved under.

What reads activations x carries the dual of their space, and what adds to them the space itself:

    features = σ(W_enc (x − b_dec) + b_enc)    W_enc (features, s*)
    x' = W_dec features + b_dec                W_dec (s, features), b_dec (s)

Names say who reads and who writes, sizes say which axis and which stream: a space that several
weights carry as it is, before any norm. Where either leaves a choice, nothing is guessed.
"""

from __future__ import annotations

import re

from paramsym.artefacts.artefact import Tensors, Types
from paramsym.artefacts.refusals import refused
from paramsym.artefacts.stated import streams
from paramsym.structure.axes import AxisType, Fixed, parse_axis
from paramsym.structure.symmetry import ParameterSymmetry

# the power of the space that a tensor of this name carries; 0 where it stays
_NAMES = {
    r"W_enc|encoder\.weight|enc\.weight|probe|probe\.weight|W_probe": -1,
    r"W_dec|decoder\.weight|dec\.weight|b_dec|decoder\.bias|dec\.bias|b_pre|pre_bias": 1,
    r"directions?(\.\d+)?|(control|steering)_vectors?(\.\d+)?": 1,
    r"b_enc|encoder\.bias|enc\.bias|latent_bias|b_gate|b_mag|r_mag|(log_)?threshold|probe\.bias": 0,
}


def found_types(tensors: Tensors, symmetry: ParameterSymmetry) -> dict[str, Types]:
    """The types of the tensors whose names and shapes leave no choice; the others are left out.

    Raises:
        CheckpointError: a name is known, and several spaces or axes have its size.
    """
    powers = {name: _power(name) for name in tensors}
    meeting = {name: power for name, power in powers.items() if power}
    if not meeting:
        return {}
    texts = {s for name in meeting for n in tensors[name].shape for s in streams(symmetry, n)}
    if len(texts) != 1:
        shapes = {name: tuple(tensors[name].shape) for name in meeting}
        raise refused(
            repr(next(iter(meeting))), f"the sizes {shapes} are those of "
            f"{', '.join(sorted(texts)) or 'no stream'}, and names do not say which is meant",
            "one stream of the model that is read or added to",
            f"State the types, types={{name: '{min(texts, default='residual')}, 128'}}; "
            "readings(model, symmetry, params, inputs) gives those of each layer's activations",
        )  # fmt: skip
    stream = parse_axis(*texts)
    types: dict[str, Types] = {}
    for name, power in powers.items():
        if power is not None:
            types[name] = _placed(name, tensors, symmetry, stream, power)
    return types


def _power(name: str) -> int | None:
    """What the name of a tensor says; None where it says nothing."""
    said = (power for names, power in _NAMES.items() if re.search(rf"(^|\.)({names})$", name))
    return next(said, None)


def _placed(
    name: str, tensors: Tensors, symmetry: ParameterSymmetry, stream: AxisType, power: int
) -> Types:
    """The type of a tensor that carries a stream along the one axis of its size, or none."""
    shape, size = tuple(tensors[name].shape), stream.size(symmetry.sizes)
    if not power:
        return tuple(map(Fixed, shape))
    if shape.count(size) != 1:
        raise refused(
            repr(name), f"its shape is {shape}, and '{stream}' has {size} coordinates",
            "one axis of that size", f"State its type, types={{{name!r}: '…'}}; where no axis has "
            "the size, it belongs to another model",
        )  # fmt: skip
    own = stream if power > 0 else stream.T
    return tuple(own if n == size else Fixed(n) for n in shape)
