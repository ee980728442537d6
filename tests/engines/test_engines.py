"""Every engine runs every task, once, whatever the order; errors come to the caller."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from paramsym.engines import Engine, Local, OnRay, choosing, engine_of, on_ray
from paramsym.formats.errors import CheckpointError

from . import tasks

WORDS = ["local", "local:1", "local:3", "local:2:processes"]


@pytest.fixture(params=WORDS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_of(request.param)


def test_every_task_is_run_once_and_knows_its_place(engine: Engine) -> None:
    found = list(engine.map(tasks.square, range(20)))
    assert sorted(found) == [(n, n * n) for n in range(20)]


def test_no_tasks_give_no_results(engine: Engine) -> None:
    assert list(engine.map(tasks.square, [])) == []


def test_all_engines_write_the_same(engine: Engine, tmp_path: Path) -> None:
    written = dict(engine.map(partial(tasks.shard, tmp_path), range(4)))
    assert written == {n: f"{n}.shard" for n in range(4)}
    twin = tmp_path / "twin"
    twin.mkdir()
    for n in range(4):
        tasks.shard(twin, n)
        assert (twin / f"{n}.shard").read_bytes() == (tmp_path / f"{n}.shard").read_bytes()
    assert len([*tmp_path.glob("*.shard")]) == len([*tmp_path.iterdir()]) - 2 == 4


def test_an_exception_reaches_the_caller_and_no_task_is_begun_after_it(engine: Engine) -> None:
    taken = []

    def numbers():
        for n in range(100):
            taken.append(n)
            yield n

    with pytest.raises(LookupError, match="number 2"):
        list(engine.map(partial(tasks.fails_at, 2), numbers()))
    assert len(taken) <= 3 + 2 * engine.workers


def test_results_come_while_others_run() -> None:
    gate = threading.Event()

    def waits(number: int) -> int:
        if number == 0:
            assert gate.wait(10)
        return number

    for place, _ in Local(2).map(waits, range(6)):
        if place == 5:
            gate.set()


def test_no_more_tasks_are_taken_than_there_are_workers() -> None:
    running, most = 0, 0
    taken = 0
    lock = threading.Lock()

    def counted(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return number

    def numbers():
        nonlocal taken
        for n in range(50):
            taken += 1
            yield n

    done = 0
    for _ in Local(3).map(counted, numbers()):
        assert taken - done <= 3
        done += 1
    assert done == 50 and most <= 3


def test_who_wants_no_more_gets_no_more() -> None:
    begun = []
    found = Local(2).map(lambda n: begun.append(n), range(1000))
    next(found)
    found.close()
    assert len(begun) <= 4
    assert not [t for t in threading.enumerate() if t.name.startswith("paramsym")]


def test_an_interrupt_ends_tasks_and_prints_no_traceback() -> None:
    code = "from tests.engines import tasks; tasks.until_interrupted()"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "src"), str(root)])
    script = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, env=os.environ | {"PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with script:
        assert script.stdout is not None and script.stderr is not None
        begun = [script.stdout.readline() for _ in range(2)]
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        try:
            said, errors = script.communicate(timeout=30)
        finally:
            script.kill()
    assert sorted(begun) == ["begun 0\n", "begun 1\n"]
    assert said == "interrupted\n" and errors == "" and script.returncode == 0


def test_a_process_that_is_gone_is_said() -> None:
    with pytest.raises(CheckpointError, match="ended without a word.*what is done stays done"):
        list(Local(1, processes=True).map(tasks.ends, [3]))


@pytest.mark.parametrize(
    "word", ["", "lokal", "local:", "local:0", "local:-1", "local:two", "local:2:3", "ray:",
             "ray:/", "ray://", "local:processes:2", "dask"],
)  # fmt: skip
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(CheckpointError, match="names no engine") as error:
        engine_of(word)
    assert "ray://host:port" in error.value.expected


def test_words_name_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of("local:3").workers == 3
    assert engine_of(None).workers >= 1
    own = Local(2)
    assert engine_of(own) is own
    monkeypatch.setattr(on_ray, "_ray", lambda: None)
    assert [getattr(engine_of(w), "address", 0) for w in ("ray", "ray://a:1")] == [
        None,
        "ray://a:1",
    ]
    assert isinstance(engine_of("ray"), OnRay)
    assert choosing.SCHEME == "ray://"


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(on_ray, "import_module", missing)
    with pytest.raises(CheckpointError, match=r"pip install 'paramsym\[ray\]'"):
        engine_of("ray")


def test_no_workers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="0 workers"):
        Local(0)
