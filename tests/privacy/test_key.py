"""Keys: where they come from, what is refused, and their files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.algebra import GeneralLinear, Orthogonal, Permutation
from paramsym.privacy import Key, Kind, Loss, Update


def mlp(hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def freed(model: nn.Module, **options: bool) -> ParameterSymmetry:
    return find_symmetry(
        model, (torch.randn(7, 6),), free_inputs=True, free_outputs=True, training=True, **options
    )


@pytest.fixture(scope="module")
def symmetry() -> ParameterSymmetry:
    return freed(mlp())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_outputs_move_by_what_the_loss_does_not_see(symmetry: ParameterSymmetry) -> None:
    def output(**options: object) -> object:
        space = Key.generate(symmetry, generator(), **options).acting.spaces.get("output")
        return space and space.group

    assert output(optimizer="sgd", loss="mse") == Orthogonal(3)
    assert output(optimizer="sgd", loss=nn.CrossEntropyLoss()) == Permutation(3)
    assert output(optimizer="sgd") is None
    assert output() == GeneralLinear(3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam", "groups": Orthogonal}, "'adam' treats each entry by itself"),
        ({"optimizer": "sgd", "groups": GeneralLinear}, "'sgd' uses sums and inner products"),
        (
            {"optimizer": "sgd", "loss": "cross-entropy", "groups": {"output": Orthogonal(3)}},
            "moves outputs by what the loss 'cross-entropy' sees",
        ),
        ({"optimizer": "sgd", "groups": {"output": Orthogonal(3)}}, "no loss was given"),
        ({"optimizer": "muon"}, "bfloat16"),
        ({"optimizer": "sgd", "loss": nn.MSELoss(reduction="none")}, "one number for each output"),
        ({"optimizer": "sgd", "loss": nn.CosineEmbeddingLoss()}, "nothing is known of what it"),
    ],
)
def test_what_training_does_not_commute_with_is_refused(
    symmetry: ParameterSymmetry, options: dict, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Key.generate(symmetry, generator(), **options)


def test_a_smaller_group_may_be_asked_for(symmetry: ParameterSymmetry, tmp_path: Path) -> None:
    key = Key.generate(symmetry, generator(), "sgd", "mse", groups=Permutation)
    assert key.element["input"].order is not None and key.element["input"].matrix is None
    key.save(tmp_path / "key.safetensors")
    assert Key.load(tmp_path / "key.safetensors", symmetry).fingerprint == key.fingerprint


def test_random_draws_are_found_and_named() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 3))
    found = freed(model)
    with pytest.raises(ValueError, match=r"dropout.*at .*2"):
        Key.generate(found, generator(), "sgd", "mse")
    Key.generate(found, generator())  # nobody trains


def test_values_of_ones_own(symmetry: ParameterSymmetry) -> None:
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    key = Key.of(symmetry, {"input": turn}, "sgd", "mse")
    assert torch.equal(key.element["input"].matrix, turn)
    with pytest.raises(ValueError, match="'adam' treats each entry by itself"):
        Key.of(symmetry, {"input": turn}, "adam", "mse")
    with pytest.raises(ValueError, match="'sgd' uses sums"):
        Key.of(symmetry, {"input": 2 * turn}, "sgd", "mse")
    with pytest.raises(KeyError):
        Key.of(symmetry, {"nothing": turn}, "sgd")


@pytest.mark.parametrize(
    ("smallest", "said"), [(0.0, "condition number inf"), (1e-9, r"1\.0e\+09, above the limit")]
)
def test_badly_conditioned_matrices_are_refused(
    symmetry: ParameterSymmetry, smallest: float, said: str
) -> None:
    matrix = torch.diag(torch.tensor([1.0] * 5 + [smallest], dtype=torch.float64))
    with pytest.raises(ValueError, match=said):
        Key.of(symmetry, {"input": matrix})


@pytest.mark.parametrize("ending", ["safetensors", "json"])
def test_a_file_gives_the_key_back(
    symmetry: ParameterSymmetry, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"key.{ending}"
    key = Key.generate(symmetry, generator(), ("adam", "clip_grad_norm"), "cross-entropy")
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = Key.load(path, symmetry)
    assert read.fingerprint == key.fingerprint
    assert read.acting == key.acting and read.loss == key.loss and read.updates == key.updates
    assert torch.equal(read.element["input"].diagonal, key.element["input"].diagonal)
    assert Key.generate(symmetry, generator(1), "adam").fingerprint != key.fingerprint


def test_keys_of_other_models_are_named(symmetry: ParameterSymmetry, tmp_path: Path) -> None:
    path, other = tmp_path / "key.safetensors", freed(mlp(4))
    Key.generate(other, generator(), "sgd").save(path)
    with pytest.raises(ValueError, match=f"{other.fingerprint[:12]}.*{symmetry.fingerprint[:12]}"):
        Key.load(path, symmetry)


def test_altered_files_are_refused(symmetry: ParameterSymmetry, tmp_path: Path) -> None:
    path = tmp_path / "key.safetensors"
    key = Key.generate(symmetry, generator(), "adam")
    key.save(path)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    name = next(n for n in tensors if n.endswith("diagonal.input"))
    for changed in (
        tensors | {name: -tensors[name]},
        {n: tensors[n] for n in tensors if n != name},
    ):
        save_file(changed, path, header)
        with pytest.raises(ValueError, match="altered|cannot be read"):
            Key.load(path, symmetry)
    parts = json.loads(header["parts"])
    parts[0]["key"]["updates"] = ["sgd"]  # would let it be used where it was not made for
    save_file(tensors, path, header | {"parts": json.dumps(parts)})
    with pytest.raises(ValueError, match="altered|cannot be read"):
        Key.load(path, symmetry)


def test_what_no_file_can_hold_is_not_saved(symmetry: ParameterSymmetry, tmp_path: Path) -> None:
    own = Key.generate(symmetry, generator(), Update("own", Kind.ENTRYWISE))
    with pytest.raises(ValueError, match="could not be read back"):
        own.save(tmp_path / "key")
    mine = Key.generate(symmetry, generator(), "sgd", Loss("mine", Permutation))
    with pytest.raises(ValueError, match="could not be read back"):
        mine.save(tmp_path / "key")
    assert not [*tmp_path.iterdir()]


def test_fingerprints_do_not_depend_on_the_file(symmetry: ParameterSymmetry) -> None:
    first, again = (Key.generate(symmetry, generator(5), "adam") for _ in range(2))
    assert first.fingerprint == again.fingerprint


def test_scales_need_rates_and_some_steps_have_none(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "sgd", "mse", scalings=True)
    assert key.learning_rates is not None and "0.weight" in key.learning_rates.scales
    assert Key.generate(symmetry, generator(), "sgd", "mse").learning_rates is None
    with pytest.raises(ValueError, match="no rates are known"):
        assert Key.generate(symmetry, generator(), "adafactor", scalings=True).learning_rates


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.BatchNorm1d(6, affine=False)])
def test_a_norm_of_the_inputs_is_named(norm: nn.Module) -> None:
    found = freed(nn.Sequential(norm, nn.Linear(6, 3)))
    with pytest.raises(ValueError, match="a norm keeps lengths only|is normalised by itself"):
        Key.of(found, {"input": torch.randn(6, 6, dtype=torch.float64)}, "sgd")


def test_a_key_is_shown_by_its_fingerprint(symmetry: ParameterSymmetry) -> None:
    key = Key.generate(symmetry, generator(), "adam", "cross-entropy")
    assert repr(key).startswith(f"Key({key.fingerprint[:12]}…, made for adam, moving input by")
    assert len(repr(key)) < 400
