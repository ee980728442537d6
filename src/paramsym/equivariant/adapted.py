r"""The change of basis Q of a decomposition as a fast, differentiable pair of maps.

Orbit by orbit it is a product with one small matrix (s × s for orbits of s points), shared by all
isomorphic orbits, or a real FFT over the grid where a large orbit is a product of cyclic shifts.
Blocks that a network does not use are never computed. The backward pass of each direction is the
other direction, because Q is orthogonal.

Inside a network coordinates are rows and samples are columns: row order, for each kept block, is
(copy, coordinate of the number, slice), so that every block is a contiguous set of rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .assembly import ClassBasis
from .characters import FourierBasis
from .decomposition import Isotypic

FFT_FROM = 256  # points of an orbit from which the FFT is faster than the product
CACHE = 1 << 16  # numbers worked on at a time: larger temporary arrays cost page faults


class AdaptedBasis(nn.Module):
    """Q restricted to some isotypic blocks, for one representation.

    Args:
        classes: the classes of orbits of the representation (n points).
        isotypics: all blocks.
        multiplicities: the multiplicity of each block in this representation.
        kept: numbers of the blocks to keep, in the order of the rows.
        dtype: of the bases.
    """

    def __init__(
        self,
        classes: Sequence[ClassBasis],
        isotypics: Sequence[Isotypic],
        multiplicities: Sequence[int],
        kept: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.degree = sum(c.orbits.size for c in classes)
        row_of = _rows(isotypics, multiplicities, kept)
        self.rows = int((row_of >= 0).sum())
        parts, row, points = [], [], []
        for c in classes:
            used = np.flatnonzero(row_of[c.places[0]] >= 0)
            if len(used):
                parts.append(_part(c, used, dtype))
                row.append(row_of[c.places[:, used]].ravel())
                points.append(c.orbits.ravel())
        self.parts = nn.ModuleList(parts)
        rows = np.concatenate([*row, np.zeros(0, dtype=np.intp)])
        # A class of orbits without kept blocks is outside of all parts: its points stay zero.
        seen = np.concatenate([*points, np.zeros(0, dtype=np.intp)])
        self.covers = len(seen) == self.degree
        self.in_order = self.covers and bool((seen == np.arange(self.degree)).all())
        for name, index in (
            ("points", seen),
            ("scatter", rows),
            ("unpoints", np.argsort(seen)),
        ):
            self.register_buffer(name, torch.as_tensor(index), persistent=False)
        self.points: Tensor
        self.scatter: Tensor
        self.unpoints: Tensor

    def analyse(self, x: Tensor) -> Tensor:
        """Qᵀx: from samples (B × n) to kept coordinates (rows × B)."""
        return self._transform(x, True)

    def synthesise(self, y: Tensor) -> Tensor:
        """Qy: from kept coordinates (rows × B) to samples (B × n)."""
        return self._transform(y, False)

    def _transform(self, x: Tensor, forwards: bool) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):  # Q is orthogonal in its own dtype only
            x = x.to(self._parts()[0].dtype) if len(self.parts) else x
        # A trace keeps operations, not functions of our own.
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            return self._analyse(x) if forwards else self._synthesise(x)
        return _Transform.apply(x, self, forwards)  # type: ignore[return-value]

    def _analyse(self, x: Tensor) -> Tensor:
        x = x if self.in_order else x[:, self.points]
        rows = x.new_empty(self.rows, x.shape[0])
        start = place = 0
        for part in self._parts():
            step = part.orbits_at_once(x)
            for first in range(0, part.count, step):
                count = min(step, part.count - first)
                piece = x[:, start : start + count * part.size]
                found = part.analyse(piece.reshape(x.shape[0], count, part.size))
                rows.index_copy_(0, self.scatter[place : place + len(found)], found)
                start, place = start + count * part.size, place + len(found)
        return rows

    def _synthesise(self, y: Tensor) -> Tensor:
        batch = y.shape[1]
        width = len(self.points)
        x = y.new_empty(batch, width)
        start = place = 0
        for part in self._parts():
            step = part.orbits_at_once(x)
            for first in range(0, part.count, step):
                count = min(step, part.count - first)
                index = self.scatter[place : place + count * part.kept]
                piece = y.index_select(0, index).reshape(count, part.kept, batch)
                target = x[:, start : start + count * part.size]
                target.unflatten(1, (count, part.size)).copy_(part.synthesise(piece))
                start, place = start + count * part.size, place + len(index)
        if self.in_order:
            return x
        if self.covers:
            return x[:, self.unpoints]
        result = y.new_zeros(batch, self.degree)
        result[:, self.points] = x
        return result

    def _parts(self) -> "list[_Product | _Fourier]":
        return list(self.parts)  # type: ignore[arg-type]


class _Transform(torch.autograd.Function):
    """Q or Qᵀ; the derivative of one is the other."""

    @staticmethod
    def forward(x: Tensor, basis: AdaptedBasis, forwards: bool) -> Tensor:  # type: ignore[override]
        if not x.numel():  # no samples, or no coordinates
            shape = (basis.rows, x.shape[0]) if forwards else (x.shape[1], basis.degree)
            return x.new_zeros(shape)
        with torch.autocast(x.device.type, enabled=False):
            return basis._analyse(x) if forwards else basis._synthesise(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.basis, ctx.forwards = inputs

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return _Transform.apply(gradient[0], ctx.basis, not ctx.forwards), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Transform.apply(tangents[0], ctx.basis, ctx.forwards)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Further samples, as far as Q is concerned."""
        x, basis, forwards = args
        if forwards:  # (V, B, n) to (rows, V, B)
            samples = x.movedim(in_dims[0], 0)
            rows: Tensor = _Transform.apply(samples.flatten(0, 1), basis, True)  # type: ignore[assignment]
            return rows.unflatten(1, samples.shape[:2]), 1
        rows = x.movedim(in_dims[0], 1)
        samples = _Transform.apply(rows.flatten(1, 2), basis, False)  # type: ignore[assignment]
        return samples.unflatten(0, rows.shape[1:]), 0


