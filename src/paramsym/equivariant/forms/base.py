r"""What every form of the change of basis is: q and qᵀ for isomorphic orbits of s points.

The columns q (s × k) of an orthogonal matrix are the coefficients that a network uses. Samples and
orbits are the same to it: N vectors come as rows (N × s), coefficients as rows (k × N), so that a
product reads and writes both without a copy.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..assembly import ClassBasis


class Columns(NamedTuple):
    """Which coefficients of the orbits of one class are computed.

    Args:
        basis: the class.
        used: k columns of its basis, in the order in which they are wanted.
    """

    basis: ClassBasis
    used: np.ndarray

    @property
    def size(self) -> int:
        """s, the points of one orbit."""
        return self.basis.orbits.shape[1]

    @property
    def matrix(self) -> np.ndarray:
        """q (s × k)."""
        return np.ascontiguousarray(self.basis.basis[:, self.used])


class Form(nn.Module, ABC):
    """One way to compute q and qᵀ.

    Its constants are kept in float64 too, and rounded anew whenever the dtype of the module
    changes: float32 to float64 must not keep the rounding.

    Args:
        columns: q.
        dtype: of the constants.
    """

    def __init__(self, columns: Columns, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.kept = columns.size, len(columns.used)
        self.exact = self.constants(columns)
        self._round(dtype)

    @staticmethod
    @abstractmethod
    def cost(columns: Columns) -> float | None:
        """Nanoseconds for one vector in one direction (see `choice`); None: does not apply."""

    @abstractmethod
    def constants(self, columns: Columns) -> dict[str, np.ndarray]:
        """The real constants of this form, in float64."""

    @abstractmethod
    def analyse(self, x: Tensor) -> Tensor:
        """qᵀ: from vectors (N × s) to coefficients (k × N)."""

    @abstractmethod
    def synthesise(self, y: Tensor) -> Tensor:
        """q: from coefficients (k × N) to vectors (N × s)."""

    def _round(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        for name, value in self.exact.items():
            rounded = torch.as_tensor(value, dtype=dtype, device=device)
            self.register_buffer(name, rounded, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        like = getattr(self, next(iter(self.exact)))
        self._round(like.dtype, like.device)
        return self


class Reorder(torch.autograd.Function):
    """Entries of the last axis in another order; the derivative is the order that undoes it.

    The derivative of indexing adds up, entry by entry, for indices may repeat. Here they do not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, back: Tensor) -> Tensor:  # type: ignore[override]
        return x.index_select(-1, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.orders = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        order, back = ctx.orders
        return Reorder.apply(gradient[0], back, order), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return Reorder.apply(tangents[0], *ctx.orders)


def reorder(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """x with its last axis in this order; `back` is the inverse permutation."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return x.index_select(-1, order)  # a trace has no place for functions of our own
    return Reorder.apply(x, order, back)  # type: ignore[return-value]
