"""One representative for every orbit: reduced, and then everything compact by rules of its own.

The point is brought next to a fixed random one, the same for all networks of an architecture:
spaces are read in the order of `approach`, signs, phases and rotations by their closed forms, and
units are sorted by keys. Keys that are equal are refined through everything that can be read
(colour refinement: a probe is constant on units that cannot be told apart); what is equal still has
a stabiliser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial, Element
from paramsym.geometry.approach import Approach
from paramsym.geometry.bringing import bring, distance
from paramsym.geometry.control import moved_copy, not_unique
from paramsym.geometry.invariants import FLOOR as _FLOOR
from paramsym.geometry.invariants import typical_size
from paramsym.geometry.pair import Pair, Place, is_order
from paramsym.geometry.probes import classes_of, keys_of, probe_like
from paramsym.geometry.reduced import Progress, reduce
from paramsym.geometry.visits import Visit, visited
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_ROUNDS = 16  # of refinement
_EQUAL = 1e-7  # of the largest: keys that differ by less are equal


@dataclass(frozen=True)
class Canonical:
    """The representative of an orbit.

    Attributes:
        params: the parameters there, `act(symmetry, element, …)` of those given.
        element: the group element that leads there.
        ties: by space, how many of its parts nothing told from others: exchanged among themselves,
            or turned, they would give a representative of equal right.
        held: what could not be brought to its place, with the reason; under "representative" how
            far that of a moved copy lies, if it is another one.
        settled: the parameters in coordinates without frames, from which the hash is taken.
    """

    params: dict[str, Tensor]
    element: GroupElement
    ties: dict[str, int] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    settled: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def digest(self, tolerance: float = 1e-4) -> str:
        """A SHA-256 hash of the representative, rounded to a share of each tensor's size.

        Equal hashes mean points whose representatives agree to that share. The converse does not
        hold: an entry near the middle between two rounded values, or two units whose keys almost
        tie, fall to one side or the other by rounding alone. To decide, use `same_orbit`.

        Args:
            tolerance: of the root mean square of a tensor, to which its entries are rounded;
                tensors far smaller than the rest count as larger, as rounding is all they may be.

        Raises:
            ValueError: a tolerance that is no number between 1e-15 and 1.
        """
        if not isinstance(tolerance, Real) or not 1e-15 <= tolerance <= 1:
            raise ValueError(
                f"digest(tolerance={tolerance!r}): a number between 1e-15 and 1 was expected, the "
                "share of a tensor's size to which entries are rounded. Leave it out for 1e-4."
            )
        found, floor = hashlib.sha256(), _FLOOR * typical_size(self.settled)
        for name in sorted(self.settled):
            x = self.settled[name].double()
            size = float(x.square().mean().sqrt()) if x.numel() else 0.0
            size = float(f"{max(size, floor):.2g}")  # which rounding does not change, mostly
            steps = (x / (size * tolerance or 1.0)).round().long()
            found.update(name.encode() + str(tuple(x.shape)).encode())
            found.update(steps.contiguous().numpy().tobytes())
        return found.hexdigest()


def canonicalize(
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor],
    progress: Progress | None = None,
    control: bool = True,
) -> Canonical:
    """The representative of the orbit of some parameters, and the element that leads there.

    Args:
        symmetry: derived or written by hand. Approximate families (`exact=False`) take no part.
        params: the complete state dict, which is only read.
        progress: called with a line for each step.
        control: whether to lead a moved copy to its representative as well, and to say in `held`
            how far it comes to lie from the other, which doubles the time.

    Returns:
        A `Canonical`.

    Raises:
        ValueError: as `reduce`; tied tensors that are not equal.

    Source: Kempf and Ness (1979) for the reduction; Weisfeiler and Leman, "The reduction of a graph
    to canonical form and the algebra which appears therein" (1968), for the refinement of ties.
    """
    found = _settled(symmetry, params, progress)
    if not control:
        return found
    other = _settled(symmetry, moved_copy(symmetry, params), progress)
    apart = distance(found.settled, other.settled, [*found.settled])
    held = found.held | not_unique(apart, found.settled)
    return replace(found, held=held)


def _settled(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], progress: Progress | None
) -> Canonical:
    """One point led to its representative."""
    point = reduce(symmetry, params, progress, call="canonicalize")
    brought = bring(symmetry, symmetry, point, point)
    pair = brought.pair
    pair.fixed = probe_like(pair.moving)
    settling = _Settling({})
    approach = replace(brought.approach, visit=settling.visit)
    approach.read(progress=progress)
    settling.refine(approach)
    element = brought.compact @ point.element
    return Canonical(
        act(symmetry, element, params), element, settling.ties(approach), dict(point.held),
        {name: pair.moving[name] for name in approach.counts},
    )  # fmt: skip


@dataclass
class _Settling:
    """How spaces are settled, with the units of orders that cannot be told apart."""

    classes: dict[str, Tensor]

    def visit(self, pair: Pair, space: Space, places: Sequence[Place], keyed: bool) -> Visit:
        """Orders by keys, everything else next to the probe."""
        if not is_order(space):
            return visited(pair, space, places, keyed)
        order, classes = self._sorted(pair, space, places)
        equal = int((classes != torch.arange(classes.shape[-1])).sum())
        self.classes[space.name] = classes
        self._flatten(pair, space.name)
        if not (isinstance(space.group, AbstractMonomial) and space.group.signs):
            return Visit(Element(order=order), equal)
        cross = pair.cross(places).gather(-1, order[..., None])[..., 0]
        return Visit(
            Element(order=order, diagonal=torch.where(cross < 0, -1.0, 1.0).double()), equal
        )

    def _sorted(self, pair: Pair, space: Space, places: Sequence[Place]) -> tuple[Tensor, Tensor]:
        """The order of units by their keys, and the first of its equals for each place."""
        keys = keys_of(pair, space, places, self.classes)
        level = _EQUAL * keys.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
        order = torch.arange(keys.shape[-2]).expand(keys.shape[:-1])
        for k in reversed(range(keys.shape[-1])):  # the first key counts most
            rounded = (keys[..., k] / level[..., 0]).round().gather(-1, order)
            order = order.gather(-1, rounded.argsort(dim=-1, stable=True))
        laid = keys.gather(-2, order[..., None].expand_as(keys))
        return order, classes_of(laid, _EQUAL)

    def _flatten(self, pair: Pair, name: str) -> None:
        """The probe made constant on units that cannot be told apart."""
        classes = self.classes[name]
        if classes.ndim > 1 or bool((classes == torch.arange(len(classes))).all()):
            return
        for place in pair.places[name]:
            view = place.block.view(pair.fixed[place.block.parameter])
            view.copy_(view.index_select(place.leg.axis, classes))

    def refine(self, approach: Approach) -> None:
        """Tell more units apart by what has been settled after them, until no more can be."""
        pair = approach.pair
        for _ in range(_ROUNDS):
            before = {name: len(own.unique()) for name, own in self.classes.items()}
            for name in self.ties(approach):
                if name not in self.classes:
                    continue
                space = pair.symmetry.spaces[name]
                order, classes = self._sorted(pair, space, pair.places[name])
                pair.apply({name: Element(order=order)})
                self.classes[name] = classes
            if before == {name: len(own.unique()) for name, own in self.classes.items()}:
                break

    def ties(self, approach: Approach) -> dict[str, int]:
        """By space, what was not told from others."""
        found = {}
        for name in approach.order:
            own = self.classes.get(name)
            count = 0 if own is None else int((own != torch.arange(own.shape[-1])).sum())
            if count or (own is None and name in approach.doubts):
                found[name] = count or 1
        return found
