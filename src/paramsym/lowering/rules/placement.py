"""Entries put at places along an axis that data choose: sums over edges, segments and copies.

`zeros.index_add(0, dst, m)` is a contraction with a fixed 0/1 matrix along axis 0, and so is all
that adds, averages or copies rows to given places. Such a function is linear in where the rows come
from and in what they are put into together, f(d, x) = f(d, 0) + f(0, x): two maps along axes,
added. The axes along which the places vary are mixed and keep their order; all others pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.flat import flat_axes
from paramsym.lowering.registry import rule
from paramsym.primitives import Mix, Sum
from paramsym.recording.graph import Call, Value

_LARGEST = 1 << 20  # entries up to which a map is tried on ones


def along(
    build: Builder,
    x: Tensor,
    dims: Sequence[int],
    shape: Sequence[int],
    facts: dict[str, Any],
    how: str = "",
) -> Tensor:
    """A linear map along axes that data state, which choices of the network keep alive.

    It passes constants if `how` is "mean", or if its numbers are known and take ones to ones.
    """
    for index in facts["given"]:
        if index.moves:
            build.choose(index)
    how = how or ("mean" if _keeps_ones(build, x.shape, **facts) else "linear")
    return build.mix(x, dims, shape, how=how, **facts)


def _keeps_ones(
    build: Builder, shape: Sequence[int], compute: Callable[..., torch.Tensor],
    given: Sequence[Tensor],
) -> bool:  # fmt: skip
    """Whether a map takes a tensor of ones to one, by the numbers that it is given."""
    numbers = [None if t.moves else build.fixed.of(t) for t in given]
    if any(n is None for n in numbers) or torch.Size(shape).numel() > _LARGEST:
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is in beta
            made = compute(torch.ones(tuple(shape), dtype=torch.float64), *numbers)
    except Exception:  # numbers of another dtype than those of the pass
        return False
    one = torch.ones((), dtype=made.dtype)
    return not made.is_complex() and torch.allclose(made, one, rtol=0, atol=1e-12)


def rescaled(build: Builder, x: Tensor, y: Tensor, divide: bool) -> Tensor | None:
    """A map along axes times data that vary along these alone, where together they pass constants.

    A sum over edges divided by their numbers is a mean.
    """
    op = x.producer
    while isinstance(op, Sum) and op.power_step() == ("copy", 1.0):
        op = op.inputs[0].producer
    if not isinstance(op, Mix) or op.how != "linear" or y.moves or op.compute is None:
        return None
    offset = x.ndim - y.ndim
    varies = {k + offset for k, n in enumerate(y.shape) if n > 1}
    if offset < 0 or op.out.shape != x.shape or not varies <= {*op.dims}:
        return None
    before = op.compute

    def compute(source: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        made = before(source, *given[:-1])
        return made / given[-1] if divide else made * given[-1]

    facts = {"compute": compute, "given": (*op.given, y)}
    if not _keeps_ones(build, op.inputs[0].shape, **facts):
        return None
    return build.mix(op.inputs[0], op.dims, x.shape, how="mean", **facts)


def varying(build: Builder, index: Value, dim: int) -> list[int]:
    """The axes along which positions vary, and the one along which they point."""
    flat = flat_axes(index, build.graph, build.flat)
    return [k for k, n in enumerate(index.shape) if k == dim or (n > 1 and k not in flat)]


def _placed(
    build: Builder, call: Call, into: Value, source: Value, dims: Sequence[int]
) -> Tensor | None:
    """f(into, source) of a function that is linear in both together."""
    facts = build.again(call, into, source)
    if not facts or into.shape == () or into.dtype.is_complex != source.dtype.is_complex:
        return None
    both, given = facts["compute"], facts["given"]
    d, x = build.tensor(into), build.tensor(source)

    def of_source(numbers: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return both(numbers.new_zeros(into.shape), numbers, *given)

    def of_target(numbers: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return both(numbers, numbers.new_zeros(source.shape), *given)

    terms = []
    if x.moves:
        terms.append(along(build, x, dims, into.shape, {"compute": of_source, "given": given}))
    if d.moves:
        terms.append(along(build, d, dims, into.shape, {"compute": of_target, "given": given}))
    elif not d.zero:
        terms.append(build.frozen(into.shape, "its order is given by data", moves=False,
                                  recipe=(of_target, (d, *given))))  # fmt: skip
    if not (x.moves or d.moves):  # data at places that the network computes
        return None
    if not x.moves and not build.tensor(source).zero:
        terms.append(build.frozen(into.shape, "its order is given by data", moves=False,
                                  recipe=(of_source, (x, *given))))  # fmt: skip
    return terms[0] if len(terms) == 1 else build.same(terms, into.shape)


def _unplaced(build: Builder, call: Call) -> list[Tensor]:
    reason = f"entries are placed by data ({call.name}) at {call.where}"
    return build.opaque_call(call, call.outputs, reason)


_LINEAR = (None, "sum", "add", "mean")  # what a rule is told to do with rows of the same place


def _told(call: Call, names: Sequence[str]) -> dict[str, Any]:
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


@rule("index_add", "index_copy", "index_reduce", "scatter", "scatter_add", "scatter_reduce")
def place(build: Builder, call: Call) -> Any:
    """Rows, or entries, put at positions along one axis."""
    told = _told(call, ("self", "dim", "index", "source", "reduce"))
    into = told.get("self", told.get("input"))
    source = told.get("source", told.get("src", told.get("value")))
    index, dim = told["index"], told["dim"]
    found = None
    if (
        isinstance(source, Value)
        and isinstance(into, Value)
        and isinstance(dim, int)
        and into.shape
    ):
        dim %= len(into.shape)
        dims = _mixed(build, into, source, index, dim, rows="scatter" not in call.name)
        reduce = told.get("reduce")
        if dims is not None and reduce in _LINEAR:
            found = _placed(build, call, into, source, dims)
        elif dims is not None and reduce in ("amax", "amin"):
            found = _extreme(build, call, into, source, dims)
    return found if found is not None else _unplaced(build, call)


def _mixed(
    build: Builder, into: Value, source: Value, index: Value, dim: int, rows: bool
) -> list[int] | None:
    """The axes that are mixed; None where entries are no rows of tensors with as many axes."""
    if len(source.shape) != len(into.shape) or not source.shape:
        return None
    dims = [dim] if rows else varying(build, index, dim)
    if not rows and len(index.shape) != len(into.shape):
        return None
    read = source.shape if rows else index.shape
    partial = [k for k, n in enumerate(into.shape) if not n == source.shape[k] == read[k]]
    return sorted({*dims, *partial})


def _extreme(
    build: Builder, call: Call, into: Value, source: Value, dims: Sequence[int]
) -> Tensor | None:
    """Largest or least entries of each place, with what they are put into if that is no number.

    It is homogeneous where nothing is added to the entries but 0 and infinities.
    """
    facts = build.again(call, into, source)
    d, x = build.tensor(into), build.tensor(source)
    numbers = None if d.moves else build.fixed.number(into)
    if not facts or not x.moves or numbers is None:
        return None
    if not bool(((numbers == 0) | numbers.isinf()).all()):
        return None
    both = facts["compute"]
    for index in facts["given"]:
        if index.moves:
            build.choose(index)

    def compute(t: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return both(numbers.to(t), t, *given)

    lifts = follows(build, source.shape, compute, facts["given"])
    return build.mix(x, dims, into.shape, how="max", given=facts["given"], compute=compute,
                     lifts=lifts)  # fmt: skip


_FAR = 1024.0  # beyond any entry that a maximum is tried on


def follows(
    build: Builder, shape: Sequence[int], compute: Callable[..., torch.Tensor],
    given: Sequence[Tensor],
) -> bool:  # fmt: skip
    """Whether each of several extrema is of some entries and of nothing else, by known numbers.

    A place that nothing is put to, or one where a constant competes, does not follow all entries
    when they move far up and far down.
    """
    numbers = [None if t.moves else build.fixed.of(t) for t in given]
    if any(n is None for n in numbers) or torch.Size(shape).numel() > _LARGEST:
        return False
    x = torch.zeros(tuple(shape), dtype=torch.float64)
    return all(bool((compute(x + far, *numbers) == far).all()) for far in (_FAR, -_FAR))


@rule("index_put", "setitem")
def put(build: Builder, call: Call) -> Any:
    """Rows put at positions along one axis, by `x[:, positions] = rows` and its like."""
    into, items, source = call.args[:3]
    found = None
    if isinstance(source, Value) and isinstance(into, Value):
        items = items if isinstance(items, (tuple, list)) else (items,)
        dim = _one_axis(items)
        if dim is not None and len(source.shape) == len(into.shape):
            partial = [k for k, n in enumerate(into.shape) if k != dim and n != source.shape[k]]
            found = None if partial else _placed(build, call, into, source, [dim])
    return found if found is not None else _unplaced(build, call)


def _one_axis(items: Sequence[Any]) -> int | None:
    """The axis along which a list of positions points, if all others are taken as a whole."""
    picked = [k for k, item in enumerate(items) if isinstance(item, Value)]
    whole = all(
        item is None or item == slice(None) for k, item in enumerate(items) if k not in picked
    )
    if len(picked) != 1 or not whole:
        return None
    (dim,) = picked
    index = items[dim]
    integers = not (index.dtype.is_floating_point or index.dtype in (torch.bool, torch.uint8))
    return dim if integers and len(index.shape) == 1 else None


@rule("segment_reduce")
def segment(build: Builder, call: Call) -> Any:
    """Rows next to each other added up, by lengths or offsets that are data."""
    told = _told(call, ("data", "reduce"))
    x, axis = told.get("data", told.get("input")), told.get("axis", 0)
    spans = told.get("lengths", told.get("offsets"))
    known = isinstance(spans, Value) and len(spans.shape) == 1
    if (
        isinstance(x, Value)
        and known
        and told.get("initial") is None
        and told["reduce"] in ("sum", "mean")
    ):
        facts = build.again(call, x)
        if facts and build.tensor(x).moves:
            return along(build, build.tensor(x), [axis], call.outputs[0].shape, facts)
    return _unplaced(build, call)
