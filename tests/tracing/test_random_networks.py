"""Randomly drawn networks: what is called a symmetry leaves the function unchanged."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from paramsym import act, find_symmetry
from tests.tracing.random_networks import KINDS, STEPS, RandomNetwork

NUMBERS = st.integers(0, 7)


def networks(longest: int = 6) -> st.SearchStrategy[RandomNetwork]:
    steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), NUMBERS, NUMBERS),
                     min_size=2, max_size=longest)  # fmt: skip
    return st.builds(RandomNetwork, st.sampled_from("vsi"), steps, st.integers(0, 3), NUMBERS)


def change(network: RandomNetwork, moved: dict) -> float:
    """The largest change of an output, relative to the largest output."""
    from paramsym.recording.record import floating_outputs

    with torch.no_grad():
        before = floating_outputs(network(network.inputs.clone()))  # steps may write in place
        inputs = (network.inputs.clone(),)
        after = floating_outputs(torch.func.functional_call(network, moved, inputs))
    worst = 0.0
    for x, y in zip(before, after, strict=True):
        if x.numel() and bool(x.isfinite().all()):
            worst = max(worst, float((x - y).abs().max() / x.abs().max().clamp_min(1e-6)))
    return worst


@seed(20261121)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_every_family_found_is_a_symmetry(network: RandomNetwork) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        symmetry = find_symmetry(network, (network.inputs,))
        state = network.state_dict()
        names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
        for only in (None, *([name] for name in names)):
            generator = torch.Generator().manual_seed(3)
            moved = act(symmetry, symmetry.sample(generator, 0.5, only=only), state)
            assert change(network, moved) <= 1e-8, (network.taken, only)


def test_the_check_can_fail() -> None:
    network = RandomNetwork("v", [("bilinear", 1, 1)])
    state = network.state_dict()
    name = next(n for n, p in state.items() if p.ndim > 1)
    wrong = {**state, name: state[name] + torch.ones_like(state[name])}
    assert change(network, wrong) >= 1e-4


@pytest.mark.parametrize("kind", "vsi")
def test_there_are_steps_for_every_kind_of_tensor(kind: str) -> None:
    assert sum(kind in kinds for kinds in KINDS.values()) > 10
