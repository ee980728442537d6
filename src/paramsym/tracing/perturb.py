"""How an additive change travels through the network.

A change that starts at a parameter is followed forward, block by block, in one of two forms:

* *known*: a sum of terms `coefficient · δ · factors`, where δ is the free offset and the factors
  are parameters that it met; it is constant along every slot that carries no letter, positions and
  examples included. A parameter that is added at the same place can cancel it.
* *unknown*: it depends on the data in a way nobody can cancel, but it is *constant along* some
  slots (in the frame of the gains that it met). A centred normalisation or a softmax along such a
  slot does not see it.

Everything that is neither cancelled nor unseen makes the attempt fail.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paramsym.structure.symmetry import Factor, Window
from paramsym.tracing.blocks import (
    Block,
    Layout,
    joint_blocks,
    labels_of,
    tensor_blocks,
    torn_blocks,
)
from paramsym.tracing.builder import Builder, Op, Tensor
from paramsym.tracing.mixing import POWERS, Frame, _sum, frame_key

Key = tuple[int, int]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Piece:
    """coefficient · δ · factors, with the letter of each slot along which it varies."""

    coefficient: float
    factors: tuple[Factor, ...]
    letters: tuple[tuple[int, str], ...]  # (storage stride in the block, letter)


@dataclass(frozen=True)
class Known:
    """A change whose value is known."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Unknown:
    """A change of which only constancy is known: strides of slots, some of them in a frame."""

    constant: frozenset[int]
    frames: tuple[tuple[int, Frame], ...] = ()
    origin: int | None = None  # the slot along which the source may go into a frame

    def frame(self, strides: set[int]) -> Frame:
        """The frame of the slots that matter."""
        total: Frame = ()
        for stride, frame in self.frames:
            if stride in strides:
                total = _sum(total, frame)
        return total


State = Known | Unknown


@dataclass(frozen=True, eq=False)
class Joint:
    """One joint choice of blocks of an operation."""

    op: Op
    inputs: tuple[Block, ...]
    out: Block
    slots: dict[int, dict[tuple, int]] = field(default_factory=dict)  # a cache

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        return tuple(block.key for block in self.inputs)


class Circuit:
    """The operations of a network indexed by the blocks that they read."""

    def __init__(self, build: Builder, layout: Layout):
        self.build, self.layout = build, layout
        self.seen: list[Op] = []
        self.readers: dict[Key, list[tuple[Joint, int]]] = defaultdict(list)
        self.position: dict[int, int] = {}
        self.sizes: dict[tuple[int, int, int], int] = {}  # of each slot: the largest that is read
        for number, op in enumerate(build.ops):
            self.position[id(op)] = number
            for _, blocks, out in joint_blocks(op, layout):
                joint = Joint(op, tuple(blocks), out)
                self._measure(out)
                for k, block in enumerate(blocks):
                    self.readers[block.key].append((joint, k))
                    self._measure(block)
            if op.kind == "concatenate":
                self._whole(op)
        self.outputs = {build.tensor(v).owner.serial for v in build.graph.outputs}
        self.outputs |= {block.key[0] for block in torn_blocks(build, layout)}

    def _measure(self, block: Block) -> None:
        for _, leaf, stride in block.slots():
            slot = (*block.key, stride)
            self.sizes[slot] = max(leaf.size, self.sizes.get(slot, 0))

    def is_whole(self, block: Block, stride: int) -> bool:
        """Whether a reader sees all of a slot; a window in a coarse place may see less."""
        found = [leaf.size for _, leaf, s in block.slots() if s == stride]
        return bool(found) and min(found) == self.sizes.get((*block.key, stride), found[0])

    def _whole(self, op: Op) -> None:
        """Pieces that a coarse layout cannot tell apart after joining: their changes are seen."""
        starts = {place.start for place in self.layout.places(op.out.axes[op.data["dim"]])}
        position = 0
        for tensor in op.inputs:
            size = tensor.shape[op.data["dim"]]
            inside = {s for s in starts if position <= s < position + size}
            pieces = self.layout.places(tensor.axes[op.data["dim"]]) if size > 1 else (None,)
            if tensor.moves and (len(inside) < len(pieces) or len(starts) == 1 < len(op.inputs)):
                seen = Op("opaque", op.out, (tensor,), op.where)
                self.position[id(seen)] = self.position[id(op)]
                self.seen.append(seen)
                for block in tensor_blocks(tensor, self.layout):
                    self.readers[block.key].append((Joint(seen, (block,), block), 0))
            position += size

    def label_slots(self, joint: Joint, index: int) -> dict[tuple, int]:
        """(label, leaf position) → storage stride in an input block (−1: the output)."""
        found = joint.slots.get(index)
        if found is None:
            found = joint.slots[index] = self._label_slots(joint, index)
        return found

    def _label_slots(self, joint: Joint, index: int) -> dict[tuple, int]:
        ins, outs = labels_of(joint.op)
        if joint.op.kind == "concatenate":
            labels = outs
        else:
            labels = outs if index < 0 else ins[index]
        block = joint.out if index < 0 else joint.inputs[index]
        found = {}
        for axis, (label, place) in enumerate(zip(labels, block.places, strict=True)):
            if place is None or block.tensor.strides[axis] == 0:
                continue
            for position in range(len(place.leaves)):
                found[label, position] = block.stride(axis, position)
        return found


