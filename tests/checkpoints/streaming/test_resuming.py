"""However a run ends, another one leaves the same bytes, and nothing beside them."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paramsym.checkpoints import CheckpointError, transform
from paramsym.checkpoints.streaming import journal, layout
from tests.checkpoints.streaming.conftest import Saved, contents

CALLS = ("pwrite", "fsync", "replace", "unlink", "rmdir")


class Counted:
    """Counts calls of the system, and does something at one of them."""

    def __init__(self, at: int, then: Callable[[], None]):
        self.at, self.then, self.count = at, then, 0

    def __enter__(self) -> Counted:
        self.before = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._counting(self.before[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self.before.items():
            setattr(os, name, call)

    def _counting(self, call):
        def counted(*arguments, **settings):
            self.count += 1
            if self.count == self.at:
                self.then()
            return call(*arguments, **settings)

        return counted


def moved(saved: Saved, out: Path, **settings: object):
    return transform(
        saved.path, out, saved.element, verify=False, engine="local:1", **settings
    )  # fmt: skip


def killed(saved: Saved, out: Path, at: int, **settings: object) -> bool:
    """Run in a process that kills itself at a call of the system; whether it came to it."""
    child = os.fork()
    if not child:  # pragma: no cover
        try:
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            with Counted(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                moved(saved, out, **settings)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def beside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def whole(saved: Saved, tmp_path: Path) -> dict[str, bytes]:
    """What a run that nobody interrupts leaves: the folder, the element and the record."""
    (tmp_path / "once").mkdir()
    moved(saved, tmp_path / "once" / "out")
    found = contents(tmp_path / "once")
    for path in sorted((tmp_path / "once").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "once").rmdir()
    return found


def in_folder(path: Path) -> dict[str, bytes]:
    """The same, with the place of the target taken out of the record."""
    return {
        name: data.replace(str(path).encode(), b"HERE") for name, data in contents(path).items()
    }


def test_every_kill_is_resumed_to_the_same_bytes(
    saved: Saved, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with Counted(-1, lambda: None) as counted:
        moved(saved, place / "out")
    calls = counted.count
    expected = in_folder(place)
    assert calls > 40
    for path in sorted(place.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(calls, generator=generator)[:6].tolist()
    for at in sorted({1, 2, calls - 1, calls, *(k + 1 for k in drawn)}):
        assert killed(saved, place / "out", at), at
        if at % 2:  # and once more on the way
            killed(saved, place / "out", at // 2 + 1, resume=True)
        moved(saved, place / "out", resume=True)
        assert in_folder(place) == expected, at
        assert beside(place) == ["out", "out.element.safetensors", "out.record.json"], at
        for path in sorted(place.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def test_what_is_done_is_not_done_again(saved: Saved, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert killed(saved, out, 60)
    lines = (journal.folder_of(out) / "journal.jsonl").read_text().splitlines()
    done = len(lines) - 1
    assert done > 2
    with Counted(-1, lambda: None) as counted:
        moved(saved, out, resume=True)
    again = counted.count
    with Counted(-1, lambda: None) as counted:
        moved(saved, tmp_path / "new")
    assert again <= counted.count - 2 * done


def test_without_resume_what_a_killed_run_left_is_removed(saved: Saved, tmp_path: Path) -> None:
    assert killed(saved, tmp_path / "out", 50)
    assert ".out.paramsym-run" in beside(tmp_path)
    moved(saved, tmp_path / "out")
    assert beside(tmp_path) == ["out", "out.element.safetensors", "out.record.json", "source"]


def test_a_full_disk_keeps_what_is_done(saved: Saved, tmp_path: Path) -> None:
    moved(saved, tmp_path / "expected")
    out = tmp_path / "out"

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for at in (6, 12, 12):
        with (
            Counted(at, full),
            pytest.raises(CheckpointError, match="No space left on device.*--resume"),
        ):
            moved(saved, out, resume=True)
        assert not out.exists()
    moved(saved, out, resume=True)
    assert contents(out) == contents(tmp_path / "expected")


def test_an_interrupt_keeps_what_is_done(saved: Saved, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Counted(40, interrupt), pytest.raises(KeyboardInterrupt):
        moved(saved, tmp_path / "out")
    assert (journal.folder_of(tmp_path / "out") / "journal.jsonl").exists()
    moved(saved, tmp_path / "out", resume=True)
    assert (tmp_path / "out").is_dir() and not journal.folder_of(tmp_path / "out").exists()


def test_only_the_same_request_is_resumed(saved: Saved, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert killed(saved, out, 50)
    other = saved.symmetry.sample(torch.Generator().manual_seed(9))
    with pytest.raises(CheckpointError, match="asked for another element"):
        transform(saved.path, out, other, resume=True, verify=False)
    with pytest.raises(CheckpointError, match="asked for another layout"):
        moved(saved, out, resume=True, shard_size=1 << 30)
    moved(saved, out, resume=True)  # what there is was kept
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        transform(saved.path, out, other, resume=True, verify=False)
    before = contents(out)
    assert moved(saved, out, resume=True).path == out and contents(out) == before


def test_a_journal_that_was_cut_short_is_read_to_its_last_whole_line(
    saved: Saved, tmp_path: Path
) -> None:
    moved(saved, tmp_path / "expected")
    out = tmp_path / "out"
    assert killed(saved, out, 60)
    lines = journal.folder_of(out) / "journal.jsonl"
    lines.write_bytes(lines.read_bytes()[:-9])
    moved(saved, out, resume=True)
    assert contents(out) == contents(tmp_path / "expected")


def test_one_run_at_a_time_writes_a_target(saved: Saved, tmp_path: Path) -> None:
    with journal.journal_of(tmp_path / "out"):
        with pytest.raises(CheckpointError, match="another run writes it at this moment"):
            moved(saved, tmp_path / "out")
        with pytest.raises(CheckpointError, match="another run"):
            moved(saved, tmp_path / "out", resume=True)
    moved(saved, tmp_path / "out")


def test_a_source_that_changes_meanwhile_is_refused(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = sorted(saved.path.glob("*.safetensors"))[-1]
    data = shard.read_bytes()

    def touched() -> None:
        shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def shortened() -> None:
        shard.write_bytes(data[:-5000])

    for change, says in ((touched, "has changed while it was read"), (shortened, "the file")):
        with Counted(5, change), pytest.raises(CheckpointError, match=says):
            moved(saved, tmp_path / "out")
        assert beside(tmp_path) == ["source"]
        shard.write_bytes(data)
    with Counted(40, touched), pytest.raises(CheckpointError):
        moved(saved, tmp_path / "out")
    with pytest.raises(CheckpointError, match="exists|changed|another source") as error:
        killed(saved, tmp_path / "out", 50)
        os.utime(shard)
        moved(saved, tmp_path / "out", resume=True)
    assert "another source" in str(error.value)


def test_the_target_is_no_part_of_the_source(saved: Saved, tmp_path: Path) -> None:
    for out in (saved.path, saved.path / "inside"):
        with pytest.raises(CheckpointError, match="the source"):
            moved(saved, out, force=True)
    assert beside(tmp_path) == ["source"]


def test_long_names_have_a_place_to_grow(saved: Saved, tmp_path: Path) -> None:
    out = tmp_path / ("n" * 230)
    assert len(journal.folder_of(out).name.encode()) < 255
    moved(saved, tmp_path / ("n" * 200))


def test_pieces_are_whole_tensors_in_their_order(saved: Saved) -> None:
    from paramsym.checkpoints import Checkpoint

    found = layout.layout_like(Checkpoint.open(saved.path))
    pieces = list(found.pieces())
    names = [placed.entry.name for piece in pieces for placed in piece.tensors]
    assert len(pieces) > 8 and len(names) == len({*names}) == len(saved.state())
    assert json.loads(found.index[1])["weight_map"].keys() == set(names) if found.index else False
