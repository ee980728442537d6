"""A campaign of random tensor programs against `find_symmetry` and `act`.

python benchmarks/programs.py --count 1000 --seed 0 [--shrink 20] [--seconds 600]

Program k of a campaign is `tests.tracing.programs.draw(seed + k)`, examined at weights of the same
seed. Failures are counted by kind; some of each kind are shrunk and printed as modules.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tracing.program_truth import Finding, examine, shrink
from tests.tracing.programs import draw

console = Console(width=120)


def campaign(seed: int, count: int, seconds: float) -> dict[int, Finding]:
    """Findings by seed; stops when so many CPU-seconds are spent."""
    found: dict[int, Finding] = {}
    end = time.process_time() + seconds
    for k in track(range(seed, seed + count), "programs", console=Console(stderr=True)):
        found[k] = examine(draw(k), k)
        if time.process_time() > end:
            break
    return found


def show(found: dict[int, Finding]) -> None:
    """Counts, then one line for each failure."""
    orbits = [f.orbit for f in found.values() if f.kind == "sound"]
    counts = Counter(f.kind for f in found.values())
    table = Table("", "programs", title="Random tensor programs", title_justify="left")
    table.add_row("drawn", str(len(found)))
    for kind, number in sorted(counts.items()):
        table.add_row(kind, str(number))
    table.add_row("directions, median", str(statistics.median(orbits or [0])))
    table.add_row("directions, in all", str(sum(orbits)))
    table.add_row("programs with any", str(sum(orbit > 0 for orbit in orbits)))
    table.add_row("programs that move", str(sum(f.moves > 0 for f in found.values())))
    console.print(table)
    for seed, finding in found.items():
        if finding.failed:
            error = f"{finding.error:.0e} " if finding.error else ""
            console.print(f"{seed}: {finding.kind} {error}{finding.detail}", markup=False)
    refused = Counter(f.detail for f in found.values() if f.kind == "refused")
    for detail, number in refused.most_common():
        console.print(f"refused {number}: {detail}", markup=False)


def show_shrunk(found: dict[int, Finding], limit: int) -> None:
    """Some failures as small modules."""
    for seed in [s for s, finding in found.items() if finding.failed][:limit]:
        small = shrink(draw(seed), seed)
        finding = examine(small, seed)
        console.print(f"\n# seed {seed}: {finding.kind} {finding.error:.0e} {finding.detail}",
                      markup=False)  # fmt: skip
        console.print(small.source(), markup=False, highlight=False)


def main() -> None:
    """Run a campaign and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", type=int, default=10, help="failures to shrink and print")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="CPU-seconds at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = campaign(options.seed, options.count, options.seconds)
    show(found)
    show_shrunk(found, options.shrink)


if __name__ == "__main__":
    main()
