"""What a hostile tester tried: runs that were tampered with, places that are none, odd orders."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save_file

from paramsym import ParameterSymmetry, act
from paramsym.algebra import Orthogonal, Permutation, Scaling
from paramsym.checkpoints import CheckpointError, transform
from paramsym.checkpoints.streaming import journal, layout, stream
from paramsym.structure import fast
from paramsym.structure.axes import parse_axis
from paramsym.structure.panels import act_panels
from paramsym.structure.space import Space
from tests.checkpoints.streaming.conftest import contents

SYMMETRY = ParameterSymmetry(
    {"a": Space("a", Permutation(16)), "b": Space("b", Orthogonal(8))},
    {f"w{k}": (parse_axis("a"), parse_axis("b")) for k in range(6)},
)
SHARDS = 2


class Killed(BaseException):
    pass


class Weights:
    """Two shards without a model, their element, and what a whole run writes."""

    def __init__(self, folder: Path):
        self.source, self.out = folder / "source", folder / "out"
        self.run = folder / ".out.paramsym-run"
        self.draft = self.run / "made" / "out"
        self.element = SYMMETRY.sample(torch.Generator().manual_seed(1))
        write(self.source, 0)
        transform(self.source, folder / "whole", self.element)
        self.whole = contents(folder / "whole")

    def killed_after(self, count: int, source: str | Path = "") -> None:
        """A run that ends when so many pieces are done."""
        add, done = journal.Journal.add, []

        def counting(self: journal.Journal, key, said):
            add(self, key, said)
            done.append(key)
            if len(done) == count:
                raise Killed

        journal.Journal.add = counting  # type: ignore[method-assign]
        try:
            with pytest.raises(Killed):
                transform(source or self.source, self.out, self.element, engine="local:1")
        finally:
            journal.Journal.add = add  # type: ignore[method-assign]

    def resume(self, **settings: bool) -> None:
        transform(self.source, self.out, self.element, resume=True, **settings)  # type: ignore[arg-type]

    def require_whole(self) -> None:
        assert contents(self.out) == self.whole
        assert not self.run.exists()


def write(folder: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(exist_ok=True)
    table = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"w{k}" for k in range(shard, 6, SHARDS)]
        save_file({n: torch.randn(16, 8, generator=generator) for n in names}, folder / file)
        table |= dict.fromkeys(names, file)
    text = str({"weight_map": table}).replace("'", '"')
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    monkeypatch.setattr(layout, "PIECE", 600)  # a tensor each
    return Weights(tmp_path)


def _parts(run: Path) -> list[Path]:
    found = [*run.rglob("*.part")]
    assert found
    return found


MESSES: dict[str, Callable[[Path], object]] = {
    "a part is gone": lambda run: [p.unlink() for p in _parts(run)],
    "a part is short": lambda run: [os.truncate(p, 200) for p in _parts(run)],
    "a file is gone": lambda run: next(run.rglob("*-00001-*")).unlink(),
    "a file is short": lambda run: os.truncate(next(run.rglob("*-00001-*")), 300),
    "the folder is gone": lambda run: shutil.rmtree(run / "made" / "out"),
    "lines without what was written": lambda run: _without_written(run),
    "lines that say nothing": lambda run: _said(run, b'{"piece":"x"}\n{"bytes":"y"}\n'),
}


def _without_written(run: Path) -> None:
    path = run / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{key: said for key, said in line.items() if key != "written"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))


def _said(run: Path, text: bytes) -> None:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(text)


@pytest.mark.parametrize("mess", MESSES)
def test_what_is_lost_of_a_run_is_done_again(weights: Weights, mess: str) -> None:
    weights.killed_after(4)
    MESSES[mess](weights.run)
    weights.resume()
    weights.require_whole()


def test_resuming_looks_at_what_is_there(weights: Weights) -> None:
    transform(weights.source, weights.out, weights.element)
    next(weights.out.glob("*-00001-*")).unlink()
    with pytest.raises(CheckpointError, match="not empty"):
        weights.resume()
    weights.resume(force=True)
    weights.require_whole()


def test_an_old_target_is_not_taken_for_the_new_one(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SYMMETRY.sample(torch.Generator().manual_seed(2))
    transform(weights.source, weights.out, other)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(stream, "settle", killed)
        transform(weights.source, weights.out, weights.element, force=True)
    weights.resume(force=True)
    weights.require_whole()


def test_a_run_has_room_in_what_it_has_taken(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights.killed_after(1)
    usage = shutil.disk_usage(weights.out.parent)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
        weights.resume()
    weights.require_whole()


def test_too_little_room_ends_no_run(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.killed_after(1)
    usage = shutil.disk_usage(weights.out.parent)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="bytes free"):
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=-(1 << 40)))
        weights.resume()
    weights.resume()
    weights.require_whole()


class Failing(MemoryFileSystem):
    """A server that is reset after some reads."""

    protocol = "failing"
    cachable = True
    store: dict = {}
    pseudo_dirs = [""]
    left = 1 << 30

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **settings):
        Failing.left -= mode == "rb"
        if Failing.left < 0:
            raise ConnectionError("reset by peer")
        return super()._open(path, mode, **settings)


@pytest.fixture
def remote(weights: Weights) -> str:
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.left = 1 << 30
    _upload(weights.source)
    return "failing:///m"


def _upload(folder: Path) -> None:
    for path in folder.iterdir():
        with fsspec.filesystem("failing").open(f"/m/{path.name}", "wb") as file:
            file.write(path.read_bytes())


def test_a_server_that_fails_leaves_a_run_to_be_resumed(weights: Weights, remote: str) -> None:
    Failing.left = 5  # the headers of both shards, and three pieces
    with pytest.raises(CheckpointError, match="with --resume"):
        transform(remote, weights.out, weights.element, engine="local:1")
    Failing.left = 1 << 30
    assert len((weights.run / "journal.jsonl").read_bytes().splitlines()) == 4
    transform(remote, weights.out, weights.element, resume=True)
    weights.require_whole()


def test_a_file_that_changed_on_a_server_is_another_one(weights: Weights, remote: str) -> None:
    weights.killed_after(3, remote)
    write(weights.source, 9)
    _upload(weights.source)
    with pytest.raises(CheckpointError, match="another source"):
        transform(remote, weights.out, weights.element, resume=True)


def test_links_are_replaced_and_not_followed(weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("kept")
    weights.out.symlink_to(tmp_path / "other")
    transform(weights.source, weights.out, weights.element, force=True)
    weights.require_whole()
    assert contents(tmp_path / "other") == {"kept": b"kept"}


def test_a_url_of_this_machine_is_a_path(weights: Weights) -> None:
    before = contents(weights.source)
    for out in (weights.source, weights.source / "inside"):
        with pytest.raises(CheckpointError, match="the source"):
            transform(f"file://{weights.source}", out, weights.element, force=True)
    assert contents(weights.source) == before


@pytest.mark.parametrize("name", ["", ".", "..", "/", "x/..", "x" * 240, "x" * 300, "nul\0"])
def test_names_that_are_none(
    weights: Weights, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="name"):
        transform(weights.source, name, weights.element, force=True)


def test_plans_go_to_other_processes(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of large tensors, of which entries are mixed."""
    monkeypatch.setattr(fast, "_SMALL", 1)
    transform(weights.source, weights.out, weights.element, engine="local:1:processes")
    weights.require_whole()


