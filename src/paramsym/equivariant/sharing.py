r"""Weight sharing of the encoder and decoder of a component.

In adapted coordinates the factors are block diagonal with blocks I ⊗ realise(·): an entry is a free
weight, a copy of one (another slice of the same irreducible, the other diagonal entry of
[[a, −b], [b, a]]), the negative of one, or zero.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from .component import Component
from .division import MULTIPLICATION

Pattern = NDArray[np.int64]


def weight_sharing(component: Component) -> tuple[Pattern, Pattern]:
    """Which entries of the factors of a component are the same weight.

    Args:
        component: the component, m × n of rank r.

    Returns:
        The encoder's pattern (r × n) and the decoder's (m × r), in adapted coordinates: 0 is no
        edge, ±k is the weight number k ≥ 1 with its sign. Encoder and decoder are numbered through,
        so the largest number is `component.parameter_count`.

    Source: arXiv:2309.13736, weight sharing on encoder and decoder.
    """
    encoders, decoders, used = [], [], 0
    for v, r in zip(component.decomposition.isotypics, component.ranks, strict=True):
        encoder, used = _realised(r, v.source, v.size, used)
        encoders.extend([encoder] * v.slices)
    for v, r in zip(component.decomposition.isotypics, component.ranks, strict=True):
        decoder, used = _realised(v.target, r, v.size, used)
        decoders.extend([decoder] * v.slices)
    return (
        np.asarray(block_diag(*encoders), dtype=np.int64),
        np.asarray(block_diag(*decoders), dtype=np.int64),
    )


def _realised(rows: int, columns: int, size: int, used: int) -> tuple[Pattern, int]:
    """The labels of one block; each coordinate of a number appears once in each of its columns."""
    count = rows * columns * size
    labels = used + 1 + np.arange(count).reshape(rows, columns, size)
    table = MULTIPLICATION[size].astype(np.int64)
    pattern = np.einsum("edc,ckl->ekdl", labels, table).reshape(rows * size, columns * size)
    return pattern, used + count
