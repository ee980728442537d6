"""The discrete relations of a function, modulo its continuous ones.

Closed subgroups of the affine group of the line are few. A group with a shift and no continuous
part consists of shifts and reflections; one with a scaling fixes the centre of it; a continuous
family of scalings leaves room for the reflection about its centre only, one of shifts for none
(unless there are both, as for a quadratic). So each result says what is left to search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch

from .certificate import Certificate
from .function import CORE
from .grid import FINE
from .numbers import short
from .relation import Family, Relation
from .search import (
    LARGEST,
    WINDOWS,
    Minimum,
    minima,
    reflection_defect,
    scaling_defect,
    scaling_grid_defect,
    shift_defect,
)
from .structure import centres_of_bends

LEAST = 1e-3  # shorter shifts cannot be told from none


@dataclass
class Discrete:
    """What a search found: accepted generators, the best rejected relations, and its extent."""

    generators: list[Relation] = field(default_factory=list)
    rejected: list[Relation] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)


def discrete_relations(
    certificate: Certificate, families: Sequence[Family], jumps: Sequence[float]
) -> Discrete:
    """Generators of the discrete part: at most a reflection, and a shift or a scaling."""
    found = Discrete()
    centres = [family.centre for family in families if family.centre is not None]
    if centres and certificate.f.is_line:
        _reflections(certificate, found, [(centre, centre) for centre in centres[:1]])
        found.searched.append(f"the reflection about {centres[0]:g}")
    if families:
        return found
    if certificate.f.is_line:
        return _on_the_line(certificate, jumps, found)
    f = certificate.f
    if math.isfinite(f.low) and math.isfinite(f.high):
        middle = (f.low + f.high) / 2
        _reflections(certificate, found, [(middle, middle)])
        found.searched.append(f"the reflection about {middle:g}, which alone keeps the domain")
        return found
    _scalings(certificate, f.low if math.isfinite(f.low) else f.high, found)
    return found


def _on_the_line(certificate: Certificate, jumps: Sequence[float], found: Discrete) -> Discrete:
    centres = _reflections(certificate, found, _centres(certificate, jumps))
    widest = WINDOWS[-1]
    found.searched.append(f"reflections about centres in [−{widest:g}, {widest:g}]")
    shift = _shift(certificate, jumps, centres, found)
    found.searched.append(f"shifts from {WINDOWS[0] / 100:g} to {4 * widest:g}")
    if shift is not None:
        return found
    if centres:
        _scalings(certificate, min(centres, key=abs), found)
    else:
        _scalings_about_any_centre(certificate, found)
    return found


def _centres(certificate: Certificate, jumps: Sequence[float]) -> list[tuple[float, float]]:
    """Candidates for centres, each in a short and in its full form."""
    places = [0.0, *((x + y) / 2 for x, y in combinations(jumps[:10], 2)), *jumps[:10]]
    for width in WINDOWS:
        for sign in (1, -1):
            defect = reflection_defect(certificate.f, sign, width)
            places += [m.at for m in minima(defect, -width, width, 600, keep=4)]
    for p, width in centres_of_bends(certificate.f):
        for sign in (1, -1):
            defect = reflection_defect(certificate.f, sign, width)
            reach = max(width / 16, 8 * FINE)
            places += [m.at for m in minima(defect, p - reach, p + reach, 64, keep=1)]
    return _distinct(places)


def _distinct(places: Iterable[float]) -> list[tuple[float, float]]:
    """(short, full) without repetitions."""
    kept: list[tuple[float, float]] = []
    for place in places:
        neat = short(place, 1e-5)
        if all(abs(place - other) > 1e-8 * max(1, abs(place)) for _, other in kept):
            kept.append((neat, place))
    return kept


def _reflections(
    certificate: Certificate, found: Discrete, places: Sequence[tuple[float, float]]
) -> list[float]:
    """Centres of reflections that hold; the one next to the origin becomes a generator."""
    accepted: list[Relation] = []
    for neat, full in places:
        relation = certificate.best([-1.0, -1.0], [2 * neat, 2 * full])
        (accepted if certificate.accepts(relation) else found.rejected).append(relation)
    # the centre is half of β; of two equally near, the positive one
    accepted.sort(key=lambda r: (round(abs(r.beta), 9), -r.beta))
    found.generators += accepted[:1]
    return [relation.beta / 2 for relation in accepted]


def _shift(
    certificate: Certificate, jumps: Sequence[float], centres: Sequence[float], found: Discrete
) -> Relation | None:
    """The least shift that holds."""
    places = [abs(x - y) for x, y in combinations(jumps[:10], 2)]
    places += [2 * abs(x - y) for x, y in combinations(sorted(centres, key=abs)[:6], 2)]
    for width in WINDOWS:
        defect = shift_defect(certificate.f, width)
        places += [m.at for m in minima(defect, width / 100, 4 * width, 1200, keep=4)]
    candidates = [c for c in _distinct(places) if c[1] > LEAST]
    accepted: list[Relation] = []
    for neat, full in candidates:
        relation = certificate.best([1.0, 1.0], [neat, full])
        (accepted if certificate.accepts(relation) else found.rejected).append(relation)
    least = _divided(certificate, min(accepted, key=lambda r: r.beta)) if accepted else None
    if least is not None:
        found.generators.append(least)
    return least


def _divided(certificate: Certificate, relation: Relation) -> Relation | None:
    """A shift by a whole part of this one, if it holds: grids may have stepped over it.

    None if ever shorter ones hold: then the precision does not tell a short shift from none.
    """
    for parts in (2, 3, 5, 7):
        part = certificate.fitted(1.0, relation.beta / parts)
        if certificate.accepts(part):
            return _divided(certificate, part) if part.beta > LEAST else None
    return relation


def _scalings(certificate: Certificate, centre: float, found: Discrete) -> None:
    """The least scaling about a centre that holds, or its root with the other sign."""
    found.searched.append(f"scalings from e^0.03 to e^{LARGEST:g} about {centre:g}")
    for sign in (1, -1) if certificate.f.is_line else (1,):
        defect = scaling_defect(certificate.f, centre, sign)
        candidates = minima(defect, 0.03, LARGEST, 700, keep=4)
        accepted = _scalings_at(certificate, found, centre, candidates, sign)
        if accepted:
            found.generators += _rooted(certificate, min(accepted, key=lambda r: abs(r.alpha)))
            return


def _rooted(certificate: Certificate, relation: Relation) -> list[Relation]:
    """A scaling of which this one is a power, if it holds; none if ever smaller ones do.

    The square root may have either sign.
    """
    centre = relation.centre or 0.0

    def scaled(alpha: float) -> Relation:
        return certificate.fitted(alpha, centre * (1 - alpha))

    if relation.alpha < 0:
        return [relation]
    for parts in (2, 3, 5, 7):
        root = scaled(relation.alpha ** (1 / parts))
        if certificate.accepts(root):
            return _rooted(certificate, root) if math.log(root.alpha) > 0.02 else []
    root = scaled(-math.sqrt(relation.alpha))
    return [root if certificate.f.is_line and certificate.accepts(root) else relation]


def _scalings_at(
    certificate: Certificate, found: Discrete, centre: float, places: Sequence[Minimum], sign: int
) -> list[Relation]:
    accepted: list[Relation] = []
    for place in places:
        full = sign * math.exp(place.at)
        neat = [short(full, 1e-9), sign * math.exp(short(place.at, 1e-9))]
        scales = [scale for scale in neat if scale != full] + [full]
        relation = certificate.best(scales, [centre * (1 - scale) for scale in scales])
        (accepted if certificate.accepts(relation) else found.rejected).append(relation)
    return accepted


def _scalings_about_any_centre(certificate: Certificate, found: Discrete) -> None:
    """A grid of centres and scales, and finer ones around its lowest minima."""
    found.searched.append(
        f"scalings from e^0.1 to e^{LARGEST:g} about centres in [−{CORE:g}, {CORE:g}]"
    )
    centres = torch.linspace(-CORE, CORE, 81, dtype=torch.float64)
    logs = torch.linspace(0.1, LARGEST, 90, dtype=torch.float64)
    table = scaling_grid_defect(certificate.f, centres, logs, 1.0)
    padded = torch.nn.functional.pad(table[None, None], (1, 1, 1, 1), value=-1.0)[0, 0]
    windows = padded.unfold(0, 3, 1).unfold(1, 3, 1).reshape(*table.shape, 9)
    lowest = (table <= windows.amin(-1)) & (table < 0.5)
    places = lowest.nonzero()
    places = places[table[lowest].argsort()[:6]]
    for i, j in places.tolist():
        centre, log_scale = _descended(certificate, float(centres[i]), float(logs[j]))
        neat = short(centre, 1e-5)
        for p in dict.fromkeys((neat, centre)):
            defect = scaling_defect(certificate.f, p)
            near = minima(defect, max(0.02, log_scale - 0.3), log_scale + 0.3, 40, keep=1)
            accepted = _scalings_at(certificate, found, p, near, 1)
            if accepted:
                found.generators += _rooted(certificate, accepted[0])
                return


def _descended(certificate: Certificate, centre: float, log_scale: float) -> tuple[float, float]:
    """Ever finer grids: the defect is a norm, which has no slope at an exact relation."""
    reach = 0.3
    for _ in range(12):
        grid = centre + reach * torch.linspace(-1, 1, 21, dtype=torch.float64)
        logs = log_scale + reach * torch.linspace(-1, 1, 21, dtype=torch.float64)
        table = scaling_grid_defect(certificate.f, grid, logs.clamp_min(0.02), max(reach, 0.02))
        at = int(table.argmin())
        centre, log_scale = float(grid[at // 21]), float(logs[at % 21])
        reach /= 4
    return centre, log_scale
