"""Types that are stated, and what is said where they are missing, wrong, or ambiguous."""

import pytest
import torch
from torch import nn

from paramsym import act, find_symmetry, transport
from paramsym.artefacts.stated import candidates
from tests.artefacts.attached import Draft, model_of, randomised, tokens


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def llama():
    model = model_of("llama", torch.float64)
    return model, find_symmetry(model, (tokens(),))


@pytest.fixture(scope="module")
def tied():
    model = model_of("tied", torch.float64)
    return model, find_symmetry(model, (tokens(),))


@pytest.mark.parametrize(
    ("tensors", "types", "says"),
    [
        ({"x": (3, 16)}, {}, ("axis 1 of 16: residual, 16", "types={'x': '…'}")),
        ({"x": (16,)}, {"y": "16"}, ("no tensor of this name", "Correct the name")),
        ({"x": (16,)}, {"x": "stream"}, ("no space 'stream'", "residual")),
        ({"x": (16,)}, {"x": "residual, residual"}, ("shape (16,)", "(16, 16)")),
        ({"x": (16,)}, {"x": "residual["}, ("parse_axis", "one for each axis")),
        ({"x": (16,)}, {"x": "residual[gain]"}, ("has the gain 'gain'", "Correct the name")),
        ({"W_enc": (24, 51)}, {}, ("no stream", "State the types", "readings")),
        ({"W_enc": (17, 51)}, {}, ("no stream",)),
        ({"W_enc": (16, 16)}, {}, ("(16, 16)", "one axis of that size")),
    ],
)
def test_what_is_wrong_with_types_is_said(llama, tensors, types, says):
    made = {name: torch.ones(shape) for name, shape in tensors.items()}
    with pytest.raises(ValueError) as error:
        transport(made, llama[1].sample(seeded()), types=types)
    for text in says:
        assert text in str(error.value), f"{text!r} is not in {error.value}"


def test_an_order_alone_is_not_taken_for_a_stream_with_signs(tied):
    model, symmetry = tied
    g = symmetry.sample(seeded())
    with pytest.raises(ValueError, match=r"which no weight carries alone.*\(residual embed_tokens"):
        transport({"x": torch.ones(16)}, g, types={"x": "residual"})
    assert "(residual embed_tokens)" in candidates(symmetry, 16)
    with torch.no_grad():
        x = model(tokens(), output_hidden_states=True).hidden_states[1]
        model = model_of("tied", torch.float64)
        model.load_state_dict(act(symmetry, g, dict(model.state_dict())))
        y = model(tokens(), output_hidden_states=True).hidden_states[1]
    moved = transport({"x": x}, g, types={"x": "1, 6, (residual embed_tokens)"})["x"]
    assert (moved - y).abs().max() <= 1e-6 < (x - y).abs().max()


def test_an_autoencoder_on_one_of_several_streams_has_to_be_told(tied):
    with pytest.raises(ValueError) as error:
        transport({"W_enc": torch.ones(16, 50)}, tied[1].sample(seeded()))
    said = str(error.value)
    assert "(residual embed_tokens)" in said and "(residual layers.0.self_attn.q_proj)" in said
    assert "State the types" in said


def test_activations_that_a_shift_may_move_are_refused():
    model = model_of("untied gpt2", torch.float64)
    symmetry = find_symmetry(model, (tokens(),))
    with pytest.raises(ValueError, match="the activations which the artefact meets may move"):
        transport({"direction.1": torch.ones(16)}, symmetry.sample(seeded()))
    with pytest.raises(ValueError, match="name no space, so that nothing says"):
        transport({"mean": torch.ones(16)}, symmetry.sample(seeded()), types={"mean": "16"})
    g = symmetry.sample(seeded(), only=[*symmetry.spaces])
    moved = transport({"direction.1": torch.arange(16.0)}, g)["direction.1"]
    assert torch.allclose(moved.sum(), torch.arange(16.0).sum())  # the stream keeps its mean
    assert torch.allclose(moved.norm(), torch.arange(16.0).norm())


def head_of(model) -> tuple[Draft, object]:
    head = randomised(Draft(model.config), torch.float64, 5)
    example = tuple(torch.randn(1, 6, 16, dtype=torch.float64) for _ in range(2))
    return head, find_symmetry(head, example, free_inputs=True, free_outputs=True)


def test_a_head_follows_an_order_with_signs(tied):
    """Two groups of the model are one of the head: signed permutations among rotations."""
    model, symmetry = tied
    head, own = head_of(model)
    state, g = dict(head.state_dict()), symmetry.sample(seeded(3))
    with pytest.raises(ValueError, match="Say which: spaces="):
        transport(state, g, types=own)
    stream = "(residual embed_tokens)"
    spaces = dict.fromkeys(("embedding", "hidden", "output"), stream)
    x = [torch.randn(1, 6, 16, dtype=torch.float64, generator=seeded(k)) for k in (1, 2)]
    moved_x = [transport({"x": v}, g, types={"x": f"1, 6, {stream}"})["x"] for v in x]
    there = Draft(model.config).double()
    there.load_state_dict(transport(state, g, types=own, spaces=spaces))
    with torch.no_grad():
        y = transport({"y": head(*x)}, g, types={"y": f"1, 6, {stream}"})["y"]
        assert (there(*moved_x) - y).abs().max() <= 1e-6 < (head(*moved_x) - y).abs().max()


def test_what_is_wrong_with_a_head_is_said(llama):
    model, symmetry = llama
    head, own = head_of(model)
    state, g = dict(head.state_dict()), symmetry.sample(seeded())
    base = dict(model.state_dict())
    with pytest.raises(ValueError, match="does not free such an input"):
        transport(state, g, base, types=own, spaces={"x": "residual"})
    with pytest.raises(ValueError, match="no weight of the model carries this"):
        transport(state, g, base, types=own, spaces={"hidden": "norm"})
    with pytest.raises(ValueError, match="has no such tensor"):
        transport({**state, "more": torch.ones(3)}, g, base, types=own)
    with pytest.raises(ValueError, match="no symmetry of a module came beside it"):
        transport(state, g, base, spaces={"hidden": "residual"})
    pointwise = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).double()
    gated = nn.Sequential(nn.GELU(), nn.Linear(16, 16)).double()
    x = (torch.randn(2, 16, dtype=torch.float64),)
    rigid = find_symmetry(gated, x, free_inputs=True, free_outputs=True)
    with pytest.raises(ValueError, match="a subgroup of Permutation"):
        transport(dict(gated.state_dict()), g, base, types=rigid)
    fixed = find_symmetry(pointwise, x)
    with pytest.raises(ValueError, match="nothing that it reads or writes is freed"):
        transport(dict(pointwise.state_dict()), g, base, types=fixed)
