"""Rows that a network selects by what it computes, recorded as all rows with a mask.

    n, j = torch.where(i == e);  y[n] += v[n, j, None] * f(x[n])

runs f on the tokens of one expert. How many these are is not known before the numbers are. But f
sees each row by itself, so that it may as well run on all of them, if what it says of the others is
left out where rows are put back:

    y = y + where(m, w[:, None] * f(x), 0)

with the mask m = [a token has e among its i] and the weights w = Σ_j [i_j = e] v_j.

That f treats rows one by one is checked call by call; where it may not, the trace stops as it would
have without this. A mask over tokens and places stands for rows only if a token has it at most
once, as with the places of one `topk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from paramsym.recording.graph import Call, Value
from paramsym.recording.in_place import tensors_in
from paramsym.recording.ledger import Ledger
from paramsym.recording.rowwise import items_of, treats_rows_alike

Record = Callable[[str, Any, tuple, dict[str, Any]], Any]

_RANKS = {"topk", "sort", "argsort"}


class RowsMixed(RuntimeError):
    """Selected rows meet what may look at several of them at once."""


@dataclass(eq=False)
class _Selection:
    """A mask over rows, and the mask over rows and places that it comes from, if there is one."""

    rows: torch.Tensor
    places: torch.Tensor | None
    turned: bool = False  # whether the mask that was given counts rows on its last axis

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(t._version for t in (self.rows, self.places) if t is not None)

    @property
    def whole(self) -> torch.Tensor:
        return self.rows if self.places is None else self.places


@dataclass(eq=False)
class _Sum:
    """`rows` = `base[positions] + more`, as long as none of the three was written since."""

    rows: torch.Tensor
    base: torch.Tensor
    more: Any
    versions: tuple[int, ...]

    def holds_for(self, base: torch.Tensor) -> bool:
        """Whether the rows are those of a tensor as it is now, plus `more` as it is now."""
        return base is self.base and self.versions == _versions(self.rows, base, self.more)


def _versions(*tensors: Any) -> tuple[int, ...]:
    return tuple(t._version for t in tensors if isinstance(t, torch.Tensor))


class Selections:
    """Which tensors are positions of selected rows, and which are such rows."""

    def __init__(self, record: Record, ledger: Ledger, moves: Callable[[Value], bool]):
        self.record, self.ledger, self.moves = record, ledger, moves
        self.first: Call | None = None  # where rows were selected for the first time
        self.made: dict[tuple[int, int], _Selection] = {}  # by mask, and how often it was written
        self.versions: dict[int, tuple[int, ...]] = {}  # of the masks, by selection
        self.positions: dict[int, tuple[_Selection, int]] = {}  # with the axis of the mask
        self.columns: dict[int, _Selection] = {}  # positions with one more axis of one entry
        self.rows: dict[int, _Selection] = {}
        self.sums: dict[int, _Sum] = {}  # rows of a tensor, plus other rows
        self.read_from: dict[int, tuple[torch.Tensor, int]] = {}  # the tensor whose rows these are
        self.kept: list[Any] = []  # alive, so that ids stay valid

    # -- the door ----------------------------------------------------------------------------
    def handled(
        self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """What a function gives that selects rows, reads them or puts them back, if it does."""
        if name in ("where", "nonzero", "argwhere"):
            return self._selected(name, args, kwargs)
        if name == "getitem":
            return self._read(args[0], args[1])
        if name == "setitem":
            return self._written(*args)
        if not self.positions and not self.columns:
            return None
        if name in ("index_add", "index_select"):
            return self._indexed(name, func, args, kwargs)
        if name in ("squeeze", "flatten", "view", "reshape") and id(args[0]) in self.columns:
            return (self._position(self.columns[id(args[0])], 0),)
        return None

    def follow(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note that results of a recorded function are selected rows, or stop."""
        if name == "__len__" or not self.made:
            return
        every = tensors_in((args, kwargs))
        if any(id(t) in {**self.positions, **self.columns} for t in every):
            raise RowsMixed(f"{name} of the positions of selected rows")
        given = [t for t in every if id(t) in self.rows]
        if not given:
            return
        found, made = {self.rows[id(t)] for t in given}, tensors_in(result)
        same = len(found) == 1 and all(t.ndim and len(t) == len(given[0]) for t in made)
        if not same or not treats_rows_alike(name, args, kwargs, given):
            raise RowsMixed(f"{name} of selected rows")
        for tensor in made:
            self._mark(tensor, *found)
        self._note_sum(name, args, kwargs, result)

    def _note_sum(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note that something is added to the rows of a tensor, to be put back into it."""
        base, version = self.read_from.pop(id(args[0]), (None, -1)) if args else (None, -1)
        plain = name == "add" and len(args) == 2 and not kwargs
        if plain and base is not None and base._version == version:
            now = _versions(result, base, args[1])
            self.sums[id(result)] = _Sum(result, base, args[1], now)

    def require_none(self, outputs: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Stop if an output is made of selected rows, whose number was not known."""
        for name, tensor in outputs:
            if id(tensor) in self.rows or id(tensor) in self.positions:
                raise RowsMixed(f"selected rows are the output {name!r}")

    # -- selecting ---------------------------------------------------------------------------
    def _selected(self, name: str, args: tuple, kwargs: dict[str, Any]) -> tuple[Any] | None:
        if len(args) != 1 or kwargs.keys() - {"as_tuple"} or not isinstance(args[0], FakeTensor):
            return None
        split = name == "where" or kwargs.get("as_tuple", False)
        found = self._selection(args[0])
        if found is None or (not split and found.places is not None):
            return None
        if not split:
            column = torch.arange(len(found.rows))[:, None]
            self.columns[id(column)] = found
            self.kept.append(column)
            return (column,)
        made = tuple(self._position(found, axis) for axis in range(found.whole.ndim))
        return (made[::-1] if found.turned else made,)

    def _position(self, found: _Selection, axis: int) -> torch.Tensor:
        made = torch.arange(len(found.rows))
        self.positions[id(made)] = found, axis
        self.kept.append(made)
        return made

    def _selection(self, mask: torch.Tensor) -> _Selection | None:
        """The rows that a mask says, if its numbers are unknown and it has each row once."""
        key = id(mask), mask._version
        if key not in self.made:
            if id(mask) in self.rows:
                raise RowsMixed("rows are selected among selected rows")
            found = self._selected_by(mask)
            if found is None:
                return None
            self.made[key] = found
            value = self.ledger.value(mask)
            self.first = self.first or Call(
                0, "a selection of rows", None, (value,), {}, [], None, self.ledger.where
            )  # fmt: skip
            self.versions[id(found)] = found.versions
            self.kept.append(mask)
        return self.made[key]

    def _selected_by(self, mask: torch.Tensor) -> _Selection | None:
        if mask.ndim not in (1, 2) or not self.moves(value := self.ledger.value(mask)):
            return None
        if mask.ndim == 1:
            if mask.dtype != torch.bool:
                mask = self.record("ne", torch.ne, (mask, 0), {})
            return _Selection(mask, None)
        of = place_of_one(value)
        positions = None if of is None else self.ledger.tensor(of[0])
        if of is None or positions is None:
            return None
        places = self.record("eq", torch.eq, (positions, of[1]), {})
        count = self.record("sum", torch.sum, (places, -1), {})
        return _Selection(self.record("gt", torch.gt, (count, 0), {}), places, of[2])

    # -- reading -----------------------------------------------------------------------------
    def _of_item(self, x: torch.Tensor, item: Any) -> tuple[_Selection, bool, list[Any]] | None:
        """The selection by which a tensor is indexed, whether by rows and places, and the rest."""
        items = items_of(item)
        if not items or not isinstance(items[0], torch.Tensor):
            return None
        by_positions = id(items[0]) in self.positions
        read = self._by_positions(items) if by_positions else self._by_mask(x, items)
        if read is None:
            return None
        found, by_place, rest = read
        if found.versions != self.versions[id(found)] or id(x) in self.rows:
            raise RowsMixed("a mask of selected rows is written")
        if any(isinstance(part, (torch.Tensor, list)) for part in rest):
            return None
        shape = found.whole.shape if by_place else found.rows.shape
        return read if x.shape[: len(shape)] == shape else None

    def _by_positions(self, items: list[Any]) -> tuple[_Selection, bool, list[Any]] | None:
        found, axis = self.positions[id(items[0])]
        by_place = len(items) > 1 and isinstance(items[1], torch.Tensor)
        if axis != 0 or (by_place and self.positions.get(id(items[1])) != (found, 1)):
            return None
        return found, by_place, items[2:] if by_place else items[1:]

    def _by_mask(
        self, x: torch.Tensor, items: list[Any]
    ) -> tuple[_Selection, bool, list[Any]] | None:
        mask = items[0]
        if mask.dtype != torch.bool or not isinstance(mask, FakeTensor):
            return None
        if mask.shape != x.shape[: mask.ndim] or (found := self._selection(mask)) is None:
            return None
        return None if found.turned else (found, mask.ndim == 2, items[1:])

    def _read(self, x: torch.Tensor, item: Any) -> tuple[Any] | None:
        if id(x) in self.columns and _is_column(item):
            return (self._position(self.columns[id(x)], 0),)
        read = self._of_item(x, item)
        if read is None:
            return None
        found, by_place, rest = read
        if by_place:
            assert found.places is not None
            made = self.record("where", torch.where, (self._wide(found.places, x), x, 0), {})
            made = self.record("sum", torch.sum, (made, 1), {})
        else:
            made = self.record("clone", torch.clone, (x,), {})
        if rest:
            index = (slice(None), *rest)
            made = self.record("getitem", torch.Tensor.__getitem__, (made, index), {})
        elif not by_place:
            self.read_from[id(made)] = x, x._version
        self._mark(made, found)
        return (made,)

    def _mark(self, tensor: torch.Tensor, found: _Selection) -> None:
        self.rows[id(tensor)] = found
        self.kept.append(tensor)

    def _wide(self, mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A mask with as many axes as a tensor."""
        if like.ndim == mask.ndim:
            return mask
        shape = (*mask.shape, *(1 for _ in range(like.ndim - mask.ndim)))
        return self.record("reshape", torch.reshape, (mask, shape), {})

    # -- putting back ------------------------------------------------------------------------
    def _written(self, x: torch.Tensor, index: Any, item: Any) -> tuple[Any] | None:
        """`x[index] = item`."""
        found = self._of_item(x, index)
        if found is not None:
            return (self._put(found, x, item),)
        rows = [t for t in (x, item) if id(t) in self.rows]
        if rows and not (rows == [x] and treats_rows_alike("getitem", (x, index), {}, rows)):
            raise RowsMixed("selected rows are written")
        if rows and isinstance(item, torch.Tensor) and item.ndim:
            raise RowsMixed("selected rows are written")
        return None

    def _put(self, read: tuple[_Selection, bool, list[Any]], x: torch.Tensor, item: Any) -> None:
        found, by_place, rest = read
        if rest or by_place:
            raise RowsMixed("entries of selected rows are written")
        added = self.sums.get(id(item))
        if added is not None and added.holds_for(x):
            self._add(found, x, added.more)
            return
        self._check(found, item)
        chosen = (self._wide(found.rows, x), item, x)
        made = self.record("where", torch.where, chosen, {})
        self.record("copy", torch.Tensor.copy_, (x, made), {})

    def _check(self, found: _Selection, item: Any) -> None:
        if isinstance(item, torch.Tensor) and (item.ndim or id(item) in self.rows):
            if self.rows.get(id(item)) is not found:
                raise RowsMixed("selected rows are given other ones")

    def _add(self, found: _Selection, x: torch.Tensor, item: Any, target: Any = None) -> Any:
        self._check(found, item)
        kept = (self._wide(found.rows, x), item, 0)
        added = self.record("where", torch.where, kept, {})
        return self.record("add", target or torch.Tensor.add_, (x, added), {})

    def _indexed(
        self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """`index_add` and `index_select` along the first axis."""
        given = dict(zip(("self", "dim", "index", "source"), args, strict=False))
        given |= {"self" if key == "input" else key: item for key, item in kwargs.items()}
        found = self._of_item(given["self"], given.get("index"))
        if found is None:
            return None
        if given.get("dim") != 0 or given.keys() - {"self", "dim", "index", "source"}:
            raise RowsMixed(f"{name} of selected rows")
        if name == "index_select":
            return self._read(given["self"], given["index"])
        in_place = getattr(func, "__name__", "").endswith("_")
        target = torch.Tensor.add_ if in_place else torch.Tensor.add
        return (self._add(found[0], given["self"], given["source"], target),)


def _is_column(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and item[0] == slice(None) and item[1] == 0


def place_of_one(mask: Value) -> tuple[Value, int, bool] | None:
    """The positions by rank, and the one unit, of which a mask says the places.

    They are `positions == unit`, or one unit of `one_hot(positions)`; True if that is transposed.
    """
    call = mask.call
    if call is not None and call.name in ("eq", "__eq__") and len(call.args) == 2:
        positions, unit = call.args
        if isinstance(positions, Value) and type(unit) is int and _are_ranks(positions):
            return positions, unit, False
    return None if call is None else _of_one_hot(mask, call)


def _of_one_hot(mask: Value, call: Call) -> tuple[Value, int, bool] | None:
    made = call
    while made.name != "one_hot":  # views of it
        if made.operands[:1] == [] or made.operands[0].storage != mask.storage:
            return None
        if (before := made.operands[0].call) is None or before is made:
            return None
        made = before
    positions, whole = made.operands[0], made.outputs[0]
    if mask.storage != whole.id or len(whole.shape) != 3 or not _are_ranks(positions):
        return None
    rows, places, units = whole.strides
    unit = mask.offset - whole.offset
    if units != 1 or not 0 <= unit < whole.shape[2]:
        return None
    plain = whole.shape[:2], (rows, places)
    for turned in (False, True):
        step = -1 if turned else 1
        if (mask.shape, mask.strides) == (plain[0][::step], plain[1][::step]):
            return positions, unit, turned
    return None


def _are_ranks(positions: Value) -> bool:
    """Whether a tensor is the positions by which `topk` or a sort along the last axis choose."""
    call = positions.call
    if call is None or call.name not in _RANKS or positions is not call.outputs[-1]:
        return False
    at = 2 if call.name == "topk" else 1
    dim = call.kwargs.get("dim", call.args[at] if len(call.args) > at else None)
    return dim in (None, -1, len(positions.shape) - 1)
