"""Generic inputs of the same kind as the given ones: what a nullity is measured over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramsym.lowering.data import Evaluator
from paramsym.recording.graph import Call, Graph, Value, values_in
from paramsym.recording.record import split_inputs

_INTEGERS = (torch.int64, torch.int32)
_WRITES = {"setitem", "index_put", "index_copy", "index_fill", "scatter"}  # the last one stays
_CASTS = {"to", "long", "int", "clone", "contiguous", "detach"}
# these put entries elsewhere, beside numbers of the model such as that of a padding
_ARRANGES = {
    "pad", "constant_pad_nd", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "flip",
    "roll", "repeat", "repeat_interleave", "masked_fill", "where",
}  # fmt: skip

OWN = -1  # the length of a table that is not known

Given = dict[Any, Any]  # the arguments of a call by position and by name
Lookups = list[tuple[Value, int]]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def table_lengths(graph: Graph, model: torch.nn.Module | None = None) -> dict[int, int]:
    """The number of admissible values of each integer input that indexes a table, by position.

    What is added to it first is known from constants, and from the buffers of a model. It is 0
    where the numbers of an input, also one that floats, decide what is computed: another one might
    select otherwise, and a symmetry is claimed for inputs that select likewise. So it is where an
    input says places that are written: which of two writes to one place is last, nothing says.
    It is `OWN` where something that is not followed makes places of another table of it as well:
    then nothing but numbers that were given is known to be admissible.
    """
    inputs = [value for value in graph.values if value.kind == "input"]
    numbers = _numbers(graph, inputs, model)
    found: dict[int, int] = {}
    bent: set[int] = set()  # the values of which places are made that are not followed
    for index, length in _read_and_written(graph):
        root, added = _root(graph, index, numbers) or (None, 0)
        if root is None:
            bent |= _sizes_from(graph, index) if length else set()
        elif root.dtype in _INTEGERS and (length > added or not length):
            at = inputs.index(root)
            found[at] = min(max(0, length - added), found.get(at, length))
    found |= {at: OWN for at, length in found.items() if length and inputs[at].id in bent}
    return found | {at: 0 for at, value in enumerate(inputs) if value.name in graph.decided}


def _numbers(graph: Graph, inputs: list[Value], model: torch.nn.Module | None) -> Evaluator:
    """What is known of the numbers of a graph, with the buffers of a model."""
    numbers = Evaluator(graph, closed={value.id for value in inputs})
    buffers = {} if model is None else dict(model.named_buffers())
    numbers.known |= {v.id: buffers[n] for n, v in graph.buffers.items() if n in buffers}
    return numbers


def _read_and_written(graph: Graph) -> Iterator[tuple[Value, int]]:
    """(index, length of the table) of all that is read; with 0 for places that are written."""
    for call in graph.calls:
        if call.name in _LOOKUPS:
            yield from _lookups(call)
        if call.name in _WRITES:
            yield from ((v, 0) for v in values_in(call.args[1:]) if v.dtype in _INTEGERS)


def _lookups(call: Call) -> Lookups:
    """(index, length of the table) of one call."""
    return _LOOKUPS[call.name]({**dict(enumerate(call.args)), **call.kwargs})


def _of_embedding(given: Given) -> Lookups:
    """The table is the floating one of the two, whichever comes first."""
    pair = [given.get(0, given.get("input")), given.get(1, given.get("weight"))]
    index = next((v for v in pair if v is not None and not v.dtype.is_floating_point), None)
    table = next((v for v in pair if v is not None and v.dtype.is_floating_point), None)
    return [] if index is None or table is None else [(index, table.shape[0])]


def _of_one_hot(given: Given) -> Lookups:
    """The number of classes stands for the length of a table."""
    count = given.get(1, given.get("num_classes", -1))
    index = given.get(0, given.get("tensor"))
    if isinstance(index, Value) and isinstance(count, int) and count > 0:
        return [(index, count)]
    return []


def _of_index_select(given: Given) -> Lookups:
    """One axis is indexed, by its number."""
    table = given.get(0, given.get("input"))
    dim, index = given.get(1, given.get("dim")), given.get(2, given.get("index"))
    if isinstance(table, Value) and isinstance(index, Value) and isinstance(dim, int):
        return [(index, table.shape[dim] if table.shape else 1)]
    return []


def _of_brackets(given: Given, none: int = 0) -> Lookups:
    """Each integer tensor in brackets indexes the axis at its place; None takes `none` axes."""
    table, items = given.get(0, given.get("input")), given.get(1)
    items = [*items] if isinstance(items, (tuple, list)) else [items]
    if not isinstance(table, Value):
        return []
    widths = [_width(item, none) for item in items]
    found, dim = [], 0
    for item, width in zip(items, widths, strict=True):
        if item is Ellipsis:
            dim += len(table.shape) - sum(widths)
        elif isinstance(item, Value) and item.dtype in _INTEGERS and dim < len(table.shape):
            found.append((item, table.shape[dim]))
        dim += width
    return found


def _width(item: Any, none: int) -> int:
    """How many axes of what is indexed an item takes; of booleans, as many as they have."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return none if item is None else 0
    return len(item.shape) if isinstance(item, Value) and item.dtype == torch.bool else 1


