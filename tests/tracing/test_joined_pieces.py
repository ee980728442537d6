"""What several pieces of an axis do together, rows that are always the same one, chosen entries.

Derived without a check, so that nothing but the derivation is asked; then audited. Beside each
stands a network in which the same change is seen.
"""

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WIDTH = 6
FIRST, SECOND = 5, 4  # places of two sequences


class Joined(nn.Module):
    """One attends to two sequences, whose keys and values are joined, in the way of its name."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, 4)
        others = "key2", "value2"
        for name in others if way != "alike" else ():
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        key, value = (
            (self.key, self.value) if self.way == "alike" else (self.key2, self.value2)
        )  # fmt: skip
        keys = torch.cat([self.key(x), key(y)], 1)
        values = torch.cat([self.value(x), value(y)], 1)
        scores = self.query(x) @ keys.mT
        shares = scores.softmax(-1)
        if self.way == "shares cut":
            shares = shares[..., 1:]
            values = values[:, 1:]
        if self.way == "scores cut":
            shares = scores[..., 1:].softmax(-1)
            values = values[:, 1:]
        made = self.last(torch.tanh(self.out(shares @ values)))
        return (made, scores[:, :, -1].tanh()) if self.way == "scores read" else made


class Table(nn.Module):
    """Words beside a row of another table, which is always the same one, or one that data say."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.words, self.kinds = nn.Embedding(40, 4), nn.Embedding(3, 2)
        self.mixed, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        kinds = x % 2 if self.way == "data" else torch.zeros_like(x) + (self.way == "second")
        joined = torch.cat([self.words(x), self.kinds(kinds)], -1)
        return self.last(torch.tanh(self.mixed(joined)))


