"""Entrywise functions, and operators of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from paramsym.primitives.base import Entrywise, Primitive, Values, carry, pull, push
from paramsym.primitives.blocks import Block
from paramsym.primitives.directions import ONES, Absence, Unseen
from paramsym.primitives.joint import Joint
from paramsym.primitives.sites import BasisSite, Equation, ScaleSite
from paramsym.primitives.solve import exact
from paramsym.primitives.words import Change, Offset, fresh

# what a name alone says, for functions without further arguments
_PLAIN = (
    "relu", "sigmoid", "tanh", "exp", "exp2", "expm1", "log", "log1p", "log2", "abs", "sign",
    "square", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "sinh", "cosh", "erf",
)  # fmt: skip
# those that have a value everywhere; 1/x has none where x is what a ReLU is below zero
_TOTAL = frozenset((
    *_PLAIN, "mul", "shift", "clone", "leaky_relu", "sgn", "asinh", "atan", "softsign",
    "tanhshrink", "hardshrink", "softshrink", "arctan", "arcsinh", "round", "trunc", "sinc", "gelu",
    "silu", "swish", "softplus", "elu", "selu", "celu", "mish", "hardswish", "hardsigmoid",
    "logsigmoid", "log_sigmoid", "relu6", "erfc", "ceil", "floor", "frac",
    "nan_to_num", "clamp", "hardtanh", "dropout", "rrelu", "compare",
)) - {"sqrt", "rsqrt", "log", "log1p", "log2", "reciprocal"}  # fmt: skip
POWERS = ("square", "sqrt", "rsqrt", "reciprocal", "pow")  # the plain powers among the functions


@dataclass(eq=False, kw_only=True)
class Map(Entrywise):
    """An entrywise function f with f(s·x) = s^degree·f(x) for s > 0 (None: no scale passes).

    `sign` is "odd", "even" or "pin" (neither). `shift` is set where f(x) = x + shift.
    """

    degree: Fraction | None = None
    sign: str = "pin"
    shift: float | None = None

    def is_total(self, k: int) -> bool:
        whole = self.degree is not None and self.degree.denominator == 1 and self.degree > 0
        return self.name in _TOTAL or (self.name == "pow" and whole)

    def scales(self, at: ScaleSite) -> Iterator[Equation]:
        x = at.parts[0]
        if not at.signs:
            if self.degree is None:
                return at.hold()
            return at.equal(x, exact(self.degree))
        if self.sign == "odd":
            return at.equal(x)
        return at.hold() if self.sign == "pin" else at.hold(at.result)

    def bases(self, at: BasisSite) -> None:
        (x,) = at.parts
        if self.shift is None or x is None or at.out is None:
            return super().bases(at)
        at.join(x, at.out)
        at.cap(at.out, "ones")  # a multiple of ones is added

    def unread(
        self, joint: Joint, k: int, below: list[Unseen], absent: Mapping[Any, list[Absence]]
    ) -> list[Unseen]:
        if self.shift is not None:
            return pull(joint, k, below)
        return []

    def absent(self, joint: Joint, known: list[list[Absence]]) -> list[Absence]:
        """What has a known sum has another one once a number is added to each entry."""
        if self.shift is None:
            return []
        found = []
        for absence in push(joint, 0, known[0]):
            if absence.profile == ONES and not absence.outer and isinstance(absence.stride, int):
                total = self.shift * joint.out.sizes[absence.stride]
                offset = (*absence.offset, Offset(total, (), fresh()))
                found.append(replace(absence, offset=offset))
        return found

    def translate(self, joint: Joint, k: int, change: Change, at: Values) -> list[Change] | None:
        return None if self.shift is None else carry(joint, k, change)

    @property
    def has_words(self) -> bool:
        return self.shift is not None

    @property
    def constant_term(self) -> float:
        return self.shift or 0.0

    def power_step(self, block: Block | None = None) -> tuple[str, float] | None:
        if self.shift is not None:
            return "offset", self.shift
        if self.name in POWERS and self.degree is not None:
            return "power", float(self.degree)
        return None

    def evaluate(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.shift is not None:
            return tensors[0] + self.shift
        if self.name in _PLAIN:
            return getattr(torch, self.name)(tensors[0])
        return super().evaluate(*tensors)


@dataclass(eq=False, kw_only=True)
class Opaque(Primitive):
    """An operator about which nothing is known: everything that it touches is frozen."""

    noun = "opaque"
    reason: str = ""

    @property
    def is_closed(self) -> bool:
        return False

    def is_total(self, k: int) -> bool:
        return False
