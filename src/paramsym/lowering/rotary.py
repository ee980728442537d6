"""Rotary embeddings, found by what they compute and not by what they are called.

Between a projection and the attention scores, positions enter by a rotation of pairs of
coordinates: with z = x_i + i·x_j, the result is c·z for a complex factor c that depends on the
position only. Implementations differ (half-split or interleaved pairs, cosine and sine tables or
complex numbers, `cat`, `stack`), so every sum or concatenation that is a *linear function with
constant coefficients of one earlier tensor* is evaluated at random points and compared with that
form. If it fits, it becomes one primitive, which commutes with complex scalings of each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.lowering.data import Evaluator, led_from, moving_values
from paramsym.primitives.numbers import can_run
from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.replay import is_drawn

_VIEWS = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "getitem", "slice",
    "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "flatten", "unflatten",
    "expand", "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "alias",
    "view_as", "movedim", "view_as_complex", "view_as_real", "flip", "roll", "real", "imag", "T",
    "mT", "t", "expand_as", "reshape_as", "tensor_split", "dropout", "_assert_tensor_metadata",
}  # fmt: skip
_SUMS = {"add", "sub", "cat", "stack", "view_as_real", "addcmul"}
_PRODUCTS = {"mul", "div"}
_LINEAR = _VIEWS | _SUMS | _PRODUCTS | {"neg"}
_ORDERS = [("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half"),
           ("half", "interleaved")]  # fmt: skip
_LONGEST = 40  # calls of one region
_LIMIT = 1 << 24  # entries of the largest tensor that is evaluated


@dataclass(frozen=True)
class Rotation:
    """`calls` turn pairs of `source` along `dim` into `output`; angles see the axes `varies`.

    The members of a pair stand next to each other ("interleaved") or half of the axis apart
    ("half"); what comes out may have them in the other `order` than what goes in.
    """

    source: Value
    output: Value
    calls: list[Call]
    dim: int
    layout: str
    order: str
    varies: list[int]


def find_rotations(graph: Graph, moving: set[int]) -> dict[int, Rotation]:
    """All rotations of a graph, by the index of the call that finishes each."""
    found: dict[int, Rotation] = {}
    evaluator = Evaluator(graph, invents=True)
    fingerprints = _Fingerprints(moving)
    cache: dict[Any, tuple[int, str, str, list[int]] | None] = {}
    taken: set[int] = set()
    for call in graph.calls:
        if call.name not in _SUMS or len(call.outputs) != 1 or call.outputs[0].id not in moving:
            continue
        region = _region(call, moving, taken)
        if region is None:
            continue
        source, calls = region
        if not _counts_alike(call.outputs[0], source) or _entries(source) > _LIMIT:
            continue
        key = fingerprints.of(source, calls)
        if key not in cache:
            cache[key] = _probe(evaluator, source, call.outputs[0], calls)
        if (fit := cache[key]) is not None:
            found[call.index] = Rotation(source, call.outputs[0], calls, *fit)
            taken.add(call.outputs[0].id)
    return found


def turning_constants(graph: Graph) -> dict[str, str]:
    """Buffers of the state dict, and parameters that are not trained, that have to stay for pairs
    to turn, such as the frequencies of a rotary embedding or its table of sines, with the reason:
    what turns pairs of coordinates is no number beside them.
    """
    frozen = (value for value in graph.parameters.values() if value.name in graph.frozen)
    buffers = {
        value.id: value.name for value in [*graph.buffers.values(), *frozen]
        if value.name not in graph.held and value.dtype.is_floating_point
    }  # fmt: skip
    if not buffers:
        return {}
    given = moving_values(graph, buffers.values())
    found: dict[str, str] = {}
    for rotation in find_rotations(graph, given).values():
        sources = {v.id for call in rotation.calls for v in call.operands if v.id not in given}
        why = f"it turns pairs of coordinates at {rotation.calls[-1].where}"
        found |= {buffers[at]: why for at in led_from(graph, sources) if at in buffers}
    return found


def _counts_alike(output: Value, source: Value) -> bool:
    """Whether two values have the same axes, up to one of the source that is two of the output."""
    if output.shape == source.shape:
        return True
    joined = (
        (*output.shape[:k], output.shape[k] * output.shape[k + 1], *output.shape[k + 2 :])
        for k in range(len(output.shape) - 1)
        if 2 in output.shape[k : k + 2]
    )
    return tuple(source.shape) in joined


def _entries(value: Value) -> int:
    count = 1
    for n in value.shape:
        count *= n
    return count


def _region(call: Call, moving: set[int], taken: set[int]) -> tuple[Value, list[Call]] | None:
    """The linear calls behind `call` back to the nearest single real tensor, if there is one.

    The frontier is pushed back through its latest member until one value is left.
    """
    calls = {call.index: call}
    frontier = {v.id: v for v in _moving_operands(call, moving)}
    multiplied = call.name == "addcmul"
    while not multiplied or not _is_one_real(frontier.values()):
        latest = max(frontier.values(), key=lambda v: v.id, default=None)
        previous = None if latest is None or latest.id in taken else latest.call
        if previous is None or len(calls) > _LONGEST or not _is_linear(previous, moving):
            return None
        multiplied = multiplied or (previous.name in _PRODUCTS and len(previous.operands) == 2)
        calls[previous.index] = previous
        for output in previous.outputs:
            frontier.pop(output.id, None)
        frontier.update({v.id: v for v in _moving_operands(previous, moving)})
    (source,) = frontier.values()
    return source, [calls[k] for k in sorted(calls)]


def _is_one_real(values: Collection[Value]) -> bool:
    return len(values) == 1 and not any(value.dtype.is_complex for value in values)


def _moving_operands(call: Call, moving: set[int]) -> list[Value]:
    return [v for v in call.operands if v.id in moving]


def _is_linear(call: Call, moving: set[int]) -> bool:
    """Whether a call is linear in what moves among its operands: of a product, one factor."""
    if call.name in _PRODUCTS:
        return len(_moving_operands(call, moving)) == 1
    return call.name in _LINEAR


class _Fingerprints:
    """Regions with equal fingerprints compute the same function: layers repeat."""

    def __init__(self, moving: set[int]):
        self.moving = moving
        self.data: dict[int, int] = {}  # value -> the first that is made of the same data alike
        self.first: dict[Any, int] = {}

    def of(self, source: Value, calls: list[Call]) -> Any:
        """The calls of a region with their arguments, up to the names of what moves."""
        names = {source.id: -1}

        def name(leaf: Value) -> Any:
            if leaf.id in self.moving:
                return "v", names.setdefault(leaf.id, len(names)), leaf.shape
            return "c", self._datum(leaf)

        steps = (
            (c.name, _spelled(c.args, name), _spelled(c.kwargs, name), tuple(map(name, c.outputs)))
            for c in calls
        )
        return source.shape, source.strides, tuple(steps)

    def _datum(self, value: Value) -> int:
        found = self.data.get(value.id)
        if found is None:
            call, found = value.call, value.id
            if call is not None and len(call.outputs) == 1 and not _draws(call):
                given = call.args, call.kwargs
                key = (call.name, value.dtype, value.shape, _spelled(given, self._datum))
                found = self.first.setdefault(key, value.id)
            self.data[value.id] = found
        return found


def _draws(call: Call) -> bool:
    """Whether another run of a call may give other numbers."""
    return not can_run(call) or is_drawn(call)


def _spelled(tree: Any, name: Callable[[Value], Any]) -> Any:
    """Arguments of a call as a key, with a name for each value."""
    if isinstance(tree, Value):
        return name(tree)
    if isinstance(tree, (tuple, list)):
        return tuple(_spelled(x, name) for x in tree)
    if isinstance(tree, dict):
        return tuple((k, _spelled(v, name)) for k, v in tree.items())
    return repr(tree)


def _probe(evaluator: Evaluator, source: Value, output: Value, calls: list[Call]):
    """Fit `output = c·source` on pairs at one random point and check it at two others."""

    def run(x: torch.Tensor) -> torch.Tensor:
        known = {source.id: x}
        for call in calls:
            evaluator.run(call, known)
        return known[output.id].double().reshape(source.shape)

    generator = torch.Generator().manual_seed(1)
    dtype = source.dtype if source.dtype.is_floating_point else torch.float32
    xs = [torch.randn(source.shape, generator=generator).to(dtype) for _ in range(3)]
    try:
        ys = [run(x) for x in xs]
    except Exception:  # a region that cannot be evaluated is simply not recognised
        return None
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9 if dtype == torch.float64 else 0.05
    for dim in reversed(range(len(source.shape))):
        if source.shape[dim] % 2:
            continue
        for layout, order in _ORDERS:
            zs = [_pair(x.double(), dim, layout) for x in xs]
            ws = [_pair(y, dim, order) for y in ys]
            factor = _common_factor(zs, ws, tolerance)
            if factor is not None:
                return dim, layout, order, _varying_axes(factor, tolerance)
    return None


def _common_factor(
    zs: list[torch.Tensor], ws: list[torch.Tensor], tolerance: float
) -> torch.Tensor | None:
    """The c with w = c·z for every pair (z, w), unless it is real: that is no rotation."""
    factor = ws[0] / zs[0]
    if torch.allclose(factor.imag, torch.zeros(()).double(), atol=tolerance):
        return None
    errors = [(w - factor * z).abs().max() for w, z in zip(ws[1:], zs[1:], strict=True)]
    return factor if max(errors) < tolerance * 30 else None


def _varying_axes(factor: torch.Tensor, tolerance: float) -> list[int]:
    """The axes along which a factor is not the same everywhere."""
    return [
        k
        for k in range(factor.ndim)
        if factor.shape[k] > 1 and (factor - factor.narrow(k, 0, 1)).abs().max() > tolerance
    ]


def _pair(x: torch.Tensor, dim: int, layout: str) -> torch.Tensor:
    """Pairs of real coordinates along an axis as complex numbers."""
    sizes = (2, x.shape[dim] // 2) if layout == "half" else (x.shape[dim] // 2, 2)
    split = x.unflatten(dim, sizes).movedim(dim if layout == "half" else dim + 1, -1)
    return torch.complex(split[..., 0], split[..., 1])
