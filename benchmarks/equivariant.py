"""Timings of the equivariant part: forward and backward, closed form, counting, decomposition.

    python benchmarks/equivariant.py [--quick]

Networks are compared with the dense autoencoder of the same widths on one CPU thread, float32,
batch 256, in every form that applies. Seconds are CPU time, forward and backward without the loss
(it is the same for all); all networks of one line run in turns, and the fastest and the median turn
are printed, with their ratio to those of the dense network (below 1 is faster).
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
from paramsym.equivariant.forms.choice import FORMS
from paramsym.equivariant.study import PUBLISHED, DenseAutoencoder


def smooth_covariance(size: int) -> np.ndarray:
    """A stand-in for natural images: exponential correlations along both axes."""
    places = np.arange(size)
    line = np.exp(-np.abs(places[:, None] - places) / 4)
    return np.kron(line, line)


def timed(
    steps: list[Callable[[], None]], rounds: int, repeats: int = 5
) -> list[tuple[float, float]]:
    """Fastest and median milliseconds of CPU time of each step, in turns of a few steps."""
    for step in steps * 3:
        step()
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for times, step in zip(found, steps, strict=True):
            start = time.process_time()
            for _ in range(repeats):
                step()
            times.append((time.process_time() - start) / repeats)
    return [(min(t) * 1e3, float(np.median(t)) * 1e3) for t in found]


def compare(
    name: str, decomposition: Decomposition, component: Component, rounds: int
) -> tuple[float, float]:
    """The fastest milliseconds of the form that is chosen, and of the dense autoencoder."""
    pixels, rank = decomposition.shape[1], component.rank
    x = torch.randn(256, pixels, generator=torch.Generator().manual_seed(0))
    networks: dict[str, torch.nn.Module] = {"dense": DenseAutoencoder(pixels, rank)}
    chosen = EquivariantAutoencoder(decomposition, component)
    kind = type(chosen.core.source.parts[0].form)
    for form in FORMS:
        network = EquivariantAutoencoder(decomposition, component, form=form)
        if type(network.core.source.parts[0].form) is FORMS[form]:  # the form applies
            networks[form] = chosen if FORMS[form] is kind else network

    def step(network: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            network.zero_grad()
            network(x).backward(x)

        return run

    times = timed([step(network) for network in networks.values()], rounds)
    fastest, median = times[0]
    print(name)
    for (label, network), (low, middle) in zip(networks.items(), times, strict=True):
        weights = sum(p.numel() for p in network.parameters())
        print(
            f"  {label:10s}{'*' if network is chosen else ' '} {low:7.2f} / {middle:7.2f} ms   "
            f"{low / fastest:5.2f} / {middle / median:5.2f} of dense   weights {weights:,}",
            flush=True,
        )
    place = [network is chosen for network in networks.values()].index(True)
    return times[place][0], fastest


def published(rounds: int) -> tuple[float, float]:
    """The same for 784-99-784 with the ranks that were published."""
    rows = decompose(image_shift(28, 28))
    component = components(rows, 99).component(PUBLISHED)
    return compare("28 x 28, rank 99, rows, published", rows, component, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 64 x 64")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("forward + backward, batch 256, CPU time: fastest / median; * is the form chosen")
    published(5 if quick else 40)
    rows = decompose(image_shift(28, 28))
    covariance = smooth_covariance(28)
    both = decompose(image_shift(28, 28, "both"))
    best = best_component(covariance, both, 99, exactly=True).component
    compare("28 x 28, rank 99, both axes", both, best, 5 if quick else 40)
    if not quick:
        large = smooth_covariance(64)
        for axis, rank in itertools.product(("horizontal", "both"), (99, 512)):
            decomposition = decompose(image_shift(64, 64, axis))
            best = best_component(large, decomposition, rank, exactly=True).component
            compare(f"64 x 64, rank {rank}, {axis}", decomposition, best, 8)
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
