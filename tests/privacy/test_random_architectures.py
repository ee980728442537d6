"""Keys on networks that nobody chose: training retraces, for each optimiser in turn."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.privacy import Key, decode, encode

from .architectures import Drawn, drawn

OPTIM = torch.optim
STEPS, SEEDS = 15, 24
MAKE = [
    lambda p: OPTIM.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    lambda p: OPTIM.SGD(p, 0.05),
    lambda p: OPTIM.Adam(p, 0.01),
    lambda p: OPTIM.RMSprop(p, 1e-3),
    lambda p: OPTIM.ASGD(p, 0.01),
    lambda p: OPTIM.NAdam(p, 0.01),
]


def trained(model: nn.Module, x: torch.Tensor, t: torch.Tensor, make, loss: nn.Module) -> dict:
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model(x), t).backward()
        optimizer.step()
    return model.state_dict()


def drift(network: Drawn, seed: int) -> tuple[float, float]:
    """How far the decoded run is from the plain one, and the encoded one undecoded."""
    make, labels = MAKE[seed % len(MAKE)], seed % 4 < 2
    loss: nn.Module = nn.CrossEntropyLoss() if labels else nn.MSELoss()
    x, t = network.data(seed, labels)
    symmetry = find_symmetry(
        network.model, (x[:7],), free_inputs=network.axes, free_outputs=True, training=True
    )
    generator = torch.Generator().manual_seed(seed)
    key = Key.generate(symmetry, generator, make(network.model.parameters()), loss)
    encoded = encode(network.model, (x, t), key, loss)
    assert encoded.targets is not None
    remote = trained(encoded.load_into(network.model), encoded.inputs, encoded.targets, make, loss)
    plain = trained(copy.deepcopy(network.model), x, t, make, loss)
    decoded = decode(remote, key)

    def apart(found: dict) -> float:
        return max(
            float((found[n].double() - p.double()).norm() / p.double().norm().clamp_min(1e-300))
            for n, p in plain.items()
        )

    return apart(decoded), apart(remote)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_training_retraces(seed: int) -> None:
    back, undecoded = drift(drawn(seed), seed)
    assert back < 1e-7  # rounding alone moves what the function ignores, under Adam and its like
    assert undecoded > 0.1
