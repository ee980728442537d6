"""Temporary folders: of the living they stay, of the dead they go."""

import fcntl
import os
from pathlib import Path

import pytest

from paramsym.formats import drafts
from paramsym.formats.drafts import SUFFIX, remove_stale, replacing, workshop


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_workshop_goes_with_its_block(tmp_path: Path):
    with pytest.raises(KeyError), workshop(tmp_path, "name") as folder:
        (folder / "half").write_text("x")
        assert left(tmp_path) == [folder.name] and folder.name.startswith(".name.")
        raise KeyError
    assert left(tmp_path) == []


def test_the_folder_of_a_living_writer_stays(tmp_path: Path):
    with workshop(tmp_path, "name") as folder:
        assert remove_stale(tmp_path) == [] and folder.is_dir()


def test_the_folder_of_a_dead_writer_goes(tmp_path: Path):
    stale = tmp_path / f".name.abcdefgh{SUFFIX}"
    (stale / "made").mkdir(parents=True)
    (stale / "made" / "half").write_text("x")
    assert remove_stale(tmp_path) == [stale] and left(tmp_path) == []


def test_nothing_else_goes(tmp_path: Path):
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / f".link.abcdefgh{SUFFIX}").symlink_to(target)
    (tmp_path / f".file.abcdefgh{SUFFIX}").write_text("x")
    (tmp_path / ".other.abcdefgh.tmp").mkdir()
    (tmp_path / f"seen{SUFFIX}").mkdir()
    before = left(tmp_path)
    assert remove_stale(tmp_path) == [] and left(tmp_path) == before


def test_a_folder_that_is_taken_before_it_is_locked_is_made_anew(tmp_path: Path, monkeypatch):
    """The cleaner comes between the making of a folder and its lock."""
    locked, taken = drafts._locked, []

    def late(folder: Path, wait: bool) -> int | None:
        if wait and len(taken) < 2:
            taken.extend(remove_stale(tmp_path))
        return locked(folder, wait)

    monkeypatch.setattr(drafts, "_locked", late)
    with workshop(tmp_path, "name") as folder:
        assert len(taken) == 2 and left(tmp_path) == [folder.name]
        assert remove_stale(tmp_path) == []


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch):
    def unsupported(*arguments: object) -> None:
        raise OSError(os.strerror(95))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    (tmp_path / f".name.abcdefgh{SUFFIX}").mkdir()
    assert remove_stale(tmp_path) == []
    with workshop(tmp_path, "other") as folder:
        assert folder.is_dir()
    monkeypatch.setattr(drafts, "fcntl", None)  # Windows
    assert remove_stale(tmp_path) == []
    with workshop(tmp_path, "other") as folder:
        assert folder.is_dir()


def test_what_a_killed_writer_left_goes_with_the_next_whoever_writes(tmp_path: Path):
    """A file that is replaced leaves the same kind of folder as a checkpoint, and removes both."""
    (tmp_path / f".element.json.abcdefgh{SUFFIX}").mkdir()
    with replacing(tmp_path / "lock") as draft:  # by a name that the folder itself uses
        (folder,) = {p for p in tmp_path.iterdir()}
        assert folder.name.endswith(SUFFIX) and draft.is_relative_to(folder)
        assert remove_stale(tmp_path) == []
        draft.write_text("whole")
    assert left(tmp_path) == ["lock"] and (tmp_path / "lock").read_text() == "whole"


def test_temporary_folders_are_made_in_one_place():
    """Checkpoints, elements and pages are written by one mechanism."""
    source = Path(drafts.__file__).parents[1]
    makers = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "mkdtemp" in path.read_text(encoding="utf-8")
    }
    assert makers == {"formats/drafts.py"}
    users = {
        path.stem
        for path in source.rglob("*.py")
        if "paramsym.formats.drafts import" in path.read_text(encoding="utf-8")
    }
    assert users >= {"stored", "writing"}


def test_a_relative_path_is_where_the_writer_began(tmp_path: Path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "new").write_text("untouched")
    monkeypatch.chdir(tmp_path)
    with replacing(Path("new")) as draft:
        os.chdir("elsewhere")
        draft.write_text("written")
    assert (tmp_path / "new").read_text() == "written"
    assert (tmp_path / "elsewhere" / "new").read_text() == "untouched"
