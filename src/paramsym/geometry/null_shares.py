"""What of a tensor a projected shift takes away, alike in all points of one orbit."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from paramsym.geometry.costs import scales_of
from paramsym.structure.shift import Factor, Params, Window
from paramsym.structure.sliding import projector
from paramsym.structure.symmetry import ParameterSymmetry


def null_share(
    symmetry: ParameterSymmetry,
    factor: Factor,
    params: Params,
    still: Collection[str],
    rest: Tensor,
    letters: str,
) -> tuple[Tensor, str]:
    """What of a tensor lies where a projector leads, and its letters, the letter of δ among them.

    Two points of one orbit are to lose what corresponds. A rotation keeps the orthogonal
    complement of the null space of S, a scaling D does not; but it keeps C⁻¹ times the complement,
    for C the diagonal of SᵀS, and under GL(n) every complement will do.
    """
    out, into = factor.window.letters[:2]
    onto = projector(factor, params, rest)
    onto = onto.permute(*range(2, onto.ndim), 0, 1)
    if any(_is_scaled(symmetry, window, still) for window in factor.kernel):
        size = _lengths(factor, params, rest)
        left, values, _ = torch.linalg.svd(size[..., None] * onto)
        kept = left * (values > 1e-9 * values[..., :1].clamp(min=1e-300))[..., None, :]
        onto = (kept @ kept.mH) * size[..., None, :] / size[..., None]
    batch = factor.window.letters[2:]
    made = torch.einsum(onto, _places(batch + into + out), rest, _places(letters),
                        _places(letters.replace(out, into)))  # fmt: skip
    return made, letters.replace(out, into)


def _places(letters: str) -> list[int]:
    """Letters as einsum numbers them."""
    return [ord(letter) - ord("a") if letter >= "a" else ord(letter) - ord("A") + 26
            for letter in letters]  # fmt: skip


def _lengths(factor: Factor, params: Params, like: Tensor) -> Tensor:
    """The lengths of all columns of S along x, of shape (*batch, n)."""
    sizes, total = factor.window.shape[2:], 0.0
    batch = [chr(ord("A") + k) for k in range(len(sizes))]
    for window in factor.kernel:
        letters = window.letters
        view = window.view(params).to(like).abs().square()
        summed = [k for k, c in enumerate(letters) if c != "x" and c not in batch]
        view = view.sum(summed) if summed else view
        kept = [c for k, c in enumerate(letters) if k not in summed]
        view = view.permute([kept.index(c) for c in (*batch, "x") if c in kept])
        view = view[tuple(slice(None) if c in kept else None for c in (*batch, "x"))]
        total = total + view.expand(*sizes, view.shape[-1])
    root = torch.as_tensor(total).sqrt()
    return torch.where(root > 0, root, 1.0)


def _is_scaled(symmetry: ParameterSymmetry, window: Window, still: Collection[str]) -> bool:
    """Whether scales act on the letter x of a window."""
    stride = window.strides[window.letters.index("x")]
    for block in symmetry.blocks.get(window.parameter, ()):
        for leg in block.legs:
            if leg.space in still:
                continue
            axes = {leg.axis, *leg.copies}
            if scales_of(symmetry.spaces[leg.space]) and leg.power and any(
                block.strides[axis] == stride and block.shape[axis] > 1 for axis in axes
            ):  # fmt: skip
                return True
    return False
