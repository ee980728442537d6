"""Directions at rest leave every buffer where it is, and gradients of parameters pair to zero.

The twin is the null space of the dense velocities of all buffers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, Shift, Space, find_symmetry, tangent
from paramsym.algebra import GeneralLinear, Permutation, PositiveScaling
from paramsym.recording.precision import converted_inputs, functional
from paramsym.structure.axes import parse_axis
from paramsym.structure.rest import NullSpace
from paramsym.structure.shift import Term, Window
from paramsym.structure.tangent import TangentOperator
from tests.structure.test_tangent import (
    Vectors,
    coordinates_of,
    disagreement,
    drawn,
    flat,
    operator_of,
    projected,
)
from tests.tracing.zoo import build, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


class PreActivation(nn.Module):
    """A stream without a norm: its offsets move many running means, through a matrix as well."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.wider = nn.Conv2d(4, 5, 1)
        self.last, self.out = nn.BatchNorm2d(5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm, branch in zip(self.norms, self.branches, strict=True):
            x = x + branch(torch.relu(norm(x)))
        return self.out(torch.relu(self.last(self.wider(x))).mean((2, 3)))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5),
        nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 3),
    )  # fmt: skip


def made(name: str) -> tuple[nn.Module, Any]:
    if name in ("plain", "pre-activation"):
        torch.manual_seed(0)
        model = randomise(plain() if name == "plain" else PreActivation())
        return model, (torch.randn(3, 2, 8, 8),)
    return build(name)


NETWORKS = ["plain", "pre-activation", "convolutions", "ResNet"]


def gradient_and_operator(name: str) -> tuple[TangentOperator, Vectors]:
    """In evaluation mode and float64: the operator, and the gradient of a loss."""
    model, inputs = made(name)
    symmetry = find_symmetry(model, inputs, check=False)
    model = model.double()
    return tangent(symmetry, model.state_dict()), gradient_of(model, inputs)


def gradient_of(model: nn.Module, inputs: Any) -> Vectors:
    args, kwargs = converted_inputs(inputs, torch.float64)
    own = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    outputs = functional(model, {**model.state_dict(), **own}, args, kwargs)
    value = sum(y.sin().sum() for y in outputs if y.is_floating_point())
    assert isinstance(value, torch.Tensor)
    found = torch.autograd.grad(value, list(own.values()), allow_unused=True)
    return {n: g for n, g in zip(own, found, strict=True) if g is not None}


def share(operator: TangentOperator, gradient: Vectors) -> float:
    """The largest |⟨∇L, X_j θ⟩| / ‖∇L‖ ‖X_j θ‖ over the parameters alone."""
    rows = operator.dense()
    rows = rows[:, torch.cat([torch.arange(c.start, c.stop) for n, c in operator.columns.items()
                              if n not in operator.symmetry.buffers])]  # fmt: skip
    own = [n for n in operator.names if n not in operator.symmetry.buffers]
    entries = torch.cat(
        [gradient.get(n, torch.zeros_like(operator.params[n])).reshape(-1) for n in own]
    )
    lengths = rows.norm(dim=1)
    moving = lengths > 1e-12
    return float(((rows @ entries)[moving].abs() / lengths[moving]).max() / entries.norm())


def on_buffers(operator: TangentOperator) -> torch.Tensor:
    """The velocities of all floating buffers."""
    buffers = tuple(n for n in operator.names if n in operator.symmetry.buffers)
    return operator.dense(names=buffers)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_parameters_pair_to_zero_at_rest(name: str) -> None:
    operator, gradient = gradient_and_operator(name)
    rest = operator.at_rest()
    assert 0 < rest.shape[0] < operator.shape[0]
    assert share(rest, gradient) < 1e-12
    assert share(operator, gradient) > 1e-2  # negative control: what moves buffers


