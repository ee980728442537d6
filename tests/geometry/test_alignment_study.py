"""The pieces of benchmarks/alignment.py: networks, peers, what lies between two networks."""

from __future__ import annotations

import importlib
import json
import os
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from paramsym import act


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts by the ends of their names, on a machine that can download nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    parts = ("", "_methods", "_networks", "_packages", "_peers", "_tables")
    return {part[1:]: importlib.import_module(f"alignment{part}") for part in parts}


def test_a_network_is_a_function_of_its_seed(study: dict[str, ModuleType]) -> None:
    task = study["networks"].digits(steps=40)
    state = torch.random.get_rng_state()
    first, again, other = (study["networks"].trained(task, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    study["networks"].tuned(task, first, 0)
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's numbers change


def test_networks_learn_and_tuning_on_other_data_helps_there(study: dict[str, ModuleType]) -> None:
    networks = study["networks"]
    task = networks.digits()
    net = networks.trained(task, 0)
    sibling = networks.tuned(task, net, 0)
    assert networks.measured(task, net)[1] > 0.9
    before, after = (networks.measured(task, p, task.other)[1] for p in (net, sibling))
    assert after > before + 0.2


def test_moved_copies_compute_the_same_and_others_do_not(study: dict[str, ModuleType]) -> None:
    networks = study["networks"]
    task = networks.digits(steps=40)
    nets = [networks.trained(task, seed) for seed in (0, 1)]
    generator = torch.Generator().manual_seed(0)
    pairs = [*study["methods"].origins(task, task.symmetry(), nets, generator)]
    assert [pair.kind for pair in pairs] == ["moved", "derived", "independent"] * 2
    for pair in pairs:
        one, other = (networks.measured(task, p)[0] for p in (pair.first, pair.second))
        assert (abs(one - other) < 1e-5) == (pair.kind == "moved"), (pair.kind, one, other)
        assert not torch.allclose(pair.first["0.weight"], pair.second["0.weight"])


def test_barriers_vanish_between_equals_and_stand_between_seeds(
    study: dict[str, ModuleType],
) -> None:
    task, methods = study["networks"].digits(), study["methods"]
    one, other = (study["networks"].trained(task, seed) for seed in (0, 1))
    assert methods.barrier(task, methods.Pair(one, one)).loss < 1e-6
    assert methods.barrier(task, methods.Pair(one, other)).loss > 0.2


def test_weight_matching_undoes_orders(study: dict[str, ModuleType]) -> None:
    task, peers = study["networks"].digits(steps=40), study["peers"]
    net, other = (study["networks"].trained(task, seed) for seed in (0, 1))
    symmetry, generator = task.symmetry(), torch.Generator().manual_seed(0)
    orders = {name: torch.randperm(128, generator=generator) for name in symmetry.spaces}
    ones = {name: (order, torch.ones(128)) for name, order in orders.items()}
    moved = act(symmetry, symmetry.element(ones), net)
    assert not torch.equal(moved["0.weight"], net["0.weight"])
    found = peers.weight_matching(net, moved, generator)
    assert all(torch.equal(found.params[n], net[n]) for n in net)
    found = peers.weight_matching(net, other, generator)
    assert found.objective == sorted(found.objective)
    assert found.objective[-1] > 2 * abs(found.objective[0])


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A block of a sorted table, whose keys share what they can."""
    body, before = b"", b""
    for key, value in entries:
        same = next((k for k, (x, y) in enumerate(zip(key, before, strict=False)) if x != y), 0)
        body += _varint(same) + _varint(len(key) - same) + _varint(len(value)) + key[same:] + value
        before = key
    return body + struct.pack("<II", 0, 1)


def test_checkpoints_are_read(study: dict[str, ModuleType]) -> None:
    """Written here by the published format: blocks of entries, their index, a footer."""
    generator = np.random.default_rng(0)
    arrays = {b"net/bias": generator.normal(size=3), b"net/kernel": generator.normal(size=(200, 3))}
    entries, data = [(b"", b"\x08\x01")], b""
    for name, array in arrays.items():
        sides = [b"\x08" + _varint(side) for side in array.shape]
        shape = b"".join(b"\x12" + _varint(len(side)) + side for side in sides)
        raw = array.astype("<f4").tobytes()
        value = b"\x08\x01\x12" + _varint(len(shape)) + shape + b"\x20" + _varint(len(data))
        entries.append((name, value + b"\x28" + _varint(len(raw)) + b"\x35" + bytes(4)))
        data += raw
    first = _block(entries)
    handle = _varint(0) + _varint(len(first))
    index = _block([(b"o", handle)])
    footer = _varint(0) + _varint(0) + _varint(len(first)) + _varint(len(index))
    read = study["packages"].read_bundle(first + index + footer.ljust(48, b"\0"), data)
    assert {*read} == {"net/bias", "net/kernel"}
    for name, array in arrays.items():
        assert np.array_equal(read[name.decode()], array.astype("f4"))


def test_a_package_that_is_not_there_is_told(study: dict[str, ModuleType], tmp_path: Path) -> None:
    found = study["packages"].actors(tmp_path)
    assert isinstance(found, str) and "pybullet==3.2.7" in found


def test_the_study_runs(
    study: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair of digits at a tenth of the steps, from training to the table."""
    methods = [*study["methods"].METHODS]
    methods.remove(study["methods"].NORMS_AS_ON_DATA)  # there are no norms
    study[""].main([
        "barriers", "--only", "digits", "--pairs", "1", "--steps", "60", "--packages",
        str(tmp_path), "--json", str(tmp_path / "found.json"), "--methods", *methods,
    ])  # fmt: skip
    records = json.loads((tmp_path / "found.json").read_text())["barriers"]
    assert {record["method"] for record in records} >= {*methods, "published weight matching"}
    assert all(record["changed"] < 1e-5 for record in records)
    assert all(record["loss"] > 0.05 for record in records if record["method"] == "naive")
    assert "| naive | – |" in capsys.readouterr().out
