"""A basis that can be read, structure constants, and the name of an algebra."""

from functools import partial
from importlib import import_module

import numpy
import pytest
import torch

from paramsym.discovery.algebras.lie_algebra import LieAlgebra, lie_algebra
from tests.discovery import algebras
from tests.discovery.algebras import ALIASES, NAMED, Field, disguised, mixed

TABLE = {**{name: (m, name) for name, m in NAMED.items()}, **ALIASES}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of(matrices, **options) -> LieAlgebra:
    return lie_algebra([Field(m) for m in matrices], {"x": (len(matrices[0]),)}, **options)


def random_mix(matrices, seed: int = 1):
    count = len(matrices)
    return mixed(matrices, torch.randn(count, count, generator=seeded(seed)).double().numpy())


@pytest.mark.parametrize("name", TABLE)
def test_an_algebra_is_recognised_in_random_coordinates(name):
    matrices, expected = TABLE[name]
    for seed in (1, 2):
        found = of(disguised(matrices, seeded(seed)))
        assert found.name == expected
        assert found.dimension == len(matrices) and found.defect < 1e-9


@pytest.mark.parametrize(
    "name", [n for n in NAMED if len(NAMED[n]) > 2 and n not in ("gl_3", "gl_5")]
)
def test_a_perturbed_basis_does_not_close(name):
    matrices = NAMED[name]
    noise = torch.randn(len(matrices), *matrices[0].shape, generator=seeded(), dtype=torch.float64)
    found = of([m + 1e-3 * e for m, e in zip(matrices, noise.numpy(), strict=True)])
    assert not found.closed and found.defect > 1e-4
    assert found.name.startswith("not closed") and not found.summands


@pytest.mark.parametrize(
    "matrices", [algebras.heisenberg(), algebras.triangular(3)], ids=["heisenberg", "triangular"]
)
def test_what_is_none_of_the_list_is_called_unrecognised(matrices):
    found = of(disguised(matrices, seeded()))
    assert found.name.startswith("unrecognised") and "Killing signature" in found.name
    assert found.closed


def test_invariants_of_a_few_by_hand():
    gl3, aff2, so4 = of(NAMED["gl_3"]), of(NAMED["aff_2"]), of(NAMED["so_4"])
    assert (gl3.centre, gl3.derived, gl3.signature, gl3.rank) == (1, (9, 8), (5, 3, 1), 3)
    assert (aff2.centre, aff2.derived, aff2.signature, aff2.rank) == (0, (6, 5), (3, 1, 2), 2)
    assert (so4.centre, so4.derived, so4.signature, so4.rank) == (0, (6,), (0, 6, 0), 2)
    triangular = of(algebras.triangular(3))
    assert triangular.derived == (6, 3, 1, 0) and triangular.centre == 1


@pytest.mark.parametrize("name", ["gl_3", "so_4", "aff_2", "sl_3(C)", "sl_2 ⊕ so_3 ⊕ so_2"])
def test_constants_are_those_of_brackets_by_derivatives(name):
    """The slow twin: Dξ_j ξ_i − Dξ_i ξ_j at random points, by forward-mode derivatives."""
    found = of(disguised(NAMED[name], seeded(3)))
    size = len(NAMED[name][0])
    for seed in (4, 5):
        x = torch.randn(size, generator=seeded(seed), dtype=torch.float64)
        at = [f.velocity({"x": x})["x"] for f in found.basis]
        dense = [torch.from_numpy(f.matrix.toarray())[:size, :size] for f in found.basis]
        for i, a in enumerate(dense):
            for j, b in enumerate(dense):
                ab = torch.func.jvp(partial(torch.mv, b), (x,), (at[i],))[1]
                ba = torch.func.jvp(partial(torch.mv, a), (x,), (at[j],))[1]
                expected = torch.from_numpy(found.constants[i, j]) @ torch.stack(at)
                assert torch.allclose(ab - ba, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["gl_3", "so_5", "aff_3", "sp(6, R)"])
def test_constants_are_antisymmetric_and_satisfy_jacobi(name):
    c = of(disguised(NAMED[name], seeded(6))).constants
    assert numpy.abs(c + c.transpose(1, 0, 2)).max() < 1e-9
    twice = numpy.einsum("ijl,lkm->ijkm", c, c)
    cyclic = twice + twice.transpose(1, 2, 0, 3) + twice.transpose(2, 0, 1, 3)
    assert numpy.abs(cyclic).max() < 1e-7 < numpy.abs(twice).max()


def test_matrix_units_come_back_from_a_random_basis():
    found = lie_algebra([Field(m) for m in random_mix(NAMED["gl_3"])], {"x": (3, 2)})
    expected = {f"x[{i}, :] += x[{j}, :]" for i in range(3) for j in range(3) if i != j}
    assert set(found.lines) == expected | {f"x[{i}, :] grows" for i in range(3)}
    assert set(numpy.unique(found.constants)) == {-1.0, 0.0, 1.0}


def test_skew_matrices_come_back_from_a_random_basis():
    lines = of(random_mix(NAMED["so_4"])).lines
    assert len(lines) == 6 and all(" += " in line and " −= " in line for line in lines)


def test_noise_below_the_tolerance_is_cleaned_and_above_it_is_not():
    matrices = random_mix(NAMED["gl_3 ⊕ R^2"])
    noise = torch.randn(11, 5, 5, generator=seeded(), dtype=torch.float64).numpy()
    noisy = [m + 1e-5 * e for m, e in zip(matrices, noise, strict=True)]
    assert of(noisy, tolerance=1e-3).name == "gl_3 ⊕ R^2"
    assert not of(noisy).closed


def test_constants_of_affine_fields_are_translations():
    eye = numpy.eye(3)
    shifts = [Field(numpy.zeros((3, 3)), row) for row in eye]
    found = lie_algebra(shifts, {"x": (3,)})
    assert found.name == "R^3 (translations)" and found.lines[1] == "x[1] += 1"
    linear = [Field(m) for m in NAMED["gl_3"]]
    assert lie_algebra([*shifts, *linear], {"x": (3,)}).name == "aff_3"


def test_dependent_fields_count_once_and_none_is_zero():
    twice = [*NAMED["so_3"], *random_mix(NAMED["so_3"])]
    assert of(twice).dimension == 3
    assert lie_algebra([], {"x": (3,)}).name == "0"
    assert lie_algebra([Field(numpy.zeros((3, 3)))], {"x": (3,)}).dimension == 0


def test_a_large_torus_is_recognised_and_a_large_algebra_is_called_large(monkeypatch):
    monkeypatch.setattr(import_module("paramsym.discovery.algebras.lie_algebra"), "LIMIT", 8)
    found = of(disguised(algebras.diagonal(9), seeded()))
    assert found.name == "R^9" and found.defect < 1e-12 and found.closed
    found = of(algebras.gl(3))
    assert found.name == "unrecognised, dimension 9: at most 8 are taken apart"
    assert not found.closed


def test_a_field_that_is_not_affine_is_refused():
    class Square:
        def velocity(self, params):
            return {"x": params["x"] ** 2}

    with pytest.raises(ValueError, match="field 0 differs by .* affine field"):
        lie_algebra([Square()], {"x": (3,)})
    with pytest.raises(ValueError, match="finite numbers"):
        of([numpy.full((3, 3), numpy.nan)])


def test_too_many_parameters_are_refused():
    with pytest.raises(ValueError, match="submodule"):
        lie_algebra([Field(numpy.eye(3))] * 2, {"x": (50_000,)})
