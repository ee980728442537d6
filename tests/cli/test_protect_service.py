"""`paramsym protect serve|query`: a network that is asked in the basis of who asks."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.privacy.inference import ModelOwner
from paramsym.privacy.inference.server import serving
from tests.cli.test_protect import CLASSIFIER, OTHER, Classifier
from tests.processes import fork

MASKED = f"{__name__}:Masked"
PROGRAM = "import sys; from paramsym.cli import main; sys.argv[0] = 'paramsym'; main()"


class Masked(Classifier):
    """A second input, which no key moves."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * scale.unsqueeze(-1)

    def example_inputs(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        (x,) = super().example_inputs()
        return {"x": x, "scale": torch.ones(len(x), dtype=torch.float64)}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A service of `Classifier` in this process."""
    model = Classifier().eval()
    example = model.example_inputs()
    symmetry = find_symmetry(model, example, free_inputs=True)
    with serving(ModelOwner.of(model, symmetry, example[0])) as url:
        yield url


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.random.default_rng(0).normal(size=(40, 6)), targets=np.arange(40) % 4)
    return path


def expected(data: Path) -> np.ndarray:
    with np.load(data) as file, torch.no_grad():
        return Classifier()(torch.from_numpy(file["x"])).numpy()


@pytest.mark.parametrize("more", [[], ["--orthogonal"]])
def test_the_answers_are_those_of_the_plain_network(run, address, data: Path, more: list[str]):
    out = data.with_name("answers.npz")
    call = ("protect", "query", address, CLASSIFIER, "--data", data, "--out", out)
    found = json.loads(run(*call, "--dtype", "float64", "--json", *more).stdout)
    assert found["outputs"] == {"output": [40, 4]} and found["samples"] == 40
    assert found["notes"] == ["'targets' stay behind: no input of that name"]
    with np.load(out) as file:
        assert np.abs(file["output"] - expected(data)).max() < 1e-12


def test_what_the_service_or_the_samples_are_not(run, address, data: Path, tmp_path: Path):
    out = tmp_path / "answers.npz"

    def refused(url: str, source: str, path: Path = data, *more: object) -> str:
        call = ("protect", "query", url, source, "--data", path, "--out", out, *more)
        said = run(*call, "--dtype", "float64", code=2).stderr
        assert not out.exists()
        return " ".join(said.split())

    other = find_symmetry(Classifier(), Classifier().example_inputs(), free_inputs=True)
    assert "they belong to the symmetry" in refused(address, CLASSIFIER, data, "--free-outputs=all")
    assert "has the shape" in refused(address, OTHER)  # more units
    assert "it does not answer" in refused("http://127.0.0.1:9", CLASSIFIER)
    assert "no address of a service" in refused("127.0.0.1", CLASSIFIER)
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((3, 5)))
    assert "has shape (3, 5)" in refused(address, CLASSIFIER, wrong)
    np.savez(wrong, x=np.full((3, 6), np.nan))
    assert "not finite" in refused(address, CLASSIFIER, wrong)
    np.savez(wrong, z=np.zeros((3, 6)), y=np.zeros(3))
    assert "no input 'x'" in refused(address, CLASSIFIER, wrong)
    broken = tmp_path / "broken.json"
    broken.write_text(other.to_json()[:-40])
    assert "a symmetry as protect serve" in refused(address, str(broken))


def test_a_service_of_its_own_says_where_it_is_and_writes_its_symmetry(
    run, data: Path, tmp_path: Path
):
    """In a process of its own, and asked with nothing but that file."""
    symmetry, out = tmp_path / "symmetry.json", tmp_path / "answers.safetensors"
    arguments = ["protect", "serve", CLASSIFIER, "--port", "0", "--symmetry", str(symmetry)]
    with fork(PROGRAM, *arguments, "--json") as process:
        try:
            said = json.loads(process.stdout.readline())
            call = ("protect", "query", said["address"], symmetry, "--data", data, "--out", out)
            run(*call, "--dtype", "float64")
        finally:
            process.send_signal(signal.SIGINT)
            ended = process.wait(20)
    assert ended in (0, 130, -signal.SIGINT)
    assert said["fingerprint"] == ParameterSymmetry.from_json(symmetry.read_text()).fingerprint
    assert np.abs(load_file(out)["output"].numpy() - expected(data)).max() < 1e-12


def test_inputs_that_no_key_moves_are_sent_as_they_are_and_named(run, tmp_path: Path):
    model = Masked().eval()
    symmetry = find_symmetry(model, model.example_inputs(), free_inputs="x")
    data, out = tmp_path / "data.npz", tmp_path / "answers.npz"
    np.savez(data, x=np.ones((7, 6)), scale=np.arange(7.0), other=np.ones(7))
    with serving(ModelOwner.of(model, symmetry, model.example_inputs())) as url:
        call = ("protect", "query", url, MASKED, "--data", data, "--out", out)
        found = json.loads(run(*call, "--free-inputs", "x", "--dtype", "float64", "--json").stdout)
    assert found["notes"] == [
        "'other' stay behind: no input of that name",
        "'scale' are sent as they are: no key moves them",
    ]
    with np.load(out) as file:
        assert np.allclose(file["output"][0], 0) and np.abs(file["output"][1:]).max() > 0.1


def test_bad_places_to_listen(run, tmp_path: Path, address: str):
    said = run("protect", "serve", CLASSIFIER, "--host", "0.0.0.0", code=2).stderr
    assert "plain HTTP" in " ".join(said.split())
    port = address.rpartition(":")[2]
    said = run("protect", "serve", CLASSIFIER, "--port", port, code=2).stderr
    assert "nothing can listen there" in said
    text = tmp_path / "symmetry.txt"
    said = run("protect", "serve", CLASSIFIER, "--symmetry", text, code=2).stderr
    assert ".json" in said and not text.exists()


def test_a_missing_package_is_named(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = run("protect", "serve", CLASSIFIER, "--port", "0", code=2).stderr
    assert "pip install 'paramsym[web]'" in said and "uvicorn" in said
