"""What an element does to the quantised weights of a checkpoint, or why it cannot be done."""

from __future__ import annotations

from collections.abc import Collection

from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.streaming.quantised import (
    StoredMove,
    StoredWeight,
    Unsaid,
    axis_moves,
    stored_move,
    unsaid_by_any,
)
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.needs import steps

_EXPECTED = (
    "orders of whole blocks, and positive scales that are constant on each block: all that can be "
    "said in codes which stay as they are"
)


class CannotSay(CheckpointError):
    """Codes cannot say what an element does; `movers` are the spaces and shifts of it that do so.

    Without them the element goes through.
    """

    def __init__(self, where: str, came: str, expected: str, instead: str, movers: list[str]):
        super().__init__(where, came, expected, instead)
        self.movers = movers


def stored_moves(storage: Storage, element: GroupElement) -> dict[str, StoredMove]:
    """How each part of a quantised weight moves, by its name in the files.

    Args:
        storage: of a checkpoint.
        element: that moves it.

    Returns:
        The parts that are others afterwards.

    Raises:
        CannotSay: what the element does to a weight cannot be said in its codes and scales; the
            weight, its layout, and the spaces that do so are named.
        CheckpointError: what stands beside a weight that moves is unknown.
    """
    moved = [
        name for model, name in storage.models.items()
        if model in steps(storage.symmetry, element, model).moved_names
    ]  # fmt: skip
    storage.require_no_strangers(moved)
    weights = [storage.weight(name) for name in moved]
    found: dict[str, StoredMove] = {}
    for weight in weights:
        said, unsaid = _said(storage, weight, element)
        if unsaid:
            raise _cannot(storage, weights, element)
        found |= said
    _require_unread(storage, element)
    return {name: move for name, move in found.items() if move.moves}


def _said(
    storage: Storage, weight: StoredWeight, element: GroupElement
) -> tuple[dict[str, StoredMove], list[Unsaid]]:
    """How the parts of one weight move, and all that they cannot say."""
    moves = axis_moves(storage.symmetry, element, weight.model)
    found, unsaid = {}, list(unsaid_by_any(weight, moves))
    for part in weight.parts:
        try:
            found[part.name] = stored_move(weight, part, moves)
        except Unsaid as error:
            unsaid.append(error)
    return found, unsaid


def _cannot(storage: Storage, weights: list[StoredWeight], element: GroupElement) -> CannotSay:
    """One error for all that cannot be said, with the spaces to leave out."""
    refused = [(w, u) for w in weights for u in _said(storage, w, element)[1]]
    weight, first = refused[0]
    guilty = _guilty(storage, weight, element, first)
    left = _without(element, movers := dict.fromkeys(guilty))
    while again := [(w, u) for w in weights for u in _said(storage, w, left)[1]]:
        movers |= {m: None for w, u in again for m in _guilty(storage, w, left, u)}
        left = _without(element, movers)
    types = ", ".join(map(str, storage.symmetry.signature[weight.model]))
    also = len({own.name for own, _ in refused}) - 1
    more = f"; so are {also} more" if also else ""
    others = f": --only with others, such as {few([*left.places])}" if left.places else (
        ", and nothing is left")  # fmt: skip
    return CannotSay(
        storage.checkpoint.place.address,
        f"{weight.name!r} ({weight.layout}; type {types}) is moved by {few(guilty)} in a way that "
        f"its codes cannot say: {first.reason}{more}",
        _EXPECTED, f"Leave {few([*movers])} out of the element{others}; or move the weights that "
        "it was quantised from", [*movers],
    )  # fmt: skip


def _guilty(
    storage: Storage, weight: StoredWeight, element: GroupElement, unsaid: Unsaid
) -> list[str]:
    """Who alone could not be said either, of those that move an axis; all of them if nobody is."""
    movers = list(dict.fromkeys(unsaid.movers))

    def alone(mover: str) -> GroupElement:
        return _without(element, [name for name in element.places if name != mover])

    return [m for m in movers if _said(storage, weight, alone(m))[1]] or movers


def _without(element: GroupElement, names: Collection[str]) -> GroupElement:
    """An element in which some spaces and shifts stay where they are."""
    parts = []
    for part in element.parts:
        if isinstance(part, Slide):
            kept = None if part.shift in names else part
        else:
            kept = {name: value for name, value in part.items() if name not in names}
        parts += [kept] if kept else []
    return GroupElement(element.symmetry, tuple(parts))


def _require_unread(storage: Storage, element: GroupElement) -> None:
    """Raise where a tensor that is not quantised moves by what a quantised one is."""
    for model in storage.symmetry.movers:
        if model in storage.models:
            continue
        read = [n for n in steps(storage.symmetry, element, model).names if n in storage.models]
        if read:
            raise CheckpointError(
                storage.checkpoint.place.address,
                f"{model!r} moves by the entries of {few(read)}, which are quantised",
                "weights to compute with", "Leave the shift that does so out, with --only; or move "
                "the weights that they were quantised from",
            )  # fmt: skip
