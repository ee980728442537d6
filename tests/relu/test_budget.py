"""The budget and an interrupt hold everywhere: in every step, in both modes, on every domain."""

import contextlib
import gc
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from networks import gaussian, twin

from paramsym import relu
from paramsym.relu.clock import OutOfTime, left, limited, tick, unlimited
from paramsym.relu.milp import maximise_on_box
from paramsym.relu.rationals import product, rational

SIZES = [(12, 16, 16, 16, 1), (6, 10, 10, 1), (3, 200, 200, 1), (14, 40, 40, 2), (300, 200, 5)]


def hard(widths, seed=0):
    """Equal pairs that only cells could prove equal: relu(|u| - 1) = relu(u - 1) + relu(-u - 1)."""
    rng = np.random.default_rng(seed)
    layers = [(w.copy(), b.copy()) for w, b in gaussian(widths, rng).floats]
    other = [(w.copy(), b.copy()) for w, b in layers]
    if len(layers) > 2:
        for (w1, b1), (w2, b2), inner in ((*layers[:2], 0), (*other[:2], -1)):
            w1[0] = np.round(w1[0] * 1024) / 1024
            w1[1], b1[:2] = -w1[0], inner
            w2[:, :2], w2[0] = 0, 0
            w2[0, :2], b2[0] = 1, -1 - inner
    return relu.as_network(layers), twin(relu.as_network(other), rng, dyadic=True)


@pytest.mark.parametrize("widths", SIZES)
@pytest.mark.parametrize("mode", ["exact", "float"])
@pytest.mark.parametrize("domain", [None, (-1, 1)])
def test_no_step_outlasts_the_budget(widths, mode, domain):
    a, b = hard(widths)
    began = time.perf_counter()
    verdict = relu.decide(a, b, mode=mode, domain=domain, budget=1.0)
    assert time.perf_counter() - began <= 1.0 * 1.2 + 1.0, verdict.tried
    assert verdict.kind in ("EQUAL", "UNDECIDED") and relu.verify(verdict, a, b)


def test_lines_are_searched_although_cells_cannot_be_counted():
    a, b = hard((12, 16, 16, 16, 1))
    verdict = relu.decide(a, b, budget=3)
    assert verdict.kind == "UNDECIDED" and " 0 lines" not in verdict.reason
    assert "Joint cells" in verdict.reason


@contextlib.contextmanager
def interrupted(after: float) -> Iterator[None]:
    """One interrupt after so many seconds, which must come out of the block, and within a second.

    Python drops what is raised while it collects garbage: who presses the key presses it again.
    The test presses once, so that hypothesis's callback, which times collections, is away.
    """

    def stop(*_):
        raise KeyboardInterrupt

    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    before = signal.signal(signal.SIGALRM, stop)
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks
    assert time.perf_counter() - began <= after + 1.0


@pytest.mark.parametrize("mode", ["exact", "float"])
@pytest.mark.parametrize("after", [0.1, 0.6, 1.5])
def test_an_interrupt_is_heard_within_a_second(mode, after):
    a, b = hard((14, 40, 40, 2))
    with interrupted(after):
        relu.decide(a, b, mode=mode, domain=(-1, 1), budget=10)


def test_the_box_program_hears_an_interrupt():
    a, b = hard((30, 60, 30, 1))
    with interrupted(1.0):
        maximise_on_box(a, b, relu.Box((-1,) * 30, (1,) * 30), 4.0)


def test_limits_nest_and_end():
    tick()
    with limited(60):
        assert 59 < left() <= 60
        with limited(0), pytest.raises(OutOfTime):
            time.sleep(0.001)
            tick()
        with limited(600):
            assert left() <= 60  # an inner limit never outlasts an outer one
        with limited(0), unlimited():
            tick()
        tick()
    assert left() == float("inf")


def test_products_in_blocks_are_the_products():
    from flint import fmpq_mat

    left_, right = (fmpq_mat(n, m, [rational(f"{k % 17}/7") for k in range(n * m)])
                    for n, m in ((40, 300), (300, 50)))  # fmt: skip
    assert product(left_, right) == left_ * right


@pytest.mark.parametrize("text", ["1e100000000", "-1e-100000000", "1e" + "9" * 5000, "7" * 9000])
def test_exponents_are_bounded_before_they_are_computed(text):
    began = time.perf_counter()
    with pytest.raises(relu.ReLUError, match="got the number .*; expected at most 4300 digits"):
        rational(text)
    assert time.perf_counter() - began < 0.5
    assert rational("1e300") == 10**300 and rational(" -2.5e-1 ") * 4 == -1


@pytest.mark.parametrize("budget", [float("nan"), -1, "5", relu.Budget(float("nan")), True])
def test_budgets_that_are_none(budget):
    net = [([[1]], [0])]
    with pytest.raises(relu.ReLUError, match="budget"):
        relu.decide(net, net, budget=budget)
    assert relu.decide(net, net, budget=float("inf")).kind == "EQUAL"
    assert relu.decide(net, net, budget=0).kind == "UNDECIDED"
