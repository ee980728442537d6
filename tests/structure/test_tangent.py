"""The tangent operator: its adjoint, the projection, and moments, against dense matrices."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, act, find_symmetry, infinitesimal, moment_map, tangent
from paramsym.algebra import ComplexScaling, GeneralLinear, Orthogonal, PositiveScaling, Wreath
from paramsym.structure.axes import parse_axis
from paramsym.structure.projection import NotConverged
from paramsym.structure.space import Space
from paramsym.structure.tangent import TangentOperator, as_real
from tests.tracing.zoo import ZOO, build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
Vectors = dict[str, torch.Tensor]


def operator_of(name: str) -> TangentOperator:
    """The operator of a network of the zoo, in float64."""
    model, _ = build(name)
    symmetry = derived(name)
    return tangent(symmetry, {n: wide(p) for n, p in model.state_dict().items()})


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def drawn(operator: TangentOperator, seed: int = 0) -> Vectors:
    """Random entries for every parameter and floating buffer."""
    generator = torch.Generator().manual_seed(seed)
    params = operator.params
    return {n: torch.randn(params[n].shape, generator=generator, dtype=params[n].dtype)
            for n in operator.names}  # fmt: skip


def coordinates_of(operator: TangentOperator, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(operator.shape[0], generator=generator, dtype=torch.float64)


def flat(operator: TangentOperator, vector: Vectors) -> torch.Tensor:
    """In the columns of `dense()`, zero where a name is missing."""
    entries = [vector.get(n, torch.zeros_like(operator.params[n])) for n in operator.names]
    return torch.cat([as_real(x).reshape(-1) for x in entries])


def disagreement(operator: TangentOperator, paired: torch.Tensor, covector: Vectors) -> float:
    """|⟨rmatvec ξ, c⟩ − ⟨ξ, matvec c⟩| for one draw of c, relative to ‖ξ‖ ‖matvec c‖."""
    coordinates = coordinates_of(operator)
    velocity = flat(operator, operator.matvec(coordinates))
    other = flat(operator, covector)
    gap = abs(float(paired @ coordinates) - float(other @ velocity))
    return gap / (float(velocity.norm() * other.norm()) or 1.0)


def reverse_pass(operator: TangentOperator, covector: Vectors) -> torch.Tensor:
    """⟨ξ, X_j θ⟩ by one reverse pass through `act` at the identity, the twin of `rmatvec`."""
    if not operator.blocks:
        return operator.zero
    moved, pull = torch.func.vjp(operator._curve(operator.names), operator.zero)[:2]
    return pull({n: covector[n].to(x.dtype) for n, x in moved.items()})[0]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((one - other).abs().max() / other.abs().max()) if len(other) else 0.0


# -- the adjoint -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_rmatvec_is_the_adjoint_of_matvec(name: str) -> None:
    operator = operator_of(name)
    covector = drawn(operator)
    paired = operator.rmatvec(covector)
    assert paired.shape == (operator.shape[0],) and paired.dtype == torch.float64
    assert disagreement(operator, paired, covector) < 1e-13
    assert apart(paired, reverse_pass(operator, covector)) < 1e-12
    own = {n: operator.params[n] for n in operator.names}
    assert apart(operator.rmatvec(own), reverse_pass(operator, own)) < 1e-12
    coordinates = coordinates_of(operator)
    velocity, expected = operator.matvec(coordinates), Vectors()
    if operator.blocks:  # the derivative of the exponential itself
        expected = infinitesimal(operator.symmetry, operator.algebra(coordinates), operator.params)
        expected = {n: v for n, v in expected.items() if n not in operator.symmetry.ties}
        torch.testing.assert_close(velocity, expected, rtol=1e-12, atol=1e-12)
        # negative control: one entry of the covector is another number
        first = next(n for n, v in velocity.items() if v.any())
        wrong = {**covector, first: covector[first] + velocity[first].sign()}
        assert disagreement(operator, paired, wrong) > 1e-4
        assert apart(operator.rmatvec(wrong), reverse_pass(operator, covector)) > 1e-6


def turned() -> TangentOperator:
    """Complex parameters, copies, frames with offsets, powers, shifts and ties, by hand."""
    spaces = {
        "h": Space("h", PositiveScaling(3)),
        "v": Space("v", GeneralLinear(4)),
        "z": Space("z", ComplexScaling(2), over=("h",)),
        "w": Space("w", Wreath(Orthogonal(2), 2)),
    }
    types = {"a": "v, 3", "b": "2, v*", "read": "2, v[gain + 1]*", "gain": "4", "var": "h^2",
             "q": "(h z), 5", "k": "(h z*), 5", "turn": "w, 3"}  # fmt: skip
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    symmetry = ParameterSymmetry(spaces, signature, ties={"again": "a"}, buffers=("var",))
    generator = torch.Generator().manual_seed(2)
    params = {n: torch.randn(symmetry.shape(n), generator=generator).double() for n in types}
    params["a"] = torch.complex(params["a"], params["a"].roll(1, 0))
    params["again"], params["count"] = params["a"], torch.tensor(3)
    return tangent(symmetry, params)


def test_dense_rows_pair_as_rmatvec_says() -> None:
    for operator in (turned(), operator_of("Gemma"), operator_of("convolutions")):
        covector = drawn(operator)
        expected = operator.dense() @ flat(operator, covector)
        found = operator.rmatvec(covector)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        one = next(n for n in operator.names if n in operator.matvec(coordinates_of(operator)))
        alone = operator.rmatvec({one: covector[one]})  # missing names count as zero
        columns = operator.dense()[:, operator.columns[one]]
        torch.testing.assert_close(alone, columns @ as_real(covector[one]).reshape(-1))
        assert not torch.allclose(alone, found)


def test_every_kind_of_axis_pairs_as_the_reverse_pass_says() -> None:
    """Complex tensors, copies, frames with offsets, powers and wreath products."""
    operator = turned()
    covector = drawn(operator)
    found = operator.rmatvec(covector)
    assert apart(found, reverse_pass(operator, covector)) < 1e-14
    # negative control: each axis has its own sign, power and frame
    for name, text in {"a": "v*, 3", "read": "2, v*", "var": "h", "k": "(h z), 5"}.items():
        types = {**operator.symmetry.signature, name: tuple(map(parse_axis, text.split(", ")))}
        other = dataclasses.replace(operator.symmetry, signature=types)
        assert apart(tangent(other, operator.params).rmatvec(covector), found) > 1e-3


def test_pairings_are_batched_by_vmap() -> None:
    operator = operator_of("GPT-2")
    drawings = [drawn(operator, seed) for seed in range(3)]
    batch = {n: torch.stack([d[n] for d in drawings]) for n in operator.names}
    found = torch.func.vmap(operator.rmatvec)(batch)
    torch.testing.assert_close(found, torch.stack([operator.rmatvec(d) for d in drawings]))


def test_ties_count_once_under_any_name() -> None:
    operator = turned()
    covector = drawn(operator)
    expected = operator.rmatvec(covector)
    both = {**covector, "again": torch.full_like(covector["a"], 7.0), "count": torch.tensor(1)}
    assert torch.equal(operator.rmatvec(both), expected)
    other = {"again" if n == "a" else n: x for n, x in covector.items()}
    assert torch.equal(operator.rmatvec(other), expected)
    assert not torch.allclose(operator.rmatvec({**covector, "a": 2 * covector["a"]}), expected)


def test_the_pairing_can_be_differentiated_in_the_parameters() -> None:
    """Along a velocity of the parameters, ⟨θ, Xθ⟩ changes by ⟨v, Xθ⟩ + ⟨θ, Xv⟩ for linear X."""
    symmetry = ParameterSymmetry({"v": Space("v", GeneralLinear(3))}, {"w": (parse_axis("v"),)})
    w = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)

    def paired(x: torch.Tensor) -> torch.Tensor:
        return tangent(symmetry, {"w": x}).rmatvec({"w": x}).reshape(3, 3)

    v = torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)
    derivative = torch.func.jvp(paired, (w,), (v,))[1]
    torch.testing.assert_close(derivative, torch.outer(v, w) + torch.outer(w, v))


@pytest.mark.parametrize("method", ["rmatvec", "project"])
def test_what_does_not_fit_is_refused(method: str) -> None:
    operator = turned()
    call = getattr(operator, method)
    with pytest.raises(ValueError, match=rf"{method}\(\{{'nobody'.*none of the 10.*state_dict"):
        call({"nobody": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"shape \(4,\) came.*shape \(2, 4\).*unflattened"):
        call({"b": torch.zeros(4)})
    with pytest.raises(ValueError, match="complex numbers.*real parameter.*real part"):
        call({"b": torch.zeros(2, 4, dtype=torch.complex128)})


# -- the projection ----------------------------------------------------------------------------


def projected(operator: TangentOperator, vector: Vectors) -> torch.Tensor:
    """By the singular vectors of the dense matrix."""
    _, values, rows = torch.linalg.svd(operator.dense(), full_matrices=False)
    basis = rows[values > 1e-10 * values[0]]
    return basis.mT @ (basis @ flat(operator, vector))


@pytest.mark.parametrize("name", ["MLP, ReLU", "MLP, identity", "convolutions", "LSTM", "GPT-2",
                                  "Llama", "ViT", "by hand"])  # fmt: skip
def test_projection_is_the_dense_one(name: str) -> None:
    """Whatever the rank: the tied scales, Llama's bases and dead shifts are dependent."""
    operator = turned() if name == "by hand" else operator_of(name)
    vector, trace = drawn(operator), list[tuple[int, float]]()
    found = operator.project(vector, progress=lambda step, error: trace.append((step, error)))
    given = flat(operator, vector)
    error = (flat(operator, found) - projected(operator, vector)).norm() / given.norm()
    assert error < 1e-8 and set(found) <= set(operator.names)
    assert [step for step, _ in trace] == list(range(1, len(trace) + 1)) and trace[-1][1] <= 1e-8
    assert (flat(operator, found) - given).norm() > 0.1 * given.norm()  # something was taken away
    again = operator.project(found)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-7)


