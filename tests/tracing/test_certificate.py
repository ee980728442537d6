"""The certificate of completeness, its slow twin, and what it must refuse to certify."""

import logging
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym.algebra import GeneralLinear
from paramsym.checking import elimination, orthogonal
from paramsym.checking.audit import Audit, audit
from paramsym.checking.cost import Meter
from paramsym.checking.find import find_symmetry
from paramsym.checking.jacobian import NotFinite, planned
from paramsym.checking.together import NotDifferentiable
from paramsym.structure.symmetry import ParameterSymmetry
from tests.tracing.networks import TABLE, Square, build, derived, randomise
from tests.tracing.slow_audit import slow_audit

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
NOTHING = ParameterSymmetry({}, {})
_WIDE = torch.float64


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def stacked(*layers: nn.Module) -> nn.Sequential:
    """Layers at generic parameters, the same every time."""
    torch.manual_seed(0)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return randomise(nn.Sequential(*layers))


def three_layers(first: nn.Module, second: nn.Module) -> nn.Module:
    return stacked(nn.Linear(4, 6), first, nn.Linear(6, 5), second, nn.Linear(5, 2))


def small_rows() -> list[Any]:
    """Networks for the slow twin; two that are like others of the table among the slow tests."""
    alike = {"MLP GELU": pytest.mark.slow, "CNN": pytest.mark.slow}
    small = [row for row in TABLE if row.parameters < 300]
    return [pytest.param(row, id=row.name, marks=alike.get(row.name, ())) for row in small]


# -- the slow twin -------------------------------------------------------------------------------


@pytest.mark.parametrize("row", small_rows())
def test_counts_are_those_of_the_slow_twin(row: Any) -> None:
    logging.disable(logging.ERROR)
    model, inputs = build(row)
    for claims in (derived(row), NOTHING):
        found = audit(model, inputs, symmetry=claims, outputs=row.outputs)
        assert (found.nullity, found.explained) == slow_audit(model, inputs, claims, row.outputs)
        assert found.complete == (found.unexplained == 0)


