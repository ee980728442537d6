"""Recurrent layers, written as one step of their cell with the state tied to itself."""

from __future__ import annotations

from typing import Any

from paramsym.recording.graph import Call, Value
from paramsym.tracing import index as ix
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.primitives import Opaque, Sum
from paramsym.tracing.registry import rule


def _gates(build: Builder, x: Tensor, h: Tensor, w: list[Tensor], size: int, count: int):
    """Input and state contributions to each gate, biases included."""
    result = []
    for source, weight, bias in ((x, w[0], w[2]), (h, w[1], w[3])):
        parts = []
        for k in range(count):
            piece = build.narrow(weight, 0, k * size, size)
            out = build.contract(source, piece, ["b", "i"], ["o", "i"], ["b", "o"])
            if bias is not None:
                out = build.same([out, build.narrow(bias, 0, k * size, size)], out.shape)
            parts.append(out)
        result.append(parts)
    return result


def _lstm_cell(build: Builder, x: Tensor, h: Tensor, c: Tensor, w: list, size: int):
    left, right = _gates(build, x, h, w, size, 4)
    i, f, g, o = (build.same([a, b]) for a, b in zip(left, right, strict=True))
    i, f, o = (build.unary(t, None, name="sigmoid") for t in (i, f, o))
    g = build.unary(g, None, "odd", name="tanh")
    c = build.same([build.multiply(f, c), build.multiply(i, g)])
    return build.multiply(o, build.unary(c, None, "odd", name="tanh")), c


def _gru_cell(build: Builder, x: Tensor, h: Tensor, w: list, size: int):
    left, right = _gates(build, x, h, w, size, 3)
    r, z = (build.unary(build.same([left[k], right[k]]), None, name="sigmoid") for k in (0, 1))
    n = build.unary(build.same([left[2], build.multiply(r, right[2])]), None, "odd", name="tanh")
    # 1 - z, another gate with values in (0, 1)
    rest = build.unary(z, None, name="sigmoid", compute=lambda t: 1 - t)
    return build.same([build.multiply(rest, n), build.multiply(z, h)])


def _rnn_cell(build: Builder, x: Tensor, h: Tensor, w: list, size: int, activation: str):
    left, right = _gates(build, x, h, w, size, 1)
    total = build.same([left[0], right[0]])
    if activation == "relu":
        return build.unary(total, 1, name="relu")
    return build.unary(total, None, "odd", name="tanh")


def _state(build: Builder, given: Tensor | None, at: int, batch: int, size: int) -> Tensor:
    """A hidden state whose units are still free, or the given initial state if it is not zero."""
    made = build.new((batch, size), [ix.leaf(batch, frozen="it is a batch"), ix.leaf(size)])
    made.kind = "state"
    if given is not None and not given.zero:
        initial = build.select(given, 0, at)
        for axis in (-1, -2)[: initial.ndim]:
            if made.shape[axis] == initial.shape[axis] > 1:
                build.unify(made.axes[axis], initial.axes[axis])
        if initial.moves:
            build.emit(Sum, made, [initial])
        else:
            build.emit(Opaque, made, [initial], reason="the initial state is data")
        made.moves = True
    return made


