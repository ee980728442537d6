"""Independent parts of an expected error along scales: its least value is the sum of theirs.

E is a sum over groups of rounded weights. Scales that share no group, directly or through others,
stand in different summands, E(y) = E₀ + Σ_k E_k(y_k): each is minimised alone, E₀ is what no scale
moves, and values, bounds and slopes add up. Families of scales on one term of the squared norm stay
together as well, because it decides where E does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from paramsym.geometry.newton import minimise
from paramsym.geometry.posynomial import Posynomial
from paramsym.quantize.expected_error import ExpectedError
from paramsym.quantize.smoothing import Solved, least_error

_EQUAL = 1e-12  # relative difference of errors that only rounding tells apart
_LOOSEST = 0.1  # gap of one component relative to its error, where others outweigh it


def components(error: ExpectedError) -> list[ExpectedError]:
    """E as a sum over families of scales that share no group; what none moves comes last, if any.

    The connected components of a graph: families, blocks of weights and groups are its vertices,
    and a block is joined to the scales on it and to its groups.
    """
    families = {name: k for k, name in enumerate(error.scales.shapes)}
    first, groups = len(families), len(families) + len(error.parts)
    edges: list[tuple[np.ndarray, int]] = []
    for k, part in enumerate(error.parts):
        edges.append((groups + part.groups.unique().numpy(), first + k))
        edges.append((np.array([families[leg.family] for leg in part.legs], int), first + k))
    for term in error.scales.terms:
        among = [families[factor.family] for factor in term.factors]
        edges.append((np.array(among[1:], int), among[0]))
    ends = np.concatenate([one for one, _ in edges]) if edges else np.zeros(0, int)
    others = np.repeat([other for _, other in edges], [len(one) for one, _ in edges]).astype(int)
    count = groups + error.groups
    graph = coo_array((np.ones(len(ends)), (ends, others)), shape=(count, count))
    labels = connected_components(graph, directed=False)[1]
    moved = [*dict.fromkeys(labels[:first].tolist())]
    found = [_component(error, labels, [label]) for label in moved]
    rest = [*{*labels[first:groups].tolist()} - {*moved}]
    return [*found, _component(error, labels, rest)] if rest else found


def _component(error: ExpectedError, labels: np.ndarray, chosen: list[int]) -> ExpectedError:
    """E of the vertices with some labels."""
    scales = error.scales
    inside = np.isin(labels, chosen)
    shapes = {name: shape for k, (name, shape) in enumerate(scales.shapes.items()) if inside[k]}
    terms = [term for term in scales.terms if term.factors[0].family in shapes]
    parts = [part for k, part in enumerate(error.parts) if inside[len(scales.shapes) + k]]
    return error.alone(parts, Posynomial(shapes, terms))


def least_error_apart(
    error: ExpectedError,
    free: Tensor,
    tolerance: float,
    progress: Callable[[str], None] | None,
) -> tuple[float, Solved]:
    """E before anything moves, and the y of least E with its certificate, component by component.

    Args:
        error: E along the scales.
        free: 1 for coordinates that may move, 0 for those that stay, of shape (size,).
        tolerance: the gap relative to E at which to stop. Each component stops at the same share of
            its own error, and at more where there is an error that no scale moves: its share of the
            gap goes to those that move, in proportion.
        progress: called with a line per component and stage.
    """
    scales, masks = error.scales, error.scales.split(free)
    found = components(error)
    frees = [part.scales.joined(masks) for part in found]
    before = [math.exp(p.log(torch.zeros_like(f))) if p.parts else 0.0
              for p, f in zip(found, frees, strict=True)]  # fmt: skip
    moving = sum(size for size, f in zip(before, frees, strict=True) if bool(f.any()))
    spread = tolerance * sum(before) / moving if moving else tolerance
    share = max(tolerance, min(spread, _LOOSEST))
    logs: dict[str, Tensor] = {}
    slopes: dict[str, Tensor] = {}
    value, bound, rounds = 0.0, 0.0, 0
    for k, (part, mask) in enumerate(zip(found, frees, strict=True)):
        say = _prefixed(progress, f"part {k + 1} of {len(found)}, " if found[1:] else "")
        solved = _least(part, mask, before[k], share, say)
        logs |= part.scales.split(solved.y)
        slopes |= part.scales.split(solved.value * solved.slope)
        value, bound = value + solved.value, bound + solved.bound
        rounds = max(rounds, solved.rounds)
    slope = scales.joined(slopes) / (value or 1.0)
    return sum(before), Solved(scales.joined(logs), value, bound, slope, rounds)


def _least(
    part: ExpectedError,
    free: Tensor,
    before: float,
    tolerance: float,
    progress: Callable[[str], None] | None,
) -> Solved:
    """The least error of one component; where nothing moves E, the least norm, so that a start of
    least norm is preferred to an equal one."""
    zero = torch.zeros_like(free)
    if not bool(free.any()):
        return Solved(zero, before, before, zero, 0)
    start = minimise(part.scales, free, 1e-9)
    if not part.parts:
        return Solved(start, 0.0, 0.0, zero, 0)
    if math.exp(part.log(start)) > before * (1 + _EQUAL):
        return least_error(part, free, [zero, start], tolerance, progress)
    solved = least_error(part, free, [start], tolerance, progress)
    return solved._replace(value=min(solved.value, before))


def _prefixed(progress: Callable[[str], None] | None, prefix: str) -> Callable[[str], None] | None:
    return None if progress is None else lambda line: progress(prefix + line)
