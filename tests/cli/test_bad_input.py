"""Whatever is wrong with the input: a four-part message, exit code 2, and nothing written."""

import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import Small

SMALL = "tests.models:Small"


def refuse(run, tmp_path: Path, *source: object, says: tuple[str, ...]) -> str:
    """Both commands refuse the source with the same words; neither leaves a file behind."""
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    head, *rest = source
    folder = Path(str(head)).is_dir()
    page, out = tmp_path / "page.html", tmp_path / ("out" if folder else "out.safetensors")
    shown = ""
    for arguments in (("inspect", *source, "--html", page), ("transform", head, out, *rest)):
        result = run(*arguments, code=2)
        shown = result.stderr
        parts = [line.strip().split("  ")[0] for line in shown.splitlines()]
        assert parts[0].startswith("Error in ") and parts[-3:] == ["came", "expected", "instead"]
        assert "Traceback" not in shown
        flat = re.sub(r"\s+", " ", shown)
        for text in says:
            assert text in flat, f"{text!r} is not in\n{shown}"
        assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    return shown


def changed(weights: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy of a weights file with tensors replaced, added or removed."""
    state = load_file(weights)
    for name, tensor in tensors.items():
        name = name.replace("__", ".")
        state.pop(name, None)
        if tensor is not None:
            state[name] = tensor
    path = weights.with_name("bad.safetensors")
    save_file(state, path)
    return path


def test_a_wrong_shape(run, weights, tmp_path):
    bad = changed(weights, first__weight=torch.zeros(7, 6))
    says = ("'first.weight' has shape (7, 6)", "the model's shape (7, 5)", "bad.safetensors")
    refuse(run, tmp_path, SMALL, "--weights", bad, says=says)


def test_a_missing_tensor(run, weights, tmp_path):
    bad = changed(weights, last__bias=None)
    refuse(run, tmp_path, SMALL, "--weights", bad, says=("'last.bias' missing",))


def test_an_extra_tensor(run, weights, tmp_path):
    bad = changed(weights, more__weight=torch.zeros(2))
    says = ("'more.weight' unknown to the model", "exactly the 9 tensors")
    refuse(run, tmp_path, SMALL, "--weights", bad, says=says)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite(run, weights, tmp_path, value):
    tensor = torch.ones(3, 7)
    tensor[1, 2] = value
    bad = changed(weights, last__weight=tensor)
    says = ("'last.weight' holds", "at [1, 2]", "1 of 21 entries", "finite weights")
    refuse(run, tmp_path, SMALL, "--weights", bad, says=says)


def test_numbers_of_a_factory_that_are_not_finite(run, tmp_path):
    says = ("'first.weight' holds nan at [2, 3]",)
    refuse(run, tmp_path, "tests.models:poisoned", says=says)


def test_shared_storage_in_a_file(run, tmp_path):
    state = Small().state_dict()
    state["first.bias"] = state["norm.weight"]
    torch.save(state, tmp_path / "bad.pt")
    says = ("share storage, but the model keeps them apart", "first.bias", "norm.weight")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)


def test_overlapping_parts_of_one_storage(run, tmp_path):
    state = Small().state_dict()
    storage = torch.randn(10)
    state["first.bias"], state["norm.weight"] = storage[:7], storage[3:]
    torch.save(state, tmp_path / "bad.pt")
    says = ("share storage but are different parts of it", "clone().contiguous()")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)


def test_shared_storage_in_a_model(run, tmp_path):
    says = ("'first.weight', 'last.weight' share storage",)
    refuse(run, tmp_path, "tests.models:views", says=says)


def test_a_tensor_that_is_not_contiguous(run, tmp_path):
    state = Small().state_dict()
    state["first.weight"] = torch.randn(5, 7).T
    torch.save(state, tmp_path / "bad.pt")
    says = ("'first.weight' is not contiguous (shape (7, 5), strides (1, 7))", "row-major")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)
    refuse(run, tmp_path, "tests.models:transposed", says=("'first.weight' is not contiguous",))


class Surprise:
    """What a pickle could do."""

    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.mark.parametrize("name", ["bad.pt", "bad.pkl", "bad.bin"])
def test_a_pickle(run, tmp_path, name, capfd):
    path = tmp_path / name
    if name == "bad.pkl":
        path.write_bytes(pickle.dumps({"weights": Surprise()}))
    else:
        torch.save({"first.weight": Surprise()}, path)
    says = ("is a pickle with more in it than tensors", "safetensors")
    refuse(run, tmp_path, SMALL, "--weights", path, says=says)
    assert "this must never run" not in capfd.readouterr().out


def test_a_whole_model_is_a_pickle(run, tmp_path):
    torch.save(Small(), tmp_path / "bad.pt")
    says = ("is a pickle with more in it than tensors", "model.state_dict()")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)


def test_a_nested_state_dict(run, tmp_path):
    torch.save({"state_dict": Small().state_dict(), "epoch": 3}, tmp_path / "bad.pt")
    says = ("'state_dict', 'epoch' is no tensor", "a flat dict", "Give --key state_dict")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)


@pytest.mark.parametrize("kept", [0, 5, 100, -10])
def test_a_truncated_safetensors_file(run, weights, tmp_path, kept):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(weights.read_bytes()[:kept])
    says = ("bytes", "a complete safetensors file", "Copy or download the file again")
    refuse(run, tmp_path, SMALL, "--weights", bad, says=says)


def test_a_pickle_that_is_called_safetensors(run, tmp_path):
    torch.save(Small().state_dict(), tmp_path / "bad.safetensors")
    says = ("whatever its name", "safetensors.torch.save_file")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.safetensors", says=says)


def test_a_truncated_archive(run, tmp_path):
    torch.save(Small().state_dict(), tmp_path / "bad.pt")
    content = (tmp_path / "bad.pt").read_bytes()
    (tmp_path / "bad.pt").write_bytes(content[: len(content) // 2])
    says = ("cannot be read", "a complete file")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "bad.pt", says=says)


def test_missing_files_and_folders(run, tmp_path):
    refuse(run, tmp_path, tmp_path / "none.pt2", says=("there is no such file",))
    refuse(run, tmp_path, tmp_path / "none", says=("there is no such file or folder",))
    says = ("none.safetensors", "there is no such file")
    refuse(run, tmp_path, SMALL, "--weights", tmp_path / "none.safetensors", says=says)
    refuse(run, tmp_path, tmp_path, says=("config.json", "there is no such file"))


def test_weights_alone_do_not_say_what_is_computed(run, weights, tmp_path):
    says = ("a file of weights alone", "package.module:factory --weights")
    refuse(run, tmp_path, weights, says=says)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("tests.nowhere:Small", "importing 'tests.nowhere' stopped with ModuleNotFoundError"),
        ("tests.models:Smal", "'tests.models' has no 'Smal'"),
        ("tests.models:number", "it is a int"),
        ("tests.models:broken", "the factory stopped with RuntimeError: no such size"),
        ("tests.models:two_inputs", "no example inputs"),
        ("builtins:dict", "the factory returned a dict"),
    ],
)
def test_bad_factories(run, tmp_path, source, says):
    refuse(run, tmp_path, source, says=(says,))


@pytest.mark.parametrize("text", ["2,x", "2x3:float", "x=2x3,4", "", "2x-3", "3x4:int64<"])
def test_bad_inputs(run, tmp_path, text):
    refuse(run, tmp_path, SMALL, "--inputs", text, says=("--inputs", "2x3x32x32"))


def test_a_model_that_cannot_be_traced(run, tmp_path):
    for command in (["inspect"], ["transform"]):
        out = [tmp_path / "out.safetensors"] if command == ["transform"] else []
        result = run(*command, "tests.models:branching", *out, code=2)
        assert "models.py:" in result.stderr and "the parameter 'first.weight'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_inputs_that_do_not_fit(run, tmp_path):
    result = run("inspect", SMALL, "--inputs", "2x9", "--html", tmp_path / "p.html", code=2)
    assert "input 'x' has shape (2, 9)" in result.stderr and "--inputs 2x5" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_model_without_numbers(run, tmp_path):
    run("inspect", "tests.models:on_meta", "--inputs", "2x5", "--no-verify")
    for arguments in (("inspect",), ("transform", tmp_path / "o.safetensors")):
        command, *rest = arguments
        result = run(command, "tests.models:on_meta", *rest, "--inputs", "2x5", code=2)
        assert "meta device" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_truncated_program(run, program, tmp_path):
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(program.read_bytes()[:3000])
    refuse(run, tmp_path, bad, says=("cut short or no archive", "torch.export.save"))


def test_a_program_with_pickled_inputs(run, tmp_path, program, capfd):
    import io
    import zipfile

    bad, buffer = tmp_path / "bad.pt2", io.BytesIO()
    torch.save(((Surprise(),), {}), buffer)
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(bad, "w") as new:
        for entry in old.namelist():
            pickled = "sample_inputs" in entry
            new.writestr(entry, buffer.getvalue() if pickled else old.read(entry))
    refuse(run, tmp_path, bad, says=("pickled objects", "Unpickling runs code"))
    assert "this must never run" not in capfd.readouterr().out


def test_a_program_has_the_mode_of_its_export(run, program):
    assert "mode was fixed" in run("inspect", program, "--training", code=2).stderr


def test_weights_beside_a_program(run, program, weights, tmp_path):
    says = ("brings its own weights", "Leave --weights out")
    refuse(run, tmp_path, program, "--weights", weights, says=says)


def test_a_folder_that_does_not_exist_for_the_output(run, weights, tmp_path):
    out = tmp_path / "none" / "out.safetensors"
    result = run("transform", SMALL, out, "--weights", weights, code=2)
    assert "does not exist" in result.stderr and not (tmp_path / "none").exists()
    page = tmp_path / "none" / "page.html"
    assert "nothing can be written" in run("inspect", SMALL, "--html", page, code=2).stderr


def test_an_unknown_suffix(run, weights, tmp_path):
    result = run("transform", SMALL, tmp_path / "out.xyz", "--weights", weights, code=2)
    assert "'.xyz'" in result.stderr and not (tmp_path / "out.xyz").exists()


@pytest.mark.filterwarnings("ignore")
class TestFolders:
    """Hugging Face folders."""

    def edit(self, folder: Path, **tensors: torch.Tensor | None) -> None:
        path = folder / "model.safetensors"
        changed(path, **tensors).replace(path)

    def test_a_wrong_shape(self, run, folder, tmp_path):
        self.edit(folder, model__norm__weight=torch.ones(9))
        says = ("'model.norm.weight' has shape (9,)", "the shape (8,)")
        refuse(run, tmp_path, folder, says=says)

    def test_a_missing_and_an_extra_tensor(self, run, folder, tmp_path):
        self.edit(folder, model__norm__weight=None, model__more=torch.ones(2))
        says = ("'model.norm.weight' missing and 'model.more' unknown to the model",)
        refuse(run, tmp_path, folder, says=says)

    def test_numbers_that_are_not_finite(self, run, folder, tmp_path):
        self.edit(folder, model__norm__weight=torch.full((8,), float("nan")))
        says = ("'model.norm.weight' holds nan at [0] (8 of 8",)
        refuse(run, tmp_path, folder, says=says)

    def test_a_truncated_file(self, run, folder, tmp_path):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-7])
        refuse(run, tmp_path, folder, says=("the file is cut short",))

    def test_a_missing_shard(self, run, sharded, tmp_path):
        sorted(sharded.glob("*.safetensors"))[0].unlink()
        refuse(run, tmp_path, sharded, says=("model-00001-of", "there is no such file"))

    def test_no_safetensors(self, run, folder, tmp_path):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        says = ("no safetensors in it, only 'pytorch_model.bin'", "save_pretrained")
        refuse(run, tmp_path, folder, says=says)

    def test_a_configuration_of_nothing(self, run, folder, tmp_path):
        (folder / "config.json").write_text("{")
        refuse(run, tmp_path, folder, says=("config.json", "it cannot be used"))

    def test_an_unknown_architecture(self, run, folder, tmp_path):
        config = folder / "config.json"
        config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaForNothing"))
        refuse(run, tmp_path, folder, says=("the architecture 'LlamaForNothing'",))
