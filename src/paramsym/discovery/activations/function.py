"""A scalar function of which nothing is known but its values: domain, precision, refusals.

What is searched for symmetries must be a function of one number. That is tried before anything
else: the same value twice (no noise), the same value in any company (entrywise), one output for
each input; then where it is defined, and to how many digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .grid import stratified
from .roundings import relative_precision

CORE = 8.0  # most points are drawn in [−CORE, CORE]
NEAR = 40.0  # NaN within is the end of the domain; beyond, it is overflow
FAR = 1e3  # the farthest points


@dataclass(frozen=True)
class ScalarFunction:
    """f on an interval, evaluated in float64 or in the best precision that it takes.

    `low` and `high` are the ends of the domain, `epsilon` is its relative precision. Values are
    given in multiples of `unit`, a power of two near their size, so that c·f is treated like f;
    `typical` is the median of |f| where it is not zero, near the origin (or the end of the domain),
    in that unit.
    """

    function: Callable[[Tensor], Any]
    name: str
    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    epsilon: float = 2.0**-52
    typical: float = 1.0
    unit: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            value = self.function(z.to(self.dtype).clone())
        value = value.detach().to(torch.float64)
        return value if self.unit == 1 else value / self.unit

    @property
    def is_line(self) -> bool:
        """Whether f is defined everywhere."""
        return math.isinf(self.low) and math.isinf(self.high)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Points of the domain: three quarters near by, the rest at all magnitudes up to FAR."""
        near, far = count - count // 4, count // 4
        first = torch.rand(near, generator=generator, dtype=torch.float64)
        second = torch.rand(far, generator=generator, dtype=torch.float64)
        if self.is_line:
            sign = torch.rand(far, generator=generator, dtype=torch.float64).sub(0.5).sign()
            return torch.cat([(2 * first - 1) * CORE, sign * _between(second, 1e-6, FAR)])
        if math.isfinite(self.low) and math.isfinite(self.high):
            return self.low + (self.high - self.low) * torch.cat([first, second])
        away = torch.cat([_between(first, 1e-3, 6 * CORE), _between(second, 1e-6, FAR)])
        return self.low + away if math.isfinite(self.low) else self.high - away


def scalar_function(
    function: Callable[[Tensor], Any], generator: torch.Generator
) -> ScalarFunction:
    """Try whether a callable is a deterministic function of each entry, and where it is defined.

    Raises:
        ValueError: it is no function of tensors, mixes entries, draws random numbers, or is defined
            nowhere near the origin or on several intervals.
    """
    name = _name(function)
    probe = torch.randn(257, generator=generator, dtype=torch.float64) * 3
    f = ScalarFunction(function, name, _dtype(function, name, probe))
    _require_entrywise(f, probe)
    low, high = _domain(f)
    f = ScalarFunction(function, name, f.dtype, low, high)
    z = f.sample(512, generator)[:384]
    typical = _typical(f, z, stratified(generator))
    # exact in binary; the largest and least powers leave room for what values are multiplied by
    unit = 2.0 ** min(max(round(math.log2(typical)), -1000), 1000) if typical else 1.0
    precision = relative_precision(f, z)
    return ScalarFunction(function, name, f.dtype, low, high, precision, typical / unit, unit)


def _typical(f: ScalarFunction, near: Tensor, wide: Tensor) -> float:
    """The median of |f| near by; in all of the range where it is nothing near by (a far bump)."""
    medians: list[float] = []
    for z in (near, wide[(wide > f.low) & (wide < f.high)]):
        values = f(z)
        sizes = values[values.isfinite() & (values != 0)].abs()
        medians.append(float(sizes.median()) if len(sizes) else 0.0)
        if 5 * len(sizes) > 2 * len(z) and medians[-1] >= 1e-60 * float(sizes.max()):
            return medians[-1]
    return medians[-1]


def _between(u: Tensor, low: float, high: float) -> Tensor:
    """Log-uniform numbers."""
    return low * (high / low) ** u


