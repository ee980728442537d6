"""Piecewise linear arrays against the same operations on numbers, one input at a time."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paramsym import relu
from paramsym.relu import precision
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import EXACT, FORMATS, Rounding
from paramsym.relu.piecewise import Piecewise, concatenate

FLOAT32 = FORMATS["float32"]


def numbers(table) -> np.ndarray:
    """The same numbers as `Fraction`s."""
    made = np.empty(np.shape(table), dtype=object)
    for place in np.ndindex(made.shape):
        made[place] = Fraction(np.asarray(table, dtype=object)[place])
    return made


def larger(a, b):
    return np.where(a > b, a, b)


# Every operation twice: on arrays of functions, and by its definition on arrays of numbers.


def windows(x, kernel, stride, padding, fill):
    """The entries of each window over the last two axes, as lists."""
    sides = [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2
    padded = np.pad(x, sides, constant_values=fill)
    rows = range(0, padded.shape[-2] - kernel + 1, stride)
    columns = range(0, padded.shape[-1] - kernel + 1, stride)
    made = np.empty((*x.shape[:-2], len(rows), len(columns)), dtype=object)
    for place in np.ndindex(made.shape):
        i, j = rows[place[-2]], columns[place[-1]]
        made[place] = padded[(*place[:-2], slice(i, i + kernel), slice(j, j + kernel))]
    return made


def convolved(x, weight, bias, padding):
    made = []
    for kernel, constant in zip(weight, bias, strict=True):
        parts = windows(x, kernel.shape[-1], 1, padding, Fraction(0))
        total = numbers(np.full(parts.shape[1:], 0)) + constant
        for place in np.ndindex(total.shape):
            total[place] += sum((parts[(c, *place)] * kernel[c]).sum() for c in range(len(kernel)))
        made.append(total)
    return np.array(made)


def pooled(x, how, kernel, stride, padding, fill):
    return np.vectorize(how, otypes=[object])(windows(x, kernel, stride, padding, fill))


def drawn(rng, shape):
    """Small rationals, some of them dyadic, some zero."""
    table = np.empty(shape, dtype=object)
    for place in np.ndindex(table.shape):
        table[place] = Fraction(rng.randint(-4, 4), rng.choice([1, 1, 2, 3, 4]))
    return table


def steps(rng, x):
    """A random operation on an array (channels, height, width): (on functions, on numbers)."""
    c = x.shape[0]
    scale, weight = drawn(rng, (c, 1, 1)), drawn(rng, (2, c, 2, 2))
    bias, matrix = drawn(rng, (2,)), drawn(rng, (3, x.shape[-1]))
    low, high = sorted([drawn(rng, ())[()], drawn(rng, ())[()]])
    order = rng.sample(range(c), c)
    choices = [
        (lambda p: p.relu(), lambda v: larger(v, 0 * v)),
        (lambda p: p * scale + low, lambda v: v * scale + low),
        (lambda p: high - p / 3, lambda v: high - v / 3),
        (lambda p: p.maximum(-p * 2), lambda v: larger(v, -2 * v)),
        (lambda p: p.minimum(scale), lambda v: -larger(-v, -scale)),
        (lambda p: p.clip(low, high), lambda v: -larger(-larger(v, low), -high)),
        (lambda p: p.clip(high, low), lambda v: -larger(-larger(v, high), -low)),
        (lambda p: p.leaky_relu(Fraction(1, 10)), lambda v: larger(v, v / 10)),
        (abs, abs),
        (lambda p: p + p.relu().linear(np.eye(p.shape[-1])), lambda v: v + larger(v, 0 * v)),
        (lambda p: concatenate([p[order], scale + 0 * p[:1]]),
         lambda v: np.concatenate([v[order], scale + 0 * v[:1]])),
        (lambda p: p.linear(matrix, bias[:1]), lambda v: v @ matrix.T + bias[0]),
        (lambda p: p.transpose((0, 2, 1)), lambda v: v.transpose((0, 2, 1))),
        (lambda p: p.pad([(0, 0), (1, 0), (0, 0)], high),
         lambda v: np.pad(v, [(0, 0), (1, 0), (0, 0)], constant_values=high)),
        (lambda p: p + p.mean((1, 2), True), lambda v: v + v.sum((1, 2), keepdims=True)
         / (v.shape[1] * v.shape[2])),
        (lambda p: p - p.max(1, True), lambda v: v - v.max(axis=1, keepdims=True)),
        (lambda p: p.convolve(weight, bias, padding=(1, 1)),
         lambda v: convolved(v, weight, bias, 1)),
        (lambda p: p.avg_pool((2, 2), (1, 1), (1, 1)),
         lambda v: pooled(v, lambda w: w.sum() / w.size, 2, 1, 1, Fraction(0))),
        (lambda p: p.max_pool((2, 2), (2, 2), (1, 1)),
         lambda v: pooled(v, lambda w: w.max(), 2, 2, 1, Fraction(-10**9))),
    ]  # fmt: skip
    return rng.choice(choices)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
@example(6030934)  # all weights are drawn as zero: a constant, of which no network is made
def test_random_compositions_agree_with_numbers(seed):
    rng = random.Random(seed)
    x = Piecewise.inputs((2, 2, 2))
    made, on_numbers = x, []
    for _ in range(rng.randint(1, 5)):
        step, twin = steps(rng, made)
        following = step(made)
        if following.size > 64 or following.depth > 7:
            break
        made, on_numbers = following, [*on_numbers, twin]
    points = [drawn(rng, (2, 2, 2)) for _ in range(3)]
    values = points
    for twin in on_numbers:
        values = [twin(value) for value in values]
    expected = [value.reshape(-1).tolist() for value in values]
    try:
        net = made.network()
    except ReLUError as error:
        assert "a function of 0 inputs" in str(error)
        assert expected[0] == expected[1] == expected[2]
        return
    assert net.widths[0] == 8 and net.depth == made.depth
    assert [net(point.reshape(-1)) for point in points] == expected


def test_a_wrong_twin_is_noticed():
    """Negative control of the test above."""
    x = Piecewise.inputs((2,))
    net = x.leaky_relu("1/10").network()
    assert net([-1, 1]) == [Fraction(-1, 10), 1] != [Fraction(-1, 5), 1]


def test_a_chain_is_laid_out_as_it_is():
    """Floats stay floats, in their formats, and nothing is made beside the units of the chain."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(3, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 2, bias=False)]
    value = Piecewise.inputs((3,))
    for k, part in enumerate(parts):
        value = (value.relu() if k else value).linear(part.weight, part.bias)
    net = value.network()
    assert net.born_float and net.widths == (3, 5, 4, 2)
    assert net.storage == ((FLOAT32, FLOAT32), (FLOAT32, FLOAT32), (FLOAT32, EXACT))
    assert net == relu.as_network([(p.weight, p.bias) for p in parts])


