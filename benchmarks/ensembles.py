"""Do members of one data-dependent orbit make an ensemble, and a robust one?

    python benchmarks/ensembles.py [clean attacks conditioning errors strong] [--data FOLDER]
        [--cache FOLDER] [--seeds N] [--only CIFAR-10 …] [--minutes M] [--tables]

Figures 10 and 11 of arXiv:2210.17216 with error bars over networks trained from different seeds.

* `clean`: accuracy of 20 members beside that of the network, by method and strength.
* `attacks`: FGSM and PGD, transferred from the network and adaptive through the members, and the
  accuracy under the strongest of all, sample by sample.
* `conditioning`: the correction by the number of images it was fitted on, from 32 (as many as
  there are units) to 2,000; and the published wrapper, which fits on the batch under test.
* `strong`: the same attacks on members that are moved far, ε = 3.
* `errors`: what clipping centred images to [0, 1] and a second softmax do to the numbers.

What was run is kept in the cache, one file for each data set and seed, and not run again. The
tables and figures (`ensembles_figures.py`) of docs/findings-ensembles.md come from these. One
thread. Data sets whose file is absent are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ensembles_figures
import ensembles_tables
import torch
from ensembles_networks import ATTACKED, CLIP, HIDDEN, Data, data, folder_of_data, network
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.ensembles import (
    OrbitEnsemble,
    attack,
    fitted_correction,
    majority_vote,
    robust_accuracy,
)
from paramsym.ensembles.methods import METHODS

STRENGTHS = (0.1, 0.3, 0.57, 1.0, 3.0)  # 0.57 = 0.1 √32: entries of εM have variance 0.01
RADII = {"CIFAR-10": (0.002, 0.004, 0.008, 0.012), "MNIST": (0.02, 0.04, 0.08, 0.12)}
STEPS = 7
ARMS = (("group", 0.1, 2000), ("group", 0.57, 2000), ("group", 0.57, HIDDEN),
        *((method, 0.57, 2000) for method in METHODS if method != "group"))  # fmt: skip
STRONG = (("group", 3.0, 2000), ("interpolated-permutation", 3.0, 2000))
SAMPLES = (HIDDEN, 36, 48, 64, 128, 512, 2000)
MEMBERS = 20
Record = dict[str, Any]


class Trained:
    """One network with its data and symmetry, and ensembles of it."""

    def __init__(self, of: Data, seed: int, softmax: bool = False) -> None:
        self.data, self.seed = of, seed
        self.model = network(of, seed, softmax)
        self.symmetry = find_symmetry(self.model, (of.train[0][:13],))
        self.x, self.y = of.test[0][:ATTACKED], of.test[1][:ATTACKED]

    def ensemble(
        self, method: str = "group", strength: float = 0.57, fitted_on: int = 2000,
        correction: str = "fitted",
    ) -> OrbitEnsemble:  # fmt: skip
        generator = torch.Generator().manual_seed(1000 + self.seed)
        return OrbitEnsemble(
            self.model, self.data.train[0][:fitted_on], "mlp", MEMBERS, strength, method,
            generator=generator, symmetry=self.symmetry, correction=correction,
        )  # fmt: skip

    def classes(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(x).argmax(-1)

    @torch.no_grad()
    def both(self, ensemble: OrbitEnsemble) -> tuple[float, float]:
        """Clean accuracy on all test images, by vote and by mean logits."""
        x, y = self.data.test
        logits = ensemble.logits(x)
        return share(majority_vote(logits) == y), share(logits.mean(0).argmax(-1) == y)


def share(right: Tensor) -> float:
    return float(right.double().mean())


def clean(net: Trained) -> Record:
    x, y = net.data.test
    found: Record = {"single": share(net.classes(x) == y), "methods": []}
    for method in METHODS:
        for strength in STRENGTHS:
            vote, mean = net.both(net.ensemble(method, strength))
            found["methods"].append([method, strength, vote, mean])
    return found


def tried(net: Trained, model: nn.Module, name: str) -> dict[str, Tensor]:
    """Attacks through one model: FGSM at all radii, PGD at the second and the last."""
    radii = RADII[net.data.name]
    ways = ("mean-logits", "mean-probabilities", "mean-loss") if name != "single" else ("logits",)
    made = {}
    for through in ways:
        for radius in radii:
            for method in ("fgsm", "pgd") if radius in (radii[1], radii[3]) else ("fgsm",):
                if method == "pgd" and through == "mean-probabilities":
                    continue
                made[f"{method} {radius:g} {name} {through}"] = attack(
                    model, net.x, net.y, method, epsilon=radius, clip=CLIP, steps=STEPS,
                    through="mean-logits" if name == "single" else through,
                )  # fmt: skip
    return made


def attacks(net: Trained, arms: tuple[tuple[str, float, int], ...] = ARMS) -> Record:
    """Accuracies by attempt, and under the strongest of those of one radius.

    One pool of attempts for the network and for its ensemble: what was made through either is
    shown to both, so that neither is judged by fewer.
    """
    found: Record = {"arms": []}
    own = tried(net, net.model, "single")
    for method, strength, samples in arms:
        ensemble = net.ensemble(method, strength, samples)
        pool = own | tried(net, ensemble, "ensemble")
        arm: Record = {"method": method, "strength": strength, "samples": samples, "radii": []}
        for radius in RADII[net.data.name]:
            at = {"clean": net.x} | {n: x for n, x in pool.items() if n.split()[1] == f"{radius:g}"}
            with torch.no_grad():
                logits = {id(x): ensemble.logits(x) for x in at.values()}
            judged = {"single": net.model, "vote": lambda x, of=logits: majority_vote(of[id(x)]),
                      "mean": lambda x, of=logits: of[id(x)].mean(0).argmax(-1)}  # fmt: skip
            entry: Record = {"radius": radius}
            for name, predict in judged.items():
                result = robust_accuracy(predict, net.y, at)
                entry[name] = {"strongest": result.value} | result.by_attack
            arm["radii"].append(entry)
        found["arms"].append(arm)
    return found


def strong(net: Trained) -> Record:
    """As `attacks`, of members that are moved far."""
    return attacks(net, STRONG)


def conditioning(net: Trained) -> Record:
    found: Record = {"samples": []}
    x = net.data.test[0]
    for samples in SAMPLES:
        ensemble = net.ensemble(fitted_on=samples)
        vote, mean = net.both(ensemble)
        conditions = sorted(fit.condition for fit in ensemble.fits)
        residuals = sorted(fit.residual for fit in ensemble.fits)
        with torch.no_grad():
            apart = ensemble.logits(x) - net.model(x)
            errors = apart.norm(dim=(1, 2)) / net.model(x).norm()
        found["samples"].append([
            samples, conditions[len(conditions) // 2], conditions[-1],
            residuals[len(residuals) // 2], float(errors.median()), float(errors.max()), vote, mean,
        ])  # fmt: skip
    found["wrapper"] = wrapper(net)
    return found


def wrapper(net: Trained) -> list[list[float]]:
    """By size of batch how far σ'(H) is from σ(H), and how far it moves with its batch mates."""
    site = net.ensemble().site
    hidden = site.before(None, (net.data.test[0][:1000],)).double()
    generator = torch.Generator().manual_seed(net.seed)
    rows = []
    for size in (HIDDEN // 2, HIDDEN, 2 * HIDDEN, 4 * HIDDEN, 8 * HIDDEN):
        off, moved = [], []
        for _ in range(MEMBERS):
            g = torch.randn(HIDDEN, HIDDEN, generator=generator, dtype=torch.float64)
            g = torch.eye(HIDDEN, dtype=torch.float64) + 0.57 * g / HIDDEN**0.5
            order = torch.randperm(999, generator=generator) + 1
            first, second = order[: size - 1], order[size - 1 : 2 * size - 2]
            answers = []
            for mates in (first, second):
                batch = torch.cat([hidden[:, :1], hidden[:, mates]], 1)
                after, before = site.function(g @ batch), site.function(batch)
                pi = fitted_correction(before, after).matrix
                answers.append((pi @ after)[:, 0])
                off.append(float((pi @ after - before).norm() / before.norm()))
            moved.append(float((answers[0] - answers[1]).norm() / answers[0].norm()))
        rows.append([size, sum(off) / len(off), sum(moved) / len(moved)])
    return rows


def errors(net: Trained) -> Record:
    """The published mistakes, one by one: a wrong range, and a second softmax."""
    radii = (0.0, *RADII[net.data.name][1::2])
    soft = Trained(net.data, net.seed, softmax=True)
    ensembles = {"once": net.ensemble(), "twice": soft.ensemble()}
    found: Record = {"clip": [], "softmax": []}
    free = (-math.inf, math.inf)
    for radius in radii:
        x = attack(net.model, net.x, net.y, epsilon=radius, clip=CLIP)
        wrong = attack(net.model, net.x, net.y, epsilon=radius, clip=free).clamp(0, 1)
        row = [radius]
        for inputs in (x, wrong):
            row += [share(net.classes(inputs) == net.y),
                    share(ensembles["once"].vote(inputs) == net.y)]  # fmt: skip
        found["clip"].append(row)
        bare = soft.model[:-1]  # the same classes, attacked through its logits
        row = [radius]
        for method in ("fgsm", "pgd"):
            made = [attack(m, net.x, net.y, method, epsilon=radius, clip=CLIP, steps=STEPS)
                    for m in (soft.model, bare)]  # fmt: skip
            row += [share(soft.classes(inputs) == net.y) for inputs in made]
            row += [share(ensembles["twice"].vote(inputs) == net.y) for inputs in made]
        found["softmax"].append(row)
    return found


PARTS: dict[str, Callable[[Trained], Record]] = {
    part.__name__: part for part in (clean, attacks, conditioning, errors, strong)
}


def run(options: argparse.Namespace) -> None:
    """What the cache does not have yet, seed by seed, so that any part of it can be looked at."""
    end = time.process_time() + 60 * options.minutes
    held = {name: found for name in options.only if (found := data(name, options.data))}
    for seed in range(options.seeds):
        for name, of in held.items():
            net = None
            for part in options.parts:
                path = options.cache / f"{part}-{name}-{seed}.json"
                if path.exists():
                    continue
                if time.process_time() > end:
                    raise SystemExit("out of time; call again to go on from here")
                net = net or Trained(of, seed)
                written(path, PARTS[part](net))
                print(f"{path.name}: {time.process_time():.0f} CPU-seconds", file=sys.stderr)


def written(path: Path, found: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(found))
    os.replace(draft, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"among {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, default=folder_of_data())
    default = Path(tempfile.gettempdir()) / "paramsym-ensembles"
    parser.add_argument("--cache", type=Path, default=default)
    parser.add_argument("--only", nargs="+", default=[*RADII])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--tables", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.tables:
        run(options)
    ensembles_tables.main(options.cache)
    ensembles_figures.main(options.cache)


if __name__ == "__main__":
    main()
