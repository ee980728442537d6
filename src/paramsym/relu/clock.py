"""One clock for every step of a decision: a deadline that any loop can ask about.

A decision passes through a dozen modules whose inner loops may each be the one that never ends.
Instead of handing a deadline to each, `limited` sets it for everything called inside, and every
loop calls `tick`, which raises `OutOfTime` once it has passed. Limits nest: an inner one never
outlasts an outer one. Without a limit `tick` does nothing, so that the parts stay usable alone.
Long calls into compiled code are cut into pieces of a fraction of a second with a `tick` between
them (`rationals.product`, `Network.evaluate`), which is also what lets an interrupt through.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


class OutOfTime(Exception):
    """The budget ended inside a step."""


def tick() -> None:
    """Raise `OutOfTime` if the deadline has passed."""
    if time.perf_counter() > _DEADLINE.get():
        raise OutOfTime


def left() -> float:
    """Seconds until the deadline; inf without one."""
    return _DEADLINE.get() - time.perf_counter()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Everything called inside ends after `seconds`, or earlier if a limit outside says so."""
    token = _DEADLINE.set(min(_DEADLINE.get(), time.perf_counter() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


@contextmanager
def unlimited() -> Iterator[None]:
    """No limit inside: for the one evaluation that turns a witness into a verdict."""
    token = _DEADLINE.set(math.inf)
    try:
        yield
    finally:
        _DEADLINE.reset(token)
