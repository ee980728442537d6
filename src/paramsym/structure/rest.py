"""The directions of an orbit that leave every buffer where it is.

In evaluation mode a buffer is a number like any other: a scale in front of a batch norm moves its
running mean, and the loss, constant along the orbit of parameters and buffers together, changes
along the parameters alone. Gradients of parameters pair to zero with the null space of

    V : coordinates of the generators ↦ velocities of the buffers.

V falls into components of generators that move a common entry of a buffer, mostly one channel
each: its scale and a few offsets. A basis of the null space of each makes one of the whole, exact
to rounding. Further equations between coordinates are rows like those of V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from paramsym.algebra import AbstractMonomial
from paramsym.structure.data import SymmetryData
from paramsym.structure.shift import Term

Pair = Callable[[dict[str, torch.Tensor]], torch.Tensor]  # covector ↦ its pairing with generators
Edges = tuple[torch.Tensor, torch.Tensor]  # entries of buffers, generators; of equal lengths

Part = tuple[torch.Tensor, torch.Tensor]  # generators of components, and a basis for each

_ROUNDING = 10.0  # units in the last place: what is shorter is no number


class Equations(NamedTuple):
    """Σ values · c[generators] = 0 over the places of each row, as the entries of a sparse matrix.

    Rows are counted from 0 on; all three are of one length.
    """

    rows: torch.Tensor
    generators: torch.Tensor
    values: torch.Tensor


class NullSpace(NamedTuple):
    """What components of one size leave, in coordinates that have been scaled.

    Attributes:
        members: the generators of each component, (B, m).
        basis: orthonormal columns, (B, m, d).
        scales: by which the coordinates have been multiplied, (B, m, 1).
    """

    members: torch.Tensor
    basis: torch.Tensor
    scales: torch.Tensor

    def orthonormal(self) -> torch.Tensor:
        """An orthonormal basis (B, m, d) in the coordinates as they were."""
        return torch.linalg.qr(self.basis / self.scales)[0]

    def reduced(self) -> torch.Tensor:
        """The reduced echelon basis (B, m, d) in the coordinates as they were."""
        found = _echelon(self.basis)
        if not found.numel():
            return found
        leading = (found != 0).int().argmax(1, keepdim=True)
        return found * self.scales.expand_as(found).gather(1, leading) / self.scales


@dataclass(frozen=True)
class Basis:
    """Columns in the coordinates of all generators, as a sparse matrix (g × d).

    `sizes` counts the columns family by family, that of their first generator.
    """

    generators: int
    rows: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """The number of independent directions."""
        return sum(self.sizes)

    def lifted(self, coordinates: torch.Tensor) -> torch.Tensor:
        """The coordinates of the generators, for those of the directions, of shape (d,)."""
        entries = self.values * coordinates[self.columns]
        return entries.new_zeros(self.generators).index_add(0, self.rows, entries)

    def lowered(self, pairing: torch.Tensor) -> torch.Tensor:
        """The transpose: what pairs with generators, (g, …), pairs so with directions, (d, …)."""
        tail = [1] * (pairing.ndim - 1)
        entries = self.values.reshape(-1, *tail) * pairing[self.rows]
        zero = entries.new_zeros(self.width, *pairing.shape[1:])
        return zero.index_add(0, self.columns, entries)


def basis_at_rest(
    symmetry: SymmetryData,
    params: Mapping[str, torch.Tensor],
    starts: Mapping[str, int],
    sizes: Sequence[int],
    pair: Pair,
    equations: Equations | None = None,
    reduced: bool = False,
) -> Basis:
    """A basis of the directions that leave every buffer where it is.

    Args:
        symmetry: whose generators and buffers they are.
        params: at which they move, the buffers among them.
        starts: the first coordinate of each space and shift that has any.
        sizes: the number of coordinates of each, in their order.
        pair: the adjoint of the velocities, for any part of them.
        equations: what the coordinates satisfy besides.
        reduced: instead of an orthonormal basis the reduced echelon one: each direction has a
            generator of its own, the first that it moves, with the coordinate 1, and no other
            direction moves that one.
    """
    own = {n: params[n] for n in symmetry.buffers if n in params and n not in symmetry.ties}
    own = {n: b for n, b in own.items() if b.is_floating_point() or b.is_complex()}
    like = pair({})
    entries, generators = (x.to(like.device) for x in _linked(symmetry, own, starts))
    first = sum(b.numel() * (2 if b.is_complex() else 1) for b in own.values())
    if equations is not None:
        entries = torch.cat([entries, first + equations.rows])
        generators = torch.cat([generators, equations.generators])
    label, of_entry = _components(entries, generators, len(like))
    velocities = _velocities(own, of_entry, entries, pair, equations)
    found = _null_spaces(label, velocities)
    parts = [(each.members, each.reduced() if reduced else each.orthonormal()) for each in found]
    return _assembled(parts, like, sizes)


# -- who moves what ----------------------------------------------------------------------------


def _linked(
    symmetry: SymmetryData, buffers: Mapping[str, torch.Tensor], starts: Mapping[str, int]
) -> Edges:
    """Every pair of an entry of a buffer and a generator that may move it.

    Real entries are counted through all buffers. What mixes coordinates counts as moving all that
    its copy acts on.
    """
    first, found = 0, [(torch.zeros(0, dtype=torch.long),) * 2]
    for name, buffer in buffers.items():
        width = 2 if buffer.is_complex() else 1
        places = first + width * torch.arange(buffer.numel()).reshape(buffer.shape)
        first += width * buffer.numel()
        for part in range(width):
            found += _through_spaces(symmetry, name, places + part, starts)
            for shift in symmetry.shifts:
                for term in shift.terms:
                    if term.target.parameter == name and shift.size:
                        delta = starts[shift.name] + torch.arange(shift.size).reshape(shift.shape)
                        found.append(_through_shift(term, places + part, delta, shift.letters))
    one, other = zip(*found, strict=True)
    return torch.cat(one), torch.cat(other)


def _through_spaces(
    symmetry: SymmetryData, name: str, places: torch.Tensor, starts: Mapping[str, int]
) -> Iterator[Edges]:
    for block in symmetry.blocks.get(name, ()):
        at = block.view(places)
        for leg in block.legs:
            space = symmetry.spaces[leg.space]
            if not leg.power or leg.space not in starts:
                continue
            index = torch.zeros((), dtype=torch.long)
            for axis in leg.copies:
                index = index * block.shape[axis] + _counted(block.shape, axis)
            width = space.group.dimension
            if isinstance(space.group, AbstractMonomial):
                index = index * width + _counted(block.shape, leg.axis)
                yield at.reshape(-1), starts[leg.space] + index.expand(at.shape).reshape(-1)
            else:
                each = (index * width)[..., None] + torch.arange(width)
                each = starts[leg.space] + each.expand(*at.shape, width)
                yield at[..., None].expand(each.shape).reshape(-1), each.reshape(-1)


def _counted(shape: tuple[int, ...], axis: int) -> torch.Tensor:
    """The index along one axis, at every place of a shape that broadcasts."""
    return torch.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))


def _through_shift(term: Term, places: torch.Tensor, delta: torch.Tensor, letters: str) -> Edges:
    """Letters that the target and δ share are equal; through factors all others may be linked."""
    target = term.target.view({term.target.parameter: places})
    union = dict.fromkeys(term.target.letters + letters)

    def over(x: torch.Tensor, own: str) -> torch.Tensor:
        order = [own.index(c) for c in union if c in own]
        return x.permute(order)[tuple(slice(None) if c in own else None for c in union)]

    one, other = over(target, term.target.letters), over(delta, letters)
    shape = torch.broadcast_shapes(one.shape, other.shape)
    return one.expand(shape).reshape(-1), other.expand(shape).reshape(-1)


def _components(
    entries: torch.Tensor, generators: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The component of every generator and of every entry: the least generator that it links."""
    label = torch.arange(count, device=generators.device)
    size = int(entries.max()) + 1 if len(entries) else 0
    while True:
        of_entry = label.new_full((size,), count)
        of_entry = of_entry.scatter_reduce(0, entries, label[generators], "amin")
        lower = label.scatter_reduce(0, generators, of_entry[entries], "amin")
        lower = torch.minimum(lower, lower[lower])  # halve the way to the least one
        if torch.equal(lower, label):
            return label, of_entry
        label = lower


