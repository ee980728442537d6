"""The change of basis by real FFTs, for an orbit that is a grid: no matrix at all."""

import numpy as np
import torch
from torch import Tensor

from .base import Columns
from .costs import transform
from .pair import PairedForm


class Fourier(PairedForm):
    """Coefficient f is (cos, sin) · √(2/s) at the frequency f of the grid."""

    scale: Tensor
    weight: Tensor
    take: Tensor
    put: Tensor
    order: Tensor
    back: Tensor

    def __init__(self, columns: Columns, dtype: torch.dtype) -> None:
        super().__init__(columns, dtype)
        fourier = columns.basis.fourier
        assert fourier is not None and fourier.grid is not None
        self.axes = tuple(range(-len(self.grid), 0))
        self.straight = bool((fourier.order == np.arange(self.size)).all())
        for name, index in self.indices.items():
            self.register_buffer(name, torch.as_tensor(index), persistent=False)

    @staticmethod
    def cost(columns: Columns) -> float | None:
        fourier = columns.basis.fourier
        if fourier is None or fourier.grid is None:
            return None
        return transform(columns.size, len(columns.used))

    def constants(self, columns: Columns) -> dict[str, np.ndarray]:
        fourier = columns.basis.fourier
        assert fourier is not None and fourier.grid is not None
        self.grid = fourier.grid
        half = (*self.grid[:-1], self.grid[-1] // 2 + 1)
        bins = int(np.prod(half))
        self.half_grid = half
        take = np.zeros(self.size, dtype=np.intp)
        scale = np.zeros(self.size)
        put = np.full(2 * bins, self.size, dtype=np.intp)  # the extra entry is zero
        weight = np.zeros(2 * bins)
        column = 0
        for f, basis in zip(fourier.phases, fourier.columns, strict=True):
            t = tuple(int(x * m) for x, m in zip(f, self.grid, strict=True))
            mirror = tuple(-x % m for x, m in zip(t, self.grid, strict=True))
            width = basis.shape[1]
            norm = np.sqrt(width / self.size)
            for place, sign in {mirror: 1.0, t: -1.0}.items():  # the transform has e^{−2πi …}
                if place[-1] < half[-1]:
                    bin_ = 2 * int(np.ravel_multi_index(place, half))
                    for part in range(width):
                        turn = sign if part else 1.0
                        take[column + part], scale[column + part] = bin_ + part, turn * norm
                        put[bin_ + part] = column + part
                        weight[bin_ + part] = turn * np.sqrt(self.size / width)
            column += width
        place = np.full(self.size + 1, self.kept)
        place[columns.used] = np.arange(self.kept)
        self.indices = {
            "take": take[columns.used],
            "put": place[put],
            "order": fourier.order,
            "back": np.argsort(fourier.order),
        }
        return {"scale": scale[columns.used], "weight": weight}

    def transform(self, x: Tensor) -> Tensor:
        """qᵀ, in a dtype for which there are FFTs."""
        if not x.numel():  # there is no FFT of nothing
            return x.new_zeros(self.kept, 0)
        x = x if self.straight else x[:, self.order]
        spectrum = torch.fft.rfftn(_wide(x).reshape(-1, *self.grid), dim=self.axes)
        flat = torch.view_as_real(spectrum.resolve_conj()).flatten(1)
        return (flat.index_select(1, self.take).to(x.dtype) * self.scale).T.contiguous()

    def inverse(self, y: Tensor) -> Tensor:
        """q."""
        if not y.numel():
            return y.new_zeros(0, self.size)
        padded = torch.cat([y, y.new_zeros(1, y.shape[1])]).T
        flat = _wide(padded.index_select(1, self.put) * self.weight)
        spectrum = torch.view_as_complex(flat.reshape(-1, *self.half_grid, 2))
        x = torch.fft.irfftn(spectrum, s=self.grid, dim=self.axes).flatten(1).to(y.dtype)
        return x if self.straight else x[:, self.back]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
