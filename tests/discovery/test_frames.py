"""R_z has z as its first column, is orthogonal but for |z|, and jumps: where, and by how much."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from paramsym.discovery.general_linear.degenerate import Degenerate, features
from paramsym.discovery.general_linear.frames import (
    AbstractFrame,
    HouseholderFrame,
    NearJump,
    SphericalFrame,
)
from paramsym.discovery.general_linear.reflections import triangular

FRAMES = {"householder": HouseholderFrame, "spherical": SphericalFrame}
JUMP = 2 * math.sqrt(2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def spherical_matrix(z: Tensor) -> Tensor:
    """Definition D.1 entry by entry, from angles: the slow twin."""
    h, r = len(z), float(z.norm())
    angles = [math.atan2(float(z[i + 1 :].norm()), float(z[i])) for i in range(h - 2)]
    angles.append(math.atan2(float(z[-1]), float(z[-2])))
    beta = [0.0, *angles, 0.0]
    found = torch.zeros(h, h, dtype=torch.float64)
    for i in range(1, h + 1):
        for j in range(1, h + 1):
            if j <= i:
                sines = math.prod(math.sin(beta[k]) for k in range(j, i))
                found[i - 1, j - 1] = math.cos(beta[j - 1]) * sines * math.cos(beta[i])
            elif j == i + 1:
                found[i - 1, j - 1] = -math.sin(beta[i])
    return r * found


def reflection_matrix(z: Tensor) -> Tensor:
    """|z| (I − 2uuᵀ/uᵀu) with u = e₁ − z/|z|."""
    u = -z / z.norm()
    u[0] += 1
    return z.norm() * (torch.eye(len(z)).double() - 2 * torch.outer(u, u) / u.dot(u))


@pytest.mark.parametrize("h", [2, 3, 4, 9])
def test_frames_without_a_turn_are_the_matrices_as_published(h: int) -> None:
    z = normal(h, seed=h)
    assert torch.allclose(SphericalFrame().at(z).dense(z), spherical_matrix(z), atol=1e-14)
    assert torch.allclose(HouseholderFrame().at(z).dense(z), reflection_matrix(z), atol=1e-14)


def test_the_example_with_two_angles_is_the_printed_one() -> None:
    b1, b2 = 0.7, 2.1
    c1, s1, c2, s2 = math.cos(b1), math.sin(b1), math.cos(b2), math.sin(b2)
    printed = torch.tensor([[c1, -s1, 0], [s1 * c2, c1 * c2, -s2], [s1 * s2, c1 * s2, c2]])
    z = torch.tensor([c1, s1 * c2, s1 * s2], dtype=torch.float64)
    assert torch.allclose(SphericalFrame().at(z).dense(z), printed.double(), atol=1e-7)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("h", [1, 2, 3, 5, 40])
def test_the_first_column_is_z_and_the_rest_is_orthogonal(kind: str, turned: bool, h: int) -> None:
    frame = FRAMES[kind](normal(h, seed=7) if turned else None)
    z = 3 * normal(h, seed=h)
    dense = frame.at(z).dense(z)
    assert (dense[:, 0] - z).abs().max() <= 1e-14 * z.norm()
    gram = dense.T @ dense / z.norm() ** 2  # Lemma D.2
    assert (gram - torch.eye(h)).abs().max() <= 1e-14
    assert float(torch.linalg.matrix_norm(dense, 2)) == pytest.approx(float(z.norm()), rel=1e-13)


@pytest.mark.parametrize("kind", [*FRAMES, "batch"])
@pytest.mark.parametrize("turned", [False, True])
def test_the_four_products_are_those_of_the_matrix(kind: str, turned: bool) -> None:
    h, k = 12, 3 if kind == "batch" else 1
    away = normal(h, k, seed=7) if turned else None
    frame = FRAMES.get(kind, HouseholderFrame)(away)
    columns, v = normal(h, k), normal(h, 5, seed=1)
    at = frame.at(columns)
    dense = at.dense(columns)
    assert torch.allclose(at.times(v), dense @ v, atol=1e-12)
    assert torch.allclose(at.transposed(v), dense.T @ v, atol=1e-12)
    assert torch.allclose(dense @ at.inverse(v), v, atol=1e-12)
    assert torch.allclose(dense.T @ at.inverse_transposed(v), v, atol=1e-12)
    assert torch.allclose(dense[:, :k], columns, atol=1e-13)


@pytest.mark.parametrize("h", [3, 8, 9])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_reflections_jump_by_two_root_two_across_a_half_line(h: int, size: float) -> None:
    frame, e = HouseholderFrame(margin=1e-9), torch.eye(h).double()
    near = [size * (e[0] + 1e-7 * e[i]) for i in (1, 2)]  # 1e-7 apart, at any distance
    one, other = (frame.at(z).dense(z) / z.norm() for z in near)
    assert float((one - other).norm()) == pytest.approx(JUMP, abs=1e-5)
    assert frame.distance(near[0]) == pytest.approx(1e-7, rel=1e-3)
    # the other half of the line: no jump there
    far = [size * (-e[0] + 1e-7 * e[i]) for i in (1, 2)]
    one, other = (frame.at(z).dense(z) / z.norm() for z in far)
    assert float((one - other).norm()) < 1e-6


@pytest.mark.parametrize("ray", [(1.0, 0, 0), (-1.0, 0, 0), (1.0, 2.0, 0, 0), (0.3, -1, 2, 0, 0)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_spherical_frames_jump_by_as_much_across_a_subspace(
    ray: tuple[float, ...], size: float
) -> None:
    z = size * torch.tensor(ray, dtype=torch.float64)
    step = 1e-7 * size * torch.eye(len(z)).double()[-1]
    frame = SphericalFrame(margin=1e-9)
    one, other = (frame.at(w).dense(w) / w.norm() for w in (z + step, z - step))
    assert float((one - other).norm()) == pytest.approx(JUMP, abs=1e-5)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("turned", [False, True])
def test_frames_are_continuous_elsewhere(kind: str, turned: bool) -> None:
    frame: AbstractFrame = FRAMES[kind](normal(6, seed=7) if turned else None)
    for seed in range(50):
        z, step = normal(6, seed=seed), normal(6, seed=100 + seed)
        distance = frame.distance(z)
        step *= 1e-6 * distance * z.norm() / step.norm()
        one, other = frame.at(z).dense(z), frame.at(z + step).dense(z)
        assert float((one - other).norm()) <= 10 * float(step.norm()) / distance


def test_the_plane_has_a_continuous_frame_and_nothing_is_refused_there() -> None:
    for end in (1.0, -1.0):
        near = [torch.tensor([end, s * 1e-9], dtype=torch.float64) for s in (1, -1)]
        for frame in (HouseholderFrame(), SphericalFrame()):
            one, other = (frame.at(z).dense(z) for z in near)
            assert float((one - other).norm()) < 1e-7


@pytest.mark.parametrize("kind", FRAMES)
def test_the_place_of_the_jump_is_chosen_and_refused(kind: str) -> None:
    h, away = 5, normal(5)
    frame = FRAMES[kind](away)
    assert frame.distance(away) >= 0.99  # 1 and 2 at most
    jump = -away if kind == "householder" else frame.turn.transposed(torch.eye(h).double()[:, -1:])
    with pytest.raises(NearJump, match="turns by 2√2 across it.*Pass away=… nearer"):
        frame.at(jump + 1e-5 * normal(*jump.shape, seed=3))
    FRAMES[kind](None).at(jump + 1e-5 * normal(*jump.shape, seed=3))  # another frame is fine there


@pytest.mark.parametrize("kind", FRAMES)
def test_products_can_be_differentiated(kind: str) -> None:
    frame, v = FRAMES[kind](normal(4, seed=7)), normal(4, 2, seed=1)
    z = normal(4).requires_grad_()
    for name in ("times", "transposed", "inverse", "inverse_transposed"):
        assert torch.autograd.gradcheck(lambda z, name=name: getattr(frame.at(z), name)(v), z)


def test_spherical_coordinates_belong_to_one_column() -> None:
    with pytest.raises(ValueError, match="one column was expected"):
        SphericalFrame().at(normal(4, 2))


@pytest.mark.parametrize(("h", "k"), [(1, 1), (2, 1), (5, 4), (5, 5), (30, 7)])
@pytest.mark.parametrize("stable", [False, True])
def test_reflections_make_triangles(h: int, k: int, stable: bool) -> None:
    columns = normal(h, k)
    found = triangular(columns, stable)
    back = found.reflections.times(torch.cat([found.triangle, columns.new_zeros(h - k, k)]))
    assert (back - columns).abs().max() <= 1e-14
    v = normal(h, 3, seed=1)
    assert torch.allclose(found.reflections.transposed(found.reflections.times(v)), v, atol=1e-14)
    if not stable and k < h:
        assert bool((found.triangle.diagonal() > 0).all())


def test_several_columns_jump_at_each_step_and_are_refused_there() -> None:
    first = normal(6, seed=1)
    first /= first.norm()
    eye = torch.eye(6).double()
    reflect = (
        eye - 2 * torch.outer(first - eye[0], first - eye[0]) / (first - eye[0]).square().sum()
    )
    near = [torch.stack([first, reflect @ (eye[1] + 1e-7 * eye[i])], 1) for i in (3, 4)]
    frame = HouseholderFrame(margin=1e-9)
    one, other = (frame.at(columns).dense(columns) for columns in near)
    assert float((one - other).norm()) == pytest.approx(JUMP, abs=1e-5)
    assert float((one - other)[:, :2].norm()) < 1e-6  # it is the complement that jumps
    with pytest.raises(NearJump):
        HouseholderFrame().at(near[0])


@pytest.mark.parametrize("kind", FRAMES)
def test_at_the_margin_a_thousandth_of_the_digits_is_lost(kind: str) -> None:
    """Two vectors that differ by rounding have frames that differ by rounding over the margin."""
    frame, eye = FRAMES[kind](), torch.eye(9).double()
    z = (eye[0] if kind == "householder" else normal(9)) * torch.ones(9).double()
    if kind == "householder":
        z[1] = 1.5e-3
    else:
        z[-2:] = torch.tensor([1e-3, 1.5e-3]) * z.norm()
    one, other = frame.at(z), frame.at(z * (1 + 1e-15 * normal(9, seed=2)))
    apart = float((one.dense(z) - other.dense(z)).norm() / z.norm())
    assert 1e-16 < apart < 1e-11


# sizes whose squares leave the range, and what is no set of columns


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e155, 1e300])
def test_frames_of_very_small_and_very_large_columns_are_exact(
    kind: str, turned: bool, size: float
) -> None:
    frame = FRAMES[kind](size * normal(5, seed=7) if turned else None)
    z = normal(5, seed=3)
    found, usual = frame.at(size * z), frame.at(z)
    v = normal(5, 2, seed=9)
    assert (found.times(torch.eye(5).double())[:, 0] / size - z).abs().max() <= 1e-14
    assert (found.times(v) / size - usual.times(v)).abs().max() <= 1e-14
    assert (found.inverse(found.times(v)) - v).abs().max() <= 1e-13
    assert (found.inverse_transposed(found.transposed(v)) - v).abs().max() <= 1e-13
    assert frame.distance(size * z) == pytest.approx(frame.distance(z), rel=1e-13)


def test_columns_of_very_different_sizes_are_completed() -> None:
    columns = normal(6, 3, seed=1) * torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64)
    found = HouseholderFrame().at(columns)
    first = found.times(torch.eye(6, 3).double())
    assert ((first - columns) / columns.abs().amax(0)).abs().max() <= 1e-14


def test_a_scale_of_two_changes_no_bit() -> None:
    z, v = normal(5, seed=3), normal(5, 2, seed=9)
    for frame in (HouseholderFrame(), SphericalFrame()):
        assert torch.equal(frame.at(2.0**40 * z).times(v), 2.0**40 * frame.at(z).times(v))


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("h", [1, 2, 3])
@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, 1e-310])
def test_columns_without_a_length_are_refused_by_name(kind: str, h: int, bad: float) -> None:
    column = torch.zeros(h).double() if abs(bad) < 1 else torch.ones(h).double()
    column[-1] = bad
    for call in (FRAMES[kind]().at, FRAMES[kind]().distance, FRAMES[kind]):
        with pytest.raises(Degenerate, match=r"column 0 of \w+ has length .* was expected"):
            call(column)


def test_dependent_columns_are_refused() -> None:
    columns = torch.tensor([[0.0, 0.0], [2.0, 4.0], [0.0, 0.0], [0.0, 0.0]]).double()
    with pytest.raises(Degenerate, match="column 1 is zero, not finite, or depends on those"):
        HouseholderFrame().at(columns)
    with pytest.raises(Degenerate, match="column 1"):
        HouseholderFrame().at(torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double())


@pytest.mark.parametrize("kind", FRAMES)
def test_what_is_no_set_of_real_columns_is_refused(kind: str) -> None:
    frame, z = FRAMES[kind], normal(4)
    refused = {
        r"came as a list": [1.0, 2.0],
        r"came in torch.complex128": z + 1j,
        r"came in torch.int64": torch.arange(4),
        r"shape \(4, 5\) came": normal(4, 5),
        r"shape \(4, 0\) came": normal(4, 0),
        r"shape \(4, 1, 1\) came": z[:, None, None],
        r"shape \(\) came": z[0],
    }
    for message, columns in refused.items():
        for call in (frame, frame().at):
            with pytest.raises(ValueError, match=message):
                call(columns)
    with pytest.raises(ValueError, match="columns came in torch.float64.*beside away in .*float32"):
        frame(z.float()).at(z)
    with pytest.raises(ValueError, match="columns of 4 entries came, and 3 were expected"):
        frame(z[:3]).at(z)
    assert frame(z).at(z).size == 4  # the control


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_features_of_any_size_have_their_condition(size: float) -> None:
    columns = normal(6, 2, seed=4)
    _, condition = features(lambda z: size * z, columns, "layer 1")
    values = torch.linalg.svdvals(columns)
    assert condition == pytest.approx(float(values[0] / values[-1]), rel=1e-12)
    with pytest.raises(Degenerate, match="norm 0 at sample 1"):
        features(lambda z: size * z, columns * torch.tensor([1.0, 0.0]).double(), "layer 1")
