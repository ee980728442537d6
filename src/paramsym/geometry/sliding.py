"""The offsets of all shifts that leave the least norm, to first order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from paramsym.structure.origin import added
from paramsym.structure.sliding import shift_pairing, shift_size, shift_updates
from paramsym.structure.symmetry import ParameterSymmetry

_PRODUCTS = 60  # for one of many turns
_ACCURACY = 1e-5  # of the slope, relative to that at the start
_ROUNDING = 1e-13

Offsets = dict[str, Tensor]


class ShiftNorm:
    """½ ‖θ + L δ‖² over everything that counts, L the linear motion of some shifts together."""

    def __init__(
        self, symmetry: ParameterSymmetry, params: Mapping[str, Tensor], shifts: Sequence[str]
    ) -> None:
        self.shifts = [symmetry.shift_of[name] for name in shifts]
        self.params = params
        moved = {term.target.parameter for shift in self.shifts for term in shift.terms}
        self.own = {
            n: added(params[n], symmetry.offsets.get(n, 0.0)).contiguous()
            for n in moved - {*symmetry.buffers}
            if params[n].is_floating_point()
        }

    @cached_property
    def norm(self) -> float:
        """‖θ‖² of what the shifts move and what counts."""
        return sum(float(p.square().sum()) for p in self.own.values())

    def slope(self, covector: Mapping[str, Tensor] | None = None) -> Offsets:
        """Lᵀ ξ, by shift; the slope Lᵀ θ at δ = 0 where no ξ is given. Shifts of buffers alone
        have none."""
        pairs = {s.name: shift_pairing(s, covector or self.own, self.params) for s in self.shifts}
        return {name: found for name, found in pairs.items() if found is not None}

    def moved(self, offsets: Offsets) -> dict[str, Tensor]:
        """L δ."""
        made = {n: torch.zeros_like(p) for n, p in self.own.items()}
        for shift in self.shifts:
            if shift.name not in offsets:
                continue
            delta = offsets[shift.name]
            for term, update in shift_updates(shift, delta, self.params, first_order=True):
                window = term.target
                if (whole := made.get(window.parameter)) is not None:
                    view = whole.as_strided(window.shape, window.strides, window.start)
                    view.add_(update.expand(window.shape))
        return made

    def least(self) -> Offsets:
        """The δ of least norm, by conjugate gradients on LᵀL δ = −Lᵀθ; nothing where none gains.

        Directions of δ that hardly move anything are left alone: all that would be found of them
        is rounding, divided by nearly zero.
        """
        residual = {n: -x for n, x in self.slope().items()}
        offsets = {n: torch.zeros_like(x) for n, x in residual.items()}
        search, first = residual, _dot(residual, residual)
        product = first
        # along the slope alone, which may be rounding, there is no telling what is stiff
        largest = max(shift_size(shift, self.params) for shift in self.shifts)
        stiffest = largest * largest
        for _ in range(_PRODUCTS):
            along, size = self.slope(self.moved(search)), _dot(search, search)
            curvature = _dot(search, along)
            stiffest = max(stiffest, curvature / size if size else 0.0)
            level = product <= max(_ACCURACY**2 * first, _ROUNDING**2 * stiffest * self.norm)
            if level or curvature <= _ROUNDING * stiffest * size:
                break
            step = product / curvature
            offsets = {n: x + step * search[n] for n, x in offsets.items()}
            residual = {n: x - step * along[n] for n, x in residual.items()}
            product, before = _dot(residual, residual), product
            search = {n: x + (product / before) * search[n] for n, x in residual.items()}
        return offsets if any(bool(x.any()) for x in offsets.values()) else {}


def _dot(one: Offsets, other: Offsets) -> float:
    return sum(float((x * other[n]).sum()) for n, x in one.items())
