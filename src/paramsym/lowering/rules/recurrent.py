"""Recurrent layers, written as one step of their cell with the state tied to itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.linear import project
from paramsym.primitives import Opaque, Tie, untold
from paramsym.primitives import index as ix
from paramsym.recording.graph import Call, Value


def _gates(build: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, size: int):
    """What an input or a state contributes to each gate."""
    return [
        project(
            build, x, build.narrow(weight, 0, at, size), bias and build.narrow(bias, 0, at, size)
        )
        for at in range(0, weight.shape[0], size)
    ]


def _lstm(build: Builder, left: list[Tensor], right: list[Tensor], states: list[Tensor]):
    i, f, g, o = (build.same([a, b]) for a, b in zip(left, right, strict=True))
    i, f, o = (build.unary(t, None, name="sigmoid") for t in (i, f, o))
    g = build.unary(g, None, "odd", name="tanh")
    c = build.same([build.multiply(f, states[1]), build.multiply(i, g)])
    return [build.multiply(o, build.unary(c, None, "odd", name="tanh")), c]


def _gru(build: Builder, left: list[Tensor], right: list[Tensor], states: list[Tensor]):
    r, z = (build.unary(build.same([left[k], right[k]]), None, name="sigmoid") for k in (0, 1))
    n = build.unary(build.same([left[2], build.multiply(r, right[2])]), None, "odd", name="tanh")
    # 1 - z, another gate with values in (0, 1)
    rest = build.unary(z, None, name="sigmoid", compute=lambda t: 1 - t)
    return [build.same([build.multiply(rest, n), build.multiply(z, states[0])])]


def _tanh(build: Builder, left: list[Tensor], right: list[Tensor], states: list[Tensor]):
    return [build.unary(build.same([*left, *right]), None, "odd", name="tanh")]


def _relu(build: Builder, left: list[Tensor], right: list[Tensor], states: list[Tensor]):
    return [build.unary(build.same([*left, *right]), 1, name="relu")]


_CELLS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}


def _step(build: Builder, kind: str, x: Tensor, states: list[Tensor], weights: Sequence[Tensor]):
    """The states after one step of a cell; one weight more than pairs projects what it puts out."""
    w, u, *biases = weights
    projection = biases.pop() if len(weights) % 2 else None
    b, c = biases or (None, None)
    size = states[-1].shape[-1]  # of an LSTM this is the cell, which is not projected
    left, right = _gates(build, x, w, b, size), _gates(build, states[0], u, c, size)
    out, *rest = _CELLS[kind](build, left, right, states)
    return [out if projection is None else project(build, out, projection), *rest]


def _state(build: Builder, given: Tensor, at: int, batch: int) -> Tensor:
    """A hidden state whose units are still free, or the given initial state if it is not zero."""
    size = given.shape[-1]
    made = build.new((batch, size), [ix.leaf(batch, frozen="it is a batch"), ix.leaf(size)])
    made.kind = "state"
    if not given.zero:
        initial = build.select(given, 0, at)
        for axis in (-1, -2)[: initial.ndim]:
            if made.shape[axis] == initial.shape[axis] > 1:
                build.unify(made.axes[axis], initial.axes[axis])
        if initial.moves:
            build.emit(Tie, made, [initial])
        else:
            build.emit(Opaque, made, [initial], reason="the initial state is data")
        made.moves = True
    return made


def _tied(build: Builder, kind: str, x: Tensor, states: list[Tensor], weights: Sequence[Tensor]):
    """The states after one step of a cell, tied to those before it."""
    results = _step(build, kind, x, states, weights)
    tied = [build.tie(after, before) for before, after in zip(states, results, strict=True)]
    build.anchors += tied  # the next step reads every state, whatever the outputs are
    return tied


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(build: Builder, call: Call) -> Any:
    """`torch.lstm(input, hx, weights, has_biases, layers, dropout, train, bidirectional,
    batch_first)` and its siblings."""
    if not isinstance(call.args[3], bool):
        return _packed(build, call)
    x, given, weights = (build.lift(item) for item in call.args[:3])
    biases, layers, dropped, training, two_way, batch_first = call.args[3:9]
    if dropped and training and layers > 1:
        build.is_random(call)
    ways = 1 + two_way
    per = len(weights) // (layers * ways)  # two or four, and a projection
    cells = [weights[k : k + per] for k in range(0, len(weights), per)]
    given = given if isinstance(given, (tuple, list)) else [given]
    time = int(x.ndim == 3 and batch_first)
    rows, states = _layers(build, call.name, _any_step(build, x, time), given, cells, ways)
    output, *finals = call.result
    made = [_repeat_time(build, rows, output.shape, time)]
    return made + [_finals(build, v, s) for v, s in zip(finals, states, strict=True)]


def _packed(build: Builder, call: Call) -> Any:
    """The rows of a packed sequence, which are ordered by time, in the place of a padded batch:
    `torch.lstm(rows, sizes, hx, weights, has_biases, layers, dropout, train, bidirectional)`."""
    x, _, given, weights = (build.lift(item) for item in call.args[:4])
    biases, layers, dropped, training, two_way = call.args[4:9]
    given = given if isinstance(given, (tuple, list)) else [given]
    per, ways, batch = 2 + 2 * biases, 1 + two_way, given[0].shape[1]
    if len(weights) != per * layers * ways or not all(state.zero for state in given):
        return None
    if dropped and training and layers > 1:
        build.is_random(call)
    cells = [weights[k : k + per] for k in range(0, len(weights), per)]
    rows = build.mix(x, [0], (1, x.shape[1]), how="mean") if x.moves else build.narrow(x, 0, 0, 1)
    rows, states = _layers(build, call.name, rows, given, cells, ways, batch)
    output, *finals = call.result
    once = build.mix(rows, [0], (1, rows.shape[1]), how="mean") if batch > 1 else rows
    made = [_repeat_time(build, once, output.shape, 0)]
    return made + [_finals(build, v, s) for v, s in zip(finals, states, strict=True)]


def _layers(
    build: Builder, kind: str, rows: Tensor, given: Sequence[Tensor],
    cells: list[Sequence[Tensor]], ways: int, batch: int | None = None,
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:  # fmt: skip
    """What the last layer puts out at one time, and the states of all cells by their kind."""
    last: list[list[Tensor]] = []
    for at, weights in enumerate(cells):
        states = [_state(build, g, at, batch or rows.shape[0]) for g in given]
        last.append(_tied(build, kind, rows, states, weights))
        if (at + 1) % ways == 0:  # the next layer reads all directions
            rows = _joined(build, [states[0] for states in last[-ways:]], 1)
    return rows, list(zip(*last, strict=True))


def _any_step(build: Builder, x: Tensor, time: int) -> Tensor:
    """A sequence at one time, as (batch, feature): every step goes through the same cell."""
    once = [1 if k == time else n for k, n in enumerate(x.shape)]
    rows = build.mix(x, [time], once, how="mean") if x.moves else x
    return build.select(rows, time, 0) if x.ndim == 3 else build.narrow(rows, 0, 0, 1)


def _joined(build: Builder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else build.concatenate(tensors, dim)


def _finals(build: Builder, value: Value, states: Sequence[Tensor]) -> Tensor | None:
    """Final states of all cells, stacked; those that are read one by one stay untied."""
    windows = _windows(build, value)
    if windows is None:
        stack = _joined(build, [build.reshape(s, (1, *s.shape)) for s in states], 0)
        return build.reshape(stack, value.shape)
    for window in windows:
        at, start = divmod(window.offset, value.strides[0])
        made = build.view(build.alias(states[at]), window.shape, window.strides, start)
        made.value = window
        build.tensors[window.id] = made
    return None


def _windows(build: Builder, value: Value) -> list[Value] | None:
    """The windows through which a stack is read, if each of them shows one entry of it."""
    graph = build.graph
    if value in graph.outputs or any(_copies(call, value) for call in graph.calls):
        return None
    alive = [v for v in graph.values if v.storage == value.id and v.id in build.alive]
    windows = [v for v in alive if v is not value]
    return windows if all(_shows_one(v, value.strides[0]) for v in windows) else None


def _copies(call: Call, value: Value) -> bool:
    """Whether a call reads a tensor as a whole, and is no view of it."""
    return value in call.operands and bool(call.outputs) and call.outputs[0].storage != value.id


def _shows_one(window: Value, slab: int) -> bool:
    """Whether a window stays in one of the pieces of equal length that a storage is made of."""
    reach = sum((n - 1) * s for n, s in zip(window.shape, window.strides, strict=True))
    return window.offset % slab + reach < slab


def _repeat_time(build: Builder, x: Tensor, shape: Sequence[int], time: int) -> Tensor:
    """The state of one step as a sequence of states, which are not the same at all times."""
    once = build.reshape(x, [1 if k == time else n for k, n in enumerate(shape)])
    # what passes at one time passes at each; what is constant in the state is not in the sequence
    return build.mix(once, [time], shape, compute=untold)


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(build: Builder, call: Call) -> list[Tensor]:
    x, state, *weights = (build.lift(item) for item in call.args)
    states = list(state) if isinstance(state, (tuple, list)) else [state]
    return _step(build, call.name.removesuffix("_cell"), x, states, weights)
