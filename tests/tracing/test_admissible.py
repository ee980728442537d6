"""Which integers an input may hold, as it is the place in a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit
from paramsym.checking.generic import OWN, generic_inputs, table_lengths
from paramsym.recording.record import record


class Read(nn.Module):
    """A table of 60 rows, another of three planes, and where the fields of the first begin."""

    def __init__(self, read: Callable[[Read, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.planes = nn.Embedding(60, 4), nn.Parameter(torch.randn(3, 10, 4))
        self.register_buffer("starts", torch.tensor([0, 20]))
        self.begin, self.read = torch.tensor([0, 50]), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, x)


READ: dict[str, tuple[Callable[[Read, Tensor], Tensor], dict[int, int]]] = {
    "a table": (lambda m, x: m.table(x), {0: 60}),
    "fields by a buffer": (lambda m, x: m.table(x + m.starts), {0: 40}),
    "fields by a constant": (lambda m, x: m.table(m.begin + x), {0: 10}),
    "fields as DeepFM has them": (
        lambda m, x: m.table(x + x.new_tensor([0, 30]).unsqueeze(0)), {0: 30},
    ),
    "padded": (lambda m, x: m.table(nn.functional.pad(x, (0, 1), value=7)), {0: 60}),
    "joined and turned": (
        lambda m, x: m.table(torch.cat([m.begin.expand(len(x), 2), x.flip(1)], 1)), {0: 60},
    ),
    "hidden by a constant": (
        lambda m, x: m.table(x.masked_fill(torch.tensor([True, False]), 3)), {0: 60},
    ),
    "compared": (lambda m, x: m.table(x) + m.planes[x.ne(1).long()][..., 0, :], {0: 60}),
    "bent beside a table": (lambda m, x: m.table(x) + m.planes[x // 20, 0], {0: OWN}),
    "chosen by itself beside a table": (
        lambda m, x: m.table(x) + m.planes[x.masked_fill(x > 2, 0), 0], {0: OWN},
    ),
    "bent": (lambda m, x: m.planes[x // 20, 0], {}),
    "a number twice": (lambda m, x: m.table(x + 1 + 2), {0: 57}),
    "a new axis": (lambda m, x: m.table.weight[None, x], {0: 60}),
    "behind an ellipsis": (lambda m, x: m.planes[..., x, :], {0: 10}),
    "behind a slice": (lambda m, x: m.planes[:, x], {0: 10}),
    "behind a mask": (lambda m, x: m.planes[torch.tensor([True, False, True])][0, x], {0: 10}),
    "written": (lambda m, x: torch.zeros(60, 4).index_copy(0, x[0], m.table(x)[0]), {0: 0}),
    "added": (lambda m, x: torch.zeros(60, 4).index_add(0, x[0], m.table(x)[0]), {0: 60}),
    "less than nothing": (lambda m, x: m.table((x - 1).clamp_min(0)), {}),
    "a product": (lambda m, x: m.table(x * x), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_the_places_that_a_table_has(name: str) -> None:
    read, expected = READ[name]
    model = Read(read)
    graph = record(model, (torch.randint(0, 7, (5, 2)),), None, False)
    assert table_lengths(graph, model) == expected


def test_all_rows_of_all_fields_are_read_in_an_audit() -> None:
    found = audit(Read(READ["fields by a buffer"][0]), torch.zeros(8, 2, dtype=torch.int64))
    assert found.unexplained == 0
    assert found.dead == 3 * 10 * 4  # the planes alone


class Cache(nn.Module):
    """Keys are written to places of a buffer, which is read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.leave = nn.Linear(5, 6), nn.Linear(6, 3)
        self.register_buffer("cache", torch.zeros(2, 8, 6))
        self.register_buffer("turn", torch.rand(8, 6) + 0.5)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        kept = self.cache
        kept[:, places] = self.key(x) * self.turn[places]
        return self.leave(kept.sum(1))


def test_places_that_are_written_stay_apart() -> None:
    """Two writes to one place leave one, and autograd says that both are seen."""
    found = audit(Cache().double(), (torch.randn(2, 4, 5), torch.arange(4)))
    assert found.refuted == {} and not found.derivative.wrong


def test_numbers_that_were_given_are_drawn_where_another_table_is_not_known() -> None:
    """An unknown word reads row 0 of a small table, by itself; both tables are read as a whole."""

    class Known(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Embedding(40, 3), nn.Embedding(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.large(x), self.small(x.masked_fill(x > 6, 0))], -1)

    x = torch.arange(40).reshape(8, 5)
    (drawn,), _ = generic_inputs((x,), {0: OWN}, torch.Generator().manual_seed(0))
    assert drawn.shape == x.shape and not torch.equal(drawn, x) and drawn.max() > 6
    found = audit(Known(), x)
    assert (found.undeclared, found.unexplained, found.nullity) == (0, 0, 0)
