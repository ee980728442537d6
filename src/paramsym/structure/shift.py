"""Shifts: finite additive motions of parameters, with what compensates them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch

from paramsym.structure.whole import whole

Params: TypeAlias = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Window:
    """A strided view of one parameter, with a letter for each dimension."""

    parameter: str
    letters: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    def view(self, params: Params) -> torch.Tensor:
        tensor = whole(params[self.parameter])
        flat = tensor if tensor.is_contiguous() else tensor.contiguous()
        return flat.as_strided(self.shape, self.strides, self.start + flat.storage_offset())

    def __str__(self) -> str:
        return f"{self.parameter}[{' '.join(self.letters)}]"


@dataclass(frozen=True)
class Factor:
    """A coefficient read from the parameters: (window + offset)^power.

    With `kernel`, instead: the orthogonal projector onto the vectors that are orthogonal to every
    column of these windows along their letter x. The letters of `window` are then (out, in) and
    one for each batch of columns, which the windows call A, B, … in this order. Columns that have a
    letter z need only agree along it; a window of z alone holds gains that stand before those of
    the window in front of it.

    With `flow`, instead: how δ moves gains, window + offset, along their flow. It names one of
    `GainFlow`: "gains" with one letter, the others with two, (out, in).
    """

    window: Window
    power: float = 1.0
    offset: float = 0.0
    kernel: tuple[Window, ...] = ()
    flow: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The parameters that it is read from."""
        return tuple(w.parameter for w in self.kernel or (self.window,))


@dataclass(frozen=True)
class Term:
    """What one shift does to one parameter: window += coefficient · Σ δ · factors / divisor."""

    target: Window
    coefficient: float = 1.0
    factors: tuple[Factor, ...] = ()
    divided: bool = False


@dataclass(frozen=True)
class Shift:
    """An additive symmetry: parameters slide along a free δ, with what compensates it.

    δ has the dimensions `letters` of the given `shape`. All terms read the parameters as they are
    before the shift. A factor that is a flow is read from them and δ, which then is one number and
    stands nowhere else. Where `divisor` is given, `divided` terms are divided by 1 + Σ δ·divisor,
    which makes the finite motion exact; to first order the divisor plays no role.

    `space` names the space that the shift describes and `kind` how: it moves the "origin" of the
    space (its readers absorb a translation), along directions that are "unread" (no reader sees
    them) or "absent" (its data never have them). Both are empty where no space says it.
    """

    name: str
    family: str
    letters: str
    shape: tuple[int, ...]
    terms: tuple[Term, ...]
    divisor: tuple[Factor, ...] | None = None
    space: str = ""
    kind: str = ""

    @property
    def dimension(self) -> int:
        """In how many directions it moves the parameters, at generic weights.

        δ has `size` entries; where a projector stands before it, it counts modulo the kernel.
        """
        kernel = self._kernel
        if kernel is None:
            return self._symmetric_size
        columns = columns_of(kernel.kernel) or 0
        length = kernel.window.shape[0]
        return self.size // length * max(0, length - columns)

    @property
    def size(self) -> int:
        """The number of entries of δ."""
        return math.prod(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether it adds the same whatever the parameters are: a translation, which gradients and
        their averages do not see."""
        return self.divisor is None and not any(term.factors for term in self.terms)

    @property
    def is_counted(self) -> bool:
        """Whether `dimension` is exact: no projector, or the same one before δ in every term, of
        columns that are generic. Otherwise it is an upper bound."""
        if not any(f.kernel for term in self.terms for f in term.factors):
            return True
        return self._kernel is not None and columns_of(self._kernel.kernel) is not None

    @property
    def is_flow(self) -> bool:
        """Whether δ, which is one number then, enters through the flow of gains: not linearly."""
        return any(factor.flow for factor in self.terms[0].factors)

    @property
    def _symmetric_size(self) -> int:
        """The entries of δ that count where it is added to a matrix, and ± δ to its transpose."""
        first, *rest = self.terms
        if len(rest) != 1 or first.factors or rest[0].factors:
            return self.size
        one, other, sign = first.target, rest[0].target, rest[0].coefficient / first.coefficient
        here = dict(zip(one.letters, one.shape, strict=True))
        swapped = [x for x, y in zip(one.letters, other.letters, strict=False) if x != y]
        same = replace(other, letters=one.letters) == one and sorted(here) == sorted(other.letters)
        if not same or len(swapped) != 2 or abs(sign) != 1 or {*here} != {*self.letters}:
            return self.size
        n = here[swapped[0]]
        return self.size // (n * n) * (n * (n + int(sign)) // 2)

    @property
    def _kernel(self) -> Factor | None:
        """The projector before δ, if all terms read δ through it alone."""
        found = [[f for f in term.factors if f.kernel] for term in self.terms]
        forms = {tuple((f.kernel, f.window.letters[1]) for f in each) for each in found}
        if len(forms) != 1 or len(found[0]) != 1:
            return None
        return found[0][0] if found[0][0].window.letters[1] in self.letters else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that the shift moves."""
        return tuple(self.terms_of)

    @cached_property
    def terms_of(self) -> dict[str, tuple[Term, ...]]:
        """The terms of each parameter that the shift moves."""
        found: dict[str, tuple[Term, ...]] = {}
        for term in self.terms:
            name = term.target.parameter
            found[name] = (*found.get(name, ()), term)
        return found

    def reads(self, parameter: str, inverse: bool = False) -> tuple[str, ...]:
        """The parameters from which what is added to one is read, forwards or to undo it."""
        return self._read.get((parameter, inverse), ())

    @cached_property
    def _read(self) -> dict[tuple[str, bool], tuple[str, ...]]:
        """What `reads` answers, which is asked in every motion of every tensor."""
        found: dict[tuple[str, bool], tuple[str, ...]] = {}
        for parameter, terms in self.terms_of.items():
            divided = any(term.divided for term in terms)
            for inverse in (False, True):
                factors = [factor for term in terms for factor in term.factors]
                if inverse or divided:
                    factors += self.divisor or ()
                names = (name for factor in factors for name in factor.reads)
                found[parameter, inverse] = tuple(dict.fromkeys(names))
        return found

    @cached_property
    def below(self) -> dict[str, tuple[Factor, ...]]:
        """For each moved parameter, the factors in which gains stand below: they are divided by."""
        found: dict[str, tuple[Factor, ...]] = {}
        for parameter, terms in self.terms_of.items():
            factors = [f for term in terms for f in (*term.factors, *(self.divisor or ()))]
            turns = [replace(f, power=-1.0) if f.flow in ("map", "dual") else f for f in factors]
            found[parameter] = tuple(f for f in turns if f.power < 0 and not f.kernel)
        return found


def columns_of(kernel: tuple[Window, ...]) -> int | None:
    """How many columns a projector annihilates in each copy; None where they may be dependent.

    Columns of different parameters are generic; two windows of one parameter may share entries.
    """
    kernel = tuple(window for window in kernel if "x" in window.letters)
    if len({window.parameter for window in kernel}) < len(kernel):
        return None
    return sum(
        math.prod(
            n - (x == "z") for n, x in zip(window.shape, window.letters, strict=True)
            if x != "x" and not x.isupper()
        )
        for window in kernel
    )  # fmt: skip
