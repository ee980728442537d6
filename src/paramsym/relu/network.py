"""A ReLU network as a value: layers (W, b) with a ReLU between two layers and none after the last.

    f(x) = W_L relu( ... relu(W_1 x + b_1) ... ) + b_L

Numbers are kept as they came and read exactly on demand, because a float64 network of a hundred
thousand weights is often decided without a single rational.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.clock import tick
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import EXACT, FLOAT64, Format, Storage, format_of
from paramsym.relu.rationals import (
    ZERO,
    column,
    fraction,
    fractions,
    nearest_float,
    product,
    rational,
)


class Layer(NamedTuple):
    """One affine layer y ↦ weight·y + bias, exact; weight is n×d, bias a list of n."""

    weight: fmpq_mat
    bias: list[fmpq]


class FloatLayer(NamedTuple):
    """The same layer in float64; weight is (n, d), bias (n,)."""

    weight: np.ndarray
    bias: np.ndarray


class Network:
    """A ReLU multi-layer perceptron; iterating gives its (W, b) pairs in `Fraction`s.

    Built by `as_network`, by the moves and by the fibers. `net(x)` evaluates exactly.
    """

    def __init__(
        self,
        exact: Sequence[Layer] | None = None,
        floats: Sequence[FloatLayer] | None = None,
        name: str = "network",
        storage: Sequence[Storage] | None = None,
    ) -> None:
        if exact is None and floats is None:
            raise TypeError("Network needs exact layers or float layers")
        self._exact = tuple(exact) if exact is not None else None
        self._floats = tuple(floats) if floats is not None else None
        self.name = name
        kept = EXACT if floats is None else FLOAT64
        self.storage = tuple(storage or [(kept, kept)] * (len(exact or floats or ())))

    @property
    def born_float(self) -> bool:
        """Whether the numbers came as float64 (then `floats` is exact)."""
        return self._exact is None or self._floats is not None

    @cached_property
    def exact(self) -> tuple[Layer, ...]:
        """The layers in exact rationals."""
        if self._exact is not None:
            return self._exact
        assert self._floats is not None
        made = []
        for weight, bias in self._floats:
            n, d = weight.shape
            entries: list[fmpq] = []
            for row in weight.tolist():
                tick()
                entries += [fmpq(*v.as_integer_ratio()) for v in row]
            made.append(
                Layer(fmpq_mat(n, d, entries), [fmpq(*v.as_integer_ratio()) for v in bias.tolist()])
            )
        return tuple(made)

    @cached_property
    def floats(self) -> tuple[FloatLayer, ...]:
        """The layers in float64, each entry correctly rounded."""
        if self._floats is not None:
            return self._floats
        made = []
        for weight, bias in self.exact:
            entries = np.array([nearest_float(v) for v in weight.entries()], dtype=np.float64)
            made.append(
                FloatLayer(
                    entries.reshape(weight.nrows(), weight.ncols()),
                    np.array([nearest_float(v) for v in bias], dtype=np.float64),
                )
            )
        return tuple(made)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """(d, n_1, …, n_{L-1}, m)."""
        if self._exact is not None:
            return (self._exact[0].weight.ncols(), *(len(b) for _, b in self._exact))
        assert self._floats is not None
        return (self._floats[0].weight.shape[1], *(len(b) for _, b in self._floats))

    @property
    def input_dim(self) -> int:
        """d."""
        return self.widths[0]

    @property
    def output_dim(self) -> int:
        """m."""
        return self.widths[-1]

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return len(self.widths) - 2

    def __len__(self) -> int:
        return len(self.widths) - 1

    def __iter__(self) -> Iterator[tuple[list[list[Fraction]], list[Fraction]]]:
        for weight, bias in self.exact:
            yield [list(fractions(r)) for r in weight.tolist()], list(fractions(bias))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return self.widths == other.widths and all(
            a.weight == b.weight and a.bias == b.bias
            for a, b in zip(self.exact, other.exact, strict=True)
        )

    def __hash__(self) -> int:
        return hash(self.widths)

    def __repr__(self) -> str:
        return f"Network({'-'.join(map(str, self.widths))}, {self.name!r})"

    def evaluate(self, point: Sequence[fmpq]) -> list[fmpq]:
        """f(x), exactly, for x a list of d rationals."""
        value = list(point)
        for index, (weight, bias) in enumerate(self.exact):
            if index:
                value = [v if v > 0 else ZERO for v in value]
            image = product(weight, column(value)).entries() if value else [ZERO] * len(bias)
            value = [p + b for p, b in zip(image, bias, strict=True)]
        return value

    def __call__(self, point: Sequence[Any]) -> list[Fraction]:
        """f(x), exactly, for x of d numbers of any kind that `rational` reads."""
        values = [rational(v, "relu.Network(x)") for v in point]
        if len(values) != self.input_dim:
            raise ReLUError(
                f"{len(values)} coordinates",
                f"{self.input_dim}, the number of inputs",
                "relu.Network(x)",
                "Pass one input point.",
            )
        return [fraction(v) for v in self.evaluate(values)]

    def batch(self, points: np.ndarray) -> np.ndarray:
        """f at the rows of `points` (N, d) in float64, (N, m)."""
        return self._in_blocks(points, self._batch)

    def _batch(self, value: np.ndarray) -> np.ndarray:
        for index, (weight, bias) in enumerate(self.floats):
            if index:
                value = np.maximum(value, 0.0)
            value = value @ weight.T + bias
        return value

    def magnitude(self, points: np.ndarray) -> np.ndarray:
        """|W_L|(… |W_1||x|+|b_1| …)+|b_L| at the rows of `points`: the scale of rounding."""
        return self._in_blocks(points, self._magnitude)

    def _magnitude(self, points: np.ndarray) -> np.ndarray:
        value = np.abs(points)
        for weight, bias in self.floats:
            value = value @ np.abs(weight).T + np.abs(bias)
        return value

    def _in_blocks(
        self, points: np.ndarray, function: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """A function of rows, some at a time, with a look at the clock between them."""
        weights = sum(b * a for a, b in zip(self.widths, self.widths[1:], strict=False))
        at_once = max(1, 200_000_000 // max(1, weights))
        made = []
        for start in range(0, max(1, len(points)), at_once):
            tick()
            made.append(function(points[start : start + at_once]))
        return np.concatenate(made)

    def to_sequential(self):
        """The same network as an `nn.Sequential` in float64 (rounded if it came in rationals)."""
        import torch

        modules: list[torch.nn.Module] = []
        for index, (weight, bias) in enumerate(self.floats):
            if index:
                modules.append(torch.nn.ReLU())
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(weight.copy()))
                linear.bias.copy_(torch.from_numpy(bias.copy()))
            modules.append(linear)
        return torch.nn.Sequential(*modules)

    def to_json(self) -> list[dict[str, Any]]:
        """The layers as [{"W": [[…]], "b": […]}, …] with exact rationals as strings."""
        return [
            {"W": [[str(v) for v in r] for r in weight], "b": [str(v) for v in bias]}
            for weight, bias in self
        ]


def network_of_pairs(source: Any, name: str) -> Network:
    """The network with these pairs (W, b), or {"W": …, "b": …}, as layers; see `as_network`."""
    if not isinstance(source, (list, tuple)) or not source:
        raise ReLUError(
            f"{type(source).__name__} {str(source)[:60]!r}",
            "an nn.Sequential or a non-empty list of (W, b) pairs",
            name,
            "Pass the layers in order, for example [(W1, b1), (W2, b2)].",
        )
    pairs = [_pair(item, f"{name}, layer {i + 1}") for i, item in enumerate(source)]
    storage = [(_stored(w), _stored(b)) for w, b in pairs]
    if all(_is_float(w) and (b is None or _is_float(b)) for w, b in pairs):
        layers = [_float_layer(w, b, f"{name}, layer {i + 1}") for i, (w, b) in enumerate(pairs)]
        network = Network(floats=layers, name=name, storage=storage)
    else:
        exact = [_exact_layer(w, b, f"{name}, layer {i + 1}") for i, (w, b) in enumerate(pairs)]
        network = Network(exact=exact, name=name, storage=storage)
    check_chain(network, name)
    return network


def _pair(item: Any, where: str) -> tuple[Any, Any]:
    if isinstance(item, dict):
        extra = set(item) - {"W", "b", "weight", "bias"}
        activation = item.get("activation", item.get("act"))
        if activation is not None and str(activation).lower() not in ("relu", "linear", "identity"):
            raise ReLUError(
                f"activation {activation!r}",
                "ReLU between the layers",
                where,
                "Only ReLU networks are decided here.",
            )
        if "W" not in item and "weight" not in item:
            raise ReLUError(
                f"a layer with the keys {sorted(item)}",
                'the keys "W" and "b"',
                where,
                'Write {"W": [[...]], "b": [...]}.',
            )
        if extra - {"activation", "act"}:
            raise ReLUError(
                f"the unknown keys {sorted(extra)}", 'the keys "W" and "b"', where, "Remove them."
            )
        return item.get("W", item.get("weight")), item.get("b", item.get("bias"))
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    raise ReLUError(
        f"{type(item).__name__}", "a pair (W, b)", where, "Write each layer as a pair (W, b)."
    )


def _plain(value: Any) -> Any:
    """Tensors become float64 (or integer) arrays; everything else stays."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.dtype.is_floating_point:
            value = value.double()
        value = value.numpy()
    return value


