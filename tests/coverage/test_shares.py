"""Weights that sum to one, however they are written: softmax by hand, shares, one-hot vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym.lowering.made import seen_total
from paramsym.primitives.tensor import Tensor as Typed
from tests.coverage.measure import Measured, measured

X = torch.randn(8, 7, 5, generator=torch.Generator().manual_seed(2))


def softmax(z: Tensor) -> Tensor:
    return z.softmax(-1)


def with_keepdim(z: Tensor) -> Tensor:
    return z.exp() / z.exp().sum(-1, keepdim=True)


def without_keepdim(z: Tensor) -> Tensor:
    e = torch.exp(z)
    return e / e.sum(dim=-1).unsqueeze(-1)


def below_the_largest(z: Tensor) -> Tensor:
    e = torch.exp(z - z.max(dim=-1, keepdim=True).values)
    return torch.div(e, torch.sum(e, -1, keepdim=True))


def below_a_detached_largest(z: Tensor) -> Tensor:
    e = (z - z.detach().amax(-1, True)).exp()
    return e / e.sum(-1)[..., None]


def by_logarithms(z: Tensor) -> Tensor:
    return (z - torch.logsumexp(z, -1, keepdim=True)).exp()


def of_its_logarithm(z: Tensor) -> Tensor:
    return functional.log_softmax(z, dim=-1).exp()


BY_HAND = [with_keepdim, without_keepdim, below_the_largest, below_a_detached_largest,
           by_logarithms, of_its_logarithm]  # fmt: skip


class Attention(nn.Module):
    """Two heads whose weights are made of scores by some function."""

    def __init__(self, weights: Callable[[Tensor], Tensor], leave: int = 6) -> None:
        super().__init__()
        self.weights = weights
        self.enter, self.leave = nn.Linear(5, 6), nn.Linear(6, leave)
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        q, k, v = (
            each(h).unflatten(-1, (2, 3)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        mixed = self.weights(q @ k.transpose(-1, -2)) @ v
        return self.leave(h + self.o(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("spelling", BY_HAND)
def test_a_softmax_by_hand_is_a_softmax(spelling: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(spelling(X), X.softmax(-1))
    own, plain = measured(Attention(spelling), (X,)), measured(Attention(softmax), (X,))
    assert own.error < 1e-9 and own.refuted == ()
    assert (own.unexplained, own.explained) == (0, plain.explained)


def of_squares(z: Tensor) -> Tensor:
    return z.square() / z.square().sum(-1, keepdim=True)


def of_softplus(z: Tensor) -> Tensor:
    e = functional.softplus(z)
    return e / e.sum(-1, keepdim=True)


def of_what_a_mask_leaves(z: Tensor) -> Tensor:
    p = z.softmax(-1)
    p = p * (p > 0.1)
    return p / p.sum(-1, keepdim=True)


def with_an_epsilon(z: Tensor) -> Tensor:
    e = functional.softplus(z)
    return e / (e.sum(-1, keepdim=True) + 0.1)


def along_another_axis(z: Tensor) -> Tensor:
    e = functional.softplus(z)
    return e / e.sum(-2, keepdim=True)


def of_something_else(z: Tensor) -> Tensor:
    return functional.softplus(z) / functional.softplus(2 * z).sum(-1, keepdim=True)


def by_the_mean(z: Tensor) -> Tensor:
    e = functional.softplus(z)
    return e / e.mean(-1, keepdim=True)


def times_the_reciprocal(z: Tensor) -> Tensor:
    e = z.sigmoid()
    return e * (1 / e.sum(-1, keepdim=True)) * 1.5


@pytest.mark.parametrize(
    "weights",
    [of_squares, of_softplus, of_what_a_mask_leaves, times_the_reciprocal],
)
def test_biases_pass_an_average_by_any_weights(weights: Callable[[Tensor], Tensor]) -> None:
    found = measured(Attention(weights), (X,))
    assert found.error < 1e-9 and found.refuted == () and found.unexplained == 0
    assert "v.bias" in _slides(found)


@pytest.mark.parametrize(  # by the mean they sum to the number of elements, which others have not
    "weights", [with_an_epsilon, along_another_axis, of_something_else, by_the_mean]
)
def test_no_bias_passes_what_is_no_average(weights: Callable[[Tensor], Tensor]) -> None:
    found = measured(Attention(weights), (X,))
    assert found.error < 1e-9 and found.refuted == () and found.unexplained == 0
    assert "v.bias" not in _slides(found)


def _slides(found: Measured) -> set[str]:
    """The parameters of all shifts."""
    return {name for shift in found.symmetry.shifts for name in shift.parameters}


class Mixed(nn.Module):
    """A layer that reads weights along its units."""

    def __init__(self, weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weights = weights
        self.enter, self.inner, self.leave = nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.inner(self.weights(self.enter(x)))))


def with_a_floor(z: Tensor) -> Tensor:
    return 0.9 * z.softmax(-1) + 0.1 / 4


def in_groups(z: Tensor) -> Tensor:
    p = z.unflatten(-1, (2, 2)).softmax(-1)
    return (0.9 * p + 0.1 * torch.ones_like(p) / 2).flatten(-2)


def with_a_straight_gradient(z: Tensor) -> Tensor:
    p = z.softmax(-1)
    largest = functional.one_hot(p.argmax(-1), 4).to(p.dtype)
    return largest + p - p.detach()


def of_two_softmaxes(z: Tensor) -> Tensor:
    return 0.3 * z.softmax(-1) + 0.7 * (2 * z).softmax(-1)


@pytest.mark.parametrize(
    "weights",
    [softmax, of_softplus, of_squares, with_a_floor, of_two_softmaxes, in_groups, by_the_mean],
)
def test_what_sums_to_one_against_the_next_bias(weights: Callable[[Tensor], Tensor]) -> None:
    found = measured(Mixed(weights), (X,))
    assert found.error < 1e-9 and found.refuted == () and found.unexplained == 0
    assert {"inner.weight", "inner.bias"} <= _slides(found)


def test_a_one_hot_vector_sums_to_one() -> None:
    found = measured(
        Mixed(with_a_straight_gradient), (torch.cat([X.flatten(0, 1), -X.flatten(0, 1)]),)
    )
    assert found.error < 1e-9 and found.refuted == ()
    assert {"inner.weight", "inner.bias"} <= _slides(found)


@pytest.mark.parametrize("weights", [with_an_epsilon, of_something_else])
def test_what_does_not_sum_to_one_stays(weights: Callable[[Tensor], Tensor]) -> None:
    found = measured(Mixed(weights), (X,))
    assert found.error < 1e-9 and found.refuted == () and found.unexplained == 0
    assert "inner.weight" not in _slides(found)


@pytest.mark.parametrize("seed", range(60))
def test_a_view_sums_to_what_it_is_said_to(seed: int) -> None:
    """Windows on a softmax, drawn as strides and an offset: some see whole rows, others cross."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    shape = (3, 4, 2) if seed % 2 else (3, 2, 4)
    axis = shape.index(4)
    x = torch.rand(shape, generator=generator).softmax(axis)
    base = Typed(shape, x.stride(), total=(axis, 1.0))
    found = 0
    for _ in range(300):
        sizes = tuple(drawn(1, 2, 3, 4) for _ in range(3))
        steps = tuple(drawn(1, 2, 4, 8) for _ in range(3))
        start = drawn(0, 1, 2, 4, 8)
        if start + sum(s * (n - 1) for n, s in zip(sizes, steps, strict=True)) >= x.numel():
            continue
        told = seen_total(base, Typed(sizes, steps, start, base))
        if told is not None:
            sums = x.as_strided(sizes, steps, start).sum(told[0])
            torch.testing.assert_close(sums, torch.ones_like(sums))
            found += 1
    assert found


