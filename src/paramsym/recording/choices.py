"""Units that each row chooses: what masks say of the indices that `topk` or a sort gives."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from paramsym.recording.graph import Call, Graph, Value
from paramsym.recording.replay import Replay

_RANKS = {"topk", "sort", "argsort"}
_TRIED = 24  # random choices by which a mask of units is recognised
_LONGEST = 40  # calls between choices and such a mask


def place_of_one(mask: Value) -> tuple[Value, int, bool] | None:
    """The positions by rank, and the one unit, of which a mask says the places.

    They are `positions == unit`, or one unit of `one_hot(positions)`; True if that is transposed.
    """
    call = mask.call
    if call is not None and call.name in ("eq", "__eq__") and len(call.args) == 2:
        positions, unit = call.args
        if isinstance(positions, Value) and type(unit) is int and are_choices(positions):
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
    if mask.storage != whole.id or len(whole.shape) != 3 or not are_choices(positions):
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


def are_choices(positions: Value) -> bool:
    """Whether a tensor is the indices by which `topk` or a sort along the last axis choose."""
    call = positions.call
    if call is None or call.name not in _RANKS or positions is not call.outputs[-1]:
        return False
    at = 2 if call.name == "topk" else 1
    dim = call.kwargs.get("dim", call.args[at] if len(call.args) > at else None)
    return dim in (None, -1, len(positions.shape) - 1)


def choices_that_occur(graph: Graph, mask: Value) -> Value | None:
    """The choices of which a mask says for each unit whether some row made it, by trial."""
    found = choices_behind(mask)
    if found is None or found.call is None:
        return None
    count = found.call.operands[0].shape[-1]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), unset_fake_temporarily():
        for _ in range(_TRIED):
            replay = Replay(graph)
            drawn = replay.known[found.id] = _drawn(found.shape, count, generator)
            try:
                said = replay.constant(mask)
            except Exception:  # other numbers lead to it, too
                return None
            occur = torch.isin(torch.arange(count), drawn)
            if said.shape != occur.shape or not torch.equal(said != 0, occur):
                return None
    return found


def choices_behind(mask: Value) -> Value | None:
    """The last choices among what a value is computed from."""
    frontier, seen = [mask], 0
    while frontier and seen < _LONGEST:
        value = max(frontier, key=lambda v: v.id)
        if are_choices(value):
            return value
        frontier = [v for v in frontier if v is not value]
        frontier += [] if value.call is None else value.call.operands
        seen += 1
    return None


def _drawn(shape: tuple[int, ...], count: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of different units out of some of them, and one row out of all."""
    places, rows = shape[-1], max(1, torch.Size(shape[:-1]).numel())
    some = int(torch.randint(places, count + 1, (), generator=generator))
    among = torch.randperm(count, generator=generator)[:some]
    made = torch.stack(
        [among[torch.randperm(some, generator=generator)[:places]] for _ in range(rows)]
    )
    made[-1] = torch.randperm(count, generator=generator)[:places]
    return made.reshape(shape)