def _rows(
    isotypics: Sequence[Isotypic], multiplicities: Sequence[int], kept: Sequence[int]
) -> np.ndarray:
    """For each coordinate of the decomposition its row here, or −1."""
    starts = np.cumsum([0] + [v.dimension * d for v, d in zip(isotypics, multiplicities)])  # noqa: B905
    row_of = np.full(int(starts[-1]), -1, dtype=np.intp)
    row = 0
    for i in kept:
        v, d = isotypics[i], multiplicities[i]
        count = v.dimension * d
        mine = row + np.arange(count).reshape(d * v.size, v.slices)
        row_of[starts[i] : starts[i] + count] = mine.T.ravel()
        row += count
    return row_of


def _part(c: ClassBasis, used: np.ndarray, dtype: torch.dtype) -> "_Product | _Fourier":
    if c.fourier is not None and c.fourier.grid is not None and c.orbits.shape[1] >= FFT_FROM:
        return _Fourier(c, used, c.fourier, dtype)
    return _Product(c, used, dtype)


class _Part(nn.Module):
    """One class of orbits; its numbers are kept in float64 and rounded to the module's dtype."""

    def __init__(self, c: ClassBasis, used: np.ndarray) -> None:
        super().__init__()
        self.count, self.size = c.orbits.shape
        self.kept = len(used)
        self.exact: dict[str, np.ndarray] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the basis."""
        return getattr(self, next(iter(self.exact))).dtype

    def _round(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        for name, value in self.exact.items():
            rounded = torch.as_tensor(value, dtype=dtype, device=device)
            self.register_buffer(name, rounded, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        like = getattr(self, next(iter(self.exact)))
        self._round(like.dtype, like.device)  # float32 to float64 must not keep the rounding
        return self


class _Product(_Part):
    """Isomorphic orbits by one matrix (s × kept)."""

    def __init__(self, c: ClassBasis, used: np.ndarray, dtype: torch.dtype) -> None:
        super().__init__(c, used)
        self.exact["basis"] = np.ascontiguousarray(c.basis[:, used])
        self._round(dtype)
        self.basis: Tensor

    def orbits_at_once(self, x: Tensor) -> int:
        return max(1, CACHE // max(1, int(x.shape[0]) * self.size))

    def analyse(self, x: Tensor) -> Tensor:
        """From (B, count, s) to rows (count·kept, B)."""
        columns = x.permute(1, 2, 0)  # (count, s, B): strides suffice, nothing is copied
        return torch.matmul(self.basis.T, columns).reshape(-1, x.shape[0])

    def synthesise(self, y: Tensor) -> Tensor:
        """From (count, kept, B) to (B, count, s)."""
        orbits = torch.matmul(y.transpose(1, 2), self.basis.T)  # (count, B, s)
        return orbits.transpose(0, 1)


class _Fourier(_Part):
    """Isomorphic grid orbits by real FFTs; coefficient f is (cos, sin) · √(2/s) at f."""

    def __init__(
        self, c: ClassBasis, used: np.ndarray, fourier: FourierBasis, dtype: torch.dtype
    ) -> None:
        super().__init__(c, used)
        assert fourier.grid is not None
        self.grid = fourier.grid
        half = (*self.grid[:-1], self.grid[-1] // 2 + 1)
        self.bins = int(np.prod(half))
        self.half_grid = half
        take = np.zeros(self.size, dtype=np.intp)
        scale = np.zeros(self.size)
        put = np.full(2 * self.bins, self.size, dtype=np.intp)  # the extra entry is zero
        weight = np.zeros(2 * self.bins)
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
        back = np.full(self.size + 1, self.kept)
        back[used] = np.arange(self.kept)
        for name, index in (
            ("take", take[used]),
            ("put", back[put]),
            ("order", fourier.order),
            ("unorder", np.argsort(fourier.order)),
        ):
            self.register_buffer(name, torch.as_tensor(index), persistent=False)
        self.exact.update(scale=scale[used], weight=weight)
        self._round(dtype)
        self.take: Tensor
        self.scale: Tensor
        self.put: Tensor
        self.weight: Tensor
        self.order: Tensor
        self.unorder: Tensor
        self.straight = bool((fourier.order == np.arange(self.size)).all())
        self.axes = tuple(range(-len(self.grid), 0))

    def orbits_at_once(self, x: Tensor) -> int:
        return self.count

    def analyse(self, x: Tensor) -> Tensor:
        """From (B, count, s) to rows (count·kept, B)."""
        x = x if self.straight else x[..., self.order]
        whole = x.to(torch.promote_types(x.dtype, torch.float32))  # no FFT in half precision
        spectrum = torch.fft.rfftn(whole.reshape(*x.shape[:-1], *self.grid), dim=self.axes)
        flat = torch.view_as_real(spectrum.resolve_conj()).reshape(*x.shape[:-1], -1)
        taken = flat.index_select(-1, self.take).to(x.dtype) * self.scale
        return taken.reshape(x.shape[0], -1).T.contiguous()

    def synthesise(self, y: Tensor) -> Tensor:
        """From (count, kept, B) to (B, count, s)."""
        samples = y.permute(2, 0, 1).contiguous()  # (B, count, kept)
        padded = torch.cat([samples, samples.new_zeros(*samples.shape[:-1], 1)], -1)
        flat = padded.index_select(-1, self.put) * self.weight
        flat = flat.to(torch.promote_types(y.dtype, torch.float32))
        spectrum = torch.view_as_complex(flat.reshape(*samples.shape[:-1], *self.half_grid, 2))
        x = torch.fft.irfftn(spectrum, s=self.grid, dim=self.axes).reshape(*samples.shape[:-1], -1)
        x = x.to(y.dtype)
        return x if self.straight else x[..., self.unorder]
