"""Packed sequences, sizes that are tensors, and maps of functions inside a forward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from paramsym import find_symmetry
from tests.coverage.measure import measured
from tests.coverage.test_traced import MASK, UNITS, Net, X

TIME, LENGTHS = 7, torch.tensor([4, 7, 2])


class Packed(nn.Module):
    """A recurrent layer that sees each sequence as far as it goes."""

    def __init__(self, kind: type[nn.RNNBase], final: bool = False, **options: bool):
        super().__init__()
        self.embed, self.cell = nn.Linear(3, 5), kind(5, 4, **options)
        self.out = nn.Linear(4 * (1 + self.cell.bidirectional), 2)
        self.final = final

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        first = self.cell.batch_first
        h = F.relu(self.embed(x))
        packed = pack_padded_sequence(h, lengths, batch_first=first, enforce_sorted=False)
        y, state = self.cell(packed)
        y, _ = pad_packed_sequence(y, batch_first=first)
        if self.final:
            return self.out((state[0] if isinstance(state, tuple) else state)[-1])
        return self.out(y)


@pytest.mark.parametrize("first", [True, False], ids=["batch first", "time first"])
@pytest.mark.parametrize(("kind", "directions"), [(nn.LSTM, 21), (nn.GRU, 13), (nn.RNN, 9)])
def test_packed_sequences(kind: type[nn.RNNBase], directions: int, first: bool) -> None:
    x = torch.randn(3, TIME, 3, generator=torch.Generator().manual_seed(1))
    found = measured(Packed(kind, batch_first=first), (x if first else x.transpose(0, 1), LENGTHS))
    assert not found.symmetry.unknown and not found.refuted and found.error < 1e-12
    assert (found.explained, found.unexplained) == (directions, 0)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{"final": True}, {"bidirectional": True}], ids=str)
def test_ends_and_directions_of_packed_sequences(
    kind: type[nn.RNNBase], options: dict[str, bool]
) -> None:
    x = torch.randn(3, TIME, 3, generator=torch.Generator().manual_seed(1))
    found = measured(Packed(kind, batch_first=True, **options), (x, LENGTHS))
    assert not found.symmetry.unknown and not found.refuted and found.error < 1e-12
    assert found.unexplained == 0


def test_bounds_and_sizes_may_be_tensors() -> None:
    def forward(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum()
        h = s.hidden(x)
        more = h.new_zeros(count, UNITS)
        more[:count] = h[:count]
        return s.b(torch.cat([more, h[count:]]))

    found = measured(Net(forward), (X, MASK))
    assert (found.explained, found.unexplained, found.refuted) == (UNITS, 0, ())


def test_masks_that_are_mapped() -> None:
    """A mask of pairs by `vmap`, which closes over an input."""

    def forward(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        def sees(i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & mask[j]

        at = torch.arange(len(x))
        pairs = torch.vmap(torch.vmap(sees, (None, 0)), (0, None))(at, at)
        h = s.hidden(x)
        return s.b(h + torch.where(pairs, 0.5, 0.0).to(h) @ h)

    found = measured(Net(forward), (X, MASK))
    assert (found.explained, found.unexplained, found.refuted) == (UNITS, 0, ())
    assert not found.symmetry.unknown


def test_what_moves_inside_a_map_is_held() -> None:
    def mapped(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        return torch.vmap(lambda row: s.b(F.relu(s.a(row))))(x)

    def derived(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        return torch.func.grad(lambda z: s.b(F.relu(s.a(z))).square().sum())(x)

    for forward in (mapped, derived):
        found = find_symmetry(Net(forward), (X, MASK))
        assert not found.spaces and not found.shifts
