"""What inputs, buffers and constants decide is run on their numbers; what weights decide is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import TraceError, find_symmetry, verify
from paramsym.checking.generic import generic_inputs, table_lengths
from paramsym.privacy.keys.tokens import with_tokens
from paramsym.recording.record import record
from tests.coverage.measure import measured

N, UNITS = 11, 7
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(N, 5, generator=GENERATOR)
MASK = torch.rand(N, generator=GENERATOR) > 0.4


class Net(nn.Module):
    """5 features, 7 hidden units, 3 outputs, and a forward pass of one's own."""

    def __init__(self, forward: Callable[..., Tensor]):
        super().__init__()
        self.a, self.b = nn.Linear(5, UNITS), nn.Linear(UNITS, 3)
        self.register_buffer("limit", torch.tensor(0.5))
        self.register_buffer("picked", torch.tensor([1, 4, 2]))
        self.own = forward

    def hidden(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x))

    def forward(self, *args: Tensor) -> Tensor:
        return self.own(self, *args)


def by_condition(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    (places,) = torch.where(mask)
    return s.b(s.hidden(x)[places])


def by_condition_on_numbers(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)[x[:, 0] > 0])


def in_the_middle(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)[None].expand(2, N, UNITS)[:, mask])


def over_two_axes(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    both = torch.stack([mask, ~mask])
    return s.b(torch.stack([s.hidden(x), s.hidden(-x)])[both])


def masked_select(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x).masked_select(mask[:, None]).view(-1, UNITS))