def _layer(build: Builder, cell: str, x: Tensor, states: list[Tensor], w: list, size: int):
    """One step; returned states are tied to the ones that came in."""
    if cell == "lstm":
        results = list(_lstm_cell(build, x, states[0], states[1], w, size))
    elif cell == "gru":
        results = [_gru_cell(build, x, states[0], w, size)]
    else:
        results = [_rnn_cell(build, x, states[0], w, size, cell.removeprefix("rnn_"))]
    for before, after in zip(states, results, strict=True):
        build.unify(before.axes[1], after.axes[1])
    tied = [build.tie(after, before) for before, after in zip(states, results, strict=True)]
    build.anchors += tied  # the next step reads every state, whatever the outputs are
    return tied


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(build: Builder, call: Call) -> Any:
    """`torch.lstm(input, hx, weights, has_biases, layers, dropout, train, bidirectional,
    batch_first)` and its siblings."""
    if not isinstance(call.args[3], bool):
        return None  # packed sequences
    x, given, weights = (build.lift(item) for item in call.args[:3])
    biases, layers, dropped, training, two_way, batch_first = call.args[3:9]
    if dropped and training and layers > 1:
        build.is_random(call)
    given = list(given) if isinstance(given, (tuple, list)) else [given]
    batched = x.ndim == 3
    # every step goes through the same cell: what is said of one is said of all
    at = 1 if batched and batch_first else 0
    once = [1 if k == at else n for k, n in enumerate(x.shape)]
    rows = build.mix(x, [at], once, how="mean") if x.moves else x
    rows = build.select(rows, at, 0) if batched else build.narrow(rows, 0, 0, 1)
    per = 4 if biases else 2
    if len(weights) != per * layers * (1 + two_way):
        return None  # projections
    batch = rows.shape[0]
    last: list[list[Tensor]] = []
    for layer in range(layers):
        outs = []
        for direction in range(1 + two_way):
            at = layer * (1 + two_way) + direction
            w = list(weights[at * per : (at + 1) * per])
            w += [None] * (4 - len(w))
            size = w[1].shape[1]
            states = [_state(build, g, at, batch, size) for g in given]
            states = _layer(build, call.name, rows, states, w, size)
            outs.append(states[0])
            last.append(states)
        rows = outs[0] if len(outs) == 1 else build.concatenate(outs, 1)
    shape = call.result[0].shape
    time = build.reshape(rows, [rows.shape[0] if k == (0 if batch_first else 1) else
                                rows.shape[1] if k == 2 else 1 for k in range(3)]
                         if batched else [1, rows.shape[1]])  # fmt: skip
    at = (1 if batch_first else 0) if batched else 0
    output = _repeat_time(build, time, at, shape[at])
    results: list[Tensor | None] = [output]
    for k in range(len(given)):
        finals = [build.reshape(s[k], (1, *s[k].shape)) for s in last]
        results.append(_finals(build, call.result[1 + k], finals, batched))
    return results


def _finals(build: Builder, value: Value, finals: list[Tensor], batched: bool) -> Tensor | None:
    """Final states of all layers, stacked; layers that are read one by one stay untied."""
    windows = [
        v
        for v in build.graph.values
        if v.storage == value.id and v.id in build.alive and v != value
    ]
    slab = value.strides[0]
    direct = any(value in call.operands and call.outputs and call.outputs[0].storage != value.id
                 for call in build.graph.calls)  # fmt: skip
    if (
        value in build.graph.outputs
        or direct
        or any(
            v.offset % slab + sum((n - 1) * s for n, s in zip(v.shape, v.strides, strict=True))
            >= slab
            for v in windows
        )
    ):
        joined = finals[0] if len(finals) == 1 else build.concatenate(finals, 0)
        return joined if batched else build.reshape(joined, (joined.shape[0], joined.shape[2]))
    for window in windows:
        at, start = divmod(window.offset, slab)
        state = build.alias(finals[at])
        made = build.view(state, window.shape, window.strides, start)
        made.value = window
        build.tensors[window.id] = made
    return None


def _repeat_time(build: Builder, x: Tensor, dim: int, steps: int) -> Tensor:
    """The state of one step as a sequence of states."""
    shape = [steps if k == dim else n for k, n in enumerate(x.shape)]
    nodes = [
        ix.leaf(steps, frozen="it is a sequence") if k == dim else node
        for k, node in enumerate(x.axes)
    ]
    return build.emit(Sum, build.new(shape, nodes), [x])


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(build: Builder, call: Call) -> Any:
    x, state, *w = (build.lift(item) for item in call.args)
    w = list(w) + [None] * (4 - len(w))
    size = w[1].shape[1]
    if call.name == "lstm_cell":
        return list(_lstm_cell(build, x, state[0], state[1], w, size))
    if call.name == "gru_cell":
        return _gru_cell(build, x, state, w, size)
    return _rnn_cell(build, x, state, w, size, "relu" if "relu" in call.name else "tanh")
