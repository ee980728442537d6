"""How sure a unit is of its partner: what tells a copy from a network that learned the same.

Alignment always finds somebody. Between networks that were trained independently on the same data,
a unit's partner is the nearest of many that are about as near; between a network and what was made
of it, the partner is near and all others are far. Let x be the units of one point and y those of
the other, aligned. The margin of unit i is

    ‖xᵢ − yᵢ‖ / min over j ≠ i of ‖xᵢ − yⱼ‖ and ‖xⱼ − yᵢ‖,

and a partner is clear where it is below 0.8. Data that both have seen move numerator and
denominator alike: that is why the margin decides where distances do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from scipy.special import bdtrc
from torch import Tensor

from paramsym.algebra import AbstractMonomial
from paramsym.geometry.bringing import counted
from paramsym.origin.parameters import effective
from paramsym.structure.symmetry import ParameterSymmetry

CLEAR = 0.8  # Lowe's ratio: most wrong matches of image features lie above, most right ones below
_DISTINCT = 0.01  # of a unit's size: others must be farther than that to be told from it at all


@dataclass(frozen=True)
class Partners:
    """The units of one space, compared by one tensor or by all.

    Attributes:
        count: units whose partner could be told from others: not dead, not equal to another.
        clear: how many of them have a clear partner.
        numbers: how many numbers each unit is compared by.
    """

    count: int
    clear: int
    numbers: int

    @property
    def share(self) -> float:
        return self.clear / self.count if self.count else 0.0

    def chance(self, base: float) -> float:
        """P(at least so many clear partners), if each is clear with probability `base`."""
        return float(bdtrc(self.clear - 1, self.count, base)) if self.clear else 1.0


Cell = tuple[str, str]  # a space and a tensor; "" for all tensors of the space together


def partners(
    symmetry: ParameterSymmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> dict[Cell, Partners]:
    """How many units have a clear partner, by space of orders that stands over no other.

    The vector of a unit is all that the parameters have at its place: what comes in, what goes out,
    its bias, as the model uses them. Units are compared by all of it, and by each tensor alone, so
    that a layer that was taken over shows where everything around it is new. Rows that nothing
    reaches, buffers and what is dead are left out.

    Args:
        symmetry: of both.
        a: a complete state dict, reduced: elsewhere units have scales of their own.
        b: another, aligned to it.

    Returns:
        By space and tensor, and by space and "" for all its tensors together.

    Source: Lowe, Distinctive image features from scale-invariant keypoints (2004), section 7.1:
        the ratio of the nearest and the second nearest.
    """
    names = counted(symmetry, a)
    first, second = ({n: effective(symmetry, p, n) for n in names} for p in (a, b))
    found: dict[Cell, Partners] = {}
    for space in symmetry.spaces.values():
        orders = isinstance(space.group, AbstractMonomial) and space.group.permutes
        if not orders or space.over or not space.exact or space.size < 2:
            continue
        whole = _Squares(space.size)
        for name in names:
            own = _Squares(space.size)
            for x, y in _units(symmetry, space.name, name, first[name], second[name]):
                own.add(x, y)
            if own.numbers:
                found[space.name, name] = own.partners()
                whole.join(own)
        found[space.name, ""] = whole.partners()
    return found


def _units(
    symmetry: ParameterSymmetry, space: str, name: str, a: Tensor, b: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The units of a space in each block of a tensor, of shape (units, numbers), of both points."""
    for block in symmetry.blocks[name]:
        for axis in {leg.axis for leg in block.legs if leg.space == space}:
            x, y = (block.view(each).movedim(axis, 0) for each in (a, b))
            yield x.reshape(len(x), -1), y.reshape(len(y), -1)


class _Squares:
    """Squared distances between units of two points, summed over blocks."""

    def __init__(self, n: int) -> None:
        self.numbers = 0
        self.own = torch.zeros(n, dtype=torch.float64)  # ‖xᵢ − yᵢ‖², without cancellation
        self.cross = torch.zeros(n, n, dtype=torch.float64)  # ⟨xᵢ, yⱼ⟩
        self.sizes = torch.zeros(2, n, dtype=torch.float64)  # ‖xᵢ‖² and ‖yᵢ‖²

    def add(self, x: Tensor, y: Tensor) -> None:
        self.numbers += x.shape[1]
        self.own += (x - y).abs().square().sum(1).double().cpu()
        self.cross += (x @ y.mH).real.double().cpu()
        self.sizes += torch.stack([t.abs().square().sum(1) for t in (x, y)]).double().cpu()

    def join(self, other: _Squares) -> None:
        self.numbers += other.numbers
        self.own += other.own
        self.cross += other.cross
        self.sizes += other.sizes

    def partners(self) -> Partners:
        squares = (self.sizes[0][:, None] + self.sizes[1] - 2 * self.cross).clamp(min=0)
        squares.fill_diagonal_(torch.inf)
        others = torch.minimum(squares.amin(0), squares.amin(1))
        told = (self.sizes.amin(0) > 0) & (others > _DISTINCT**2 * self.sizes.amax(0))
        clear = told & (self.own < CLEAR**2 * others)
        return Partners(int(told.sum()), int(clear.sum()), self.numbers)
