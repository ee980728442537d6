"""The change of basis as one product with q: of a short orbit, a partial Fourier transform."""

import numpy as np
from torch import Tensor

from .base import Columns, Form
from .costs import product


class Product(Form):
    """qᵀx and q y as they stand; for orbits of every kind."""

    basis: Tensor  # qᵀ (k × s)

    @staticmethod
    def cost(columns: Columns) -> float | None:
        return product(len(columns.used), columns.size)

    def constants(self, columns: Columns) -> dict[str, np.ndarray]:
        return {"basis": np.ascontiguousarray(columns.matrix.T)}

    def analyse(self, x: Tensor) -> Tensor:
        return self.basis @ x.T

    def synthesise(self, y: Tensor) -> Tensor:
        return y.T @ self.basis
