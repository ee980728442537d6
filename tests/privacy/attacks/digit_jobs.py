"""Jobs on digits: an MLP whose inputs and classes move, with what everybody may have of them."""

from functools import cache

import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.privacy import Job, Key
from paramsym.structure.symmetry import ParameterSymmetry
from tests.privacy.attacks.digit_halves import drawn_halves


def mlp(seed: int = 0, hidden: int = 72) -> nn.Sequential:
    """64 pixels, two hidden layers, 10 classes; in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 16), nn.ReLU(), nn.Linear(16, 10)
    ).double()


@cache
def symmetry_of_mlp(hidden: int = 72) -> ParameterSymmetry:
    example = torch.zeros(3, 64, dtype=torch.float64)
    return find_symmetry(
        mlp(hidden=hidden), (example,), training=True, free_inputs=True, free_outputs=True
    )


def trained(model: nn.Sequential, steps: int) -> nn.Sequential:
    """The model after some steps of SGD on the half that is sent."""
    _, (images, classes) = drawn_halves(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images / 16), classes).backward()
        optimizer.step()
    return model


def job(
    optimizer: str | None = "adam",
    *,
    scalings: bool = False,
    steps: int = 0,
    seed: int = 0,
    loss: str = "cross_entropy",
    public_weights: bool = True,
    hidden: int = 72,
) -> Job:
    """A job on one half of digits; the other half is public, and so is the initialisation."""
    (public, public_classes), (images, classes) = drawn_halves(0)
    initial = {name: each.clone() for name, each in mlp(hidden=hidden).state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    key = Key.generate(
        symmetry_of_mlp(hidden), generator, optimizer, loss if optimizer else None,
        scalings=scalings,
    )  # fmt: skip
    return Job(
        trained(mlp(hidden=hidden), steps), key, images / 16, classes if optimizer else None,
        public / 16, public_classes, initial if public_weights else None, seed=seed,
    )  # fmt: skip
