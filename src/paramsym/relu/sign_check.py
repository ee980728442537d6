"""The independent checker of proofs that a unit keeps one sign on the image of the layers below.

A proof is a tree of cases. In each case the target is bounded from above by an affine form in the
inputs, layer by layer from the top: a value w·relu(z) is at most slope·z

    for an active unit, z >= 0, if slope >= w;
    for an inactive one, z <= 0, if slope <= 0;
    for any unit if w <= slope <= 0,

and z is affine in the values one layer below. What remains is affine in the inputs, and its range
on the domain is known. The cases are complete because every split has both its sides. Nothing is
shared with the search, which solves linear programs; here numbers are multiplied and compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.clock import tick
from paramsym.relu.domains import Domain
from paramsym.relu.logs import Leaf, SignProof, Split
from paramsym.relu.network import Network
from paramsym.relu.rationals import ZERO

Claims = dict[tuple[int, int, tuple[int, ...]], int]  # (hidden layer, unit, without) ↦ ±1
Signs = dict[tuple[int, int], int]  # the same for whole pre-activations
Row = list[fmpq]


def checked_signs(
    nets: tuple[Network, Network], domain: Domain, proofs: list[SignProof]
) -> tuple[Claims, Claims] | None:
    """The signs that a list of proofs shows, for both networks; None if one of them fails.

    Each proof may use the signs shown before it, and those of first-layer units that the domain
    shows by itself.
    """
    shown: tuple[Claims, Claims] = ({}, {})
    known = (_first_layer(nets[0], domain), _first_layer(nets[1], domain))
    for proof in proofs:
        if proof.network not in (0, 1) or proof.sign not in (1, -1):
            return None
        net = nets[proof.network]
        if not 1 <= proof.layer < net.depth or not 0 <= proof.unit < net.widths[proof.layer + 1]:
            return None
        if not all(0 <= k < net.widths[proof.layer] for k in proof.without):
            return None
        if not _Proof(net, domain, proof).holds(known[proof.network]):
            return None
        shown[proof.network][proof.layer, proof.unit, proof.without] = proof.sign
        if not proof.without:
            known[proof.network][proof.layer, proof.unit] = proof.sign
    return shown


def _first_layer(net: Network, domain: Domain) -> Signs:
    if not net.depth:
        return {}
    found: Signs = {}
    weight, bias = net.exact[0]
    for unit, row in enumerate(weight.tolist()):
        side = domain.side(row, bias[unit])
        if side:
            found[0, unit] = side
    return found


class _Proof:
    """One claim: -sign·p <= 0 on the domain."""

    def __init__(self, net: Network, domain: Domain, claim: SignProof) -> None:
        self.domain, self.top = domain, claim.layer
        self.layers = [(part.weight.tolist(), part.bias) for part in net.exact[: claim.layer + 1]]
        table, bias = self.layers[claim.layer]
        self.target = [-claim.sign * v for v in table[claim.unit]]
        for k in claim.without:
            self.target[k] = ZERO
        self.offset = -claim.sign * bias[claim.unit]
        self.steps: Iterator[Split | Leaf] = iter(claim.tree)

    def holds(self, known: Signs) -> bool:
        """Whether the tree covers every case, closes each, and has nothing left over."""
        return self._case(known) and next(self.steps, None) is None

    def _case(self, signs: Signs) -> bool:
        tick()
        step = next(self.steps, None)
        if step is None:
            return False
        if isinstance(step, Leaf):
            return self._closed(step, signs)
        place = (step.layer, step.unit)
        if place in signs or not 0 <= step.layer < self.top:
            return False
        if not 0 <= step.unit < len(self.layers[step.layer][1]):
            return False
        return self._case({**signs, place: 1}) and self._case({**signs, place: -1})

    def _closed(self, leaf: Leaf, signs: Signs) -> bool:
        """Whether goal·target + (1 - goal) <= 0 wherever the units have these signs."""
        if leaf.goal not in (0, 1) or len(leaf.slopes) != self.top:
            return False
        weights = [leaf.goal * v for v in self.target]
        offset = leaf.goal * self.offset + (1 - leaf.goal)
        for layer in range(self.top - 1, -1, -1):
            table, bias = self.layers[layer]
            slopes = dict(leaf.slopes[layer])
            if not all(0 <= unit < len(bias) for unit in slopes):
                return False
            below = [ZERO] * len(table[0])
            for unit, w in enumerate(weights):
                slope = slopes.get(unit, ZERO)
                if not _bounds(w, slope, signs.get((layer, unit))):
                    return False
                if slope:
                    offset += slope * bias[unit]
                    below = [u + slope * v for u, v in zip(below, table[unit], strict=True)]
            weights = below
        _, upper = self.domain.range(weights, offset)
        return upper is not None and upper <= 0


def _bounds(w: fmpq, slope: fmpq, side: int | None) -> bool:
    """Whether w·relu(z) <= slope·z for every z of that sign (None: for every z)."""
    if side == 1:
        return slope >= w
    if side == -1:
        return slope <= 0
    return w <= slope <= 0