_LOOKUPS: dict[str, Callable[[Given], Lookups]] = {
    "embedding": _of_embedding, "embedding_bag": _of_embedding, "one_hot": _of_one_hot,
    "index_select": _of_index_select, "getitem": _of_brackets,
    "index": partial(_of_brackets, none=1),
}  # fmt: skip


def _root(graph: Graph, value: Value, numbers: Evaluator) -> tuple[Value, int] | None:
    """The input whose entries a value has, beside numbers of the model, and the largest number that
    is added to it: a table of several fields is read at places that begin anew for each."""
    added = 0
    while value.kind != "input":
        owner, call = graph.values[value.storage], value.call
        if owner is not value:
            value = owner
        elif call is not None and call.name in _CASTS and call.operands:
            value = call.operands[0]
        elif call is not None and (more := _added(call, numbers)) is not None:
            value, added = more[0], added + more[1]
        elif call is not None and call.name in _ARRANGES:
            return _arranged(graph, call, added, numbers)
        else:
            return None
    return value, added


def _added(call: Call, numbers: Evaluator) -> tuple[Value, int] | None:
    """What known integers are added to, and the largest of these."""
    if call.name != "add" or len(call.args) != 2 or call.kwargs:
        return None
    pairs = [(x, _largest(y, numbers)) for x, y in (call.args, call.args[::-1])]
    return next(((x, n) for x, n in pairs if isinstance(x, Value) and n is not None), None)


def _sizes_from(graph: Graph, value: Value) -> set[int]:
    """The values of whose sizes a value is made, by id; what was compared has none."""
    queue, met = [value], set()
    while queue:
        one = graph.values[queue.pop().storage]
        if one.id not in met and one.dtype != torch.bool:
            met.add(one.id)
            queue += [] if one.call is None else one.call.operands
    return met


def _arranged(graph: Graph, call: Call, added: int, numbers: Evaluator) -> tuple[Value, int] | None:
    """The one input whose entries are put elsewhere, beside known ones."""
    if any(v.dtype == torch.bool and numbers.number(v) is None for v in call.operands):
        return None  # which entries stay may depend on them
    integers = [v for v in call.operands if v.dtype in _INTEGERS and _largest(v, numbers) is None]
    found = [root for v in integers if (root := _root(graph, v, numbers)) is not None]
    if len(found) < len(integers) or len({root for root, _ in found}) != 1:
        return None
    return found[0][0], added + max(more for _, more in found)


def _largest(item: Any, numbers: Evaluator) -> int | None:
    """The largest of some integers of the model, if they are known and none is negative."""
    if isinstance(item, Value):
        known = None if item.dtype.is_floating_point else numbers.number(item)
        made = numbers.graph.values[item.storage].call
        if made is not None and made.name == "new_tensor" and not [*values_in(made.args[1:])]:
            known = torch.as_tensor(made.args[1])  # of the input it takes the dtype alone
        if known is None or not known.numel() or int(known.min()) < 0:
            return None
        return int(known.max())
    return item if isinstance(item, int) and item >= 0 else None