# -- null spaces -------------------------------------------------------------------------------


def _velocities(
    buffers: Mapping[str, torch.Tensor],
    label: torch.Tensor,
    linked: torch.Tensor,
    pair: Pair,
    equations: Equations | None,
) -> torch.Tensor:
    """Row k + 1 holds, for every generator, how fast it moves entry k of its component.

    Components are disjoint, so that one pairing tells a row of all of them. Equations count as
    entries behind those of the buffers.
    """
    real = [b.numel() * (2 if b.is_complex() else 1) for b in buffers.values()]
    rank = torch.full((max(sum(real), len(label)),), -1, device=label.device)
    places = linked.unique()
    rank[places] = _ranks(label[places])
    zeros = pair({})
    rows = [zeros]
    for k in range(int(rank.max()) + 1 if len(places) else 0):
        *marked, own = (rank == k).split([*real, len(rank) - sum(real)])
        covector = {
            n: _complex_like(part.to(b.dtype.to_real()), b)
            for part, (n, b) in zip(marked, buffers.items(), strict=True)
            if part.any()
        }
        row = pair(covector) if covector else zeros
        if equations is not None:
            now = own[equations.rows]
            values = equations.values[now].to(row.dtype)
            row = row.index_add(0, equations.generators[now], values)
        rows.append(row)
    return torch.stack(rows)


