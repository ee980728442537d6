"""One weight before and after a random move, as pictures of the same scale."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.structure.action import act_tensor
from paramsym.structure.axes import spaces_of
from paramsym.structure.needs import steps
from paramsym.structure.symmetry import ParameterSymmetry

_MOST = 64  # rows and columns that are shown
_LARGEST = 1 << 20  # numbers of a weight that is moved for a picture
_NEGATIVE, _ZERO, _POSITIVE = (47, 79, 196), (250, 250, 247), (188, 47, 73)


@dataclass(frozen=True)
class MovedWeight:
    """The first rows and columns of a matrix, (rows, columns), before and after."""

    name: str
    shape: tuple[int, ...]
    before: Tensor
    after: Tensor

    @property
    def pictures(self) -> tuple[str, str]:
        """Both as data: URLs of PNG files, a pixel for each number, in one scale of colours."""
        scale = float(torch.stack((self.before, self.after)).abs().flatten().quantile(0.98))
        return png_url(self.before, scale), png_url(self.after, scale)


def moved_weight(symmetry: ParameterSymmetry, state: Mapping[str, Tensor]) -> MovedWeight | None:
    """A matrix that as many spaces move as any, and what a random element makes of it.

    None where no matrix moves, or each is too large to be moved for a picture.
    """
    fitting = [
        name for name, axes in symmetry.signature.items()
        if len(axes) == 2 and min(symmetry.shape(name)) > 1 and name in state
        and state[name].is_floating_point() and state[name].numel() <= _LARGEST
    ]  # fmt: skip
    reach = {n: len({s for a in symmetry.signature[n] for s in spaces_of(a)}) for n in fitting}
    name = max(fitting, key=lambda n: (reach[n], state[n].numel() <= _MOST**2), default="")
    if not name or not reach[name]:
        return None
    element = symmetry.sample(torch.Generator().manual_seed(0))
    needed = {n: state[n] for n in (name, *steps(symmetry, element, name).names)}
    both = needed[name], act_tensor(symmetry, element, name, needed)
    before, after = (x[:_MOST, :_MOST].detach().to("cpu", torch.float32) for x in both)
    return MovedWeight(name, symmetry.shape(name), before, after)


def png_url(matrix: Tensor, scale: float) -> str:
    """A real matrix as a picture: blue below zero, red above, pale at zero.

    Args:
        matrix: (rows, columns).
        scale: the size of a number that has a full colour.
    """
    share = (matrix.double() / (scale or 1.0)).clamp(-1, 1)[..., None]
    zero, low, high = (torch.tensor(c).double() for c in (_ZERO, _NEGATIVE, _POSITIVE))
    colours = zero + share.abs() * (torch.where(share < 0, low, high) - zero)
    rows, columns = matrix.shape
    filtered = torch.zeros(rows, 1 + 3 * columns, dtype=torch.uint8)  # no filter, then colours
    filtered[:, 1:] = colours.round().to(torch.uint8).reshape(rows, -1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    packed = zlib.compress(bytes(filtered.flatten().tolist()), 9)
    content = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + content).decode()