class Block(nn.Module):
    """A residual block with layer norms: seven families of translations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(9, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.final, self.head = nn.LayerNorm(8), nn.Linear(8, 9, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.final(x + self.down(nn.functional.gelu(self.up(self.norm(x))))))


def test_each_translation_that_is_left_out_is_missed_exactly() -> None:
    torch.manual_seed(0)
    model, inputs = randomise(Block()), (x(5, 9),)
    symmetry = find_symmetry(model, inputs)
    assert audit(model, inputs, symmetry=symmetry).complete
    missed = []
    for shift in (s for s in symmetry.shifts if s.dimension in (1, 8)):
        rest = tuple(other for other in symmetry.shifts if other is not shift)
        found = audit(model, inputs, symmetry=replace(symmetry, shifts=rest))
        missed.append(found.unexplained)
        assert found.unexplained == shift.dimension and not found.refuted, found
    assert sorted(missed) == [1, 1, 8, 8]


@pytest.mark.parametrize(("width", "suspects"), [(5, 1), (6, 6)])
def test_networks_of_squares_have_a_fiber_that_is_no_orbit(width: int, suspects: int) -> None:
    model = stacked(nn.Linear(4, width, bias=False), Square(), nn.Linear(width, 3, bias=False))
    found = audit(model, (x(4, 4),))
    assert found.unexplained == suspects and not found.complete and found.explained == width
    assert sum(suspect.count for suspect in found.suspects) == suspects


# -- false claims --------------------------------------------------------------------------------


def test_wrong_directions_do_not_count_as_explained() -> None:
    """The symmetry of Tanh–ReLU for a ReLU–Tanh network: as many directions, none of them right."""
    model, inputs = three_layers(nn.ReLU(), nn.Tanh()), (x(4, 4),)
    assert audit(model, inputs).complete
    other = find_symmetry(three_layers(nn.Tanh(), nn.ReLU()), inputs)
    found = audit(model, inputs, symmetry=other)
    assert (found.nullity, found.explained, found.unexplained) == (6, 0, 6)
    assert set(found.refuted) == {"mlp.2"} and found.refuted["mlp.2"] > 1e-3
    assert not found.complete and "mlp.2 is refuted" in str(found)
    assert found.residual < 1e-12  # of what counts as explained: nothing


def test_what_is_right_of_a_wrong_group_still_counts() -> None:
    """All matrices are claimed, diagonal ones are right: these count, the claim is refuted."""
    model, inputs = stacked(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (x(4, 4),)
    symmetry = find_symmetry(model, inputs)
    wrong = replace(
        symmetry, spaces={"mlp": replace(symmetry.spaces["mlp"], group=GeneralLinear(6))}
    )
    found = audit(model, inputs, symmetry=wrong)
    assert (found.nullity, found.explained, found.unexplained) == (6, 6, 0)
    assert set(found.refuted) == {"mlp"} and not found.complete
    assert audit(model, inputs, symmetry=symmetry).refuted == {}


def test_a_parameter_that_is_falsely_declared_dead_is_refuted() -> None:
    model, inputs = stacked(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (x(4, 4),)
    found = audit(model, inputs, symmetry=replace(NOTHING, dead=("2.bias",)))
    assert set(found.refuted) == {"dead parameters"} and found.explained == 0


# -- what is unexplained has a name --------------------------------------------------------------


def suspects_of(model: nn.Module, claims: ParameterSymmetry = NOTHING) -> dict[str, int]:
    found = audit(model, (x(4, 4),), symmetry=claims)
    return {str(suspect).partition(" × ")[2]: suspect.count for suspect in found.suspects}


def test_a_missing_scale_is_named_row_by_row() -> None:
    assert suspects_of(stacked(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))) == {
        "a scale of one row of 0.weight with a scale of one entry of 0.bias "
        "with a scale of one column of 2.weight": 6
    }


def test_a_missing_change_of_basis_is_named() -> None:
    model = stacked(nn.Linear(4, 2, bias=False), nn.Linear(2, 5, bias=False), nn.Tanh())
    found = suspects_of(model)
    assert sum(found.values()) == 4
    assert all("row" in text and "column" in text for text in found), found


def test_a_missing_shift_is_named_by_its_axis() -> None:
    torch.manual_seed(0)
    model, inputs = randomise(Block()), (x(5, 9),)
    symmetry = find_symmetry(model, inputs)
    rest = tuple(s for s in symmetry.shifts if s.dimension != 9)
    found = audit(model, inputs, symmetry=replace(symmetry, shifts=rest))
    assert [str(s) for s in found.suspects] == ["9 × a shift of one column of embed.weight"]
    assert found.where == pytest.approx({n: float(n == "embed.weight") for n in found.where})


# -- suspects that further inputs refute ---------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "bias"), [(nn.ReLU(), 4.0), (nn.Tanh(), 25.0), (nn.GELU(), -15.0)]
)
def test_units_at_the_end_of_their_range_are_not_taken_for_flat(
    activation: nn.Module, bias: float
) -> None:
    model = stacked(nn.Linear(4, 6), activation, nn.Linear(6, 3))
    model[0].bias.data[:2] = bias
    found = audit(model, (x(4, 4),))
    assert found.complete and found.dead == 0, found
    assert found.nullity == (6 if isinstance(activation, nn.ReLU) else 0)


def test_a_unit_that_no_input_opens_is_dead() -> None:
    """Negative control: the hunt ends, and what it did not find is counted."""
    model = stacked(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].bias.data[0] = -1e6
    found = audit(model, (x(4, 4),))
    assert found.dead == 8 and found.undeclared == 7 and found.complete


# -- numbers that mean nothing -------------------------------------------------------------------


def test_weights_that_are_no_numbers_are_refused_by_name() -> None:
    model = stacked(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    symmetry = find_symmetry(model, (x(4, 4),))
    model[2].weight.data[0, 1] = float("nan")
    with pytest.raises(NotFinite, match=r"1 of 18 entries of '2.weight' are NaN.*Load weights"):
        audit(model, (x(4, 4),), symmetry=symmetry)


class Acted(nn.Module):
    """Two layers with anything between."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 6), nn.Linear(6, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def audited(function: Any) -> Audit:
    torch.manual_seed(0)
    return audit(randomise(Acted(function)), (x(4, 4),))


def test_outputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NotFinite, match=r"random inputs the outputs.*logarithm"):
        audited(lambda h: torch.log(-h * h))


def test_a_state_that_is_written_while_it_is_read_has_no_derivative() -> None:
    def stepped(h: Tensor) -> Tensor:
        state = h.exp()
        read = state * h
        state += 1  # which the backward pass needs as it was
        return read * state

    with pytest.raises(NotDifferentiable, match=r"Acted.*inplace operation.*use_cache=False"):
        audited(stepped)
    assert audited(lambda h: h.exp() * h).complete  # the control


