"""Invariants of an orbit, to look up candidates among many networks: a filter, and no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial
from paramsym.geometry.bringing import bring
from paramsym.geometry.control import moved_copy, not_unique
from paramsym.geometry.pair import Pair
from paramsym.geometry.reduced import Progress, reduce
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

_LOOSE = "some of its directions stand against zeros, and what they hold is not determined"


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that no element of a symmetry changes.

    They say that two networks are not equivalent where they differ, and nothing where they agree.
    Whether one network derives from another they do not say: they measure for how long a network
    was trained more than from where. See `paramsym.compare`.

    Attributes:
        invariants: by space the lengths of what its units carry, in order of size, or the singular
            values of what stands on its basis; by tensor (`tensor:name`) its norm. All are taken at
            the reduced point.
        held: what could not be brought to its place there, so that the numbers depend on the point.
    """

    invariants: dict[str, Tensor]
    held: dict[str, str] = field(default_factory=dict)

    def distance(self, other: Fingerprint) -> float:
        """The largest relative difference of an invariant; small ones count as 1e-6 of the largest.

        Raises:
            ValueError: the fingerprints belong to different architectures.
        """
        if not isinstance(other, Fingerprint):
            raise ValueError(
                f"fingerprint.distance(other): a {type(other).__name__} came, and a Fingerprint "
                "was expected. Pass fingerprint(symmetry, params)."
            )
        sizes = {name: x.shape for name, x in self.invariants.items()}
        if sizes != {name: x.shape for name, x in other.invariants.items()}:
            odd = {*sizes} ^ {*other.invariants} or {
                name for name, x in other.invariants.items() if sizes[name] != x.shape
            }
            raise ValueError(
                f"fingerprint.distance(other): {sorted(odd)[0]!r} is not the same in both, and "
                "fingerprints of one architecture were expected. Take both with one symmetry."
            )
        pairs = [(x, other.invariants[name]) for name, x in self.invariants.items()]
        floor = 1e-6 * max((float(x.norm()) for pair in pairs for x in pair), default=0.0)
        sizes = [max(float(x.norm()), float(y.norm()), floor, 1e-300) for x, y in pairs]
        apart = [float((x - y).norm()) for x, y in pairs]
        return max((d / size for d, size in zip(apart, sizes, strict=True)), default=0.0)


def fingerprint(
    symmetry: ParameterSymmetry,
    params: Mapping[str, Tensor],
    progress: Progress | None = None,
    control: bool = True,
) -> Fingerprint:
    """The invariants of the orbit of some parameters, by space and by tensor.

    Args:
        symmetry: derived or written by hand. Approximate families (`exact=False`) take no part, so
            that moves along them change the numbers.
        params: the complete state dict, which is only read.
        progress: called with a line for each step.
        control: whether to take those of a moved copy as well, and to say in `held` how far they
            differ, which doubles the time.

    Returns:
        A `Fingerprint`; moving the parameters changes it by rounding alone.

    Raises:
        ValueError: as `reduce`.

    Source: Du, Hu and Lee (2018) and Kempf and Ness (1979): what is left at the balanced point is
    changed by compact elements alone, which keep these numbers.
    """
    found = _taken(symmetry, params, progress)
    if not control:
        return found
    apart = found.distance(_taken(symmetry, moved_copy(symmetry, params), progress))
    return replace(found, held=found.held | not_unique(apart, params))


def _taken(
    symmetry: ParameterSymmetry, params: Mapping[str, Tensor], progress: Progress | None
) -> Fingerprint:
    """The invariants of one point."""
    point = reduce(symmetry, params, progress, call="fingerprint")
    pair = bring(symmetry, symmetry, point, point).pair
    found = {name: _of_space(pair, pair.symmetry.spaces[name]) for name in pair.places}
    for name, x in pair.fixed.items():
        found[f"tensor:{name}"] = torch.linalg.vector_norm(x.abs().double()).reshape(1)
    found = {name: x for name, x in found.items() if x is not None}
    return Fingerprint(found, {**point.held, **{n: _LOOSE for n in point.loose}})


def _of_space(pair: Pair, space: Space) -> Tensor | None:
    """Lengths of units or singular values, in order of size over all copies together."""
    places = pair.places[space.name]
    if not places:
        return None
    if isinstance(space.group, AbstractMonomial):
        squares = pair.diagonal(places, own=True)
    else:
        squares = torch.linalg.eigvalsh(pair.cross(places, own=True))
    return squares.clamp(min=0).sqrt().reshape(-1).sort().values
