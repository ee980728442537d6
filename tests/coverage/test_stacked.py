"""Slices of one parameter in different spaces: each may do what a parameter of its own may do.

The twin has a parameter for each slice. Derived without a check, so that nothing but the derivation
is asked; then moved, and audited.
"""

import pytest
import torch
from torch import nn

from paramsym import act, audit, verify
from paramsym.algebra import GeneralLinear
from paramsym.recording.record import record
from paramsym.structure.pieces import cutting
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.coverage.stacked import NETWORKS, STACKS, Stacked
from tests.tracing.zoo import randomise

# what nobody reads of the parameter that keeps the slices twice
UNREAD = {"Attention": 72, "Gates": 96, "Linears": 96, "Memory": 48}
CASES = [
    (network, stack) for network in NETWORKS for stack in STACKS
    # where keys and values alternate, the type of an axis would have to follow half of another
    if not (network in ("Memory", "Linears") and stack in ("alternating", "in steps"))
]  # fmt: skip


def derived(network: str, stack: str, apart: bool = False) -> tuple[Stacked, ParameterSymmetry]:
    """A network and what the derivation finds by itself; no claim of it is wrong."""
    torch.manual_seed(0)
    model = randomise(NETWORKS[network](stack, apart))
    x = torch.randn(3, 9, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    return model, symmetry


@pytest.mark.parametrize(("network", "stack"), CASES)
def test_slices_have_what_parameters_of_their_own_have(network: str, stack: str) -> None:
    model, symmetry = derived(network, stack)
    twin, own = derived(network, stack, apart=True)
    x = torch.randn(3, 9, 5)
    found, wanted = audit(model, x, symmetry=symmetry), audit(twin, x, symmetry=own)
    unread = UNREAD[network] if stack == "twice" else 0
    assert found.explained == wanted.explained + unread
    assert found.unexplained == wanted.unexplained


def test_types_say_which_slice_carries_what() -> None:
    _, symmetry = derived("Attention", "first")
    assert [*map(str, symmetry.signature["whole"])] == [
        "3", "attn.head", "{0: attn.qk | attn.qk* | attn.vo*}", "channels"
    ]  # fmt: skip
    _, symmetry = derived("Attention", "in steps")
    assert str(symmetry.signature["whole"][1]) == "({1: attn.qk | attn.qk* | attn.vo*} 3)"


@pytest.mark.parametrize("stack", STACKS)
def test_a_slice_moves_as_its_twin_does(stack: str) -> None:
    """The element of the twin with the same values moves the same numbers."""
    model, symmetry = derived("Attention", stack)
    twin, own = derived("Attention", stack, apart=True)
    with torch.no_grad():
        for part, whole in zip(twin.slices(), model.slices(), strict=True):
            part.copy_(whole)
        twin.out.copy_(model.out)
    generator = torch.Generator().manual_seed(1)
    names = {"attn.qk", "attn.vo"}
    g = symmetry.sample(generator, only=sorted(names))
    there = own.element({n: g[n] for n in names})
    moved = act(symmetry, g, dict(model.named_parameters()))
    beside = act(own, there, dict(twin.named_parameters()))
    assert moved["whole"].ne(model.whole).any()
    torch.testing.assert_close(
        model.take(moved["whole"]), [beside[f"parts.{k}"] for k in range(3)], rtol=0, atol=1e-12
    )


class Pairs(nn.Module):
    """Pairs of linear maps whose second ones are slices, in the way of its name."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.count = way, nn.Parameter(torch.randn(()))
        self.enter, self.leave = nn.Linear(5, 4), nn.Linear(4, 3)
        self.one, self.two = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(4, 2))
        self.back = nn.Parameter(torch.randn(3 if way == "unread" else 2, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, back = torch.tanh(self.enter(x)), self.back
        back = back / back.norm() if self.way == "normed" else back
        size = self.count if self.way == "a number" else 1.0
        for k, first in enumerate((self.one, self.two)):
            x = x + torch.tanh(x @ first * size @ back[k])
        return self.leave(x)


@pytest.mark.parametrize(("way", "explained"), [
    ("plain", 8), ("a number", 9), ("unread", 16),
])  # fmt: skip
def test_what_acts_on_all_slices_stands_beside_what_acts_on_one(way: str, explained: int) -> None:
    torch.manual_seed(0)
    model, x = randomise(Pairs(way)), torch.randn(60, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    found = audit(model, x, symmetry=symmetry)
    assert cutting(symmetry.signature["back"]) == {0}
    assert found.unexplained == 0 and found.explained >= explained


def test_the_size_of_all_slices_is_that_of_none() -> None:
    """A norm of the whole parameter: its bases are gone, its size is free, slice by slice."""
    torch.manual_seed(0)
    model, x = randomise(Pairs("normed")), torch.randn(60, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    assert symmetry.movers["back"]


class Tables(nn.Module):
    """A table of words and one of places, which a text reads in part."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        both = torch.randn(2, 11, 4)
        self.both = None if apart else nn.Parameter(both)
        self.words, self.places = (nn.Parameter(t.clone()) if apart else None for t in both)
        self.first, self.leave = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words, places = (self.words, self.places) if self.both is None else self.both
        h = torch.nn.functional.embedding(x, words) + places[: x.shape[1]]
        return self.leave(torch.tanh(self.first(h)))


def test_rows_that_no_text_reaches_carry_what_the_others_do() -> None:
    x = torch.randint(0, 11, (6, 5), generator=torch.Generator().manual_seed(0))
    long = torch.randint(0, 11, (6, 9), generator=torch.Generator().manual_seed(1))
    for apart in (False, True):
        torch.manual_seed(0)
        model = randomise(Tables(apart)).double()
        symmetry = infer(record(model, (x,)))
        (basis,) = (s.name for s in symmetry.spaces.values() if s.size == 4)
        assert symmetry.spaces[basis].group == GeneralLinear(4)
        g = symmetry.sample(torch.Generator().manual_seed(2), only=[basis])
        moved = act(symmetry, g, dict(model.named_parameters()))
        there = torch.func.functional_call(model, moved, (long,))
        torch.testing.assert_close(there, model(long), rtol=0, atol=1e-10)


class Crossing(nn.Module):
    """Four corners of one matrix in spaces of their own: neither axis has one type by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.corners = nn.Parameter(torch.randn(2, 2, 3, 3))
        self.flat = nn.Parameter(torch.randn(6, 6))
        self.enter, self.leave = nn.Linear(5, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.enter(x))
        (a, b), (c, d) = (m.chunk(2, 1) for m in self.flat.chunk(2))
        (e, f), (g, h) = self.corners
        for maps in ((a, b), (c, d), (e, f), (g, h)):
            x = x + torch.tanh(x @ maps[0] @ maps[1])
        return self.leave(x)


def test_what_no_type_can_say_is_held() -> None:
    model, x = randomise(Crossing()), torch.randn(9, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    assert cutting(symmetry.signature["corners"]) == {0, 1}
    for axis in cutting(symmetry.signature["flat"]):
        assert not cutting([symmetry.signature["flat"][axis]])


class Strided(nn.Module):
    """Units of which every sixth column belongs to one of two matrices of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.w = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(4, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x @ self.enter)
        return torch.sigmoid((h @ self.w[:, 2::6]) @ self.w[:, 4::6]).sum(-1)


def test_units_at_two_places_of_an_axis_need_no_basis() -> None:
    torch.manual_seed(0)
    model, x = randomise(Strided()), torch.randn(2, 6, 5)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    assert str(symmetry.signature["w"][1]).startswith("(head (mlp")
