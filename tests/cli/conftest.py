"""The command's runner, and files of every kind that it reads."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from paramsym.cli import app
from tests.folders import write_llama
from tests.models import Small


class Command:
    """Runs `paramsym …` in this process."""

    def __call__(self, *arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == code, f"exit code {result.exit_code}\n{result.output}"
        return result


@pytest.fixture
def run() -> Command:
    return Command()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The weights of `Small` as safetensors."""
    path = tmp_path / "small.safetensors"
    save_file(Small().state_dict(), path, metadata={"origin": "a test"})
    return path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program and two folders, written once: each test has copies, which it may change."""
    place, model = tmp_path_factory.mktemp("made"), Small().eval()
    torch.export.save(torch.export.export(model, model.example_inputs()), place / "small.pt2")
    write_llama(place / "llama")
    write_llama(place / "shards", 2000)
    return place


@pytest.fixture
def program(made: Path, tmp_path: Path) -> Path:
    """`Small` as an exported program."""
    return Path(shutil.copy(made / "small.pt2", tmp_path))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A Hugging Face folder with one file of weights."""
    return shutil.copytree(made / "llama", tmp_path / "llama")


@pytest.fixture
def sharded(made: Path, tmp_path: Path) -> Path:
    """The same in shards."""
    return shutil.copytree(made / "shards", tmp_path / "shards")
