"""The measured table of the design, the proof of every derived symmetry, and its controls."""

import dataclasses
import logging

import pytest
import torch
from torch import nn

from paramsym.checking.audit import AuditTooLarge, audit, audit_cost
from paramsym.checking.find import find_symmetry
from paramsym.checking.verify import assert_invariant, verify
from paramsym.recording.precision import converted, functional, lifted
from paramsym.structure.orbit import orbit_dimension
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent
from tests.tracing.networks import TABLE, Row, build, derived

_WIDE = torch.float64

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.fixture(params=TABLE, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    logging.disable(logging.ERROR)
    return request.param


@pytest.fixture
def perceptron() -> tuple[nn.Module, tuple[torch.Tensor], ParameterSymmetry]:
    model, inputs = build(TABLE[0])
    return model, inputs, find_symmetry(model, inputs)


# -- the table ---------------------------------------------------------------------------------


def test_network_has_the_size_of_the_table(row: Row) -> None:
    model, _ = build(row)
    assert sum(p.numel() for p in model.parameters()) == row.parameters


def test_nullity_is_the_measured_one_and_is_explained(row: Row) -> None:
    model, inputs = build(row)
    symmetry = derived(row)
    found = audit(model, inputs, symmetry=symmetry, outputs=row.outputs)
    assert found.nullity == row.nullity, found
    assert found.unexplained == row.unexplained, found
    assert found.residual < 1e-12, found
    assert found.gap.ratio > 1e3, found
    assert bool(found.where) == bool(row.unexplained)


def test_orbit_dimension_is_the_nullity(row: Row) -> None:
    model, _ = build(row)
    symmetry = derived(row)
    assert orbit_dimension(symmetry, model.state_dict()) == row.nullity - row.unexplained


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_every_family_leaves_the_function_unchanged(row: Row, dtype: torch.dtype) -> None:
    model, inputs = build(row)
    symmetry = derived(row)
    found = verify(model, symmetry, inputs, outputs=row.outputs, dtype=dtype)
    assert found.error <= (1e-12 if dtype == torch.float64 else 1e-5), found
    assert found.control >= 1e-3, found
    assert not found.unmoved


def test_dropping_a_tensor_from_the_signature_breaks_the_function(row: Row) -> None:
    model, inputs = build(row)
    symmetry = derived(row)
    name = next(n for n, p in model.named_parameters() if p.ndim > 1)
    signature = {n: axes for n, axes in symmetry.signature.items() if n != name}
    wrong = dataclasses.replace(symmetry, signature=signature, shifts=())
    found = verify(model, wrong, inputs, outputs=row.outputs)
    assert max(found.error, found.approximate_error) >= 1e-3, found
    with pytest.raises(AssertionError, match="worst rows"):
        assert_invariant(model, wrong, inputs, outputs=row.outputs)


# -- the tangent operator ----------------------------------------------------------------------


def test_matvec_agrees_with_the_dense_matrix(row: Row) -> None:
    model, _ = build(row)
    operator = tangent(derived(row), converted(model, _WIDE))
    dense = operator.dense()
    assert dense.shape == operator.shape
    coordinates = torch.randn(len(dense), dtype=_WIDE, generator=torch.Generator().manual_seed(1))
    expected = coordinates @ dense
    velocity = operator.matvec(coordinates)
    for name, columns in operator.columns.items():
        given = velocity.get(name, torch.zeros_like(operator.params[name]))
        assert torch.allclose(given.reshape(-1), expected[columns], atol=1e-9), name


# -- what the certificates promise --------------------------------------------------------------


def test_model_comes_back_as_it_was(perceptron) -> None:
    model, inputs, symmetry = perceptron
    model.train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    verify(model, symmetry, inputs)
    audit(model, inputs, symmetry=symmetry)
    assert [m.training for m in model.modules()] == [True, True, False, True, True, True]
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, before[name])
    assert torch.get_default_dtype() == torch.float32


def test_batch_statistics_survive_training_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    inputs = (torch.randn(16, 3, generator=torch.Generator().manual_seed(2)),)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, numbers = torch.get_rng_state(), []
    for _ in range(2):
        params = converted(model, _WIDE)
        wide = (inputs[0].double(),)
        numbers.append(functional(model, params, wide, {}, training=True)[0].detach())
    assert torch.equal(numbers[0], numbers[1])
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_same_seed_gives_the_same_certificate(perceptron) -> None:
    model, inputs, symmetry = perceptron
    first, second = (verify(model, symmetry, inputs) for _ in range(2))
    assert first == second


