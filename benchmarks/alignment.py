"""What lies between two networks, once they are brought together by their symmetry.

    python benchmarks/alignment.py PART … [--data FOLDER] [--packages FOLDER] [--cache FOLDER]
        [--only TASK …] [--pairs N] [--seeds N] [--steps N] [--json FILE]

* `barriers`: loss and accuracy along the line between networks of different seeds, by method.
* `origins`: the aligned distance of moved copies, of fine-tuned and moved ones, and of independent
  networks, beside the distance before.
* `packages`: the same of networks that lie in packages on PyPI (`alignment_packages.py`).
* `runtimes`: processor seconds and the objective, beside `rebasin` and published weight matching.

Each prints a table, means ± standard deviations over pairs; all numbers go to the file. Parts that
were run apart are put into one table by `python benchmarks/alignment_tables.py FILE …`.
Networks are trained from their seeds (`alignment_networks.py`) and kept in --cache alone. Use one
thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from alignment_methods import (
    METHODS,
    NORMS_AS_ON_DATA,
    Pair,
    Question,
    barrier,
    bend,
    distance,
    matched,
    origins,
    recomputed,
)
from alignment_networks import (
    FILES,
    SEEDS,
    State,
    Task,
    measured,
    mnist,
    moved,
    quicker,
    tasks,
    trained,
)
from alignment_packages import Found, actors, siblings
from alignment_peers import (
    Matched,
    inner,
    rebasin_matching,
    rebasin_or_reason,
    weight_matching,
)
from alignment_tables import PRINT
from torch import nn

from paramsym import ParameterSymmetry

BY = ("weights", "activations")
ON_DATA = 512  # examples of the training set, for matching by activations


def pairs_of(seeds: int, pairs: int) -> list[tuple[int, int]]:
    """Disjoint pairs of seeds if they suffice, else each seed with the next one."""
    if seeds >= 2 * pairs:
        return [(2 * k, 2 * k + 1) for k in range(pairs)]
    return [(k % seeds, (k + 1) % seeds) for k in range(pairs)]


# -- barriers ----------------------------------------------------------------------------------


def brought(
    task: Task, symmetry: ParameterSymmetry, seeds: tuple[int, int], options: argparse.Namespace
) -> Iterator[tuple[str, str, Pair]]:
    """Method, what it reads, and the pair: all of ours, then those of the peers that apply."""
    first, second = (trained(task, seed, options.cache) for seed in seeds)
    given = Question(task.network(), symmetry, first, second)
    by_data = replace(given, data=(task.train[0][:ON_DATA],))
    norms = any(name.endswith("running_var") for name in symmetry.signature)
    for method in options.methods:
        if method == NORMS_AS_ON_DATA and not norms:
            continue
        if "weights" in options.by:
            yield method, "weights", matched(method, given)
        if method != "naive" and "activations" in options.by:
            yield method, "activations", matched(method, by_data)
    if not options.peers:
        return
    if isinstance(task.network(), nn.Sequential) and symmetry.signature.keys() <= {
        f"{2 * k}.{kind}" for k in range(9) for kind in ("weight", "bias")
    }:
        found = weight_matching(first, second, torch.Generator().manual_seed(seeds[0]))
        yield "published weight matching", "weights", Pair(first, found.params, found.seconds)
    descent = rebasin_or_reason(options.packages)
    if not isinstance(descent, str):
        inputs = task.test[0][:2]
        peer = rebasin_matching(descent, task.network, first, second, inputs, seeds[0])
        descent = peer if isinstance(peer, str) else ""
        if not isinstance(peer, str):
            yield "rebasin", "weights", Pair(first, peer.params, peer.seconds)
    if descent:
        print(f"  {task.name} {seeds}: left out: {descent}", flush=True)


def barriers(task: Task, options: argparse.Namespace, seeds: int) -> list[dict[str, Any]]:
    """One record per pair, method and what it reads: weights, or activations."""
    symmetry, found = task.symmetry(), []
    norms = any(name.endswith("running_var") for name in symmetry.signature)
    pairs = pairs_of(seeds, options.pairs)
    for both in [pairs[k] for k in options.which or range(len(pairs))]:
        before = measured(task, trained(task, both[1], options.cache))[0]
        for method, by, pair in brought(task, symmetry, both, options):
            record = {
                "task": task.name, "seeds": both, "method": method, "by": by,
                "seconds": pair.seconds, "distance": distance(symmetry, pair),
                "changed": abs(measured(task, pair.second)[0] - before),
                **asdict(barrier(task, pair)),
            }  # fmt: skip
            if norms:
                record["refit"] = asdict(barrier(task, pair, refit=True))
                refitted = measured(task, recomputed(task, pair.second))[0]
                record["refit"]["changed"] = abs(refitted - before)
            found.append(record)
            print(
                f"  {task.name} {both} {method} by {by}: {record['loss']:.4f}, "
                f"{record['seconds']:.2f} s", flush=True,
            )  # fmt: skip
    return found


# -- origins -----------------------------------------------------------------------------------


def origins_of(task: Task, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per pair: 15 pairs of five networks, a third of each kind."""
    symmetry, found = task.symmetry(), []
    nets = [trained(task, seed, options.cache) for seed in range(5)]
    for pair in origins(task, symmetry, nets, torch.Generator().manual_seed(0)):
        before = distance(symmetry, Pair(pair.first, pair.second))
        question = Question(task.network(), symmetry, pair.first, pair.second)
        aligned = matched("whole group", question)
        found.append({
            "task": task.name, "kind": pair.kind, "before": before, "after": aligned.distance,
            "tuning": task.tuning, "seconds": aligned.seconds,
        })  # fmt: skip
        print(f"  {task.name} {pair.kind}: {before:.3g} → {aligned.distance:.3g}", flush=True)
    return found


