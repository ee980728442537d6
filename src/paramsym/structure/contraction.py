"""Contractions of several tensors, two at a time, the cheapest pair first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch

Operand = tuple[torch.Tensor, str]  # with a letter for each dimension


def contracted(operands: Sequence[Operand], out: str) -> Operand:
    """Σ of a product of tensors over all letters that `out` does not have.

    A chain δ A B is cheap from one end and dear from the other, which torch.einsum, from left to
    right, does not see. Here the pair that takes the fewest multiplications is contracted first.

    Args:
        operands: the tensors with their letters, each letter of one size throughout.
        out: the letters to keep, in their order; those that no operand has are left out.

    Returns:
        The contracted tensor and its letters.
    """
    left = list(operands)
    sizes = {c: n for x, letters in left for c, n in zip(letters, x.shape, strict=True)}
    known: dict[tuple[str, str], int] = {}

    def cost(pair: tuple[int, int]) -> int:
        """The multiplications of a pair, which most have been asked for in the last round."""
        both = left[pair[0]][1], left[pair[1]][1]
        if both not in known:
            known[both] = math.prod(sizes[c] for c in {*both[0], *both[1]})
        return known[both]

    while len(left) > 2:
        i, j = min(combinations(range(len(left)), 2), key=cost)
        rest = [item for k, item in enumerate(left) if k not in (i, j)]
        needed = {*out}.union(*(letters for _, letters in rest))
        kept = "".join(dict.fromkeys(c for c in left[i][1] + left[j][1] if c in needed))
        left = [_einsum([left[i], left[j]], kept), *rest]
    return _einsum(left, "".join(c for c in out if c in sizes))


def _einsum(operands: Sequence[Operand], out: str) -> Operand:
    if len(operands) == 1 and operands[0][1] == out:
        return operands[0]
    subscripts = ",".join(letters for _, letters in operands)
    return torch.einsum(f"{subscripts}->{out}", *(x for x, _ in operands)), out