def is_linear_sum(op: Op) -> bool:
    """A sum with known coefficients."""
    return op.kind == "same" and op.data.get("linear", True) is not False and not op.data.get(
        "recurrent"
    )  # fmt: skip


def parameter_factor(tensor: Tensor) -> tuple[str, float, float] | None:
    """(name, power, offset) if the entries are (parameter + offset)^power in the same layout."""
    power, offset = 1.0, 0.0
    owner = tensor.owner
    while owner.producer is not None:
        op = owner.producer
        source = op.inputs[0]
        if source.base is not None or source.strides != owner.strides:
            return None
        if op.kind == "offset" and power == 1.0:
            offset += op.data["constant"]
        elif op.kind == "unary" and op.data["name"] in POWERS and offset == 0.0:
            power *= float(op.data["degree"])
        elif op.kind == "unary" and op.data["name"] == "shift" and op.data["constant"] != 1.0:
            offset += op.data["constant"]
        elif not (op.kind == "same" and len(op.inputs) == 1 and op.data.get("factor", 1) == 1):
            return None
        owner = source
    return (owner.name, power, offset) if owner.kind in ("parameter", "buffer") else None


def window_of(block: Block, letters: dict[int, str], name: str, fresh: Iterator[str]) -> Window:
    """The window on a parameter that a block is, with given letters and new ones elsewhere."""
    shape, strides, text = [], [], ""
    for _, leaf, stride in block.slots():
        shape.append(leaf.size)
        strides.append(stride)
        text += letters[stride] if stride in letters else next(fresh)
    return Window(name, text, tuple(shape), tuple(strides), block.key[1])


def fresh_letters(used: set[str]) -> Iterator[str]:
    """Letters that are not in use yet."""
    return (c for c in _LETTERS if c not in used)


def _used(piece: Piece) -> set[str]:
    used = {letter for _, letter in piece.letters} | {"δ"}
    for factor in piece.factors:
        used |= set(factor.window.letters)
    return used


