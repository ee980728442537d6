"""An audit draws each word of a table: a row that nothing read is no symmetry."""

import math

import pytest
import torch
from torch import nn

from paramsym import audit
from paramsym.checking.jacobian import covering


class Words(nn.Module):
    """A table of words, of which one call reads six."""

    def __init__(self, words: int):
        super().__init__()
        self.table, self.head = nn.Embedding(words, 3), nn.Linear(3, 4, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


@pytest.mark.parametrize("words", [5, 90, 150])
def test_every_word_is_read(words: int) -> None:
    torch.manual_seed(0)
    found = audit(Words(words), (torch.randint(words, (2, 3)),))
    assert found.unexplained == 0


def test_too_few_calls_leave_words_unread() -> None:
    """Control: with as many calls as there are sixths of words, a third is never drawn."""
    torch.manual_seed(0)
    found = audit(Words(150), (torch.randint(150, (2, 3)),), samples=25)
    assert found.unexplained > 0


def test_calls_grow_with_words_and_are_bounded() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    assert covering((ids,), {}) == covering((ids,), {0: 0}) == 128
    assert covering((ids,), {0: 150}) == math.ceil(25 * (math.log(150) + 3))
    assert covering((ids,), {0: 10**6}) == 256
