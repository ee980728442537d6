"""Further inputs, many and extreme, projected on what the first ones did not tell from zero.

A unit that no input switched is linear at these inputs and not in truth; a column of 1e-13 may be
the tail of a GELU. Each further input costs one forward pass and a few rows, each row only its
products with the suspects: O(parameters · suspects), and no factorisation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from paramsym.checking.borne_out import is_borne_out, mixed
from paramsym.checking.certificate import FALSE, REDUCED, Certificate
from paramsym.checking.jacobian import Network
from paramsym.checking.orthogonal import span

CALLS = 256  # inputs that must confirm a suspect
TOKENS = 32  # the same for inputs without a floating tensor, which are soon exhausted
_FEWEST_ROWS = 4
_WIDEN = 32  # inputs, until their sizes are drawn from a range twice as wide
_SEEN = 1e-9  # a derivative along a unit suspect, relative to the row's length
_ROUNDING = 1e-12  # the same for a column that vanished
_WEAK = 1e-5  # likewise: a row that sees less may be rounding, where an output is saturated
_LOOKED = 3  # rows that deny a claim, at which the function is asked, so many times


@dataclass(frozen=True)
class _Call:
    """Which of the inputs that a network drew from a state of its generator on."""

    state: torch.Tensor
    turn: int
    spreads: list[float]
    number: int

    def bears_out(self, network: Network, direction: torch.Tensor) -> bool:
        """Whether the function itself changes along a direction, (parameters,), at these inputs.

        The network goes on drawing where it was.
        """
        before = network.generator.get_state(), network.turn
        network.generator.set_state(self.state)
        network.turn = self.turn
        found = is_borne_out(network, network.draws(self.spreads)[self.number], direction)
        network.generator.set_state(before[0])
        network.turn = before[1]
        return found


@dataclass(frozen=True)
class Hunted:
    """What no further input refuted."""

    unexplained: torch.Tensor  # (parameters, directions), of unit length where columns are
    dead: torch.Tensor  # numbers of the parameters that no input reached
    revived: int  # dimension of the claims among those that only further inputs reached
    undeclared: int  # dead parameters that no claim covers
    refuted: dict[str, float]  # claims among dead parameters that further inputs see


def needed(found: Certificate) -> bool:
    """Whether there is anything to hunt: suspects, or vanished columns that nobody claims."""
    return bool(found.suspects.shape[1]) or span(found.idle.rows).shape[1] < len(found.dead)


def hunt(network: Network, found: Certificate, outputs: int, called: Callable[[], None]) -> Hunted:
    """Try to refute suspects and vanished columns by inputs of ever more extreme sizes.

    Args:
        network: the model as a function of its parameters.
        found: the suspects, the vanished columns, the length of the others.
        outputs: entries of the outputs of one call.
        called: is told of each call.
    """
    count = found.suspects.shape[1]
    calls = calls_of(network) if needed(found) else 0
    each = max(1, min(outputs // 4, max(_FEWEST_ROWS, -(-2 * count // CALLS))))
    seen = torch.zeros(0, count + 2 * len(found.dead), dtype=torch.float64)
    parts, network, made = [seen], network.anew(), list[_Call]()
    known = list[torch.Tensor]()
    for low, high in _doubled(calls):
        for some in network.passes(high - low, each):
            spreads = [2.0 ** (1 + k // _WIDEN) for k in range(low, low + some)]
            state = network.generator.get_state()
            for k, rows in enumerate(network.rows(each, spreads)):
                parts.append(_seen(rows, found))
                made += [_Call(state, network.turn, spreads, k)] * len(rows)
            low += some
            for _ in spreads:
                called()
        parts = [torch.cat(parts)]
        left = _left(network, found, parts[0], made, known)
        if not (left or len(found.dead)):
            break
    return _borne_out(network, found, torch.cat(parts), made)


def _left(
    network: Network, found: Certificate, seen: torch.Tensor, made: list[_Call],
    known: list[torch.Tensor],
) -> int:  # fmt: skip
    """How many independent combinations of suspects no row sees.

    What a row sees weakly may be the rounding of a saturated output. Where the function itself
    does not change along what only this row sees, that is taken from the row. Where it does, that
    direction joins those `known`, in suspects, and is not asked again.
    """
    count = found.suspects.shape[1]
    rows = torch.cat([seen[:, :count], *(along[None] for along in known)])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    clear = right[values > _WEAK * max(1, len(seen)) ** 0.5]  # whatever weak rows say
    left, rest = count - len(clear), seen[:, :count] - seen[:, :count] @ clear.T @ clear
    while left and len(rest):
        sizes = torch.linalg.vector_norm(rest, dim=1)
        row = int(sizes.argmax())
        if sizes[row] < _SEEN:
            break
        along = rest[row] / sizes[row]
        direction = torch.nn.functional.normalize(found.suspects @ along, dim=0)
        if sizes[row] > _WEAK or made[row].bears_out(network, direction):
            known.append(along)
            rest, left = rest - torch.outer(rest @ along, along), left - 1
        else:  # nor is the same call believed where it is no louder
            calls = torch.tensor([call is made[row] for call in made])
            noise = calls & (sizes <= sizes[row]) & (sizes >= _SEEN)
            seen[noise, :count] -= rest[noise]
            rest[noise] = 0
    return left


def _borne_out(
    network: Network, found: Certificate, seen: torch.Tensor, made: list[_Call]
) -> Hunted:  # fmt: skip
    """What rows say, without columns that come alive by rounding alone."""
    count = found.suspects.shape[1]
    while True:
        result = _result(seen, found)
        denied = [n for n in result.refuted if _is_denied(network, found, seen, made, n)]
        noise = _moved(found, {*result.refuted} - {*denied}) & ~_moved(found, denied)
        noise &= (seen[:, count:].unflatten(1, (2, -1)) != 0).any(0).any(0)
        if not bool(noise.any()):
            return replace(result, refuted={n: result.refuted[n] for n in denied})
        seen[:, count:] = torch.where(noise.repeat(2), 0, seen[:, count:])


def _moved(found: Certificate, names: Collection[str]) -> torch.Tensor:
    """Which of the vanished columns some claims move."""
    rows = found.idle.rows[[name in names for name in found.idle.names]]
    return (rows != 0).any(0)


def _is_denied(
    network: Network, found: Certificate, seen: torch.Tensor, made: list[_Call], name: str
) -> bool:
    """Whether the function itself changes along a claim where its derivative does most."""
    dead = seen[:, -len(found.dead) :]
    for seed in range(_LOOKED):
        row = mixed(found.idle.of(name), seed)
        direction = torch.zeros(network.count, dtype=torch.float64)
        direction[found.dead] = row
        most = (dead @ row).abs().topk(min(_LOOKED, len(dead))).indices.tolist()
        if any(made[k].bears_out(network, direction) for k in most):
            return True
    return False


def _doubled(calls: int) -> list[tuple[int, int]]:
    """From where to where further calls go, each time to twice as many."""
    ends = [0, *(1 << k for k in range(calls.bit_length()) if 1 << k < calls), calls]
    return [*itertools.pairwise(ends)] if calls else []


def calls_of(network: Network) -> int:
    """How many further inputs are tried at most."""
    return CALLS if network.continuous else TOKENS


def _seen(rows: torch.Tensor, found: Certificate) -> torch.Tensor:
    """Rows along suspects and dead columns, of unit length where columns are scaled; and the
    dead columns again, of rows of unit length, which says whether they are dead.

    What is combined has one scale: a direction may be flat by a suspect and a dead column alone.
    """
    length = torch.linalg.vector_norm(rows[:, found.alive] / found.scale, dim=1, keepdim=True)
    plain = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    plain = torch.where(plain > 0, plain, 1.0)
    length, dead = torch.where(length > 0, length, plain), rows[:, found.dead]
    return torch.cat([rows @ found.suspects / length, dead / length, dead / plain], dim=1)


def _flat(seen: torch.Tensor, count: int) -> torch.Tensor:
    """Combinations of the first `count` columns that no row sees by itself.

    What all rows see together may be the sum of their rounding.
    """
    columns = seen[:, :count]
    missing = max(0, count - len(columns))
    columns = torch.cat([columns, columns.new_zeros(missing, count)])
    _, values, right = torch.linalg.svd(columns, full_matrices=False)
    kept = right[values < _SEEN * max(1, len(seen)) ** 0.5]
    return kept[((columns @ kept.T).abs() < _SEEN).all(0)].T


def _result(seen: torch.Tensor, found: Certificate) -> Hunted:
    """Columns that came alive join the suspects; what is claimed of them is no longer one."""
    count, other = found.suspects.shape[1], len(found.dead)
    largest = seen.abs().amax(dim=0) if len(seen) else seen.new_zeros(count + 2 * other)
    sizes, alive = largest[count : count + other], largest[count + other :] > _ROUNDING
    seen = seen[:, : count + other]
    idle = found.idle.rows[:, alive]
    covering = torch.linalg.vector_norm(idle, dim=1) > REDUCED  # less is rounding of the others
    idle = idle[covering] * sizes[alive]  # in units of the columns' sizes
    idle = idle / torch.linalg.vector_norm(idle, dim=1, keepdim=True)
    columns = torch.cat([seen[:, :count], seen[:, count:][:, alive] / sizes[alive]], dim=1)
    residual = torch.linalg.vector_norm(columns[:, count:] @ idle.T, dim=0)
    names = [n for n, c in zip(found.idle.names, covering.tolist(), strict=True) if c]
    refuted: dict[str, float] = {}
    for name, value in zip(names, residual.tolist(), strict=True):
        if value > FALSE:
            refuted[name] = max(value, refuted.get(name, 0.0))
    true = idle[residual <= FALSE]
    claims = torch.cat([true.new_zeros(len(true), count), true], dim=1)
    flat = _flat(torch.cat([columns, claims]), columns.shape[1])
    dead = found.dead[~alive]
    unexplained = found.suspects @ flat[:count]
    unexplained[found.dead[alive]] += flat[count:] / sizes[alive, None]
    return Hunted(
        unexplained,
        dead,
        span(true).shape[1],
        len(dead) - span(found.idle.rows[:, ~alive]).shape[1],
        refuted,
    )