def test_projection_of_a_gradient_is_rounding_and_of_a_velocity_itself() -> None:
    model, inputs = build("MLP, ReLU")
    model = model.double()
    symmetry = find_symmetry(model, inputs)
    operator = tangent(symmetry, model.state_dict())
    value = model(inputs[0].double()).sin().sum()
    gradients = torch.autograd.grad(value, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    assert flat(operator, operator.project(named)).norm() < 1e-14 * flat(operator, named).norm()
    velocity = operator.matvec(coordinates_of(operator))
    torch.testing.assert_close(operator.project(velocity), velocity, rtol=0, atol=1e-8)


def test_parameters_of_a_model_that_trains_are_taken_as_they_are() -> None:
    model, inputs = build("MLP, ReLU")
    symmetry = find_symmetry(model.double(), (inputs[0].double(),))
    own = tangent(symmetry, dict(model.named_parameters()))
    plain = tangent(symmetry, model.state_dict())
    vector = drawn(plain)
    assert own.rmatvec(vector).requires_grad  # a moment can be trained on
    for n, x in own.project(vector).items():
        assert not x.requires_grad
        torch.testing.assert_close(x, plain.project(vector)[n])


def test_what_has_no_generators_has_no_velocities() -> None:
    operator = operator_of("MLP, tanh")
    assert operator.project(drawn(operator)) == {} == operator.matvec(torch.zeros(0).double())
    assert operator.rmatvec(drawn(operator)).shape == (0,)


def test_too_few_steps_are_an_error() -> None:
    operator = operator_of("MLP, identity")
    with pytest.raises(NotConverged, match="after 3 steps.*tolerance was expected.*more steps"):
        operator.project(drawn(operator), steps=3)


# -- moments -----------------------------------------------------------------------------------


def test_moments_are_derivatives_of_half_the_squared_norm() -> None:
    operator = turned()
    symmetry, params = operator.symmetry, dict(operator.params)
    moments = moment_map(symmetry, params)
    assert {n: tuple(m.shape) for n, m in moments.items()} == {
        "h": (3,), "v": (4, 4), "z": (3, 1), "w": (2,)
    }  # fmt: skip
    coordinates, step = coordinates_of(operator), 1e-5
    algebra = operator.algebra(coordinates)

    def energy(time: float) -> float:
        moved = act(symmetry, algebra.exp(time), params)
        held = {"again", "count", "var"}
        return sum(float(as_real(p).square().sum()) for n, p in moved.items() if n not in held) / 2

    numeric = (energy(step) - energy(-step)) / (2 * step)
    own = {n: p for n, p in params.items() if n not in symmetry.buffers}
    assert math.isclose(numeric, float(operator.rmatvec(own) @ coordinates), rel_tol=1e-8)
    for block, part in operator.split(operator.rmatvec(own)):
        group = None if block.is_shift else symmetry.spaces[block.name].group
        made = part if group is None else group.tangent(part)
        parts = [x for x in made if isinstance(x, torch.Tensor)] if group is not None else [part]
        torch.testing.assert_close(moments[block.name], parts[0] if parts else part)
    with_buffers = operator.rmatvec(params) @ coordinates
    assert not math.isclose(numeric, float(with_buffers), rel_tol=1e-2)


def test_moments_of_two_layers_are_the_balance_of_their_gram_matrices() -> None:
    """W₁ W₁ᵀ − W₂ᵀ W₂, which gradient flow conserves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5, bias=False)).double()
    symmetry = find_symmetry(model, (torch.randn(2, 4).double(),))
    first, second = (layer.weight.detach() for layer in model)
    (name,) = symmetry.spaces
    found = moment_map(symmetry, model.state_dict())[name]
    torch.testing.assert_close(found, first @ first.T - second.T @ second)
    other = dataclasses.replace(symmetry, spaces={name: Space(name, Orthogonal(3))})
    assert moment_map(other, model.state_dict())[name].abs().max() < 1e-14


def test_moments_name_every_family_of_the_zoo() -> None:
    operator = operator_of("GPT-2")
    moments = moment_map(operator.symmetry, operator.params)
    assert list(moments) == [block.name for block in operator.blocks]


def test_moments_in_half_precision_are_computed_in_single() -> None:
    """Of the stored numbers, with what a model adds to them as well."""
    operator = turned()
    real = {n: p.real if p.is_complex() else p for n, p in operator.params.items()}
    symmetry = dataclasses.replace(operator.symmetry, offsets={"b": 1.0})
    half = {n: p.bfloat16() if p.is_floating_point() else p for n, p in real.items()}
    wide_again = {n: wide(p) for n, p in half.items()}
    found, expected = moment_map(symmetry, half), moment_map(symmetry, wide_again)
    for name, moment in expected.items():
        assert found[name].dtype.to_real() == torch.float32
        torch.testing.assert_close(found[name], moment.to(found[name]), rtol=1e-5, atol=1e-5)
    plain = moment_map(operator.symmetry, wide_again)
    assert not torch.allclose(plain["v"], expected["v"], rtol=1e-2)


@pytest.mark.parametrize("name", ["MLP, identity", "convolutions", "GPT-2", "MLP, ReLU"])
def test_coordinates_need_no_parameters(name: str) -> None:
    """`symmetry.algebra` and `AlgebraElement.coordinates` undo each other, in `tangent`'s order."""
    operator = operator_of(name)
    symmetry, vector = operator.symmetry, coordinates_of(operator)
    made = symmetry.algebra(vector)
    torch.testing.assert_close(made.coordinates(), vector)
    moved = infinitesimal(symmetry, made, operator.params)
    for key, velocity in operator.matvec(vector).items():
        torch.testing.assert_close(moved.get(key, torch.zeros_like(velocity)), velocity)
    assert not torch.allclose(symmetry.algebra(2 * vector).coordinates(), vector)
    with pytest.raises(ValueError, match=rf"{len(vector)} real numbers were expected"):
        symmetry.algebra(vector[1:])
