"""Additive freedom: every way in which parameters may slide by any amount.

Each family starts at one parameter and asks what becomes of a change of it: of the whole
parameter, or of a part that is constant along one axis. Three further families come from an
activation that never has a component along some direction (what leaves a layer norm sums to zero
before its gain): whatever reads it may change along that direction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from paramsym.structure.symmetry import Factor, Shift, Term, Window
from paramsym.tracing.absence import Absence, Absences, frame_factors
from paramsym.tracing.blocks import Block, Layout, tensor_blocks
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.journey import Injection, Journey
from paramsym.tracing.mixing import Frame
from paramsym.tracing.perturb import (
    Circuit,
    Joint,
    Key,
    Known,
    Piece,
    State,
    Unknown,
    fresh_letters,
    is_linear_sum,
    parameter_factor,
    window_of,
)


def find_shifts(
    build: Builder, layout: Layout, parameters: dict[str, Tensor], further: list[Shift]
) -> tuple[Shift, ...]:
    """All shift families of a lowered network; `further` ones share their numbering of names."""
    fine = _Families(build, layout, parameters)
    found = fine.all()
    if any(_joined(t, layout) for op in build.ops for t in (op.out,)):
        started = {shift.name for shift in found}
        coarse = _Families(build, Layout(coarse=True), parameters)
        found += [shift for shift in coarse.all(started) if shift.name not in started]
    return tuple(_rename([*found, *further]))


def _joined(tensor: Tensor, layout: Layout) -> bool:
    coarse = Layout(coarse=True)
    return tensor.moves and any(
        len(layout.places(node)) > len(coarse.places(node)) for node in tensor.axes
    )


class _Families:
    """All attempts on one layout of blocks."""

    def __init__(self, build: Builder, layout: Layout, parameters: dict[str, Tensor]):
        self.build, self.layout, self.parameters = build, layout, parameters
        self.circuit = Circuit(build, layout)
        self.sources: dict[str, Tensor] = dict(parameters)
        self.injections: dict[Key, list[Injection]] = defaultdict(list)
        for name, tensor in self.sources.items():
            for block in tensor_blocks(tensor, layout):
                self._inject(name, tensor, block)
        self.absent = Absences(self.circuit, layout, parameters).find()
        self.verdicts: dict[tuple, frozenset[Frame] | None] = {}

    def all(self, known: set[str] | frozenset[str] = frozenset()) -> list[Shift]:
        """Every family that was found; sources whose whole block is known are passed over."""
        found: list[Shift] = []
        for name, tensor in self.sources.items():
            for number, block in enumerate(tensor_blocks(tensor, self.layout)):
                tag = name if number == 0 else f"{name}.{number}"
                if block.key in self.circuit.readers and tag not in known:
                    found += self._from_source(name, block, number)
        found += self._unreceived()
        return found

    # -- who can cancel what -----------------------------------------------------------------
    def _inject(self, name: str, tensor: Tensor, block: Block) -> None:
        """Follow a parameter while it is simply added and read by nobody else."""
        identity = {s: s for _, _, s in block.slots()}
        key, weight = block.key, 1.0
        seen = 0
        while seen < 12:
            seen += 1
            if key[0] in self.circuit.outputs:
                return
            readers = self.circuit.readers.get(key, [])
            if len(readers) != 1:
                return
            joint, k = readers[0]
            op = joint.op
            if not (is_linear_sum(op) or op.kind in ("lookup", "concatenate", "offset")):
                return
            if op.kind == "same":
                weight *= float(op.data["signs"][k]) * op.data.get("factor", 1.0)
            mine = self.circuit.label_slots(joint, k)
            target = self.circuit.label_slots(joint, -1)
            identity = {
                target[at]: identity[s] for at, s in mine.items() if s in identity and at in target
            }
            key = joint.out.key
            self.injections[key].append(
                Injection(name, block, weight, tuple(identity.items()), tensor.kind == "buffer")
            )

    # -- sources -----------------------------------------------------------------------------
    def _from_source(self, name: str, block: Block, number: int) -> list[Shift]:
        slots = [s for _, _, s in block.slots()]
        every = self._attempt(name, block, number, None)
        if every is not None and len(every.terms) == 1:
            return [every]  # the whole block is ignored
        found = [every, *(self._attempt(name, block, number, s, every is None) for s in slots)]
        return [shift for shift in found if shift is not None]

    def _attempt(
        self, name: str, block: Block, number: int, constant: int | None, compensate: bool = True
    ) -> Shift | None:
        """A change of one parameter block, free or constant along one of its slots."""
        letters, shape = {}, []
        alphabet = fresh_letters(set())
        for _, leaf, stride in block.slots():
            if stride != constant:
                letters[stride] = next(alphabet)
                shape.append(leaf.size)
        text = "".join(letters.values())
        rest = fresh_letters(set(text))
        target = window_of(block, letters, name, rest)
        piece = Piece(1.0, (), tuple(sorted(letters.items())))
        known, unseen = Known((piece,)), Unknown(frozenset({constant or 0}), origin=constant)
        options: list[tuple[State, bool]] = [(known, False), (known, True)]
        if constant is not None:  # best where nothing has to compensate
            options = [(unseen, False), *(options if compensate else ())]
        for state, with_buffers in options:
            journey = Journey(self, name, text, with_buffers)
            if journey.run(block.key, state):
                break
        else:
            if constant is not None:
                return None
            return self._transvection(name, block, target, text, tuple(shape))
        frames = journey.frames
        if len(frames) > 1 or (frames and frames != {()} and constant is None):
            return None
        factors: tuple[Factor, ...] = ()
        if frames and frames != {()}:
            letter = target.letters[target.strides.index(constant)]
            factors = tuple(frame_factors(self.parameters, next(iter(frames)), letter, -1))
            if any(f is None for f in factors):
                return None
        terms = (Term(target, 1.0, factors), *journey.terms)
        family = _describe(name, journey, constant)
        tag = "" if number == 0 else f".{number}"
        return Shift(f"{name}{tag}", family, text, tuple(shape), terms)

    # -- absent directions -------------------------------------------------------------------
    def _unreceived(self) -> list[Shift]:
        """What reads an activation may change along a direction that it never has."""
        result = []
        for key, absence in self.absent.items():
            for joint, k in self.circuit.readers.get(key, []):
                shift = self._reader(joint, k, absence)
                if shift is not None:
                    result.append(shift)
        return result

    def _reader(self, joint: Joint, k: int, absence: Absence) -> Shift | None:
        if joint.op.kind != "contract" or joint.op.data.get("power", 1) != 1:
            return None
        weight = joint.inputs[1 - k]
        found = parameter_factor(weight.tensor) if weight.tensor.moves else None
        mine = self.circuit.label_slots(joint, k)
        theirs = self.circuit.label_slots(joint, 1 - k)
        target = self.circuit.label_slots(joint, -1)
        at = next((at for at, s in mine.items() if s == absence.stride), None)
        if at is None or found is None or found[1] != 1 or at in target or at not in theirs:
            return None
        if not self.circuit.is_whole(joint.inputs[k], absence.stride):
            return None
        if weight.tensor.owner.producer is not None:
            return None
        for free in (True, False):  # another amount per output, or the same for all
            shift = self._along_absence(joint, k, absence, found[0], theirs[at], free)
            if shift is not None:
                return shift
        return None

    def _along_absence(
        self, joint: Joint, k: int, absence: Absence, name: str, slot: int, free: bool
    ) -> Shift | None:
        """W += u wᵀ, where w is what the input of W never has."""
        weight = joint.inputs[1 - k]
        letters, shape, alphabet = {}, [], iter("abcdefghij")
        for _, leaf, stride in weight.slots():
            if stride != slot and free:
                letters[stride] = next(alphabet)
                shape.append(leaf.size)
        text = "".join(letters.values())
        rest = fresh_letters(set(text) | {"w", "z"})
        window = window_of(weight, {**letters, slot: "w"}, name, rest)
        along = tuple(frame_factors(self.parameters, absence.frame, "w", 1))
        carried = dict(letters)
        if along:
            carried[slot] = "w"
        start = Piece(1.0, along, tuple(sorted(carried.items())))
        journey = Journey(self, name, text + "wz")
        journey.absent = (joint.op, letters)
        if not journey.run(weight.key, Known((start,))) or journey.frames - {()}:
            return None
        terms = (Term(window, 1.0, along), *journey.terms)
        family = "a direction that its input never has"
        return Shift(f"{name}.unreceived", family, text, tuple(shape), terms)

    def _transvection(self, name, block, target: Window, text: str, shape) -> Shift | None:
        """A bias that readers without biases absorb along the direction they never receive.

        With Σ w·y = κ for every activation y, the maps W ← W(1 + v wᵀ), β ← β − v κ/(1 + w·v)
        leave W y unchanged.
        """
        if len(text) != 1:
            return None
        journey = Journey(self, name, text, transvect=True)
        piece = Piece(1.0, (), ((target.strides[0], text),))
        if not journey.run(block.key, Known((piece,))) or journey.frames or not journey.readers:
            return None
        absences = {absence for absence, _ in journey.readers}
        if len(absences) != 1 or len(journey.terms):
            return None
        absence = next(iter(absences))
        terms = []
        for scale, factors, _ in absence.offset:
            terms.append(Term(target, -scale, factors, divided=True))
        for _, term in journey.readers:
            terms.append(term)
        divisor = tuple(frame_factors(self.parameters, absence.frame, text, 1))
        family = "a bias against the direction that its readers never receive"
        return Shift(name, family, text, shape, tuple(terms), divisor)


def _numel(window: Window) -> int:
    return math.prod(window.shape)


def _describe(name: str, journey: Journey, constant: int | None) -> str:
    partners = list(dict.fromkeys(t.target.parameter for t in journey.terms))
    if partners:
        return f"slides against {', '.join(partners[:3])}" + (" …" if len(partners) > 3 else "")
    if constant is None:
        return "dead: a common shift under softmax or centring"
    return "a multiple of ones that centring ignores"


def _rename(shifts: list[Shift]) -> list[Shift]:
    """Unique names; of two parameters that slide against each other one shift is enough."""
    seen: dict[str, int] = defaultdict(int)
    pairs: set[frozenset] = set()
    result = []
    for shift in shifts:
        if len(shift.terms) == 2 and not any(term.factors for term in shift.terms):
            sizes = {_numel(term.target) for term in shift.terms}
            pair = frozenset((t.target.parameter, t.target.start) for t in shift.terms)
            if len(sizes) == 1 and len(pair) == 2:
                if pair in pairs:
                    continue
                pairs.add(pair)
        seen[shift.name] += 1
        suffix = "" if seen[shift.name] == 1 else f"~{seen[shift.name]}"
        result.append(replace(shift, name=f"shift:{shift.name}{suffix}"))
    return result
