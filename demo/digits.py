"""What the demo works on: scikit-learn's handwritten digits, and networks that read them."""

from __future__ import annotations

import torch


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images in [0, 1] and labels: 1,297 to train with and 500 to test with."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float64) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[500:], order[:500]
    return images[train], labels[train], images[test], labels[test]


class Network(torch.nn.Module):
    """64-20-12-10 with ReLU: small enough to count its redundant directions exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 20, dtype=torch.float64)
        self.second = torch.nn.Linear(20, 12, dtype=torch.float64)
        self.third = torch.nn.Linear(12, 10, dtype=torch.float64)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(image))
        hidden = torch.relu(self.second(hidden))
        return self.third(hidden)

    def example_inputs(self) -> tuple[torch.Tensor]:
        """What the command traces the network with."""
        return (digits()[0][:7],)


class Scores(torch.nn.Module):
    """How strongly rows of an image attend to each other: only Q Kᵀ matters, not Q and K."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(8, 3, bias=False, dtype=torch.float64)
        self.key = torch.nn.Linear(8, 3, bias=False, dtype=torch.float64)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = image.unflatten(-1, (8, 8))
        return self.query(rows) @ self.key(rows).mT

    def example_inputs(self) -> tuple[torch.Tensor]:
        """As for `Network`."""
        return (digits()[0][:7],)


def initialised(seed: int) -> Network:
    """A network with uniform weights."""
    generator = torch.Generator().manual_seed(seed)
    model = Network()
    for parameter in model.parameters():
        bound = (3 / parameter.shape[-1]) ** 0.5 if parameter.ndim > 1 else 0.1
        with torch.no_grad():
            parameter.uniform_(-bound, bound, generator=generator)
    return model


def train(seed: int, images: torch.Tensor, labels: torch.Tensor) -> Network:
    """Adam, full batches."""
    model = initialised(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(400):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that are read correctly."""
    return float((model(images).argmax(1) == labels).double().mean())