@dataclass(frozen=True)
class Draws:
    """Generic inputs of several calls: what was drawn is stacked, what was kept is shared."""

    leaves: list[Any]  # of (args, kwargs)
    drawn: tuple[bool, ...]
    form: pytree.TreeSpec
    count: int

    @classmethod
    def alike(cls, arguments: Arguments, count: int) -> Draws:
        """The same arguments in all calls."""
        leaves, form = pytree.tree_flatten(arguments)
        return cls(leaves, (False,) * len(leaves), form, count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Arguments:
        """Positional and keyword arguments of one call."""
        return self.arguments(
            [leaf[k] if own else leaf for leaf, own in zip(self.leaves, self.drawn, strict=True)]
        )

    def arguments(self, leaves: Sequence[Any]) -> Arguments:
        """Positional and keyword arguments of given leaves."""
        return pytree.tree_unflatten(list(leaves), self.form)


def generic_inputs(
    inputs: Any, lengths: dict[int, int], generator: torch.Generator, spread: float = 1.0
) -> Arguments:
    """Fresh inputs of the same shapes, as positional and keyword arguments; see `draws`."""
    return draws(inputs, lengths, generator, [spread])[0]


def draws(
    inputs: Any, lengths: dict[int, int], generator: torch.Generator, spreads: Sequence[float]
) -> Draws:
    """Fresh inputs of the same shapes, for as many calls as there are spreads.

    Floating and complex inputs become normal (in float64) with a random size, mean and density for
    each sample, so that units are reached on both sides whatever their biases: the size lies
    between 1/4 and 4, times at most a spread or its inverse, and a share of the entries is cleared.
    Inputs that look like masks (constant, two values only, or not finite) are kept, and so are
    those that decide what is computed (length 0; see `table_lengths`). Integer inputs
    that index a table become random places of it, or numbers that were given; whatever else there
    is stays as it was given.
    """
    leaves, form = pytree.tree_flatten(split_inputs(inputs))
    tensors = itertools.count()
    found, drawn = [], []
    for leaf in leaves:
        at = next(tensors) if isinstance(leaf, torch.Tensor) else None
        fresh = None if at is None else _drawn(leaf, lengths.get(at), generator, spreads)
        found.append(_kept(leaf) if fresh is None else fresh.to(leaf.device))
        drawn.append(fresh is not None)
    return Draws(found, tuple(drawn), form, len(spreads))


def _kept(leaf: Any) -> Any:
    """What stays as it was given; a tensor in float64 if it floats."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().double() if leaf.is_floating_point() else leaf.detach()


def _drawn(
    leaf: torch.Tensor, length: int | None, generator: torch.Generator, spreads: Sequence[float]
) -> torch.Tensor | None:
    """One tensor for each spread, (spreads, *shape), or None where it stays."""
    if length == 0:
        return None
    if leaf.is_complex():
        pairs = _floats(torch.view_as_real(leaf.resolve_conj()), generator, spreads)
        return None if pairs is None else torch.view_as_complex(pairs.contiguous())
    if leaf.is_floating_point():
        return _floats(leaf, generator, spreads)
    if length is None or leaf.dtype == torch.bool:
        return None
    shape = (len(spreads), *leaf.shape)
    if length == OWN:
        return leaf.flatten()[torch.randint(leaf.numel(), shape, generator=generator)]
    return torch.randint(length, shape, generator=generator, dtype=leaf.dtype)


def _floats(
    leaf: torch.Tensor, generator: torch.Generator, spreads: Sequence[float]
) -> torch.Tensor | None:
    if is_mask(leaf):
        return None
    count, wide = len(spreads), torch.float64
    samples = (count, *leaf.shape[:1], *[1] * (leaf.ndim - 1))
    size, side, density = torch.rand(3, *samples, generator=generator, dtype=wide)
    spread = torch.tensor(spreads, dtype=wide).reshape(count, *[1] * leaf.ndim)
    size = 4 ** (2 * size - 1) * spread ** (2 * side - 1)
    noise = torch.randn(count, *leaf.shape, generator=generator, dtype=wide)
    mean = torch.randn(samples, generator=generator, dtype=wide)
    kept = torch.rand(count, *leaf.shape, generator=generator, dtype=wide) < 2 * density
    return size * (noise * kept + mean)


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether a floating tensor looks like a mask: two values at most, or not finite."""
    if not bool(tensor.isfinite().all()):
        return True
    return tensor.numel() > 2 and len(tensor.unique()) <= 2
