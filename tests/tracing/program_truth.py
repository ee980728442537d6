"""Whether what is called a symmetry of a program is one: finite moves at generic points, and a
shrinker that makes a failing program small enough to read."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry, orbit_dimension
from paramsym.structure.element import GroupElement
from paramsym.structure.scale import to_scale
from tests.tracing.program_source import (
    Program,
    Statement,
    difference,
    names_in,
    outputs_of,
    randomise,
    usable,
    without_dead,
)

TOLERANCE = 1e-6  # of the relative change of an output, in float64
LARGEST = 1e3  # how far a draw may blow up parameters before a milder one is taken
SAMPLES = 8  # at least so many samples of the input

State = dict[str, Tensor]
Function = Callable[[State], list[Tensor]]


@dataclass(frozen=True)
class Finding:
    """What became of one program.

    Kinds: sound; refused; and the failures unsound (a move changes the function), dead (so does
    a parameter that is called dead), loaded (only after load_state_dict), product (g @ h), inverse
    (~g), changed (find_symmetry or act writes into what it was given), and crashes: find, act,
    algebra (of g @ h and ~g) and orbit.
    """

    kind: str
    detail: str = ""
    error: float = 0.0
    orbit: int = 0
    moves: int = 0  # spaces and shifts that move something

    @property
    def failed(self) -> bool:
        return self.kind not in ("sound", "refused")

    @property
    def key(self) -> tuple[str, str]:
        """What a smaller program must share to be the same failure."""
        crash = self.kind in ("find", "act", "algebra", "orbit")
        return self.kind, self.detail.split(":")[0] if crash else ""


class Refuted(Exception):
    """The examination of a program ends here, with this finding."""

    def __init__(self, kind: str, detail: str, error: float = 0.0):
        super().__init__(detail)
        self.finding = Finding(kind, detail, error)


def examine(program: Program, seed: int) -> Finding:
    """Derive the symmetry of a program and try to refute it.

    Everything moves at strength 0.5 and 1, then each space and each shift alone; dead parameters
    are replaced; products and inverses are compared. What fails counts if it fails again at other
    weights and inputs: a draw may be ill-conditioned.
    """
    model = program.build(seed)
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            symmetry = _derived(model, program.draw_inputs(generator))
            try:
                point = _attacked(program, model, symmetry, seed)
            except Refuted:
                randomise(model, generator)
                point = _attacked(program, model, symmetry, seed + 1000)
        except Refuted as refuted:
            return refuted.finding
        try:
            orbit = orbit_dimension(symmetry, model.state_dict())
        except Exception as error:
            return Finding("orbit", headline(error))
    return Finding("sound", orbit=orbit, moves=point.effective)


def _derived(model: nn.Module, example: tuple[Tensor, ...]) -> ParameterSymmetry:
    """The symmetry of a model, which comes back as it was."""
    before = {n: t.detach().clone() for n, t in model.state_dict().items()}
    members, kept = set(vars(model)), [x.clone() for x in example]
    try:
        symmetry = find_symmetry(model, example)
    except Exception as error:
        refused = type(error).__module__.startswith("paramsym")
        raise Refuted("refused" if refused else "find", headline(error)) from error
    after = model.state_dict()
    if set(vars(model)) != members or not all(
        torch.equal(before[n], after[n]) and before[n].dtype == after[n].dtype for n in before
    ):
        raise Refuted("changed", "find_symmetry changes the model")
    if not all(torch.equal(x, y) for x, y in zip(kept, example, strict=True)):
        raise Refuted("changed", "find_symmetry changes its inputs")
    return symmetry


def _attacked(program: Program, model: nn.Module, symmetry: ParameterSymmetry, seed: int) -> Point:
    point = Point(program, model, torch.Generator().manual_seed(seed))
    for part in (moves, dead, algebra):
        part(point, symmetry)
    return point


class Point:
    """The function of a model at its weights, over fresh inputs."""

    def __init__(self, program: Program, model: nn.Module, generator: torch.Generator):
        self.program, self.model, self.generator = program, model, generator
        self.state = {n: t.detach().clone() for n, t in model.state_dict().items()}
        batch = min(i.shape[0] for i in program.inputs)
        draws = max(2, math.ceil(SAMPLES / batch))
        self.inputs = [program.draw_inputs(generator) for _ in range(draws)]
        self.value = self.function(self.state)
        self.effective = 0  # spaces and shifts that moved something

    def function(self, state: State) -> list[Tensor]:
        call = torch.func.functional_call
        with torch.no_grad():
            ran = (
                call(self.model, state, tuple(x.clone() for x in xs), tie_weights=False)
                for xs in self.inputs
            )
            return [output for result in ran for output in outputs_of(result)]

    def loaded(self, state: State) -> list[Tensor]:
        """The function of another copy of the model into which the state is loaded.

        The copy is built anew: `deepcopy` parts parameters that overlap in storage.
        """
        twin = self.program.build(0)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():  # also what is not persistent
                twin.get_buffer(name).copy_(buffer)
            twin.load_state_dict(state)
            ran = (twin(*(x.clone() for x in xs)) for xs in self.inputs)
            return [output for result in ran for output in outputs_of(result)]

    def is_steady(self, state: State, error: float) -> bool:
        """Whether rounding alone cannot explain an error at this state."""
        nudged = {
            n: t * (1 + 1e-12 * torch.randn(t.shape, generator=self.generator, dtype=t.dtype))
            if t.is_floating_point()
            else t
            for n, t in state.items()
        }
        return difference(self.function(state), self.function(nudged)) < error / 10

    def move(
        self, symmetry: ParameterSymmetry, only: list[str] | None, strength: float, tries: int = 4
    ) -> tuple[GroupElement, State]:
        """A random element in proportion to the weights, and where it takes them."""
        try:
            element = symmetry.sample(self.generator, strength, only=only)
            element = to_scale(element, self.state)
            moved = act(symmetry, element, self.state)
        except Exception as error:
            raise Refuted("act", headline(error)) from error
        floats = [t for t in moved.values() if t.is_floating_point() and t.numel()]
        if tries > 1 and not all(float(t.abs().max()) < LARGEST for t in floats):
            return self.move(symmetry, only, strength / 2, tries - 1)
        return element, moved

    def compare(self, kind: str, detail: str, function: Function, moved: State) -> None:
        error = difference(self.value, function(moved))
        if error > TOLERANCE and self.is_steady(moved, error) and self.is_steady(self.state, error):
            raise Refuted(kind, detail, error)


def moves(point: Point, symmetry: ParameterSymmetry) -> None:
    """Everything together, also loaded into a copy; then each space and each shift alone."""
    kept = {n: t.clone() for n, t in point.state.items()}
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    for only, strength in [(None, 0.5), (None, 1.0), *(([n], 1.0) for n in names)]:
        if only and only[0] in symmetry.spaces and not symmetry.spaces[only[0]].exact:
            continue  # holds up to a stated quantity only
        _, moved = point.move(symmetry, only, strength)
        label = only[0] if only else f"everything at {strength}"
        for name, tensor in moved.items():
            if tensor.shape != kept[name].shape or tensor.dtype != kept[name].dtype:
                raise Refuted("unsound", f"{label}: act gives {name} another shape or dtype")
            if not torch.equal(point.state[name], kept[name]):
                raise Refuted("changed", f"{label}: act writes into {name}")
        point.effective += bool(only) and any(not torch.equal(moved[n], kept[n]) for n in kept)
        point.compare("unsound", label, point.function, moved)
        if only is None:
            point.compare("loaded", label, point.loaded, moved)


def dead(point: Point, symmetry: ParameterSymmetry) -> None:
    """What is called dead may be anything, and so may rows that are not reached."""
    rows = {name: slice(None) for name in symmetry.dead if name in point.state}
    rows |= {
        n: list(r) for n, r in symmetry.unreached.items() if n in point.state and n not in rows
    }
    for name, found in rows.items():
        tensor = point.state[name].clone()
        if not tensor.is_floating_point():
            continue
        tensor[found] = torch.randn(tensor[found].shape, generator=point.generator).double()
        aliases = [a for a, n in symmetry.ties.items() if n == name]
        changed = {**point.state, **dict.fromkeys([name, *aliases], tensor)}
        point.compare("dead", f"{name} is called dead", point.function, changed)


def algebra(point: Point, symmetry: ParameterSymmetry) -> None:
    """Products act like one after the other, and inverses lead back."""
    g, once = point.move(symmetry, None, 0.3)
    h, first = point.move(symmetry, None, 0.3)
    try:
        back = act(symmetry, ~g, once)
        both, sequence = act(symmetry, g @ h, point.state), act(symmetry, g, first)
    except Exception as error:
        raise Refuted("algebra", headline(error)) from error
    for kind, found, wanted in [("inverse", back, point.state), ("product", both, sequence)]:
        for name, tensor in wanted.items():
            if tensor.is_floating_point() and tensor.numel():
                error = difference([tensor], [found[name]])
                if error > TOLERANCE:
                    raise Refuted(kind, f"{kind} at {name}", error)
        point.compare(kind, f"the function after the {kind}", point.function, found)


def headline(error: Exception) -> str:
    """Kind and place of an exception, then the head of its message."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "paramsym" in f.filename] or frames
    place = f"{ours[-1].filename.rsplit('/', 1)[-1]} {ours[-1].name}"
    text = str(error).splitlines()[0][:160] if str(error) else ""
    return f"{type(error).__name__} in {place}: {text}"


