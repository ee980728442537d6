"""Two disjoint halves of the digits: one that everybody has, and one that is sent."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor

Half = tuple[Tensor, Tensor]


@cache
def digits() -> Half:
    """Images of shape (1797, 64) between 0 and 16, and their classes."""
    images, classes = load_digits(return_X_y=True)
    return torch.from_numpy(images), torch.from_numpy(classes)


def drawn_halves(seed: int) -> tuple[Half, Half]:
    """Samples drawn into two halves."""
    images, classes = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    one, other = order[:898], order[898:]
    return (images[one], classes[one]), (images[other], classes[other])


def halves_of_writers() -> tuple[Half, Half]:
    """The first and the second half of the file, which other people wrote."""
    images, classes = digits()
    return (images[:898], classes[:898]), (images[898:], classes[898:])


HALVES = {"drawn": lambda: drawn_halves(0), "writers": halves_of_writers}
