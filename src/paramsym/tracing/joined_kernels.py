"""Kernels along several slots at once: what heads write together, and nobody sees.

Where a weight reads what is constant along w, W += u wᵀ adds the same u to all that it writes; so
does a bias. Attention passes u on, as its weights sum to one, and then a weight O maps heads and
their coordinates to the stream: nobody sees u if O u is what nobody sees there, a multiple of ones
in front of a norm, say. The kernel of O modulo ones runs over heads and coordinates together, which
lie side by side in both parameters, and so count as one axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from paramsym.primitives.base import are_gains
from paramsym.primitives.directions import Columns, joined_size
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Letter, Speller, Word, frame_words, fresh
from paramsym.structure.shift import Shift, Term
from paramsym.tracing.sources import Source
from paramsym.tracing.subspaces import Unread


class _Axis(NamedTuple):
    """Slots that lie side by side and count as one: the stride of the innermost, and the size."""

    stride: int
    size: int


def joined_kernels(
    sources: Iterable[Source], unread: Unread, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[tuple, Shift]]:
    """Of sources that nothing absorbs, what lies in the kernel of the weight that reads it."""
    for source in sources:
        axis = _axis(source)
        columns = None if axis is None else _columns(source, axis, unread)
        if axis is not None and columns is not None and columns.count < axis.size:
            if {*columns.parameters, *source.reads} <= parameters.keys() - {source.name}:
                place = source.name, source.block.key[1], "joined", source.cut
                yield place, _written(source, axis, columns, parameters)


def _axis(source: Source) -> _Axis | None:
    """The slots of δ as one, if a source is moved along all of them, and by nothing else."""
    absence = source.absence
    plain = not (source.flat or source.pinned or source.kernel) and source.letters
    if absence is not None and (absence.profile.kernel or absence.outer or not source.divided):
        return None
    if not plain or (absence is None and len(source.letters) < 2):
        return None  # kernels along one slot are sources of their own
    rest = {*source.block.sizes} - {*source.letters}
    strides = sorted(source.letters)
    size = joined_size(tuple(strides), source.block.sizes)
    return _Axis(strides[0], size) if size and rest <= {source.cut} else None


def _columns(source: Source, axis: _Axis, unread: Unread) -> Columns | None:
    """The columns of a weight that are all of an effect, up to what nobody sees of them."""
    if len(source.effect) != 1:
        return None
    ((sink, change),) = source.effect.values()
    if change.atom is not None or len(change.factors) != 1 or len(change.at) != 1:
        return None
    (word,) = change.factors
    ((slot, letter),) = change.at.items()
    rows = _rows(word, letter, source, axis)
    if rows is None:
        return None
    stride, slots = rows
    for pattern in unread[sink]:
        profile = pattern.get(slot) if len(pattern) == 1 else None
        if profile is not None and not profile.kernel and are_gains(profile.frame):
            modulo = ((slots[0][0], profile.frame),)
            return Columns(word.parameter, word.start, slots, stride, (), modulo)
    return None


def _rows(
    word: Word, letter: Letter, source: Source, axis: _Axis
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """A weight seen as one from the axis of δ to one letter: its stride along δ, and both slots."""
    plain = (word.power, word.offset, word.kernel) == (1, 0, ())
    at = dict(zip(word.letters, word.slots, strict=True))
    mine = [at.pop(source.letters[s]) for s in sorted(source.letters) if source.letters[s] in at]
    whole = len(mine) == len(source.letters) and at.keys() == {letter}
    if not plain or not whole or len(mine) + 1 != len(word.slots):
        return None
    stride, _ = mine[0]
    if joined_size(tuple(s for s, _ in mine), dict(mine)) != axis.size:
        return None
    return stride, (at[letter], (stride, axis.size))


def _written(
    source: Source, axis: _Axis, columns: Columns, parameters: Mapping[str, Tensor]
) -> Shift:
    """The finite motion: δ as far as it lies in the kernel, along what the input always has."""
    spell, free, out = Speller(), fresh(), fresh()
    text = spell.letter(free)
    word = Word(
        columns.parameter, columns.start, ((0, axis.size),) * 2, (out, free), kernel=(columns,)
    )
    target, words = _target(source, axis, out, parameters)
    slots, letters = zip(*target, strict=True)
    window = spell.window(source.name, source.block.start, slots, letters)
    term = Term(window, 1.0, tuple(map(spell.factor, (word, *words))))
    kind = "origin" if source.absence is None else "absent"
    name = source.name if source.absence is None else f"{source.name}.unreceived"
    family = "what several heads write together, and no reader sees"
    return Shift(name, family, text, (axis.size,), (term,), kind=kind)


def _target(
    source: Source, axis: _Axis, out: Letter, parameters: Mapping[str, Tensor]
) -> tuple[list[tuple[tuple[int, int], Letter]], list[Word]]:
    """The slots of the source with their letters, and the direction along the one that is cut."""
    target = [((axis.stride, axis.size), out)]
    if source.absence is None or source.cut is None:
        return target, []
    into = fresh()
    target.append(((source.cut, source.block.sizes[source.cut]), into))
    return target, list(frame_words(source.absence.profile, parameters, into, 1))
