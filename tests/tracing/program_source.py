"""A tensor program as source text: what it prints, builds and computes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_NAMES = re.compile(r"\bself\.\w+|\b[xt]\d+\b")
_HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


"""
_DATACLASS = """\
from dataclasses import dataclass


@dataclass
class Output:
    first: torch.Tensor
    second: object = None


"""
_PARAMETER = """\
def par(*shape):
    return nn.Parameter(torch.randn(shape, dtype=torch.float64))


"""


def names_in(code: str) -> set[str]:
    """Inputs, values and members of `self` that a piece of code mentions."""
    return set(_NAMES.findall(code))


@dataclass(frozen=True)
class Input:
    """A floating input, or with `below` one of integers under it."""

    name: str
    shape: tuple[int, ...]
    below: int = 0

    def draw(self, generator: torch.Generator) -> Tensor:
        if self.below:
            return torch.randint(self.below, self.shape, generator=generator)
        return torch.randn(self.shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Statement:
    """Lines of code that give `target` its value; "" where they write in place."""

    target: str
    code: str


@dataclass(frozen=True)
class Program:
    """Source text of a module, in parts that a shrinker may remove."""

    inputs: tuple[Input, ...]
    declarations: tuple[Statement, ...]
    statements: tuple[Statement, ...]
    returns: str

    def source(self) -> str:
        """A module `Program`, and example inputs, as Python that runs."""
        lines = ["class Program(nn.Module):", "    def __init__(self):"]
        lines += ["        super().__init__()"]
        lines += [f"        {d.code}" for d in self.declarations]
        lines += ["        self.double()", ""]
        lines += [f"    def forward(self, {', '.join(i.name for i in self.inputs)}):"]
        for statement in self.statements:
            lines += [f"        {line}" for line in statement.code.splitlines()]
        lines += [f"        return {self.returns}", "", ""]
        made = [
            f"torch.randint({i.below}, {i.shape})"
            if i.below
            else f"torch.randn({i.shape}, dtype=torch.float64)"
            for i in self.inputs
        ]
        text = "\n".join(lines) + f"inputs = ({', '.join(made)},)\n"
        return _HEAD + (_DATACLASS if "Output(" in text else "") + _PARAMETER + text

    def build(self, seed: int) -> nn.Module:
        """The module at generic weights and buffers."""
        namespace: dict[str, Any] = {"__name__": "program"}
        before = torch.random.get_rng_state()
        try:
            exec(compile(self.source(), "<program>", "exec", dont_inherit=True), namespace)
            model = namespace["Program"]().eval()
        finally:
            torch.random.set_rng_state(before)
        randomise(model, torch.Generator().manual_seed(seed), integers=True)
        return model

    def draw_inputs(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(i.draw(generator) for i in self.inputs)


def randomise(model: nn.Module, generator: torch.Generator, integers: bool = False) -> None:
    """Generic weights and buffers; integers stay within their range, masks as dense as before."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.copy_(0.8 * noise)
            elif tensor.dtype == torch.bool and integers:
                order = torch.randperm(tensor.numel(), generator=generator)
                tensor.copy_(tensor.reshape(-1)[order].view(tensor.shape))
            elif integers:
                low, high = int(tensor.min()), int(tensor.max()) + 1
                tensor.copy_(torch.randint(low, high, tensor.shape, generator=generator))


class Spoiled(Exception):
    """An in-place write that reached a parameter or an input; the program is drawn again."""


def without_dead(program: Program) -> Program:
    """Without statements whose values nobody reads, and members that nobody uses.

    Writes in place stay, since what they name may be a view of something alive.
    """
    live, kept = names_in(program.returns), []
    for statement in reversed(program.statements):
        named = names_in(statement.code)
        if not statement.target or statement.target in live:
            kept.append(statement)
            live |= named
    declared: list[Statement] = []
    for declaration in reversed(program.declarations):
        if declaration.target in live:
            declared.append(declaration)
            live |= names_in(declaration.code)
    inputs = tuple(i for i in program.inputs if i.name in live)
    return Program(inputs, tuple(declared[::-1]), tuple(kept[::-1]), program.returns)


def usable(program: Program) -> bool:
    """Whether it runs, depends on its inputs and parameters, and is not ill-conditioned."""
    if not program.inputs or not any(".p" in d.target for d in program.declarations):
        return False
    try:
        first, other = program.build(1), program.build(2)
        generator = torch.Generator().manual_seed(3)
        inputs, fresh = program.draw_inputs(generator), program.draw_inputs(generator)
        with torch.no_grad():
            here, elsewhere, moved = (
                _untouched(m, xs) for m, xs in [(first, inputs), (first, fresh), (other, inputs)]
            )
        nudged = program.build(1)
        with torch.no_grad():
            for tensor in nudged.parameters():
                noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.mul_(1 + 1e-9 * noise)
            near = outputs_of(nudged(*(x.clone() for x in inputs)))
    except Exception:  # whatever a program of a shrinker does
        return False
    if not here or not all(
        bool(y.isfinite().all()) and float(y.abs().max()) < 1e6 for y in (*here, *moved, *elsewhere)
    ):
        return False
    return (
        difference(here, elsewhere) > 1e-3
        and difference(here, moved) > 1e-3
        and difference(here, near) < 1e-6
    )


def _untouched(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs of a program that may not write into its members or inputs."""
    members = (*model.parameters(), *model.buffers(), *inputs)
    before = [t.detach().clone() for t in members]
    found = outputs_of(model(*inputs))
    if not all(torch.equal(t, kept) for t, kept in zip(members, before, strict=True)):
        raise Spoiled
    return found


def outputs_of(result: Any) -> list[Tensor]:
    """Every floating tensor of a result, through containers and dataclasses."""
    if isinstance(result, Tensor):
        return [result.detach()] if result.is_floating_point() else []
    if hasattr(result, "__dataclass_fields__"):
        result = [getattr(result, name) for name in result.__dataclass_fields__]
    parts: Iterable[Any] = result.values() if isinstance(result, dict) else result or ()
    return [tensor for part in parts for tensor in outputs_of(part)]


def difference(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest change of an output relative to its size; a vanishing output has size 1e-3."""
    worst = 0.0
    for x, y in zip(before, after, strict=True):
        change = float((x - y).abs().max()) / max(float(x.abs().max()), 1e-3)
        worst = max(worst, change if math.isfinite(change) else math.inf)
    return worst