class Squared(torch.autograd.Function):
    """A square that says it is the identity."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h * h

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope


def without_gradients(h: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.tanh(h)


def in_place_on_data(h: Tensor) -> Tensor:
    h = h.clone()
    h.data.mul_(2.0)
    return torch.tanh(h / 2)


WRONG = {
    "hand-written": Squared.apply,
    "hand-written inside": lambda h: torch.tanh(h) + Squared.apply(h),
}
CUT = {  # what autograd is told not to follow, and the same function without that
    "half detached": (
        lambda h: torch.tanh(h) * torch.tanh(h).detach(), lambda h: torch.tanh(h) ** 2
    ),
    "without gradients": (without_gradients, torch.tanh),
    "data": (lambda h: torch.tanh(h.data), torch.tanh),
    "in place on data": (in_place_on_data, torch.tanh),
    "a step without a derivative": (
        lambda h: torch.heaviside(h.detach(), torch.zeros((), dtype=h.dtype)) * h, torch.relu
    ),
    "detached in place": (lambda h: torch.tanh(h.clone().detach_()), torch.tanh),
}  # fmt: skip
JUMPS = {
    "straight through": lambda h: h + (torch.round(h) - h).detach(),
    "hardshrink": lambda h: nn.functional.hardshrink(h),
    "a step": lambda h: (h > 0).to(h.dtype),
    "rounded": lambda h: torch.round(h),
}
SMOOTH = {
    "kinks": torch.relu,
    "tanh": torch.tanh,
    "absolute": torch.abs,
    "softshrink": nn.functional.softshrink,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_derivative_that_is_not_the_functions_certifies_nothing(name: str) -> None:
    found = audited(WRONG[name])
    assert found.derivative.wrong and not found.complete
    assert "autograd's derivative is not the function's" in str(found)


@pytest.mark.parametrize("name", CUT)
def test_what_is_computed_counts_and_not_what_is_trained(name: str) -> None:
    found, expected = map(audited, CUT[name])
    assert (found.nullity, found.explained) == (expected.nullity, expected.explained)
    assert found.complete and expected.complete
    assert found.derivative.error < 1e-6


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_are_said_where_something_seems_flat(name: str) -> None:
    found = audited(JUMPS[name])
    assert found.derivative.jumps and not found.complete and "jump" in str(found)


@pytest.mark.parametrize("name", SMOOTH)
def test_kinks_are_no_jumps(name: str) -> None:
    torch.manual_seed(0)
    model = randomise(Acted(SMOOTH[name]))
    for claims in (None, replace(NOTHING)):
        found = audit(model, (x(4, 4),), symmetry=claims)
        assert found.derivative.error < 1e-6 and not found.derivative.jumps, found.derivative


class Constant(nn.Module):
    """Parameters that the outputs do not depend on, with and without a path for autograd."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.layer, self.used = nn.Linear(3, 1), used

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.layer(x) if self.used else x + 0 * self.layer.weight.sum().detach()


@pytest.mark.parametrize("used", [True, False])
def test_a_function_of_the_inputs_alone_has_dead_parameters_only(used: bool) -> None:
    found = audit(Constant(used), (x(2, 3),), symmetry=NOTHING)
    assert (found.nullity, found.dead, found.undeclared) == (4, 4, 4)
    assert not found.derivative.wrong and not found.derivative.jumps


# -- the algebra, against LAPACK -----------------------------------------------------------------


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=_WIDE)


def test_a_span_counts_dependent_directions_once() -> None:
    rows = drawn(300, 400)
    rows[:140, :240] = 0.0  # of one layer
    rows = torch.cat([rows, rows[:50] * 2 - rows[200:250], torch.zeros(3, 400)])
    basis = orthogonal.span(rows)
    assert basis.shape == (400, 300) and int(torch.linalg.matrix_rank(rows)) == 300
    assert torch.allclose(basis.T @ basis, torch.eye(300, dtype=_WIDE), atol=1e-13)
    assert float((rows - (rows @ basis) @ basis.T).abs().max()) < 1e-12
    assert not bool(basis[:240, :128].any())  # the first panel stays in its layer
    assert orthogonal.span(torch.zeros(3, 7)).shape == (7, 0)


