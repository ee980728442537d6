import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from paramsym.cli import app
from paramsym.equivariant import components, decompose, image_shift, loss_of
from paramsym.equivariant.images import (
    load_images,
    randomly_shifted,
    second_moment,
    shift_images,
)
from paramsym.equivariant.study import (
    PUBLISHED,
    DenseAutoencoder,
    closed_form_table,
    equal_ranks,
    reconstruction_loss,
    reversed_ranks,
    train,
)

runner = CliRunner()


def mnist() -> Path:
    given = os.environ.get("PARAMSYM_DATA")
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    for place in [Path(given)] if given else [beside]:
        path = place / "mnist.npz" if place.is_dir() else place
        if path.is_file():
            return path
    pytest.skip("MNIST is absent: set PARAMSYM_DATA to mnist.npz or to its folder")


@pytest.fixture
def small(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((60, 4, 5)).cumsum(2)
    path = tmp_path / "images.npz"
    np.savez(path, x_train=images[:50] / images.max(), x_test=images[50:] / images.max())
    return path


def test_whole_shifts_move_pixels_and_repeat_the_border():
    image = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    moved = shift_images(image, np.array([1.0]))
    np.testing.assert_allclose(moved[0, 0], [0, 0, 1, 2])
    np.testing.assert_allclose(shift_images(image, np.array([-2.0]))[0, 0], [2, 3, 3, 3])


def test_fractional_shifts_interpolate_linearly():
    image = np.array([[[0, 4, 8, 8]]], dtype=np.float32)
    np.testing.assert_allclose(shift_images(image, np.array([0.25]))[0, 0], [0, 3, 7, 8])


def test_second_moment_is_a_mean_over_samples():
    images = np.random.default_rng(0).random((7, 2, 3)).astype(np.float32)
    flat = images.reshape(7, 6)
    np.testing.assert_allclose(second_moment(images, chunk=3), flat.T @ flat / 7, rtol=1e-6)


def test_named_components():
    family = components(image_shift(28, 28), 99)
    low, high = equal_ranks(family, "low"), equal_ranks(family, "high")
    assert low.ranks == (4,) * 8 + (3,) * 7
    assert high.ranks == (3,) * 7 + (4,) * 8
    assert reversed_ranks(family, PUBLISHED).ranks == PUBLISHED[::-1]
    odd = components(image_shift(3, 3), 4)  # 3 × 1,1 and 3 × 3,2: the mirror does not fit
    assert reversed_ranks(odd, (0, 2)).rank == 4


def test_training_reaches_the_closed_form_and_stays_above():
    images = np.random.default_rng(0).random((300, 4, 5)).cumsum(2).astype(np.float32) / 5
    rows = closed_form_table(
        second_moment(images), second_moment(images), decompose(image_shift(4, 5)), 6
    )
    generator = torch.Generator().manual_seed(0)
    dense = DenseAutoencoder(20, 6, generator)
    history = train(dense, images, 200, generator, learning_rate=0.03, batch=64)
    assert history[-1] < history[0]
    loss = reconstruction_loss(dense, images)
    assert rows[0].train * (1 - 1e-6) <= loss <= rows[0].train * 1.2
    assert rows[0].train <= rows[1].train <= min(row.train for row in rows[2:]) + 1e-12


def test_the_published_table_on_mnist():
    """Fractional shifts by up to 20 % of the width, linear interpolation, nearest fill."""
    data = load_images(mnist())
    rng = np.random.default_rng(0)
    fitted = second_moment(randomly_shifted(data.train[:30_000], 0.2, rng))
    held_out = second_moment(randomly_shifted(data.test, 0.2, rng))
    rows = closed_form_table(fitted, held_out, decompose(image_shift(28, 28)), 99)
    test = {row.name: row.test for row in rows}
    assert test["dense"] == pytest.approx(0.0056, abs=2e-4)
    assert test["published"] == pytest.approx(0.0077, abs=2e-4)
    assert test["best of all"] == pytest.approx(0.0076, abs=2e-4)
    assert 0.018 < test["equal rank, extra low"] < test["equal rank, extra high"] < 0.026
    assert test["high-pass"] == pytest.approx(0.107, abs=2e-3)
    assert test["dense"] < test["best of all"] < test["published"] < test["high-pass"]


def test_the_command_counts():
    result = runner.invoke(app, ["equivariant", "--shift", "28x28", "--rank", "99"])
    assert result.exit_code == 0
    assert "72,425,986,088,826" in result.output
    assert "--data" in result.output


def test_the_command_finds_the_best_component_and_draws(small, tmp_path):
    pictures = tmp_path / "pictures"
    arguments = ["--shift", "4x5", "--rank", "6", "--data", str(small), "--output", str(pictures)]
    result = runner.invoke(app, ["equivariant", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    family = components(image_shift(4, 5), 6)
    assert found["components"] == family.count
    best = found["best"]
    assert best["certified_lower_bound"] <= best["loss_per_pixel"] * (1 + 1e-12)
    losses = {row["name"]: row["train"] for row in found["losses"]}
    assert losses["dense"] <= losses["best of all"] == pytest.approx(best["loss_per_pixel"])
    names = {"weight_sharing.png", "spectrum.png", "reconstructions.png"}
    assert {path.name for path in pictures.iterdir()} == names
    assert runner.invoke(app, ["equivariant", *arguments]).exit_code == 2  # the pictures are there
    plain = runner.invoke(app, ["equivariant", *arguments, "--force"])
    assert plain.exit_code == 0 and "best component" in plain.output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--shift", "28"], "Write --shift 28x28"),
        (["--shift", "4x4", "--rank", "17"], "rank 17 was asked for"),
        (["--shift", "4x4", "--rank", "3", "--axis", "up"], "'horizontal', 'vertical' or 'both'"),
        (["--shift", "4x4", "--rank", "3", "--data", "DATA"], "Pass --shift 4x5"),
        (["--shift", "4x5", "--rank", "3", "--data", "absent.npz"], "absent.npz"),
    ],
)
def test_the_command_explains_what_is_wrong(arguments, words, small):
    arguments = [str(small) if a == "DATA" else a for a in arguments]
    result = runner.invoke(app, ["equivariant", *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_files_without_images_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", pictures=np.zeros((2, 2, 2)))
    np.savez(tmp_path / "b.npz", x_train=np.zeros((2, 4)))
    with pytest.raises(ValueError, match="expected an array 'x_train'"):
        load_images(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="expected three axes"):
        load_images(tmp_path / "b.npz")


def test_closed_form_losses_are_those_of_the_matrices():
    images = np.random.default_rng(1).random((50, 3, 4)).astype(np.float32)
    moment = second_moment(images)
    rows = closed_form_table(moment, moment, decompose(image_shift(3, 4)), 5)
    for row in rows:
        assert row.train == pytest.approx(row.test)
    assert loss_of(np.zeros((12, 12)), moment) == pytest.approx(float(np.trace(moment)))
