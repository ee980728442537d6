"""The same inputs with other lengths: longer or shorter sets, sequences, images and batches.

What is found from one example must hold at all lengths at which the model runs. A sum over the
elements of a set counts them, and what a bias slides into the next one is then as many times as
much: exact for sets of this size, and another function for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.recording.record import Inputs, split_inputs

Length = tuple[int, int, int]  # an axis, its entries, and how many they become
Lengths = tuple[Length, ...]  # changed together
Axes = list[tuple[int, int]]  # with their entries
Ways = Callable[[int], list[int]]  # from a length to others, the best first
_FAR = 64  # entries that are doubled at most: no window takes all of more, and time is finite


def other_lengths(inputs: Inputs, runs: Callable[[Any], bool]) -> Iterator[Lengths]:
    """Shorter inputs, and then longer ones; each with as many other lengths as the model runs at.

    Axes of one length change together, as those of words and of their mask, and each by itself
    where that does not run: a set may have as many elements as features. Lengths are halved, and
    doubled to what is even where they are odd, so that windows and strides leave something else.

    Args:
        inputs: as for `find_symmetry`.
        runs: whether the model runs with given inputs.
    """
    leaves = pytree.tree_leaves(split_inputs(inputs))
    given = {at for x in leaves if isinstance(x, torch.Tensor) for at in enumerate(x.shape)}
    given = {(axis, n) for axis, n in given if n > 1 or axis == 0}  # of one, a batch is free
    alike = [sorted(at for at in given if at[1] == n) for n in sorted({n for _, n in given})]
    for ways in (_shorter, _longer):
        found: Lengths = ()
        for group in alike:
            found = _changed(inputs, found, group, ways, runs)
        if found:
            yield found


def _changed(
    inputs: Inputs, found: Lengths, group: Axes, ways: Ways, runs: Callable[[Any], bool]
) -> Lengths:
    """Further changes, of axes of one length: of all of them, or of each with which it runs."""
    for part in [group, *([at] for at in group if len(group) > 1)]:
        for after in ways(part[0][1]):
            more = (*found, *((axis, n, after) for axis, n in part))
            if runs(at_lengths(inputs, more)):
                if part is group:
                    return more
                found = more
                break
    return found


def _shorter(n: int) -> list[int]:
    return [m for m in (n // 2, n - 1) if m > 1]  # one alone is stretched to whatever it meets


def _longer(n: int) -> list[int]:
    doubled = [2 * n + (n + 1) % 2, 2 * n] if n <= _FAR else []
    return [*doubled, n + 1] if n else []


def at_lengths(inputs: Inputs, lengths: Sequence[Length]) -> Any:
    """The inputs with axes of so many entries cut, or continued by copies of their last."""
    after = {(axis, n): m for axis, n, m in lengths}

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            for axis, n in enumerate(leaf.shape):
                if (axis, n) in after:
                    places = torch.arange(after[axis, n], device=leaf.device).clamp_max(n - 1)
                    leaf = leaf.index_select(axis, places)
        return leaf

    args, kwargs = pytree.tree_map(changed, split_inputs(inputs))
    return kwargs or args