def test_powers_of_two_and_identities_stay_in_float64():
    weight = np.random.default_rng(0).normal(size=(4, 4))
    x = Piecewise.inputs((4,))
    h = x.linear(weight).relu()
    pooled_maxima = h[::-1].maximum(h).avg_pool((2,)).linear([[1, 2], [-4, 0]])
    net = (h[:2] * 0.5 + pooled_maxima - 3).network()
    assert net.born_float and not (h * 3).linear(weight).network().born_float


def test_the_stream_of_a_residual_network_is_carried_and_not_its_atoms():
    rng = np.random.default_rng(0)
    n, blocks = 6, 5
    s = Piecewise.inputs((n,)).linear(rng.normal(size=(n, n)))
    for _ in range(blocks):
        s = s + s.relu().linear(rng.normal(size=(n, n)))
    net = s.network()
    assert net.depth == blocks and max(net.widths[1:-1]) <= 2 * n
    # Negative control: a carried stream that is lost would be another function.
    assert net([1] * n) != s.relu().network()([1] * n)


def test_carried_units_cost_one_and_are_made_once():
    x = Piecewise.inputs((3,))
    h = x.linear(np.ones((2, 3))).relu()
    deep = h.linear(np.ones((2, 2)), [-1, -2]).relu().linear(np.ones((2, 2)), [-1, -5]).relu()
    assert (deep + h).network().widths == (3, 2, 4, 4, 2)
    assert concatenate([deep + h, deep - h]).network().widths == (3, 2, 4, 4, 4)
    assert h.relu() is h and (-x).relu() is (-x).relu()


# ------------------------------------------------------------------ what storage leaves open


