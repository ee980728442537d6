"""The vector fields of a derived symmetry at random parameters: values, bends, and constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paramsym.structure.coordinates import Generators
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent

LIMIT = 300_000_000  # numbers of the largest matrix of derived velocities

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class State:
    """Parameters at one point: as the symmetry names them, and as the found fields do.

    Columns are the entries of the parameters of the found fields, in their order.
    """

    derived: dict[str, Tensor]
    found: dict[str, Tensor]
    names: dict[str, str]  # of the found fields → of the symmetry
    still: tuple[str, ...]  # buffers, and parameters that were not searched

    @property
    def width(self) -> int:
        return sum(x.numel() for x in self.found.values())

    def row(self, velocity: Mapping[str, Tensor]) -> Tensor:
        """The velocity of a found field in one row."""
        parts = [
            velocity[n].reshape(-1) if n in velocity else torch.zeros_like(x).reshape(-1)
            for n, x in self.found.items()
        ]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *parts]).detach()

    def halfway(self, other: State, symmetry: ParameterSymmetry) -> State:
        """The point in the middle of two; buffers as they are."""
        still = {*symmetry.buffers}
        derived = {
            n: x if n in still else (x + other.derived[n]) / 2 for n, x in self.derived.items()
        }
        found = {n: (x + other.found[n]) / 2 for n, x in self.found.items()}
        return State(derived, found, self.names, self.still)

    def doubled(self, symmetry: ParameterSymmetry) -> State:
        """The point with all parameters doubled, and buffers as they are."""
        still = {*symmetry.buffers}
        derived = {n: x if n in still else 2 * x for n, x in self.derived.items()}
        found = {n: 2 * x for n, x in self.found.items()}
        return State(derived, found, self.names, self.still)


@dataclass(frozen=True)
class Derived:
    """All generators at some points, a row each.

    Attributes:
        blocks: the spaces and shifts, in the order of the rows.
        values: velocities of parameters, the points side by side.
        held: velocities of buffers, and of parameters that were not searched.
        bends: ξ(½θ + ½θ') − ½ξ(θ) − ½ξ(θ'), zero for affine fields.
        constants: ξ(2θ) − 2ξ(θ), zero for affine fields that are linear.
    """

    blocks: tuple[Generators, ...]
    values: Tensor
    held: Tensor
    bends: Tensor
    constants: Tensor

    @property
    def size(self) -> float:
        """The largest velocity: what is small beside it is zero."""
        sizes = [x.abs().max() for x in (self.values, self.held) if x.numel()]
        return float(torch.stack(sizes).max()) if sizes else 1.0

    def masked(self, mask: Tensor) -> Derived:
        """The same with velocities of parameters times a mask, (entries,), at every point."""

        def times(rows: Tensor) -> Tensor:
            return rows * mask.repeat(rows.shape[1] // max(1, len(mask)))

        return replace(
            self, values=times(self.values), bends=times(self.bends),
            constants=times(self.constants),
        )  # fmt: skip


def states(
    shapes: Shapes, symmetry: ParameterSymmetry, params: Mapping[str, Tensor] | None,
    count: int, generator: torch.Generator, dead: Sequence[str] = (),
) -> list[State]:  # fmt: skip
    """Random parameters of one model, in a cone that no coordinate hyperplane cuts.

    Midpoints of two of them are then as far from zero as they are, where derived velocities may
    divide by a gain. Buffers are the same at all.

    Raises:
        ValueError: the symmetry is of another model, or has free inputs or outputs.
    """
    _require_fixed(symmetry)
    names = _names(shapes, symmetry)
    full = {n: symmetry.shape(n) for n in symmetry.signature}
    complexes = {m for n, m in names.items() if shapes[n] == (*full[m], 2)}
    rest = _buffers(symmetry, full, params, generator)
    ignored = {*names.values(), *(symmetry.ties.get(n, n) for n in dead), *symmetry.dead}
    still = tuple(n for n in full if n in rest or n not in ignored)
    real = {n: (*s, 2) if n in complexes else s for n, s in full.items() if n not in rest}
    signs = {n: _signs(shape, generator) for n, shape in real.items()}

    def drawn() -> State:
        numbers = {n: s * (0.5 + _uniform(s.shape, generator)) for n, s in signs.items()}
        state = {n: torch.view_as_complex(x) if n in complexes else x for n, x in numbers.items()}
        own = {n: numbers[m].reshape(shapes[n]) for n, m in names.items()}
        return State({**state, **rest}, own, names, still)

    return [drawn() for _ in range(count)]


def _require_fixed(symmetry: ParameterSymmetry) -> None:
    if symmetry.inputs or symmetry.outputs:
        free = ", ".join([*symmetry.inputs, *symmetry.outputs])
        raise ValueError(
            f"compare(symmetry): a symmetry that changes the basis of {free} came, and one that "
            "leaves the function unchanged was expected. Derive it with find_symmetry(model, "
            "inputs), without free inputs and outputs."
        )


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=generator, dtype=torch.float64)


def _names(shapes: Shapes, symmetry: ParameterSymmetry) -> dict[str, str]:
    """The name in the signature of each tensor of the found fields."""
    names = {n: symmetry.ties.get(n, n) for n in shapes}
    for name, other in names.items():
        here, there = math.prod(shapes[name]), None
        if other in symmetry.signature:
            there = math.prod(symmetry.shape(other))
        if there is None or here not in (there, 2 * there):
            came = "does not name it" if there is None else f"gives it {symmetry.shape(other)}"
            raise ValueError(
                f"compare(symmetry): the parameter {name!r} was searched with shape "
                f"{shapes[name]}, and the symmetry {came}; the symmetry of the same model was "
                "expected. Derive it with find_symmetry(model, inputs) from the model that was "
                "searched."
            )
    return names


def _buffers(
    symmetry: ParameterSymmetry, full: Shapes, params: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    """Floating buffers of the signature, as given or positive ones at random."""
    found = {}
    for name in symmetry.buffers:
        if name not in full:
            continue
        if params is not None and name in params:
            given = params[name].detach().cpu()
            wide = torch.promote_types(given.dtype, torch.float64)
            found[name] = given.to(wide) if given.is_floating_point() else given
        else:
            found[name] = 0.5 + _uniform(full[name], generator)
    return found


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator).to(torch.float64) * 2 - 1


def derived_fields(symmetry: ParameterSymmetry, points: Sequence[State]) -> Derived:
    """All generators of a symmetry at some points, at midpoints of them, and at their doubles.

    Raises:
        ValueError: more numbers than LIMIT.
    """
    first = tangent(symmetry, points[0].derived)
    _require_room(first.shape, len(points))
    at = [_dense(symmetry, point) for point in points]
    bends = []
    for k in range(len(points) - 1):
        middle, _ = _dense(symmetry, points[k].halfway(points[k + 1], symmetry))
        bends.append(middle - (at[k][0] + at[k + 1][0]) / 2)
    doubled = [_dense(symmetry, point.doubled(symmetry))[0] for point in points[:2]]
    constants = [twice - 2 * at[k][0] for k, twice in enumerate(doubled)]
    return Derived(
        first.blocks, torch.cat([v for v, _ in at], 1), torch.cat([b for _, b in at], 1),
        torch.cat(bends, 1), torch.cat(constants, 1),
    )  # fmt: skip


def _dense(symmetry: ParameterSymmetry, point: State) -> tuple[Tensor, Tensor]:
    """Velocities of parameters, in the columns of the found fields, and of what is held."""
    operator = tangent(symmetry, point.derived)
    if not operator.blocks:
        nothing = torch.zeros(0, point.width, dtype=torch.float64)
        return nothing, nothing[:, :0]
    matrix = operator.dense().detach()
    places = operator.columns
    parts = [matrix[:, places[m]] for m in point.names.values()]
    still = [matrix[:, places[n]] for n in point.still if n in places]
    none = matrix[:, :0]
    return torch.cat([none, *parts], 1), torch.cat([none, *still], 1)


def _require_room(shape: tuple[int, int], points: int) -> None:
    size = shape[0] * shape[1] * points
    if size > LIMIT:
        raise ValueError(
            f"compare(symmetry): {shape[0]:,} derived generators on {shape[1]:,} entries at "
            f"{points} points make {size:.1e} numbers, and at most {LIMIT:.0e} were expected. "
            "Compare a smaller model of the same structure, or restrict the symmetry to some of "
            "its spaces with symmetry.restrict(spaces=…)."
        )
