"""Bounds and anchors on the scales of a symmetry: what a caller asks for, as bounds on logarithms.

Scales are relative to the given parameters, so that one is where these are. A scale that is
anchored is one whose two bounds are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from paramsym.geometry.boxed import Box
from paramsym.geometry.costs import scales_of
from paramsym.geometry.posynomial import Posynomial
from paramsym.structure.data import batch_of
from paramsym.structure.patterns import Patterns, matching
from paramsym.structure.symmetry import ParameterSymmetry

Scales = float | Tensor
Bounds = Mapping[str, tuple[Scales, Scales]]
Anchors = Mapping[str, Scales]

_CALL = "balance"
_SAME = 1e-12  # e-folds up to which two wishes for one scale agree


@dataclass
class Limits:
    """Bounds (low, high) on the logarithms of scales by space, and why some leave nothing."""

    logs: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)

    def narrow(self, space: str, low: Tensor, high: Tensor) -> None:
        """Bound scales further. Bounds contain one, so that only an anchor can leave nothing."""
        if space in self.logs:
            low, high = (
                torch.maximum(low, self.logs[space][0]),
                torch.minimum(high, self.logs[space][1]),
            )
        if lost := int((low > high + _SAME).sum()):
            count = low.numel()
            self.conflicts[space] = (
                f"{lost} of {count} scales are anchored outside their bounds, or at two values"
            )
        self.logs[space] = low, torch.maximum(low, high)


def limits_of(
    symmetry: ParameterSymmetry,
    bounds: Bounds,
    anchors: Anchors,
    held: Mapping[str, str],
) -> Limits:
    """What bounds and anchors leave of the scales of each space.

    Args:
        symmetry: whose scales they are.
        bounds: (low, high) by pattern of spaces, each a number or of the shape of one family.
        anchors: scales by pattern of spaces, alike; NaN for those that are free.
        held: the spaces that shall not move, with the reason.

    Raises:
        UnknownName: a pattern matches nothing.
        ValueError: no dicts; bounds that are not finite and positive, or have 1 outside; anchors
            that are not positive; a tensor of another shape; spaces without scales.
    """
    limits = Limits()
    for what, given, example in (("bounds", bounds, (0.5, 2.0)), ("anchors", anchors, 1.0)):
        if not isinstance(given, Mapping):
            _refuse(
                f"{_CALL}({what}=…)", f"a {type(given).__name__} came", "a dict from spaces",
                f"Pass for example {what}={ {'*': example} }",
            )  # fmt: skip
    for pattern, pair in bounds.items():
        where = f"{_CALL}(bounds={{{pattern!r}: …}})"
        low, high = _pair(where, pair)
        for space in _with_scales(symmetry, pattern, where):
            lowest, highest = (_scales(symmetry, space, end, where) for end in (low, high))
            _require_one_inside(where, space, lowest, highest)
            limits.narrow(space, lowest.log(), highest.log())
    for pattern, values in anchors.items():
        where = f"{_CALL}(anchors={{{pattern!r}: …}})"
        for space in _with_scales(symmetry, pattern, where):
            anchor(limits, space, _scales(symmetry, space, values, where, free=True), held)
    return limits


def anchor(limits: Limits, space: str, scales: Tensor, held: Mapping[str, str]) -> None:
    """Fix the scales of one space, NaN where one is free; what is held has them at one."""
    logs, free = scales.log(), scales.isnan()
    low, high = logs.masked_fill(free, -torch.inf), logs.masked_fill(free, torch.inf)
    if space in held:
        moved = int((logs.abs() > _SAME).sum())
        if moved:
            limits.conflicts[space] = (
                f"{moved} of {logs.numel()} scales are anchored elsewhere than at one, and held: "
                f"{held[space]}"
            )
        return
    limits.narrow(space, low, high)


def require_bounded(
    symmetry: ParameterSymmetry, spaces: Collection[str], limits: Limits, call: str = _CALL
) -> None:
    """Refuse scales that keep the function only approximately and have no bounds.

    Their cost falls in one direction for ever, and the function is lost on the way.
    """
    for name in spaces:
        space = symmetry.spaces[name]
        low = limits.logs.get(name, (torch.tensor(-torch.inf),))[0]
        if not space.exact and not bool(low.isfinite().all()):
            raise ValueError(
                f"{call}(include=…): the scales of {name!r} keep the function only approximately "
                f"({space.why or 'exact=False'}) and came without bounds, but bounds were "
                "expected: the cost falls along them for ever, and the network is lost on the "
                f"way. Pass bounds={{{name!r}: (0.9, 1.1)}}, or leave it out of include=."
            )


def standing(f: Posynomial, box: Box) -> dict[str, str]:
    """Which scales of each family stand where a bound ends, or an anchor has them, in words."""
    if box.everywhere:
        return {}
    found: dict[str, list[str]] = {}
    fixed = box.low == box.high
    at_bound = ~fixed & ((box.low == 0) | (box.high == 0))
    for what, where in (("are anchored", fixed), ("stand at a bound", at_bound)):
        for family, part in f.split(where.double()).items():
            if count := int(part.sum()):
                text = f"{count} of {part.numel()} scales {what}"
                found.setdefault(family, []).append(text)
    return {family: "; ".join(texts) for family, texts in found.items()}


def _with_scales(symmetry: ParameterSymmetry, pattern: Patterns, where: str) -> Iterable[str]:
    names = matching(pattern, symmetry.spaces, where)
    scaled = [n for n in symmetry.spaces if n in names and scales_of(symmetry.spaces[n])]
    if not scaled:
        group = symmetry.spaces[min(names)].group
        known = [n for n, space in symmetry.spaces.items() if scales_of(space)]
        _refuse(
            where, f"{min(names)!r} has no scales, its group is {group}",
            "spaces with scales", f"Name some of: {', '.join(known[:6]) or 'none, there are none'}",
        )  # fmt: skip
    return scaled


def _pair(where: str, pair: tuple[Scales, Scales]) -> tuple[Scales, Scales]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        _refuse(where, f"{pair!r} came", "a pair (low, high)", "Pass for example (0.5, 2.0)")
    return pair[0], pair[1]


def _scales(
    symmetry: ParameterSymmetry, name: str, given: Scales, where: str, free: bool = False
) -> Tensor:
    """Scales of one family in its shape, positive and finite, or NaN where that says free."""
    space = symmetry.spaces[name]
    shape = (*batch_of(symmetry, space), scales_of(space))
    try:
        scales = torch.as_tensor(given, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        _refuse(
            where, f"{given!r} came for the scales of {name!r}", "a number or a tensor",
            "Pass for example 2.0, or a tensor with one number for each scale",
        )  # fmt: skip
    if scales.ndim and scales.shape != shape:
        _refuse(
            where, f"a tensor of shape {tuple(scales.shape)} came for the scales of {name!r}",
            f"a number or a tensor of shape {shape}", "Write NaN in anchors where a scale is free",
        )  # fmt: skip
    wrong = ~(scales.isfinite() & (scales > 0)) & ~(scales.isnan() & free)
    if bool(wrong.any()):
        value = float(scales[wrong][0])
        _refuse(
            where, f"{value} came for a scale of {name!r}", "positive and finite numbers",
            "Leave a space out where it shall have no bounds",
        )  # fmt: skip
    return scales.expand(shape).clone()


def _require_one_inside(where: str, space: str, low: Tensor, high: Tensor) -> None:
    outside = (low > 1) | (high < 1)
    if bool(outside.any()):
        pair = float(low[outside][0]), float(high[outside][0])
        _refuse(
            where, f"the bounds {pair} came for {space!r}, which exclude 1",
            "low ≤ 1 ≤ high, because scales are relative to the given parameters",
            "Move them first, act(symmetry, g, params), or use anchors= to fix scales elsewhere",
        )  # fmt: skip


def _refuse(where: str, what: str, expected: str, instead: str) -> NoReturn:
    raise ValueError(f"{where}: {what}. Expected was {expected}. {instead}.")