def corners(*tables):
    """The tables with every entry at either end of what float32 leaves open, a sample of them."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        yield [t * (1 + 2.0**-24 * rng.choice([-1, 1], t.shape)) for t in tables]


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_folded_layers_is_within_their_slack(seed):
    """Whatever numbers the stored ones stand for, the folded layers are within their bounds."""
    torch.manual_seed(seed)
    w1, s, w2 = torch.randn(3, 2), torch.randn(3), torch.randn(2, 3)

    def layers(w1, s, w2):
        h = Piecewise.inputs((2,)).linear(w1) * s + s
        return (h.relu() - h).linear(w2).network()

    net = layers(w1, s, w2)
    assert precision.coarse(net) and precision.storage_name(net) == "float32"
    seen = [np.zeros(w.shape) for w, _ in net.floats]
    for moved in corners(*(t.double().numpy() for t in (w1, s, w2))):
        other = layers(*moved)
        assert other.widths == net.widths
        for k, (held, p, q) in enumerate(
            zip(precision.roundings(net), net.floats, other.floats, strict=True)
        ):
            assert (np.abs(p.weight - q.weight) <= held[0] + 1e-15).all()
            assert (np.abs(p.bias - q.bias) <= held[1] + 1e-15).all()
            seen[k] = np.maximum(seen[k], np.abs(p.weight - q.weight))
    for (bound, _), found in zip(precision.roundings(net), seen, strict=True):
        assert (bound <= 4 * found + 1e-13).all()  # and the bounds are not idle


def test_zeros_of_a_stored_table_are_roundings_too():
    weight = torch.tensor([[1.0, 0.0]])
    net = (Piecewise.inputs((2,)).linear(weight) * 3).network()
    held = net.storage[0]
    assert isinstance(held, Rounding) and (held.weight > 0).all()


def test_float64_weights_are_never_coarse():
    rng = np.random.default_rng(0)
    net = (Piecewise.inputs((2,)).linear(rng.normal(size=(2, 2))) * rng.normal(size=2)).network()
    assert isinstance(net.storage[0], Rounding) and not precision.coarse(net)


# ------------------------------------------------------------------ windows against torch


@pytest.mark.parametrize(
    "stride, padding, dilation, groups", list(itertools.product((1, 2), (0, 2), (1, 2), (1, 2)))
)
def test_convolutions_are_those_of_torch(stride, padding, dilation, groups):
    torch.manual_seed(0)
    w, b = torch.randn(4, 2 // groups, 3, 2).double(), torch.randn(4).double()
    x = Piecewise.inputs((2, 2, 6, 5))
    made = x.convolve(w, b, (stride, 1), (padding, padding), (dilation, 1), groups)
    v = torch.randn(2, 2, 6, 5).double()
    right = torch.conv2d(v, w, b, (stride, 1), (padding, padding), (dilation, 1), groups)
    assert made.shape == tuple(right.shape)
    assert np.allclose(made.network().batch(v.reshape(1, -1).numpy())[0], right.reshape(-1),
                       rtol=0, atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("size, kernel, stride, padding", [
    (7, 3, 2, 1), (6, 3, 2, 0), (5, 2, 2, 0), (8, 3, 3, 1), (4, 2, 3, 1), (6, 2, 1, 0),
])  # fmt: skip
@pytest.mark.parametrize("ceil", [False, True])
def test_poolings_are_those_of_torch(size, kernel, stride, padding, ceil):
    torch.manual_seed(0)
    x, v = Piecewise.inputs((1, 1, size)), torch.randn(1, 1, size).double()
    k, s, p = (kernel,), (stride,), (padding,)
    for made, right in [
        (x.max_pool(k, s, p, ceil=ceil), torch.max_pool1d(v, k, s, p, 1, ceil)),
        (x.avg_pool(k, s, p, ceil), torch.nn.functional.avg_pool1d(v, k, s, p, ceil, True)),
        (x.avg_pool(k, s, p, ceil, False), torch.nn.functional.avg_pool1d(v, k, s, p, ceil, False)),
    ]:
        assert made.shape == tuple(right.shape)
        assert np.allclose(made.network().batch(v.reshape(1, -1).numpy())[0], right.reshape(-1),
                           rtol=0, atol=1e-14)  # fmt: skip


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("wrong, words", [
    (lambda x: x * float("nan"), ["nan", "finite numbers"]),
    (lambda x: x / 0, ["may be zero", "away from zero"]),
    (lambda x: x.linear([[1, 2, 3]]), ["reads 3 features", "expected 2"]),
    (lambda x: x.reshape((1, 2)).max_pool((3,)), ["window of (3,)", "(1, 2)"]),
    (lambda x: x.reshape((1, 2)).convolve([[[1], [1]]]), ["shape (1, 2)", "2 channels"]),
    (lambda x: Piecewise.of([1, 2]).network(), ["0 inputs", "one input"]),
    (lambda x: (x + Piecewise.inputs((2,))).network(), ["2 inputs", "one input"]),
    (lambda x: x.broadcast_to((1 << 15, 2)).linear(np.ones((1 << 11, 2))), ["134,217,728"]),
])  # fmt: skip
def test_what_makes_no_network_is_refused(wrong, words):
    with pytest.raises(relu.ReLUError) as caught:
        wrong(Piecewise.inputs((2,)))
    for word in [*words, "got", "expected"]:
        assert word in str(caught.value)
