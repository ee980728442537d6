"""Random tensor programs: what is called a symmetry leaves the function unchanged."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.structure.axes import Fixed
from tests.tracing.program_source import Input, Program, Statement, outputs_of
from tests.tracing.program_truth import Finding, Point, Refuted, dead, examine, moves, shrink
from tests.tracing.programs import draw

SEEDS = range(75)
CAMPAIGN = [*range(75, 150), *range(1_000_000, 1_010_000)]


def told(program: Program, seed: int, finding: Finding) -> str:
    return f"seed {seed}: {finding}\n\n{program.source()}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_move_refutes_the_symmetry_of_a_program(seed: int) -> None:
    finding = examine(draw(seed), seed)
    if finding.failed:
        small = shrink(draw(seed), seed, limit=60)
        pytest.fail(told(small, seed, finding), pytrace=False)


@pytest.mark.slow
def test_no_move_refutes_the_symmetry_of_ten_thousand_programs() -> None:
    failed = {seed: f for seed in CAMPAIGN if (f := examine(draw(seed), seed)).failed}
    shown = [told(shrink(draw(s), s), s, f) for s, f in list(failed.items())[:20]]
    counts = "\n".join(f"{seed}: {finding}" for seed, finding in failed.items())
    assert not failed, "\n\n".join([f"{len(failed)} of {len(CAMPAIGN)}", counts, *shown])


# -- the attacker itself ---------------------------------------------------------------------------

HIDDEN = Program(
    (Input("x0", (6, 3)),),
    (Statement("self.p0", "self.p0 = par(4, 3)"), Statement("self.p1", "self.p1 = par(4, 2)")),
    (Statement("t0", "t0 = F.relu(x0 @ self.p0.T)"), Statement("t1", "t1 = t0 @ self.p1")),
    "t1",
)


def hidden_point() -> tuple[Point, ParameterSymmetry]:
    model = HIDDEN.build(0)
    symmetry = find_symmetry(model, HIDDEN.draw_inputs(torch.Generator().manual_seed(0)))
    return Point(HIDDEN, model, torch.Generator().manual_seed(1)), symmetry


def test_a_right_symmetry_passes_and_moves_something() -> None:
    finding = examine(HIDDEN, 0)
    assert (finding.kind, finding.orbit) == ("sound", 4) and finding.moves


def test_a_wrong_symmetry_is_refuted() -> None:
    """The reader no longer follows the hidden units."""
    point, symmetry = hidden_point()
    still = tuple(Fixed(n) for n in symmetry.shape("p1"))
    types = {**symmetry.signature, "p1": still}
    wrong = dataclasses.replace(symmetry, signature=types)
    with pytest.raises(Refuted, match="everything at 0.5") as caught:
        moves(point, wrong)
    assert caught.value.finding.kind == "unsound" and caught.value.finding.error > 1e-3


def test_a_parameter_that_is_wrongly_called_dead_is_refuted() -> None:
    point, symmetry = hidden_point()
    dead(point, symmetry)
    with pytest.raises(Refuted, match="p1 is called dead"):
        dead(point, dataclasses.replace(symmetry, dead=("p1",)))


def test_parameters_that_overlap_are_refuted_where_they_are_typed_apart() -> None:
    """The moved parameters are right one by one, and do not fit into one storage."""
    apart = Statement("self.p1", "self.p1 = par(14)")
    overlap = Statement("self.p1", "self.p1 = nn.Parameter(self.p0.detach().view(-1)[:14])")
    first = Statement("self.p0", "self.p0 = par(5, 3)")
    steps = (
        Statement("t0", "t0 = F.relu(x0 @ self.p0.T)"),
        Statement("t1", "t1 = t0 @ self.p1[:10].view(5, 2)"),
    )
    program = Program((Input("x0", (6, 3)),), (first, apart), steps, "t1")
    generator = torch.Generator().manual_seed(0)
    symmetry = find_symmetry(program.build(0), program.draw_inputs(generator))
    moves(Point(program, program.build(0), generator), symmetry)
    shared = dataclasses.replace(program, declarations=(first, overlap))
    with pytest.raises(Refuted) as caught:
        moves(Point(shared, shared.build(0), generator), symmetry)
    assert caught.value.finding.kind == "loaded"


def test_a_seed_gives_the_same_program_again() -> None:
    assert draw(3) == draw(3) != draw(4)


def test_a_program_prints_as_a_module_that_runs() -> None:
    program = draw(5)
    namespace: dict = {}
    exec(program.source(), namespace)
    assert outputs_of(namespace["Program"]()(*namespace["inputs"]))


def test_building_a_program_leaves_the_global_randomness_alone() -> None:
    before = torch.random.get_rng_state()
    draw(6).build(6)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_grammar_reaches_what_it_should() -> None:
    text = "\n".join(draw(seed).source() for seed in range(200))
    for word in ("einsum", "clone()", ".mul_(", "softmax", "register_buffer", "conv", "Cell(",
                 "embedding", "transpose", "view(", "[..., ", "torch.where", "torch.outer",
                 "Output(", "torch.randint", "norm("):  # fmt: skip
        assert word in text, word


def test_a_failing_program_is_shrunk_to_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here programs are called failing as long as they take an absolute value."""
    from tests.tracing import program_truth

    def pretended(program: Program, seed: int) -> Finding:
        return Finding("unsound" if ".abs()" in program.source() else "sound")

    monkeypatch.setattr(program_truth, "examine", pretended)
    long = dataclasses.replace(
        HIDDEN,
        statements=(
            *HIDDEN.statements,
            Statement("t2", "t2 = t1.abs()"),
            Statement("t3", "t3 = t2 + t1"),
            Statement("t4", "t4 = torch.tanh(t3)"),
        ),
        returns="t4",
    )
    small = shrink(long, 0)
    assert len(small.statements) <= 2 and ".abs()" in small.source()
    assert small.returns == "t2"
