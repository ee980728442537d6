"""Which copy of a group moves which entries: a symmetry says it, or it cannot be written."""

from __future__ import annotations

import pytest
import torch

from paramsym import ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import GeneralLinear, Permutation, Scaling
from paramsym.recording.precision import converted, functional
from paramsym.structure.axes import parse_axis


def written(types: dict[str, str], *spaces: Space) -> ParameterSymmetry:
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    return ParameterSymmetry({s.name: s for s in spaces}, signature)


HEAD, DIM = Space("head", Permutation(2)), Space("dim", GeneralLinear(3), ("head",))


def test_a_space_over_another_needs_it_in_every_tensor() -> None:
    written({"q": "(head dim), 5", "k": "dim*, 5, head"}, HEAD, DIM)
    with pytest.raises(ValueError, match="carries 'dim'.*each unit of 'head'.*Add it to the type"):
        written({"q": "(head dim), 5", "k": "dim*, 5"}, HEAD, DIM)
    with pytest.raises(ValueError, match="no axis carries 'head'"):  # one block of a sum without
        written({"q": "(head dim) + dim, 5"}, HEAD, DIM)


def test_the_nearest_base_on_the_axis_is_meant() -> None:
    scale = Space("s", Scaling(1), ("unit",))
    symmetry = written({"w": "(unit s unit s*)"}, Space("unit", Permutation(3)), scale)
    g = symmetry.sample(torch.Generator().manual_seed(0), only=["s"])
    d = g["s"].diagonal.squeeze(-1)
    moved = act(symmetry, g, {"w": torch.ones(9, dtype=torch.float64)})["w"]
    torch.testing.assert_close(moved.view(3, 3), d[:, None] / d[None, :])


def test_what_stands_over_copies_stands_over_all_below() -> None:
    group = Space("group", Permutation(2), ("head",))
    with pytest.raises(ValueError, match="must stand over all.*below"):
        written({}, HEAD, group, Space("s", Scaling(1), ("group",)))
    with pytest.raises(ValueError, match="'s'.*'nowhere'.*not among the spaces"):
        written({}, Space("s", Scaling(1), ("nowhere",)))


def test_one_change_of_basis_per_axis() -> None:
    with pytest.raises(ValueError, match="change of basis 'b'.*Write it first"):
        written(
            {"w": "a⊙b"}, Space("a", GeneralLinear(2)), Space("b", GeneralLinear(2))
        )  # fmt: skip


def grouped() -> tuple[torch.nn.Module, dict]:
    import transformers

    config = transformers.Olmo2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=12, vocab_size=11, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Olmo2ForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model, {"input_ids": torch.tensor([[3, 4, 5, 9, 7]])}


def test_copies_below_frozen_pairs_are_carried_by_every_tensor() -> None:
    """Signs of rotary pairs per head, whose pairs cannot be exchanged."""
    model, inputs = grouped()
    symmetry = find_symmetry(model, inputs)
    assert any(len(space.over) > 1 for space in symmetry.spaces.values())
    state = converted(model, torch.float64)
    before = functional(model, state, (), inputs)[0]
    names = [*symmetry.spaces, *(shift.name for shift in symmetry.shifts)]
    for only in (None, *([name] for name in names)):
        element = symmetry.sample(torch.Generator().manual_seed(1), 0.5, only=only)
        after = functional(model, act(symmetry, element, state), (), inputs)[0]
        assert float((after - before).abs().max() / before.abs().max()) < 1e-12, only
    wrong = {**state, "lm_head.weight": 1.1 * state["lm_head.weight"]}
    assert float((functional(model, wrong, (), inputs)[0] - before).abs().max()) > 1e-3


class Compared(torch.nn.Module):
    """A softmax over heads compares one coordinate of every head with the others."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.read, self.last = dim, torch.nn.Linear(3, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.read(x).unflatten(-1, (2, 4)).softmax(self.dim).flatten(-2))


@pytest.mark.parametrize("dim", [-1, -2])
def test_copies_that_are_compared_share_their_order(dim: int) -> None:
    torch.manual_seed(0)
    model, x = Compared(dim).double(), torch.randn(5, 3).double()
    symmetry = find_symmetry(model, (x,))
    inner = next(s for s in symmetry.spaces.values() if s.size == 4)
    assert inner.group == Permutation(4)
    assert len(inner.over) == (1 if dim == -1 else 0)  # within a head, each head for itself
    for seed in range(4):
        g = symmetry.sample(torch.Generator().manual_seed(seed))
        moved = torch.func.functional_call(model, act(symmetry, g, model.state_dict()), (x,))
        assert float((moved - model(x)).detach().abs().max()) < 1e-12
