"""A tensor program under construction: each statement is run as soon as it is drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tracing.program_source import Input, Spoiled, Statement

SIZES = (1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 6, 8)


class Misfit(Exception):
    """A statement that does not fit what is at hand; it is drawn again."""


Step = Callable[["Drawing"], None]
STEPS: list[tuple[Step, int]] = []


def step(weight: int) -> Callable[[Step], Step]:
    """Register a way to continue a program, with how often it is taken."""

    def register(function: Step) -> Step:
        STEPS.append((function, weight))
        return function

    return register


class Drawing:
    """A program under construction, with the values that its statements have."""

    def __init__(self, seed: int | str):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        self.inputs: list[Input] = []
        self.declarations: list[Statement] = []
        self.statements: list[Statement] = []
        self.kinds: dict[str, str] = {}  # name → data, weight, index or mask
        self.own = nn.Module()  # what `self` is in the code
        self.space: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "self": self.own}
        self.allowed = self.choose(2, 3, 4, 5, 6, 6)
        self.wild = self.choose(
            0.02, 0.1, 0.2, 0.5
        )  # how often a weight is not a parameter of its own
        self.count = 0

    # -- choices -----------------------------------------------------------------------------
    def choose(self, *options: Any) -> Any:
        return self.random.choice(options)

    def pick(self, forms: Sequence[str | Callable[[], str]]) -> str:
        """One of several pieces of code; those that need weights make them when chosen."""
        form = self.random.choice(forms)
        return form if isinstance(form, str) else form()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def size(self) -> int:
        known = [n for name in self.kinds for n in self.value(name).shape if n <= 8]
        if known and self.chance(0.35):
            return self.random.choice(known)
        return self.random.choice(SIZES)

    def axis(self, name: str) -> int:
        """An axis, seldom the first, which is the batch more often than not."""
        ndim = len(self.shape(name))
        if ndim == 1 or self.chance(0.07):
            return self.random.randrange(ndim)
        return self.random.randrange(1, ndim)

    # -- values ------------------------------------------------------------------------------
    def value(self, name: str) -> Tensor:
        return getattr(self.own, name[5:]) if name.startswith("self.") else self.space[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.value(name).shape)

    def of_kind(self, kind: str) -> list[str]:
        return [name for name, found in self.kinds.items() if found == kind]

    def data(self, *ndims: int) -> str:
        """A value that depends on the input, a recent one more often than not."""
        names = [n for n in self.of_kind("data") if not ndims or len(self.shape(n)) in ndims]
        if not names:
            raise Misfit
        if self.chance(0.85):
            return names[-1]
        return self.random.choice(names[-5:])

    def emit(self, code: str, kind: str = "data") -> str:
        """Add `t = code`, unless it does not run or its value is not a usable tensor."""
        name = f"t{self.count}"
        self.count += 1
        self.run(f"{name} = {code}")
        check(self.space[name], 700)
        self.statements.append(Statement(name, f"{name} = {code}"))
        self.kinds[name] = kind
        return name

    def block(self, code: str, kind: str = "data") -> str:
        """Add several lines that give a value to the name written `$`."""
        name = f"t{self.count}"
        self.count += 1
        code = code.replace("$", name)
        self.run(code)
        check(self.space[name], 700)
        self.statements.append(Statement(name, code))
        self.kinds[name] = kind
        return name

    def write(self, code: str) -> None:
        """Add a write in place."""
        before = {n: self.value(n).clone() for n in self.kinds if n[0] in "sx"}
        self.run(code)
        self.statements.append(Statement("", code))
        for name in self.kinds:
            if name in before and not torch.equal(before[name], self.value(name)):
                raise Spoiled(name)
            try:
                check(self.value(name), 700)
            except Misfit as error:
                raise Spoiled(name) from error

    def run(self, code: str) -> None:
        try:
            with torch.no_grad():
                exec(code, self.space)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise Misfit(code) from error

    # -- members -----------------------------------------------------------------------------
    def declare(self, name: str, code: str, kind: str) -> str:
        """Add a member; `kind` is that of a tensor."""
        before = torch.random.get_rng_state()
        torch.manual_seed(self.random.getrandbits(32))
        exec(code, {"self": self.own, "torch": torch, "nn": nn, "par": _parameter})
        torch.random.set_rng_state(before)
        made = getattr(self.own, name)
        if isinstance(made, nn.Module):
            made.double()
        else:
            self.kinds[f"self.{name}"] = kind
        self.declarations.append(Statement(f"self.{name}", code))
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        if len(self.of_declared("p")) >= self.allowed:
            raise Misfit
        name = f"p{len(self.of_declared('p'))}"
        inside = ", ".join(map(str, shape))
        made = self.declare(name, f"self.{name} = par({inside})", "weight")
        with torch.no_grad():
            self.value(made).mul_(0.8)
        return made

    def buffer(self, code: str, kind: str) -> str:
        name = f"b{len(self.of_declared('b'))}"
        persistent = "" if self.chance(0.9) else ", persistent=False"
        return self.declare(name, f'self.register_buffer("{name}", {code}{persistent})', kind)

    def module(self, code: str) -> str:
        name = f"m{len(self.of_declared('m'))}"
        return self.declare(name, f"self.{name} = {code}", "module")

    def of_declared(self, letter: str) -> list[Statement]:
        return [d for d in self.declarations if d.target.startswith(f"self.{letter}")]

    def numbers(self, count: int, below: int) -> str:
        """An integer buffer of indices."""
        listed = [self.random.randrange(below) for _ in range(count)]
        if count == below and self.chance(0.4):
            self.random.shuffle(listed := list(range(below)))
        return self.buffer(f"torch.tensor({listed})", "index")

    def mask(self, *shape: int) -> str:
        """A boolean buffer with both values."""
        total = math.prod(shape)
        listed = [self.chance(0.6) for _ in range(total)]
        listed[0], listed[-1] = True, listed[-1] and total == 1
        text = f"torch.tensor({listed})" + (f".view({shape})" if len(shape) != 1 else "")
        return self.buffer(text, "mask")

    def snapshot(self) -> tuple[int, int, dict[str, str]]:
        return len(self.declarations), len(self.statements), dict(self.kinds)

    def restore(self, mark: tuple[int, int, dict[str, str]]) -> None:
        del self.declarations[mark[0] :]
        del self.statements[mark[1] :]
        self.kinds = mark[2]


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64))


def check(value: Any, largest: int) -> None:
    """Raise `Misfit` unless the value is a finite real tensor of usable size."""
    if (
        not isinstance(value, Tensor)
        or not 0 < value.numel() <= largest
        or not 1 <= value.ndim <= 5
    ):
        raise Misfit
    if value.is_floating_point() and not float(value.detach().abs().max()) < 1e3:
        raise Misfit
