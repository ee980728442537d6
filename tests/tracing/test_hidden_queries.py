"""A query that no key is shown to: scaled dot products write nothing there, and shares sum to 0.

Derived without a check, so that nothing but the derivation is asked.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import verify
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
from tests.tracing.zoo import randomise

PLACES = 3
NOTHING = torch.zeros(PLACES, PLACES, dtype=torch.bool)
QUERY = NOTHING.index_fill(0, torch.tensor([1]), True)  # all keys are hidden from it
KEY = NOTHING.index_fill(1, torch.tensor([1]), True)  # it is hidden from all queries
LEFT = NOTHING.index_fill(1, torch.tensor([0, 1]), True)
MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda learned, hidden: learned.masked_fill(hidden, -torch.inf),
    "where": lambda learned, hidden: torch.where(hidden, -torch.inf, learned),
    "added": lambda learned, hidden: (
        learned + torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    ),
    "through views": lambda learned, hidden: learned.masked_fill(hidden, -torch.inf)[None].expand(
        2, -1, -1
    ),
    "written": lambda learned, hidden: learned.clone().masked_fill_(hidden, -torch.inf),
    "put in": lambda learned, hidden: learned.index_put(
        torch.nonzero(hidden, as_tuple=True), torch.tensor(-torch.inf)
    ),
    "reordered": lambda learned, hidden: (
        learned.flip(0)
        .masked_fill(hidden.flip(0), -torch.inf)
        .index_select(0, torch.tensor([2, 1, 0]))
    ),
    "a logarithm": lambda learned, hidden: (learned.square() * ~hidden).log(),
    "divided": lambda learned, hidden: learned.masked_fill(hidden, -torch.inf) / 2,
    "a quotient by counts": lambda learned, hidden: -learned.square() / (~hidden).long(),
    "a quotient by ones": lambda learned, hidden: -learned.square() / (~hidden).float(),
    "infinity, turned": lambda learned, hidden: -learned.square().masked_fill(hidden, torch.inf),
    "infinity, divided": lambda learned, hidden: torch.where(
        hidden, torch.div(-torch.inf, learned.square()), learned
    ),
    "a power of counts": lambda learned, hidden: -learned.square() * (~hidden).float() ** -1,
    "a reciprocal": lambda learned, hidden: -learned.square() * (~hidden).long().reciprocal(),
    "copied": lambda learned, hidden: (
        learned.masked_fill(hidden, -torch.inf).T.contiguous().repeat(1, 1).T.reshape(PLACES, -1)
    ),
    "filled twice": lambda learned, hidden: learned.masked_fill(
        hidden & LEFT, -torch.inf
    ).masked_fill_(hidden & ~LEFT, -torch.inf),
    "turned": lambda learned, hidden: learned.masked_fill(hidden.T, -torch.inf).T,
    "turned and copied": lambda learned, hidden: learned.masked_fill(
        hidden.T, -torch.inf
    ).T.contiguous(),
    "filled in a part": lambda learned, hidden: F.pad(learned, (0, 1)).masked_fill(
        F.pad(hidden, (0, 1)), -torch.inf
    )[:, :PLACES],
    "turned in place": lambda learned, hidden: (
        learned.clone().T.masked_fill_(hidden.T, -torch.inf).T
    ),
    "written in two parts": lambda learned, hidden: _written(learned.clone(), hidden),
    "a row for all": lambda learned, hidden: learned[1:2].masked_fill(hidden[1:2], -torch.inf),
    "filled where a parameter says so": lambda learned, hidden: learned.masked_fill(
        (learned > 9) | hidden, -torch.inf
    ),
    "data": lambda learned, hidden: torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf),
}


def _written(mask: Tensor, hidden: Tensor) -> Tensor:
    for part in (slice(0, 2), slice(2, None)):
        mask[:, part].masked_fill_(hidden[:, part], -torch.inf)
    return mask


# what is infinite says here which row is read, and is no number of the mask
SEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "buckets": lambda learned, hidden: learned[torch.arange(PLACES).log().clamp(0).long()],
    "a copy": lambda learned, hidden: learned.T.repeat(1, 1).reshape(PLACES, PLACES),
}


class Attention(nn.Module):
    """Attention with a mask that is written of learned scores and of what is hidden."""

    def __init__(self, way: str, hidden: Tensor):
        super().__init__()
        self.way, self.hidden = way, hidden
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))
        self.out = nn.Linear(4, 2)
        self.learned = nn.Parameter(torch.randn(PLACES, PLACES))

    def forward(self, x: Tensor) -> Tensor:
        mask = (MASKS | SEEN).get(self.way, lambda learned, _: learned)(self.learned, self.hidden)
        parts = self.query(x), self.key(x), self.value(x)
        return self.out(F.scaled_dot_product_attention(*parts, attn_mask=mask))


def slides(way: str, hidden: Tensor) -> int:
    """In how many directions a value's bias moves against that behind; no claim is wrong."""
    torch.manual_seed(0)
    model, x = randomise(Attention(way, hidden)), torch.randn(2, PLACES, 3)
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-9
    wanted = {"value.bias", "out.bias"}
    return sum(s.dimension for s in symmetry.shifts if wanted <= {*s.parameters})


@pytest.mark.parametrize("way", MASKS)
def test_where_nothing_is_seen_a_value_has_no_bias(way: str) -> None:
    assert slides(way, QUERY) == 0


def test_what_a_parameter_fills_may_hide_all() -> None:
    assert slides("filled where a parameter says so", KEY) == 0


@pytest.mark.parametrize(
    ("way", "hidden"),
    [
        *((way, KEY) for way in ("data", "masked_fill", "written", "filled twice")),
        *((way, NOTHING) for way in ("learned", *SEEN)),
    ],
)
def test_where_something_is_seen_it_has(way: str, hidden: Tensor) -> None:
    assert slides(way, hidden) == 4
