"""Constants that a model adds to a parameter before using it: the group acts on the sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Diagonal:
    """A multiple of the identity: W is used as W + value·I."""

    value: float = 1.0

    def __neg__(self) -> Diagonal:
        return Diagonal(-self.value)


@dataclass(frozen=True)
class Windows:
    """Numbers added to windows of a parameter, in row-major order, again after each `period`.

    A run (start, stop, number) speaks of the entries k with start ≤ k mod period < stop; to all
    others nothing is added.
    """

    period: int
    runs: tuple[tuple[int, int, float], ...]

    def __neg__(self) -> Windows:
        return Windows(self.period, tuple((a, b, -x) for a, b, x in self.runs))

    @property
    def uniform(self) -> float | None:
        """The number that is added to every entry, if it is one."""
        (start, stop, number), *others = self.runs
        return number if not others and (start, stop) == (0, self.period) else None

    def numbers(self) -> torch.Tensor:
        """What is added to the entries of one period."""
        made = torch.zeros(self.period, dtype=torch.float64)
        for start, stop, number in self.runs:
            made[start:stop] = number
        return made


Origin = float | Diagonal | Windows  # a number is added to every entry


def added(tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
    """A parameter with a constant added: to every entry, to windows, or on the diagonal alone."""
    if isinstance(origin, Windows):
        numbers = origin.numbers().to(tensor.device, tensor.real.dtype)
        return tensor + numbers.repeat(tensor.numel() // origin.period).view(tensor.shape)
    if not isinstance(origin, Diagonal):
        return tensor + origin if origin else tensor
    eye = torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    return tensor + origin.value * eye
