"""A change of a parameter and what becomes of it, followed to the end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

from paramsym.structure.symmetry import Factor, Term, Window
from paramsym.tracing.absence import Absence, frame_factors
from paramsym.tracing.blocks import Block
from paramsym.tracing.builder import Op, Tensor
from paramsym.tracing.mixing import Frame
from paramsym.tracing.perturb import (
    Circuit,
    Joint,
    Key,
    Known,
    Piece,
    State,
    Transfer,
    Unknown,
    fresh_letters,
    parameter_factor,
    window_of,
)

_MAX_STEPS = 4000


@dataclass(frozen=True)
class Injection:
    """A parameter that is added to a block: letters of the block's slots ↔ the parameter's."""

    name: str
    block: Block
    weight: float
    slots: tuple[tuple[int, int], ...]  # stride in the block → stride in the parameter
    buffer: bool


class Families(Protocol):
    """What a journey has to know of the network."""

    circuit: Circuit
    parameters: dict[str, Tensor]
    injections: dict[Key, list[Injection]]
    absent: dict[Key, Absence]
    verdicts: dict[tuple, frozenset[Frame] | None]


class Journey:
    """Follows one change to its end; collects what compensates it and the frames it needs."""

    def __init__(
        self, families: Families, source: str, letters: str, with_buffers: bool = False,
        transvect: bool = False,
    ):  # fmt: skip
        self.families, self.source, self.with_buffers = families, source, with_buffers
        self.circuit = families.circuit
        self.transfer = Transfer(self.circuit, letters)
        self.terms: list[Term] = []
        self.frames: set[Frame] = set()
        self.transvect = transvect
        self.readers: list[tuple[Absence, Term]] = []
        self.steps = 0
        self.pending: dict[Key, State] = {}
        self.visited: set[Key] = set()
        self.absent: tuple[Op, dict[int, str]] | None = None
        self.touched: dict[tuple, Key] = {}  # products that see a change, and through what

    def run(self, key: Key, state: State) -> bool:
        """True if the change has no effect in the end."""
        pending = self.pending
        if not self._arrive(key, state):
            return False
        while pending:
            key = min(pending, key=self._order)
            state = pending.pop(key)
            if not self._visit(key, state):
                return False
        return True

    def _order(self, key: Key) -> int:
        readers = self.circuit.readers.get(key, [])
        return min((self.circuit.position[id(j.op)] for j, _ in readers), default=1 << 60)

    def _arrive(self, key: Key, state: State) -> bool:
        """A change reaches a block: cancel it here, or let its readers see it."""
        if isinstance(state, Unknown):
            frames = self._unseen(key, state)
            if frames is None:
                return False
            self.frames |= frames
            return True
        if key in self.pending:
            previous = self.pending[key]
            assert isinstance(previous, Known)
            state = _merge(previous, state)
        if not state.pieces:
            self.pending.pop(key, None)
            return True
        self.pending[key] = state
        return True

    def _visit(self, key: Key, state: State) -> bool:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            return False
        assert isinstance(state, Known)
        if self._cancel(key, state):
            return True
        if key not in self.circuit.readers:
            return False  # nobody is known to read it: nothing can be said
        if key[0] in self.circuit.outputs:
            return False
        self.visited.add(key)
        for joint, k in self.circuit.readers.get(key, []):
            if any(other in self.pending for n, other in enumerate(joint.keys) if n != k) and (
                joint.op.kind == "contract"
            ):  # fmt: skip
                return False  # both factors of a product change
            plain = len(state.pieces) == 1 and not state.pieces[0].factors
            plain = plain and state.pieces[0].coefficient == 1.0
            if self.transvect and plain and self._absorb_in_weight(key, joint, k):
                continue
            if joint.op.kind == "contract":
                touched = (id(joint.op), joint.out.key)
                if self.touched.setdefault(touched, joint.keys[k]) != joint.keys[k] and any(
                    n != k and other in self.visited for n, other in enumerate(joint.keys)
                ):  # fmt: skip
                    return False
            result = self._at_absence(joint, k)
            if result is None:
                result = self.transfer(joint, k, state)
            if result == "seen":
                return False
            if result == "unseen":
                self.frames.add(())
            elif not self._arrive(joint.out.key, result):  # type: ignore[arg-type]
                return False
        return True

    def _at_absence(self, joint: Joint, k: int) -> State | str | None:
        """What a change of a weight along an absent direction does: a constant, or nothing."""
        if self.absent is None or joint.op is not self.absent[0]:
            return None
        absence = self.families.absent.get(joint.keys[1 - k])
        if absence is None or joint.op.inputs[0] is joint.op.inputs[1]:
            return "seen"
        letters = self.absent[1]
        mine = self.circuit.label_slots(joint, k)
        target = self.circuit.label_slots(joint, -1)
        carried = tuple(
            sorted((s, letters[mine[at]]) for at, s in target.items() if mine.get(at) in letters)
        )
        pieces = tuple(Piece(scale, factors, carried) for scale, factors, _ in absence.offset)
        return Known(pieces) if pieces else "unseen"

    def _cancel(self, key: Key, state: Known) -> bool:
        """Let a parameter that is added here take the change away."""
        options = sorted(self.families.injections.get(key, []), key=lambda i: i.buffer)
        for option in options:
            if option.name == self.source or (option.buffer and not self.with_buffers):
                continue
            slots = dict(option.slots)
            if all(s in slots for piece in state.pieces for s, _ in piece.letters):
                for piece in state.pieces:
                    letters = {slots[s]: c for s, c in piece.letters}
                    used = set(letters.values()) | self.transfer.reserved
                    for factor in piece.factors:
                        used |= set(factor.window.letters)
                    window = window_of(option.block, letters, option.name, fresh_letters(used))
                    coefficient = -piece.coefficient / option.weight
                    self.terms.append(Term(window, coefficient, piece.factors))
                return True
        return False

    def _absorb_in_weight(self, key: Key, joint: Joint, k: int) -> bool:
        absence = self.families.absent.get(key)
        if absence is None or joint.op.kind != "contract" or not absence.offset:
            return False
        weight = joint.inputs[1 - k]
        found = parameter_factor(weight.tensor) if weight.tensor.moves else None
        mine = self.circuit.label_slots(joint, k)
        theirs = self.circuit.label_slots(joint, 1 - k)
        target = self.circuit.label_slots(joint, -1)
        at = next((at for at, s in mine.items() if s == absence.stride), None)
        if at is None or found is None or found[1:] != (1.0, 0.0):
            return False
        if at in target or at not in theirs:
            return False
        if not self.circuit.is_whole(joint.inputs[k], absence.stride):
            return False
        if len(self.circuit.readers[weight.key]) != 1 or found[0] == self.source:
            return False
        (letter,) = self.transfer.reserved
        read = window_of(weight, {theirs[at]: letter}, found[0], iter("bcdefgh"))
        write = Window(read.parameter, read.letters.replace(letter, "w"), read.shape, read.strides,
                       read.start)  # fmt: skip
        along = tuple(frame_factors(self.families.parameters, absence.frame, "w", 1))
        self.readers.append((absence, Term(write, 1.0, (Factor(read), *along))))
        return True

    def _unseen(self, key: Key, state: Unknown) -> frozenset[Frame] | None:
        """The frames in which an unknown change stays unseen downstream; None if it is seen."""
        verdicts = self.families.verdicts
        start = (key, state)
        explored: set[tuple[Key, Unknown]] = set()
        frames: set[Frame] = set()
        stack = [start]
        while stack:
            item = stack.pop()
            if item in verdicts:
                known = verdicts[item]
                following = [] if known is not None else None
                frames |= known or frozenset()
            elif item in explored:
                continue
            else:
                explored.add(item)
                following = self._spread(*item, frames)
            if following is None:  # whatever led here is seen, and so is where it started
                verdicts[start] = None
                return None
            stack.extend(following)
        for item in explored:
            verdicts[item] = frozenset(frames)
        return verdicts[start]

    def _spread(
        self, key: Key, state: Unknown, frames: set[Frame]
    ) -> list[tuple[Key, Unknown]] | None:
        """Where a change goes next; None if somebody sees it."""
        readers = self.circuit.readers.get(key)
        if not state.constant or key[0] in self.circuit.outputs or not readers:
            return None
        found: list[tuple[Key, Unknown]] = []
        for joint, k in readers:
            result = self.transfer(joint, k, state)
            if result == "seen":
                return None
            if result == "unseen":
                frames.add(self.transfer.frame_at(joint, k, state))
            elif isinstance(result, Unknown):
                found.append((joint.out.key, result))
        return found


def _merge(a: Known, b: Known) -> Known:
    """Sum of two known changes; terms that cancel disappear."""
    total: dict[tuple, float] = defaultdict(float)
    for piece in (*a.pieces, *b.pieces):
        total[piece.factors, piece.letters] += piece.coefficient
    return Known(tuple(Piece(c, f, s) for (f, s), c in total.items() if abs(c) > 1e-12))
