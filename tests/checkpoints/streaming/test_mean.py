"""`merge` writes the mean of several checkpoints from files to files: against that of the library,
which has all of them in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paramsym import act, align, merge
from paramsym.checkpoints import (
    Alike,
    Checkpoint,
    CheckpointError,
    Plan,
    Transformed,
    Writing,
    open_alike,
    write_merged,
)
from paramsym.checkpoints.merged import _LOADED, WrittenMerged
from paramsym.checkpoints.streaming import layout
from paramsym.checkpoints.streaming.job import Job
from paramsym.structure.agreed import digest
from paramsym.structure.symmetry import ParameterSymmetry
from tests.checkpoints.streaming.conftest import Saved, contents, llama
from tests.checkpoints.streaming.test_windows import Folder, orders
from tests.checkpoints.streaming.test_written_by_an_element import state_of

WHOLE = "paramsym.checkpoints.moved._whole"
SHARES = (1.0, 2.0, 5.0)


class Several:
    """Three equivalent networks with noise of five per cent, in folders of other shards each."""

    def __init__(self, folder: Path, dtype: torch.dtype):
        self.saved = Saved(folder, llama().to(dtype), "60KB")
        self.symmetry = self.saved.symmetry
        self.states = [{n: t.clone() for n, t in self.saved.state().items()}]
        self.places = [self.saved.path]
        for seed in (1, 2):
            self._add(folder / f"other{seed}", seed, f"{20 + 30 * seed}KB")

    def _add(self, place: Path, seed: int, shard: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        spaces = [n for n in self.symmetry.spaces if "mlp" in n or "head" in n]
        element = self.symmetry.sample(generator, 1.0, spaces)
        moved = act(self.symmetry, element, self.states[0])
        for name, tensor in moved.items():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            moved[name] = tensor + 0.05 * tensor.std() * noise
        model = llama().to(self.states[0]["lm_head.weight"].dtype)
        model.load_state_dict(moved)
        model.save_pretrained(place, max_shard_size=shard)
        self.states.append(moved)
        self.places.append(place)

    def write(self, out: Path, count: int, how: Writing, **settings: Any) -> WrittenMerged:
        several = open_alike([str(place) for place in self.places[:count]], lazily=True)
        return write_merged(several, out, spaces="permutations", how=how, **settings)

    def mean(self, count: int, weights: Sequence[float] | None, kind: str) -> dict:
        aligner = partial(align, spaces="permutations")
        states = self.states[:count]
        return merge(self.symmetry, states, aligner, weights, kind).params


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Several:
    """Written in pieces of a few tensors."""
    monkeypatch.setattr(layout, "PIECE", 1 << 14)
    (tmp_path / "some").mkdir()
    return Several(tmp_path / "some", torch.float32)


@pytest.mark.parametrize(
    ("dtype", "count", "weights", "kind"),
    [
        (torch.float32, 3, SHARES, "linear"),
        (torch.float32, 2, (3.0, 1.0), "spherical"),
        (torch.bfloat16, 2, None, "linear"),
        (torch.bfloat16, 2, None, "spherical"),
    ],
)  # fmt: skip
def test_the_mean_of_files_is_that_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype, count, weights, kind
) -> None:
    monkeypatch.setattr(WHOLE, None)  # nothing is written as a whole
    several = Several(tmp_path, dtype)
    before = [contents(place) for place in several.places]
    out = tmp_path / "out"
    done = several.write(out, count, Writing(), weights=weights, kind=kind)
    expected, found = several.mean(count, weights, kind), state_of(out)
    assert found.keys() == expected.keys() and isinstance(done.written, Transformed)
    eps = torch.finfo(dtype).eps
    for name, tensor in expected.items():
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name], tensor, rtol=2 * eps, atol=2 * eps)
    assert [contents(place) for place in several.places] == before
    assert {p.name for p in out.iterdir()} == {p.name for p in several.places[0].iterdir()}
    assert done.written.changed == done.written.entries and not done.written.notes


def test_another_element_leads_to_another_mean(
    several: Several, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: no equality shows it, since a mean computes another function than any."""
    expected = several.mean(2, None, "linear")

    def nowhere(checkpoint: Checkpoint, symmetry: ParameterSymmetry, *rest: Any) -> Job:
        return Job(checkpoint, symmetry, symmetry.identity(), *rest[1:])

    monkeypatch.setattr("paramsym.checkpoints.merged.Job", nowhere)
    several.write(tmp_path / "out", 2, Writing())
    found = state_of(tmp_path / "out")
    assert any((found[n] - t).abs().max() > 0.05 for n, t in expected.items())


