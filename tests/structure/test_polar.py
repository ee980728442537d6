"""The polar split of elements of whole networks."""

from __future__ import annotations

import pytest
import torch

from paramsym import GroupElement, ParameterSymmetry, act, polar
from paramsym.algebra import Monomial, Orthogonal, PositiveScaling
from paramsym.structure.axes import parse_axis
from paramsym.structure.space import Space
from tests.tracing.zoo import build, derived

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def state_of(symmetry: ParameterSymmetry, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        n: torch.randn(symmetry.shape(n), generator=generator).double() for n in symmetry.signature
    }


def distance(a: dict, b: dict) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a if a[n].numel())


@pytest.mark.parametrize(
    "name", ["MLP, ReLU", "MLP, identity", "MultiheadAttention", "convolutions", "ResNet"]
)
def test_positive_then_compact_is_the_element(name: str) -> None:
    """Also where copies of a space follow the order of another."""
    model, _ = build(name)
    symmetry = derived(name).restrict(translations=False)
    g = symmetry.sample(torch.Generator().manual_seed(1))
    compact, positive = polar(g)
    state = state_of(symmetry)
    whole = act(symmetry, g, state)
    assert distance(act(symmetry, compact, act(symmetry, positive, state)), whole) < 1e-11
    assert distance(act(symmetry, compact @ positive, state), whole) < 1e-11
    assert distance(act(symmetry, positive, act(symmetry, compact, state)), whole) > 1e-3
    if not symmetry.frame_parameters:
        moved = act(symmetry, compact, state)
        for n, x in state.items():
            assert abs(float(moved[n].norm() - x.norm())) < 1e-12
    assert distance(act(symmetry, positive, state), state) > 1e-3


def test_the_identity_has_the_identity() -> None:
    symmetry = ParameterSymmetry({"h": Space("h", Monomial(3))}, {"w": (parse_axis("h"),)})
    state = state_of(symmetry)
    for part in polar(GroupElement(symmetry)):
        assert distance(act(symmetry, part, state), state) == 0.0


def test_slides_and_spaces_that_do_not_commute_are_refused() -> None:
    model, _ = build("MultiheadAttention")
    slid = derived("MultiheadAttention")
    with pytest.raises(
        ValueError, match=r"slides along '.*only values of groups.*translations=False"
    ):
        polar(slid.sample(torch.Generator()))
    spaces = {"b": Space("b", Orthogonal(3)), "s": Space("s", PositiveScaling(3))}
    symmetry = ParameterSymmetry(spaces, {"w": (parse_axis("b⊙s"),)})
    with pytest.raises(ValueError, match="do not commute.*'b', 's'.*one by one"):
        polar(symmetry.sample(torch.Generator()))
    polar(symmetry.sample(torch.Generator(), only=["b"]))