@pytest.mark.parametrize("columns", [1, 128, 300, 700])
def test_elimination_is_that_of_lapack(columns: int) -> None:
    matrix = drawn(columns + 90, columns)
    packed = matrix.clone()
    order = elimination.eliminate(packed)
    assert sorted(order.tolist()) == list(range(len(matrix)))
    lower = packed.tril(-1)
    lower.diagonal().fill_(1.0)
    assert float(lower.abs().max()) <= 1.0  # pivots are the largest of their column
    assert torch.allclose(lower @ packed[:columns].triu(), matrix[order], atol=1e-10)
    expected, pivots, _ = torch.linalg.lu_factor_ex(matrix)
    assert torch.allclose(packed, expected, atol=1e-8)


def test_factors_solve_and_know_what_they_lost() -> None:
    matrix = drawn(330, 300)
    factors = elimination.factored(matrix.clone())
    chosen = factors.image(torch.eye(300, dtype=_WIDE)).T
    assert all(float((matrix - row).abs().amax(dim=1).min()) < 1e-11 for row in chosen)
    x = drawn(5, 300, seed=1)
    assert torch.allclose(factors.solved(x) @ chosen.T, x, atol=1e-8)
    assert torch.allclose(factors.solved_transposed(x) @ chosen, x, atol=1e-8)
    assert factors.error < 1e-10
    exact = (factors.packed.tril(-1) + torch.eye(300, dtype=_WIDE)) @ factors.packed.triu()
    closest = torch.stack([matrix[int((matrix - row).abs().sum(1).argmin())] for row in exact])
    lost = float(torch.linalg.matrix_norm(closest - exact, 2))
    assert lost / 2 < factors.error < 10 * lost
    # Wilkinson's worst case, in which entries double with every column
    grown = torch.eye(60, dtype=_WIDE) - torch.ones(60, 60, dtype=_WIDE).tril(-1)
    grown[:, -1] = drawn(60)
    assert elimination.factored(grown).error > 1e-3


def smallest_of(matrix: Tensor, basis: Tensor, ceiling: float) -> tuple[Tensor, Tensor]:
    """What is small beside a basis, by elimination of the coordinates that it does not choose."""
    kept = elimination.eliminate(basis.clone())[basis.shape[1] :].sort().values

    def lift(rows: Tensor) -> Tensor:
        found = rows.new_zeros(len(rows), len(basis))
        found[:, kept] = rows
        return found - (found @ basis) @ basis.T

    factors = elimination.factored(matrix[:, kept].contiguous())
    return elimination.smallest(factors, lift, kept, ceiling)


@pytest.mark.parametrize("deficient", [0, 1, 20, 60])
@pytest.mark.parametrize("claimed", [0, 40])
def test_small_values_are_those_of_the_svd(deficient: int, claimed: int) -> None:
    directions = orthogonal.span(drawn(claimed + deficient + 1, 300, seed=9))
    basis, small = directions[:, :claimed], directions[:, -1:]
    flat = directions[:, : claimed + deficient]
    matrix = drawn(420, 300, seed=deficient)
    matrix -= (matrix @ flat) @ flat.T + (1 - 1e-6) * (matrix @ small) @ small.T
    values, found = smallest_of(matrix, basis, 1e-9)
    expected = torch.linalg.svdvals(matrix).flip(0)[claimed:]
    assert int((values < 1e-9).sum()) == int((expected < 1e-9).sum()) >= deficient
    null = found[values < 1e-9]
    assert float((matrix @ null.T).abs().max() if null.numel() else 0.0) < 1e-10
    assert float((null @ basis).abs().max() if null.numel() and claimed else 0.0) < 1e-12
    assert float(values[-1]) > 1e-9
    lowest, bound = float(values[len(null)]), float(expected[len(null)])
    assert bound / 100 < lowest < 1.01 * bound  # the chosen rows see no more than all rows


