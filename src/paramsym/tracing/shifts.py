"""Additive freedom: every way in which parameters may slide by any amount.

Each family starts at one parameter and asks what becomes of a change of it: of the whole
parameter, or of a part that is constant along one axis. Three further families come from an
activation that never has a component along some direction (what leaves a layer norm sums to zero
before its gain): whatever reads it may change along that direction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from paramsym.structure.symmetry import Factor, Shift, Term, Window
from paramsym.tracing.blocks import Block, Layout, tensor_blocks
from paramsym.tracing.builder import Builder, Op, Tensor
from paramsym.tracing.mixing import Frame, _sum, frame_key
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
    is_linear_sum,
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


@dataclass(frozen=True)
class Absence:
    """An activation block x with Σ x·w = offset, where w = 1 in a frame along one slot."""

    stride: int
    frame: Frame
    offset: tuple[tuple[float, tuple[Factor, ...], str], ...]  # weight, factors, letter of w


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
        self.absent = self._absences()
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
        known, unseen = Known((piece,)), Unknown(frozenset({constant or 0}))
        options: list[tuple[State, bool]] = [(known, False), (known, True)]
        if constant is not None:  # best where nothing has to compensate
            options = [(unseen, False), *(options if compensate else ())]
        for state, with_buffers in options:
            journey = _Journey(self, name, text, with_buffers)
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
            factors = tuple(self._frame_factors(next(iter(frames)), letter, -1))
            if any(f is None for f in factors):
                return None
        terms = (Term(target, 1.0, factors), *journey.terms)
        family = _describe(name, journey, constant)
        tag = "" if number == 0 else f".{number}"
        return Shift(f"{name}{tag}", family, text, tuple(shape), terms)

    def _frame_factors(self, frame: Frame, letter: str, sign: int):
        """The diagonal of a frame as factors along one letter."""
        for (gain, offset), exponent in frame:
            size = max(self.parameters[gain].shape)
            yield Factor(Window(gain, letter, (size,), (1,), 0), float(sign * exponent), offset)

    # -- absent directions -------------------------------------------------------------------
    def _absences(self) -> dict[Key, Absence]:
        """Blocks without a component along the all-ones vector in some frame."""
        found: dict[Key, Absence] = {}
        for op in self.build.ops:
            if op.kind not in ("normalize", "softmax", "contract", "same", "mix", "reduce"):
                continue
            for joint in {id(j): j for t in op.inputs for j in self._joints(op, t)}.values():
                absence = self._absence(joint, found)
                if absence is not None:
                    found[joint.out.key] = absence
        return found

    def _joints(self, op, tensor):
        for block in tensor_blocks(tensor, self.layout):
            for joint, _ in self.circuit.readers.get(block.key, []):
                if joint.op is op:
                    yield joint

    def _absence(self, joint: Joint, found: dict[Key, Absence]) -> Absence | None:
        op, data = joint.op, joint.op.data
        out = joint.out
        if op.kind in ("normalize", "softmax"):
            dims = data["dims"] if op.kind == "normalize" else (data["dim"],)
            if op.kind == "normalize" and not data["center"] or len(dims) != 1:
                return None
            if op.kind == "softmax" and out.tensor.stochastic is None:
                return None
            place = out.places[dims[0]]
            single = len(self.layout.places(out.tensor.axes[dims[0]])) == 1
            if place is None or len(place.leaves) != 1 or not single:
                return None
            offset = ((1.0, (), ""),) if op.kind == "softmax" else ()
            return Absence(out.stride(dims[0], 0), (), offset)
        if op.kind == "same" and self._is_centring(joint):
            axis = op.inputs[1].producer.data["dims"][0] % out.tensor.ndim  # type: ignore[union-attr]
            place = out.places[axis]
            if place is not None and len(place.leaves) == 1:
                return Absence(out.stride(axis, 0), (), ())
        sources = [(k, found[key]) for k, key in enumerate(joint.keys) if key in found]
        if len(sources) != 1 or (op.kind == "same" and not is_linear_sum(op)):
            return None
        (k, known), = sources  # fmt: skip
        mine = self.circuit.label_slots(joint, k)
        target = self.circuit.label_slots(joint, -1)
        at = next((at for at, s in mine.items() if s == known.stride), None)
        if at is None or at not in target:
            return None
        stride = target[at]
        if op.kind == "contract":
            other = joint.inputs[1 - k]
            theirs = self.circuit.label_slots(joint, 1 - k)
            if at in theirs:
                gain = frame_key(other.tensor)
                if gain is None or data.get("power", 1) != 1:
                    return None
                return Absence(stride, _sum(known.frame, ((gain[0], -gain[1]),)), known.offset)
            transfer = Transfer(self.circuit, "")
            averaged = transfer._averages(joint, k, Known(()))
            return Absence(stride, known.frame, known.offset) if averaged else None
        if op.kind == "mix":
            fine = data["how"] == "mean" or (data["how"] == "linear" and not known.offset)
            return Absence(stride, known.frame, known.offset) if fine else None
        if op.kind == "reduce":
            fine = data["how"] == "mean" or (data["how"] == "sum" and not known.offset)
            return Absence(stride, known.frame, known.offset) if fine else None
        if data.get("factor", 1.0) != 1.0 or float(data["signs"][k]) != 1.0:
            return None if known.offset else Absence(stride, known.frame, ())
        if len(op.inputs) == 1:
            return Absence(stride, known.frame, known.offset)
        return self._with_bias(joint, k, known, stride, at)

    def _is_centring(self, joint: Joint) -> bool:
        op = joint.op
        if len(op.inputs) != 2 or op.data.get("signs") != (1, -1):
            return False
        mean = op.inputs[1].producer
        return (
            mean is not None and mean.kind == "reduce" and mean.data["how"] == "mean"
            and len(mean.data["dims"]) == 1 and mean.inputs[0] is op.inputs[0]
        )  # fmt: skip

    def _with_bias(self, joint: Joint, k: int, known: Absence, stride: int, at) -> Absence | None:
        """Adding a bias moves the sum by a constant."""
        if len(joint.inputs) != 2:
            return None
        other = joint.inputs[1 - k]
        found = parameter_factor(other.tensor) if other.tensor.moves else None
        theirs = self.circuit.label_slots(joint, 1 - k)
        if found is None or list(theirs) != [at] or found[1] != 1:
            return None
        window = window_of(other, {}, found[0], iter("z"))
        factors = (Factor(window, 1.0, found[2]), *self._frame_factors(known.frame, "z", 1))
        weight = float(joint.op.data["signs"][1 - k])
        return Absence(stride, known.frame, (*known.offset, (weight, factors, "z")))

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
        at = next(at for at, s in mine.items() if s == absence.stride)
        if found is None or found[1] != 1 or at in target or at not in theirs:
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
        along = tuple(self._frame_factors(absence.frame, "w", 1))
        carried = dict(letters)
        if along:
            carried[slot] = "w"
        start = Piece(1.0, along, tuple(sorted(carried.items())))
        journey = _Journey(self, name, text + "wz")
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
        journey = _Journey(self, name, text, transvect=True)
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
        divisor = tuple(self._frame_factors(absence.frame, text, 1))
        family = "a bias against the direction that its readers never receive"
        return Shift(name, family, text, shape, tuple(terms), divisor)


class _Journey:
    """Follows one change to its end; collects what compensates it and the frames it needs."""

    def __init__(
        self, families: _Families, source: str, letters: str, with_buffers: bool = False,
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
            if self.transvect and self._absorb_in_weight(key, joint, k):
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
        at = next(at for at, s in mine.items() if s == absence.stride)
        if found is None or found[1:] != (1.0, 0.0) or at in target or at not in theirs:
            return False
        if len(self.circuit.readers[weight.key]) != 1 or found[0] == self.source:
            return False
        (letter,) = self.transfer.reserved
        read = window_of(weight, {theirs[at]: letter}, found[0], iter("bcdefgh"))
        write = Window(read.parameter, read.letters.replace(letter, "w"), read.shape, read.strides,
                       read.start)  # fmt: skip
        along = tuple(self.families._frame_factors(absence.frame, "w", 1))
        self.readers.append((absence, Term(write, 1.0, (Factor(read), *along))))
        return True

    def _unseen(self, key: Key, state: Unknown) -> frozenset[Frame] | None:
        """The frames in which an unknown change stays unseen downstream; None if it is seen."""
        verdicts = self.families.verdicts
        memo = (key, state)
        if memo in verdicts:
            return verdicts[memo]
        order: list[tuple[Key, Unknown]] = []
        graph: dict[tuple, list[tuple] | None] = {}
        frames: dict[tuple, set[Frame]] = {}
        stack = [(key, state)]
        while stack:  # explore, then decide from the end backwards
            item = stack.pop()
            if item in graph or item in verdicts:
                continue
            found: list[tuple] | None = []
            own: set[Frame] = set()
            if (
                not item[1].constant
                or item[0][0] in self.circuit.outputs
                or item[0] not in self.circuit.readers
            ):
                found = None
            for joint, k in self.circuit.readers.get(item[0], []) if found is not None else ():
                result = self.transfer(joint, k, item[1])
                if result == "seen":
                    found = None
                    break
                if result == "unseen":
                    own.add(self.transfer.frame_at(joint, k, item[1]))
                else:
                    found.append((joint.out.key, result))
            graph[item], frames[item] = found, own
            order.append(item)
            if found is None:
                break
            stack.extend(found)
        failed = any(found is None for found in graph.values())
        if failed:
            verdicts[memo] = None
            return None
        total: set[Frame] = set()
        for item in graph:
            total |= frames[item]
            for nxt in graph[item] or ():
                if nxt in verdicts:
                    if verdicts[nxt] is None:
                        verdicts[memo] = None
                        return None
                    total |= verdicts[nxt]  # type: ignore[arg-type]
        for item in graph:
            verdicts[item] = frozenset(total)
        return verdicts[memo]


def _merge(a: Known, b: Known) -> Known:
    """Sum of two known changes; terms that cancel disappear."""
    total: dict[tuple, float] = defaultdict(float)
    for piece in (*a.pieces, *b.pieces):
        total[piece.factors, piece.letters] += piece.coefficient
    return Known(tuple(Piece(c, f, s) for (f, s), c in total.items() if abs(c) > 1e-12))


def _numel(window: Window) -> int:
    return math.prod(window.shape)


def _describe(name: str, journey: _Journey, constant: int | None) -> str:
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
