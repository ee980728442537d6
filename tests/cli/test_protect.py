"""`paramsym protect encode|decode`: weights and data as a key moves them, and back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

CLASSIFIER = f"{__name__}:Classifier"
OTHER = f"{__name__}:Other"
STEPS = 30
WEIGHTS = np.array([1.0, 0.5, 2.0, 1.5])  # of classes


class Classifier(nn.Module):
    """A ReLU network in float64, whose training can be retraced to many digits."""

    width = 9

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, self.width), nn.Linear(self.width, 4)
        generator = torch.Generator().manual_seed(0)
        self.double()
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))

    def example_inputs(self) -> tuple[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return (torch.randn(5, 6, generator=generator, dtype=torch.float64),)


class Other(Classifier):
    """The same with more units."""

    width = 11


class Normed(Classifier):
    """With dropout, whose draws no key moves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.dropout(torch.relu(self.first(x)), 0.5, self.training))


class Doubled(Classifier):
    """Two biases in one sum: one may give to the other, unless both are pulled to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = nn.Linear(6, self.width).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x) + self.beside(x)))


def samples(path: Path, targets: Any = None, x: Any = None, **more: Any) -> Path:
    generator = np.random.default_rng(0)
    drawn, labels = generator.normal(size=(40, 6)), generator.integers(0, 4, 40)
    arrays = {"x": drawn if x is None else x, "targets": labels if targets is None else targets}
    np.savez(path, **arrays, **more)
    return path


def train(state: dict[str, torch.Tensor], data: Path, rate: float, adam: bool) -> dict[str, Any]:
    """What somebody else does: plain PyTorch, which knows of no key."""
    model = Classifier()
    model.load_state_dict(state)
    with np.load(data) as file:
        x, y, each = (torch.from_numpy(file[n]) for n in ("x", "targets", "class_weights"))
    kind: Callable[..., Any] = torch.optim.Adam if adam else torch.optim.SGD
    more: dict[str, Any] = {} if adam else {"momentum": 0.9, "weight_decay": 1e-2}
    optimizer = kind(model.parameters(), lr=rate, **more)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y, each, label_smoothing=0.1).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def distance(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert {*one} == {*two}
    return max(float((one[n] - two[n]).norm() / one[n].norm()) for n in one)


def place_of_imprint(path: Path) -> Path:
    return path.with_name(f"{path.name}.encoded.json")


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_training_elsewhere_retraces_the_plain_one(run, tmp_path: Path, name: str):
    data, out = samples(tmp_path / "data.npz", class_weights=WEIGHTS), tmp_path / "out.safetensors"
    key = tmp_path / "key.safetensors"
    call = ("protect", "encode", CLASSIFIER, out, "--key", key, "--data", data, "--json")
    found = json.loads(run(*call, "--optimizer", name, "--loss", "cross-entropy").stdout)
    assert found["written"] == str(out) and found["error"] < 1e-9 and found["samples"] == 40
    assert found["data"] == str(tmp_path / "out.data.npz")
    assert "x" in found["moved"]  # orders of few may be the identity
    assert key.stat().st_mode & 0o777 == 0o600

    plain, encoded = Classifier().state_dict(), load_file(out)
    assert distance(plain, encoded) > 0.1  # other numbers
    with np.load(data) as before, np.load(found["data"]) as after:
        assert not np.allclose(before["x"], after["x"]) and {*after.files} == {*before.files}
        assert sorted(map(int, np.bincount(after["targets"]))) == sorted(
            map(int, np.bincount(before["targets"]))
        )
    rate, adam = (0.01, True) if name == "adam" else (0.1, False)
    returned = tmp_path / "returned.safetensors"
    save_file(train(encoded, Path(found["data"]), rate, adam), returned)

    back = tmp_path / "back.safetensors"
    call = ("protect", "decode", CLASSIFIER, back, "--weights", returned, "--key", key)
    said = run(*call)
    assert "does not say which key encoded it" in said.stderr
    assert distance(train(plain, data, rate, adam), load_file(back)) < 1e-9
    assert distance(plain, load_file(back)) > 1e-2  # it was trained


def test_the_control_an_optimiser_that_the_key_was_not_made_for(run, tmp_path: Path):
    data, out = samples(tmp_path / "data.npz", class_weights=WEIGHTS), tmp_path / "out.safetensors"
    key, back = tmp_path / "key.safetensors", tmp_path / "back.safetensors"
    call = ("protect", "encode", CLASSIFIER, out, "--key", key, "--data", data, "--seed", 3)
    said = run(*call, "--optimizer", "sgd", "--loss", "cross-entropy").stderr
    assert "the seed is the key" in said
    save_file(train(load_file(out), tmp_path / "out.data.npz", 0.01, True), out)
    run("protect", "decode", CLASSIFIER, back, "--weights", out, "--key", key)
    assert distance(train(Classifier().state_dict(), data, 0.01, True), load_file(back)) > 0.1


def test_keys_come_from_the_system_unless_there_is_a_seed(run, tmp_path: Path):
    def encoded(name: str, *more: object) -> dict[str, torch.Tensor]:
        out, key = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.key.safetensors"
        run("protect", "encode", CLASSIFIER, out, "--key", key, "--optimizer", "sgd", *more)
        return load_file(out)

    assert distance(encoded("a"), encoded("b")) > 0.1
    assert distance(encoded("c", "--seed", 1), encoded("d", "--seed", 1)) == 0
    assert distance(encoded("e", "--seed", 2), encoded("f", "--seed", 1)) > 0.1


@pytest.fixture
def encoded(run, tmp_path: Path) -> tuple[Path, Path]:
    """An encoded file, and its key."""
    out, key = tmp_path / "out.safetensors", tmp_path / "key.safetensors"
    run("protect", "encode", CLASSIFIER, out, "--key", key, "--optimizer", "sgd", "--loss", "mse")
    return out, key


def test_what_came_back_is_written_as_it_was_and_named(run, encoded, tmp_path: Path):
    out, key = encoded
    back = tmp_path / "back.safetensors"
    call = ("protect", "decode", CLASSIFIER, back, "--weights", out, "--key", key)
    found = json.loads(run(*call, "--json").stdout)
    assert found["checked"] and found["notes"] == []
    assert distance(Classifier().state_dict(), load_file(back)) < 1e-12
    assert not back.with_name("back.safetensors.encoded.json").exists()  # it is plain
    assert "named by the checkpoint" in run(*call, "--force").stdout
    raw = key.read_bytes(), out.read_bytes()
    call = ("protect", "decode", CLASSIFIER, out, "--weights", out, "--key", key, "--force")
    assert "this is the source" in run(*call, code=2).stderr
    assert raw == (key.read_bytes(), out.read_bytes())


def test_plain_weights_in_the_place_of_encoded_ones_lose_their_imprint(
    run, encoded, tmp_path: Path
):
    out, key = encoded
    second = tmp_path / "second.safetensors"
    imprint = second.with_name("second.safetensors.encoded.json")
    for place in (second, imprint):
        place.write_bytes((out if place is second else place_of_imprint(out)).read_bytes())
    call = ("protect", "decode", CLASSIFIER, second, "--weights", out, "--key", key)
    assert "there is such a file already" in run(*call, code=2).stderr
    run(*call, "--force")
    assert not imprint.exists() and place_of_imprint(out).exists()


def test_an_imprint_that_is_none_is_refused(run, encoded, tmp_path: Path):
    out, key = encoded
    call = ("protect", "decode", CLASSIFIER, tmp_path / "b.safetensors", "--weights", out)
    for text in ("{", "[]", '{"format": "paramsym-encoded/1", "keys": [{"key": 1}]}', "[" * 9999):
        place_of_imprint(out).write_text(text)
        assert "it cannot be read" in run(*call, "--key", key, code=2).stderr


def test_another_key_is_refused_by_name(run, encoded, tmp_path: Path):
    out, key = encoded
    other, back = tmp_path / "other.safetensors", tmp_path / "back.safetensors"
    second = tmp_path / "second.safetensors"
    call = ("protect", "encode", CLASSIFIER, second, "--key", other, "--json")
    two = json.loads(run(*call, "--optimizer", "sgd", "--loss", "mse").stdout)["fingerprint"]
    one = json.loads(place_of_imprint(out).read_text())["keys"][0]["key"]
    call = ("protect", "decode", CLASSIFIER, back, "--weights", out)
    said = run(*call, "--key", other, code=2).stderr
    assert one[:12] in said and two[:12] in said and one[:12] != two[:12]
    assert not back.exists()
    place_of_imprint(out).unlink()  # lost on the way: nobody can tell
    assert "could not be checked" in run(*call, "--key", other).stderr.replace("\n", " ")
    assert distance(Classifier().state_dict(), load_file(back)) > 0.1


def test_keys_of_other_models_and_files_that_are_none(run, encoded, tmp_path: Path):
    out, key = encoded
    back = tmp_path / "back.safetensors"
    larger, foreign = tmp_path / "larger.safetensors", tmp_path / "foreign.safetensors"
    run("protect", "encode", OTHER, larger, "--key", foreign, "--optimizer", "sgd", "--loss", "mse")
    call = ("protect", "decode", CLASSIFIER, back, "--weights", out, "--key")
    said = run(*call, foreign, code=2).stderr
    assert "belongs to the symmetry" in said and "that of another model" in said
    assert "there is no such file" in run(*call, tmp_path / "nowhere.safetensors", code=2).stderr
    assert "a file that protect encode wrote" in run(*call, out, code=2).stderr
    text = tmp_path / "text.safetensors"
    text.write_text("no key")
    assert "cannot be read" in run(*call, text, code=2).stderr
    assert not back.exists()


def test_an_altered_key_is_refused(run, encoded, tmp_path: Path):
    out, key = encoded
    back, raw = tmp_path / "back.safetensors", bytearray(key.read_bytes())
    raw[-3] ^= 1
    altered = tmp_path / "altered.safetensors"
    altered.write_bytes(raw)
    call = ("protect", "decode", CLASSIFIER, back, "--weights", out, "--key")
    assert "altered" in run(*call, altered, code=2).stderr
    assert not back.exists()
    run(*call, key)  # the control


def test_a_key_is_never_replaced(run, encoded, tmp_path: Path):
    out, key = encoded
    before = key.read_bytes()
    call = ("protect", "encode", CLASSIFIER, out, "--key", key, "--force")
    said = run(*call, "--optimizer", "sgd", code=2).stderr
    assert "a key is never replaced" in said and "--reuse-key" in said
    second = tmp_path / "second.safetensors"
    data = samples(tmp_path / "more.npz", np.zeros((40, 4)))
    call = ("protect", "encode", CLASSIFIER, second, "--key", key, "--reuse-key", "--data", data)
    run(*call)
    assert key.read_bytes() == before
    assert distance(load_file(out), load_file(second)) == 0
    assert "Leave them out" in run(*call, "--seed", 1, "--force", code=2).stderr


def test_keys_upon_keys_come_off_in_turn(run, encoded, tmp_path: Path):
    out, first = encoded
    twice, second = tmp_path / "twice.safetensors", tmp_path / "second.safetensors"
    call = ("protect", "encode", CLASSIFIER, twice, "--weights", out, "--key", second)
    run(*call, "--optimizer", "sgd", "--loss", "mse")
    once, plain = tmp_path / "once.safetensors", tmp_path / "plain.safetensors"
    call = ("protect", "decode", CLASSIFIER, once, "--weights", twice, "--key")
    run(*call, first, code=2)
    run(*call, second)
    run("protect", "decode", CLASSIFIER, plain, "--weights", once, "--key", first)
    assert distance(Classifier().state_dict(), load_file(plain)) < 1e-12


def refusals() -> dict[str, tuple[list[str], Any, str]]:
    """Options, what is in the data file, and what is said."""
    labels = np.arange(40) % 4
    entropy = ["--optimizer", "adam", "--loss", "cross-entropy"]
    squares = ["--optimizer", "sgd", "--loss", "mse"]
    whole = {"x": np.ones((40, 6), np.uint8)}
    return {
        "whole inputs": (squares, whole, "'x' holds whole numbers"),
        "too few targets": (entropy, {"targets": labels[:7]}, "beside 40 samples"),
        "a label too large": (entropy, {"targets": labels + 1}, "the label 4"),
        "labels as real numbers": (entropy, {"targets": 1.0 * labels}, "labels as whole numbers"),
        "labels for squares": (squares, {"targets": labels}, "which this loss compares"),
        "weights of five classes": (entropy, {"class_weights": np.ones(5)}, "has shape (5,)"),
        "weights of no classes": (
            squares,
            {"targets": np.ones((40, 4)), "class_weights": WEIGHTS},
            "no weights of cl",
        ),
        "narrow targets": (squares, {"targets": np.zeros((40, 3))}, "(40, 4), the shape of the"),
        "broken targets": (squares, {"targets": np.full((40, 4), np.nan)}, "not finite"),
        "narrow inputs": (squares, {"x": np.zeros((40, 5))}, "has shape (40, 5)"),
        "an unknown optimiser": (["--optimizer", "sofia"], {}, "nothing is known of its step"),
        "an unknown loss": (["--optimizer", "sgd", "--loss", "hinge"], {}, "nothing is known of"),
        "a loss alone": (["--loss", "mse"], {}, "no --optimizer beside it"),
        "an unknown input": (["--free-inputs", "z"], {}, "'z' is no input"),
        "no axis": (["--free-inputs", "x:y"], {}, "no number as its axis"),
        "muon": (["--optimizer", "muon"], {}, "bfloat16"),
    }


@pytest.mark.parametrize("case", refusals())
def test_bad_input_writes_nothing(run, tmp_path: Path, case: str):
    options, arrays, said = refusals()[case]
    data, out = samples(tmp_path / "data.npz", **arrays), tmp_path / "out.safetensors"
    key = tmp_path / "key.safetensors"
    call = ("protect", "encode", CLASSIFIER, out, "--key", key, "--data", data, *options)
    assert said in run(*call, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_targets_are_not_sent_where_nobody_trains(run, tmp_path: Path):
    data, out = samples(tmp_path / "data.npz", other=np.ones(3)), tmp_path / "out.safetensors"
    call = ("protect", "encode", CLASSIFIER, out, "--key", tmp_path / "key.safetensors")
    said = run(*call, "--data", data).stderr
    assert "'other' stay behind" in said and "'targets' stay behind" in said
    assert "for inference alone" in said
    with np.load(tmp_path / "out.data.npz") as sent, np.load(data) as plain:
        assert sent.files == ["x"]
        x, y = torch.from_numpy(sent["x"]), torch.from_numpy(plain["x"])
    model = Classifier()
    with torch.no_grad():
        expected = model(y)
        model.load_state_dict(load_file(out))
        found = model(x)
    change = torch.linalg.lstsq(expected, found).solution  # one matrix for all outputs
    assert float((expected @ change - found).norm() / found.norm()) < 1e-9
    assert float((expected - found).norm() / found.norm()) > 0.1


def test_draws_that_no_key_moves_are_named(run, tmp_path: Path):
    out, key = tmp_path / "out.safetensors", tmp_path / "key.safetensors"
    call = ("protect", "encode", f"{__name__}:Normed", out, "--key", key)
    said = run(*call, "--optimizer", "sgd", "--loss", "mse", code=2).stderr
    assert "dropout" in said and not key.exists()
    run(*call)  # for inference, nothing is drawn


def test_nothing_is_moved_that_a_decay_of_weights_would_pull_back(run, tmp_path: Path):
    def moved(name: str, *more: str) -> set[str]:
        out, key = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.key.safetensors"
        call = ("protect", "encode", f"{__name__}:Doubled", out, "--key", key, "--json", *more)
        return {*json.loads(run(*call).stdout)["moved"].values()}

    assert "shift" not in moved("trained", "--optimizer", "sgd", "--loss", "mse")
    assert "shift" in moved("asked")  # the control: where nobody trains, nothing decays


def test_a_folder_and_a_program(run, folder: Path, program: Path, tmp_path: Path):
    for source, out in ((folder, tmp_path / "sent"), (program, tmp_path / "sent.pt2")):
        key, back = tmp_path / f"{out.name}.key.safetensors", out.with_name(f"back-{out.name}")
        call = ("protect", "encode", source, out, "--key", key, "--optimizer", "adamw", "--json")
        found = json.loads(run(*call).stdout)
        assert found["error"] <= found["tolerance"] and found["moved"]
        call = ("protect", "decode", out, back, "--key", key, "--json")
        assert json.loads(run(*call).stdout)["checked"]
        if source is folder:
            plain, returned = (load_file(f / "model.safetensors") for f in (folder, back))
            assert (out / "encoded.json").is_file() and not (back / "encoded.json").exists()
        else:
            plain, returned = (torch.export.load(f).state_dict for f in (program, back))
        assert all(torch.equal(plain[n], returned[n]) for n in plain)  # signs and orders