# -- shrinking -----------------------------------------------------------------------------------


def shrink(program: Program, seed: int, limit: int = 250) -> Program:
    """A program with as few statements as possible that fails in the same way."""
    wanted, tried = examine(program, seed).key, 0

    def persists(candidate: Program) -> bool:
        nonlocal tried
        tried += 1
        if tried > limit or not usable(candidate):
            return False
        try:
            return examine(candidate, seed).key == wanted
        except Exception:  # the candidate itself does not run
            return False

    progress = True
    while progress and tried <= limit:
        progress = False
        for candidate in _smaller(program):
            candidate = without_dead(candidate)
            if candidate != program and _size(candidate) < _size(program) and persists(candidate):
                program, progress = candidate, True
                break
    return program


def _size(program: Program) -> tuple[int, int]:
    return len(program.statements) + len(program.declarations), len(program.source())


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the boldest first."""
    targets = [s.target for s in program.statements if s.target]
    for name in targets:  # an early value instead of the result
        yield replace(program, returns=name)
    for k in reversed(range(len(program.statements))):
        statement = program.statements[k]
        rest = program.statements[:k] + program.statements[k + 1 :]
        if not statement.target:
            yield replace(program, statements=rest)
            continue
        for name in sorted(names_in(statement.code) - {statement.target}):
            if ".m" not in name:
                yield _without(program, rest, statement.target, name)
        for j in reversed(range(statement.code.count("\n") + 1)):
            lines = statement.code.splitlines()
            shorter = Statement(statement.target, "\n".join(lines[:j] + lines[j + 1 :]))
            if j and len(lines) > 1:
                changed = (*program.statements[:k], shorter, *program.statements[k + 1 :])
                yield replace(program, statements=changed)


def _without(program: Program, rest: tuple[Statement, ...], target: str, stand_in: str) -> Program:
    """Every later use of a value replaced by one of its operands."""

    def renamed(code: str) -> str:
        return re.sub(rf"\b{target}\b", stand_in, code)

    statements = tuple(Statement(s.target, renamed(s.code)) for s in rest)
    return replace(program, statements=statements, returns=renamed(program.returns))