def test_errors_come_back_from_processes() -> None:
    error = CheckpointError("where", "what came", "what was expected", "what to do")
    assert pickle.loads(pickle.dumps(error)).lines() == error.lines()


@pytest.mark.parametrize("only", ["unit", "scale", "stream", "expert"])
def test_copies_that_another_axis_tells_apart(only: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the experts of a mixture, in one tensor."""
    monkeypatch.setattr(fast, "_SMALL", 1)
    spaces = {
        "expert": Space("expert", Permutation(3)),
        "unit": Space("unit", Permutation(4), ("expert",)),
        "scale": Space("scale", Scaling(1), ("expert", "unit")),
        "stream": Space("stream", Orthogonal(5)),
    }
    axes = tuple(map(parse_axis, ("expert", "unit + (unit scale)", "stream")))
    symmetry = ParameterSymmetry(spaces, {"w": axes})
    element = symmetry.sample(torch.Generator().manual_seed(0), only=[only])
    params = {"w": torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(1))}
    expected = act(symmetry, element, params)["w"]
    found = torch.cat([p.clone() for p in act_panels(symmetry, element, "w", params)])
    assert torch.allclose(found, expected, atol=1e-5)


def test_tensors_without_numbers(tmp_path: Path) -> None:
    element = SYMMETRY.sample(torch.Generator().manual_seed(1))
    state = {n: torch.ones(16, 8) for n in SYMMETRY.signature}
    save_file({**state, "none": torch.empty(1 << 40, 0)}, tmp_path / "w.safetensors")
    transform(tmp_path / "w.safetensors", tmp_path / "out.safetensors", element)
