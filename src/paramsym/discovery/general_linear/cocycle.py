r"""c(g, Z) with c(g, Z) σ(Z) = σ(gZ): what the layer after σ must undo when V becomes gV.

    cocycle:       c(g, Z) = R_{σ(gZ)} R_{σ(Z)}⁻¹, for a frame R with R_S [e₁ … e_k] = S
    least change:  c(g, Z)⁻¹ = I + (S − S')S'⁺ with S = σ(Z), S' = σ(gZ)

The first satisfies c(I, Z) = I and c(g₁, g₂Z) c(g₂, Z) = c(g₁g₂, Z), whatever R is: it is an action
of GL_h. The second changes U least in the Frobenius norm of its change among all that are exact on
the batch, and is no action: c(g₁, g₂Z) c(g₂, Z) ≠ c(g₁g₂, Z) in general.

Lemma D.6 promises a c on all nonzero Z for functions that preserve full rank. For k > 1 none of
the usual ones does (Example D.1), so that Z and gZ are refused where σ of them has no full rank;
the identities hold wherever their three terms are defined.

Source: "Symmetries, flat minima, and the conserved quantities of gradient flow", Theorem 4.1,
equations (9), (31) to (34), Lemma D.6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .arguments import require_limit, require_matrix, require_real
from .degenerate import LIMIT, features, require_invertible, require_square
from .frames import AbstractFrame, AbstractFrameAt, HouseholderFrame

FORMS = ("cocycle", "least-change")
Function = Callable[[Tensor], Tensor]


class AbstractChange(ABC):
    """c with c S = S', by products: O(h k) for each vector, and no h × h matrix.

    Attributes:
        condition: the larger of the condition numbers of S and S'. With that of S' grow c⁻¹, hence
            what it makes of U, and errors on the batch.
    """

    condition: float

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """c v, for v of shape (h, n)."""

    @abstractmethod
    def undone(self, rows: Tensor) -> Tensor:
        """U c⁻¹, for U of shape (m, h)."""

    @abstractmethod
    def redone(self, rows: Tensor) -> Tensor:
        """U c, for U of shape (m, h)."""


@dataclass(frozen=True)
class Cocycle(AbstractChange):
    """R' R⁻¹.

    Attributes:
        start: R at S.
        end: R' at S'.
    """

    start: AbstractFrameAt
    end: AbstractFrameAt
    condition: float = 1.0

    def times(self, v: Tensor) -> Tensor:
        require_matrix("change.times(v)", "v", v, (self.start.size, None))
        return self.end.times(self.start.inverse(v))

    def undone(self, rows: Tensor) -> Tensor:
        require_matrix("change.undone(rows)", "rows", rows, (None, self.start.size))
        return self.end.inverse_transposed(self.start.transposed(rows.mT)).mT

    def redone(self, rows: Tensor) -> Tensor:
        require_matrix("change.redone(rows)", "rows", rows, (None, self.start.size))
        return self.start.inverse_transposed(self.end.transposed(rows.mT)).mT


@dataclass(frozen=True)
class LeastChange(AbstractChange):
    """c⁻¹ = I + (S − S')S'⁺, and c = I + (S' − S)(S'⁺S)⁻¹S'⁺ where that k × k matrix is invertible.

    Attributes:
        start: S, of shape (h, k).
        end: S'.
    """

    start: Tensor
    end: Tensor
    condition: float = 1.0

    def _pseudoinverse(self, v: Tensor) -> Tensor:
        """S'⁺v."""
        q, r = torch.linalg.qr(self.end)
        return torch.linalg.solve_triangular(r, q.mT @ v, upper=True)

    def times(self, v: Tensor) -> Tensor:
        require_matrix("change.times(v)", "v", v, (len(self.start), None))
        inner = self._pseudoinverse(torch.cat([self.start, v], 1))
        count = self.start.shape[1]
        return v + (self.end - self.start) @ torch.linalg.solve(inner[:, :count], inner[:, count:])

    def undone(self, rows: Tensor) -> Tensor:
        require_matrix("change.undone(rows)", "rows", rows, (None, len(self.start)))
        q, r = torch.linalg.qr(self.end)
        change = rows @ (self.start - self.end)
        return rows + torch.linalg.solve_triangular(r, change, upper=True, left=False) @ q.mT

    def redone(self, rows: Tensor) -> Tensor:
        require_matrix("change.redone(rows)", "rows", rows, (None, len(self.start)))
        q, r = torch.linalg.qr(self.end)
        inner = torch.linalg.solve_triangular(r, q.mT @ self.start, upper=True)  # S'⁺S
        change = torch.linalg.solve(inner, rows @ (self.end - self.start), left=False)
        return rows + torch.linalg.solve_triangular(r, change, upper=True, left=False) @ q.mT


def change_between(
    before: Tensor,
    moved: Tensor,
    function: Function,
    frame: AbstractFrame | None = None,
    *,
    form: str = "cocycle",
    where: str = "change_between(before, moved, function)",
    limit: float = LIMIT,
) -> AbstractChange:
    """c with c σ(Z) = σ(Z'), for what σ gets before and after a move.

    Args:
        before: Z, of shape (h, k) with k ≤ h.
        moved: Z', likewise.
        function: σ, entrywise.
        frame: R; by default reflections whose jump lies opposite the positive diagonal.
        form: "cocycle", a group action, or "least-change", the least change of what follows.
        where: named in messages.
        limit: the largest condition number of σ(Z) and σ(Z').

    Returns:
        c, by its products.

    Raises:
        Degenerate: k > h; σ(z) = 0 at a sample; σ(Z) or σ(Z') of no full rank.
        NearJump: σ(Z) or σ(Z') within the margin of where the frame jumps.
        ValueError: an unknown form, or what are no two real matrices of one shape.

    Source: equations (31) and (34), Lemma D.6.
    """
    require_real(where, before=before, moved=moved)
    require_matrix(where, "before", before, (None, None))
    require_matrix(where, "moved", moved, tuple(before.shape))
    require_limit(where, limit)
    if form not in FORMS:
        raise ValueError(
            f"{where}, form={form!r}: one of {FORMS} was expected. 'cocycle' is a group action; "
            "'least-change' is none, and moves the parameters less."
        )
    start, first = features(function, before, f"{where}, before g", limit)
    end, last = features(function, moved, f"{where}, after g", limit)
    condition = max(first, last)
    if form == "least-change":
        return LeastChange(start, end, condition)
    if frame is None:
        # the same at every Z: a frame that followed the batch would be no action
        frame = HouseholderFrame(start.new_ones(len(start)))
    return Cocycle(frame.at(start), frame.at(end), condition)


def cocycle(
    g: Tensor, before: Tensor, function: Function, frame: AbstractFrame | None = None
) -> AbstractChange:
    """c(g, Z) = R_{σ(gZ)} R_{σ(Z)}⁻¹, by which σ answers to g on a batch: c σ(Z) = σ(gZ).

    Args:
        g: of shape (h, h), invertible.
        before: Z, what σ gets, of shape (h, k) with k ≤ h.
        function: σ, entrywise.
        frame: R; by default reflections whose jump lies opposite the positive diagonal.

    Returns:
        c, by its products.

    Raises:
        Degenerate: a singular g; k > h; σ(z) = 0 at a sample; σ(Z) or σ(gZ) of no full rank.
        NearJump: σ(Z) or σ(gZ) within the margin of where the frame jumps.
        ValueError: g of another size, or what are no real matrices of one dtype.

    Source: equations (9), (31) to (34), Lemma D.6.
    """
    where = "cocycle(g, before, function)"
    require_real(where, before=before, g=g)
    require_matrix(where, "before", before, (None, None))
    require_square(g, len(before), where)
    moved = g @ before
    require_invertible(g, before, moved, where)
    return change_between(before, moved, function, frame, where=where)
