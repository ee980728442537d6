"""One weight, changed by 1e-4 of the size of its tensor, is found behind a random element."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, same_orbit
from paramsym.geometry.same_orbit import Kind
from tests.geometry.orbits import State, counted, generator, generic, moved, of_zoo
from tests.geometry.test_same_orbit import NETWORKS
from tests.tracing.zoo import names

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

CHANGE = 1e-4
# The others have all that these have, in fewer parameters.
SLOW = {"T5", "DINOv2", "GPT-2", "ViT", "Qwen2", "GPT-NeoX", "Gemma"}
MOST = [name for name in NETWORKS if name not in SLOW]


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
    assert CHANGE / 30 < verdict.residual < 30 * CHANGE


def test_where_two_entries_explain_a_change_both_are_named() -> None:
    """Only the product of two numbers in a row counts: either may have changed."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    symmetry, params = generic(net, (torch.ones(3, 1),))
    other = {**params, "1.weight": params["1.weight"] * (1 + CHANGE)}
    verdict = same_orbit(symmetry, params, moved(symmetry, other))
    assert verdict.kind is Kind.DIFFERENT
    assert verdict.where == "0.weight[0, 0] or 1.weight[0, 0]"


def test_a_change_along_the_orbit_is_none() -> None:
    """The control: biases of two linear layers in a row, changed so that nobody notices."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    symmetry, params = generic(net, (torch.ones(3, 4),))
    step = CHANGE * torch.ones(3, dtype=torch.float64)
    other = {**params, "0.bias": params["0.bias"] + step}
    assert same_orbit(symmetry, params, other).kind is Kind.DIFFERENT
    other["1.bias"] = params["1.bias"] - params["1.weight"] @ step
    assert same_orbit(symmetry, params, other).kind is Kind.EQUAL
