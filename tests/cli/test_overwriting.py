"""Nothing is replaced without `--force`, and what the system does not let be written is said."""

import errno
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paramsym.checkpoints.factory import FactorySource
from tests.models import Small
from tests.processes import fork

SMALL = "tests.models:Small"


def refused(run, *arguments: object, says: str) -> None:
    shown = run(*arguments, code=2).stderr
    parts = [line.strip().split("  ")[0] for line in shown.strip().splitlines()]
    assert parts[-3:] == ["came", "expected", "instead"] and "Traceback" not in shown
    assert says in re.sub(r"\s+", " ", shown), shown


def test_a_file_stays(run, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    refused(run, "transform", SMALL, out, says="there is such a file already")
    assert out.read_text() == "precious"
    run("transform", SMALL, out, "--force")
    left = sorted(p.name for p in tmp_path.iterdir())
    assert load_file(out)
    assert left == ["out.element.safetensors", "out.record.json", "out.safetensors"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_force_replaces_the_link_alone(run, tmp_path: Path, exists: bool):
    out, target = tmp_path / "out.safetensors", tmp_path / "target"
    if exists:
        target.write_text("precious")
    out.symlink_to(target)
    says = "it is a link to" if exists else "which does not exist"
    refused(run, "transform", SMALL, out, says=says)
    assert out.is_symlink()
    run("transform", SMALL, out, "--force")
    assert not out.is_symlink() and load_file(out)
    assert target.exists() is exists and (not exists or target.read_text() == "precious")


def test_a_pipe_stays_with_force_too(run, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    os.mkfifo(out)
    for force in ([], ["--force"]):
        refused(run, "transform", SMALL, out, *force, says="neither a file nor a folder")
    assert out.is_fifo()


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_replaced_only_by_one_that_has_all_of_its_entries(run, folder, tmp_path):
    out = tmp_path / "moved"
    run("transform", folder, out)
    before = load_file(out / "model.safetensors")
    refused(run, "transform", folder, out, "--seed", 1, says="exists and is not empty")
    (out / "diary.txt").write_text("precious")
    refused(run, "transform", folder, out, "--seed", 1, "--force", says="also holds 'diary.txt'")
    assert torch.equal(before["lm_head.weight"],
                       load_file(out / "model.safetensors")["lm_head.weight"])  # fmt: skip
    (out / "diary.txt").unlink()
    run("transform", folder, out, "--seed", 1, "--force")
    after = load_file(out / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    beside = ["moved.element.safetensors", "moved.record.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama", "moved", *beside]


def test_a_folder_is_not_replaced_by_a_file(run, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    out.mkdir()
    (out / "diary.txt").write_text("precious")
    for force in ([], ["--force"]):
        run("transform", SMALL, out, *force, code=2)
    assert (out / "diary.txt").read_text() == "precious"


def test_a_page_stays(run, tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text("precious")
    call = ("inspect", SMALL, "--no-verify", "--html", page)
    refused(run, *call, says="there is such a file already")
    assert page.read_text() == "precious"
    run(*call, "--force")
    assert "<html" in page.read_text()


def test_pictures_stay(run, tmp_path: Path):
    call = ("equivariant", "--shift", "2x2", "--rank", "1", "--output", tmp_path)
    (tmp_path / "weight_sharing.png").symlink_to(tmp_path / "nowhere")
    shown = run(*call, code=2).stderr
    assert "weight_sharing.png exist there already" in shown and "--force" in shown
    assert (tmp_path / "weight_sharing.png").is_symlink()


# -- the system does not let it be written -----------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_writer_that_the_system_stops(run, tmp_path: Path, monkeypatch, number: int):
    def stopped(self: FactorySource, draft: Path, state: object) -> None:
        draft.write_text("half")
        raise OSError(number, os.strerror(number), str(draft))

    monkeypatch.setattr(FactorySource, "save", stopped)
    refused(run, "transform", SMALL, tmp_path / "o.safetensors", says=os.strerror(number))
    assert not list(tmp_path.iterdir())


def test_another_error_of_a_writer_is_a_defect(run, tmp_path: Path, monkeypatch):
    def stopped(self: FactorySource, draft: Path, state: object) -> None:
        raise RuntimeError("shapes disagree")

    monkeypatch.setattr(FactorySource, "save", stopped)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("transform", SMALL, tmp_path / "o.safetensors", code=4)
    assert not list(tmp_path.glob("o.*"))


# A file may not grow beyond 300 bytes: what a full disk does to a writer, from the system itself.
LIMITED = """
import resource, signal
from paramsym.checkpoints.factory import FactorySource
save = FactorySource.save
def limited(self, draft, state):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
    try:
        save(self, draft, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
FactorySource.save = limited
from paramsym.cli import main
main()
"""


@pytest.mark.parametrize("name", ["o.safetensors", "o.pt"])
def test_real_writers_that_the_system_stops(tmp_path: Path, name: str):
    source = tmp_path / f"weights{Path(name).suffix}"
    state = Small().state_dict()
    save_file(state, source) if name.endswith("safetensors") else torch.save(state, source)
    done = fork(LIMITED, "transform", SMALL, tmp_path / name, "--weights", source)
    said = done.communicate()[1]
    assert done.returncode == 2, said
    assert "nothing can be written there" in said and "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


def test_a_disk_that_is_too_small_is_found_beforehand(run, tmp_path: Path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 900, 100))
    monkeypatch.setattr(FactorySource, "save", None)  # is not reached
    refused(run, "transform", SMALL, tmp_path / "o.safetensors", says="has 100 bytes free")


def test_a_missing_folder(run, tmp_path: Path):
    out = tmp_path / "none" / "o.safetensors"
    refused(run, "transform", SMALL, out, says="does not exist")
    refused(run, "transform", SMALL, out, "--dry-run", says="does not exist")


def test_a_folder_that_cannot_be_written_to(run, tmp_path: Path, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(  # the administrator, who may run the tests, may write everywhere
        os, "access", lambda path, mode: path != tmp_path and allowed(path, mode)
    )
    refused(run, "transform", SMALL, tmp_path / "o.safetensors", says="permission to write")


# -- the plan ----------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_says_what_would_be(run, weights: Path, tmp_path: Path):
    import json

    out = tmp_path / "o.safetensors"
    before = sorted(p.name for p in tmp_path.iterdir())
    call = ("transform", SMALL, out, "--weights", weights)
    shown = run(*call, "--dry-run").output
    planned = json.loads(run(*call, "--dry-run", "--json").output)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert "would write" in shown and "bytes of memory" in shown and "would move" in shown
    run(*call)
    header = int.from_bytes(out.read_bytes()[:8], "little") + 8
    assert planned["bytes"] == out.stat().st_size - header
    assert planned["memory"] >= 3 * planned["bytes"] and planned["free"] > planned["bytes"]


def test_a_dry_run_plans_what_only_names(run, tmp_path: Path):
    import json

    call = ("transform", SMALL, tmp_path / "o.safetensors", "--dry-run", "--json")
    everything = json.loads(run(*call).output)["moves"]
    one = json.loads(run(*call, "--only", everything[0]).output)["moves"]
    assert one == everything[:1] != everything
    run(*call, "--only", "nothing", code=2)


@pytest.mark.filterwarnings("ignore")
def test_a_dry_run_plans_the_files_of_a_folder(run, sharded: Path, tmp_path: Path):
    import json

    out = tmp_path / "moved"
    planned = json.loads(run("transform", sharded, out, "--dry-run", "--json").output)["files"]
    run("transform", sharded, out)
    sizes = {str(p.relative_to(out)): p.stat().st_size for p in out.rglob("*") if p.is_file()}
    assert sizes.keys() == planned.keys()
    assert all(abs(sizes[name] - planned[name]) <= 64 for name in sizes)


@pytest.mark.parametrize("command", ["transform", "balance", "quantize-prep", "align", "merge"])
def test_a_name_of_another_format_is_refused_before_the_work(run, tmp_path, monkeypatch, command):
    def work(*arguments: object) -> None:
        raise AssertionError

    for module in ("equivalent", "alike"):
        monkeypatch.setattr(f"paramsym.checkpoints.{module}.find_symmetry", work)
    sources = [SMALL] if command in ("transform", "balance", "quantize-prep") else [SMALL, SMALL]
    for name in ("out.txt", "out", "out.pt2", "model.safetensors.index.json"):
        refused(run, command, *sources, tmp_path / name, says="after its format")
        assert run(command, *sources, tmp_path / name, code=2).stderr.startswith(
            f"Error in {tmp_path / name}\n"
        )
    assert not [*tmp_path.iterdir()]


def test_the_dry_run_of_a_name_of_another_format(run, tmp_path: Path):
    refused(run, "transform", SMALL, tmp_path / "out.txt", "--dry-run", says="after its format")


def test_a_program_is_written_as_one(run, program: Path, tmp_path: Path):
    refused(run, "transform", program, tmp_path / "out.safetensors", says=".pt2")


def test_a_folder_is_not_named_as_a_file(run, sharded: Path, tmp_path: Path):
    refused(run, "transform", sharded, tmp_path / "out.safetensors", says="Leave the suffix out")
    run("transform", sharded, tmp_path / "out.v2", "--dry-run")