CROSSING: dict[str, Callable[[Tensor], Tensor]] = {
    "windows": lambda p: p.flatten(-2).unfold(-1, 4, 1),
    "every other window": lambda p: p.flatten(-2).unfold(-1, 4, 2),
    "a cut": lambda p: p.flatten(-2)[..., 2:6],
    "in another order": lambda p: p.flatten(-2).roll(1, -1).unflatten(-1, (2, 4)),
    "transposed": lambda p: p.transpose(-1, -2).reshape(p.shape),
}


@pytest.mark.parametrize("name", CROSSING)
def test_a_window_across_two_groups_sums_to_nothing_known(name: str) -> None:
    def weights(z: Tensor) -> Tensor:
        return CROSSING[name](torch.cat([z, -z], -1).unflatten(-1, (2, 4)).softmax(-1))

    found = measured(Mixed(weights), (X,))
    assert found.symmetry.checked is not None and found.symmetry.checked.refuted == ()
    assert found.error < 1e-9 and found.refuted == ()
    assert "inner.weight" not in _slides(found)


class Loss(nn.Module):
    """A loss of a linear layer's scores."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(5, 4), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.head(x), y)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "one by one": lambda z, y: functional.cross_entropy(z, y, reduction="none"),
    "by name": lambda z, y: functional.cross_entropy(input=z, target=y, label_smoothing=0.1),
    "along the second axis": lambda z, y: functional.cross_entropy(z.mT[None], y[None]),
    "nll_loss": lambda z, y: functional.nll_loss(z.log_softmax(-1), y, reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_sees_no_common_shift_of_scores(name: str) -> None:
    x, y = X.flatten(0, 1), torch.arange(56) % 4
    found = measured(Loss(LOSSES[name]), (x, y))
    assert found.error < 1e-9 and found.refuted == () and found.symmetry.unknown == {}
    assert (found.explained, found.unexplained) == (6, 0)


@pytest.mark.parametrize("seed", range(8))
def test_saturated_losses_hide_nothing_from_an_audit(seed: int) -> None:
    """The control: a freedom that is not found is counted, however far out inputs are drawn."""
    torch.manual_seed(seed)
    found = measured(Loss(lambda z, y: z[:, 0] - z.logsumexp(1)), (X.flatten(0, 1), torch.ones(1)))
    assert (found.explained, found.unexplained) == (0, 6)
