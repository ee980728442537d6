"""How far a fitting batch determines the correction: by the rank of σ(H), not by its columns."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from paramsym.checking.pointwise import PointwiseSite

_NOISE = 4  # roundings of a layer, relative to the largest singular value


def told_rank(after: Tensor, precision: torch.dtype, site: PointwiseSite) -> int:
    """The rank of σ(H), with a warning where it is lower than that of a batch in general position.

    Units that are zero on the whole batch, like dead ones behind a ReLU, need no correction and
    are not missed.

    Args:
        after: σ(H), (h, k), k ≥ h.
        precision: in which the model has computed H; what is less than its rounding is no rank.
        site: for the message.
    """
    values = torch.linalg.svdvals(after)
    noise = max(_NOISE * torch.finfo(precision).eps, max(after.shape) * 2.0**-52)
    rank = int((values > noise * values[0]).sum())
    live = int(after.ne(0).any(1).sum())
    if rank < live:
        warnings.warn(
            f"OrbitEnsemble(inputs=…): after {site.name} at {site.where} the fitting batch has "
            f"rank {rank} for {live} units that are not zero, so that it does not determine the "
            "correction: members agree on it and are arbitrary elsewhere. Pass samples that "
            "differ by more, or more of them; only for units that depend on each other on all "
            "samples is it without consequence.",
            stacklevel=3,
        )
    return rank


def tell_lost(ranks: list[int], rank: int) -> None:
    """Warn of members that lose directions of σ(H), which no correction gives back."""
    fewer = sum(each < rank for each in ranks)
    if fewer:
        warnings.warn(
            f"OrbitEnsemble(strength=…): σ(gH) has a lower rank than the {rank} of σ(H) for "
            f"{fewer} of {len(ranks)} members, which lose what no correction gives back. Draw "
            "them anew, or with less strength; `fits` has their residuals.",
            stacklevel=3,
        )