def test_a_mean_of_halves_is_rounded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = Several(tmp_path, torch.bfloat16)
    element = several.symmetry.sample(torch.Generator().manual_seed(0), 0.5)

    def there(checkpoint: Checkpoint, symmetry: ParameterSymmetry, *rest: Any) -> Job:
        return Job(checkpoint, symmetry, element, *rest[1:])

    monkeypatch.setattr("paramsym.checkpoints.merged.Job", there)
    several.write(tmp_path / "out", 2, Writing(verify=False))
    wide = [{n: t.double() for n, t in state.items()} for state in several.states[:2]]
    one, other = wide[0], act(several.symmetry, element, wide[1])
    for name, tensor in state_of(tmp_path / "out").items():
        exact = (one[name] + other[name]) / 2
        unit = torch.finfo(torch.bfloat16).eps * exact.abs()
        # sums in float32 may cancel, but for that it is the nearest number
        assert (((tensor.double() - exact).abs() - 1e-5 * exact.abs().max()) <= 0.5 * unit).all()


def test_a_run_is_planned_and_resumed_and_says_what_each_contributed(
    several: Several, tmp_path: Path
) -> None:
    weights, out = (1.0, 3.0), tmp_path / "out"
    done = several.write(tmp_path / "once", 2, Writing(), weights=weights)
    there = {path.name for path in tmp_path.iterdir()}
    assert "once.record.json" in there and "once.element.safetensors" not in there
    plan = several.write(out, 2, Writing(dry=True), weights=weights).written
    assert isinstance(plan, Plan) and plan.tensors and plan.moves and plan.seconds is not None
    assert plan.read > sum(file.stat().st_size for file in several.places[0].glob("*.safetensors"))
    assert {path.name for path in tmp_path.iterdir()} == there  # and no file was made

    def stop(line: str) -> None:
        if line.startswith("flushing"):
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="--resume"):
        several.write(out, 2, Writing(progress=stop), weights=weights)
    with pytest.raises(CheckpointError, match="another checkpoints"):
        several.write(out, 2, Writing(resume=True))
    several.write(out, 2, Writing(resume=True), weights=weights)
    assert contents(out) == contents(tmp_path / "once")
    again = several.write(out, 2, Writing(resume=True), weights=weights)  # it had ended
    assert isinstance(again.written, Transformed) and isinstance(done.written, Transformed)
    assert again.written.changed == done.written.changed
    said = json.loads((tmp_path / "out.record.json").read_text())
    assert said["operation"] == "merge"
    assert said["how"]["checkpoints"] == [str(place) for place in several.places[:2]]
    first, second = said["request"]["checkpoints"]
    assert (first["share"], second["share"]) == (0.25, 0.75)
    assert first["element"] == digest(several.symmetry.identity()).hex() != second["element"]
    assert [file[0] for file in second["files"]] == sorted(
        path.name for path in several.places[1].glob("*.safetensors")
    )


def test_another_checkpoint_that_changes_meanwhile_is_refused(
    several: Several, tmp_path: Path
) -> None:
    def change(line: str) -> None:
        if line.startswith("moving 0.0 of"):
            for path in several.places[1].glob("*.safetensors"):
                os.utime(path, (1, 1))

    with pytest.raises(CheckpointError, match="has changed"):
        several.write(tmp_path / "out", 2, Writing(progress=change))
    assert not (tmp_path / "out").exists()


def test_folders_that_spell_the_model_differently_are_loaded(
    several: Several, tmp_path: Path
) -> None:
    for path in several.places[1].glob("model*"):
        state = load_file(path) if path.suffix == ".safetensors" else {}
        path.unlink()
        if state:
            several.states[1].update(state)
    other = {n.removeprefix("model."): t for n, t in several.states[1].items()}
    save_file(other, several.places[1] / "model.safetensors", {"format": "pt"})
    done = several.write(tmp_path / "out", 2, Writing())
    assert _LOADED in done.notes
    for name, tensor in several.mean(2, None, "linear").items():
        torch.testing.assert_close(state_of(tmp_path / "out")[name], tensor)
    record = json.loads((tmp_path / "out.record.json").read_text())
    assert len(record["request"]["checkpoints"]) == 2
    with pytest.raises(CheckpointError, match="--resume"):
        several.write(tmp_path / "again", 2, Writing(resume=True))


def test_experts_are_averaged_one_by_one_and_great_circles_as_they_are_stacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, "Mixtral")
    places = [folder.path, tmp_path / "other"]
    moved = act(folder.symmetry, orders(folder), folder.model.state_dict())
    noise = torch.Generator().manual_seed(0)
    noisy = {n: t + 0.05 * torch.randn(t.shape, generator=noise) for n, t in moved.items()}
    folder.save(places[1], noisy)

    def written(name: str, kind: str) -> WrittenMerged:
        several = open_alike([str(place) for place in places], lazily=True)
        return write_merged(several, tmp_path / name, None, kind, "permutations")

    assert _LOADED not in written("pieces", "linear").notes
    assert _LOADED in written("circle", "spherical").notes
    monkeypatch.setattr(Alike, "spelled_alike", lambda _: None)
    assert _LOADED in written("whole", "linear").notes
    found, expected = state_of(tmp_path / "pieces"), state_of(tmp_path / "whole")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
