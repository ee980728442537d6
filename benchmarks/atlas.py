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
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import atlas_measure
import atlas_page
import atlas_process
import torch
from atlas_classes import FAMILIES, cases

from paramsym.engines import engine_of

ENGINE = "local:2"
RUN = Path("atlas.json")


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
    parser.add_argument(
        "--seconds", type=float, default=atlas_process.SECONDS, metavar="COUNT",
        help="the most that one class may take",
    )  # fmt: skip
    parser.add_argument(
        "--engine", default=ENGINE, metavar="WORD",
        help="local:N for N classes at a time, ray, or any other word of paramsym.engines",
    )  # fmt: skip
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
    atlas_process.keep_memory()
    atlas_measure.warm()  # what is loaded here, no forked process has to load
    tasks = partial(atlas_process.measured, audited=options.audited, seconds=options.seconds)
    with engine_of(options.engine) as engine:
        for place, result in engine.map(tasks, queue):
            name = queue[place].name
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


if __name__ == "__main__":
    sys.exit(main())
