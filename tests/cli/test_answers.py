"""What commands print with --json is what the reference says: every key, and its type."""

from pathlib import Path

import numpy as np
import pytest

from paramsym.cli.answers import Key
from paramsym.cli.contents import commands
from paramsym.cli.reference import page
from tests.cli.test_exit_codes import SMALL
from tests.cli.test_exit_codes import arguments as arguments
from tests.cli.test_exit_codes import inputs as inputs
from tests.cli.told import ANSWERS, told, unlike

# Those of the calls that succeed which are quick; the others are seen below.
QUICK = ["inspect", "transform", "balance", "compare", "align", "merge", "export",
         "check-mapping", "transport", "equivariant", "relu-equal", "relu-verify"]  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_what_is_printed_is_what_is_told(run, arguments, name):
    told(run, name, *arguments[name], "--json")


def test_other_ways_through_the_same_commands(run, arguments):
    told(run, "inspect", "inspect", SMALL, "--json")
    for name in ("transform", "balance", "align"):
        told(run, f"{name} --dry-run", *arguments[name], "--dry-run", "--json")
    for tool in ("smoothquant", "spinquant", "quark", "optimizer"):
        told(run, "export", "export", SMALL, "--for", tool, "--json")
    told(run, "watch", "watch", "--json", *arguments["watch"][1:])


def test_what_protect_prints(run, arguments, tmp_path):
    encode = arguments["protect"]
    told(run, "protect encode", *encode, "--json")
    call = ("decode", SMALL, tmp_path / "plain.safetensors", "--weights", encode[3], *encode[4:])
    told(run, "protect decode", "protect", *call, "--json")


def test_what_equivariant_prints_of_data(run, tmp_path):
    images = np.random.default_rng(0).random((8, 2, 2))
    np.savez(tmp_path / "images.npz", x_train=images, x_test=images)
    call = ("--shift", "2x2", "--rank", "1", "--data", tmp_path / "images.npz")
    assert "best" in told(run, "equivariant", "equivariant", *call, "--json")


def test_relu_equal_tells_errors_and_differences(run, arguments, tmp_path):
    _, network, _ = arguments["relu-equal"]
    other = tmp_path / "other.json"
    other.write_text(Path(network).read_text().replace("[[1, 1]]", "[[1, 2]]"))
    call = ("relu-equal", network, other, "--json")
    assert told(run, "relu-equal", *call, "--box", "-1", "1", code=1)["witness"]
    told(run, "relu-equal", "relu-equal", network, tmp_path / "none.json", "--json", code=2)


def test_every_command_has_keys_and_a_wrong_one_would_be_seen():
    dry = {f"{name} --dry-run" for name in ("transform", "balance", "quantize-prep", "align")}
    assert set(ANSWERS) == {name for _, name, _ in commands()} | dry
    said = [Key("a", "whole", ""), Key("b[].c?", "text", ""), Key("b", "[]object", ""),
            Key("d.e", "{}number?", "")]  # fmt: skip
    good = {"a": 1, "b": [{"c": "x"}, {}], "d": {"e": {"x": 0.5, "y": 1}}}
    assert unlike(good, said) == []
    assert unlike({**good, "a": "1"}, said) == ["a is '1', no whole"]
    assert unlike({**good, "a": True}, said) == ["a is True, no whole"]
    assert unlike({**good, "f": 1}, said) == ["f is not told"]
    assert unlike({**good, "d": {}}, said) == ["d.e is missing"]
    assert unlike({**good, "b": [{"c": None}]}, said) == ["b[].c is null"]
    assert unlike({**good, "b": {}}, said) == ["b is no []object"]


def test_the_page_of_all_options_has_every_command_option_example_and_key():
    shown = page()
    for question, name, entry in commands():
        section = shown.split(f"\n### `paramsym {name}`")[1].split("\n### ")[0]
        assert f"\n## {question}\n" in shown and "`--quiet`" in section
        assert all(call in section for call in entry.examples)
        assert all(f"| `{key.path}` | `{key.kind}` |" in section for key in ANSWERS[name])
    transform = shown.split("\n### `paramsym transform`")[1].split("\n### ")[0]
    assert "paramsym transform SOURCE OUT [OPTIONS]" in transform
    assert "| `--strength X` | `1.0` | How far to move" in transform
    assert "| `--seed N` | `0` |" in transform and "`--dry-run --json`" in transform
    assert "`--for awq\\|smoothquant\\|spinquant\\|quark\\|optimizer` | needed |" in shown
