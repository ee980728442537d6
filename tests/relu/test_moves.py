"""Moves keep the function exactly; their conditions are enforced; wrong moves break it."""

import random
from collections import Counter

import pytest
import torch
from flint import fmpq
from networks import random_network, rational_point, type_a, type_b

from paramsym import relu
from paramsym.relu import moves


@pytest.mark.parametrize("kind", list(moves.PROPOSALS))
def test_each_move_keeps_the_function_and_is_certified(kind):
    seen = 0
    for seed in range(60):
        rng = random.Random(seed)
        make = [type_a, type_b, random_network][seed % 3]
        net = make((3, 3, 3, 2), rng)
        if kind == "merge":
            net = moves.split(net, 1 + seed % 2, 0, [(2, "1/3"), (1, "2/3")])
        for _, moved in moves.proposals(net, rng, [kind]):
            seen += 1
            for _ in range(6):
                x = rational_point(3, rng)
                assert net.evaluate(x) == moved.evaluate(x)
            verdict = relu.decide(net, moved)
            assert verdict.kind == "EQUAL"
    assert seen >= 5


def test_walks_use_every_kind_and_stay_on_the_fiber():
    kinds: Counter = Counter()
    for seed in range(16):
        rng = random.Random(seed)
        net = type_b((3, 3, 3, 1), rng) if seed % 2 else type_a((3, 2, 4, 1), rng, 2)
        moved = net
        for kind, moved in moves.walk(net, 12, rng):  # noqa: B007
            kinds[kind] += 1
        assert relu.decide(net, moved).kind == "EQUAL"
    assert set(kinds) == set(moves.PROPOSALS)


def test_walks_within_one_architecture():
    net = type_a((3, 3, 4, 2), random.Random(1), 2)
    for _, moved in moves.walk(net, 15, 3, moves.KEEPING_WIDTHS):
        assert moved.widths == net.widths


def test_generators_of_any_kind_are_accepted_and_reproducible():
    net = random_network((2, 3, 1), random.Random(0))
    a = moves.scramble(net, 4, torch.Generator().manual_seed(7))
    b = moves.scramble(net, 4, torch.Generator().manual_seed(7))
    assert a == b


def simple():
    return relu.as_network(
        [([[1, 0], [0, 1]], [0, 0]), ([[1, -1], [2, -3]], [-1, -1]), ([[1, 1]], [0])]
    )


def test_wrong_moves_are_refused_with_their_condition():
    net = simple()
    with pytest.raises(moves.MoveError, match="positive"):
        moves.scale(net, 1, [1, -1])
    with pytest.raises(moves.MoveError, match="hidden unit"):
        moves.translate(net, 1, 1, 1)
    with pytest.raises(moves.MoveError, match="t_min = -1/2"):
        moves.translate(net, 1, 0, "-0.51")
    with pytest.raises(moves.MoveError, match="non-positive multiple"):
        moves.reflect(net, 1, 0, 1)
    with pytest.raises(moves.MoveError, match="may fire"):
        moves.insert_dead(net, 1, [-1, -1], -1, [1, 1])
    with pytest.raises(moves.MoveError, match="sum 1"):
        moves.split(net, 1, 0, [(1, 1), (1, 1)])
    with pytest.raises(moves.MoveError, match="positive multiples"):
        moves.merge(net, 1, [0, 1])
    copied = moves.split(net, 1, 0, [(1, "1/2"), (2, "1/2")])
    copies = [0, len(copied.exact[0].bias) - 1]
    assert relu.decide(net, moves.merge(copied, 1, copies)).kind == "EQUAL"
    for units in ([], [*copies, copies[-1]]):
        with pytest.raises(moves.MoveError, match="each of them once"):
            moves.merge(copied, 1, units)
    with pytest.raises(moves.MoveError, match="behind a ReLU"):
        moves.flip(net, 1, [0])
    with pytest.raises(moves.MoveError, match="permutation"):
        moves.permute(net, 1, [0, 0])
    with pytest.raises(moves.MoveError, match="hidden layer, 1 to 2"):
        moves.permute(net, 3, [0])
    with pytest.raises(moves.MoveError, match="stays >= 0"):
        moves.shift_bias(net, 2, 0, 1)


def test_reflection_without_its_condition_changes_the_function():
    net = simple()
    layers = [(w, list(b)) for w, b in net]
    w = layers[0][0]
    w[0] = [w[0][0] - w[1][0], w[0][1] - w[1][1]]
    w[1] = [-x for x in w[1]]
    assert relu.decide(net, layers).kind == "DIFFERENT"


def test_dead_readers_do_not_stand_in_the_way_of_a_translation():
    """The specification asks all readers; a reader that never fires is no obstacle."""
    net = relu.as_network(
        [([[1, 0], [0, 1]], [0, 0]), ([[1, -1], [-2, -3]], [-1, -1]), ([[1, 1]], [0])]
    )
    moved = moves.translate(net, 1, 0, 3)
    assert moved.exact[1].bias == [fmpq(-4), fmpq(-1)]
    assert relu.decide(net, moved).kind == "EQUAL"
