"""Which unit of one point is which of the other: scores of all pairs, and an assignment.

Where nothing else acts on a unit, its score with another is the product ⟨y_i, x_j⟩ of what they
carry. Where a space of their own acts on each (signs, bases of heads, orders within a group), its
values are not known before the units are matched, and the score is the best product that any value
would give, or a bound of it that is blind to what acts:

    signs        |⟨y_i, x_j⟩|
    rotations    the sum of the singular values of y_i x_jᵀ, over the axis on which they act
    all others   the Frobenius norm of y_i x_jᵀ, which no orthogonal map changes

Blocks on which the same spaces act are summed before that is taken. On one orbit each of these is
largest at the true assignment, since ‖y_i y_jᵀ‖ ≤ ‖y_i‖ ‖y_j‖.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.algebra.linear import AbstractRotation
from paramsym.geometry.pair import Pair, Place, stands_on
from paramsym.structure.space import Space

_KEYS = 6  # random products by which units are told apart
_SAME = 1e-4  # relative to the spread of the keys, for units that are taken for one another
_SINGULAR = 4e9  # operations that singular values of all pairs may take

Pattern = tuple[str, ...]


def ordered(pair: Pair, space: Space, places: Sequence[Place], keyed: bool) -> tuple[Element, int]:
    """The order of units, signed where the group has signs, that fits best, and what is in doubt.

    Args:
        pair: the two points.
        space: whose group permutes.
        places: where units are read; spaces that stand over this one are taken for unknown.
        keyed: try keys first, which need no scores where they tell all units apart, and say what is
            in doubt.
    """
    patterns = patterns_of(pair, space, places)
    signed = isinstance(space.group, AbstractMonomial) and space.group.signs
    order = _by_keys(pair, patterns, signed) if keyed else None
    doubt = 0
    if order is None:
        scores = scores_of(pair, space, patterns, signed)
        order, doubt = assigned(scores, pair.clear if keyed else None)
    if not signed:
        return Element(order=order), doubt
    plain = [place for own in patterns.values() for place, blind in own if not blind]
    if not plain:
        return Element(order=order, diagonal=torch.ones(order.shape).double()), order.numel()
    cross = pair.cross(plain).gather(-1, order[..., None])[..., 0]
    unclear = int((cross.abs() <= pair.clear * cross.abs().amax()).sum())
    sign = torch.where(cross < 0, -1.0, 1.0).double()
    return Element(order=order, diagonal=sign), max(doubt, unclear)


Patterns = dict[Pattern, list[tuple[Place, tuple[int, ...]]]]


def patterns_of(pair: Pair, space: Space, places: Sequence[Place]) -> Patterns:
    """Places by the spaces that act on each unit by itself, with the axes that these act on."""
    found: Patterns = {}
    for place in places:
        on = {leg for leg in place.beside if stands_on(pair.symmetry, leg, place.leg)}
        own = [leg for leg in place.beside if leg in on or leg in place.unknown]
        own = sorted(own, key=lambda leg: (leg.space, leg.axis))
        taken = {place.leg.axis, *place.leg.copies}
        axes = dict.fromkeys(a for leg in own for a in (*leg.copies, leg.axis) if a not in taken)
        found.setdefault(tuple(leg.space for leg in own), []).append((place, tuple(axes)))
    return found


def scores_of(pair: Pair, space: Space, patterns: Patterns, signed: bool = False) -> Tensor:
    """How well units i of the fixed point and j of the other fit, of shape (*copies, n, n)."""
    total: Tensor | None = None
    for pattern, places in patterns.items():
        if not pattern:
            found = pair.cross([place for place, _ in places])
            found = found.abs() if signed else found
        else:
            found = _blind(pair, pattern, places)
        total = found if total is None else total + found
    assert total is not None
    return total


def _blind(pair: Pair, pattern: Pattern, places: list[tuple[Place, tuple[int, ...]]]) -> Tensor:
    """Scores that do not know what acts on each unit."""
    total: Tensor | None = None
    for place, blind in places:
        y, x = pair.both(place, blind)
        lead = len(place.leg.copies) + 1
        y, x = (side.flatten(lead, -2) for side in (y, x))  # (*copies, n, blind, rest)
        *copies, n, width, rest = y.shape
        made = y.reshape(*copies, n * width, rest) @ x.reshape(*copies, n * width, rest).mH
        made = (made.real if made.is_complex() else made).double()
        total = made if total is None else total + made
    assert total is not None
    *copies, size, _ = total.shape
    n = pair.symmetry.spaces[places[0][0].leg.space].size
    width = size // n
    total = total.reshape(*copies, n, width, n, width).transpose(-3, -2)
    if width == 1:
        return total[..., 0, 0].abs()
    group = pair.symmetry.spaces[pattern[0]].group
    rotates = len(pattern) == 1 and isinstance(group, AbstractRotation)
    alone = rotates and group.size == width
    if alone and total.numel() * width * 20 <= _SINGULAR:
        return torch.linalg.svdvals(total).sum(-1)
    return total.square().sum((-2, -1)).sqrt()


def assigned(scores: Tensor, clear: float | None) -> tuple[Tensor, int]:
    """The assignment of largest total score, copy by copy, and how many units had equals.

    Units i and j have equals where to exchange their partners would lose nothing.

    Args:
        scores: of shape (*copies, n, n).
        clear: what counts as a loss, relative to the largest score; None to leave them uncounted.
    """
    *copies, n, _ = scores.shape
    flat = scores.reshape(-1, n, n)
    orders, doubt = [], 0
    for each in flat:
        _, columns = linear_sum_assignment(each.cpu().numpy(), maximize=True)
        orders.append(torch.as_tensor(columns))
        if clear is not None and n > 1:
            doubt += _equals(each[:, orders[-1]], clear)
    return torch.stack(orders).reshape(*copies, n), doubt


def _equals(own: Tensor, clear: float) -> int:
    """How many units could exchange their partners with another at no loss.

    Args:
        own: the scores with the columns in the order of the assignment.
        clear: what counts as a loss.
    """
    taken = own.diagonal()
    loss = taken[:, None] + taken - own - own.mT
    loss.fill_diagonal_(torch.inf)
    return int((loss.amin(-1) <= clear * own.abs().amax()).sum())


def _by_keys(pair: Pair, patterns: Patterns, signed: bool) -> Tensor | None:
    """The order that keys of the units tell, where all are told apart by them; else None.

    A key is the length of what a unit carries times a random matrix, which signs and bases do not
    change.
    """
    generator = torch.Generator().manual_seed(0)  # any matrix does that no unit is blind to
    keys: list[list[Tensor]] = [[], []]
    for pattern, places in patterns.items():
        sums: list[list[Tensor]] = [[], []]
        for place, blind in places:
            sides = pair.both(place, blind)
            probe = torch.randn(sides[0].shape[-1], _KEYS, generator=generator, dtype=torch.float64)
            for k, side in enumerate(sides):
                side = side.flatten(len(place.leg.copies) + 1, -2) if blind else side[..., None, :]
                made = side @ probe.to(side)
                sums[k].append(made)
        for k, found in enumerate(sums):
            made = torch.stack(found).sum(0)
            plain = not pattern and not signed and not made.is_complex()
            keys[k].append(
                (made[..., 0, :] if plain else made.abs().square().sum(-2).sqrt()).double()
            )
    one, other = (torch.cat(found, -1) for found in keys)
    return _matched(one, other)


def _matched(one: Tensor, other: Tensor) -> Tensor | None:
    """The order in which rows of one list of keys are those of the other, if it is plain to see."""
    first, second = one[..., 0].argsort(-1), other[..., 0].argsort(-1)
    sorted_one = one.gather(-2, first[..., None].expand_as(one))
    sorted_other = other.gather(-2, second[..., None].expand_as(other))
    spread = one.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
    if bool(((sorted_one - sorted_other).abs() > _SAME / one.shape[-2] * spread).any()):
        return None
    gaps = sorted_one[..., 1:, 0] - sorted_one[..., :-1, 0]
    if bool((gaps <= 3 * (sorted_one - sorted_other).abs().amax()).any()):
        return None
    order = torch.empty_like(first)
    return order.scatter(-1, first, second)