def _complex_like(flat: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Real entries in the shape of a buffer, two for each complex one."""
    made = torch.view_as_complex(flat.reshape(-1, 2)) if buffer.is_complex() else flat
    return made.reshape(buffer.shape)


def _null_spaces(label: torch.Tensor, velocities: torch.Tensor) -> Iterator[NullSpace]:
    """What each component leaves, in coordinates whose columns of V are of like size.

    Columns are brought to one length, and then rows: buffers of 1e8 stand beside ones.
    """
    order = label.argsort(stable=True)
    counts = torch.unique_consecutive(label[order], return_counts=True)[1]
    of_each = counts.repeat_interleave(counts)
    for m in counts.unique().tolist():
        members = order[of_each == m].reshape(-1, m)
        matrix = velocities[:, members].movedim(0, 1)  # (B, entries, m)
        scales = _lengths(matrix, 1)
        scales = torch.where(scales > 0, scales, 1)
        matrix = matrix / scales
        lengths = _lengths(matrix, 2)
        matrix = torch.where(lengths > 0, matrix / torch.where(lengths > 0, lengths, 1), 0)
        matrix = matrix[:, (lengths > 0).any(0)[:, 0]]
        _, values, right = torch.linalg.svd(matrix, full_matrices=True)
        least = _ROUNDING * torch.finfo(matrix.dtype).eps * max(matrix.shape[1:]) * values[:, :1]
        ranks = (values > least).sum(-1)
        for r in ranks.unique().tolist():
            now = ranks == r
            yield NullSpace(members[now], right[now, r:].mT, scales[now].mT)


def _lengths(matrix: torch.Tensor, axis: int) -> torch.Tensor:
    """The lengths of columns (axis 1) or rows (2); zero where they are no more than rounding."""
    found = torch.linalg.vector_norm(matrix, dim=axis, keepdim=True)
    least = _ROUNDING * torch.finfo(matrix.dtype).eps * found.amax((1, 2), keepdim=True)
    return torch.where(found > least, found, 0)


def _echelon(basis: torch.Tensor) -> torch.Tensor:
    """The reduced echelon bases (B, m, d) of the same spaces: each column begins with its own 1.

    Args:
        basis: orthonormal columns, (B, m, d).
    """
    found, (count, m, d) = basis.mT.clone(), basis.shape  # as rows, (B, d, m)
    if not d:
        return basis
    every = torch.arange(count, device=basis.device)
    free = torch.ones(count, d, dtype=torch.bool, device=basis.device)  # rows without their 1
    least = m * _ROUNDING * torch.finfo(basis.dtype).eps ** 0.75
    for place in range(m):
        largest, row = torch.where(free, found[:, :, place].abs(), 0).max(1)
        now = largest > least
        found[:, :, place] = torch.where(free & ~now[:, None], 0, found[:, :, place])
        chosen = found[every, row]
        chosen = chosen / torch.where(now, chosen[:, place], 1)[:, None]
        left = found - found[:, :, place, None] * chosen[:, None, :]
        left[every, row] = chosen
        left[:, :, place] = torch.nn.functional.one_hot(row, d).to(left.dtype)
        found = torch.where(now[:, None, None], left, found)
        free[every, row] &= ~now
    return found.mT


def _ranks(label: torch.Tensor) -> torch.Tensor:
    """The place of every item among those of its label."""
    order = label.argsort(stable=True)
    counts = torch.unique_consecutive(label[order], return_counts=True)[1]
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    ranks = torch.empty_like(label)
    ranks[order] = torch.arange(len(label), device=label.device) - first
    return ranks


def _assembled(parts: Sequence[Part], like: torch.Tensor, sizes: Sequence[int]) -> Basis:
    """The bases of all components side by side, in the order of their first generators."""
    none = torch.zeros(0, dtype=torch.long, device=like.device)
    rows, columns, values, first, width = [none], [none], [like[:0]], [none], 0
    for members, basis in parts:
        count, m, d = basis.shape
        own = width + torch.arange(count * d, device=members.device).reshape(count, 1, d)
        rows.append(members[:, :, None].expand(count, m, d).reshape(-1))
        columns.append(own.expand(count, m, d).reshape(-1))
        values.append(basis.reshape(-1))
        first.append(members[:, :1].expand(count, d).reshape(-1))
        width += count * d
    leading = torch.cat(first)
    place = torch.empty_like(leading)
    place[leading.argsort(stable=True)] = torch.arange(width, device=leading.device)
    ends = torch.tensor(sizes, device=leading.device).cumsum(0)
    families = torch.bincount(torch.bucketize(leading, ends, right=True), minlength=len(sizes))
    return Basis(
        len(like), torch.cat(rows), place[torch.cat(columns)], torch.cat(values),
        tuple(int(n) for n in families if n),
    )  # fmt: skip