def test_no_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is noticed between steps, and each of these is bounded whatever the size."""
    for module in (elimination, orthogonal):
        monkeypatch.setattr(module, "STEP", 1e8)
    steps: list[float] = []
    matrix = drawn(1400, 1200)
    orthogonal.span(matrix[:400], steps.append)
    spanned = len(steps)
    factors = elimination.factored(matrix, steps.append)
    eliminated = len(steps)
    every = torch.arange(1200)
    elimination.smallest(factors, lambda x: x, every, 0.0, advance=steps.append)
    assert spanned > 5 and eliminated > 20 + spanned and len(steps) > eliminated
    assert max(steps) <= 1e8


@pytest.mark.parametrize("when", [0.0, 0.5, 1.0])
def test_an_interrupt_ends_an_audit(monkeypatch: pytest.MonkeyPatch, when: float) -> None:
    """It is sent after a step, and not after a time: Python loses one that a destructor hears."""
    model, inputs = build(next(row for row in TABLE if row.name == "GPT-2 untied"))
    symmetry = derived(next(row for row in TABLE if row.name == "GPT-2 untied"))
    done, planned_steps = 0, 0

    def counted(meter: Meter, spent: float, seconds: Any = Meter.seconds) -> None:
        nonlocal done
        done += 1
        if done == planned_steps:
            signal.raise_signal(signal.SIGINT)
        seconds(meter, spent)

    monkeypatch.setattr(Meter, "seconds", counted)
    expected = audit(model, inputs, symmetry=symmetry)
    steps, done = done, 0
    planned_steps = 1 + int(when * (steps - 1))
    with pytest.raises(KeyboardInterrupt):
        audit(model, inputs, symmetry=symmetry)
    assert steps > 50 and done == planned_steps
    planned_steps = 0
    assert str(audit(model, inputs, symmetry=symmetry)) == str(expected)  # nothing stays half done


def test_rows_are_a_quarter_of_the_outputs_at_most() -> None:
    assert planned(1000, 40).each <= 10 and planned(1000, 40).rows >= 1100 + 32
    assert planned(10, 10_000).calls == 128
    assert planned(1000, 40, samples=7).calls == 7 and planned(1000, 40, samples=7).each == 40


def test_many_inputs_tell_more_than_many_rows_of_a_few() -> None:
    """A call that gives one vector tells of one: fewer calls than its entries leave suspects."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 3), nn.Tanh(), nn.Linear(3, 64))
    enough, few = (audit(model, (torch.randn(1, 40),), samples=n) for n in (None, 32))
    assert enough.unexplained == few.unexplained == enough.hunted == 0
    assert few.hunted > 0


def test_a_flat_direction_of_suspects_and_dead_columns_together_is_not_hunted_down() -> None:
    """A space left out behind saturated units: its direction joins columns that look dead."""
    torch.manual_seed(0)
    sizes = (4, 9, 7, 6, 3)
    layers: list[nn.Module] = []
    for n, m in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(n, m), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter.shape[-1]
            parameter.copy_(4 * torch.randn(parameter.shape, dtype=torch.float64) / fan**0.5)
    x = (torch.randn(5, 4, dtype=torch.float64),)
    symmetry = find_symmetry(model, x)
    whole = audit(model, x, symmetry=symmetry)
    less = symmetry.restrict(spaces=[s for s in symmetry.spaces if s != "mlp"])
    found = audit(model, x, symmetry=less)
    assert found.nullity == whole.nullity  # what is claimed does not change what is flat
    assert found.unexplained > whole.unexplained + 6 and not found.complete


def _with_early_dependence(seed: int) -> tuple[torch.Tensor, int]:
    """Rows whose early columns are combinations of the ones before, and how many of them."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(120, 60, generator=generator, dtype=torch.float64)
    dependent = [3, 4, 9, 15, 16, 17, 22, 30, 31, 40, 44, 52, 58]
    for k in dependent:
        mix = torch.randn(k, generator=generator, dtype=torch.float64)
        matrix[:, k] = matrix[:, :k] @ mix / k**0.5
    return matrix / torch.linalg.vector_norm(matrix, dim=0), len(dependent)


def _null_directions(matrix: torch.Tensor) -> int:
    factors = elimination.factored(matrix.clone())
    values, found = elimination.smallest(
        factors, lambda x: x, torch.arange(matrix.shape[1]), ceiling=1e-9
    )
    small = values < 1e-9
    assert (matrix @ found[small].T).abs().max() < 1e-9
    return int(small.sum())


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_depend_on_earlier_ones_are_all_found(seed: int) -> None:
    matrix, count = _with_early_dependence(seed)
    assert int((torch.linalg.svdvals(matrix) < 1e-12).sum()) == count
    assert _null_directions(matrix) == count


def _of_cubes(seed: int) -> torch.Tensor:
    """The Jacobian of a small network of cubes: rows of every size, and few that count."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = drawn(80, 2) * drawn(80, 1).exp()
    weights = drawn(6, 2) * 0.3, drawn(6).sign(), drawn(2, 2) * 0.3, drawn(2)

    def network(*w: torch.Tensor) -> torch.Tensor:
        cubes = ((x @ w[0].T + w[1]) ** 3).unflatten(-1, (2, 3)).sum(-1)
        return (torch.relu(cubes) @ w[2].T + w[3]) ** 3

    found = torch.autograd.functional.jacobian(network, weights)
    rows = torch.cat([part.reshape(160, -1) for part in found], 1)
    lengths = torch.linalg.vector_norm(rows, dim=0)
    return rows[:, lengths > 0] / lengths[lengths > 0]