@pytest.mark.parametrize("name", NETWORKS)
def test_at_rest_is_the_null_space_of_the_velocities_of_buffers(name: str) -> None:
    operator = gradient_and_operator(name)[0]
    rest = operator.at_rest()
    assert float(on_buffers(rest).abs().max()) < 1e-12
    assert float(on_buffers(operator).abs().max()) > 1e-2
    values = torch.linalg.svdvals(on_buffers(operator))
    rank = int((values > 1e-10 * values[0]).sum())
    assert rest.shape == (operator.shape[0] - rank, operator.shape[1])
    basis = rest.basis
    assert basis is not None
    gram = basis.lowered(torch.func.vmap(basis.lifted)(torch.eye(basis.width).double()).T)
    torch.testing.assert_close(gram, torch.eye(basis.width).double(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_at_rest_is_the_restriction(name: str) -> None:
    rest = gradient_and_operator(name)[0].at_rest()
    covector, coordinates = drawn(rest), coordinates_of(rest)
    assert disagreement(rest, rest.rmatvec(covector), covector) < 1e-13
    dense = rest.dense()
    torch.testing.assert_close(dense.mT @ coordinates, flat(rest, rest.matvec(coordinates)))
    torch.testing.assert_close(dense @ flat(rest, covector), rest.rmatvec(covector))
    found = flat(rest, rest.project(covector))
    expected = projected(rest, covector)
    assert float((found - expected).norm() / flat(rest, covector).norm()) < 1e-8
    everything = flat(rest, dataclasses.replace(rest, basis=None).project(covector))
    assert float((everything - expected).norm()) > 1e-2
    assert rest.at_rest() is rest


def test_where_no_buffer_moves_every_generator_is_at_rest() -> None:
    operator = operator_of("Llama")
    rest = operator.at_rest()
    assert rest.shape == operator.shape
    covector = drawn(operator)
    assert torch.equal(rest.rmatvec(covector), operator.rmatvec(covector))


def test_bases_copies_and_complex_entries_of_buffers_count() -> None:
    """A change of basis keeps two vectors of R³ by 3 of its 9 directions, a plane of C by none."""
    spaces = {
        "v": Space("v", GeneralLinear(3)),
        "h": Space("h", Permutation(4)),
        "s": Space("s", PositiveScaling(1), over=("h",)),
        "w": Space("w", GeneralLinear(2), over=("h",)),
    }
    types = {"code": "v, 2", "weight": "5, v*", "scale": "(h s), 2", "each": "(h w), 1",
             "plane": "(h w)", "b": "(h s)"}  # fmt: skip
    target, own = Window("mean", "a", (4,), (1,)), Window("b", "a", (4,), (1,))
    shift = Shift("slide", "", "a", (4,), (Term(target, 2.0), Term(own)))
    symmetry = ParameterSymmetry(
        spaces, {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()} | {
            "mean": (parse_axis("4"),)
        }, (shift,), buffers=("code", "scale", "plane", "mean"),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    params = {n: torch.randn(symmetry.shape(n), generator=generator).double()
              for n in symmetry.signature}  # fmt: skip
    params["plane"] = torch.complex(params["plane"], params["plane"].flip(0))
    rest = tangent(symmetry, params).at_rest()
    assert rest.shape[0] == 3  # of v
    assert float(on_buffers(rest).abs().max()) < 1e-12
    params["plane"] = params["plane"].real + 0j
    assert tangent(symmetry, params).at_rest().shape[0] == 3 + 4 * 2  # one vector for each copy


@pytest.mark.parametrize(("m", "d"), [(3, 2), (6, 3), (20, 5), (4, 4)])
def test_reduced_bases_have_a_first_entry_of_their_own_and_span_the_same(m: int, d: int) -> None:
    """Rows that begin with tiny numbers get entries far above 1, which are no further pivots."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(100, m, d, generator=generator, dtype=torch.float64)
    drawn[:50, 0] *= 0.01
    drawn[:, 1] *= (torch.arange(100) % 3 > 0)[:, None]
    basis = torch.linalg.qr(drawn)[0]
    scales = 10.0 ** torch.randint(-6, 7, (100, m, 1), generator=generator)
    for scale in (torch.ones_like(scales), scales):
        space = NullSpace(torch.zeros(100, m).long(), basis, scale)
        found = space.reduced()
        own = (found != 0).int().argmax(1)
        assert all(len(each.unique()) == d for each in own)
        eye = torch.eye(d, dtype=torch.float64).expand(100, d, d)
        torch.testing.assert_close(found.gather(1, own[:, :, None].expand(100, d, d)), eye)
        scaled = found * scale
        left = scaled - basis @ (basis.mT @ scaled)
        assert float((left.norm(dim=1) / scaled.norm(dim=1)).max()) < 1e-12


@pytest.mark.parametrize("mean", [1e-8, 1.0, 1e5, 1e8, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_directions_at_rest_do_not_depend_on_the_size_of_a_buffer(
    mean: float, dtype: torch.dtype
) -> None:
    """A scale moves the mean by itself, an offset by one: together they leave it at rest."""
    symmetry = ParameterSymmetry(
        {"h": Space("h", Permutation(2)), "s": Space("s", PositiveScaling(1), over=("h",))},
        {"weight": (parse_axis("(h s)"), parse_axis("3")), "mean": (parse_axis("(h s)"),),
         "b": (parse_axis("h"),)},
        (Shift("slide", "", "a", (2,), (Term(Window("mean", "a", (2,), (1,))),
                                        Term(Window("b", "a", (2,), (1,))))),),
        buffers=("mean",),
    )  # fmt: skip
    params = {"weight": torch.ones(2, 3), "mean": torch.tensor([mean, -0.5]), "b": torch.ones(2)}
    operator = tangent(symmetry, {n: p.to(dtype) for n, p in params.items()})
    expected = torch.tensor([[1, 0], [0, 1], [-mean, 0], [0, 0.5]], dtype=dtype)
    basis = operator.basis_at_rest(reduced=True)
    found = torch.stack([basis.lifted(x) for x in torch.eye(2, dtype=dtype)], dim=1)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-6)
    assert operator.at_rest().shape[0] == 2
