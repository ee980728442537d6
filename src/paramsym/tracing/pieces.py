"""Relations between the pieces of an axis that was joined: what a softmax says of all of them.

A softmax over keys that were joined has a block for each piece. Its shares sum to one over all of
them, Σₖ Pₖ = 1, and it does not see what is added to all its scores alike, nor does a norm that
centers. Both are relations of monomials: the last piece is told by the others. Effects are written
so, that two are equal if they are equal by these relations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paramsym.primitives import Primitive
from paramsym.primitives.blocks import Place
from paramsym.primitives.joint import Key
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Atom, Change, Letter, fresh
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.division import Monomial

Pieces = dict[Key, Place]  # the blocks of one tensor that differ in their place on one axis


def without_last(
    monomial: Monomial, own: frozenset[Letter], circuit: Circuit
) -> tuple[list[Monomial], list[Monomial]] | None:
    """What a monomial of the last piece is by the others, and as a constant, which goes on from
    there; None where no relation speaks of it."""
    if circuit.layout.coarse:
        return None
    found = _of_shares(monomial, own, circuit)
    return found if found is not None else _of_scores(monomial, circuit)


def _of_shares(
    monomial: Monomial, own: frozenset[Letter], circuit: Circuit
) -> tuple[list[Monomial], list[Monomial]] | None:
    """Pₙ δ = δ − Σ Pₖ δ."""
    sink, change = monomial
    if change.atom is None:
        return None
    last = change.atom.key[0], change.atom.key[1]
    writers = circuit.writers.get(last)  # a mark is no block, and has none
    owner = writers[0].out.tensor.owner if writers else None
    if owner is None or owner.total is None:
        return None
    dim, total = owner.total
    step, pieces = owner.strides[dim], _pieces(last, owner, dim, circuit)
    if len(pieces) < 2 or max(pieces) != last:
        return None
    kept = _kept(change, _slots(pieces[last], step), own)
    if kept is None:
        return None
    others = [
        (sink, replace(change, coefficient=-change.coefficient, atom=_atom(key, kept, place, step)))
        for key, place in pieces.items() if key != last
    ]  # fmt: skip
    loose = {x for _, x in kept} - own - change.letters()  # along these the data alone vary
    at = {s: x for s, x in change.at.items() if x not in loose}
    return others, [(sink, Change(total * change.coefficient, at, change.factors))]


def _of_scores(
    monomial: Monomial, circuit: Circuit
) -> tuple[list[Monomial], list[Monomial]] | None:
    """What is added to the scores of the last piece alike is taken from those of all others."""
    sink, change = monomial
    pieces, slots = _read_alike(sink, circuit)
    if len(pieces) < 2 or max(pieces) != sink or change.at.keys() & slots:
        return None
    return [(key, change.moved(change.at, -1.0)) for key in pieces if key != sink], []


def along_pieces(effect: Iterable[Monomial], circuit: Circuit) -> set[Letter]:
    """The letters along an axis that was joined, where what is added to all of it alike is not
    seen: a change without them may cancel with changes of the other pieces."""
    found: set[Letter] = set()
    for sink, change in () if circuit.layout.coarse else effect:
        pieces, slots = _read_alike(sink, circuit)
        if len(pieces) > 1:
            found |= {x for s, x in change.at.items() if s in slots}
    return found


def _read_alike(sink: Key, circuit: Circuit) -> tuple[Pieces, frozenset[int]]:
    """The pieces of an axis of which nobody sees what is added to all of them alike, a block among
    them, and its slots there; none where somebody does."""
    op = _only_reader(sink, circuit)
    if op is None or not op.common:
        return {}, frozenset()
    joint, k = circuit.readers[sink][0]
    block = joint.inputs[k]
    pieces = [_pieces(sink, block.tensor, dim, circuit) for dim in op.common]
    joined = [found for found in pieces if len(found) > 1]
    if len(joined) != 1 or any(_only_reader(key, circuit) is not op for key in joined[0]):
        return {}, frozenset()
    return joined[0], frozenset(s for axis, _, s in block.slots if axis in op.common)


def _only_reader(key: Key, circuit: Circuit) -> Primitive | None:
    """The one operation that reads a block; None where others see it, too."""
    ops = {joint.op for joint, _ in circuit.readers.get(key, [])}
    return ops.pop() if len(ops) == 1 and not circuit.is_seen(key) else None


def _pieces(key: Key, tensor: Tensor, dim: int, circuit: Circuit) -> Pieces:
    """The blocks of a tensor beside one of them, along one axis; none where that is not one of its
    own."""
    step, places = tensor.strides[dim], circuit.layout.places(tensor.axes[dim])
    inside = (key[1] - tensor.offset) // step % tensor.shape[dim] if step else 0
    here = max((p.start for p in places if p.start <= inside), default=None)
    if here is None or len({p.start for p in places}) < len(places):
        return {}
    found = {(key[0], key[1] + (p.start - here) * step): p for p in places}
    return found if all(other in circuit.lengths for other in found) else {}


def _slots(place: Place, step: int) -> frozenset[int]:
    return frozenset(step * stride for _, stride in place.leaves)


def _kept(
    change: Change, slots: frozenset[int], own: frozenset[Letter]
) -> tuple[tuple[int, Letter], ...] | None:
    """The other slots of an atom that is summed along some, and along no others.

    None where anything else has a letter of these, or the atom is summed along others, too.
    """
    atom = change.atom
    assert atom is not None
    summed = {x for s, x in atom.at if s in slots}
    kept = tuple((s, x) for s, x in atom.at if s not in slots)
    held = own.union(change.letters(), change.at.values())
    met = {x for _, x in kept}
    return None if summed & (held | met) or not met <= held else kept


def _atom(key: Key, kept: tuple[tuple[int, Letter], ...], place: Place, step: int) -> Atom:
    return Atom(key, tuple(sorted([*kept, *((s, fresh()) for s in _slots(place, step))])))
