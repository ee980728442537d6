"""Claims that move buffers as well: not to be counted among parameters, but to be tried.

The null space of the Jacobian is one of parameters, so that an audit keeps buffers where they are.
What moves a running statistic with a weight claims that the two together change nothing; a finite
difference along both says whether that is so.
"""

from __future__ import annotations

import torch

from paramsym.checking.jacobian import Network
from paramsym.checking.measure import size_of
from paramsym.recording.precision import functional
from paramsym.structure.coordinates import Generators
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, as_real, tangent

_STEP = 1e-5  # relative to the largest entries: third order and rounding are both near 1e-10
_FALSE = 1e-5
_TRIALS = 3  # inputs and directions each; a kink that is crossed spoils one of them


def refuted_beside(network: Network, symmetry: ParameterSymmetry) -> dict[str, float]:
    """Spaces and shifts that move buffers and change the outputs, with the change at unit speed."""
    operator = tangent(symmetry, network.state)
    exact = {name for name, space in symmetry.spaces.items() if space.exact}
    found: dict[str, float] = {}
    for block in operator.blocks:
        if not {*block.parameters} & {*symmetry.buffers}:
            continue
        if not block.is_shift and block.name not in exact:
            continue
        changes = sorted(_change(network, operator, block) for _ in range(_TRIALS))
        if changes[_TRIALS // 2] > _FALSE:
            found[block.name] = changes[_TRIALS // 2]
    return found


@torch.no_grad()
def _change(network: Network, operator: TangentOperator, block: Generators) -> float:
    """How fast the outputs change along a random direction of one block of generators."""
    drawn = torch.randn(block.size, generator=network.generator, dtype=torch.float64)
    velocity = operator.velocity(block, drawn.to(operator.zero))
    speed = max((float(v.abs().max()) for v in velocity.values() if v.numel()), default=0.0)
    if not speed:
        return 0.0
    at = network.fresh_inputs()

    def outputs(step: float) -> torch.Tensor:
        moved = {n: network.state[n] + step / speed * v for n, v in velocity.items()}
        state = {**network.state, **moved}
        found = functional(
            network.model, state, *at, network.outputs, network.training, network.walk
        )
        return torch.cat([as_real(y).reshape(-1) for y in found])

    changes = size_of(outputs(_STEP) - outputs(-_STEP)) / network.sizes_at(at)
    return float(changes.max()) / (2 * _STEP) if changes.numel() else 0.0
