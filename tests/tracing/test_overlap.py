"""Parameters that share memory without being one tensor are held fixed, and nothing else is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import act, find_symmetry
from paramsym.recording.overlap import overlapping


class Shared(nn.Module):
    """relu(x aᵀ) b with a and b made from one matrix, then a free layer c, d."""

    def __init__(self, overlap: bool = True, buffer: bool = False):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        both = torch.randn(8, 4, generator=generator, dtype=torch.float64)
        second = both if overlap else both.clone()
        self.a = nn.Parameter(both[:6])
        tail = second.view(-1)[:24]
        if buffer:
            self.register_buffer("b", tail)
        else:
            self.b = nn.Parameter(tail)
        self.c = nn.Parameter(torch.randn(5, 4, generator=generator, dtype=torch.float64))
        self.d = nn.Parameter(torch.randn(2, 5, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(x @ self.a.T) @ self.b.view(6, 4)
        return F.relu(hidden @ self.c.T) @ self.d.T


X = (torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64),)


def change_after_loading(model: nn.Module) -> float:
    """How far the function is from itself after a random element was loaded into the model."""
    symmetry = find_symmetry(model, X)
    before = model(*X).detach()
    element = symmetry.sample(torch.Generator().manual_seed(2))
    model.load_state_dict(act(symmetry, element, model.state_dict()))
    return float((model(*X) - before).detach().abs().max())


@pytest.mark.parametrize("buffer", [False, True])
def test_tensors_that_overlap_are_held_with_both_names(buffer: bool) -> None:
    symmetry = find_symmetry(Shared(buffer=buffer), X)
    assert [str(s.group) for s in symmetry.spaces.values()] == ["Monomial(5)"]
    assert all(str(axis).isdigit() for name in "ab" for axis in symmetry.signature[name])
    assert set(symmetry.reasons["a"]) == {"'a' shares memory with 'b' and is another tensor"}
    assert set(symmetry.reasons["b"]) == {"'b' shares memory with 'a' and is another tensor"}
    assert not symmetry.dead and not symmetry.shifts
    assert symmetry.buffers == (("b",) if buffer else ())
    assert change_after_loading(Shared(buffer=buffer)) < 1e-12


def test_equal_numbers_in_other_memory_are_free() -> None:
    """Negative control: the same network with a copy has the symmetry that is held above."""
    symmetry = find_symmetry(Shared(overlap=False), X)
    assert "Monomial(6)" in {str(s.group) for s in symmetry.spaces.values()}
    assert change_after_loading(Shared(overlap=False)) < 1e-10


def test_the_hidden_symmetry_of_overlapping_weights_is_really_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paramsym.recording import record as module

    monkeypatch.setattr(module, "overlapping", lambda tensors: {})
    assert change_after_loading(Shared()) > 1e-2


def test_a_parameter_that_is_expanded_is_held() -> None:
    model = nn.Linear(4, 3, bias=False, dtype=torch.float64)
    model.weight = nn.Parameter(torch.ones(1, 4, dtype=torch.float64).expand(3, 4))
    net = nn.Sequential(model, nn.Linear(3, 2, dtype=torch.float64))
    symmetry = find_symmetry(net, X)
    assert symmetry.reasons["0.weight"][0] == "entries of '0.weight' share memory with each other"
    assert not symmetry.spaces
    assert symmetry.signature["1.weight"]


def test_a_plain_tensor_that_looks_into_a_parameter_holds_it() -> None:
    class Looking(nn.Module):
        def __init__(self, copy: bool):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6).double(), nn.Linear(6, 2).double()
            self.row = self.a.weight.detach()[0]
            self.row = self.row.clone() if copy else self.row

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x))) + (x * self.row).sum(-1, keepdim=True)

    assert (
        "a constant at test_overlap.py" in find_symmetry(Looking(False), X).reasons["a.weight"][0]
    )
    assert find_symmetry(Looking(True), X).spaces


def test_tied_parameters_are_one_tensor_and_move() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), second).double()
    symmetry = find_symmetry(model, X)
    assert symmetry.ties == {"4.weight": "0.weight"}
    assert not any("shares memory" in why for whys in symmetry.reasons.values() for why in whys)
    assert "Monomial(5)" in {str(s.group) for s in symmetry.spaces.values()}


def test_interleaved_and_neighbouring_tensors_do_not_overlap() -> None:
    whole = torch.zeros(6, 8)
    assert not overlapping({"left": whole[:, :4], "right": whole[:, 4:]})
    assert not overlapping({"even": whole[:, ::2], "odd": whole[:, 1::2]})
    assert not overlapping({"up": whole[:3], "down": whole[3:]})
    assert set(overlapping({"left": whole[:, :5], "right": whole[:, 4:]})) == {"left", "right"}
    assert set(overlapping({"a": whole, "b": whole[5, 7:], "c": torch.zeros(2)})) == {"a", "b"}
    bits = whole.view(torch.int32)
    assert set(overlapping({"a": whole, "bits": bits[0]})) == {"a", "bits"}
    sliding = whole.view(-1).unfold(0, 3, 1)
    assert "itself" in str(overlapping({"itself": sliding}))


def test_meta_tensors_overlap_where_they_share_a_storage() -> None:
    whole = torch.zeros(6, 8, device="meta")
    assert set(overlapping({"a": whole[:4], "b": whole[3:]})) == {"a", "b"}
    assert not overlapping({"a": whole[:3], "b": whole[3:], "c": torch.zeros(9, device="meta")})