def _counted(seeds: range) -> list[tuple[int, int]]:
    """(true dimension of the null space, what is found), where the gap is clear."""
    found = []
    for seed in seeds:
        matrix = _of_cubes(seed)
        values = torch.linalg.svdvals(matrix)
        count = int((values < 1e-13).sum())
        if count == int((values < 1e-9).sum()):
            factors = elimination.factored(matrix.clone())
            assert factors.error < 1e-12
            small, _ = elimination.smallest(
                factors, lambda x: x, torch.arange(matrix.shape[1]), ceiling=1e-9
            )
            found.append((count, int((small < 1e-11).sum())))
    return found


def test_null_spaces_of_networks_of_cubes_are_found_whole() -> None:
    found = _counted(range(60))
    assert len(found) > 20
    assert all(true == count for true, count in found)


def test_where_dependent_columns_do_not_wait_some_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(matrix: torch.Tensor, advance: orthogonal.Advance) -> tuple[Tensor, Tensor]:
        return elimination.eliminate(matrix, advance), torch.arange(matrix.shape[1])

    monkeypatch.setattr(elimination, "_revealed", plain)
    assert any(count < true for true, count in _counted(range(60)))


def _steep(seed: int) -> tuple[torch.Tensor, int]:
    """Columns over six decades of which many are sums of others, and how many of these."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (-6 * torch.rand(60, generator=generator, dtype=_WIDE))
    matrix = torch.randn(80, 60, generator=generator, dtype=_WIDE) * sizes
    for k in torch.randperm(60, generator=generator)[:25].tolist():
        others = torch.randint(60, (3,), generator=generator)
        matrix[:, k] = matrix[:, others].sum(1) * (1 - 2 * (k % 2))
    values = torch.linalg.svdvals(matrix)
    return matrix, int((values < 1e-13 * values[0]).sum())


@pytest.mark.parametrize("seed", range(8))
def test_what_elimination_tells_is_not_iterated_for(seed: int) -> None:
    matrix, count = _steep(seed)
    factors = elimination.factored(matrix.clone())
    every, size = torch.arange(60), float(torch.linalg.matrix_norm(matrix, 2))
    assert 60 - factors.rank == count > 5
    values, found = elimination.smallest(factors, lambda x: x, every, 1e-9)
    null = found[:count]
    assert float((matrix @ null.T).abs().max()) < 1e-13 * size
    assert torch.allclose(found @ found.T, torch.eye(len(found), dtype=_WIDE), atol=1e-12)
    beside = torch.linalg.qr(null.T, mode="complete").Q[:, count:]
    chosen = factors.image(torch.eye(60, dtype=_WIDE)).T[: factors.rank]
    dense = torch.linalg.svdvals(chosen @ beside).flip(0)
    least = dense[: max(1, (len(values) - count) // 2)]  # the last of a block are bounds
    assert torch.allclose(values[count:][: len(least)], least, rtol=1e-2)
    every_row = torch.linalg.svdvals(matrix).flip(0)[count:]
    assert bool((values[count:] <= 1.01 * every_row[: len(values) - count]).all())


def test_null_directions_that_are_almost_the_same_are_parted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worst() -> float:
        found = [0.0]
        for matrix in map(_of_cubes, range(240, 280)):
            factors = elimination.factored(matrix.clone())
            image = matrix @ factors.null().T / torch.linalg.matrix_norm(matrix, 2)
            found += image.flatten().abs().tolist()
        return max(found)

    assert worst() < 1e-15
    monkeypatch.setattr(
        elimination.Factors, "_corrected", lambda self, null: elimination._orthonormal(null)
    )
    assert worst() > 1e-14
