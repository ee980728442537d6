"""The directions that a symmetry claims to leave the function unchanged, at given parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paramsym.checking.jacobian import Network
from paramsym.structure.rank import find_gap
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import TangentOperator, real_entries, tangent

_VANISHED = 1e-9  # a velocity this small next to the largest is the rounding of zero
DEAD = "dead parameters"  # the name of what the symmetry lists as ignored
AND = " with "  # between the names of generators that leave the buffers alone only together


@dataclass(frozen=True)
class Claimed:
    """Velocities of unit length, and the space or shift that each comes from.

    Where only a combination leaves the buffers alone, its name is that of all that take part.
    """

    rows: torch.Tensor  # (directions, parameters)
    names: list[str]

    def __getitem__(self, kept: torch.Tensor) -> Claimed:
        return Claimed(self.rows[kept], [self.names[k] for k in kept.nonzero()[:, 0].tolist()])

    def of(self, name: str) -> torch.Tensor:
        """The velocities of one name, (directions, parameters)."""
        return self.rows[[each == name for each in self.names]]


def claimed_directions(symmetry: ParameterSymmetry, network: Network) -> Claimed:
    """What the symmetry declares, with buffers left where they are.

    For the generators G = [parameters | buffers], these are the parameter parts of the
    combinations c with cᵀ G_buffers = 0, together with the parameters that are declared dead.
    """
    operator = tangent(symmetry, network.state)
    live, names = _with_buffers_held(operator, network)
    places = places_of(network)
    declared = [k for n in symmetry.dead if n in places for k in range(network.count)[places[n]]]
    unit = torch.zeros(len(declared), network.count, dtype=live.dtype)
    unit[torch.arange(len(declared)), torch.tensor(declared, dtype=torch.int64)] = 1.0
    found = Claimed(torch.cat([live, unit]), [*names, *[DEAD] * len(declared)])
    norms = torch.linalg.vector_norm(found.rows, dim=1)
    found.rows.div_(norms.clamp_min(1e-300)[:, None])
    moving = norms > _VANISHED * float(norms.max()) if len(norms) else norms > 0
    return found if bool(moving.all()) else found[moving]


def places_of(network: Network) -> dict[str, slice]:
    """Where each parameter stands among all of them."""
    places, start = {}, 0
    for name in network.names:
        size = real_entries(network.state[name])
        places[name] = slice(start, start + size)
        start += size
    return places


def _with_buffers_held(
    operator: TangentOperator, network: Network
) -> tuple[torch.Tensor, list[str]]:
    """(combinations of the generators that move no buffer, the space or shift of each)."""
    dense = operator.dense()
    names = [block.name for block in operator.blocks for _ in range(block.size)]
    places = places_of(network)
    live = torch.zeros(len(dense), network.count, dtype=torch.float64)
    held = []
    for name, columns in operator.columns.items():
        if name in places:
            live[:, places[name]] = dense[:, columns].cpu()
        else:
            held.append(dense[:, columns].cpu())
    buffers = torch.cat(held, dim=1) if held else live[:, :0]
    moving = (buffers != 0).any(dim=1)
    if not bool(moving.any()):
        return live, names
    left, values, _ = torch.linalg.svd(buffers[moving], full_matrices=True)
    combinations = left[:, find_gap(values, 1e-9).rank :].T
    movers = [name for name, moves in zip(names, moving.tolist(), strict=True) if moves]
    mixed = [
        AND.join(sorted({movers[k] for k in (row.abs() > 1e-9).nonzero()[:, 0].tolist()}))
        for row in combinations
    ]
    still = [name for name, moves in zip(names, moving.tolist(), strict=True) if not moves]
    return torch.cat([live[~moving], combinations @ live[moving]]), [*still, *mixed]
