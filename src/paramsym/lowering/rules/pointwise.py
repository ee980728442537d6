"""Entrywise functions, typed by their degree of homogeneity and their parity.

The table states, for each function f, the d with f(s·x) = s^d·f(x) for s > 0 (None if there is
none) and whether f is odd, even or neither. A function whose behaviour depends on its arguments
(a leaky slope, a clipping range, an exponent) reads them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.numbers import as_numbers
from paramsym.lowering.recognisers.context import Context
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.placement import rescaled
from paramsym.primitives.gains import gain_of
from paramsym.recording.graph import Call, Graph, Value

_FUNCTIONS: dict[str, tuple[Fraction | int | None, str]] = {
    "relu": (1, "pin"), "leaky_relu": (1, "pin"),
    "abs": (1, "even"), "sign": (0, "odd"), "sgn": (0, "odd"), "square": (2, "even"),
    "sqrt": (Fraction(1, 2), "pin"), "rsqrt": (Fraction(-1, 2), "pin"), "reciprocal": (-1, "odd"),
    **dict.fromkeys(
        ("tanh", "sin", "sinh", "asinh", "atan", "tan", "erf", "softsign", "tanhshrink",
         "hardshrink", "softshrink", "asin", "atanh", "arctan", "arcsin", "arcsinh", "arctanh",
         "round", "trunc", "sinc_odd"),
        (None, "odd"),
    ),
    **dict.fromkeys(("cos", "cosh", "sinc"), (None, "even")), "angle": (0, "pin"),
    **dict.fromkeys(
        ("gelu", "silu", "swish", "sigmoid", "softplus", "elu", "selu", "celu", "mish",
         "hardswish", "hardsigmoid", "logsigmoid", "relu6", "exp", "exp2", "expm1", "log", "log2",
         "log10", "log1p", "erfc", "acos", "acosh", "ceil", "floor", "logit", "isnan", "isinf",
         "isfinite", "logical_not", "bitwise_not", "frac", "digamma", "lgamma",
         "log_sigmoid", "bernoulli", "bool", "int", "long", "byte"),
        (None, "pin"),
    ),
}  # fmt: skip


def _register(name: str, degree: Fraction | int | None, sign: str) -> None:
    @rule(name)
    def apply(build: Builder, call: Call) -> Tensor:
        (x,) = build.arguments(call, "input|self")
        return build.unary(x, degree, sign, name=name, **build.again(call, call.operands[0]))


for _name, (_degree, _sign) in _FUNCTIONS.items():
    _register(_name, _degree, _sign)


@rule("threshold", "_threshold")
def threshold(build: Builder, call: Call) -> Tensor:
    x, at, value = build.arguments(call, "input|self", "threshold", "value")
    facts = build.again(call, call.operands[0])
    return build.unary(x, 1 if at == 0 and value == 0 else None, name="threshold", **facts)


@rule("nan_to_num")
def nan_to_num(build: Builder, call: Call) -> Tensor:
    """Numbers stay, and what is none is filled in: by zero, which has every scale."""
    x, nan = build.arguments(call, "input|self", "nan", nan=0.0)
    facts = build.again(call, call.operands[0])
    degree, sign = (1, "odd") if nan in (None, 0) else (None, "pin")
    return build.unary(x, degree, sign, name="nan_to_num", **facts)


_BOUNDS = {
    "clamp": ("min?", "max?"), "clamp_min": ("min",), "clamp_max": ("max",),
    "hardtanh": ("min_val", "max_val"),
}  # fmt: skip


@rule(*_BOUNDS)
def clamp(build: Builder, call: Call) -> Tensor | None:
    x, *bounds = build.arguments(call, "input|self", *_BOUNDS[call.name], min_val=-1.0, max_val=1.0)
    low, high = (None, *bounds) if call.name == "clamp_max" else (*bounds, None)[:2]
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return _between(build, call, x, [bound for bound in (low, high) if bound is not None])
    one_sided = (low == 0 and high is None) or (high == 0 and low is None)
    odd = low is not None and high is not None and low == -high and high >= 0  # else constant
    sign, facts = "odd" if odd else "pin", build.again(call, call.operands[0])
    return build.unary(x, 1 if one_sided else None, sign, name="clamp", **facts)


def _between(build: Builder, call: Call, x: Tensor, bounds: list[Any]) -> Tensor | None:
    """A maximum or minimum of tensors; a number among the bounds would hold what is compared."""
    if not all(isinstance(bound, Tensor) for bound in bounds):
        return None
    return build.same([x, *bounds], linear=False, **build.again(call, *call.operands))


@rule("prelu")
def prelu(build: Builder, call: Call) -> Tensor:
    """max(0, x) − a·max(0, −x) with a learned slope a per channel."""
    x, slope = build.arguments(call, "input|self", "weight")
    positive = build.unary(x, 1, name="relu")
    negative = build.unary(build.unary(x, linear=True, factor=-1.0), 1, name="relu")
    labels = list(range(x.ndim))
    channel = 1 if x.ndim > 1 else 0
    if slope.ndim and slope.shape[0] == 1:
        slope = build.reshape(slope, ())
    negative = build.contract(negative, slope, labels, [channel] * slope.ndim, labels, power=1)
    return build.same([positive, negative], x.shape, signs=(1, -1))


@rule("glu")
def glu(build: Builder, call: Call) -> Tensor:
    x, dim = build.arguments(call, "input|self", "dim", dim=-1)
    half = x.shape[dim] // 2
    gate = build.unary(build.narrow(x, dim, half, half), None, name="sigmoid")
    return build.multiply(build.narrow(x, dim, 0, half), gate)


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "native_dropout",
      "alpha_dropout", "feature_alpha_dropout")  # fmt: skip
def dropout(build: Builder, call: Call) -> Tensor:
    """A random entrywise factor; the alpha kinds also replace what they drop by a constant."""
    standard = call.name in ("dropout", "native_dropout") or call.target is not getattr(
        torch.nn.functional, call.name, None
    )
    x, p, training = build.arguments(
        call, "input|self", "p", "training|train", p=0.5, training=standard
    )
    if not training or p == 0:
        return build.alias(x)
    build.is_random(call)
    affine = "alpha" in call.name
    return build.unary(x, None if affine else 1, "pin" if affine else "odd", name=call.name)


@rule("rrelu")
def rrelu(build: Builder, call: Call) -> Tensor:
    """A leaky ReLU whose slope is random in training."""
    x, _, _, training = build.arguments(
        call, "input|self", "lower", "upper", "training", lower=0.125, upper=1 / 3, training=False
    )
    if training:
        build.is_random(call)
    facts = {} if training else build.again(call, call.operands[0])
    return build.unary(x, 1, name="rrelu", **facts)


# -- several operands --------------------------------------------------------------------------


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _scaled(build: Builder, x: Tensor, factor: Any) -> Tensor:
    if isinstance(factor, complex):  # linear, but the later passes count with real factors
        if factor.imag:
            return build.unary(x, 1, "odd", name="mul", compute=lambda t: factor * t)
        factor = factor.real
    return build.unary(x, linear=True, factor=float(factor))


@rule("add", "sub", "rsub")
def add(build: Builder, call: Call) -> Tensor:
    x, y, alpha = build.arguments(call, "input|self", "other", "alpha", alpha=1)
    signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.name]
    x, y = as_numbers(build, x, y)
    if not _is_tensor(x):
        x, y, signs = y, x, signs[::-1]
    if not _is_tensor(y):
        if y == 0:
            return _scaled(build, x, signs[0])
        if signs[0] == -1 and _is_gain(x) and not isinstance(y, complex):
            # c - γ = -(γ - c): the other gate of a mixture γ·x + (1 - γ)·y is a gain, too
            return _scaled(build, build.shifted_origin(x, float(-y * signs[1])), -1)
        if signs[0] != 1:
            x = _scaled(build, x, signs[0])
        if isinstance(y, complex):
            number = y * signs[1]
            return build.unary(x, None, name="shift", compute=lambda t: t + number)
        constant = float(y * signs[1])
        return build.shifted_origin(x, constant) if _is_gain(x) else build.unary(
            x, None, name="shift", shift=constant
        )  # fmt: skip
    if x.zero or y.zero:
        kept, sign = (y, signs[1]) if x.zero else (x, signs[0])
        shape = call.outputs[0].shape
        return build.same([kept], shape, signs=(sign,))
    return build.same([x, y], signs=signs)


@rule("lerp")
def lerp(build: Builder, call: Call) -> Tensor:
    """(1 − w)·x + w·y: a sum for a number w, any function of its operands for a tensor."""
    x, y, weight = build.arguments(call, "input|self", "end", "weight")
    if _is_tensor(weight):
        return pointwise(build, call)
    return build.same([x, y], call.outputs[0].shape, signs=(1 - weight, weight))


def _is_gain(x: Tensor) -> bool:
    """Whether x is a vector of parameters: γ may be stored as γ − 1."""
    found = gain_of(x)
    return found is not None and found.power == 1


@rule("neg", "positive")
def negative(build: Builder, call: Call) -> Tensor:
    (x,) = build.arguments(call, "input|self")
    return _scaled(build, x, -1 if call.name == "neg" else 1)


@rule("mul")
def multiply(build: Builder, call: Call) -> Tensor:
    x, y = as_numbers(build, *build.arguments(call, "input|self", "other"))
    if not _is_tensor(x):
        x, y = y, x
    if not _is_tensor(y):
        return _scaled(build, x, y)
    return rescaled(build, x, y, False) or rescaled(build, y, x, False) or build.multiply(x, y)


@rule("div", "rdiv")
def divide(build: Builder, call: Call) -> Tensor:
    x, y = build.arguments(call, "input|self", "other")
    if call.kwargs.get("rounding_mode") is not None:
        return pointwise(build, call)
    if call.name == "rdiv":
        x, y = y, x
    x, y = as_numbers(build, x, y)
    if not _is_tensor(y):
        return pointwise(build, call) if y == 0 else _scaled(build, x, 1 / y)
    if not _is_tensor(x):
        return _scaled(build, build.unary(y, -1, "odd", name="reciprocal"), x)
    return rescaled(build, x, y, True) or build.multiply(x, y, divide=True)


@rule("pow", "rpow")
def power(build: Builder, call: Call) -> Tensor:
    x, exponent = build.arguments(call, "input|self", "exponent|other")
    real = isinstance(exponent, (int, float)) and math.isfinite(exponent)
    if call.name == "rpow" or not _is_tensor(x) or not real:
        return pointwise(build, call)
    if exponent == 1:
        return build.alias(x)
    degree = Fraction(exponent).limit_denominator(1 << 16)
    if abs(degree - Fraction(exponent)) > 1e-15 * abs(exponent):
        degree = Fraction(exponent)  # not a short fraction that a float rounds
    facts = build.again(call, call.operands[0])
    if degree.denominator > 1:
        return build.unary(x, degree, "pin", name="pow", **facts)
    parity = "even" if degree % 2 == 0 else "odd"
    return build.unary(x, degree, parity, name="square" if degree == 2 else "pow", **facts)


@rule("maximum", "minimum", "fmax", "fmin")
def maximum(build: Builder, call: Call) -> Tensor:
    x, y = build.arguments(call, "input|self", "other")
    return build.same([x, y], linear=False, **build.again(call, *call.operands))


@rule("where", "masked_fill")
def where(build: Builder, call: Call) -> Tensor | None:
    if call.name == "masked_fill":
        y, mask, x = build.arguments(call, "input|self", "mask", "value")
    else:
        mask, x, y = build.arguments(call, "condition", "input|self", "other")
    shape = call.outputs[0].shape
    choices: list[tuple[Tensor, bool]] = []  # with the value of the mask where each is taken
    fills: list[float] = []
    for item, taken in ((x, True), (y, False)):
        number = _number(build, item)
        if number is None:
            choices.append((item, taken))
        else:
            fills.append(number)
    if mask.moves:
        mask = build.unary(mask, None, name="compare", compute=torch.clone)
    if not choices:
        made = build.unary(mask, None, name=call.name, compute=lambda m: torch.where(m, *fills))
        return made if made.shape == shape else build.same([made], shape)
    fill = fills[0] if fills else 0.0
    hides = fill < -1e3 and _hidden_by_softmax(build, call)
    if fill and not hides:  # a number that is seen has no scale
        choices = [
            (build.unary(t, None, name=call.name, compute=torch.clone), taken)
            for t, taken in choices
        ]
    choices.sort(key=lambda choice: (-choice[0].ndim, not choice[0].moves))
    parts = [
        build.contract(
            item, mask, *_broadcast(item, mask), mask=True, hides=hides, keeps=keeps, fill=fill
        )
        for item, keeps in choices
    ]  # what is taken from one operand is zero in the part of the other
    return parts[0] if [part.shape for part in parts] == [shape] else build.same(parts, shape)


def _number(build: Builder, item: Any) -> float | None:
    """The value of a constant scalar, also of one that was made by a factory."""
    if not isinstance(item, Tensor):
        return float(item)
    if item.zero:
        return 0.0
    if item.moves or item.ndim or item.value is None:
        return None
    return Context(build.graph).number(item.value)


_STEPS = {"add", "sub", "mul", "div", "to", "float", "double", "half", "bfloat16", "clone", "alias",
          "contiguous", "dropout", "where", "masked_fill", "type_as", "detach", "copy", "view",
          "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "transpose", "permute",
          "flatten", "unflatten", "native_dropout", "partial_write"}  # fmt: skip


_READERS: WeakKeyDictionary[Graph, dict[int, list[Call]]] = WeakKeyDictionary()


def _readers(graph: Graph) -> dict[int, list[Call]]:
    """The calls that read each value of a graph, by its id."""
    if graph not in _READERS:
        found = _READERS[graph] = defaultdict(list)
        for call in graph.calls:
            for value in call.operands:
                found[value.id].append(call)
    return _READERS[graph]


def _hidden_by_softmax(build: Builder, call: Call) -> bool:
    """Whether every reader of a filled tensor is a softmax, up to copies, masks and biases."""
    stack, seen = list(call.outputs), set()
    while stack:
        value = stack.pop()
        if value.id in seen or value.id not in build.alive:
            continue
        seen.add(value.id)
        if value in build.graph.outputs:
            return False
        for reader in _readers(build.graph)[value.id]:
            if reader.name in _STEPS or all(v.storage == value.storage for v in reader.outputs):
                stack.extend(reader.outputs)
            elif not _is_hidden_in(reader, value):
                if any(v.id in build.alive for v in reader.outputs):
                    return False
    return True


def _is_hidden_in(reader: Call, value: Value) -> bool:
    """Whether a call takes a value through a softmax: of scores, or as a mask of them."""
    masked = reader.name == "scaled_dot_product_attention" and value not in reader.args[:3]
    return masked or reader.name == "softmax"


def _broadcast(x: Tensor, y: Tensor) -> tuple[list[int], list[int], list[int]]:
    ndim = max(x.ndim, y.ndim)
    return list(range(ndim - x.ndim, ndim)), list(range(ndim - y.ndim, ndim)), list(range(ndim))


@rule(
    "gt", "ge", "lt", "le", "eq", "ne", "__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__"
)  # fmt: skip
def comparison(build: Builder, call: Call) -> Tensor:
    """x > y, the sign of a difference: of two tensors that move it sees no common scale."""
    x, y = build.arguments(call, "input|self", "other")
    floating = all(v.dtype.is_floating_point for v in call.operands)
    if len(call.operands) != 2 or not floating or not (x.moves and y.moves):
        return pointwise(build, call)
    difference = build.same([x, y], call.outputs[0].shape, signs=(1, -1))
    name = call.name.strip("_")
    compare, sign = getattr(torch, name), "even" if name in ("eq", "ne") else "pin"
    return build.unary(difference, 0, sign, name=call.name, compute=lambda d: compare(d, 0))


@rule(
    "logical_and", "logical_or", "bitwise_and", "bitwise_or", "remainder", "fmod",
    "atan2", "polar", "floor_divide", "floordiv", "mod", "logaddexp", "heaviside", "hypot", "xlogy",
    "addcmul", "addcdiv",
)  # fmt: skip
def pointwise(build: Builder, call: Call) -> Tensor:
    """Any other entrywise function: the operands count the same units and keep their scale."""
    values = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Value)]
    pinned = [
        build.unary(build.tensor(v), None, name=call.name, compute=torch.clone) for v in values
    ]
    facts = build.again(call, *values)
    shape = call.outputs[0].shape
    return build.same(pinned, shape, linear=False, homogeneous=False, **facts)
