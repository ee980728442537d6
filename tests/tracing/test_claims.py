"""What the rule of each operator claims, against what the operator computes.

Every row of `tests.tracing.operators` is a network around one operator. A random element of each
space and shift alone, and of all together, must leave the function as it is at generic weights;
a change of the same parameters that is no symmetry must be seen; and what is found is exactly what
the table says, so that a rule can neither claim too much nor hold too much.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from paramsym import act, find_symmetry
from paramsym.recording.record import floating_outputs
from tests.tracing.operators import FREE, ROWS
from tests.tracing.test_rules import free
from tests.tracing.zoo import randomise

State = dict[str, torch.Tensor]


def change(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], moved: State) -> float:
    """The largest change of an output, relative to the largest output."""
    with torch.no_grad():
        before = floating_outputs(model(*inputs))
        after = floating_outputs(torch.func.functional_call(model, moved, inputs))
    assert all(bool(y.isfinite().all()) for y in before)
    return max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(after, before, strict=True)
    )


def displaced(moved: State, state: State, draw: torch.Generator) -> State:
    """The entries that moved, by as much again but at random."""
    result = {}
    for name, old in state.items():
        if not old.is_floating_point():
            result[name] = moved[name]
            continue
        step = (moved[name] - old).abs().mean().clamp_min(0.01 * old.abs().mean())
        result[name] = old + step * torch.randn(old.shape, generator=draw, dtype=old.dtype)
    return result


@pytest.mark.parametrize("name", ROWS)
def test_an_operator_does_what_its_rule_claims(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = ROWS[name]()
    randomise(model.double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        symmetry = find_symmetry(model, inputs)
        state = model.state_dict()
        draw = torch.Generator().manual_seed(1)
        names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
        for only in (None, *([name] for name in names)):
            moved = act(symmetry, symmetry.sample(draw, 0.5, only=only), state)
            assert change(model, inputs, moved) < 1e-9, only
        moved = act(symmetry, symmetry.sample(draw, 0.5), state)
        assert change(model, inputs, displaced(moved, state, draw)) > 1e-4
    assert (free(symmetry), tuple(sorted(symmetry.unknown))) == FREE[name], str(symmetry)


def test_every_row_says_what_is_free() -> None:
    assert list(FREE) == list(ROWS)
