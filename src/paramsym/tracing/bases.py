"""Changes of basis: which axes may be acted on by a whole linear group.

Every slot starts with its own general linear group. Contracting two slots makes one the dual of
the other; sums identify them; a gain in between puts one into the *frame* of the gain; a norm caps
the group by the orthogonal one, a mean by what keeps the all-ones vector, a rotation of pairs by
complex scalings. Whatever treats coordinates one by one leaves no change of basis. Caps combine by
the meet of the lattice of groups. Slots are kept in a union–find whose labels are a parity
(covariant or dual) and a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

from paramsym.algebra import (
    AbstractMonomial,
    ComplexScaling,
    GeneralLinear,
    Group,
    Orthogonal,
    OrthogonalFixingOnes,
    meet,
)
from paramsym.primitives import Concatenate
from paramsym.primitives import index as ix
from paramsym.primitives.blocks import Block, tensor_blocks
from paramsym.primitives.gains import Frame, combine
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Joint, Slot
from paramsym.primitives.sites import BasisSite
from paramsym.primitives.tensor import Tensor
from paramsym.tracing.circuit import Circuit
from paramsym.tracing.copies import Company, Telling
from paramsym.tracing.transport import Transport

Label = tuple[int, Frame]  # parity, frame

_CAPS: dict[str, tuple[Callable[[int], Group], str]] = {
    "orthogonal": (Orthogonal, "a norm keeps lengths only"),
    "ones": (OrthogonalFixingOnes, "a mean or a centring keeps the all-ones vector"),
    "complex": (ComplexScaling, "positions turn pairs of coordinates"),
}


def _compose(outer: Label, inner: Label) -> Label:
    # seen through a dual, a frame is inverted: F (S g S⁻¹)⁻ᵀ F⁻¹ = ((S F⁻¹) g (S F⁻¹)⁻¹)⁻ᵀ
    parity, frame = outer
    return parity * inner[0], combine(frame, inner[1], parity)


@dataclass(eq=False)
class BasisClass:
    """Slots that share one change of basis."""

    leaf: Node
    caps: list[tuple[str, Frame]] = field(default_factory=list)
    held: str = ""  # why there is no change of basis
    why: list[str] = field(default_factory=list)
    over: set[Node] | None = None  # leaves present in every block of the class

    @property
    def frame(self) -> Frame | None:
        """The frame in which the caps hold; None if they disagree."""
        frames = {frame for _, frame in self.caps}
        return () if not frames else frames.pop() if len(frames) == 1 else None

    @property
    def group(self) -> Group | None:
        """What may act: the meet of the caps, or None if nothing continuous is left."""
        size = ix.resolve(self.leaf).size
        if self.held or self.frame is None or size < 2:
            return None
        kinds = {kind for kind, _ in self.caps}
        if "complex" in kinds and size % 2:
            return None
        found = reduce(meet, (_CAPS[kind][0](size) for kind in sorted(kinds)), GeneralLinear(size))
        return None if isinstance(found, AbstractMonomial) or not found.dimension else found


class Bases:
    """The union–find of slots."""

    def __init__(self, circuit: Circuit):
        self.circuit = circuit
        self.transport: Transport[Slot, Label] = Transport((1, ()), _compose)
        self.classes: dict[Slot, BasisClass] = {}
        self.company: dict[int, set[int]] = {}  # leaf → the leaves that index its copies
        self.telling = Telling()
        self.where = ""
        self._combined: dict[tuple, Slot] = {}  # what is combined → its slot in one joint
        for joint in circuit.joints:
            self.where = joint.op.where
            self._ask(joint)
        for block, reason in circuit.held:
            self.hold_block(block, reason)
        for value in circuit.build.graph.outputs:
            for block in tensor_blocks(circuit.build.tensor(value), circuit.layout):
                self.hold_block(block, "it is an output of the model")

    def __contains__(self, slot: Slot) -> bool:
        return slot in self.classes or slot in self.transport.parent

    def find(self, slot: Slot) -> tuple[Slot, int, Frame]:
        """(representative, parity, frame): the slot is it, or its dual, in a frame."""
        root, (parity, frame) = self.transport.find(slot)
        return root, parity, frame

    def class_of(self, slot: Slot) -> BasisClass:
        """The class of a known slot."""
        return self.classes[self.transport.find(slot)[0]]

    # -- slots -------------------------------------------------------------------------------
    def _slot(self, block: Block, leaf: Node, stride: int) -> Slot | None:
        """The slot of a leaf, created with its own class at first sight."""
        if block.tensor.zero:
            return None
        slot = (*block.key, stride)
        root = self.transport.find(slot)[0]
        known = self.classes.get(root)
        if known is None:
            known = self.classes[root] = BasisClass(leaf)
            if not block.tensor.moves:
                known.held = "the coordinates of the input are given"
        if block.tensor.moves:
            present = {n for _, n, _ in block.slots if n is not leaf}
            known.over = present if known.over is None else known.over & present
        return slot

    def _hold(self, slot: Slot, reason: str) -> None:
        known = self.class_of(slot)
        known.held = known.held or reason

    def _cap(self, slot: Slot, kind: str) -> None:
        root, (_, frame) = self.transport.find(slot)
        known = self.classes[root]
        known.caps.append((kind, frame))
        known.why.append(f"{_CAPS[kind][1]} at {self.where}")

    def _join(self, a: Slot, b: Slot, parity: int, frame: Frame = ()) -> None:
        """b is a (parity 1) or the dual of a (−1), further inside by `frame`."""
        if frame:  # it is measured on the side of the representative
            frame = tuple((key, n * self.transport.find(a)[1][0]) for key, n in frame)
        root_a, (sign_a, frame_a) = self.transport.find(a)
        root_b, (sign_b, frame_b) = self.transport.find(b)
        # frames are measured on the covariant side: F g F⁻¹, whatever the parity of the slot
        wanted = combine(frame_a, frame)
        if root_a == root_b:
            if wanted != frame_b:
                text = f"the same coordinates are used with and without a gain at {self.where}"
                self._hold(root_a, text)
            elif sign_a * parity != sign_b:
                self.classes[root_a].caps.append(("orthogonal", wanted))
                self.classes[root_a].why.append(f"it meets its own dual at {self.where}")
            return
        kept, gone = self.classes[root_a], self.classes.pop(root_b)
        turn = sign_a * parity * sign_b
        shift = combine(wanted, frame_b, -turn)  # frame of root_b relative to root_a
        self.transport.link(root_b, root_a, (turn, shift))
        kept.caps += [(kind, combine(shift, f, turn)) for kind, f in gone.caps]
        kept.why += gone.why
        kept.held = kept.held or gone.held
        if kept.over is None or gone.over is None:
            kept.over = kept.over if gone.over is None else gone.over
        else:
            kept.over &= gone.over

    def hold_block(self, block: Block, reason: str) -> None:
        """No change of basis on any slot of a block."""
        for _, leaf, stride in block.slots:
            slot = self._slot(block, leaf, stride)
            if slot is not None:
                self._hold(slot, reason)

    def settle_copies(self, parameters: Iterable[Tensor]) -> None:
        """Forget copies that one place tells apart here and another one there.

        Where a parameter carries what tells copies apart on several axes, its type says of which
        of them it is, and that has to be the right one.
        """
        for joint in reversed(self.circuit.joints):
            if isinstance(joint.op, Concatenate):
                self.telling.pull(joint)
        self.telling.compare(parameters, self.circuit.layout)
        for slot, serial in self.telling.unclear:
            if slot not in self:  # it has no basis: integers, data, slices that nobody reads
                continue
            known = self.class_of(slot)
            known.over = {n for n in known.over or () if n.serial != serial}
            self.company.get(ix.resolve(known.leaf).serial, set()).discard(serial)

    # -- joints ------------------------------------------------------------------------------
    def _ask(self, joint: Joint) -> None:
        blocks = [*joint.inputs, joint.out]
        slots = [joint.slots(k) for k in range(len(joint.inputs))] + [joint.slots(-1)]
        company = None if isinstance(joint.op, Concatenate) else Company(joint, blocks, slots)
        for label, place in joint.where.items():
            for position, (leaf, _) in enumerate(place.leaves):
                found = [
                    self._slot(block, leaf, at[label, position])
                    if (label, position) in at
                    else None
                    for block, at in zip(blocks, slots, strict=True)
                ]
                joint.op.bases(
                    BasisSite(
                        joint, label, leaf, found[:-1], found[-1], self._join, self._cap, self._hold
                    )
                )
                if joint.is_partial and found[-1] is not None and label not in joint.op.combined:
                    self._join_parts(joint, (label, position), found[-1])
                if company is not None:
                    self._accompany((label, position), leaf, found, company)

    def _join_parts(self, joint: Joint, at: tuple, slot: Slot) -> None:
        """What is combined changes basis as one, in whichever joint a part of it lies."""
        beside = tuple(p.start for n, p in joint.where.items() if n not in joint.op.combined)
        self._join(self._combined.setdefault((id(joint.op), at, beside), slot), slot, 1)

    def _accompany(self, at: tuple, leaf: Node, found: list[Slot | None], company: Company):
        """Copies of a leaf are told apart by what stands at the same labels wherever it stands."""
        shared = company.of(at, found)
        if shared is None:
            return
        around = {*shared}
        for k, slot in enumerate(found):
            if slot is not None:
                self.telling.note(slot, company.choices(k, at, shared))
        known = self.company.get(leaf.serial)
        self.company[leaf.serial] = around if known is None else known & around
        for slot in found:
            if slot is not None:
                known_class = self.class_of(slot)
                if known_class.over is not None:
                    known_class.over = {n for n in known_class.over if n.serial in around}
