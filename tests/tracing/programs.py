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

from tests.tracing import program_steps
from tests.tracing.program_drawing import STEPS, Drawing, Misfit, Step
from tests.tracing.program_source import Input, Program, Spoiled, usable, without_dead

_FREE = ("linear", "dense", "chain", "bias", "gain", "write")  # steps that leave freedom


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
