"""Low-rank adapters ΔW = s B A, merged so that the basis they are written in does not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from paramsym.merging.shares import normalised

Pair: TypeAlias = tuple[Tensor, Tensor]  # B of shape (outputs, rank), A of shape (rank, inputs)
METHODS = ("products", "aligned")


@dataclass(frozen=True)
class MergedAdapter:
    """One adapter from several, ΔW = scaling · B A.

    Attributes:
        B, A: of shapes (outputs, rank) and (rank, inputs); of "products" with BᵀB = AAᵀ diagonal.
        scaling: that of the first of the adapters given.
        errors: by method |ΔW − mean| / |mean| in the Frobenius norm, with the mean of the given
            ΔW: "products", "aligned", and "naive" for averages of B and of A as they are written;
            NaN where ranks differ, so that there is no average of factors.
        error: that of the method that made the pair.
    """

    B: Tensor
    A: Tensor
    scaling: float
    errors: dict[str, float]
    error: float

    @property
    def rank(self) -> int:
        """The inner dimension of the pair."""
        return self.A.shape[0]


@torch.no_grad()
def merge_adapters(
    pairs: Sequence[Pair],
    weights: Sequence[float] | None = None,
    rank: int | None = None,
    method: str = "products",
    scaling: float | Sequence[float] = 1.0,
) -> MergedAdapter:
    """The mean of low-rank adapters ΔW_i = s_i B_i A_i of one weight.

    B A = (B g⁻¹)(g A) for every g of GL(r): factors say nothing by themselves, and the product of
    their means has cross terms B_i A_j that depend on these bases.

        products   the best approximation of Σ wᵢ ΔWᵢ of the wanted rank: a truncated singular
                   value decomposition, by QR factors of the stacked B and A; ΔW is never formed
        aligned    every pair is balanced, BᵀB = AAᵀ, which leaves O(r), turned next to the first
                   by the orthogonal Procrustes problem, and averaged factor by factor

    Neither depends on the bases of the given pairs. "products" has the least error that the rank
    allows; "aligned" keeps the rank and interpolates in factors.

    Args:
        pairs: (B, A) of shapes (outputs, rank) and (rank, inputs), as `lora_B.weight` and
            `lora_A.weight`; ranks may differ for "products".
        weights: of the pairs, positive; all alike by default.
        rank: of the result; by default the largest that came. "aligned" keeps that of the pairs.
        method: "products" or "aligned".
        scaling: α/r of each adapter, or one number for all; not zero.

    Returns:
        A `MergedAdapter`, with the errors of all methods beside each other.

    Raises:
        ValueError: no pairs, factors that are no matrices, do not fit or are not finite, a rank
            beyond what the pairs span, an unknown method, or ranks that differ for "aligned".

    Source: Eckart and Young, "The approximation of one matrix by another of lower rank" (1936);
    Schönemann, "A generalized solution of the orthogonal Procrustes problem" (1966).
    """
    if method not in METHODS:
        raise ValueError(
            f"merge_adapters(method={method!r}): it is none of {[*METHODS]}, one of which was "
            "expected. Pass method='products' for the least error."
        )
    shares = normalised("merge_adapters", weights, len(pairs))
    _require_pairs(pairs)
    scales = _scales(scaling, len(pairs))
    # in double precision: sums over thousands of entries, and the errors are to be believed
    scaled = [(s * B.double(), A.double()) for s, (B, A) in zip(scales, pairs, strict=True)]
    ranks = {A.shape[0] for _, A in pairs}
    _require_rank(rank, ranks, pairs, method)
    mean = (
        torch.cat([w * B for w, (B, _) in zip(shares, scaled, strict=True)], 1),
        torch.cat([A for _, A in scaled], 0),
    )
    found = {"products": truncated(mean, rank or max(ranks))}
    if len(ranks) == 1:
        found["aligned"] = _averaged(_in_one_gauge(scaled), shares)
        found["naive"] = _averaged(scaled, shares)
    size = product_norm(*mean)
    errors = {n: _relative(_apart(pair, mean), size) for n, pair in found.items()}
    errors = {n: errors.get(n, math.nan) for n in (*METHODS, "naive")}
    (B, A), first, dtype = found[method], scales[0], pairs[0][0].dtype
    root = math.sqrt(abs(first))
    B, A = (B / math.copysign(root, first)).to(dtype), (A / root).to(dtype)
    return MergedAdapter(B, A, first, errors, errors[method])


def truncated(pair: Pair, rank: int) -> Pair:
    """The best approximation of B A of some rank, balanced: BᵀB = AAᵀ is diagonal.

    B (m, R) and A (R, n) are reduced by QR to a core of at most R × R, whose singular values are
    those of the product.
    """
    outer, left = torch.linalg.qr(pair[0])
    inner, right = torch.linalg.qr(pair[1].mH)
    U, S, Vh = torch.linalg.svd(left @ right.mH, full_matrices=False)
    root = S[:rank].sqrt().to(U.dtype)
    return (outer @ U[:, :rank]) * root, root[:, None] * (Vh[:rank] @ inner.mH)


def product_norm(B: Tensor, A: Tensor) -> float:
    """|B A| in the Frobenius norm, from the QR factors."""
    return float((torch.linalg.qr(B).R @ torch.linalg.qr(A.mH).R.mH).norm())


def _apart(pair: Pair, mean: Pair) -> float:
    return product_norm(torch.cat([pair[0], -mean[0]], 1), torch.cat([pair[1], mean[1]], 0))


def _relative(apart: float, size: float) -> float:
    return apart / size if size else (0.0 if not apart else math.inf)


def _in_one_gauge(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs, balanced and turned by O(r) next to the first.

    |Bᵢ O − B₁|² + |Oᵀ Aᵢ − A₁|² is least at the orthogonal polar factor of Bᵢᵀ B₁ + Aᵢ A₁ᵀ.
    """
    balanced = [padded(truncated(pair, pair[1].shape[0]), pair[1].shape[0]) for pair in pairs]
    first = balanced[0]
    turned = []
    for B, A in balanced:
        U, _, Vh = torch.linalg.svd(B.mH @ first[0] + A @ first[1].mH)
        turn = U @ Vh
        turned.append((B @ turn, turn.mH @ A))
    return turned


