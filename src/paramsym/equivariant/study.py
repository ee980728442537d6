"""The autoencoder study of the source: components against each other and against no symmetry.

Closed-form losses come from second moments alone; trained ones from `train`. Both are mean squared
errors per pixel on the test images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .arguments import real, second_moment_matrix, whole
from .component import Component
from .components import Components, components
from .decomposition import Decomposition
from .images import Images
from .optimum import best_component, best_on_component, dense_loss, loss_of

# r₁₁, r₂₈,₂₇, …, r₂,₁ of the published table: blocks in the order of increasing frequency.
PUBLISHED = (13, 10, 9, 8, 7, 5, 3, 1, 0, 0, 0, 0, 0, 0, 0)
PUBLISHED_LOSSES = {
    "dense": 0.0057,
    "published": 0.0082,
    "equal rank": 0.0206,
    "high-pass": 0.1063,
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: which autoencoder.
        component: None for the dense one.
        train: its loss per pixel on the training images, the optimum of the component.
        test: the loss per pixel of the same matrix on the test images.
    """

    name: str
    component: Component | None
    train: float
    test: float


def equal_ranks(family: Components, extra: str) -> Component:
    """Ranks as equal as they can be.

    Args:
        family: the components to choose from.
        extra: "low" or "high": the end from which the blocks get what is left over.
    """
    isotypics = family.decomposition.isotypics
    level, left, ranks = 0, family.rank, [0] * len(isotypics)
    order = range(len(isotypics)) if extra == "low" else range(len(isotypics) - 1, -1, -1)
    while left:
        before = left
        for i in order:
            v = isotypics[i]
            if ranks[i] == level and level < v.largest_rank and v.dimension <= left:
                ranks[i] += 1
                left -= v.dimension
        level += 1
        if before == left and level > max(v.largest_rank for v in isotypics):
            break
    return family.component(ranks if not left else family.nearest(ranks, 1)[0])


def reversed_ranks(family: Components, ranks: Sequence[int]) -> Component:
    """The high-pass mirror image of a low-pass component: its ranks in reverse order."""
    mirrored = tuple(reversed(ranks))
    costs = [v.dimension for v in family.decomposition.isotypics]
    fits = all(
        r <= v.largest_rank for r, v in zip(mirrored, family.decomposition.isotypics, strict=True)
    )
    if fits and sum(c * r for c, r in zip(costs, mirrored, strict=True)) == family.rank:
        return family.component(mirrored)
    return family.component(family.nearest(mirrored, 1)[0])


def named_components(
    decomposition: Decomposition, rank: int, best: Component
) -> dict[str, Component]:
    """The components of the table, by name; the published one only where it exists."""
    family = components(decomposition, rank)
    named = {"best of all": best}
    fits = len(PUBLISHED) == len(decomposition.isotypics) and decomposition.shape == (784, 784)
    low_pass: Sequence[int] = best.ranks
    if fits and rank == 99:
        named["published"] = family.component(PUBLISHED)
        low_pass = PUBLISHED
    if family.count:
        named["equal rank, extra low"] = equal_ranks(family, "low")
        named["equal rank, extra high"] = equal_ranks(family, "high")
        named["high-pass"] = reversed_ranks(family, low_pass)
    return named


def closed_form_table(
    train: NDArray[np.float64], test: NDArray[np.float64], decomposition: Decomposition, rank: int
) -> list[Row]:
    """The optimum of every autoencoder of the table, from second moments.

    Args:
        train: E[x xᵀ] of the training images (n × n).
        test: the same of the test images.
        decomposition: of the group.
        rank: the bottleneck.
    """
    pixels = decomposition.shape[1]
    train = second_moment_matrix(train, "closed_form_table(train)", pixels)
    test = second_moment_matrix(test, "closed_form_table(test)", pixels)
    values, vectors = np.linalg.eigh(train)
    leading = vectors[:, ::-1][:, :rank]
    dense = leading @ leading.T
    rows = [Row("dense", None, dense_loss(train, rank) / pixels, loss_of(dense, test) / pixels)]
    best = best_component(train, decomposition, rank)
    for name, component in named_components(decomposition, rank, best.component).items():
        optimum = best_on_component(train, component)
        loss = loss_of(optimum.matrix, test) / pixels
        rows.append(Row(name, component, optimum.loss_per_pixel, loss))
    return rows


class DenseAutoencoder(nn.Module):
    """ℝⁿ → ℝʳ → ℝⁿ, linear and without symmetry: the baseline."""

    def __init__(self, pixels: int, rank: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        rank = whole(rank, "DenseAutoencoder(rank=…)")
        encoder = torch.randn(rank, pixels, generator=generator) / pixels**0.5
        decoder = torch.randn(pixels, rank, generator=generator) / rank**0.5
        self.encoder, self.decoder = nn.Parameter(encoder), nn.Parameter(decoder)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.encoder.T @ self.decoder.T


def train(
    network: nn.Module,
    images: Images,
    epochs: int,
    generator: torch.Generator,
    learning_rate: float = 2e-3,
    batch: int = 256,
) -> list[float]:
    """Trains an autoencoder by Adam with a cosine schedule.

    Args:
        network: from (batch, n) to (batch, n).
        images: samples × height × width.
        epochs: passes through the images.
        generator: of the order of the images.
        learning_rate: at the start; it falls to zero along half a cosine.
        batch: images in one step.

    Returns:
        The mean squared error per pixel in each epoch, while training.
    """
    real(learning_rate, "train(learning_rate=…)")
    epochs, batch = whole(epochs, "train(epochs=…)"), whole(batch, "train(batch=…)", low=1)
    data = torch.as_tensor(images.reshape(len(images), -1))
    optimiser = torch.optim.Adam(network.parameters(), learning_rate)
    steps = max(1, epochs * -(-len(data) // batch))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    history = []
    for _ in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(data), generator=generator).split(batch):
            x = data[chosen]
            loss = nn.functional.mse_loss(network(x), x)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(x)
        history.append(total / max(len(data), 1))
    return history


@torch.no_grad()
def reconstruction_loss(network: nn.Module, images: Images, batch: int = 2000) -> float:
    """The mean squared error per pixel of an autoencoder on images (samples × height × width)."""
    data = torch.as_tensor(images.reshape(len(images), -1))
    batch = whole(batch, "reconstruction_loss(batch=…)", low=1)
    total = sum(float((network(x) - x).square().sum()) for x in data.split(batch))
    return total / max(data.numel(), 1)
