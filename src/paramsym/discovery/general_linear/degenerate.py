"""Where an action of GL_h is not defined: singular g, features that vanish or depend on each other.

Each refusal says where it happened: in which layer, before or after g, at which sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .scales import norms

LIMIT = 1e8  # of condition numbers: half of the digits of float64
_WHOLE = 128  # up to so many units singular values of g cost less than all the rest


class Degenerate(ValueError):
    """A point at which an action that depends on the data is not defined."""


def require_square(g: Tensor, units: int, where: str) -> None:
    """Refuse a matrix of another size than the layer that it is to act on."""
    if g.shape != (units, units):
        raise ValueError(
            f"{where}: g of shape {tuple(g.shape)} came; ({units}, {units}) was expected, one row "
            "and one column for each unit. Draw a matrix of that size."
        )


def require_invertible(g: Tensor, acted_on: Tensor, moved: Tensor, where: str) -> None:
    """Refuse a matrix that is singular, on its whole space or on what it acts on.

    Up to 128 units (or where h ≤ n) the singular values of g decide. Beyond, g enters through
    gV alone, and where rank(gV) = rank(V), an invertible matrix does the same: no h × h matrix is
    decomposed then.

    Args:
        g: of shape (h, h).
        acted_on: V with b as a last column, or whatever else g multiplies: of shape (h, n).
        moved: g times that.
        where: for messages.

    Raises:
        Degenerate: the ratio of singular values, and what to do.
    """
    h = len(g)
    if not bool(torch.linalg.vector_norm(g).isfinite()):
        raise Degenerate(
            f"{where}: g has entries that are not finite, or too large to be squared; an "
            "invertible matrix was expected. Look at what made it."
        )
    if h <= max(_WHOLE, acted_on.shape[1]):
        values = torch.linalg.svdvals(g.detach())
        low, high = float(values[-1]), float(values[0])
        if not low > h * torch.finfo(g.dtype).eps * high:
            raise Degenerate(
                f"{where}: g of size {h} has singular values from {low:.2g} to {high:.2g}; an "
                "invertible matrix was expected, since only these are a group. Add a multiple of "
                "the identity, or take torch.linalg.matrix_exp of your matrix."
            )
        return
    before, after = (int(torch.linalg.matrix_rank(m.detach())) for m in (acted_on, moved))
    if after < before:
        raise Degenerate(
            f"{where}: gV has rank {after} where V has {before}, so that g of size {h} is singular "
            "on what it acts on; an invertible matrix was expected. Add a multiple of the "
            "identity, or take torch.linalg.matrix_exp of your matrix."
        )


def features(
    function: Callable[[Tensor], Tensor], before: Tensor, where: str, limit: float = LIMIT
) -> tuple[Tensor, float]:
    """S = σ(Z) and its condition number, refused where no frame has it as its columns.

    Args:
        function: σ, entrywise.
        before: Z, of shape (h, k).
        where: for messages: "layer 1, after g".
        limit: the largest condition number of S.

    Raises:
        Degenerate: more samples than units; numbers that are not finite; σ(z) = 0 at a sample,
            as for z = 0 with σ(0) = 0, and for a ReLU layer that is closed there; columns that
            depend on each other.
        ValueError: σ gives something else than one real number for each.
    """
    h, k = before.shape
    if not k:
        raise Degenerate(
            f"{where}: a batch of no samples came for {h} units; at least one was expected, since "
            "nothing is to stay in place otherwise. Pass the batch on which outputs are to stay."
        )
    if k > h:
        raise Degenerate(
            f"{where}: a batch of {k} samples came for {h} units; at most as many samples as units "
            "were expected, since no matrix takes σ(Z) to σ(gZ) in general beyond. Take "
            f"{h} samples or fewer (tokens and positions count as samples), or a wider layer."
        )
    if not bool(before.isfinite().all()):
        raise Degenerate(
            f"{where}: what the function gets has entries that are not finite; numbers were "
            "expected. Look at the parameters and the batch."
        )
    found = function(before)
    _require_entrywise(found, before, where)
    sizes = norms(found.detach())
    tiny = torch.finfo(found.dtype).tiny
    for sample in (~(sizes >= tiny) | ~sizes.isfinite()).nonzero().flatten().tolist():
        at = float(norms(before[:, sample].detach()))
        raise Degenerate(
            f"{where}: σ(z) has norm {float(sizes[sample]):.2g} at sample {sample}, where |z| is "
            f"{at:.2g}; a vector other than zero was expected, because no frame begins with zero. "
            "Leave that sample out (it is one of Vx = 0, or one on which the layer is closed), or "
            "move by another element."
        )
    condition = _condition(found.detach())
    if not condition <= limit:
        raise Degenerate(
            f"{where}: σ(Z) of {k} samples has condition number {condition:.2g}; at most "
            f"{limit:.2g} was expected, for independent samples. Activations do not preserve full "
            "rank: leave samples out, or move by another element."
        )
    return found, condition


def _require_entrywise(found: object, before: Tensor, where: str) -> None:
    if isinstance(found, Tensor) and (found.shape, found.dtype) == (before.shape, before.dtype):
        return
    came = f"a {type(found).__name__}"
    if isinstance(found, Tensor):
        came = f"{found.dtype} of shape {tuple(found.shape)}"
    raise ValueError(
        f"{where}: the function gave {came} for {before.dtype} of shape {tuple(before.shape)}, and "
        "one number for each was expected, in the same dtype. Pass an entrywise function such as "
        "torch.tanh."
    )


def _condition(columns: Tensor) -> float:
    if columns.shape[1] == 1:
        return 1.0
    scaled = columns / norms(columns).max()
    values = torch.linalg.svdvals(torch.linalg.qr(scaled, mode="r")[1])
    return float(values[0] / values[-1]) if float(values[-1]) else float("inf")