def padded(pair: Pair, rank: int) -> Pair:
    """The same product with zeros up to a rank, where a factor has fewer rows or columns."""
    short = rank - pair[1].shape[0]
    if not short:
        return pair
    return torch.nn.functional.pad(pair[0], (0, short)), torch.nn.functional.pad(
        pair[1], (0, 0, 0, short)
    )


def _averaged(pairs: Sequence[Pair], shares: Sequence[float]) -> Pair:
    return (
        torch.stack([w * B for w, (B, _) in zip(shares, pairs, strict=True)]).sum(0),
        torch.stack([w * A for w, (_, A) in zip(shares, pairs, strict=True)]).sum(0),
    )


def _scales(scaling: float | Sequence[float], count: int) -> list[float]:
    scales = [*scaling] if isinstance(scaling, Sequence) else [scaling] * count
    if len(scales) != count or not all(s and math.isfinite(s) for s in scales):
        raise ValueError(
            f"merge_adapters(scaling={scaling}): one number other than zero was expected for all "
            f"{count} pairs, or one for each. Pass alpha / r of the adapters."
        )
    return [float(s) for s in scales]


def _require_pairs(pairs: Sequence[Pair]) -> None:
    outputs, inputs = pairs[0][0].shape[:1], pairs[0][1].shape[-1:]
    for k, (B, A) in enumerate(pairs):
        shapes = f"B {tuple(B.shape)} and A {tuple(A.shape)}"
        fits = B.ndim == A.ndim == 2 and B.shape[1] == A.shape[0]
        if not fits or B.shape[:1] != outputs or A.shape[1:] != inputs:
            raise ValueError(
                f"merge_adapters(pairs=…): pair {k} has {shapes}, and matrices (outputs, rank) and "
                "(rank, inputs) were expected, of the same outputs and inputs throughout. Pass "
                "(lora_B.weight, lora_A.weight); flatten kernels of convolutions first."
            )
        if B.dtype != A.dtype or not B.dtype.is_floating_point or B.dtype.itemsize < 2:
            raise ValueError(
                f"merge_adapters(pairs=…): pair {k} has dtypes {B.dtype} and {A.dtype}, and one "
                "of real numbers was expected, half precision or more. Convert them first."
            )
        if not bool(B.isfinite().all() and A.isfinite().all()):
            raise ValueError(
                f"merge_adapters(pairs=…): pair {k} holds numbers that are not finite, and finite "
                "ones were expected. Look where training broke."
            )


def _require_rank(rank: int | None, ranks: set[int], pairs: Sequence[Pair], method: str) -> None:
    if method == "aligned" and (len(ranks) > 1 or rank not in (None, *ranks)):
        raise ValueError(
            f"merge_adapters(method='aligned', rank={rank}): the pairs have ranks {sorted(ranks)}, "
            "and one rank was expected throughout, and kept. Pass method='products', which allows "
            "any."
        )
    most = min(sum(A.shape[0] for _, A in pairs), pairs[0][0].shape[0], pairs[0][1].shape[1])
    if rank is not None and not 1 <= rank <= most:
        raise ValueError(
            f"merge_adapters(rank={rank}): a rank between 1 and {most} was expected, which the "
            "pairs span. Leave it out for the largest of theirs."
        )
