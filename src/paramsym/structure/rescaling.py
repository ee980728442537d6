"""Positive scales of some spaces, multiplied into tensors where they lie.

`act` makes new tensors, and so it must for elements that mix or permute entries. Positive scales
alone multiply each entry by a number: tensors that are trained, and all that their optimiser keeps
of them, can be moved in place. Which windows of a tensor a scale multiplies is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from paramsym.algebra import ComplexScaling
from paramsym.structure.layout import widened
from paramsym.structure.origin import Origin, added
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block

Logs = Mapping[str, Tensor]
_Known: TypeAlias = dict[tuple[float, torch.dtype, torch.device], dict[str, Tensor]]


class _Factor(NamedTuple):
    """The scales of one space to a power, laid on the axes of a block."""

    space: str
    power: float
    order: tuple[int, ...] | None  # of the axes of the family; none where they come as they are
    shape: tuple[int, ...]


class _Window(NamedTuple):
    """A block of a tensor, none where it is the whole of it, and what multiplies it."""

    block: Block | None
    factors: tuple[_Factor, ...]


class Rescaling:
    """Moves tensors in place by the positive scales of some spaces.

    Args:
        symmetry: whose spaces they are.
        spaces: names of spaces with scales; of complex kinds it is the moduli.
    """

    def __init__(self, symmetry: ParameterSymmetry, spaces: Collection[str]) -> None:
        self.symmetry, self.spaces = symmetry, {*spaces}
        self._windows: dict[int, dict[str, list[_Window]]] = {}

    def windows(self, degree: int) -> dict[str, list[_Window]]:
        """What multiplies each tensor of a degree, by name; it is found once."""
        if degree not in self._windows:
            found = {
                name: [_window(self.symmetry, self.spaces, block, degree) for block in blocks]
                for name, blocks in self.symmetry.blocks.items()
            }
            moving = {n: [w for w in windows if w.factors] for n, windows in found.items()}
            self._windows[degree] = {n: windows for n, windows in moving.items() if windows}
        return self._windows[degree]

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
        windows = self.windows(degree)
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in windows:
                    origin = self.symmetry.offsets.get(name, 0.0) if degree == 1 else 0.0
                    self._move(tensor, windows[name], origin, logs, known)

    def _move(
        self, tensor: Tensor, windows: list[_Window], origin: Origin, logs: Logs, known: _Known
    ) -> None:
        if not origin and tensor.is_contiguous():
            self._multiply(tensor, windows, logs, known)
            return
        # what is stored is γ − 1: in its own precision the sum would lose digits
        whole = added(widened(tensor), origin).contiguous() if origin else tensor.contiguous()
        self._multiply(whole, windows, logs, known)
        tensor.copy_(added(whole, -origin) if origin else whole)

    def _multiply(self, tensor: Tensor, windows: list[_Window], logs: Logs, known: _Known) -> None:
        for block, factors in windows:
            view = tensor if block is None else block.view(tensor)
            for space, power, order, shape in factors:
                key = power, tensor.dtype, tensor.device
                if key not in known:
                    known[key] = self._scales(logs, *key)
                scales = known[key][space]
                view.mul_((scales if order is None else scales.permute(order)).reshape(shape))

    def _scales(
        self, logs: Logs, power: float, dtype: torch.dtype, device: torch.device
    ) -> dict[str, Tensor]:
        """The scales of all spaces to a power; one for each coordinate of complex numbers."""
        flat = torch.cat([y.reshape(-1) for y in logs.values()])  # one call for all of them
        found = flat.mul_(power).exp_().to(device, dtype.to_real())
        parts = found.split_with_sizes([y.numel() for y in logs.values()])
        scales = {n: part.view(y.shape) for (n, y), part in zip(logs.items(), parts, strict=True)}
        for space in scales:
            if isinstance(self.symmetry.spaces[space].group, ComplexScaling):
                scales[space] = torch.cat([scales[space], scales[space]], -1)
        return scales


def _window(
    symmetry: ParameterSymmetry, spaces: Collection[str], block: Block, degree: int
) -> _Window:
    """What multiplies a block of a degree."""
    factors = []
    for leg in block.legs:
        if leg.space in spaces and leg.power:
            axes = (*leg.copies, leg.axis)
            order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
            shape = tuple(n if k in axes else 1 for k, n in enumerate(block.shape))
            permuted = order if order != tuple(range(len(axes))) else None
            factors.append(_Factor(leg.space, float(degree * leg.power), permuted, shape))
    whole = block.shape == symmetry.shape(block.parameter)
    return _Window(None if whole else block, tuple(factors))
