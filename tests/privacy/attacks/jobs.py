"""Jobs that the attacks are tried on."""

import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.algebra import GeneralLinear, Orthogonal, Permutation, SignedPermutation
from paramsym.privacy import Job, Key
from tests.privacy.attacks.keys import seeded

GROUPS = {
    "general linear": GeneralLinear,
    "orthogonal": Orthogonal,
    "signed permutation": SignedPermutation,
}


def perceptron(size: int, hidden: int = 12, outputs: int = 10) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    return body.double()


def convolutional(channels: int, outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs))
        body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), *head)
    return body.double()


def job(model, inputs, kind, axis=-1, targets=None, seed=0, dtype=torch.float64) -> Job:
    """A job whose input key is of one kind, and whose other parts are as free as they can be."""
    inputs, model = inputs.to(dtype), model.to(dtype)
    symmetry = find_symmetry(model, (inputs[:20],), free_inputs={"input": axis})
    size = inputs.shape[axis]
    groups = {"input": GROUPS[kind](size)} if size > 1 else None  # one feature is only scaled
    key = Key.generate(symmetry, seeded(seed), groups=groups)
    return Job(model, key, inputs, targets, seed=seed)


def labelled(kind, own, public, axis=-1, model=None) -> Job:
    """A job whose classes are permuted, too, with labelled public samples."""
    (inputs, targets), (others, labels) = own, public
    model = model or perceptron(inputs.shape[axis])
    symmetry = find_symmetry(model, (inputs[:20],), free_inputs={"input": axis}, free_outputs=True)
    groups = {
        "input": GROUPS[kind](inputs.shape[axis]),
        "output": Permutation(symmetry.sizes["output"]),
    }
    key = Key.generate(symmetry, seeded(3), groups=groups)
    return Job(model, key, inputs, targets, public=others, public_targets=labels)
