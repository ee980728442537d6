"""The MNIST table of arXiv:2309.13736: 784–99–784 autoencoders, closed form and trained.

    python benchmarks/mnist_study.py path/to/mnist.npz [--epochs 30] [--integer]

Data: pixels in [0, 1]; every image shifted horizontally once, uniformly by up to 20 % of its width,
linear interpolation, border pixels repeated; with --integer by −5 … 5 whole pixels instead.
Trained networks are equivariant from the first step (Adam, cosine schedule, batches of 256).
"""

import argparse
import time

import numpy as np
import torch

from paramsym.equivariant import EquivariantAutoencoder, decompose, image_shift
from paramsym.equivariant.images import (
    load_images,
    randomly_shifted,
    second_moment,
    shift_images,
)
from paramsym.equivariant.study import (
    DenseAutoencoder,
    closed_form_table,
    reconstruction_loss,
    train,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--integer", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = load_images(arguments.data)
    rng = np.random.default_rng(arguments.seed)
    if arguments.integer:
        fitted, held_out = (
            shift_images(x, rng.integers(-5, 6, len(x)).astype(float)) for x in data
        )
    else:
        fitted, held_out = (randomly_shifted(x, 0.2, rng) for x in data)
    decomposition = decompose(image_shift(28, 28))
    start = time.perf_counter()
    moments = second_moment(fitted), second_moment(held_out)
    print(f"second moments {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    rows = closed_form_table(*moments, decomposition, 99)
    print(f"the closed-form table {time.perf_counter() - start:.2f} s")
    head = ("autoencoder", "cf train", "cf test", "train", "test", "seconds")
    print("{:24s} {:>9s} {:>9s} {:>9s} {:>9s} {:>8s}  ranks".format(*head))
    for row in rows:
        generator = torch.Generator().manual_seed(arguments.seed)
        if row.component is None:
            network: torch.nn.Module = DenseAutoencoder(784, 99, generator)
        else:
            network = EquivariantAutoencoder(decomposition, row.component, generator=generator)
        start = time.perf_counter()
        train(network, fitted, arguments.epochs, generator)
        seconds = time.perf_counter() - start
        losses = [reconstruction_loss(network, x) for x in (fitted, held_out)]
        if losses[0] < row.train * (1 - 1e-5):
            raise AssertionError(f"{row.name}: trained below the closed-form bound")
        print(
            f"{row.name:24s} {row.train:9.5f} {row.test:9.5f} {losses[0]:9.5f} {losses[1]:9.5f} "
            f"{seconds:8.1f}  {row.component.ranks if row.component else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
