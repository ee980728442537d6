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

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from paramsym.recording.choices import choices_behind, choices_that_occur, place_of_one
from paramsym.recording.graph import Call, Value, canonical_name
from paramsym.recording.in_place import tensors_in
from paramsym.recording.rowwise import items_of, treats_rows_alike
from paramsym.recording.selected import RowsMixed, Selection, Sum, versions_of
from paramsym.recording.selecting import Selector
from paramsym.recording.visits import Turns, Visits

Record = Callable[[str, Any, tuple, dict[str, Any]], Any]


class Selections:
    """Which tensors are positions of selected rows, and which are such rows."""

    def __init__(self, record: Record, selector: Selector):
        self.record, self.ledger, self.moves = record, selector.ledger, selector.by_parameter
        self.constant_of = selector.constant_of
        self.visits = Visits(self.ledger.graph)
        self.first: Call | None = None  # where rows were selected for the first time
        self.made: dict[tuple[int, int], Selection] = {}  # by mask, and how often it was written
        self.versions: dict[int, tuple[int, ...]] = {}  # of the masks, by selection
        self.positions: dict[int, tuple[Selection, int]] = {}  # with the axis of the mask
        self.columns: dict[int, Selection] = {}  # positions with one more axis of one entry
        self.rows: dict[int, Selection] = {}
        self.lifted: dict[int, torch.Tensor] = {}  # rows behind one more axis, and without it
        self.sums: dict[int, Sum] = {}  # rows of a tensor, plus other rows
        self.read_from: dict[int, tuple[torch.Tensor, int]] = {}  # the tensor whose rows these are
        self.kept: list[Any] = []  # alive, so that ids stay valid

    # -- the door ----------------------------------------------------------------------------
    def handled(
        self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Any] | None:
        """What a function gives that selects rows, reads them or puts them back, if it does."""
        if name in ("where", "nonzero", "argwhere"):
            return self._selected(name, args, kwargs)
        if name == "unique":
            return self._occurring(*args, **kwargs)
        if args and id(args[0]) in self.lifted:
            return self._lowered(func, args, kwargs)
        if name == "getitem":
            return self._read(args[0], _first(args[1]))
        if name == "setitem":
            return self._written(args[0], _first(args[1]), *args[2:])
        if args and self._is_apart(args[0]):
            return self._moved(name, args[0], args[1:])
        if self.made and name in ("index_add", "index_select"):
            return self._indexed(name, func, args, kwargs)
        return None

    def _is_apart(self, item: Any) -> bool:
        """Whether few functions may see something: positions, or rows behind one more axis."""
        return any(id(item) in known for known in (self.positions, self.columns, self.lifted))

    def _moved(self, name: str, positions: torch.Tensor, options: tuple) -> tuple[Any] | None:
        """Positions in another form: one by one, or without their second axis."""
        if name == "unbind" and options in ((), (0,)):
            turns = self._turns(positions, positions.shape[1:])
            return None if turns is None else (turns,)
        if name in ("squeeze", "flatten", "view", "reshape") and id(positions) in self.columns:
            return (self._position(self.columns[id(positions)], 0),)
        return None

    def follow(self, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """Note that results of a recorded function are selected rows, or stop."""
        if name == "__len__" or not self.made:
            return
        every = tensors_in((args, kwargs))
        if any(map(self._is_apart, every)):
            raise RowsMixed(f"{name} of selected rows or of their positions")
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
            now = versions_of(result, base, args[1])
            self.sums[id(result)] = Sum(result, base, args[1], now)

    def require_none(
        self, outputs: Sequence[tuple[str, torch.Tensor]], written: Iterable[Value]
    ) -> None:
        """Stop if an output is made of selected rows, or of what was computed for some units."""
        given = [self.ledger.value(tensor) for _, tensor in outputs]
        if why := self.visits.complaint([*given, *written]):
            raise RowsMixed(why)
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

    def _position(self, found: Selection, axis: int) -> torch.Tensor:
        made = torch.arange(len(found.rows))
        self.positions[id(made)] = found, axis
        self.kept.append(made)
        # a fake tensor answers this one by itself, entry by entry
        setattr(made, "tolist", partial(self._listed, made))  # noqa: B010
        return made

    def _listed(self, positions: torch.Tensor) -> Turns:
        with torch._C.DisableTorchFunction():
            turns = self._turns(positions, None)
        if turns is None:
            raise RowsMixed("a list of the positions of selected rows")
        return turns

    def _selection(self, mask: torch.Tensor) -> Selection | None:
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

    def _selected_by(self, mask: torch.Tensor) -> Selection | None:
        if mask.ndim not in (1, 2) or not self.moves(value := self.ledger.value(mask)):
            return None
        if mask.ndim == 1:
            if mask.dtype != torch.bool:
                mask = self.record("ne", torch.ne, (mask, 0), {})
            return Selection(mask, None)
        of = place_of_one(value)
        positions = None if of is None else self.ledger.tensor(of[0])
        if of is None or positions is None:
            return None
        places = self.record("eq", torch.eq, (positions, of[1]), {})
        count = self.record("sum", torch.sum, (places, -1), {})
        return Selection(self.record("gt", torch.gt, (count, 0), {}), places, of[2], of[:2])

    # -- units that some row chose -----------------------------------------------------------
    def _turns(self, of: torch.Tensor, shape: tuple[int, ...] | None) -> Turns | None:
        """All units, as constants of a shape or numbers, where a loop visits those of some rows."""
        found = self.columns.get(id(of)) or self.positions[id(of)][0]
        if found.places is not None:
            return None
        choices = choices_that_occur(self.ledger.graph, self.ledger.value(found.rows))
        if choices is None:
            return None
        units: list[Any] = list(range(len(of)))
        if shape is not None:
            with unset_fake_temporarily():
                numbers = [torch.full(shape, k) for k in units]
            units = [self.constant_of(k) for k in numbers]
        return Turns(units, self.visits, choices)

    def _occurring(self, of: torch.Tensor, _: bool = True, **more: Any) -> tuple[Any] | None:
        """The different units among choices, in order."""
        if any(more[key] for key in more.keys() - {"sorted"}) or not isinstance(of, FakeTensor):
            return None
        choices = choices_behind(self.ledger.value(of))
        if choices is None or choices.call is None or not self.moves(choices):
            return None
        with unset_fake_temporarily():
            count = torch.arange(choices.call.operands[0].shape[-1])
        units = self.constant_of(count)
        one = self.record("unsqueeze", torch.unsqueeze, (of, -1), {})
        made = self.record("eq", torch.eq, (one, units), {})
        made = self.record("flatten", torch.flatten, (made, 0, -2), {})
        mask = self.record("any", torch.any, (made, 0), {})
        found = self._selection(mask)
        return None if found is None else (self._position(found, 0),)

    # -- reading -----------------------------------------------------------------------------
    def _of_item(self, x: torch.Tensor, item: Any) -> tuple[Selection, bool, list[Any]] | None:
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

    def _by_positions(self, items: list[Any]) -> tuple[Selection, bool, list[Any]] | None:
        found, axis = self.positions[id(items[0])]
        by_place = len(items) > 1 and isinstance(items[1], torch.Tensor)
        if axis != 0 or (by_place and self.positions.get(id(items[1])) != (found, 1)):
            return None
        return found, by_place, items[2:] if by_place else items[1:]

    def _by_mask(
        self, x: torch.Tensor, items: list[Any]
    ) -> tuple[Selection, bool, list[Any]] | None:
        mask = items[0]
        if mask.dtype != torch.bool or not isinstance(mask, FakeTensor):
            return None
        if mask.shape != x.shape[: mask.ndim] or (found := self._selection(mask)) is None:
            return None
        return None if found.turned else (found, mask.ndim == 2, items[1:])

    def _read(self, x: torch.Tensor, item: Any) -> tuple[Any] | None:
        if id(x) in self.columns and _is_column(item):
            return (self._position(self.columns[id(x)], 0),)
        if isinstance(item, tuple) and item[:1] == (None,):
            return self._lift(self._read(x, item[1:]))
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

    def _lift(self, read: tuple[Any] | None) -> tuple[Any] | None:
        """Rows behind a new axis, which only what takes it away again may see."""
        if read is None or id(read[0]) not in self.rows:
            return None
        made = self.record("unsqueeze", torch.unsqueeze, (read[0], 0), {})
        self.lifted[id(made)] = read[0]
        self.kept.append(made)
        return (made,)

    def _lowered(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any] | None:
        rows, name = self.lifted[id(args[0])], canonical_name(func)
        views = ("reshape", "view", "flatten", "squeeze", "getitem")
        same = name in views and func(*args, **kwargs).shape == rows.shape
        return (rows,) if same else None

    def _mark(self, tensor: torch.Tensor, found: Selection) -> None:
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

    def _put(self, read: tuple[Selection, bool, list[Any]], x: torch.Tensor, item: Any) -> None:
        found, by_place, rest = read
        if rest or by_place:
            raise RowsMixed("entries of selected rows are written")
        added = self.sums.get(id(item))
        if added is not None and added.holds_for(x):
            self._add(found, x, added.more)
            return
        self._check(found, item)
        with self.visits.putting_back(found.chosen):
            chosen = (self._wide(found.rows, x), item, x)
            made = self.record("where", torch.where, chosen, {})
            self.record("copy", torch.Tensor.copy_, (x, made), {})

    def _check(self, found: Selection, item: Any) -> None:
        if isinstance(item, torch.Tensor) and (item.ndim or id(item) in self.rows):
            if self.rows.get(id(item)) is not found:
                raise RowsMixed("selected rows are given other ones")

    def _add(self, found: Selection, x: torch.Tensor, item: Any, target: Any = None) -> Any:
        self._check(found, item)
        with self.visits.putting_back(found.chosen):
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


def _first(index: Any) -> Any:
    """What is in brackets, without axes behind the first that are read as a whole."""
    rest = index[1:] if isinstance(index, tuple) else ()
    whole = all(isinstance(item, slice) and item == slice(None) for item in rest)
    return index[0] if rest and whole else index
