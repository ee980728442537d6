"""Lowering: a traced graph becomes primitive operations between typed tensors.

Every operator of the network is expressed by its rule in a dozen primitives. A primitive does two
things: it makes axes count the same units (at once, by unification), and it leaves behind a
`Primitive` that the later passes ask. No later pass knows an operator of torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any

from paramsym.lowering.data import Evaluator, drawn_values, fed_values
from paramsym.lowering.made import broadcast, centred_dims, square_of, total_of
from paramsym.lowering.memory import AbstractMemory
from paramsym.lowering.quadratics import quadratic
from paramsym.primitives import (
    Center,
    Choice,
    Concatenate,
    Contract,
    Lookup,
    Map,
    Mask,
    Mix,
    Normalize,
    Opaque,
    Primitive,
    Reduce,
    Shifted,
    Softmax,
    Sum,
    Tie,
)
from paramsym.primitives import index as ix
from paramsym.primitives.index import Node
from paramsym.primitives.numbers import Rerun, can_run, read_off
from paramsym.primitives.tensor import Tensor as Tensor
from paramsym.recording.graph import Call, Graph, Value, values_in
from paramsym.structure.origin import Origin


class Builder(AbstractMemory):
    """Turns calls into typed tensors and primitive operations."""

    def __init__(self, graph: Graph, moving: AbstractSet[int] = frozenset()):
        self.graph = graph
        # the numbers that no parameter enters, and those that no input enters, either
        self.data = Evaluator(graph, moving | drawn_values(graph))
        self.fixed = Evaluator(graph, moving | fed_values(graph))
        self.tensors: dict[int, Tensor] = {}
        self.ops: list[Primitive] = []
        self.where = ""
        self.unknown: dict[str, str] = {}  # operator -> first place, for the report
        self.relaid: dict[int, Tensor] = {}  # parameters in a layout of their own, by storage
        self.mirrors: dict[int, tuple[Value, Tensor]] = {}  # copies that are still read as views
        self.anchors: list[Tensor] = []  # tensors that steer data-dependent choices
        self.alive: set[int] = set()  # ids of the values on which the outputs depend
        self.shifted: dict[str, tuple[Tensor, Origin]] = {}  # parameters used as p + constant
        self.held: dict[int, str] = {}  # storages (serial of the owner) whose numbers have to stay
        self.flat: dict[int, frozenset[int]] = {}  # axes along which data are constant, by value
        self.windows: dict[Any, Tensor] = {}  # what convolutions look at, by what it is made of
        self.random: dict[str, str] = {}  # random operator -> first place
        self.probed: dict[str, str] = {}  # operator -> what was found of it on numbers, and where
        self.unprobed: dict[str, str] = {}  # operator -> why it could not be asked
        self.kept: set[int] = set()  # storages of buffers that count as the same after the pass
        self.beside: set[Primitive] = set()  # what leads to kept buffers alone

    # -- calls -------------------------------------------------------------------------------
    def lift(self, item: Any) -> Any:
        """Arguments with every `Value` replaced by its tensor."""
        if isinstance(item, Value):
            return self.tensor(item)
        if type(item) in (tuple, list):
            return type(item)(self.lift(x) for x in item)
        return item

    def arguments(self, call: Call, *names: str, **defaults: Any) -> list[Any]:
        """The arguments of a call by position or name; `a|b` accepts either name.

        A name without an entry in `defaults` is required unless it ends with `?` (then None).
        """
        result = []
        for position, name in enumerate(names):
            options = name.rstrip("?").split("|")
            if not position and name[-1] != "?" and options[0] not in defaults:
                options += ["input", "self"]  # as torch calls what an operator acts on
            given = [*call.args[position : position + 1]]
            given += [call.kwargs[o] for o in options if o in call.kwargs]
            item = given[0] if given else defaults.get(options[0])
            result.append(self.lift(item))
        return result

    def again(
        self, calls: Call | Sequence[Call], *operands: Value, output: Value | None = None
    ) -> dict[str, Any]:
        """What lets a primitive compute by running traced calls on other numbers.

        Args:
            calls: one or more, in order; nothing is said if their numbers are drawn at random.
            operands: which values the inputs of the primitive are, in order; what else the calls
                read is `given`.
            output: which of the results; the first by default.

        Returns:
            Facts for `emit`, `unary`, `mix` and their like.
        """
        calls = [calls] if isinstance(calls, Call) else calls
        if not all(can_run(call) and call.name not in self.random for call in calls):
            return {}
        made = {v.id for call in calls for v in call.outputs}
        read = {v.id: v for call in calls for v in call.operands}
        rest = [v for v in read.values() if v.id not in made and v not in operands]
        output = output or next(values_in(calls[-1].result))
        ids = (*(v.id for v in operands), *(v.id for v in rest))
        return {
            "compute": Rerun(tuple(calls), ids, output.id),
            "given": tuple(map(self.tensor, rest)),
        }

    def emit(
        self, primitive: type[Primitive], out: Tensor, inputs: Sequence[Tensor], **facts: Any
    ) -> Tensor:
        """Write down that `out` is computed from `inputs` by a primitive with these facts."""
        out.moves = any(t.moves for t in inputs)
        op = primitive(out=out, inputs=tuple(inputs), where=self.where, **facts)
        out.producer = op
        self.ops.append(op)
        return out

    def is_random(self, call: Call) -> None:
        """Note that an operator draws numbers: permutations past it hold in distribution."""
        self.random.setdefault(call.name, self.where or "an unknown place")

    def unify(self, a: Node, b: Node) -> None:
        ix.unify(a, b, f"its two readings at {self.where} cut across each other")

    # -- primitives --------------------------------------------------------------------------
    def same(
        self, inputs: Sequence[Tensor], shape: Sequence[int] | None = None, linear: bool = True,
        **facts: Any,
    ) -> Tensor:  # fmt: skip
        """Broadcast sum: every input counts the same units and has the scale of the output.

        `signs` are the coefficients of the sum; `linear=False` marks a pointwise choice
        (maximum, where) that is homogeneous but not additive, and that `compute` makes.
        """
        shape = broadcast([t.shape for t in inputs]) if shape is None else shape
        signs = facts.pop("signs", None) or (1,) * len(inputs)
        terms = list(zip(inputs, signs, strict=True))
        if linear:
            terms = [(t, c) for t, c in terms if c != 0 and not t.zero]
        kept = [t for t, _ in terms]
        if dims := centred_dims(terms):
            return self.center(kept[0], dims)
        out = self.new(shape, self._common_axes(kept, shape), zero=all(t.zero for t in kept))
        if not linear:
            return self.emit(Choice, out, kept, **facts)
        signs = tuple(c for _, c in terms) or tuple(signs)
        return self.emit(Sum, out, kept or inputs, signs=signs, **facts)

    def _common_axes(self, terms: Sequence[Tensor], shape: Sequence[int]) -> list[Node]:
        """What the axes of a broadcast sum count; new units where every term is repeated."""
        nodes: dict[int, Node] = {}
        for tensor in terms:
            for at, node in enumerate(tensor.axes, start=len(shape) - tensor.ndim):
                if shape[at] == 1 or shape[at] != tensor.shape[at - len(shape)]:
                    continue
                if at in nodes:
                    self.unify(nodes[at], node)
                else:
                    nodes[at] = node
        return [nodes[k] if k in nodes else ix.leaf(n) for k, n in enumerate(shape)]

    def tie(self, after: Tensor, before: Tensor) -> Tensor:
        """A state that a recurrence carries from step to step: both count the same units."""
        for a, b, n in zip(after.axes, before.axes, after.shape, strict=True):
            if n > 1:
                self.unify(a, b)
        out = self.new(after.shape, after.axes)
        return self.emit(Tie, out, [t for t in (after, before) if not t.zero])

    def alias(self, x: Tensor, **facts: Any) -> Tensor:
        """A copy of a tensor (in another layout or precision, or dropout in evaluation mode)."""
        out = self.new(x.shape, x.axes, zero=x.zero, total=x.total)
        return self.emit(Sum, out, [x], **facts)

    def unary(
        self, x: Tensor, degree: Fraction | int | str | None = None, sign: str = "pin",
        linear: bool = False, name: str = "", factor: float = 1.0, shift: float | None = None,
        **facts: Any,
    ) -> Tensor:  # fmt: skip
        """An entrywise function f.

        `degree` d means f(s·x) = s^d·f(x) for s > 0 (None: no scale passes). `sign` is "odd",
        "even" or "pin" (neither). `linear` means multiplication by the scalar `factor`; `shift` is
        given where f adds that number. A name such as "exp" also says what is computed; otherwise
        `compute` does, a function of numbers.
        """
        if linear and factor == 0:
            return self.frozen(x.shape, "it is multiplied by zero", moves=False, zero=True)
        out = self.new(x.shape, x.axes, zero=x.zero and degree not in (None, 0))
        if linear:
            out.total = x.total and (x.total[0], x.total[1] * factor)
            return self.emit(Sum, out, [x], factor=factor, **facts)
        return self.emit(
            Map, out, [x], degree=None if degree is None else Fraction(degree), sign=sign,
            name=name, shift=shift, **facts,
        )  # fmt: skip

    def shifted_origin(self, x: Tensor, constant: float) -> Tensor:
        """A vector of parameters plus a number; `origins` decides what that is."""
        owner = x.owner
        if owner.producer is None and owner is not x:  # view(γ) + 1 is a view of γ + 1
            made = self.emit(Shifted, self.new(owner.shape, owner.axes), [owner], constant=constant)
            return self.alias(self.view(made, x.shape, x.strides, x.offset))
        return self.emit(Shifted, self.new(x.shape, x.axes), [x], constant=constant)

    def contract(
        self, x: Tensor, y: Tensor, xs: Sequence[Any], ys: Sequence[Any], zs: Sequence[Any],
        shape: Sequence[int] | None = None, **facts: Any,
    ) -> Tensor:  # fmt: skip
        """Generalised matrix product (einsum): labels per axis of x, of y and of the output."""
        form = quadratic(self, x, y, (xs, ys, zs), facts)
        if form is not None:
            return form
        mask = facts.pop("mask", False)
        nodes, sizes = self._counted(x, y, xs, ys)
        if shape is None:
            shape = [sizes[label] for label in zs]
        out = self.new(
            shape,
            [nodes.get(z, ix.UNIT) if n > 1 else ix.UNIT for z, n in zip(zs, shape, strict=True)],
            zero=x.zero and not facts.get("fill") or (y.zero and not mask),
        )
        axes = (tuple(xs), tuple(ys), tuple(zs))
        if not mask:
            out.total = total_of(x, y, axes, facts.get("power", 1))
        return self.emit(Mask if mask else Contract, out, [x, y], axes=axes, **facts)

    def _counted(
        self, x: Tensor, y: Tensor, xs: Sequence[Any], ys: Sequence[Any]
    ) -> tuple[dict[Any, Node], dict[Any, int]]:
        """What the labels of two factors count, and how much; equal labels count the same."""
        nodes: dict[Any, Node] = {}
        sizes: dict[Any, int] = {}
        for tensor, labels in ((x, xs), (y, ys)):
            for node, size, label in zip(tensor.axes, tensor.shape, labels, strict=True):
                if size == 1:
                    sizes.setdefault(label, 1)
                    continue
                sizes[label] = size
                if label not in nodes:
                    nodes[label] = node
                elif size:  # what has no entries is of any type
                    self.unify(nodes[label], node)
        return nodes, sizes

    def multiply(self, x: Tensor, y: Tensor, divide: bool = False) -> Tensor:
        """Broadcast entrywise product (or quotient)."""
        ndim = max(x.ndim, y.ndim)
        xs = list(range(ndim - x.ndim, ndim))
        ys = list(range(ndim - y.ndim, ndim))
        return self.contract(x, y, xs, ys, list(range(ndim)), power=-1 if divide else 1)

    def reduce(
        self, x: Tensor, dims: Sequence[int], keepdim: bool, kind: str, **facts: Any
    ) -> Tensor:
        """Sum, mean, max or another symmetric function over axes.

        `kind` is "sum", "mean", "max" (homogeneous), "norm2" (sum of squares, of `x` itself) or
        "other" (symmetric in the units, nothing more); the latter and "max" need `compute`, if
        their numbers are to be known.
        """
        dims = sorted(d % x.ndim for d in dims) if x.ndim else []
        shape, nodes = [], []
        for k, (n, node) in enumerate(zip(x.shape, x.axes, strict=True)):
            if k not in dims:
                shape.append(n)
                nodes.append(node)
            elif keepdim:
                shape.append(1)
                nodes.append(ix.UNIT)
        out = self.new(shape, nodes, zero=x.zero and kind != "other")
        if kind in ("sum", "mean") and (square := square_of(x)) is not None:
            source, weight = square
            weight /= math.prod(x.shape[d] for d in dims) if kind == "mean" else 1
            return self.emit(Reduce, out, [source], dims=tuple(dims), how="norm2", weight=weight)
        return self.emit(Reduce, out, [x], dims=tuple(dims), how=kind, **facts)

    def mix(
        self, x: Tensor, dims: Sequence[int], shape: Sequence[int], how: str = "linear",
        **facts: Any,
    ) -> Tensor:  # fmt: skip
        """A fixed map along the given axes: spatial pooling, padding, cumulative sums.

        Those axes are frozen, the others pass. `how` is "linear", "mean" (the weights sum to one
        everywhere), "max" (homogeneous) or "other"; `compute` is the map.
        """
        dims = [d % x.ndim for d in dims]
        reason = f"the axis is mixed by a fixed map at {self.where}"
        for d in dims:
            ix.freeze(x.axes[d], reason)
        nodes = [
            ix.leaf(n, frozen=reason) if k in dims else node
            for k, (n, node) in enumerate(zip(shape, x.axes, strict=True))
        ]
        return self.emit(Mix, self.new(shape, nodes), [x], dims=tuple(dims), how=how, **facts)

    def normalize(
        self, x: Tensor, dims: Sequence[int], center: bool, epsilon: float, **facts: Any
    ) -> Tensor:
        """Subtract the mean (if `center`) and divide by the root mean square over axes.

        With `mean=False` it is the root of the sum of squares, at least `floor`.
        """
        dims = tuple(d % x.ndim for d in dims)
        out = self.new(x.shape, x.axes)
        return self.emit(Normalize, out, [x], dims=dims, center=center, epsilon=epsilon, **facts)

    def center(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """Subtract the mean over axes."""
        dims = tuple(d % x.ndim for d in dims)
        return self.emit(Center, self.new(x.shape, x.axes), [x], dims=dims)

    def softmax(self, x: Tensor, dim: int, log: bool = False, **facts: Any) -> Tensor:
        """Softmax along one axis: its entries sum to one, and a common shift has no effect."""
        out = self.new(x.shape, x.axes, total=None if log else (dim % x.ndim, 1.0))
        return self.emit(Softmax, out, [x], dim=dim % x.ndim, log=log, **facts)

    def lookup(
        self, table: Tensor, dims: Sequence[int], shape: Sequence[int], at: int, *indices: Tensor,
        **facts: Any,
    ) -> Tensor:  # fmt: skip
        """Rows of a table chosen by data: `dims` are replaced, at position `at`, by index axes.

        There is one index for each of `dims`. One that itself depends on parameters (a router's
        choice) is kept alive, so that what it was computed from stays pinned.
        """
        for index in indices:
            if index.moves:
                self.choose(index)
        index = indices[0] if len(indices) == 1 and not indices[0].moves else None
        dims = [d % table.ndim for d in dims]
        for d in dims:
            ix.freeze(table.axes[d], f"it is indexed by data at {self.where}")
        rest = [node for k, node in enumerate(table.axes) if k not in dims]
        count = len(shape) - len(rest)
        nodes = [*rest[:at], *self._data_axes(shape[at : at + count]), *rest[at:]]
        out = self.new(shape, nodes)
        return self.emit(Lookup, out, [table], dims=tuple(dims), at=at, count=count, index=index,
                         given=indices, **facts)  # fmt: skip

    def choose(self, index: Tensor) -> None:
        """Let a tensor steer choices: it is held with its order, and kept alive with its origin."""
        self.anchors += self.opaque([index], [()], f"it chooses entries at {self.where}")

    def concatenate(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Join along one axis; the other axes count the same units."""
        tensors = [t for t in tensors if math.prod(t.shape)]
        dim %= tensors[0].ndim
        nodes = list(tensors[0].axes)
        for other in tensors[1:]:
            for k in range(len(nodes)):
                if k != dim and other.shape[k] > 1:
                    self.unify(nodes[k], other.axes[k])
        nodes[dim] = ix.direct_sum([t.axes[dim] for t in tensors])
        shape = list(tensors[0].shape)
        shape[dim] = sum(t.shape[dim] for t in tensors)
        out = self.new(shape, nodes, zero=all(t.zero for t in tensors))
        return self.emit(Concatenate, out, tensors, dim=dim)

    def opaque(self, inputs: Sequence[Tensor], shapes: Sequence[Sequence[int]], reason: str):
        """An operator about which nothing is known: everything that it touches is frozen."""
        inputs = [t for t in inputs if t.moves]
        for tensor in inputs:
            for node in tensor.axes:
                ix.freeze(node, reason)
        return [
            self.emit(Opaque, self.frozen(shape, reason), inputs, reason=reason) for shape in shapes
        ]

    def opaque_call(self, call: Call, outputs: Sequence[Value], reason: str) -> list[Tensor]:
        """A call of which nothing is known but what it computes."""
        values = {v.id: v for v in call.operands}
        moving = [v for v in values.values() if self.tensor(v).moves]
        inputs = [self.tensor(v) for v in moving]
        made = self.opaque(inputs, [v.shape for v in outputs], reason)
        for tensor, value in zip(made, outputs, strict=True):
            for name, fact in self.again(call, *moving, output=value).items():
                setattr(tensor.producer, name, fact)
        return made

    def opaque_view(self, view: Tensor, base: Tensor, reason: str) -> None:
        """A window that cannot be read: what it shows of its base is unknown."""
        layouts = base.layout, view.layout
        self.emit(Opaque, view, [base], reason=reason, compute=lambda x: read_off(x, *layouts))
