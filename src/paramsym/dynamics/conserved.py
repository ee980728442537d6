"""What gradient flow conserves on account of a symmetry, derived from its generators.

Along θ̇ = −∇L the velocity is orthogonal to X_j θ for every generator X_j that leaves L alone. A
combination X_c = Σ c_j X_j with constant c gives a conserved quantity where it is a gradient,

    X_c θ = ∇Q_c    ⇔    the derivative of θ ↦ X_c θ is a symmetric matrix.

Which c these are is a linear condition. What a space does is linear, A on the blocks that carry it
and −Aᵀ on those that carry its dual, and symmetric exactly where A = Aᵀ: equations between the
coordinates of A and Aᵀ. In the frame of a gain γ it is γ A γ⁻¹, a gradient only for diagonal A. A
shift is a constant field, that of a linear quantity, unless it reads parameters: what it adds to
one then depends on another, which does not depend on it in turn. The directions must leave buffers
at rest, for these do not flow. Together these are sparse equations; their null space are the laws.

Source: Zhao, Ganev, Walters, Yu, Dehmamy (2023), Proposition 5.1 and C.5; that a gradient is needed
for more than linear actions: Marcotte, Gribonval, Peyré, "Abide by the law and follow the flow"
(2023), section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from paramsym.structure.coordinates import Generators, split
from paramsym.structure.orbit import DENSE_LIMIT, OrbitTooLarge, components, unreached_columns
from paramsym.structure.origin import added
from paramsym.structure.rank import matrix_rank
from paramsym.structure.rest import Basis
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, real_entries, tangent

from .gradient_fields import gradient_fields, transpose

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class ConservedQuantities:
    """The quantities that gradient flow keeps constant on account of a symmetry.

    Quantity k belongs to the combination of generators in column k of `basis`, whose field is
    X_k θ = A_k (θ + o) + a_k, with the origins o of `symmetry.offsets`. It is named after the
    generator `own[k]`, which no other combination moves.

    Attributes:
        operator: the generators, at the parameters from which the laws were derived.
        basis: the combinations.
        own: for each combination the generator that it is named after, of shape (quantities,).
        constants: parameters that the loss does not depend on, whose entries are all conserved.
        why: by space or shift, why it gives no quantity, or not all of them.
    """

    operator: TangentOperator
    basis: Basis
    own: Tensor
    constants: tuple[str, ...]
    why: Mapping[str, str]

    @property
    def symmetry(self) -> ParameterSymmetry:
        """What they follow from."""
        return self.operator.symmetry

    @cached_property
    def degrees(self) -> Tensor:
        """2 for the quantities of spaces, 1 for those of shifts; of shape (quantities,)."""
        return torch.where(self.own < self._spaces, 2, 1)

    @property
    def _spaces(self) -> int:
        """The number of generators of spaces, which come before those of shifts."""
        return sum(b.size for b in self.operator.blocks if not b.is_shift)

    def values(self, params: Params) -> dict[str, Tensor]:
        """The quantities at some parameters, of the families that have any.

            Q(θ) = ⟨θ + o, A (θ + o)⟩ + 2 ⟨a, θ + o⟩    for the field A (θ + o) + a of a space,
            Q(θ) = ⟨a, θ + o⟩                           for that of a shift,

        so that ∇Q is the field times the degree of Q.

        Args:
            params: the complete state dict, of the shapes that the laws were derived from.

        Returns:
            By space a symmetric matrix (copies…, n, n), for groups that mix nothing the diagonal
            (copies…, n), by shift a tensor of its shape, and each constant parameter; they are in
            the units of `moment_map`. Where buffers or frames leave only some quantities of a
            family, these alone, (quantities,), in the order of its coordinates.

        Raises:
            ValueError: as `act`.
        """
        with torch.no_grad():
            found = self.shaped(self.quantities(params))
            return found | {n: params[n].detach().clone() for n in self.constants}

    def quantities(self, params: Params) -> Tensor:
        """The quantities of spaces and shifts as one vector, (quantities,), in their order."""
        about = {n: self._about_origin(n, params[n]) for n in self.operator.names}
        pairs = self.pairing(params, about)
        constant = torch.cat([torch.zeros_like(pairs[: self._spaces]), pairs[self._spaces :]])
        return self.basis.lowered(pairs) + self.basis.lowered(constant) * (self.degrees - 1)

    def _about_origin(self, name: str, tensor: Tensor) -> Tensor:
        return added(tensor, self.symmetry.offsets.get(name, 0.0))

    def pairing(self, params: Params, covector: Params) -> Tensor:
        """⟨ξ, A_j (θ + o)⟩ for the spaces and ⟨ξ, a_j⟩ for the shifts, of shape (generators,).

        `basis.lowered` pairs ξ with the fields of the quantities: for the gradient of an invariant
        loss that vanishes. No quantity has a part in shifts that read parameters.

        Args:
            params: θ, the complete state dict.
            covector: ξ, tensors by parameter; those of buffers do not count.
        """
        names = [n for n in self.operator.names if n not in self.symmetry.buffers]
        operator = replace(self.operator, params=dict(params), basis=None)
        return operator.rmatvec({n: covector[n] for n in names if n in covector})

    def shaped(self, numbers: Tensor) -> dict[str, Tensor]:
        """One number for each quantity, (quantities,), by family in the shapes of `values`."""
        whole = numbers.new_zeros(self.basis.generators)
        whole[self.own] = numbers
        here = torch.zeros_like(whole, dtype=torch.bool)
        here[self.own] = True
        blocks, found = self.operator.blocks, {}
        for (block, own), (_, mark) in zip(split(blocks, whole), split(blocks, here), strict=True):
            if mark.any():
                shaped = self._family(block, own, mark)
                found[block.name] = own[mark] if shaped is None else shaped
        return found

    def _family(self, block: Generators, own: Tensor, mark: Tensor) -> Tensor | None:
        """The numbers of a family in its shape; None where some of its directions have none."""
        if block.is_shift:
            return own if mark.all() else None
        group = self.symmetry.spaces[block.name].group
        partner, sign = (
            x.to(own.device) for x in (transpose(group).partner, transpose(group).sign)
        )
        if not torch.equal(mark | mark[..., partner], (sign > 0).expand(mark.shape)):
            return None
        made = group.tangent(torch.where(mark, own, own[..., partner]))
        if made.matrix is not None:
            return made.matrix
        return None if made.diagonal is None else made.diagonal.real

    def tangent(self, params: Params) -> TangentOperator:
        """The fields of the quantities at some parameters: those of `tangent`, in this basis.

        `rmatvec` of a gradient vanishes, and the rows of `dense()` are the fields.
        """
        return replace(self.operator, params=dict(params), basis=self.basis)

    def count(self, params: Params) -> int:
        """How many of the quantities are independent: the rank of their derivatives.

        Families may overlap; what two of them say counts once.

        Args:
            params: the complete state dict at which the rank is taken, best in float64.

        Raises:
            OrbitTooLarge: a component of the derivatives has more than `DENSE_LIMIT` numbers.
        """
        operator = replace(self.operator, params=dict(params), basis=None)
        total = sum(real_entries(params[n]) for n in self.constants)
        places = torch.arange(self.basis.generators)
        rows = {block.name: part for block, part in split(operator.blocks, places)}
        for blocks, names in components(operator):
            alive = tuple(n for n in names if n not in self.constants)
            own = torch.cat([rows[block.name].reshape(-1) for block in blocks])
            entries = sum(real_entries(params[n]) for n in alive)
            if len(own) * entries > DENSE_LIMIT:
                raise OrbitTooLarge(
                    f"ConservedQuantities.count(params): {len(own):,} generators of "
                    f"{blocks[0].name!r} and others move {entries:,} entries together; at most "
                    f"{DENSE_LIMIT:,} numbers were expected, since their rank is taken densely. "
                    "Count a smaller model of the same kind."
                )
            matrix = self._combined(operator.dense(blocks, alive), own)
            matrix[:, unreached_columns(operator, alive)] = 0.0  # no input reaches these
            total += matrix_rank(matrix).rank
        for name, found in self.symmetry.unreached.items():
            if name in params and name not in self.constants:
                total += len(found) * real_entries(params[name][0])
        return total

    def _combined(self, matrix: Tensor, own: Tensor) -> Tensor:
        """The fields of all combinations of some generators, from those of the generators."""
        place = torch.full((self.basis.generators,), -1)
        place[own] = torch.arange(len(own))
        here = place[self.basis.rows] >= 0
        columns, index = self.basis.columns[here].unique(return_inverse=True)
        scaled = self.basis.values[here, None].to(matrix) * matrix[place[self.basis.rows[here]]]
        return matrix.new_zeros(len(columns), matrix.shape[1]).index_add(0, index, scaled)

    def __str__(self) -> str:
        lines = [f"{n}: {' × '.join(map(str, x.shape))}" for n, x in self.shaped(self.own).items()]
        lines += [f"{n}: constant, for the loss does not depend on it" for n in self.constants]
        lines += [f"{n}: {why}" for n, why in self.why.items()]
        return "\n".join(lines)


def conserved_quantities(
    symmetry: ParameterSymmetry, params: Params, frozen: Collection[str] = ()
) -> ConservedQuantities:
    """All quantities that gradient flow conserves because the loss is constant along orbits.

    They are those combinations X_c of the generators, with constant c, whose field is a gradient
    and leaves all buffers at rest: scales and symmetric changes of basis give quadratic ones,
    shifts that read no parameters linear ones. Rotations give none, for their fields are skew: of
    them only ⟨θ̇, Xθ⟩ = 0 remains.

    Args:
        symmetry: what `find_symmetry` derived. Families that are not exact, and those that change
            the basis of inputs or outputs, do not leave a loss alone, and give nothing.
        params: the complete state dict; of its numbers the buffers alone matter.
        frozen: parameters that are not trained. A family that moves one of them gives nothing; one
            that reads them alone is constant.

    Raises:
        ValueError: as `act`, or a frozen name that is no parameter.

    Source: Zhao and others (2023), Propositions 5.1 and C.5; Marcotte, Gribonval, Peyré (2023).
    """
    unknown = [n for n in frozen if n not in params]
    if unknown:
        raise ValueError(
            f"conserved_quantities(frozen={unknown[:3]!r}): no such parameter. Names of the state "
            f"dict were expected, like {next(iter(params))!r}; "
            "[n for n, p in model.named_parameters() if not p.requires_grad] lists them."
        )
    operator = tangent(symmetry, {n: p.detach() for n, p in params.items()})
    blocks = operator.blocks
    fields = gradient_fields(symmetry, blocks, {symmetry.ties.get(n, n) for n in frozen})
    basis = operator.basis_at_rest(fields.equations, reduced=True)
    moved = basis.values != 0
    own = basis.rows.new_full((basis.width,), basis.generators)
    own = own.scatter_reduce(0, basis.columns[moved], basis.rows[moved], "amin")
    dead = tuple(n for n in symmetry.dead if n in operator.columns and n not in symmetry.buffers)
    # A_jk = A_kj is named after both: their mean is the entry of the matrix of quantities.
    share = torch.where(_partners(symmetry, blocks).to(own.device)[own] == own, 1.0, 0.5)
    basis = replace(basis, values=share.to(basis.values)[basis.columns] * basis.values)
    return ConservedQuantities(operator, basis, own, dead, _why(symmetry, blocks, own, fields.why))


def _partners(symmetry: ParameterSymmetry, blocks: Sequence[Generators]) -> Tensor:
    """The place of A_kj among all generators for that of A_jk; their own for shifts."""
    found = torch.arange(sum(b.size for b in blocks))
    for block, part in split(blocks, found):
        if not block.is_shift:
            part.copy_(part[..., transpose(symmetry.spaces[block.name].group).partner])
    return found


def _why(
    symmetry: ParameterSymmetry, blocks: Sequence[Generators], own: Tensor, why: Mapping[str, str]
) -> dict[str, str]:
    """The reasons of families without quantities, or with fewer than they have directions."""
    found, here = {}, torch.zeros(sum(b.size for b in blocks), dtype=torch.bool)
    here[own.cpu()] = True
    for block, marks in split(blocks, here):
        group = None if block.is_shift else symmetry.spaces[block.name].group
        complete = marks.all() if group is None else torch.equal(
            marks, transpose(group).own.expand(marks.shape)
        )  # fmt: skip
        if block.name in why and not (block.is_shift and complete):
            found[block.name] = why[block.name]
        elif not complete:
            found[block.name] = "its directions move buffers, which do not flow"
    return found
