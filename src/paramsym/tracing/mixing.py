"""Changes of basis: which axes may be acted on by a whole linear group.

Every slot starts with its own general linear group. Contracting two slots makes one the dual of
the other; sums identify them; a gain in between puts one into the *frame* of the gain; a norm asks
for orthogonality, a mean for keeping the all-ones vector, a rotation of pairs for complex
linearity. Whatever treats coordinates one by one leaves no change of basis. The classes of slots
are kept in a union–find with parity (covariant or dual) and frame.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from paramsym.tracing import index as ix
from paramsym.tracing.blocks import (
    Block,
    Layout,
    joint_blocks,
    labels_of,
    tensor_blocks,
    torn_blocks,
)
from paramsym.tracing.builder import Builder, Op, Tensor
from paramsym.tracing.index import Node

Slot = tuple[int, int, int]  # owner, block, stride
FrameKey = tuple[str, float]  # parameter, offset
Frame = tuple[tuple[FrameKey, float], ...]  # sorted, exponents not zero

POWERS = ("square", "sqrt", "rsqrt", "reciprocal", "pow")  # names of the plain powers among unaries


def _sum(a: Frame, b: Frame, sign: int = 1) -> Frame:
    total: dict[FrameKey, float] = defaultdict(float)
    for key, n in a:
        total[key] += n
    for key, n in b:
        total[key] += sign * n
    return tuple(sorted((k, n) for k, n in total.items() if n))


_WHY = {
    "orthogonal": "a norm keeps lengths only",
    "ones": "a mean or a centring keeps the all-ones vector",
    "complex": "positions turn pairs of coordinates",
}


@dataclass(eq=False)
class MixingClass:
    """Slots that share one change of basis."""

    leaf: Node
    conditions: list[tuple[str, Frame]] = field(default_factory=list)  # kind, frame
    dead: str = ""  # why there is no change of basis
    why: list[str] = field(default_factory=list)
    over: set[Node] | None = None  # leaves present in every block of the class

    def level(self) -> str:
        """ "none", "general", "orthogonal", "ones", "complex" or "unit_complex"."""
        if self.dead:
            return "none"
        kinds = {kind for kind, _ in self.conditions}
        if not kinds:
            return "general"
        if "complex" in kinds:
            rest = kinds - {"complex"}
            return "complex" if not rest else "unit_complex" if rest == {"orthogonal"} else "none"
        if kinds == {"orthogonal"}:
            return "orthogonal"
        return "ones" if kinds == {"orthogonal", "ones"} else "none"

    @property
    def base(self) -> Frame | None:
        """The frame in which the conditions hold; None if they disagree."""
        frames = {frame for _, frame in self.conditions}
        return () if not frames else frames.pop() if len(frames) == 1 else None


class Mixing:
    """The union–find of slots."""

    def __init__(self, build: Builder, layout: Layout):
        self.build, self.layout = build, layout
        self.parent: dict[Slot, tuple[Slot, int, Frame]] = {}
        self.classes: dict[Slot, MixingClass] = {}
        self.company: dict[int, set[int]] = {}  # leaf → the leaves that index its copies
        for op in build.ops:
            self._operate(op)
        self.where = ""
        for block in torn_blocks(build, layout):
            self._kill_block(block, "its readers and its writer disagree")
        for value in build.graph.outputs:
            tensor = build.tensor(value)
            for block in tensor_blocks(tensor, layout):
                self._kill_block(block, "it is an output of the model")

    # -- union–find --------------------------------------------------------------------------
    def find(self, slot: Slot) -> tuple[Slot, int, Frame]:
        """(root, parity, frame): the slot is the root's, or its dual, in a frame."""
        path = []
        while slot in self.parent:
            path.append(slot)
            slot = self.parent[slot][0]
        parity, frame = 1, ()
        for node in reversed(path):  # path compression, from the root outwards
            _, step, more = self.parent[node]
            # seen through a dual, a frame is inverted: F⁻¹ (S g S⁻¹)⁻ᵀ F = ((S F⁻¹) g (S F⁻¹)⁻¹)⁻ᵀ
            frame = _sum(frame, more, parity)
            parity *= step
            self.parent[node] = (slot, parity, frame)
        return slot, parity, frame

    def slot(self, block: Block, axis: int, position: int, leaf: Node) -> Slot | None:
        """The slot of a leaf, created with its own class at first sight."""
        if block.tensor.zero or block.places[axis] is None or block.tensor.strides[axis] == 0:
            return None
        owner, start = block.key
        slot = (owner, start, block.stride(axis, position))
        root, _, _ = self.find(slot)
        if root not in self.classes:
            self.classes[root] = MixingClass(leaf)
            if not block.tensor.moves:
                self._kill(root, "the coordinates of the input are given")
        known = self.classes[root]
        if block.tensor.moves:
            present = {n for _, n, s in block.slots() if n is not leaf}
            known.over = present if known.over is None else known.over & present
        return slot

    def _kill(self, slot: Slot, reason: str) -> None:
        root, _, _ = self.find(slot)
        known = self.classes[root]
        known.dead = known.dead or reason

    def _condition(self, slot: Slot, kind: str) -> None:
        root, _, frame = self.find(slot)
        self.classes[root].conditions.append((kind, frame))
        self.classes[root].why.append(f"{_WHY[kind]} at {self.where}")

    def _join(self, a: Slot, b: Slot, parity: int, frame: Frame = ()) -> None:
        """b is a (parity 1) or the dual of a (−1), further inside by `frame`."""
        root_a, sign_a, frame_a = self.find(a)
        root_b, sign_b, frame_b = self.find(b)
        # frames are measured on the covariant side: F g F⁻¹, whatever the parity of the slot
        wanted = _sum(frame_a, frame)
        if root_a == root_b:
            if wanted != frame_b:
                self._kill(
                    root_a, f"the same coordinates are used with and without a gain at {self.where}"
                )
            elif sign_a * parity != sign_b:
                self.classes[root_a].conditions.append(("orthogonal", wanted))
                self.classes[root_a].why.append(f"it meets its own dual at {self.where}")
            return
        kept, gone = self.classes[root_a], self.classes.pop(root_b)
        turn = sign_a * parity * sign_b
        shift = _sum(wanted, frame_b, -turn)  # frame of root_b relative to root_a
        self.parent[root_b] = (root_a, turn, shift)
        kept.conditions += [(kind, _sum(shift, f, turn)) for kind, f in gone.conditions]
        kept.why += gone.why
        kept.dead = kept.dead or gone.dead
        if kept.over is None or gone.over is None:
            kept.over = kept.over if gone.over is None else gone.over
        else:
            kept.over &= gone.over

    def _kill_block(self, block: Block, reason: str) -> None:
        for axis, place in enumerate(block.places):
            for position, (leaf, _) in enumerate(place.leaves if place else ()):
                slot = self.slot(block, axis, position, leaf)
                if slot is not None:
                    self._kill(slot, reason)

    # -- primitives --------------------------------------------------------------------------
    def _operate(self, op: Op) -> None:
        self.where = op.where
        ins, outs = labels_of(op)
        for where, blocks, out in joint_blocks(op, self.layout):
            for label, place in where.items():
                for position, (leaf, _) in enumerate(place.leaves):
                    found = []
                    for block, labels in [*zip(blocks, ins, strict=False), (out, outs)]:
                        axis = labels.index(label) if label in labels else None
                        slot = None if axis is None else self.slot(block, axis, position, leaf)
                        found.append(slot)
                    self._leaf(op, label, leaf, found[:-1], found[-1], blocks, ins)
                    if op.kind != "concatenate":
                        tensors = [*zip(blocks, ins, strict=True), (out, outs)]
                        self._accompany(label, position, leaf, found, tensors)

    def _accompany(
        self, label: Any, position: int, leaf: Node, found: list[Any], tensors: list[Any]
    ) -> None:
        """Copies of a leaf are told apart by what stands at the same labels wherever it stands.

        In y·yᵀ the copy of head i meets the copy of head j: the same leaf at two labels indexes
        no copies.
        """
        seen: list[set[tuple]] = []
        nodes: dict[tuple, Node] = {}
        twice: set[int] = set()
        moving = [block.tensor.moves for block, _ in tensors]
        for slot, moves, (block, labels) in zip(found, moving, tensors, strict=True):
            if slot is None or not moves:
                continue
            here = {}
            for name, place, step in zip(labels, block.places, block.tensor.strides, strict=True):
                if place is None or not step:
                    continue
                for k, (node, _) in enumerate(place.leaves):
                    here[name, k] = node
            nodes.update(here)
            count = Counter(n.serial for at, n in here.items() if at != (label, position))
            twice |= {serial for serial, n in count.items() if n > 1}
            seen.append(set(here))
        if not seen:
            return
        shared = set.intersection(*seen)
        company = {nodes[at].serial for at in shared if at != (label, position)} - twice
        known = self.company.get(leaf.serial)
        self.company[leaf.serial] = company if known is None else known & company
        for slot in found:
            if slot is not None:
                root = self.classes[self.find(slot)[0]]
                if root.over is not None:
                    root.over = {n for n in root.over if n.serial in company}

    def _leaf(self, op, label, leaf, parts, out, blocks, ins) -> None:
        kind, data = op.kind, op.data
        alive = [slot for slot in (*parts, out) if slot is not None]

        def kill(reason: str) -> None:
            for slot in alive:
                self._kill(slot, reason)

        if kind in ("same", "concatenate") and data.get("linear", True) is not False:
            for part, tensor in zip(parts, op.inputs, strict=False):
                if part is not None and out is not None:
                    self._join(part, out, 1)
                elif out is not None and not (tensor.zero and kind == "same"):
                    if kind == "same":  # a multiple of ones is added
                        self._condition(out, "ones")
        elif kind in ("same",) and data.get("recurrent"):
            for part in parts:
                if part is not None and out is not None:
                    self._join(part, out, 1)
        elif kind == "contract":
            self._contract(op, label, leaf, parts, out, kill)
        elif kind == "reduce" and label in data["dims"]:
            if data["how"] in ("sum", "mean"):
                self._condition(parts[0], "ones") if parts[0] else None
            elif data["how"] == "norm2":
                self._condition(parts[0], "orthogonal") if parts[0] else None
            else:
                kill(f"coordinates are compared at {op.where}")
        elif kind == "normalize":
            if label in data["dims"] and parts[0] is not None and out is not None:
                self._join(parts[0], out, 1)
                self._condition(out, "orthogonal")
                if data["center"]:
                    self._condition(out, "ones")
            else:
                kill(f"each coordinate is normalised by itself at {op.where}")
        elif kind == "rotate":
            if parts[0] is not None and out is not None:
                self._join(parts[0], out, 1)
                if leaf is ix.resolve(data["pair"]) and label == data["dim"]:
                    self._condition(out, "complex")
        elif kind in ("mix", "lookup", "reduce"):
            how = data.get("how", "linear")
            if how not in ("linear", "mean", "sum") or parts[0] is None or out is None:
                kill(f"coordinates are treated one by one at {op.where}")
            else:
                self._join(parts[0], out, 1)
        elif kind == "offset":
            kill("a constant is added")
        else:
            name = data.get("name") or kind
            kill(f"{name} acts on each coordinate at {op.where}")

    def _contract(self, op, label, leaf, parts, out, kill) -> None:
        x, y = parts
        xs, ys, zs = op.data["labels"]
        if label not in zs:
            if x is not None and y is not None:
                self._join(x, y, -1)
            else:
                kill(f"it is summed at {op.where}")
            return
        if out is None:
            kill(f"it is repeated at {op.where}")
        elif x is None or y is None:
            part = x if x is not None else y
            lonely = op.inputs[0] if x is not None else op.inputs[1]
            other = op.inputs[1] if x is not None else op.inputs[0]
            absent = label not in (ys if x is not None else xs)
            absent = absent or _length(other, ys if x is not None else xs, label) == 1
            power = op.data.get("power", 1)
            if part is None or not absent or (power == -1 and lonely is op.inputs[1]):
                kill(f"coordinates are multiplied one by one at {op.where}")
            else:
                self._join(part, out, 1)
        else:
            self._gain(op, x, y, out, kill)

    def _gain(self, op, x, y, out, kill) -> None:
        """An entrywise product with a vector of parameters: a change of frame."""
        power = op.data.get("power", 1)
        for part, gain_slot, gain, sign in (
            (x, y, op.inputs[1], power), (y, x, op.inputs[0], 1)
        ):  # fmt: skip
            found = frame_key(gain)
            moving = op.inputs[0] if part is x else op.inputs[1]
            if not one_leaf(gain, self.layout):
                continue  # a frame is the vector of a whole axis
            if found is not None and frame_key(moving) is None and not (power == -1 and part is y):
                _, parity, _ = self.find(part)
                self._join(part, out, 1, ((found[0], sign * parity * found[1]),))
                self._kill(gain_slot, "it is a gain")
                return
        kill(f"coordinates are multiplied one by one at {op.where}")


