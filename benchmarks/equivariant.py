"""Timings of the equivariant part: forward and backward, closed form, counting, decomposition.

    python benchmarks/equivariant.py [--quick]

Networks are compared with the dense autoencoder of the same widths on one CPU thread, float32,
batch 256. The loss is left out of the timing (it is the same for both); the fastest and the median
step of several rounds are printed, the two networks in turns.
"""

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np
import torch

from paramsym.equivariant import (
    Component,
    Decomposition,
    EquivariantAutoencoder,
    best_component,
    components,
    decompose,
    image_dihedral,
    image_shift,
    symmetric_on_subsets,
)
from paramsym.equivariant.study import PUBLISHED, DenseAutoencoder


def smooth_covariance(size: int) -> np.ndarray:
    """A stand-in for natural images: exponential correlations along both axes."""
    places = np.arange(size)
    line = np.exp(-np.abs(places[:, None] - places) / 4)
    return np.kron(line, line)


def timed(steps: list[Callable[[], None]], rounds: int, repeats: int) -> list[tuple[float, float]]:
    """Fastest and median milliseconds of each step."""
    for step in steps * 3:
        step()
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for times, step in zip(found, steps, strict=True):
            for _ in range(repeats):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
    return [(min(t) * 1e3, float(np.median(t)) * 1e3) for t in found]


def compare(name: str, decomposition: Decomposition, component: Component, rounds: int) -> None:
    pixels, rank = decomposition.shape[1], component.rank
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, pixels, generator=generator)
    networks = [
        EquivariantAutoencoder(decomposition, component, generator=generator),
        DenseAutoencoder(pixels, rank, generator),
    ]

    def step(network: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            network.zero_grad()
            network(x).backward(x)

        return run

    ours, dense = timed([step(network) for network in networks], rounds, 20)
    weights = [sum(p.numel() for p in network.parameters()) for network in networks]
    buffers = sum(b.numel() * b.element_size() for b in networks[0].buffers())
    print(
        f"{name:34s} ours {ours[0]:7.2f} / {ours[1]:7.2f} ms   dense {dense[0]:7.2f} / "
        f"{dense[1]:7.2f} ms   {dense[0] / ours[0]:5.2f} x / {dense[1] / ours[1]:5.2f} x   "
        f"weights {weights[0]:,} : {weights[1]:,}, constants {buffers / 1024:.0f} KiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 64 x 64")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = decompose(image_shift(28, 28))
    published = components(rows, 99).component(PUBLISHED)
    print("forward + backward, batch 256: fastest / median")
    compare("28 x 28, rank 99, rows, published", rows, published, 3 if quick else 15)
    covariance = smooth_covariance(28)
    both = decompose(image_shift(28, 28, "both"))
    best = best_component(covariance, both, 99, exactly=True).component
    compare("28 x 28, rank 99, both axes", both, best, 3 if quick else 15)
    if not quick:
        large = smooth_covariance(64)
        for axis, rank in itertools.product(("horizontal", "both"), (99, 512)):
            decomposition = decompose(image_shift(64, 64, axis))
            best = best_component(large, decomposition, rank, exactly=True).component
            compare(f"64 x 64, rank {rank}, {axis}", decomposition, best, 5)
    start = time.perf_counter()
    best_component(covariance, rows, 99)
    print(f"best component, 784 / 99: {time.perf_counter() - start:.3f} s after the covariance")
    for name, make, rank in (
        ("S12 on 66 pairs", lambda: symmetric_on_subsets(12), 55),
        ("dihedral on 32 x 32", lambda: image_dihedral(32), 300),
        ("both shifts on 28 x 28", lambda: image_shift(28, 28, "both"), 99),
    ):
        # Groups are values, so an earlier use of the same one would answer from the cache.
        from paramsym.equivariant.decomposition import _decompose

        _decompose.cache_clear()
        start = time.perf_counter()
        family = components(make(), rank)
        listed = sum(1 for _ in itertools.islice(family, 1000))
        seconds = time.perf_counter() - start
        print(f"{name}, rank {rank}: {family.count} components, {listed} listed, {seconds:.2f} s")


if __name__ == "__main__":
    main()
