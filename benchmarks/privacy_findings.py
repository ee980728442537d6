"""The small measurements of docs/findings-privacy.md, on scikit-learn's digits in float64.

    python benchmarks/privacy_findings.py [homogeneous pad gram seeds]

* `homogeneous`: what moving by orders and scales (section VI-D) does to a network, by activation;
* `pad`: what one sample gives away under a key that is used for nothing else;
* `gram`: what keys leave of inner products and of neighbours, by their condition;
* `seeds`: how long it takes to try all seeds of a key.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import privacy_measures as measures
import torch
from privacy_baselines import TRAINED, digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from paramsym.algebra import GeneralLinear, Group, Orthogonal, SignedPermutation

KEYS = 5
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": nn.functional.softplus, "sigmoid": torch.sigmoid, "exp": torch.exp,
    "square": torch.square, "ReLU": torch.relu, "leaky ReLU": nn.functional.leaky_relu,
}  # fmt: skip


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def homogeneous() -> None:
    print("| activation | σ(2z) | 2σ(z) | change |\n|---|---:|---:|---:|")
    for name, sigma in ACTIVATIONS.items():
        g = torch.Generator().manual_seed(0)
        w1, b1, w2 = normal(g, 32, 64) / 8, normal(g, 32), normal(g, 10, 32) / 6
        x = normal(g, 100, 64)
        scales = torch.exp(2 * torch.rand(32, generator=g, dtype=torch.float64) - 1)
        plain = sigma(x @ w1.T + b1) @ w2.T
        moved = sigma(x @ (scales[:, None] * w1).T + scales * b1) @ (w2 / scales).T
        z = torch.tensor(-1.0 if name == "leaky ReLU" else 1.0, dtype=torch.float64)
        print(f"| {name} | {sigma(2 * z):.3f} | {2 * sigma(z):.3f} "
              f"| {(moved - plain).norm() / plain.norm():.1e} |")  # fmt: skip


def pad() -> None:
    data = digits()
    x, asked = data.x.double(), data.asked.double()

    def classes(features: Callable[[Tensor], Tensor], neighbours: int) -> float:
        found = KNeighborsClassifier(neighbours).fit(features(x), data.y)
        return float(found.score(features(asked), data.labels))

    lengths = torch.cat([x, asked]).norm(dim=1)
    i, j = torch.triu_indices(len(lengths), len(lengths), 1)
    apart = float(((lengths[i] - lengths[j]).abs() > 1e-6).double().mean())
    frequent = float((data.labels == data.y.mode().values).double().mean())
    print(f"pairs of images told apart by their lengths: {apart:.4f}")
    print(f"class from the length: {classes(lambda v: v.norm(dim=1, keepdim=True), 15):.3f}; "
          f"from sorted sizes of pixels: {classes(lambda v: v.abs().sort(1).values, 5):.3f}; "
          f"the most frequent one: {frequent:.3f}")  # fmt: skip


def gram() -> None:
    data, g = digits(), torch.Generator().manual_seed(0)
    x = data.asked.double()

    def rotation() -> Tensor:
        matrix = Orthogonal(64).sample(g, dtype=torch.float64).matrix
        assert matrix is not None
        return matrix

    def conditioned(condition: float) -> Tensor:
        sizes = torch.logspace(0, condition, 64, dtype=torch.float64)
        return rotation() @ torch.diag(sizes) @ rotation()

    def generated() -> Tensor:
        matrix = GeneralLinear(64).sample(g, dtype=torch.float64).matrix
        assert matrix is not None
        return matrix

    kinds: dict[str, Callable[[], Tensor]] = {"rotation": rotation, "as generated": generated}
    kinds |= {f"condition 1e{c:g}": lambda c=c: conditioned(c) for c in (0.30103, 1, 2, 3)}
    print("| key | condition | Gram | neighbours |\n|---|---:|---:|---:|")
    for name, make in kinds.items():
        keys = [make() for _ in range(KEYS)]
        errors = [measures.gram(x @ a.T, x) for a in keys]
        near = [measures.neighbours(x @ a.T, data.labels) for a in keys]
        condition = statistics.fmean(float(torch.linalg.cond(a)) for a in keys)
        print(f"| {name} | {condition:.3g} "
              f"| {min(errors):.1e} to {max(errors):.1e} "
              f"| {statistics.fmean(near):.3f} |")  # fmt: skip
    alone = measures.neighbours(measures.whitened(x), data.labels, whiten=False)
    wrong = measures.neighbours(x, data.labels.roll(1))
    print(f"after whitening alone: {alone:.3f}; labels in a wrong order: {wrong:.3f}")


def seeds() -> None:
    """A seed is wrong if some pixel of three images leaves [0, 1]; no pair is known."""
    x = digits().asked[:3].double()
    searches: tuple[tuple[Group, int], ...] = (
        (Orthogonal(64), 3000), (SignedPermutation(64), 20_000),
    )  # fmt: skip
    for group, tried in searches:
        secret = 2**31 + 12_345
        sent = _undone(group, secret, x, back=False)
        start = time.process_time()
        found = [
            seed for seed in range(secret - tried + 1, secret + 1)
            if bool(((_undone(group, seed, sent) - 0.5).abs() < 0.5 + 1e-6).all())
        ]  # fmt: skip
        each = (time.process_time() - start) / tried
        print(f"{group}: {1e6 * each:.0f} µs for a seed, {each * 2**32 / 3600:.0f} CPU-hours for "
              f"all; of {tried} tried, left: {[s - secret for s in found]}")  # fmt: skip


def _undone(group: Group, seed: int, rows: Tensor, back: bool = True) -> Tensor:
    """Rows with the key of a seed undone, or applied."""
    g = group.sample(torch.Generator().manual_seed(seed), dtype=torch.float64)
    if g.matrix is not None:
        return rows @ (g.matrix if back else g.matrix.T)
    assert g.order is not None and g.diagonal is not None
    return (rows * g.diagonal)[:, g.order.argsort()] if back else rows[:, g.order] * g.diagonal


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part for part in (homogeneous, pad, gram, seeds)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"among {', '.join(PARTS)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{TRAINED} images are public where that is said, 500 are sent")
    for part in options.parts:
        print(f"\n{part}\n")
        PARTS[part]()


if __name__ == "__main__":
    main()