def _length(tensor: Tensor, labels: tuple, label) -> int:
    return tensor.shape[labels.index(label)] if label in labels else 1


def one_leaf(vector: Tensor, layout: Layout) -> bool:
    """Whether the entries of a vector are the units of one leaf."""
    places = [layout.places(axis) for axis, n in zip(vector.axes, vector.shape, strict=True)
              if n > 1]  # fmt: skip
    return all(len(found) == 1 == len(found[0].leaves) for found in places)


def frame_key(tensor: Tensor) -> tuple[FrameKey, float] | None:
    """((parameter, offset), power) if the tensor is the vector (parameter + offset)^power."""
    offset, power = 0.0, 1.0
    seen: Tensor = tensor
    while True:
        if sum(n > 1 for n in seen.shape) > 1:
            return None
        owner = seen.owner
        if seen.integral:
            return None  # a mask has zeros, and integers cannot carry a frame
        if owner.kind in ("parameter", "buffer") and owner.producer is None:
            whole = max(owner.shape, default=1) == max(seen.shape, default=1)
            return ((owner.name, offset), power) if whole else None
        op = owner.producer
        if op is None:
            return None
        if op.kind == "offset":
            offset += op.data["constant"]
        elif op.kind == "unary" and op.data["name"] in POWERS and offset == 0.0:
            power *= float(op.data["degree"])
        elif op.kind == "unary" and op.data["name"] == "shift" and op.data["constant"] != 1.0:
            offset += op.data["constant"]
        elif not (op.kind == "same" and len(op.inputs) == 1 and op.data.get("factor", 1.0) == 1.0):
            return None
        seen = op.inputs[0]
