"""Data and networks of `ensembles.py`: convolution, pooling, and two linear layers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FILES = {"CIFAR-10": "cifar10_subset.npz", "MNIST": "mnist.npz"}
HIDDEN = 32
TRAINED = {"CIFAR-10": 8068, "MNIST": 10_000}  # images
EPOCHS = {"CIFAR-10": 3, "MNIST": 3}
ATTACKED = 400  # images of the test set
CLIP = (-0.5, 0.5)  # images are in [-1/2, 1/2], as published


@dataclass(frozen=True)
class Data:
    """Images in [-1/2, 1/2] of shape (n, channels, height, width), and their classes."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def data(name: str, folder: Path) -> Data | None:
    """One data set; None, with a message, where its file is absent."""
    path = folder / FILES[name]
    if not path.exists():
        print(f"left out: {name}: {folder} has no {path.name}; give --data or $PARAMSYM_DATA")
        return None
    with np.load(path) as file:
        parts = [(file[f"x_{p}"], file[f"y_{p}"]) for p in ("train", "test")]
    (x, y), (x_test, y_test) = parts
    count = TRAINED[name]
    return Data(name, (_images(x[:count]), torch.from_numpy(y[:count]).long()),
                (_images(x_test[:2000]), torch.from_numpy(y_test[:2000]).long()))  # fmt: skip


def _images(x: np.ndarray) -> Tensor:
    images = torch.from_numpy(x).float() / 255 - 0.5
    return images if images.ndim == 4 else images[:, None]


def network(of: Data, seed: int, softmax: bool = False) -> nn.Sequential:
    """Convolution 3×3 to 16 channels, maxima of 4×4, linear to 32, leaky ReLU, linear to 10.

    Args:
        of: what it is trained on, with Adam at 0.001 in batches of 64.
        seed: of its start and of the order of images.
        softmax: whether it ends with a softmax, and so has two with that of the loss.
    """
    x, y = of.train
    size = 16 * (x.shape[-1] // 4) ** 2
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(x.shape[1], 16, 3, padding=1), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(size, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, 10),
    )  # fmt: skip
    if softmax:
        model.append(nn.Softmax(1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS[of.name]):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def folder_of_data() -> Path:
    """Where the files are, by default."""
    return Path(os.environ.get("PARAMSYM_DATA", "."))
