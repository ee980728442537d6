"""Tasks on a Ray cluster of several nodes, one of which is killed in the middle.

Each node is a raylet of its own on this machine, with its own workers; a node is killed by SIGKILL,
as a machine that loses its power.
"""

import time
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from paramsym.checkpoints import transform
from paramsym.checkpoints.streaming import layout
from paramsym.engines import Local, OnRay, engine_of
from tests.checkpoints.streaming.conftest import Saved, contents, llama

from . import tasks

STORE = 80 << 20  # bytes; the least that Ray accepts is 75 MB


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without cores, and two nodes that work."""
    small = {"object_store_memory": STORE}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    for _ in range(2):
        found.add_node(num_cpus=1, **small)
    ray.init(address=found.address, log_to_driver=False, logging_level="error")
    found.wait_for_nodes()
    yield found
    ray.shutdown()
    found.shutdown()


def test_the_cluster_does_as_this_machine(cluster: Cluster) -> None:
    engine = engine_of("ray")
    assert engine.workers == 2
    assert sorted(engine.map(tasks.square, range(8))) == sorted(
        Local(1).map(tasks.square, range(8))
    )
    with pytest.raises(LookupError, match="number 2"):
        list(engine.map(partial(tasks.fails_at, 2), range(20)))


def test_what_was_not_started_is_not_ended(cluster: Cluster) -> None:
    with OnRay() as engine:
        assert engine.workers == 2
    assert ray.is_initialized()


def test_a_node_is_lost_and_nothing_with_it(cluster: Cluster, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    cluster.wait_for_nodes()
    dying = node.all_processes["raylet"][0].process.pid

    def numbers() -> Iterator[int]:
        """As many as it takes until the node has begun one, which is then killed; and some more."""
        number, end = count(), time.monotonic() + 60
        while not _runs(there, dying):
            assert time.monotonic() < end, "the node was given nothing"
            yield next(number)
            time.sleep(0.02)
        cluster.remove_node(node, allow_graceful=False)
        yield from islice(number, 8)

    write = partial(tasks.shard, there, dying=dying)
    done = sorted(engine_of("ray").map(write, numbers()))
    assert done == sorted(Local(1).map(partial(tasks.shard, here), range(len(done))))
    written = {p.name: p.read_bytes() for p in there.glob("*.shard")}
    assert written == {p.name: p.read_bytes() for p in here.glob("*.shard")}
    assert len(written) == len(done)
    begun, lost = _runs(there), _runs(there, dying)
    assert sorted(begun) == sorted([*range(len(done)), *lost]), "what was lost runs once more"


def _runs(folder: Path, raylet: int | None = None) -> list[int]:
    """The tasks that were begun, by all nodes or by one."""
    path = folder / "runs"
    rows = path.read_text().splitlines() if path.exists() else []
    found = [[*map(int, row.split())] for row in rows]
    return [number for number, by in found if raylet in (None, by)]


def test_a_checkpoint_moved_on_the_cluster_is_that_of_this_machine(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE", 1 << 14)
    saved = Saved(tmp_path, llama(), "60KB")
    for engine in ("ray", "local:1"):
        out = tmp_path / engine.partition(":")[0]
        transform(saved.path, out, saved.element, engine=engine, verify=False)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
