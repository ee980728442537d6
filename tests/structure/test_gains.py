"""Gains folded to one and back: the same function, the same element of the symmetry."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, Space, act, blocks, find_symmetry, unit_gains
from paramsym.algebra import Group, Orthogonal, PositiveScaling, Scaling
from paramsym.recording.precision import converted_inputs, functional
from paramsym.structure.axes import parse_axis
from tests.tracing.zoo import _GROUPED, _causal, build, randomise

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
Params = dict[str, torch.Tensor]


class Own(nn.Module):
    """A norm whose gain is stored as γ − 1, read by two linear maps in a stream that turns."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 6, bias=False)
        self.gain = nn.Parameter(torch.zeros(6))
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.rms_norm(self.enter(x), (6,)) * (1 + self.gain)
        return torch.tanh(self.one(x)) * self.two(x)


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    if name == "Gemma, untied":
        model, inputs = _causal("Gemma", False, **_GROUPED, head_dim=4, tie_word_embeddings=False)()
        return randomise(model), inputs
    if name == "stored as γ − 1":
        return randomise(Own()), (torch.randn(5, 3),)
    return build(name)


def found(name: str) -> tuple[nn.Module, Any, ParameterSymmetry, Params]:
    model, inputs = made(name)
    symmetry = find_symmetry(model, inputs, check=False)
    model = model.double()
    return model, inputs, symmetry, {n: p.detach() for n, p in model.state_dict().items()}


def change(model: nn.Module, inputs: Any, before: Params, after: Params) -> float:
    """The largest relative difference of outputs."""
    args, kwargs = converted_inputs(inputs, torch.float64)
    with torch.no_grad():
        one, other = (functional(model, p, args, kwargs) for p in (before, after))
    return max(float((y - z).abs().max() / y.abs().max()) for y, z in zip(one, other, strict=True))


def effective(symmetry: ParameterSymmetry, params: Params) -> Params:
    """The gains as the network uses them."""
    return {n: params[n] + symmetry.offsets.get(n, 0.0) for n in symmetry.frame_parameters}  # pyright: ignore[reportOperatorIssue]


NETWORKS = ["Llama", "Qwen3", "Phi-3", "Gemma, untied", "GPT-NeoX", "ViT", "stored as γ − 1"]


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_keeps_the_function_and_makes_gains_one(name: str) -> None:
    model, inputs, symmetry, params = found(name)
    given = {n: p.clone() for n, p in params.items()}
    folded = unit_gains(symmetry, params)
    assert all(torch.equal(params[n], given[n]) for n in params)
    gains = effective(symmetry, folded)
    assert gains and all(torch.equal(g, torch.ones_like(g)) for g in gains.values())
    assert change(model, inputs, params, folded) < 1e-10
    # negative control: gains of one, and nothing that takes the old ones up
    wrong = {**params, **{n: folded[n] for n in gains}}
    assert change(model, inputs, params, wrong) > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gains_of_before_take_the_folding_back(name: str) -> None:
    _, _, symmetry, params = found(name)
    folded = unit_gains(symmetry, params)
    back = unit_gains(symmetry, folded, effective(symmetry, params))
    assert {*back} == {*params}
    for n, p in params.items():
        torch.testing.assert_close(back[n], p, rtol=1e-14, atol=1e-15)
    assert any(not torch.allclose(folded[n], params[n]) for n in params)


@pytest.mark.parametrize("name", NETWORKS)
def test_changes_of_basis_act_plainly_once_gains_are_one(name: str) -> None:
    """As by the signature without frames, which is wrong before."""
    _, _, symmetry, params = found(name)
    found_legs = (leg for found in blocks(symmetry).values() for b in found for leg in b.legs)
    bases = sorted({leg.space for leg in found_legs if leg.frame})
    bare = dataclasses.replace(symmetry, signature={
        n: tuple(parse_axis(re.sub(r"\[[^]]*\]", "", str(axis))) for axis in axes)
        for n, axes in symmetry.signature.items()
    })  # fmt: skip
    assert bases and not bare.frame_parameters
    element = symmetry.sample(torch.Generator().manual_seed(0), only=bases)
    plain = bare.sample(torch.Generator().manual_seed(0), only=bases)
    folded = unit_gains(symmetry, params)
    framed, moved = act(symmetry, element, folded), act(bare, plain, folded)
    torch.testing.assert_close(framed, moved, rtol=1e-13, atol=1e-13)
    framed, moved = act(symmetry, element, params), act(bare, plain, params)
    assert any(not torch.allclose(framed[n], moved[n], rtol=1e-3) for n in params)