def _stored(value: Any) -> Format:
    """In which format a table of numbers came; rationals, integers and no numbers are exact."""
    if value is None or not hasattr(value, "dtype"):
        return FLOAT64 if value is not None and _is_float(value) else EXACT
    return format_of(value)


def _is_float(value: Any) -> bool:
    value = _plain(value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and value.dtype.itemsize <= 8
    if isinstance(value, (list, tuple)):
        return all(_is_float(v) for v in value)
    return isinstance(value, float)


def _float_layer(weight: Any, bias: Any, where: str) -> FloatLayer:
    try:
        w = np.array(_plain(weight), dtype=np.float64)
        b = np.zeros(len(w)) if bias is None else np.array(_plain(bias), dtype=np.float64)
    except (ValueError, TypeError):
        raise ReLUError(
            "rows of different lengths",
            "a rectangular n×d table W and n biases",
            where,
            "Check the shape of W.",
        ) from None
    if w.ndim != 2 or b.shape != (len(w),):
        raise ReLUError(
            f"W of shape {w.shape} and b of shape {b.shape}",
            "W of shape (n, d) and b of shape (n,)",
            where,
            "Check the order of the layer's arrays.",
        )
    for label, array in (("W", w), ("b", b)):
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            place = tuple(int(v) for v in bad[0])
            raise ReLUError(
                f"the number {array[place]} at {label}{list(place)}",
                "finite numbers",
                where,
                "Check the training run or the file: NaN and infinities define no function.",
            )
    return FloatLayer(w, b)


def _exact_layer(weight: Any, bias: Any, where: str) -> Layer:
    w = _plain(weight)
    table = [list(_plain(r)) if not isinstance(r, str) else [r] for r in w]
    lengths = {len(r) for r in table}
    if len(lengths) > 1:
        raise ReLUError(
            f"rows of lengths {sorted(lengths)}",
            "a rectangular n×d table W",
            where,
            "Check the shape of W.",
        )
    width = lengths.pop() if lengths else 0
    values = [
        rational(v, f"{where}, W[{i}][{j}]") for i, r in enumerate(table) for j, v in enumerate(r)
    ]
    entries = [0] * len(table) if bias is None else list(_plain(bias))
    if len(entries) != len(table):
        raise ReLUError(
            f"W with {len(table)} rows and b with {len(entries)} entries",
            "as many biases as rows",
            where,
            "Check the order of the layer's arrays.",
        )
    return Layer(
        fmpq_mat(len(table), width, values),
        [rational(v, f"{where}, b[{i}]") for i, v in enumerate(entries)],
    )


def check_chain(network: Network, name: str) -> None:
    """Each layer must read what the layer before it writes."""
    layers = network._exact if network._exact is not None else network._floats
    assert layers is not None
    for index, (before, after) in enumerate(zip(layers, layers[1:], strict=False)):
        weight = after.weight
        reads = weight.ncols() if isinstance(weight, fmpq_mat) else weight.shape[1]
        writes = len(before.bias)
        if reads != writes:
            raise ReLUError(
                f"a layer that reads {reads} features",
                f"{writes}, what layer {index + 1} writes",
                f"{name}, layer {index + 2}",
                "Check the order of the layers and that no weight is transposed.",
            )