def _name(function: Callable[[Tensor], Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(function, "_name", None)
    return str(name or type(function).__name__)


def _refused(name: str, came: str, what: str, instead: str) -> ValueError:
    return ValueError(f"intertwiners(function={name}): {came}; {what} was expected. {instead}")


def _dtype(function: Callable[[Tensor], Any], name: str, probe: Tensor) -> torch.dtype:
    """The best precision that the function takes."""
    problem: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        try:
            with torch.no_grad():
                value = function(probe.to(dtype))
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            problem = problem or error
            continue
        if not isinstance(value, Tensor) or value.shape != probe.shape or value.is_complex():
            came = f"shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else ""
            raise _refused(
                name,
                f"for {len(probe)} numbers came {came or type(value).__name__}",
                f"a real tensor of shape {tuple(probe.shape)}",
                "Pass a function of each entry, such as torch.tanh.",
            )
        return dtype
    raise _refused(
        name,
        f"called on a vector of {len(probe)} numbers it raised {problem!r}",
        "a real function of each entry of a tensor",
        "Wrap it, for example lambda z: your_function(z, your_arguments).",
    )


def _require_entrywise(f: ScalarFunction, probe: Tensor) -> None:
    """The same numbers again, in another order, in other company and in another shape."""
    value = f(probe)
    if not torch.equal(f(probe).nan_to_num(), value.nan_to_num()):
        raise _refused(
            f.name,
            "two calls on the same numbers gave different ones",
            "a function without random numbers or a state that changes",
            "Put a module into evaluation mode (.eval()), or pass the function without its noise.",
        )
    order = torch.arange(len(probe)).flip(0)
    trials = {
        "in another order": (probe[order], value[order]),
        "without their neighbours": (probe[:5], value[:5]),
        "one at a time": (probe[7:8], value[7:8]),
        "as a matrix": (probe[:256].view(16, 16), value[:256].view(16, 16)),
    }
    for how, (z, expected) in trials.items():
        try:
            found = f(z)
            size = float(expected[expected.isfinite()].abs().nan_to_num().sum())
            same = found.shape == z.shape and torch.allclose(
                found, expected, rtol=1e-4, atol=1e-6 * min(1.0, size), equal_nan=True
            )
        except (RuntimeError, TypeError, ValueError, IndexError):
            same = False
        if not same:
            raise _refused(
                f.name,
                f"the same numbers {how} gave other values",
                "a function of each entry by itself (softmax and normalisations are none)",
                "Pass an entrywise function; for a module that mixes units, "
                "discovery.linear_symmetries looks at the whole network.",
            )


def _domain(f: ScalarFunction) -> tuple[float, float]:
    """The interval on which f is a number: between NaNs, found by bisection."""
    grid = torch.linspace(-NEAR, NEAR, 3201, dtype=torch.float64) + 0.003186
    valid = ~f(grid).isnan()
    places = valid.nonzero().flatten()
    if not len(places):
        raise _refused(
            f.name,
            f"every value on [−{NEAR:g}, {NEAR:g}] is NaN",
            "a function with numbers near the origin",
            "Shift or scale its argument so that its domain lies there.",
        )
    first, last = int(places[0]), int(places[-1])
    if len(places) != last - first + 1:
        raise _refused(
            f.name,
            f"it is NaN at {float(grid[first:last][~valid[first:last]][0]):g} and a number on both "
            "sides",
            "a function defined on one interval",
            "Pass its branches one by one.",
        )
    low = -math.inf if first == 0 else _end(f, float(grid[first]), float(grid[first - 1]))
    high = math.inf if last == len(grid) - 1 else _end(f, float(grid[last]), float(grid[last + 1]))
    return low, high


def _end(f: ScalarFunction, inside: float, outside: float) -> float:
    """Where numbers end; a short decimal where one lies within the error of the bisection."""
    for _ in range(80):
        middle = (inside + outside) / 2
        if bool(f(torch.tensor([middle], dtype=torch.float64)).isnan()):
            outside = middle
        else:
            inside = middle
    neat = round(inside, 6) + 0.0
    return neat if abs(neat - inside) < 1e-9 * max(1, abs(inside)) else inside
