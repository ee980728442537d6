"""`paramsym relu-equal` through its runner: output and exit codes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from paramsym import relu
from paramsym.cli import app

EQUAL, VERIFY = "relu-equal", "relu-verify"


class Runner(CliRunner):
    """Runs one of the commands."""

    def invoke(self, command, args):
        return super().invoke(app, [command, *args])


RUNNER = Runner()

ABS = [([["1"], ["-1"]], ["0", "0"]), ([["1", "1"]], ["0"])]
OTHER = [([["1"]], ["0"]), ([["2"]], ["0"])]


def write(folder, name, net):
    path = folder / name
    path.write_text(json.dumps(relu.as_network(net).to_json()), encoding="utf-8")
    return str(path)


def test_equal_different_and_json(tmp_path):
    a, b = write(tmp_path, "a.json", ABS), write(tmp_path, "b.json", OTHER)
    same = RUNNER.invoke(EQUAL, [a, a])
    assert same.exit_code == 0 and same.stdout.startswith("EQUAL")
    other = RUNNER.invoke(EQUAL, [a, b, "--exact"])
    assert other.exit_code == 1 and "f(x)" in other.stdout
    data = json.loads(RUNNER.invoke(EQUAL, [a, b, "--exact", "--json"]).stdout)
    assert data["kind"] == "DIFFERENT" and data["witness"] and data["values"]


def test_box(tmp_path):
    a = write(tmp_path, "a.json", ABS)
    b = write(tmp_path, "b.json", [([["1"]], ["0"]), ([["1"]], ["0"])])
    assert RUNNER.invoke(EQUAL, [a, b, "--exact", "--box", "0", "1"]).exit_code == 0
    assert RUNNER.invoke(EQUAL, [a, b, "--exact", "--box", "-1", "1"]).exit_code == 1


def test_undecided_has_its_own_exit_code(tmp_path):
    import numpy as np
    from test_deciding import _hide

    a, b = _hide(np.random.default_rng(0))
    files = [write(tmp_path, "a.json", a), write(tmp_path, "b.json", b)]
    result = RUNNER.invoke(EQUAL, [*files, "--exact", "--budget", "0.5"])
    assert result.exit_code == 3 and "Joint cells" in result.stderr


def test_safetensors_and_exported_programs(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 12) if k % 24 == 0 else torch.nn.ReLU()
                                if k % 2 else torch.nn.Linear(12, 12 if k < 22 else 1)
                                for k in range(0, 23)])  # fmt: skip
    save_file(net.state_dict(), str(tmp_path / "a.safetensors"))
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3),)), str(tmp_path / "b.pt2"))
    result = RUNNER.invoke(EQUAL, [str(tmp_path / "a.safetensors"), str(tmp_path / "b.pt2")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.json", "{", "no JSON"),
        ("a.json", '[{"W": [["x"]], "b": ["0"]}]', "'x'"),
        ("a.json", '[{"W": [[NaN]], "b": [0]}]', "NaN"),
        ("a.json", '[{"W": [[1]], "b": [0], "activation": "gelu"}]', "gelu"),
        ("a.bin", "", "suffix"),
        ("a.safetensors", "junk", "safetensors"),
        ("a.pt2", "junk", "torch.export"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_errors_have_exit_code_two_and_say_where(tmp_path, name, content, words):
    bad = tmp_path / name
    bad.write_text(content, encoding="utf-8")
    good = write(tmp_path, "good.json", ABS)
    result = RUNNER.invoke(EQUAL, [str(bad), good])
    assert result.exit_code == 2 and words in result.stderr and name in result.stderr


def test_missing_file_and_missing_argument(tmp_path):
    good = write(tmp_path, "good.json", ABS)
    result = RUNNER.invoke(EQUAL, [good, str(tmp_path / "none.json")])
    assert result.exit_code == 2 and "no file" in result.stderr
    assert RUNNER.invoke(EQUAL, [good]).exit_code == 2
    data = json.loads(RUNNER.invoke(EQUAL, [good, "none.json", "--json"]).stdout)
    assert data["kind"] == "ERROR"


def test_safetensors_with_other_tensors_are_refused(tmp_path):
    save_file({"conv.weight": torch.zeros(2, 2, 3, 3)}, str(tmp_path / "c.safetensors"))
    with pytest.raises(relu.ReLUError, match="conv.weight"):
        relu.read_network(tmp_path / "c.safetensors")
    save_file({"0.weight": torch.zeros(2, 2), "norm.weight": torch.zeros(2)},
              str(tmp_path / "n.safetensors"))  # fmt: skip
    with pytest.raises(relu.ReLUError, match="norm.weight"):
        relu.read_network(tmp_path / "n.safetensors")


# ------------------------------------------------------------------ stored in less than float64


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6), torch.nn.ReLU(),
        torch.nn.Linear(6, 2),
    ).to(dtype)  # fmt: skip


def test_a_transformed_checkpoint_is_equal_up_to_its_storage(tmp_path):
    program = torch.export.export(model(), (torch.zeros(3, 4),))
    files = [str(tmp_path / name) for name in ("a.pt2", "b.pt2")]
    torch.export.save(program, files[0])
    moved = RUNNER.invoke("transform", [*files, "--seed", "3"])
    assert moved.exit_code == 0, moved.output
    for extra in ([], ["--box", "-1", "1"], ["--tolerance", "1e-5"]):
        result = RUNNER.invoke(EQUAL, [*files, *extra])
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("EQUAL_TO_PRECISION")
    assert RUNNER.invoke(EQUAL, [*files, "--tolerance", "1e-12"]).exit_code in (1, 3)
    assert RUNNER.invoke(EQUAL, [*files, "--exact"]).exit_code == 1
    data = json.loads(RUNNER.invoke(EQUAL, [*files, "--json"]).stdout)
    assert data["kind"] == "EQUAL_TO_PRECISION"
    assert 0 < data["bounds"]["lower"] <= data["bounds"]["upper"] <= data["bounds"]["precision"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_copies_say_how_far_apart_they_are(tmp_path, dtype):
    save_file(model().state_dict(), str(tmp_path / "a.safetensors"))
    save_file(model(dtype).state_dict(), str(tmp_path / "b.safetensors"))
    files = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    result = RUNNER.invoke(EQUAL, [*files, "--box", "-1", "1"])
    assert result.exit_code == 0 and "|f - g| <= " in result.stdout
    edited = model(dtype)
    with torch.no_grad():
        next(edited[4].parameters()).add_(1.0)
    save_file(edited.state_dict(), str(tmp_path / "c.safetensors"))
    result = RUNNER.invoke(EQUAL, [files[0], str(tmp_path / "c.safetensors"), "--box", "-1", "1"])
    assert result.exit_code == 1 and "<= sup |f - g| <=" in result.stdout


@pytest.mark.parametrize("option, value", [("--tolerance", "-1"), ("--tolerance", "nan"),
                                           ("--budget", "nan"), ("--budget", "-3")])  # fmt: skip
def test_tolerances_and_budgets_that_are_none_are_bad_input(tmp_path, option, value):
    a = write(tmp_path, "a.json", ABS)
    assert RUNNER.invoke(EQUAL, [a, a, option, value]).exit_code == 2
    assert RUNNER.invoke(EQUAL, [a, a, "--exact", "--tolerance", "1e-3"]).exit_code == 2


def test_numbers_with_huge_exponents_are_bad_input_at_once(tmp_path):
    bad = tmp_path / "bad.json"
    digits = "[" + "1" * 9999 + "]"
    for text in ('["1e100000000"]', "[1e100000000]", '["-1e-99999999999999999999"]', digits):
        bad.write_text('[{"W": [' + text + '], "b": [0]}]', encoding="utf-8")
        result = RUNNER.invoke(EQUAL, [str(bad), str(bad)])
        assert result.exit_code == 2 and "expected" in result.stderr, text
    good = write(tmp_path, "good.json", ABS)
    assert RUNNER.invoke(EQUAL, [good, good, "--box", "0", "1e100000000"]).exit_code == 2


# ------------------------------------------------------------------ certificates


def test_verdicts_are_written_and_verified(tmp_path):
    a, b = write(tmp_path, "a.json", ABS), write(tmp_path, "b.json", OTHER)
    for pair, code in (((a, a), 0), ((a, b), 1)):
        file = str(tmp_path / f"{code}.json")
        assert RUNNER.invoke(EQUAL, [*pair, "--exact", "--certificate", file]).exit_code == code
        proved = RUNNER.invoke(VERIFY, [file, *pair])
        assert proved.exit_code == 0 and proved.stdout.startswith("PROVED: ")
        text = Path(file).read_text(encoding="utf-8").replace('"reason": "', '"reason": "on Mars, ')
        said = tmp_path / f"said-{code}.json"
        said.write_text(text, encoding="utf-8")
        assert RUNNER.invoke(VERIFY, [str(said), *pair]).stdout == proved.stdout
        wrong = (a, b) if code == 0 else (b, a)
        assert RUNNER.invoke(VERIFY, [file, *wrong]).exit_code == 1
        again = RUNNER.invoke(EQUAL, [*pair, "--exact", "--certificate", file])
        assert again.exit_code == 2 and "exists" in again.stderr  # nothing is overwritten
    other = RUNNER.invoke(VERIFY, [str(tmp_path / "0.json"), a, b, "--json"])
    assert other.exit_code == 1 and json.loads(other.stdout)["proved"] is False


def test_truncated_certificates_and_missing_files(tmp_path):
    a, file = write(tmp_path, "a.json", ABS), tmp_path / "verdict.json"
    RUNNER.invoke(EQUAL, [a, a, "--certificate", str(file)])
    text = file.read_text(encoding="utf-8")
    for cut in range(0, len(text), max(1, len(text) // 12)):
        file.write_text(text[:cut], encoding="utf-8")
        result = RUNNER.invoke(VERIFY, [str(file), a, a])
        assert result.exit_code == 1 and "NOT PROVED" in result.stdout
    assert RUNNER.invoke(VERIFY, [str(tmp_path / "none.json"), a, a]).exit_code == 2
    assert RUNNER.invoke(VERIFY, [str(file), a, str(tmp_path / "none.json")]).exit_code == 2
    named = RUNNER.invoke(VERIFY, [str(file), a, a])
    assert named.exit_code == 1
