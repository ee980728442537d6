"""Places of a table that were rearranged before it is read: the table stays the table."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paramsym import verify
from paramsym.primitives import defects
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added and repeated": lambda k, off: (k + off).repeat(1, 2),
    "repeated": lambda k, off: k.repeat(1, 2),
    "padded": lambda k, off: nn.functional.pad(k, (0, 1)),
    "expanded": lambda k, off: k[:, None].expand(-1, 2, -1).reshape(len(k), -1),
    "joined": lambda k, off: torch.cat([k, off.expand(len(k), -1)], 1),
}  # fmt: skip


class Read(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.leave = way, nn.Linear(3, 2)
        self.table = nn.Parameter(torch.randn(6, 3))
        self.register_buffer("off", torch.tensor([0, 1, 0, 1]))

    def forward(self, k: Tensor) -> Tensor:
        return self.leave(nn.functional.embedding(WAYS[self.way](k, self.off), self.table))


@pytest.mark.parametrize("way", WAYS)
def test_a_table_has_a_basis_wherever_its_places_come_from(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defects, "raising", True)
    model, k = randomise(Read(way)), torch.randint(0, 4, (6, 4))
    symmetry = infer(record(model, (k,)))
    assert not symmetry.unknown
    assert [s.group.dimension for s in symmetry.spaces.values()] == [9]
    assert verify(model, symmetry, (k,), limit=100).error < 1e-11
