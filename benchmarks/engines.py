"""Engines against the ideal for the cores at hand: `python benchmarks/engines.py`.

Each task is arithmetic of Python alone, so that it takes one core for a known time; c workers on k
cores cannot take less than (CPU time of all tasks) / min(c, k). The CPU time is that of the same
tasks one after the other, measured in the same run just before and after, since cores may be shared
with others. Start-up is said apart: an engine starts once for many tasks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable

from paramsym.engines import Engine, Local, OnRay

TASKS, ROUNDS, STORE = 48, 1_500_000, 80 << 20


def work(seed: int) -> int:
    """A linear congruential generator, for about a tenth of a second."""
    for _ in range(ROUNDS):
        seed = (1103515245 * seed + 12345) % (1 << 31)
    return seed


def timed(engine: Engine, tasks: Iterable[int]) -> tuple[float, list[tuple[int, int]]]:
    """Seconds of wall time, and the results in the order of their places."""
    began = time.perf_counter()
    found = sorted(engine.map(work, tasks))
    return time.perf_counter() - began, found


def row(name: str, engine: Engine) -> str:
    """One line of the table: how near an engine comes to the ideal."""
    began = time.perf_counter()
    with engine:
        timed(engine, range(2 * engine.workers))
        start = time.perf_counter() - began
        before, expected = timed(Local(1), range(TASKS))
        took, found = timed(engine, range(TASKS))
        after, _ = timed(Local(1), range(TASKS))
        workers = engine.workers
        at_once = min(workers, len(os.sched_getaffinity(0)))
    assert found == expected
    ideal = (before + after) / 2 / at_once
    return (
        f"{name:22} {workers:7} {start:8.1f} s {ideal:8.2f} s "
        f"{took:8.2f} s {ideal / took:8.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    count = parser.parse_args().workers
    print(f"{'engine':22} {'workers':>7} {'start':>10} {'ideal':>10} {'took':>10} {'ideal/took':>8}")
    print(row("local, processes", Local(count, processes=True)))
    settings = {"object_store_memory": STORE, "include_dashboard": False}
    print(row("ray", OnRay(num_cpus=count, **settings)))


if __name__ == "__main__":
    main()
