"""One source of chance: a generator is an argument, never a global."""

from __future__ import annotations

import random
from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.errors import ReLUError


def randomness(source: Any = 0) -> random.Random:
    """A `random.Random` from an integer seed, a `torch.Generator`, a NumPy generator or itself."""
    if isinstance(source, random.Random):
        return source
    if isinstance(source, int):
        return random.Random(source)
    if hasattr(source, "integers"):
        return random.Random(int(source.integers(2**62)))
    if type(source).__name__ == "Generator" and hasattr(source, "manual_seed"):
        import torch

        return random.Random(int(torch.randint(2**62, (1,), generator=source)))
    raise ReLUError(
        f"{type(source).__name__}",
        "an integer seed, a torch.Generator or a random.Random",
        "relu (generator=...)",
        "Pass for example torch.Generator().manual_seed(0).",
    )


def generic(rng: random.Random, positive: bool = False) -> fmpq:
    """A random rational of moderate size with the prime denominator 9973.

    Small integers meet accidental cancellations (24/5·3/5 = 18/5·4/5); these do not.
    """
    while True:
        value = fmpq(rng.randint(1 if positive else -29999, 29999), 9973)
        if value:
            return value


def factor(rng: random.Random) -> fmpq:
    """A random positive scale: a ratio of small integers."""
    return fmpq(rng.randint(1, 12), rng.randint(1, 12))
