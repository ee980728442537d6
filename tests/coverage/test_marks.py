"""A row of one table that is read exactly where one row of another is: the padding."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.lowering.marks import number_read, told_apart
from paramsym.primitives.windows import Mark
from paramsym.recording.graph import Graph, Value
from paramsym.recording.record import record
from tests.coverage.measure import measured

WORDS, PLACES, WIDTH, PADDING = 9, 8, 5, 2
TEXT = (torch.randint(0, WORDS, (6, 5), generator=torch.Generator().manual_seed(1)),)
Positions = Callable[[Tensor], Tensor]


def counted(ids: Tensor) -> Tensor:
    """As RoBERTa counts: from the place behind that of the padding on."""
    mask = ids.ne(PADDING).int()
    return ((torch.cumsum(mask, dim=1).type_as(mask) + 0) * mask).long() + PADDING


def counted_from_above(ids: Tensor) -> Tensor:
    """The padding reads the place before all others, whatever it is called."""
    mask = (ids != PADDING).long()
    return mask.cumsum(1) * mask * 1


def not_cleared(ids: Tensor) -> Tensor:
    """A near miss: the padding reads the place of the word before it."""
    return torch.cumsum(ids.ne(PADDING).long(), dim=1) + PADDING


def counted_from_behind(ids: Tensor) -> Tensor:
    """A near miss: the first word reads the place of the padding, too."""
    mask = ids.ne(PADDING).long()
    return (torch.cumsum(mask, dim=1) + -1) * mask


def of_another_input(ids: Tensor) -> Tensor:
    """A near miss: the words of the text before say where the padding is."""
    return counted(ids.roll(1, 0))


class Text(nn.Module):
    """Words and places, summed and read entry by entry; the words may be the last layer, too."""

    def __init__(self, positions: Positions, tied: bool = False, padded: bool = False) -> None:
        super().__init__()
        self.positions, self.tied, self.padded = positions, tied, padded
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, ids: Tensor) -> Tensor:
        ids = nn.functional.pad(ids, (0, 1), value=PADDING) if self.padded else ids
        h = (self.words(ids) + self.places(self.positions(ids))).tanh()
        h = h + h.mean(1, keepdim=True) * h  # no word is seen alone
        if not self.tied:
            return self.head(h)
        return self.norm(self.first(h)) @ self.words.weight.T + self.bias


def of_one_row(symmetry: ParameterSymmetry) -> list[int]:
    """The dimensions of what moves one row of the words alone."""
    return [
        shift.dimension for shift in symmetry.shifts
        for term in shift.terms
        if term.target.parameter == "words.weight" and term.target.shape[0] == 1
    ]  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("positions", [counted, counted_from_above])
def test_the_rows_of_the_padding_slide_against_each_other(
    positions: Positions, padded: bool
) -> None:
    found = measured(Text(positions, padded=padded), TEXT)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert of_one_row(found.symmetry) == [WIDTH]


def test_in_a_tied_table_along_what_the_last_layer_never_receives() -> None:
    found = measured(Text(counted, tied=True), TEXT)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert of_one_row(found.symmetry) == [1]
    (shift,) = (s for s in found.symmetry.shifts if of_one_row_of(s.terms))
    bias = next(t for t in shift.terms if t.target.parameter == "bias")
    assert (bias.target.start, bias.target.shape) == (PADDING, (1,))


def of_one_row_of(terms: tuple) -> bool:
    return any(t.target.parameter == "words.weight" and t.target.shape[0] == 1 for t in terms)


@pytest.mark.parametrize("positions", [not_cleared, counted_from_behind, of_another_input])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_near_miss_moves_no_row_alone(positions: Positions, tied: bool, padded: bool) -> None:
    found = measured(Text(positions, tied, padded), TEXT)
    assert found.refuted == ()
    assert found.error < 1e-12
    assert of_one_row(found.symmetry) == []


def test_every_text_agrees_without_the_audit() -> None:
    """All texts of three words, one by one, under a large move of the rows alone."""
    model = Text(counted).double()
    symmetry = find_symmetry(model, TEXT)
    (name,) = (s.name for s in symmetry.shifts if of_one_row_of(s.terms))
    element = symmetry.element({name: torch.randn(1, WIDTH, dtype=torch.float64)})
    moved = act(symmetry, element, dict(model.state_dict()))
    every = torch.tensor([*itertools.product(range(WORDS), repeat=3)])
    before = model(every)
    assert not torch.equal(moved["words.weight"], model.words.weight)
    assert torch.allclose(torch.func.functional_call(model, moved, (every,)), before, atol=1e-12)


# -- what is told of integers, against their numbers -----------------------------------------------


class Drawn(nn.Module):
    """Integers by random steps from a mask, as the index of a table."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.table = seed, nn.Embedding(400, 2)

    def index(self, ids: Tensor) -> Tensor:
        drawn = random.Random(self.seed).randrange
        number = drawn(4)
        mask = (ids.ne(number) if drawn(2) else ids.eq(number)).long()
        found = [mask, mask]
        for _ in range(2 + drawn(4)):
            x, y = found[drawn(len(found))], found[drawn(len(found))]
            step = drawn(5)
            if step == 0:
                found.append(x + y)
            elif step == 1:
                found.append(x * y)
            elif step == 2:
                found.append(x.cumsum(1).int())
            elif step == 3:
                found.append(x + drawn(4))
            else:
                found.append(x * drawn(3))
        return found[-1]

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(self.index(ids).clamp(0, 399)) + self.table(self.index(ids))


def index_of(graph: Graph) -> Value:
    """The positions that the last lookup reads."""
    call = [c for c in graph.calls if c.name == "embedding"][-1]
    return next(v for v in call.operands if not v.dtype.is_floating_point)


def test_what_is_told_of_random_integers_holds_for_every_text() -> None:
    every = torch.tensor([*itertools.product(range(4), repeat=4)])
    told = 0
    for seed in range(300):
        model = Drawn(seed)
        graph = record(model, (every[:3],), None, False)
        found = told_apart(graph, index_of(graph))
        if found is None:
            continue
        told += 1
        position, mark = found
        assert torch.equal(model.index(every) == position, every == mark.number), seed
        assert isinstance(mark, Mark)
    assert told > 40


def test_numbers_that_come_round_again_are_not_those_of_the_input() -> None:
    class Cast(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.dtype, self.table = dtype, nn.Embedding(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids.to(self.dtype).long())

    for dtype, read in ((torch.int32, True), (torch.int16, False), (torch.float32, False)):
        graph = record(Cast(dtype), (torch.zeros(2, 3, dtype=torch.long),), None, False)
        assert (number_read(graph, index_of(graph)) is not None) == read
