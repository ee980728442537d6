"""c σ(Z) = σ(gZ), its group law, and where it ends: batches, ranks, and the least change."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paramsym.discovery.general_linear.cocycle import LeastChange, change_between, cocycle
from paramsym.discovery.general_linear.degenerate import Degenerate
from paramsym.discovery.general_linear.frames import (
    AbstractFrame,
    HouseholderFrame,
    NearJump,
    SphericalFrame,
)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky ReLU": lambda z: functional.leaky_relu(z, 0.1),
    "GELU": functional.gelu,
}
FRAMES: dict[str, Callable[[], AbstractFrame | None]] = {
    "default": lambda: None,
    "householder": HouseholderFrame,
    "spherical": SphericalFrame,
    "spherical, turned": lambda: SphericalFrame(normal(8, seed=5)),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def element(h: int, seed: int) -> Tensor:
    return torch.matrix_exp(0.4 * normal(h, h, seed=seed))


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("frame", FRAMES)
def test_one_sample_satisfies_the_three_identities(function: str, frame: str) -> None:
    h, of, by, eye = 8, FUNCTIONS[function], FRAMES[frame](), torch.eye(8).double()
    for seed in range(5):
        z, g1, g2 = normal(h, 1, seed=seed), element(h, 10 + seed), element(h, 20 + seed)
        c = cocycle(g1, z, of, by)
        assert error(c.times(of(z)), of(g1 @ z)) <= 1e-13
        assert error(cocycle(eye, z, of, by).times(eye), eye) <= 1e-14
        both = cocycle(g1, g2 @ z, of, by).times(cocycle(g2, z, of, by).times(eye))
        assert error(both, cocycle(g1 @ g2, z, of, by).times(eye)) <= 1e-12
        # negative control: the other order is another matrix
        assert error(cocycle(g2, g1 @ z, of, by).times(c.times(eye)), both) > 1e-2


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("k", [1, 2, 5, 7, 8])
def test_batches_satisfy_them_as_well(function: str, k: int) -> None:
    h, of, eye = 8, FUNCTIONS[function], torch.eye(8).double()
    by = HouseholderFrame(normal(h, k, seed=9))
    z, g1, g2 = normal(h, k), element(h, 1), element(h, 2)
    c = cocycle(g1, z, of, by)
    assert error(c.times(of(z)), of(g1 @ z)) <= 1e-15 * c.condition + 1e-13
    assert error(cocycle(eye, z, of, by).times(eye), eye) <= 1e-13
    both = cocycle(g1, g2 @ z, of, by).times(cocycle(g2, z, of, by).times(eye))
    once = cocycle(g1 @ g2, z, of, by)
    assert error(both, once.times(eye)) <= 1e-11
    assert float(torch.linalg.det(once.times(eye)).abs()) > 1e-6  # it is in GL_h


def test_a_square_batch_leaves_no_choice() -> None:
    z, g = normal(5, 5), element(5, 1)
    only = torch.sigmoid(g @ z) @ torch.linalg.inv(torch.sigmoid(z))
    for form in ("cocycle", "least-change"):
        c = change_between(z, g @ z, torch.sigmoid, form=form)
        assert error(c.times(torch.eye(5).double()), only) <= 1e-11


@pytest.mark.parametrize("form", ["cocycle", "least-change"])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_rows_are_undone_and_redone_as_by_the_matrix(form: str, k: int) -> None:
    z, g, rows = normal(6, k), element(6, 1), normal(4, 6, seed=3)
    c = change_between(z, g @ z, torch.tanh, form=form)
    dense = c.times(torch.eye(6).double())
    assert error(c.undone(rows) @ dense, rows) <= 1e-10
    assert error(c.redone(rows), rows @ dense) <= 1e-10


def test_the_least_change_is_the_least() -> None:
    z, g, outer = normal(9, 3), element(9, 1), normal(4, 9, seed=3)
    least = change_between(z, g @ z, torch.tanh, form="least-change").undone(outer)
    wanted = outer @ torch.tanh(z)
    assert error(least @ torch.tanh(g @ z), wanted) <= 1e-12
    onto = torch.tanh(g @ z)
    free = torch.eye(9).double() - onto @ torch.linalg.pinv(onto)
    for seed in range(20):  # all others that are exact on the batch
        other = least + 0.1 * normal(4, 9, seed=seed) @ free
        assert error(other @ onto, wanted) <= 1e-11
        assert float((other - outer).norm()) > float((least - outer).norm())
    away = cocycle(g, z, torch.tanh).undone(outer)
    assert float((away - outer).norm()) > float((least - outer).norm())


def defect(form: str, k: int, seed: int) -> float:
    """‖c(g₁, g₂Z) c(g₂, Z) − c(g₁g₂, Z)‖ / ‖c(g₁g₂, Z)‖."""
    z, g1, g2 = normal(8, k, seed=seed), element(8, 50 + seed), element(8, 80 + seed)
    eye = torch.eye(8).double()

    def c(before: Tensor, moved: Tensor) -> Tensor:
        return change_between(before, moved, torch.tanh, form=form).times(eye)

    product, once = c(g2 @ z, g1 @ g2 @ z) @ c(z, g2 @ z), c(z, g1 @ g2 @ z)
    return float((product - once).norm() / once.norm())


def test_the_least_change_is_no_action_and_the_cocycle_is() -> None:
    least = [defect("least-change", 3, seed) for seed in range(10)]
    exact = [defect("cocycle", 3, seed) for seed in range(10)]
    assert min(least) > 0.05 and max(exact) <= 1e-11
    # with as many samples as units there is one c only, and the law holds
    assert max(defect("least-change", 8, seed) for seed in range(3)) <= 1e-8


def test_undoing_the_least_change_by_its_inverse_element_leads_elsewhere() -> None:
    z, g, outer = normal(8, 2), element(8, 1), normal(3, 8, seed=3)
    there = change_between(z, g @ z, torch.tanh, form="least-change").undone(outer)
    back = change_between(g @ z, z, torch.tanh, form="least-change").undone(there)
    assert error(back @ torch.tanh(z), outer @ torch.tanh(z)) <= 1e-12
    assert error(back, outer) > 1e-3


INVERSES = {
    "sigmoid": (torch.sigmoid, lambda p: math.log(p / (1 - p)), -2.0862),
    "tanh": (torch.tanh, math.atanh, 0.0432),
}


@pytest.mark.parametrize("name", INVERSES)
def test_smooth_activations_do_not_preserve_full_rank(name: str) -> None:
    function, inverse, determinant = INVERSES[name]
    z = torch.tensor([[inverse(p) for p in row] for row in ((0.2, 0.4), (0.4, 0.8))]).double()
    assert float(torch.linalg.det(z)) == pytest.approx(determinant, abs=1e-4)
    assert abs(float(torch.linalg.det(function(z)))) < 1e-7
    with pytest.raises(Degenerate, match="before g: σ.Z. of 2 samples has condition number"):
        cocycle(torch.eye(2).double(), z, function)
    # after g: it is not enough that σ(Z) has full rank
    start = torch.eye(2).double()
    with pytest.raises(Degenerate, match="after g"):
        cocycle(z, start, function)


@pytest.mark.parametrize("s", [0.1, 0.5, 0.9])
def test_leaky_relu_does_not_either_and_its_printed_formula_is_another_function(s: float) -> None:
    z = torch.tensor([[s, -1.0], [-1.0, s]], dtype=torch.float64)
    assert float(torch.linalg.det(z)) == pytest.approx(s * s - 1)
    image = functional.leaky_relu(z, s)
    assert torch.allclose(image, torch.tensor([[s, -s], [-s, s]]).double())
    assert abs(float(torch.linalg.det(image))) < 1e-15
    with pytest.raises(Degenerate, match="condition number"):
        cocycle(torch.eye(2).double(), z, lambda z: functional.leaky_relu(z, s))
    # Example D.1.3 prints s z min(0, z) + z max(0, z), which is quadratic, and of full rank here
    printed = s * z * z.clamp(max=0) + z * z.clamp(min=0)
    assert float(torch.linalg.det(printed)) == pytest.approx(s**4 - s**2)
    assert abs(s**4 - s**2) > 1e-3


def test_more_samples_than_units_are_refused_for_a_reason() -> None:
    with pytest.raises(Degenerate, match="a batch of 6 samples came for 5 units.*Take 5 samples"):
        cocycle(torch.eye(5).double(), normal(5, 6), torch.tanh)
    # the reason: no matrix takes σ(Z) to σ(gZ) on 6 samples
    z, g = normal(5, 6), element(5, 1)
    fit = torch.tanh(g @ z) @ torch.linalg.pinv(torch.tanh(z))
    assert error(fit @ torch.tanh(z), torch.tanh(g @ z)) > 1e-2


def test_features_that_vanish_are_refused_where_they_do() -> None:
    z = normal(5, 3)
    z[:, 1] = 0
    g = element(5, 1)
    with pytest.raises(Degenerate, match="before g: σ.z. has norm 0 at sample 1"):
        cocycle(g, z, torch.tanh)
    cocycle(g, z, torch.sigmoid)  # σ(0) = ½
    closed = normal(5, 2)
    closed[:, 1] = -closed[:, 1].abs()
    with pytest.raises(Degenerate, match="at sample 1.*on which the layer is closed"):
        cocycle(g, closed, torch.relu)
    with pytest.raises(Degenerate, match="after g: σ.z. has norm 0 at sample 0"):
        cocycle(-torch.eye(5).double(), normal(5, 1).abs(), torch.relu)


def test_singular_and_broken_elements_are_refused() -> None:
    z = normal(5, 2)
    flat = torch.diag(torch.tensor([1.0, 1, 1, 1, 0])).double()
    with pytest.raises(Degenerate, match="singular values from 0 to 1"):
        cocycle(flat, z, torch.tanh)
    with pytest.raises(Degenerate, match="not finite"):
        cocycle(torch.full((5, 5), math.nan).double(), z, torch.tanh)
    broken = z.clone()
    broken[0, 0] = math.inf
    with pytest.raises(Degenerate, match="what the function gets has entries that are not finite"):
        cocycle(torch.eye(5).double(), broken, torch.tanh)
    with pytest.raises(ValueError, match=r"g of shape \(4, 4\) came; \(5, 5\) was expected"):
        cocycle(torch.eye(4).double(), z, torch.tanh)
    wide = torch.eye(200).double()
    wide[0] = wide[1]
    v = normal(200, 3)
    v[0], v[1] = torch.tensor([1.0, 0, 0]), torch.tensor([0, 0, 0])
    v[2:] = 0
    v[2, 1] = v[3, 2] = 1
    with pytest.raises(Degenerate, match="gV has rank 2 where V has 3"):
        cocycle(wide, v, torch.sigmoid)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'least-change' is none"):
        change_between(normal(3, 1), normal(3, 1), torch.tanh, form="nearest")


def test_the_jump_is_refused_by_the_cocycle() -> None:
    away = torch.ones(6).double()
    with pytest.raises(NearJump):
        cocycle(-torch.eye(6).double(), away[:, None], torch.tanh, HouseholderFrame(away))


def test_the_condition_is_that_of_the_worse_features() -> None:
    z, g = normal(8, 3), element(8, 1)
    c = change_between(z, g @ z, torch.tanh, form="least-change")
    assert isinstance(c, LeastChange)
    worse = max(float(torch.linalg.cond(torch.tanh(m))) for m in (z, g @ z))
    assert c.condition == pytest.approx(worse, rel=1e-10)
    with pytest.raises(Degenerate, match="at most 1.1 was expected"):
        change_between(z, g @ z, torch.tanh, limit=1.1)
