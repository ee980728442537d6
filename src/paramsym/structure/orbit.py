"""The dimension of the orbit through given parameters: the rank of all velocities.

It is a rank and no sum: families may overlap, and a stabiliser may be positive. Ranks are dense;
`counting` finds the number at generic weights from shapes alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paramsym.structure.coordinates import Generators
from paramsym.structure.layout import widened
from paramsym.structure.rank import matrix_rank
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, as_real, real_entries, tangent

DENSE_LIMIT = 150_000_000  # entries of the largest dense matrix of generators
GENERATOR_LIMIT = 6_000  # rows of the largest one, whose cube is the cost of its rank


class OrbitTooLarge(ValueError):
    """A component of the generators is too large for a dense rank."""


def orbit_dimension(symmetry: ParameterSymmetry, params: Mapping[str, torch.Tensor]) -> int:
    """In how many independent directions the parameters can move at `params`.

    Groups, shifts and dead parameters count together, overlaps once. Buffers (running statistics)
    are held: only directions that leave them where they are count, which for the matrix G of all
    generators are rank(G) − rank(G restricted to the columns of buffers).

    Parameters that no generator joins form independent components, whose ranks add up. They are
    dense, at most `GENERATOR_LIMIT` generators and `DENSE_LIMIT` entries each. For larger models
    `paramsym.structure.counting.generic_dimension` finds the number at generic weights.

    Where inputs or outputs are freed, it counts all directions in which parameters can move while
    the function changes by a change of basis of these.

    Args:
        symmetry: what `find_symmetry` derived.
        params: the complete state dict; ranks are computed in float64.

    Raises:
        OrbitTooLarge: a component is larger than the limits.
    """
    wide = {n: widened(p.detach()) for n, p in params.items()}
    operator = tangent(symmetry, wide)
    dead = [n for n in symmetry.dead if n in operator.columns and n not in symmetry.buffers]
    total = sum(real_entries(wide[n]) for n in dead)
    for blocks, names in components(operator):
        total += _component_rank(operator, blocks, tuple(n for n in names if n not in dead))
    for name, found in symmetry.unreached.items():
        if name in wide and name not in dead and found:
            total += len(found) * real_entries(wide[name][0])
    return total


def _component_rank(
    operator: TangentOperator, blocks: tuple[Generators, ...], alive: tuple[str, ...]
) -> int:
    """The directions of one component that hold the buffers, but for entries never reached."""
    _require_dense(operator, blocks, alive)
    matrix = operator.dense(blocks, alive)
    matrix[:, unreached_columns(operator, alive)] = 0.0  # these are counted entry by entry
    return held_rank(matrix, _buffer_columns(operator, alive))


def _require_dense(
    operator: TangentOperator, blocks: tuple[Generators, ...], names: tuple[str, ...]
) -> None:
    rows = sum(block.size for block in blocks)
    entries = sum(real_entries(operator.params[n]) for n in names)
    if rows > GENERATOR_LIMIT or rows * entries > DENSE_LIMIT:
        raise OrbitTooLarge(
            f"orbit_dimension(symmetry, params): {rows:,} generators of {blocks[0].name!r} and "
            f"others move {entries:,} entries together; at most {GENERATOR_LIMIT:,} generators and "
            f"{DENSE_LIMIT:,} numbers were expected, since their rank is taken densely. Call "
            "paramsym.structure.counting.generic_dimension(symmetry, params), which needs shapes "
            "alone and counts at generic weights."
        )


def unreached_columns(operator: TangentOperator, names: tuple[str, ...]) -> torch.Tensor:
    """Which entries of some parameters are in rows that no input reaches."""
    marks = []
    for name in names:
        mark = torch.zeros(as_real(operator.params[name]).shape, dtype=torch.bool)
        if rows := operator.symmetry.unreached.get(name):  # a single number has no rows
            mark[list(rows)] = True
        marks.append(mark.reshape(-1))
    return torch.cat(marks) if marks else torch.zeros(0, dtype=torch.bool)


def held_rank(matrix: torch.Tensor, buffers: torch.Tensor) -> int:
    """The dimension of the combinations of rows that vanish in the marked columns."""
    return matrix_rank(matrix).rank - matrix_rank(matrix[:, buffers]).rank


def _buffer_columns(operator: TangentOperator, names: tuple[str, ...]) -> torch.Tensor:
    held = set(operator.symmetry.buffers)
    marks = [torch.full((real_entries(operator.params[n]),), n in held) for n in names]
    return torch.cat(marks) if marks else torch.zeros(0, dtype=torch.bool)


def components(operator: TangentOperator) -> list[tuple[tuple[Generators, ...], tuple[str, ...]]]:
    """Groups of generators that share no parameter with each other, and what they move."""
    groups: list[tuple[list[Generators], set[str]]] = []
    for block in operator.blocks:
        members, names = [block], set(block.parameters)
        for other in [g for g in groups if g[1] & names]:
            groups.remove(other)
            members, names = other[0] + members, other[1] | names
        groups.append((members, names))
    return [
        (tuple(members), tuple(n for n in operator.names if n in names))
        for members, names in groups
    ]
