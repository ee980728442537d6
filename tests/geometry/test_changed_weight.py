"""One weight, changed by 1e-4 of the size of its tensor, is found behind a random element."""

from __future__ import annotations

import pytest
import torch

from paramsym import ParameterSymmetry, same_orbit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import State, counted, generator, moved, of_zoo
from tests.geometry.test_same_orbit import NETWORKS
from tests.tracing.zoo import names

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

CHANGE = 1e-4
# Changes of basis on both sides of every matrix of a linear network: what one entry changes of the
# product may as well be changed elsewhere, and the nearest point spreads it.
SPREAD = {"MLP, identity"}
SLOW = {"T5", "DINOv2"}  # the others have all that these have
MOST = [name for name in NETWORKS if name not in SPREAD | SLOW]


def changed(symmetry: ParameterSymmetry, params: State, seed: int = 5) -> tuple[State, str]:
    """Parameters with another number at one place of a matrix, and the name of the place."""
    source = generator(seed)
    matrices = [
        n for n in counted(symmetry)
        if n not in symmetry.buffers and params[n].is_floating_point() and params[n].ndim > 1
    ]  # fmt: skip
    name = matrices[int(torch.randint(len(matrices), (), generator=source))]
    rest = tuple(int(torch.randint(n, (), generator=source)) for n in params[name].shape[1:])
    rows = [k for k in range(len(params[name])) if k not in symmetry.unreached.get(name, ())]
    place = (rows[int(torch.randint(len(rows), (), generator=source))], *rest)
    other = params[name].clone()
    other[place] += CHANGE * float(other.square().mean().sqrt())
    made = {**params, **dict.fromkeys((name, *symmetry.aliases.get(name, ())), other)}
    return {n: made[n] for n in params}, f"{name}[{', '.join(map(str, place))}]"


@pytest.mark.parametrize("name", MOST, ids=names(MOST))
def test_one_changed_weight_is_named(name: str) -> None:
    symmetry, params = of_zoo(name)
    other, place = changed(symmetry, params)
    verdict = same_orbit(symmetry, params, moved(symmetry, other))
    assert verdict.kind is Kind.DIFFERENT, verdict
    assert verdict.where == place
    assert CHANGE / 10 < verdict.residual < 10 * CHANGE


@pytest.mark.parametrize("name", sorted(SPREAD))
def test_where_every_basis_is_free_a_change_is_seen_but_has_no_place(name: str) -> None:
    symmetry, params = of_zoo(name)
    other, place = changed(symmetry, params)
    verdict = same_orbit(symmetry, params, moved(symmetry, other))
    assert verdict.kind is Kind.DIFFERENT and verdict.residual > CHANGE / 10
    assert verdict.where != place
