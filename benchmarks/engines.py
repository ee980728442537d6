"""Engines against what the cores allow: `python benchmarks/engines.py [--workers 4]`.

Each task is arithmetic of Python alone, so that it takes one core for a known time. What the cores
allow is the time of as many bare processes, each with an equal share of the tasks from the start:
nothing is handed out, and nothing comes back before the end. Both take turns, since the cores may
be shared with others, and the medians are compared. Start-up is said apart: an engine starts once
for many tasks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context

from paramsym.engines import Engine, Local, OnRay

TASKS, ROUNDS, TURNS, STORE = 48, 1_500_000, 5, 80 << 20


def work(seed: int) -> int:
    """A linear congruential generator, for about a fifth of a second."""
    for _ in range(ROUNDS):
        seed = (1103515245 * seed + 12345) % (1 << 31)
    return seed


def timed(call: Callable[[], list[int]]) -> tuple[float, list[int]]:
    """Seconds of wall time, and what was computed."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def row(name: str, engine: Engine, count: int) -> str:
    """One line of the table: how near an engine comes to bare processes."""
    began = time.perf_counter()
    with engine, get_context("spawn").Pool(count) as bare:
        mapped = [n for _, n in engine.map(work, range(2 * count))]
        start = time.perf_counter() - began
        times: list[tuple[float, float]] = []
        for _ in range(TURNS):
            ideal, mine = timed(lambda: bare.map(work, range(TASKS), TASKS // count))
            took, found = timed(lambda: [n for _, n in engine.map(work, range(TASKS))])
            assert sorted(found) == sorted(mine) and {*mapped} <= {*mine}
            times.append((ideal, took))
    ideal, took = (statistics.median(column) for column in zip(*times, strict=True))
    return f"{name:18} {start:7.1f} s {ideal:7.2f} s {took:7.2f} s {ideal / took:7.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    count = parser.parse_args().workers
    print(f"{count} workers, {TASKS} tasks, {TURNS} turns of each")
    print(f"{'engine':18} {'start':>9} {'bare':>9} {'engine':>9} {'ratio':>7}")
    print(row("local, processes", Local(count, processes=True), count), flush=True)
    settings = {"object_store_memory": STORE, "include_dashboard": False}
    print(row("ray", OnRay(num_cpus=count, **settings), count))


if __name__ == "__main__":
    main()