def test_single_gains_can_be_set_and_what_has_none_stays() -> None:
    _, _, symmetry, params = found("Llama")
    one = unit_gains(symmetry, params, {"model.norm.weight": torch.arange(1.0, 17.0)})
    changed = {n for n in params if not torch.equal(one[n], params[n])}
    assert changed == {"model.norm.weight", "lm_head.weight"}
    assert torch.equal(one["model.norm.weight"], torch.arange(1.0, 17.0).double())
    _, _, symmetry, params = found("MLP, ReLU")
    assert all(x is params[n] for n, x in unit_gains(symmetry, params).items())


def test_gains_that_are_no_frames_fold_by_name() -> None:
    """With tied embeddings no basis changes; the gains of layers have scales all the same."""
    model, inputs, symmetry, params = found("Gemma")
    same = unit_gains(symmetry, params)
    assert not symmetry.frame_parameters and all(torch.equal(same[n], p) for n, p in params.items())
    own = [n for n in params if "layers" in n and "norm" in n]
    folded = unit_gains(symmetry, params, dict.fromkeys(own, 1.0))
    assert all(not folded[n].any() for n in own)  # stored as γ − 1
    assert change(model, inputs, params, folded) < 1e-10
    assert change(model, inputs, params, {**params, **{n: folded[n] for n in own}}) > 1e-3
    with pytest.raises(ValueError, match=r"'model.norm.weight' cannot be folded: no scale"):
        unit_gains(symmetry, params, {"model.norm.weight": 1.0})  # the embedding reads it


def by_hand(group: Group, second: str = "6") -> tuple[ParameterSymmetry, Params]:
    """A reader in the frame of a gain, and what else moves with the scale of the gain."""
    spaces = {"v": Space("v", Orthogonal(6)), "s": Space("s", group)}
    types = {"w": "3, v[gain]*⊙s*", "gain": "s", "u": "v, 2", "other": second}
    if second != "6":
        types["reads"] = "2, v[other]*"
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    symmetry = ParameterSymmetry(spaces, signature)
    generator = torch.Generator().manual_seed(0)
    params = {n: torch.randn(symmetry.shape(n), generator=generator).double() for n in types}
    return symmetry, params


def test_what_cannot_be_folded_is_refused_with_the_reason() -> None:
    _, _, symmetry, params = found("Llama")
    norm = "model.norm.weight"
    with pytest.raises(ValueError, match=rf"gain '{norm}'.*has a zero.*non-zero gains.*Leave it"):
        unit_gains(symmetry, {**params, norm: torch.zeros(16)})
    with pytest.raises(ValueError, match="what it shall be has a zero"):
        unit_gains(symmetry, params, {norm: 0.0})
    with pytest.raises(ValueError, match=r"shape \(3,\) came for a gain of shape \(16,\)"):
        unit_gains(symmetry, params, {norm: torch.ones(3)})
    with pytest.raises(ValueError, match=r"'nobody'.*no parameter.*the frames are \['model"):
        unit_gains(symmetry, params, {"nobody": 1.0})
    rotations = symmetry.restrict(groups=Orthogonal)  # keeps the frames, and no scale
    with pytest.raises(ValueError, match="no scale of the symmetry moves each.*cannot take it up"):
        unit_gains(rotations, params)
    with pytest.raises(ValueError, match="'s' moves it together with entries of 'other'"):
        unit_gains(*by_hand(Scaling(6), "s"))
    symmetry, params = by_hand(PositiveScaling(6))
    with pytest.raises(ValueError, match=r"change its sign, but 's', PositiveScaling\(6\)"):
        unit_gains(symmetry, params)
    params["gain"] = params["gain"].abs()
    assert torch.equal(unit_gains(symmetry, params)["gain"], torch.ones(6).double())
    assert unit_gains(*by_hand(Scaling(6)))["gain"].eq(1).all()  # any sign