class Transfer:
    """What one operation makes of a change of one of its inputs."""

    def __init__(self, circuit: Circuit, reserved: str):
        self.circuit = circuit
        self.reserved = set(reserved)  # letters of δ

    def __call__(self, joint: Joint, k: int, state: State) -> State | str:
        """The change of the output, "unseen" or "seen"."""
        op = joint.op
        if isinstance(state, Known) and not all(
            self.circuit.is_whole(joint.inputs[k], s) for p in state.pieces for s, _ in p.letters
        ):
            return "seen"
        if op.kind in ("same", "concatenate"):
            if op.kind == "same" and not is_linear_sum(op):
                return "seen"
            weight = 1.0
            if op.kind == "same":
                kept = op.data["signs"]
                weight = float(kept[k] if k < len(kept) else 1) * op.data.get("factor", 1.0)
            return self._carry(joint, k, state, weight)
        if op.kind == "offset":
            return self._carry(joint, k, state, 1.0)
        if op.kind in ("normalize", "softmax"):
            dims = op.data["dims"] if op.kind == "normalize" else (op.data["dim"],)
            centred = op.kind == "softmax" or op.data["center"]
            return "unseen" if centred and self._constant_on(joint, k, state, dims) else "seen"
        if op.kind == "contract":
            return self._contract(joint, k, state)
        if op.kind == "reduce":
            return self._reduce(joint, k, state)
        if op.kind == "mix":
            return self._mix(joint, k, state)
        if op.kind == "lookup":
            if self._constant_on(joint, k, state, op.data["dims"]):
                return self._carry(joint, k, state, 1.0)
            fresh = {("new", n) for n in range(op.data["count"])}
            return self._carry(joint, k, self._forget(joint, k, state), 1.0, spoiled=fresh)
        if op.kind == "rotate":
            return self._carry(joint, k, self._forget(joint, k, state), 1.0,
                               spoiled={op.data["dim"], *op.data["varies"]})  # fmt: skip
        return "seen"

    # -- helpers -----------------------------------------------------------------------------
    def _constant_on(self, joint: Joint, k: int, state: State, dims) -> bool:
        """Whether the change is constant along whole axes (of a single block each)."""
        block = joint.inputs[k]
        for d in dims:
            place = block.places[d]
            if place is None:
                continue
            if len(self.circuit.layout.places(block.tensor.axes[d])) > 1:
                return False
            for position in range(len(place.leaves)):
                stride = block.stride(d, position)
                if isinstance(state, Unknown):
                    if stride not in state.constant and block.tensor.strides[d] != 0:
                        return False
                elif any(stride == s for piece in state.pieces for s, _ in piece.letters):
                    return False
        return True

    def _forget(self, joint: Joint, k: int, state: State) -> Unknown:
        """Drop the value and keep what it is constant along."""
        if isinstance(state, Unknown):
            return state
        varying = {s for piece in state.pieces for s, _ in piece.letters}
        slots = {s for _, _, s in joint.inputs[k].slots()}
        return Unknown(frozenset(slots - varying))

    def frame_at(self, joint: Joint, k: int, state: State) -> Frame:
        """The frame in which a change is constant along the axes that an operation centres."""
        if isinstance(state, Known):
            return ()
        op, block = joint.op, joint.inputs[k]
        dims = op.data["dims"] if op.kind == "normalize" else (op.data["dim"],)
        return state.frame({s for axis, _, s in block.slots() if axis in dims})

    def _carry(
        self, joint: Joint, k: int, state: State, weight: float, spoiled: Set[Any] = frozenset()
    ) -> State | str:
        """The same change seen in the output; new axes see it constant."""
        source = self.circuit.label_slots(joint, k)
        target = self.circuit.label_slots(joint, -1)
        renamed = {stride: target[at] for at, stride in source.items() if at in target}
        if isinstance(state, Unknown):
            kept = {
                stride for at, stride in target.items()
                if at[0] not in spoiled and (at not in source or source[at] in state.constant)
            }  # fmt: skip
            frames = tuple((renamed[s], f) for s, f in state.frames if renamed.get(s) in kept)
            origin = None if state.origin is None else renamed.get(state.origin)
            return Unknown(frozenset(kept), frames, origin if origin in kept else None)
        pieces = []
        for piece in state.pieces:
            if any(s not in renamed for s, _ in piece.letters):
                return "seen"
            letters = tuple(sorted((renamed[s], c) for s, c in piece.letters))
            pieces.append(Piece(piece.coefficient * weight, piece.factors, letters))
        return Known(tuple(pieces))

    def _contract(self, joint: Joint, k: int, state: State) -> State | str:
        op, other = joint.op, joint.inputs[1 - k]
        power = op.data.get("power", 1)
        if power == -1 and k == 1:
            return "seen"
        if op.data.get("mask"):
            if op.data.get("hides") and k == 0:  # what is masked is hidden by the softmax
                return self._carry(joint, k, state, 1.0)
            return "seen" if k else self._unknown_product(joint, k, state)
        found = parameter_factor(other.tensor) if other.tensor.moves else None
        if isinstance(state, Known):
            if found is not None and found[0]:
                return self._known_product(joint, k, state, found, power)
            if self._averages(joint, k, state):
                return self._carry(joint, k, state, 1.0)
        return self._unknown_product(joint, k, state)

    def _known_product(self, joint: Joint, k: int, state: Known, found, power) -> State | str:
        mine = self.circuit.label_slots(joint, k)
        theirs = self.circuit.label_slots(joint, 1 - k)
        target = self.circuit.label_slots(joint, -1)
        other = joint.inputs[1 - k]
        name, exponent, offset = found
        pieces = []
        for piece in state.pieces:
            letters = dict(piece.letters)
            by_label = {at: letters[s] for at, s in mine.items() if s in letters}
            for at in mine:  # a sum over a slot along which the change is constant
                if at not in by_label and at not in target and at not in theirs:
                    return "seen"
            fresh = fresh_letters(_used(piece) | self.reserved)
            given = {s: by_label[at] for at, s in theirs.items() if at in by_label}
            try:
                window = window_of(other, given, name, fresh)
            except StopIteration:
                return "seen"  # out of letters: a long unrolled loop
            by_label.update({at: window.letters[window.strides.index(s)] for at, s in
                             theirs.items()})  # fmt: skip
            factor = Factor(window, exponent * power, offset)
            carried = tuple(sorted((s, by_label[at]) for at, s in target.items() if at in by_label))
            pieces.append(Piece(piece.coefficient, (*piece.factors, factor), carried))
        return Known(tuple(pieces))

    def _averages(self, joint: Joint, k: int, state: Known) -> bool:
        """Whether the other factor sums to one along the contracted axis, where δ is constant."""
        xs, ys, zs = joint.op.data["labels"]
        mine, theirs = (xs, ys) if k == 0 else (ys, xs)
        other = joint.inputs[1 - k].tensor
        summed = [label for label in mine if label not in zs]
        if other.stochastic is None or summed != [theirs[other.stochastic]]:
            return False
        if any(other.shape[theirs.index(x)] > 1 for x in theirs if x not in zs and x not in summed):
            return False
        varying = {s for piece in state.pieces for s, _ in piece.letters}
        slots = self.circuit.label_slots(joint, k)
        if any(slots[at] in varying for at in slots if at[0] == summed[0]):
            return False
        return len(self.circuit.layout.places(other.axes[other.stochastic])) == 1

    def _unknown_product(self, joint: Joint, k: int, state: State) -> State | str:
        unknown = self._forget(joint, k, state)
        mine = self.circuit.label_slots(joint, k)
        theirs = self.circuit.label_slots(joint, 1 - k)
        target = self.circuit.label_slots(joint, -1)
        kept: set[int] = set()
        before = dict(unknown.frames)
        frames: dict[int, Frame] = {}
        gain = frame_key(joint.inputs[1 - k].tensor)
        for at, stride in target.items():
            if at in theirs and joint.inputs[1 - k].tensor.strides:
                if gain is not None and at in mine and mine[at] == unknown.origin and (
                    mine[at] in unknown.constant
                ):  # fmt: skip
                    kept.add(stride)
                    more = ((gain[0], gain[1] * joint.op.data.get("power", 1)),)
                    frames[stride] = _sum(before.get(mine[at], ()), more)
                continue
            if at in mine and mine[at] in unknown.constant:
                kept.add(stride)
                if mine[at] in before:
                    frames[stride] = before[mine[at]]
        origin = next((target[at] for at, s in mine.items() if at in target
                       and s == unknown.origin), None)  # fmt: skip
        return Unknown(
            frozenset(kept), tuple(sorted(frames.items())), origin if origin in kept else None
        )

    def _reduce(self, joint: Joint, k: int, state: State) -> State | str:
        op = joint.op
        if op.data["how"] not in ("sum", "mean"):
            return "seen"
        block = joint.inputs[k]
        dims = op.data["dims"]
        whole = all(
            len(self.circuit.layout.places(block.tensor.axes[d])) == 1
            for d in dims if block.tensor.shape[d] > 1
        )  # fmt: skip
        if isinstance(state, Unknown) or not whole:
            return self._carry(joint, k, self._forget(joint, k, state), 1.0)
        length = math.prod(block.tensor.shape[d] for d in dims)
        slots = {s: n.size for axis, n, s in block.slots() if axis in dims}
        pieces = []
        for piece in state.pieces:
            weight = piece.coefficient / (length if op.data["how"] == "mean" else 1)
            varying = {s for s, _ in piece.letters}
            weight *= math.prod(n for s, n in slots.items() if s not in varying)
            copies = math.prod(slots.values())
            weight *= length / copies  # axes that only repeat
            kept = tuple((s, c) for s, c in piece.letters if s not in slots)
            pieces.append(Piece(weight, piece.factors, kept))
        return self._carry(joint, k, Known(tuple(pieces)), 1.0)

    def _mix(self, joint: Joint, k: int, state: State) -> State | str:
        op = joint.op
        if op.data["how"] == "max":
            return "seen"
        dims = op.data["dims"]
        flat = self._constant_on(joint, k, state, dims)
        fresh = {("new", axis) for axis in range(joint.out.tensor.ndim)}
        if op.data["how"] == "mean" and flat:
            return self._carry(joint, k, state, 1.0)
        return self._carry(joint, k, self._forget(joint, k, state), 1.0, spoiled=fresh)