def masked_mean(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return s.b(torch.stack([h[mask].mean(0), h[~mask].sum(0)]))


def one_at_a_time(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return torch.stack([s.b(h[i]) for i in mask.nonzero().flatten().tolist()])


def a_number(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    count = int(mask.sum())
    return s.b(s.hidden(x)[:count]) / count


def ragged(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    lengths = torch.stack([mask.sum(), (~mask).sum()])
    return torch.stack([s.b(part).mean(0) for part in s.hidden(x).split(lengths.tolist())])


def repeated(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x).repeat_interleave(mask.long() + 1, 0))


def repeated_by_function(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(torch.repeat_interleave(s.hidden(x), mask.long() + 1, dim=0))


def branch(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return s.b(h * mask[:, None] if mask.any() and not bool(mask.all()) else h)


def branch_by_buffer(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)) if s.limit > 0 else s.b(s.a(x).exp())


def places_in_buffer(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return torch.stack([s.b(h[i]) for i in s.picked.tolist()])


def equality(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)) * (2.0 if torch.equal(mask, ~mask) else 3.0)


def counted(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    values, inverse = torch.unique(mask.long(), return_inverse=True)
    return s.b(s.hidden(x)) * inverse[:, None] * mask.long().bincount()[1] / len(values)


def filled(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x).clone()
    h[mask] = 0
    return s.b(h)


def written(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    y = torch.zeros(N, 3, dtype=x.dtype)
    y[mask] = s.b(s.hidden(x)[mask])
    return y


def written_over(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x).clone()
    h[mask] = s.hidden(2 * x[mask])
    return s.b(h)


def scattered(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return s.b(h.masked_scatter(mask[:, None].expand_as(h), s.hidden(2 * x[mask])))


def shaped_like_features(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    window = torch.zeros_like(h[:, 0], dtype=torch.bool)
    window[2:6] = True
    return s.b(h[window])


SPELLINGS = [
    by_condition, in_the_middle, over_two_axes, masked_select, masked_mean,
    one_at_a_time, a_number, ragged, repeated, repeated_by_function, branch, branch_by_buffer,
    places_in_buffer, equality, counted, filled, written, written_over, scattered,
    shaped_like_features,
]  # fmt: skip


def name(function: Callable[..., object]) -> str:
    return function.__name__


@pytest.mark.parametrize("forward", SPELLINGS, ids=name)
def test_what_data_decides_leaves_all_freedom(forward: Callable[..., Tensor]) -> None:
    model = Net(forward)
    found = measured(model, (X, MASK))
    assert (found.explained, found.unexplained, found.refuted) == (UNITS, 0, ())
    assert found.error < 1e-12 and not found.symmetry.unknown
    (space,) = found.symmetry.spaces.values()
    assert str(space.group) == f"Monomial({UNITS})"
    assert "nothing refuted" in str(found.symmetry.checked)


def units_by_a_mask(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x)
    return s.b(h) * h[:, mask[:UNITS]].sum(1, keepdim=True)


def another_threshold(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.hidden(x).clone()
    h[mask] = 1.0
    return s.b(h)


def test_near_misses_lose_what_they_break() -> None:
    """A mask over units tells them apart, and a fill with ones fixes their scale."""
    apart = measured(Net(units_by_a_mask), (X, MASK))
    assert apart.error < 1e-12 and not apart.refuted
    assert all(str(s.group) != f"Monomial({UNITS})" for s in apart.symmetry.spaces.values())
    fixed = measured(Net(another_threshold), (X, MASK))
    assert fixed.explained == 0 and fixed.error < 1e-12
    assert [str(s.group) for s in fixed.symmetry.spaces.values()] == [f"Permutation({UNITS})"]


def test_what_decides_is_kept_by_checks_and_held() -> None:
    graph = record(Net(by_condition_on_numbers), (X, MASK))
    assert [*graph.decided] == ["input0"]
    model = Net(by_condition_on_numbers)
    found = find_symmetry(model, (X, MASK))
    assert "nothing refuted" in str(found.checked)
    assert verify(model, found, (X, MASK)).error < 1e-12
    generator = torch.Generator().manual_seed(1)
    (drawn, _), _ = generic_inputs((X, MASK), table_lengths(graph), generator)
    assert torch.equal(drawn, X.double())
    assert [*record(Net(masked_mean), (X, MASK)).decided] == ["input1"]
    assert [*record(Net(branch_by_buffer), (X, MASK)).held] == ["limit"]
    assert not record(Net(lambda s, x, mask: s.b(s.hidden(x))), (X, MASK)).decided


# -- what weights decide ---------------------------------------------------------------------------


def pruned(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.a(x)[:, s.a.weight.norm(dim=1).topk(3).indices.tolist()]


def chosen_by_features(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    h = s.a(x)
    return s.b(F.relu(h)[h[:, 0] > 0])


def branch_by_weight(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)) if s.a.weight.sum() > 0 else s.b(s.a(x))


def weight_in_a_constant(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    return s.b(s.hidden(x)[x.new_full((N,), s.a.weight.sum()) > 0])


def caught_on_the_way(s: Net, x: Tensor, mask: Tensor) -> Tensor:
    try:
        return s.b(s.hidden(x)) if s.a.weight.sum() > 0 else x
    except RuntimeError:
        return s.b(s.a(x))


@pytest.mark.parametrize(
    "forward",
    [pruned, chosen_by_features, branch_by_weight, weight_in_a_constant, caught_on_the_way],
    ids=name,
)
def test_weights_must_not_decide(forward: Callable[..., Tensor]) -> None:
    with pytest.raises(TraceError) as caught:
        find_symmetry(Net(forward), (X, MASK))
    text = str(caught.value)
    assert "find_symmetry(model=Net)" in text and "test_traced.py:" in text
    assert "the parameter 'a.weight'" in text and "Choose by inputs, buffers" in text


def test_drawn_numbers_must_not_decide() -> None:
    with pytest.raises(TraceError, match=r"random numbers \(rand at test_traced"):
        find_symmetry(Net(lambda s, x, m: s.b(s.hidden(x)[torch.rand(N) > 0.5])), (X, MASK))


def test_numbers_that_do_not_exist_decide_nothing() -> None:
    with pytest.raises(TraceError, match="meta device"):
        find_symmetry(Net(masked_mean), (X, MASK.to("meta")))


def test_freed_inputs_must_not_decide() -> None:
    with pytest.raises(TraceError, match="the freed input"):
        find_symmetry(Net(by_condition_on_numbers), (X, MASK), free_inputs={"args[0]": -1})


# -- any of it, one after the other ----------------------------------------------------------------

STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda h, m: h[m],
    lambda h, m: h[~m],
    lambda h, m: h[m.nonzero(as_tuple=True)],
    lambda h, m: h.index_select(0, torch.where(m)[0]),
    lambda h, m: h.masked_select(m.unsqueeze(-1)).reshape(int(m.sum()), -1),
    lambda h, m: h.repeat_interleave(m.long() + 1, dim=0),
    lambda h, m: h[: int(m.sum())],
    lambda h, m: torch.cat(h.split([int(m.sum()), int((~m).sum())])[::-1]),
    lambda h, m: h.masked_fill(m[:, None], 0.0) if m.any() else h,
    lambda h, m: h.masked_scatter(m[:, None], torch.cat([h, h])),
]


@pytest.mark.parametrize("seed", range(12))
def test_selections_follow_each_other(seed: int) -> None:
    drawn = random.Random(seed)
    steps = drawn.choices(STEPS, k=3)
    chosen = [drawn.random() < 0.7 for _ in range(64)]

    def forward(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        h = s.hidden(x)
        for step in steps:
            h = step(h, torch.tensor(chosen)[: len(h)] ^ mask[:1])
        return torch.cat([s.b(h), s.b(s.hidden(x))])  # nothing may be left of h

    chosen[:2] = [True, False]
    model = Net(forward)
    found = find_symmetry(model, (X, MASK))
    (space,) = found.spaces.values()
    assert str(space.group) == f"Monomial({UNITS})" and "nothing refuted" in str(found.checked)
    assert verify(model, found, (X, MASK)).error < 1e-12


def test_a_selection_of_nothing() -> None:
    def forward(s: Net, x: Tensor, mask: Tensor) -> Tensor:
        h = s.hidden(x)
        return torch.cat([s.b(h[mask & ~mask]) * 2, s.b(h) + s.b(h[mask & ~mask]).sum(0)])

    found = measured(Net(forward), (X, MASK))
    assert (found.explained, found.unexplained, found.refuted) == (UNITS, 0, ())


def test_tokens_that_decide_keep_their_numbers() -> None:
    """A key numbers tokens anew; where a number decides, another one would select otherwise."""

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(13, 5), nn.Linear(5, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.table(tokens)[: max(tokens[:, 0].tolist())])

    model, tokens = Text(), (torch.tensor([[1, 2, 3], [4, 5, 6]]),)
    with pytest.raises(TraceError, match="the integers decide what is computed at test_traced"):
        with_tokens(find_symmetry(model, tokens), model, tokens, name="tokens")