def test_restricting_to_a_space_checks_only_that_one(perceptron) -> None:
    model, inputs, symmetry = perceptron
    name = next(iter(symmetry.spaces))
    assert [r.name for r in verify(model, symmetry, inputs, spaces=[name]).rows] == [name]
    with pytest.raises(KeyError, match="neither shifts nor spaces"):
        verify(model, symmetry, inputs, spaces=["nowhere"])


def test_cap_leaves_rows_out_but_moves_all_together(perceptron) -> None:
    model, inputs, symmetry = perceptron
    found = verify(model, symmetry, inputs, limit=1)
    assert found.skipped == 1 and found.rows[-1].name == "all together"
    assert "1 more" in str(found)


def test_table_names_space_group_error_and_control(perceptron) -> None:
    model, inputs, symmetry = perceptron
    text = str(verify(model, symmetry, inputs))
    for fragment in ("Monomial(7)", "Monomial(6)", "error", "control", "all together"):
        assert fragment in text


def test_audit_states_its_cost_and_refuses_what_is_too_large(perceptron) -> None:
    model, inputs, _ = perceptron
    cost = audit_cost(model, inputs)
    assert cost.parameters == 111 and cost.bytes > 0 and cost.seconds > 0
    with pytest.raises(AuditTooLarge, match=r"111 parameters.*at most 100.*GB.*limit=111"):
        audit(model, inputs, limit=100)


def test_missing_family_shows_the_tensors_it_lives_in() -> None:
    model, inputs = build(next(r for r in TABLE if r.name == "MLP linear"))
    found = audit(model, inputs, symmetry=ParameterSymmetry({}, {}))
    assert (found.nullity, found.explained, found.unexplained) == (68, 0, 68)
    assert set(found.where) == {name for name, _ in model.named_parameters()}
    assert sum(found.where.values()) == pytest.approx(1.0)
    assert "2.weight" in str(found)


def test_constant_parameters_are_dead_and_counted() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    found = audit(Half(), (torch.randn(4, 3),))
    assert (found.nullity, found.dead, found.unexplained, found.undeclared) == (16, 16, 0, 0)


def test_padding_row_is_not_taken_for_dead() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Tanh(), nn.Linear(3, 2))
    found = audit(model, (torch.tensor([[0, 1, 4]]),))
    assert found.dead == 0


def test_biased_unit_is_not_taken_for_linear() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].bias += 3.0  # almost always open on normal inputs
    found = audit(model, (torch.randn(4, 3),))
    assert (found.nullity, found.unexplained) == (4, 0)


# -- precision ----------------------------------------------------------------------------------


def test_upcasts_are_lifted_to_float64() -> None:
    x = torch.linspace(0, 1, 5, dtype=torch.float64)
    with lifted():
        made = [
            x.float(), x.to(torch.float32), x.to(dtype=torch.bfloat16), x.type(torch.float32),
            torch.softmax(x, -1, dtype=torch.float32), torch.ones(2, dtype=torch.float32),
            torch.arange(3, dtype=torch.float32), torch.zeros(2), x.to("cpu", torch.float16),
        ]  # fmt: skip
    assert all(t.dtype == torch.float64 for t in made)
    assert torch.get_default_dtype() == torch.float32


def test_constants_meet_widened_operands() -> None:
    constant = torch.ones(5, 2)
    with lifted():
        product = torch.ones(3, 5, dtype=torch.float64) @ constant
    assert product.dtype == torch.float64


def test_meta_weights_are_refused_with_the_way_out() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"meta device.*to_empty"):
        converted(model, _WIDE)


class AllComplex(nn.Module):
    """Casts its input to the type of its parameters, none of which is real."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat, generator=generator))
        self.v = nn.Parameter(torch.randn(3, dtype=torch.cfloat, generator=generator))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return ((h.to(torch.cfloat) @ self.w) * self.v).abs()


def test_a_network_without_real_parameters_is_run_in_double_precision() -> None:
    found = audit(AllComplex(), torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    assert found.parameters == 24 and not found.refuted and found.gap.below < 1e-12
