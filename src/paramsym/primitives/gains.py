"""Tensors that are powers of a parameter: gains, and the frames that they put a space into.

A gain γ between two linear maps turns a change of basis g into γ g γ⁻¹: the space is seen in the
*frame* of γ. A frame is a product of diagonal matrices diag(γ + c)ⁿ, kept as sorted pairs. A gain
with an exact zero is no frame: a mask keeps its pattern, and a unit that is switched off cannot be
mixed into others. On the meta device, where no numbers are known, gains are taken to be invertible.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paramsym.primitives.tensor import Tensor

if TYPE_CHECKING:
    from paramsym.primitives.blocks import Block

FrameKey = tuple[str, float]  # parameter, offset
Frame = tuple[tuple[FrameKey, float], ...]  # sorted, exponents not zero


def combine(a: Frame, b: Frame, sign: int = 1) -> Frame:
    """The frame a · bˢⁱᵍⁿ."""
    if not b:
        return a
    total: dict[FrameKey, float] = defaultdict(float)
    for key, n in a:
        total[key] += n
    for key, n in b:
        total[key] += sign * n
    return tuple(sorted((k, n) for k, n in total.items() if n))


@dataclass(frozen=True)
class Power:
    """The entries of a tensor are (parameter + offset)^power."""

    source: Tensor
    power: float
    offset: float

    @property
    def frame(self) -> Frame:
        """The diagonal matrix of the tensor."""
        return (((self.source.name, self.offset), self.power),)

    @property
    def vanishes(self) -> bool:
        """Whether an entry is known to be zero at the weights of the model."""
        value = self.source.value
        if value is None or value.vector is None:
            return False
        return bool((value.vector + self.offset == 0).any())


def power_of(tensor: Tensor, relaid: bool = False, block: Block | None = None) -> Power | None:
    """The parameter of which a tensor, or one block of it, holds a power, entry by entry.

    The layout must be the parameter's, so that windows on one are windows on the other; with
    `relaid`, views in between may change it.
    """
    power, offset = 1.0, 0.0
    owner = tensor.owner
    while owner.producer is not None:
        step = owner.producer.power_step(block)
        source = owner.producer.inputs[0]
        if step is None or (not relaid and not same_layout(source, owner)):
            return None
        kind, amount = step
        if kind == "offset":
            offset += amount
        elif kind == "power":
            if offset:
                return None
            power *= amount
        owner = source.owner
    if owner.kind not in ("parameter", "buffer"):
        return None
    return Power(owner, power, offset)


def same_layout(source: Tensor, owner: Tensor) -> bool:
    """Whether an entrywise copy has its entries where its source has them."""
    return source.base is None and source.strides == owner.strides


def gain_of(tensor: Tensor) -> Power | None:
    """The whole vector (parameter + offset)^power that a tensor is, if it is one."""
    seen = tensor
    while True:  # nothing on the way may repeat or cut the vector
        owner = seen.owner
        if seen.integral or len(_long(seen)) > 1 or _long(seen) != _long(owner):
            return None  # a mask has zeros, and integers carry no frame
        if owner.producer is None:
            break
        if owner.producer.power_step() is None:
            return None
        seen = owner.producer.inputs[0]
    return power_of(tensor, relaid=True)


def _long(tensor: Tensor) -> list[tuple[int, int]]:
    """The axes of a tensor with more than one entry: their lengths and strides."""
    return [(n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1]
