"""Random tensor programs: what people write by hand with tensors, not what layers compose.

A program is a straight line of tensor operations over named values: one or two inputs, a few
parameters (each used several times and in different readings) and now and then buffers. It is
held as source text, so that a failing one is printed as a module that a human can read and paste
into a test. Each statement is run while it is drawn; one that does not fit is drawn again, so that
the grammar may be wild.

    program = draw(7)          # the same program for the same seed
    print(program.source())    # a class with parameters and forward
    model = program.build(0)   # at generic weights and buffers
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZES = (1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 6, 8)
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


class Misfit(Exception):
    """A statement that does not fit what is at hand; it is drawn again."""


class Spoiled(Exception):
    """An in-place write that reached a parameter or an input; the program is drawn again."""


Step = Callable[["Drawing"], None]
STEPS: list[tuple[Step, int]] = []
_FREE = ("linear", "dense", "chain", "bias", "gain", "write")  # steps that leave freedom


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


def draw(seed: int) -> Program:
    """The program of a seed: its result depends on the input and on the parameters."""
    for attempt in range(1000):
        drawing = Drawing(f"{seed}/{attempt}")
        try:
            program = _drawn(drawing)
        except (Misfit, Spoiled):
            continue
        if usable(program):
            return program
    raise AssertionError(f"no program for seed {seed}")


def _drawn(drawing: Drawing) -> Program:
    from tests.tracing import program_steps  # it registers its steps in STEPS

    _draw_inputs(drawing)
    favour = drawing.choose(1, 4, 4)  # most programs have more to move
    steps = [s for s, _ in STEPS]
    weights = [w * (favour if s.__name__ in _FREE else 1) for s, w in STEPS]
    wanted = drawing.random.randint(4, 16)
    opening = [program_steps.hidden] if drawing.chance(0.6) else []
    for k in range(60):
        chosen = opening[k] if k < len(opening) else drawing.random.choices(steps, weights)[0]
        _taken(drawing, chosen)
        if len(drawing.statements) >= wanted and drawing.of_declared("p"):
            break
    if drawing.chance(0.6):
        _taken(drawing, program_steps.reader)
    last = [n for n in drawing.of_kind("data") if n.startswith("t")]
    if not last:
        raise Misfit
    program = Program(
        tuple(drawing.inputs),
        tuple(drawing.declarations),
        tuple(drawing.statements),
        _returned(drawing, last),
    )
    return without_dead(program)


def _taken(drawing: Drawing, chosen: Step) -> None:
    mark = drawing.snapshot()
    try:
        chosen(drawing)
    except Misfit:
        drawing.restore(mark)


def _draw_inputs(drawing: Drawing) -> None:
    batch = drawing.choose(2, 3, 4, 5, 6, 6, 8)
    for k in range(drawing.choose(1, 1, 1, 2)):
        ndim = drawing.choose(2, 2, 3, 3, 4)
        shape = (batch, *[drawing.size() for _ in range(ndim - 1)])
        below = drawing.choose(2, 3, 4, 5, 6) if drawing.chance(0.12) else 0
        if below:
            shape = shape[: drawing.choose(1, 2)]
        made = Input(f"x{k}", shape, below)
        drawing.inputs.append(made)
        drawing.space[made.name] = made.draw(drawing.generator)
        drawing.kinds[made.name] = "index" if below else "data"


def _returned(drawing: Drawing, last: list[str]) -> str:
    first = last[-1]
    if drawing.chance(0.85):
        return first
    second = drawing.random.choice(last)
    forms = [f"{first}, {second}", f"{{'out': {first}, 'other': [{second}]}}"] * 7
    return drawing.choose(*forms, f"Output({first}, {second})", f"Output({first})")


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
