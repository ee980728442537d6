"""Keys and samples that the attacks are tried on."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from paramsym.algebra import GeneralLinear, Orthogonal, SignedPermutation

KINDS = ("general linear", "orthogonal", "signed permutation")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def key(kind: str, size: int, generator: torch.Generator) -> torch.Tensor:
    """A matrix of each kind; general linear ones of a condition of about 10."""
    if kind == "general linear":
        found = GeneralLinear(size).sample(generator, 4.0, dtype=torch.float64).matrix
    elif kind == "orthogonal":
        found = Orthogonal(size).sample(generator, dtype=torch.float64).matrix
    else:
        g = SignedPermutation(size).sample(generator, dtype=torch.float64)
        assert g.order is not None and g.diagonal is not None
        found = torch.eye(size, dtype=torch.float64)[g.order] * g.diagonal[:, None]
    assert found is not None
    return found


def gaussian(samples: int, size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(samples, size, generator=generator, dtype=torch.float64)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 64 pixels, of which 61 vary, and their labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return torch.tensor(images[order]), torch.tensor(labels[order])
