"""Tables that are read twice: as what is written, and as the weight of what lacks a direction.

A table E of tokens that is the last layer, too, is multiplied there by an h with w·h = κ, as behind
a norm of gain γ, where w = 1/γ. If its rows move by e ↦ e + w (z·e), the product changes by E z κ,
which the bias that is added to it takes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from paramsym.primitives import Sum
from paramsym.primitives.directions import Profile
from paramsym.primitives.joint import Joint
from paramsym.primitives.tensor import Tensor
from paramsym.primitives.words import Letter, Speller, Word, frame_words, fresh
from paramsym.structure.shift import Term
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.kappa import parameters_of
from paramsym.tracing.sides import Side, contracted, side_of
from paramsym.tracing.subspaces import Unread


class Dual(NamedTuple):
    """A product of a table with what has w·h = κ, and the bias that takes up what it changes by."""

    table: Side
    profile: Profile  # w
    constant: tuple[tuple[float, tuple[Word, ...]], ...]  # the words of κ, with their weights
    bias: Side | None  # where κ is zero
    rest: tuple[tuple[int, int], ...]  # slots of the table, with those of the bias

    @property
    def reads(self) -> set[str]:
        """The parameters of which w and κ are made."""
        return self.profile.parameters.union(*(parameters_of(words) for _, words in self.constant))

    def along(self, parameters: Mapping[str, Tensor], letter: Letter) -> tuple[Word, ...]:
        """w as factors."""
        return tuple(frame_words(self.profile, parameters, letter, 1))

    def terms(self, spell: Speller, z: Letter) -> Iterator[Term]:
        """b −= E z κ."""
        if self.bias is None:
            return
        letters = {s: fresh() for s, _ in self.table.slots} | {self.table.slot: z}
        read = tuple(letters[s] for s, _ in self.table.slots)
        table = Word(self.table.name, self.table.block.start, self.table.slots, read)
        into = {theirs: letters[mine] for mine, theirs in self.rest}
        moved = tuple(into[s] for s, _ in self.bias.slots)
        for weight, words in self.constant:
            own = spell.apart()
            window = own.window(self.bias.name, self.bias.block.start, self.bias.slots, moved)
            yield Term(window, -weight, tuple(map(own.factor, (table, *words))))


def dual_of(
    circuit: Circuit, unread: Unread, parameters: Mapping[str, Tensor], side: Side, joint: Joint,
    k: int,
) -> Dual | None:  # fmt: skip
    """A table as the weight of what has no part along a direction but a constant, if it is one."""
    theirs = contracted(joint, k, side.slot)
    if theirs is None:
        return None
    for absence in unread.absent[joint.keys[1 - k]]:
        profile = absence.profile
        plain = not (profile.kernel or profile.transposed or any(o.at for o in absence.offset))
        if plain and profile.parameters <= parameters.keys() and absence.strides == (theirs,):
            if absence.is_zero:
                return Dual(side, profile, (), None, ())
            constant = tuple((o.weight, o.spelled(profile, parameters)) for o in absence.offset)
            found = _bias(circuit, parameters, side, joint, k)
            return None if found is None else Dual(side, profile, constant, *found)
    return None


def _bias(
    circuit: Circuit, parameters: Mapping[str, Tensor], side: Side, joint: Joint, k: int
) -> tuple[Side, tuple[tuple[int, int], ...]] | None:
    """What is added to the product of a table alone, and varies as the table does."""
    readers = circuit.readers[joint.out.key]
    if len(readers) != 1 or circuit.is_seen(joint.out.key):
        return None
    ((adding, n),) = readers
    if type(adding.op) is not Sum or len(adding.inputs) != 2:
        return None
    there = {s: adding.forward(n).get(t) for s, t in joint.forward(k).items()}
    mine = {t: s for s, t in adding.forward(1 - n).items()}
    rest = tuple((s, mine[t]) for s, t in there.items() if t in mine)
    block = adding.inputs[1 - n]
    alone = len(circuit.readers[block.key]) == 1
    if not alone or not len(rest) == len(side.block.sizes) - 1 == len(block.sizes):
        return None
    bias = side_of(circuit, parameters, block, -1)
    return None if bias is None else (bias, rest)
