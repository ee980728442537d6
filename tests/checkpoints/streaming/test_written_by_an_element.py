"""Every command that moves weights writes what the element that it found leads to, from files to
files: against the element of the same search in memory, and against the files that it read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paramsym import GroupElement, act
from paramsym.checkpoints import (
    Ask,
    Checkpoint,
    CheckpointError,
    Plan,
    Writing,
    export_maps,
    open_alike,
    open_checkpoint,
    open_mapped,
    open_movable,
    transform,
    write_aligned,
    write_balanced,
    write_decoded,
    write_encoded,
    write_prepared,
)
from paramsym.checkpoints.folder import FolderSource
from paramsym.checkpoints.source import ByModelName
from paramsym.geometry.balance import balance
from tests.checkpoints.streaming.conftest import TOKENS, Saved, contents, llama

How = Callable[[Saved, Path, Writing], object]


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint[name] for name in checkpoint}


def balanced(saved: Saved, out: Path, how: Writing) -> object:
    return write_balanced(open_movable(str(saved.path)), out, how=how).written


def narrowed(saved: Saved, out: Path, how: Writing) -> object:
    return write_balanced(open_movable(str(saved.path)), out, "range", how=how).written


def prepared(saved: Saved, out: Path, how: Writing) -> object:
    return write_prepared(open_checkpoint(str(saved.path)), out, how=how).written


def aligned(saved: Saved, out: Path, how: Writing) -> object:
    other = saved.path.with_name("other")
    if not other.exists():
        transform(saved.path, other, torch.Generator().manual_seed(9), verify=False)
    pair = open_alike([str(other), str(saved.path)], lazily=True)
    return write_aligned(pair, out, how=how).written


def applied(saved: Saved, out: Path, how: Writing) -> object:
    return export_maps(open_mapped(str(saved.path), moved=True), "awq", apply=out, how=how).moved


COMMANDS = {"balance": balanced, "range": narrowed, "quantize-prep": prepared, "align": aligned,
            "export": applied}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_written_is_where_its_element_leads(
    saved: Saved, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paramsym.checkpoints.moved._whole", None)  # nothing is written as a whole
    before, out = contents(saved.path), tmp_path / "out"
    done = COMMANDS[name](saved, out, Writing())
    assert contents(saved.path) == before
    assert done.error is not None and done.error <= 1e-4
    element = GroupElement.load(tmp_path / "out.element.safetensors", saved.symmetry)
    expected, found = act(saved.symmetry, element, saved.state()), state_of(out)
    assert found.keys() == expected.keys()
    for n, tensor in expected.items():
        torch.testing.assert_close(found[n], tensor, rtol=1e-5, atol=1e-6)
    assert {p.name for p in out.iterdir()} == {p.name for p in saved.path.iterdir()}
    record = json.loads((tmp_path / "out.record.json").read_text())
    assert record["operation"] == {"range": "balance"}.get(name, name)
    assert {n for n, (x, y) in record["xxh3_128"].items() if x != y} == {
        n for n in found if not torch.equal(found[n], saved.state()[n])
    }
    assert (tmp_path / "out.record.json").stat().st_mode & 0o077 == 0  # a seed is an element


def test_balance_reads_its_weights_part_by_part(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, int] = {}
    plain = ByModelName.__getitem__

    def counted(self: ByModelName, name: str) -> torch.Tensor:
        read[name] = read.get(name, 0) + 1
        return plain(self, name)

    monkeypatch.setattr(ByModelName, "__getitem__", counted)
    done = write_balanced(open_movable(str(saved.path)), tmp_path / "out")
    expected = balance(saved.symmetry, saved.state())
    assert done.balanced.value == pytest.approx(expected.value, rel=1e-9)
    assert read and max(read.values()) <= 2  # once to balance it, once for what it costs
    shares = [after for _, after in done.shares.values()]
    assert sum(shares) == pytest.approx(expected.value, rel=1e-5)


@pytest.mark.parametrize("name", ["balance", "align"])
def test_a_run_is_planned_and_resumed(saved: Saved, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    COMMANDS[name](saved, tmp_path / "once", Writing())  # makes what it aligns to, too
    there = {p.name for p in tmp_path.iterdir()}
    plan = COMMANDS[name](saved, out, Writing(dry=True))
    assert isinstance(plan, Plan) and plan.tensors and plan.seconds is not None
    assert {p.name for p in tmp_path.iterdir()} == there  # and no file was made

    def stop(line: str) -> None:
        if line.startswith("flushing"):
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="--resume"):
        COMMANDS[name](saved, out, Writing(progress=stop))
    assert not out.exists()
    COMMANDS[name](saved, out, Writing(resume=True))
    assert contents(out) == contents(tmp_path / "once")
    assert {p.name for p in tmp_path.iterdir()} == there | {
        "out", "out.element.safetensors", "out.record.json"
    }  # fmt: skip


def test_a_key_is_written_nowhere_but_in_its_file(saved: Saved, tmp_path: Path) -> None:
    source, key = open_checkpoint(str(saved.path)), tmp_path / "key.safetensors"
    source.inputs = TOKENS
    made = write_encoded(source, tmp_path / "sent", key, Ask(seed=1))
    assert made.error <= 1e-4
    assert {p.name for p in tmp_path.iterdir()} == {"source", "sent", key.name}
    sent = state_of(tmp_path / "sent")
    assert any(not torch.equal(sent[n], t) for n, t in saved.state().items() if n in sent)
    back = open_checkpoint(str(tmp_path / "sent"))
    back.inputs = TOKENS
    write_decoded(back, tmp_path / "back", key)
    for n, tensor in state_of(tmp_path / "back").items():
        torch.testing.assert_close(tensor, saved.state()[n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["balance", "align"])
def test_a_wrong_element_is_not_written(
    saved: Saved, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the model is run with what was written, whoever found the element."""
    COMMANDS[name](saved, tmp_path / "first", Writing())

    def broken(panel: torch.Tensor, *rest: object) -> None:
        if panel.ndim == 2:
            panel[:1] *= 1.5

    monkeypatch.setattr(
        "paramsym.checkpoints.streaming.job.require_finite", lambda job, name, panel: broken(panel)
    )
    with pytest.raises(CheckpointError, match="another function"):
        COMMANDS[name](saved, tmp_path / "out", Writing())
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.record.json").exists()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_network_that_rounds_on_its_way_may_change_by_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """Norms of a Llama compute in float32, of weights in float64, too."""
    saved = Saved(tmp_path, llama().double(), "1GB")
    if loaded:
        monkeypatch.setattr(FolderSource, "streamable", lambda self: None)
    done = transform(saved.path, tmp_path / "out", torch.Generator().manual_seed(1))
    assert done.error is not None and 1e-9 < done.error < 1e-4 == done.tolerance
    monkeypatch.setattr("paramsym.checkpoints.equivalent.tolerance_of", lambda dtypes: 1e-9)
    with pytest.raises(CheckpointError, match="another function"):  # the control
        transform(saved.path, tmp_path / "strict", torch.Generator().manual_seed(1))
