"""Positive scales of some spaces, multiplied into tensors where they lie.

`act` makes new tensors, and so it must for elements that mix or permute entries. Positive scales
alone multiply each entry by a number: tensors that are trained, and all that their optimiser keeps
of them, can be moved in place. Which windows of a tensor a scale multiplies is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from paramsym.algebra import ComplexScaling
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Leg

Logs = Mapping[str, Tensor]
_Known: TypeAlias = dict[tuple[str, Fraction, torch.dtype, torch.device], Tensor]


class Rescaling:
    """Moves tensors in place by the positive scales of some spaces.

    Args:
        symmetry: whose spaces they are.
        spaces: names of spaces with scales; of complex kinds it is the moduli.
    """

    def __init__(self, symmetry: ParameterSymmetry, spaces: Collection[str]) -> None:
        self.symmetry = symmetry
        self.windows: dict[str, list[tuple[Block, list[Leg]]]] = {}
        for name, blocks in symmetry.blocks.items():
            found = [(b, [k for k in b.legs if k.space in spaces and k.power]) for b in blocks]
            if name not in symmetry.ties and any(legs for _, legs in found):
                self.windows[name] = [(block, legs) for block, legs in found if legs]

    def by(self, logs: Logs) -> Callable[[Mapping[str, Tensor], int], None]:
        """What moves tensors by some scales.

        Args:
            logs: their logarithms by space, in the shape of the family, in double precision.

        Returns:
            A function of tensors by the name of a parameter in the signature, of which those of
            others are left alone, and a degree. Each tensor is multiplied in place by what
            multiplies the parameter of its name, to this power: 1 for parameters, −1 for what
            moves as gradients do, −2 for their squares. Constants that a model adds to a
            parameter are reckoned with for parameters alone.
        """
        return partial(self._move_all, logs, {})

    def _move_all(
        self, logs: Logs, known: _Known, tensors: Mapping[str, Tensor], degree: int
    ) -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in self.windows:
                    self._move(name, tensor, logs, degree, known)

    def _move(self, name: str, tensor: Tensor, logs: Logs, degree: int, known: _Known) -> None:
        origin = self.symmetry.offsets.get(name, 0.0) if degree == 1 else 0.0
        if not origin and tensor.is_contiguous():
            self._multiply(name, tensor, logs, degree, known)
            return
        # what is stored is γ − 1: in its own precision the sum would lose digits
        whole = added(widened(tensor), origin).contiguous() if origin else tensor.contiguous()
        self._multiply(name, whole, logs, degree, known)
        tensor.copy_(added(whole, -origin) if origin else whole)

    def _multiply(self, name: str, tensor: Tensor, logs: Logs, degree: int, known: _Known) -> None:
        for block, legs in self.windows[name]:
            view = block.view(tensor)
            for leg in legs:
                key = leg.space, degree * leg.power, tensor.dtype, tensor.device
                if key not in known:
                    known[key] = self._factor(logs[leg.space], *key)
                view.mul_(_placed(known[key], leg, view.ndim))

    def _factor(
        self, logs: Tensor, space: str, power: Fraction, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """The scales of one family to a power; one for each coordinate of complex numbers."""
        scales = (float(power) * logs).exp()
        if isinstance(self.symmetry.spaces[space].group, ComplexScaling):
            scales = torch.cat([scales, scales], -1)
        return scales.to(device, dtype.to_real())


def _placed(scales: Tensor, leg: Leg, ndim: int) -> Tensor:
    """Scales of shape (copies…, n) on the axes of a block that a leg names."""
    axes = (*leg.copies, leg.axis)
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * ndim
    for place, size in zip(axes, scales.shape, strict=True):
        shape[place] = size
    return scales.permute(order).reshape(shape)