# -- packages ----------------------------------------------------------------------------------


def package_pairs(found: Found) -> list[dict[str, Any]]:
    """Every two networks of a package, the second moved by a random element first."""
    symmetry, generator = found.symmetry(), torch.Generator().manual_seed(0)
    records = []

    def evaluate(params: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return torch.func.functional_call(found.model, params, found.inputs)

    for one, other in itertools.combinations(found.params, 2):
        first, second = found.params[one], found.params[other]
        away = moved(symmetry, second, generator)
        pair, start = (
            matched("whole group", Question(found.model, symmetry, first, other))
            for other in (away, second)
        )
        records.append({
            "task": found.name, "pair": (one, other),
            "as shipped": distance(symmetry, Pair(first, second)),
            "moved": distance(symmetry, Pair(first, away)),
            "aligned, not moved": start.distance,
            "aligned": pair.distance,
            "bend as shipped": bend(evaluate, Pair(first, second)),
            "bend aligned": bend(evaluate, pair),
            "seconds": pair.seconds,
        })  # fmt: skip
        print(f"  {found.name} {one}, {other}: {records[-1]['aligned']:.4g}", flush=True)
    return records


# -- runtimes ----------------------------------------------------------------------------------


def runtimes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """An independent perceptron and a moved copy, matched to the first by all in turn."""
    descent, records = rebasin_or_reason(options.packages), []
    for widths, steps in ((256, 256), 2000), ((512,) * 3, 2000), ((2048,) * 3, 100):
        task = quicker(mnist(options.data / "mnist.npz", (784, *widths, 10)), steps)
        symmetry, generator = task.symmetry(), torch.Generator().manual_seed(0)
        first, other = (trained(task, seed, options.cache) for seed in (0, 1))
        for kind, second in ("independent", other), ("moved", moved(symmetry, first, generator)):
            question = Question(task.network(), symmetry, first, second)
            for turn in range(options.turns if max(widths) < 2048 else 1):
                found = {"task": f"{task.name}, {kind}", "turn": turn}
                records.append(found | timed(task, question, descent, turn))
                print(f"  {records[-1]}", flush=True)
    return records


def timed(task: Task, given: Question, descent: type | str, seed: int) -> dict[str, Any]:
    """By method the seconds, and ⟨a, g·b⟩ / (‖a‖ ‖g·b‖) as the networks lie."""
    size = inner(given.first, given.first)

    def told(seconds: float, params: State) -> tuple[float, float]:
        return seconds, inner(given.first, params) / (size * inner(params, params)) ** 0.5

    found: dict[str, Any] = {}
    for method in ("permutations", "whole group"):
        pair = matched(method, given)
        found[method] = told(pair.seconds, pair.second)
    own = weight_matching(given.first, given.second, torch.Generator().manual_seed(seed))
    found["published weight matching"] = told(own.seconds, own.params)
    peer = descent
    if not isinstance(descent, str):
        inputs = task.test[0][:2]
        peer = rebasin_matching(descent, task.network, given.first, given.second, inputs, seed)
    found["rebasin"] = told(peer.seconds, peer.params) if isinstance(peer, Matched) else str(peer)
    return found


# -- the command -------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for part in options.parts:
        start, records = time.process_time(), []
        if part in ("barriers", "origins"):
            for name, task in tasks(options.data, options.only):
                task = quicker(task, options.steps) if options.steps else task
                task = replace(task, tuning=options.tuning or task.tuning)
                if part == "barriers":
                    records += barriers(task, options, options.seeds or SEEDS[name])
                else:
                    records += origins_of(task, options)
        elif part == "packages":
            for load in (actors, siblings, lambda folder: siblings(folder, 1)):
                package = load(options.packages)
                if isinstance(package, str):
                    print(f"left out: {package}")
                else:
                    records += package_pairs(package)
        elif (options.data / FILES["mlp"]).exists():
            records = runtimes(options)
        found[part] = records
        if records:
            PRINT[part](records)
        print(f"\n{part}: {time.process_time() - start:.0f} CPU-seconds", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=[*PRINT])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--packages", type=Path, default=Path(tempfile.gettempdir()) / "wheels")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*SEEDS])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS][:-1])
    parser.add_argument("--by", nargs="+", choices=BY, default=BY)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--pairs", type=int, default=6, help="of seeds")
    parser.add_argument(
        "--which", nargs="+", type=int, help="of these pairs, from 0, to run them apart"
    )
    parser.add_argument("--seeds", type=int, help="networks; by default 12, or 6 of slow ones")
    parser.add_argument("--steps", type=int, help="of training, in place of those of the study")
    parser.add_argument("--tuning", type=int, help="steps of tuning, in place of those")
    parser.add_argument("--turns", type=int, default=3, help="of runtimes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.packages.mkdir(parents=True, exist_ok=True)
    found = _run(options)
    if options.json:
        draft = options.json.with_suffix(".draft")
        draft.write_text(json.dumps(found, indent=1), encoding="utf-8")
        draft.replace(options.json)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