class Buckets(nn.Module):
    """Scores for each bucket of distances, of which each pair of places takes one."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.scores, self.value = nn.Linear(WIDTH, 2 * 3), nn.Linear(WIDTH, 4)
        self.register_buffer("bucket", torch.randint(0, 3, (FIRST, FIRST)))

    def forward(self, x: Tensor) -> Tensor:
        n, places, _ = x.shape
        scores = self.scores(x).view(n, places, 3, 2).permute(0, 3, 1, 2)
        index = self.bucket[None].repeat(n, 2, 1)
        if self.way == "rows":
            found = scores.reshape(-1, 3).gather(1, index.view(-1, places))
        else:
            found = scores.gather(3, index.view(n, 2, places, places))
        found = found.view(n, 2, places, places)
        dim = -2 if self.way == "other axis" else -1
        return torch.einsum("bhts,bsd->bthd", found.softmax(dim), torch.tanh(self.value(x)))


def derived(model: nn.Module, *inputs: Tensor) -> ParameterSymmetry:
    """What the derivation finds by itself; no claim of it is wrong."""
    randomise(model)
    symmetry = infer(record(model, inputs))
    assert verify(model, symmetry, inputs, limit=100).error < 1e-9
    return symmetry


def moved(symmetry: ParameterSymmetry, *names: str) -> int:
    """The dimensions of what moves all of these parameters."""
    return sum(s.dimension for s in symmetry.shifts if {*names} <= {*s.parameters})


@pytest.mark.parametrize("way", ["alike", "two"])
def test_pieces_of_a_softmax_take_each_other_back(way: str) -> None:
    torch.manual_seed(0)
    model = Joined(way)
    inputs = torch.randn(20, FIRST, WIDTH), torch.randn(20, SECOND, WIDTH)
    symmetry = derived(model, *inputs)
    found = audit(model, inputs, symmetry=symmetry)
    assert (found.unexplained, found.refuted) == (0, {})
    values = ["value.bias", *["value2.bias"] * (way == "two"), "out.bias"]
    keys = ["key.bias", *["key2.bias"] * (way == "two")]
    assert (moved(symmetry, *values), moved(symmetry, *keys)) == (WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("way", "values", "keys"),
    [("shares cut", 0, WIDTH), ("scores cut", WIDTH, WIDTH), ("scores read", WIDTH, 0)],
)
def test_a_piece_that_is_not_all_of_it_stays(way: str, values: int, keys: int) -> None:
    torch.manual_seed(0)
    model = Joined(way)
    inputs = torch.randn(20, FIRST, WIDTH), torch.randn(20, SECOND, WIDTH)
    symmetry = derived(model, *inputs)
    assert moved(symmetry, "value.bias", "value2.bias", "out.bias") == values
    assert moved(symmetry, "key.bias", "key2.bias") == keys
    assert not audit(model, inputs, symmetry=symmetry).refuted


@pytest.mark.parametrize(("way", "wanted"), [("first", 10), ("second", 10), ("data", 0)])
def test_a_row_that_is_always_the_same_one_is_a_constant(way: str, wanted: int) -> None:
    """M c in the bias takes back what a weight moves by M, c the row."""
    torch.manual_seed(0)
    model, x = Table(way), torch.randint(0, 40, (9, 7))
    symmetry = derived(model, x)
    assert moved(symmetry, "mixed.weight", "mixed.bias") == wanted
    assert not audit(model, (x,), symmetry=symmetry).refuted


def test_the_row_of_one_place_may_be_that_of_its_position() -> None:
    torch.manual_seed(0)
    symmetry = derived(Table("first"), torch.randint(0, 40, (1, 1)))
    assert not moved(symmetry, "mixed.weight", "mixed.bias")


@pytest.mark.parametrize(
    ("way", "wanted"), [("axes", 2 * WIDTH), ("rows", 2 * WIDTH), ("other axis", 0)]
)
def test_a_common_shift_of_chosen_entries_is_not_seen(way: str, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Buckets(way), torch.randn(12, FIRST, WIDTH)
    symmetry = derived(model, x)
    assert moved(symmetry, "scores.weight") == wanted
    found = audit(model, (x,), symmetry=symmetry)
    assert (found.unexplained if wanted else 0, found.refuted) == (0, {})


class Repeated(nn.Module):
    """A weight beside one that sees the sums of its inputs alone (adapters of repeated blocks)."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way
        self.first, self.plain = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.block, self.last = nn.Parameter(torch.randn(2, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        groups = h.unflatten(-1, (3, 2))
        summed = groups.amax(-2) if self.way == "largest" else groups.sum(-2)
        return self.last(torch.tanh(self.plain(h) + summed @ self.block))


@pytest.mark.parametrize(("way", "wanted"), [("sums", 8), ("largest", 0)])
def test_a_weight_takes_back_what_one_of_sums_adds(way: str, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Repeated(way), torch.randn(40, 5)
    symmetry = derived(model, x)
    assert moved(symmetry, "block", "plain.weight") == wanted
    found = audit(model, (x,), symmetry=symmetry)
    assert (found.unexplained, found.refuted) == (0, {})


class Shuffled(nn.Module):
    """A convolution whose channels become neighbouring places, read by a kernel of one or two."""

    def __init__(self, kernel: int):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(2, 3, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.pixel_shuffle(self.first(x), 2))


@pytest.mark.parametrize("kernel", [1, 2])
def test_a_bias_by_channel_of_several_places(kernel: int) -> None:
    torch.manual_seed(0)
    model, x = Shuffled(kernel), torch.randn(4, 3, 8, 8)
    symmetry = derived(model, x)
    assert moved(symmetry, "first.bias", "last.bias") == 2
    found = audit(model, (x,), symmetry=symmetry)
    assert (found.unexplained, found.refuted) == (0, {})


class Memory(nn.Module):
    """Keys and values are written to a memory that starts from zeros, or ones, of another dtype."""

    def __init__(self, start: float):
        super().__init__()
        self.start = start
        self.query, self.key, self.value = (nn.Linear(5, 3, bias=False) for _ in range(3))
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        empty = torch.zeros if self.start == 0 else torch.ones
        memory = empty(len(x), 3, 3, dtype=torch.float16).to(x.dtype) * self.start
        found = []
        for t in range(x.shape[1]):
            key, value = self.key(x[:, t]), self.value(x[:, t])
            memory = 0.5 * memory + key[:, :, None] * torch.tanh(value[:, None, :])
            found.append(torch.einsum("bk,bkv->bv", self.query(x[:, t]), memory))
        return self.last(torch.tanh(torch.stack(found, 1)))


@pytest.mark.parametrize(("start", "wanted"), [(0.0, 9), (1.0, 1)])
def test_zeros_in_another_dtype_are_zeros(start: float, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Memory(start), torch.randn(20, 3, 5)
    symmetry = derived(model, x)
    assert sum(s.group.dimension for s in symmetry.spaces.values()) == wanted
    found = audit(model, (x,), symmetry=symmetry)
    assert (found.unexplained if start == 0 else 0, found.refuted) == (0, {})


class Empty(nn.Module):
    """Shares of no keys, times a parameter, beside those of all."""

    def __init__(self, cut: int):
        super().__init__()
        self.cut = cut
        self.scores, self.value = nn.Linear(2, 2), nn.Linear(2, 3)
        self.learned, self.out = nn.Parameter(torch.randn(3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.scores(x).softmax(-1)
        found = shares[..., : self.cut].sum(-1, keepdim=True) * self.learned
        return self.out(found + self.value(x)[..., :0].sum(-1, keepdim=True) + self.value(x).tanh())


@pytest.mark.parametrize(("cut", "wanted"), [(0, 3), (1, 0)])
def test_a_sum_over_nothing_is_nothing(cut: int, wanted: int) -> None:
    torch.manual_seed(0)
    model, x = Empty(cut), torch.randn(20, 3, 2)
    symmetry = derived(model, x)
    assert moved(symmetry, "learned") == wanted
    assert not audit(model, (x,), symmetry=symmetry).refuted
