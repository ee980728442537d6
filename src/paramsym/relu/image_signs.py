"""What the later units of two networks do on the image of the layers below: which never fire.

Weights of both signs do not mean that a unit changes its sign: relu(u + v) - relu(u) - relu(v)
never fires, though it would on the whole orthant. Samples choose the units, `sign_search` proves
them one by one, layer by layer, each with the help of those before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import OutOfTime, left, limited, tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import SignProof
from paramsym.relu.network import Network
from paramsym.relu.sampling import drawn
from paramsym.relu.sign_search import Place, Prover

Claim = tuple[int, int, tuple[int, ...], int]  # layer, unit, what is left out, sign
_SAMPLES = 4096
_ROUNDING = 1e-9  # of the magnitudes: pre-activations this small may have either sign


@dataclass
class ImageSigns:
    """What is known of the signs of later units.

    Attributes:
        proofs: in an order in which each may use those before it.
        inputs: inputs at which a unit that seemed to keep its sign does not.
    """

    proofs: list[SignProof] = field(default_factory=list)
    inputs: list[list[fmpq]] = field(default_factory=list)

    def of(self, network: int) -> dict[tuple[int, int, tuple[int, ...]], int]:
        """The proved signs of network 0 or 1, by layer, unit and what is left out."""
        return {(p.layer, p.unit, p.without): p.sign for p in self.proofs if p.network == network}


def image_signs(a: Network, b: Network, domain: Domain, seed: int = 5) -> ImageSigns:
    """Proofs for the units of both networks, from the second hidden layer on, that keep their sign.

    Each unit that samples suggest gets a third of the time that is left; what could not be settled
    is left out, and what was proved before the time ended is kept.
    """
    found = ImageSigns()
    try:
        for which, net in enumerate((a, b)):
            _settle(which, net, domain, seed, found)
    except OutOfTime:
        pass
    return found


def _settle(which: int, net: Network, domain: Domain, seed: int, found: ImageSigns) -> None:
    known = known_signs(net, domain)
    for layer, unit, without, side in candidates(net, domain, seed):
        tick()
        if (layer, unit) in known or any((layer - 1, k) in known for k in without):
            continue
        prover = Prover(net, domain, known, layer, unit, side, without)
        try:
            with limited(left() / 3):
                tree = prover.tree()
        except OutOfTime:
            continue
        if tree is not None:
            found.proofs.append(SignProof(which, layer, unit, without, side, tuple(tree)))
            if not without:
                known[layer, unit] = side
        elif prover.refuted is not None:
            found.inputs.append(prover.refuted)


def known_signs(net: Network, domain: Domain) -> dict[Place, int]:
    """The signs of first-layer units that the domain shows."""
    weight, bias = net.exact[0]
    sides = [domain.side(row, t) for row, t in zip(weight.tolist(), bias, strict=True)]
    return {(0, unit): side for unit, side in enumerate(sides) if side}


def candidates(net: Network, domain: Domain, seed: int = 5) -> list[Claim]:
    """What has one sign on all samples, from the second hidden layer on, layer by layer.

    Units first, then units without one unit of the layer before (and its multiples): where
    w·relu(u) + r has w > 0 and r <= 0, its ReLU is that of w·u + r.
    """
    values = drawn(domain, np.random.default_rng(seed), _SAMPLES)
    found: list[Claim] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for layer, (weight, bias) in enumerate(net.floats[:-1]):
            tick()
            z = values @ weight.T + bias
            room = _ROUNDING * (np.abs(values) @ np.abs(weight).T + np.abs(bias))
            if layer:
                sides = [_side(z[:, k], room[:, k]) for k in range(len(bias))]
                found += [(layer, k, (), side) for k, side in enumerate(sides) if side]
                mixed = [k for k, side in enumerate(sides) if not side]
                found += _rests(net, layer, mixed, values, z, room)
            values = np.maximum(z, 0)
    return found


def _side(values: np.ndarray, room: np.ndarray) -> int:
    """-1 or 1 if no value is beyond its room on the other side, else 0."""
    if not (values > room).any():
        return -1
    return 0 if (values < -room).any() else 1


def _rests(
    net: Network,
    layer: int,
    units: list[int],
    values: np.ndarray,
    z: np.ndarray,
    room: np.ndarray,
) -> list[Claim]:
    """The units that may be unbent although no bound of their parts shows it."""
    weight, bias = net.floats[layer]
    groups = _multiples(net, layer - 1)
    found: list[Claim] = []
    for unit in units:
        tick()
        for group in groups:
            without = tuple(k for k in group if weight[unit, k])
            share = float(sum(weight[unit, k] * abs(_size(net, layer - 1, k)) for k in without))
            side = 1 if share > 0 else -1
            others = np.delete(weight[unit], without)
            if not share or (side * np.append(others, bias[unit]) <= 0).all():
                continue  # nothing is read, or the signs of the weights say it
            rest = z[:, unit] - values[:, without] @ weight[unit, list(without)]
            if not (side * rest > room[:, unit]).any():
                found.append((layer, unit, without, -side))
    return found


def _multiples(net: Network, layer: int) -> list[list[int]]:
    """The units of a layer, those with proportional rows together."""
    groups: dict[tuple[fmpq, ...], list[int]] = {}
    weight, bias = net.exact[layer]
    for unit, row in enumerate(weight.tolist()):
        size = next((abs(v) for v in row if v), None)
        if size is not None:
            groups.setdefault((*(v / size for v in row), bias[unit] / size), []).append(unit)
    return list(groups.values())


def _size(net: Network, layer: int, unit: int) -> float:
    return float(np.abs(net.floats[layer].weight[unit]).max())
