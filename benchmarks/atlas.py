"""The atlas: which symmetries are found of every class that installed packages have.

    python benchmarks/atlas.py                          everything, into atlas.json
    python benchmarks/atlas.py --only GPT2LMHeadModel ViTForImageClassification
    python benchmarks/atlas.py --family causal graph --json FILE
    python benchmarks/atlas.py --table --json FILE      the page docs/atlas.md, from a run
    python benchmarks/atlas.py --diff OLD NEW           what got worse: exit code 1

For each class a tiny model is built, its symmetry derived, verified on fresh inputs, lengths and
batches, and audited where it is small. Each class runs in a process of its own, which is ended when
it takes too long; what is in the file already is not measured again. CPU-seconds, one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import atlas_measure
import atlas_page
import torch
from atlas_classes import FAMILIES, Case, cases

TIMEOUT = 90  # seconds of wall time for one class
WORKERS = 2
RUN = Path("atlas.json")


@dataclass
class Worker:
    """A process that measures one class, and what it has said so far."""

    case: Case
    pid: int
    pipe: int
    began: float
    said: bytes = b""


def main() -> int:
    """Measure, print, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--json", nargs="?", type=Path, const=None, default=RUN, metavar="FILE",
                        help="where the run is kept; without FILE it is printed")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure what is in the file, too")
    parser.add_argument("--table", action="store_true", help="write docs/atlas.md from the file")
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument(
        "--audited",
        type=int,
        default=atlas_measure.AUDITED,
        metavar="COUNT",
        help="the most parameters of what is audited; 0 audits nothing",
    )
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args()
    if options.diff:
        worse, lines = atlas_page.difference(*(json.loads(p.read_text()) for p in options.diff))
        print("\n".join(lines))
        return int(worse)
    if options.table:
        atlas_page.write(json.loads(options.json.read_text()))
        return 0
    return measure_all(options)


def measure_all(options: argparse.Namespace) -> int:
    """Measure what was asked and is not in the file yet."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    kept = options.json is not None and options.json.exists()
    results: dict[str, Any] = json.loads(options.json.read_text()) if kept else {}
    found = cases(tuple(options.family))
    if missing := sorted(set(options.only) - found.keys()):
        print(
            f"--only {' '.join(missing)}: no class of {' '.join(options.family)}. Names are those "
            "of the tables of transformers, such as GPT2LMHeadModel",
            file=sys.stderr,
        )
        return 2
    wanted = [c for n, c in found.items() if not options.only or n in options.only]
    fresh = bool(options.only) or options.again
    queue = [case for case in wanted if fresh or case.name not in results]
    atlas_measure.AUDITED = options.audited
    for name, result in _run(queue, options.workers):
        results[name] = result
        print(f"{len(results):4} {atlas_page.line(name, result)}", file=sys.stderr, flush=True)
        if options.json is not None:
            _write(options.json, results)
    if options.json is None:
        print(json.dumps({case.name: results[case.name] for case in wanted}, indent=1))
    return 0


def _write(path: Path, results: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(dict(sorted(results.items())), indent=1))
    draft.replace(path)


def _run(queue: list[Case], count: int) -> Any:
    """Names and results of all classes, as they are done; `count` processes at a time."""
    atlas_measure.warm()
    waiting, running = list(reversed(queue)), dict[int, Worker]()
    while waiting or running:
        while waiting and len(running) < count:
            worker = _started(waiting.pop())
            running[worker.pipe] = worker
        ready, _, _ = select.select([*running], [], [], 0.5)
        for pipe in ready:
            part = os.read(pipe, 1 << 16)
            running[pipe].said += part
            if not part:
                yield _ended(running.pop(pipe), "")
        for worker in [w for w in running.values() if time.monotonic() - w.began > TIMEOUT]:
            os.kill(worker.pid, signal.SIGKILL)
            yield _ended(running.pop(worker.pipe), f"ended after {TIMEOUT} seconds")


def _started(case: Case) -> Worker:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Worker(case, pid, reading, time.monotonic())
    os.close(reading)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    code = 1
    try:
        atlas_measure.measure(case, partial(_say, writing))
        code = 0
    finally:
        os._exit(code)


def _say(pipe: int, found: dict[str, Any]) -> None:
    os.write(pipe, (json.dumps(found) + "\n").encode())


def _ended(worker: Worker, why: str) -> tuple[str, dict[str, Any]]:
    """What a process has said, and how it ended where it did not end by itself."""
    os.close(worker.pipe)
    _, status = os.waitpid(worker.pid, 0)
    result: dict[str, Any] = {"family": worker.case.family}
    for row in worker.said.decode().splitlines():
        result |= {name: value for name, value in json.loads(row).items() if value is not None}
    code = os.waitstatus_to_exitcode(status)
    if why or code:
        result["ended"] = why or f"exit code {code}"
    return worker.case.name, result


if __name__ == "__main__":
    sys.exit(main())
