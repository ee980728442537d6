"""The tables of `alignment.py`, in markdown, from its records.

python benchmarks/alignment_tables.py FILE …
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean ± the standard deviation of a sample."""
    deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table in markdown."""
    print(f"\n### {title}\n\n| " + " | ".join(columns) + " |")
    print("|---" + "|---:" * (len(columns) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def print_barriers(records: list[dict[str, Any]]) -> None:
    """By task: the barriers by method, and in how many pairs each is below permutations alone."""
    for task, group in itertools.groupby(records, lambda r: r["task"]):
        own = [*group]
        plain = {
            tuple(r["seeds"]): r["loss"]
            for r in own if (r["method"], r["by"]) == ("permutations", "weights")
        }  # fmt: skip
        norms, rows = "refit" in own[0], []
        keys = dict.fromkeys((r["method"], r["by"]) for r in own)
        for method, by in keys:
            these = [r for r in own if (r["method"], r["by"]) == (method, by)]
            lower = sum(r["loss"] < plain[tuple(r["seeds"])] for r in these if plain)
            row = [
                method, by if method != "naive" else "–", spread([r["loss"] for r in these], 4),
                spread([100 * r["accuracy"] for r in these], 2),
                spread([r["distance"] for r in these]),
                f"{lower} of {len(these)}" if plain else "–",
                f"{max(r['changed'] for r in these):.0e}",
                spread([r["seconds"] for r in these], 2),
            ]  # fmt: skip
            if norms:
                row += [
                    spread([r["refit"]["loss"] for r in these], 4),
                    spread([100 * r["refit"]["accuracy"] for r in these], 2),
                    f"{max(r['refit']['changed'] for r in these):.3f}",
                ]
            rows.append(row)
        columns = ["method", "by", "loss barrier", "accuracy barrier, points", "distance"]
        columns += ["below permutations by weights", "change of loss by the move"]
        columns += ["CPU-seconds"]
        columns += ["loss barrier, norms refitted", "accuracy barrier, norms refitted"] * norms
        columns += ["change of loss by move and refit"] * norms
        show(f"{task}, {len({tuple(r['seeds']) for r in own})} pairs", columns, rows)


def print_origins(records: list[dict[str, Any]]) -> None:
    rows = []
    for task, kind in dict.fromkeys((r["task"], r["kind"]) for r in records):
        these = [r for r in records if (r["task"], r["kind"]) == (task, kind)]
        after = [r["after"] for r in these]
        rows.append((
            task, kind, len(these), f"{min(r['before'] for r in these):.3g}",
            f"{min(after):.2g}", f"{statistics.fmean(after):.3g}", f"{max(after):.3g}",
        ))  # fmt: skip
    columns = ["networks", "the second is", "pairs", "least distance before", "after: least"]
    show("Where a network comes from", [*columns, "mean", "greatest"], rows)


def print_packages(records: list[dict[str, Any]]) -> None:
    columns = [k for k in records[0] if k not in ("task", "pair")]
    rows = [
        (f"{r['task']}: {', '.join(r['pair'])}", *(f"{r[k]:.4g}" for k in columns)) for r in records
    ]
    show("Networks from packages", ["pair", *columns], rows)


def print_runtimes(records: list[dict[str, Any]]) -> None:
    """The fastest turn of each, and its ratio to permutations of ours; the best objective."""
    rows = []
    for task in dict.fromkeys(r["task"] for r in records):
        own = [r for r in records if r["task"] == task]
        base = min(r["permutations"][0] for r in own)
        for name in (n for n in own[0] if n not in ("task", "turn")):
            if isinstance(own[0][name], str):
                rows.append((task, name, own[0][name], "–", "–"))
                continue
            fastest, best = min(r[name][0] for r in own), max(r[name][1] for r in own)
            rows.append((task, name, f"{fastest:.3f}", f"{fastest / base:.2f}", f"{best:.4f}"))
    columns = ["network", "by", "CPU-seconds, fastest turn", "of `align` by permutations"]
    show("Runtimes", [*columns, "⟨a, g·b⟩ / (‖a‖ ‖g·b‖), best turn"], rows)


PRINT = {
    "barriers": print_barriers,
    "origins": print_origins,
    "packages": print_packages,
    "runtimes": print_runtimes,
}


def main(files: Sequence[str]) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        for part, records in json.loads(Path(file).read_text(encoding="utf-8")).items():
            found.setdefault(part, []).extend(records)
    for part, records in found.items():
        PRINT[part](records)


if __name__ == "__main__":
    main(sys.argv[1:])
