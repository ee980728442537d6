"""Where a primitive is asked for its facts: one component of scales, or one leaf of a basis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paramsym.primitives.gains import Frame
from paramsym.primitives.index import Node
from paramsym.primitives.joint import Joint, Slot
from paramsym.primitives.solve import Number

Unknown = tuple[int, int, tuple[int, ...]]  # owner, block, strides of the leaves
Equation = Sequence[tuple[Number, Unknown | None]]


class ScaleSite:
    """The log-scales (or signs) of a joint that depend on exactly one set of leaves.

    `parts` are the unknowns of the inputs and `result` that of the output, None where that part
    vanishes; `inside` are the labels at which the leaves stand, `places` those with the leaves.
    """

    __slots__ = ("inside", "joint", "parts", "places", "result", "signs")

    def __init__(
        self, joint: Joint, places: tuple, parts: list[Unknown | None], result: Unknown | None,
        signs: bool,
    ):  # fmt: skip
        self.joint, self.places, self.parts, self.result = joint, places, parts, result
        self.inside = {label for label, _, _ in places}
        self.signs = signs

    def equal(self, part: Unknown | None, factor: Number = 1) -> Iterator[Equation]:
        """factor · part = result."""
        yield ((factor, part), (-1, self.result))

    def hold(self, *unknowns: Unknown | None) -> Iterator[Equation]:
        """Nothing scales: the given unknowns, or all of the site, vanish."""
        for unknown in unknowns or (*self.parts, self.result):
            if unknown is not None:
                yield ((1, unknown),)

    def alike(self) -> Iterator[Equation]:
        """All blocks of the first input along what the primitive combines scale alike."""
        x = self.parts[0]
        if x is None:
            return
        op, block = self.joint.op, self.joint.inputs[0]
        inside = sum(
            place.start * block.tensor.strides[d]
            for d, place in enumerate(block.places) if place is not None and d in op.combined
        )  # fmt: skip
        yield ((1, x), (-1, (-1 - op.out.serial, x[1] - inside, x[2])))

    def unless(self, wrong: bool, factor: Number = 1) -> Iterator[Equation]:
        """The first input scales like the output, unless something is wrong with that."""
        return self.hold() if wrong else self.equal(self.parts[0], factor)


class BasisSite:
    """One leaf at one label of a joint, with its slot in each input and in the output."""

    __slots__ = ("_cap", "_hold", "_join", "joint", "label", "leaf", "out", "parts")

    def __init__(
        self, joint: Joint, label: Any, leaf: Node, parts: list[Slot | None], out: Slot | None,
        join: Callable, cap: Callable, hold: Callable,
    ):  # fmt: skip
        self.joint, self.label, self.leaf = joint, label, leaf
        self.parts, self.out = parts, out
        self._join, self._cap, self._hold = join, cap, hold

    def join(self, a: Slot | None, b: Slot | None, dual: bool = False, frame: Frame = ()) -> None:
        """b carries the basis of a (or its dual), further inside by a frame."""
        if a is not None and b is not None:
            self._join(a, b, -1 if dual else 1, frame)

    def cap(self, slot: Slot | None, kind: str) -> None:
        """Only a smaller group may act: "orthogonal", "ones" or "complex"."""
        if slot is not None:
            self._cap(slot, kind)

    def hold(self, reason: str, *slots: Slot | None) -> None:
        """No change of basis at the given slots, or at all of the site."""
        for slot in slots or (*self.parts, self.out):
            if slot is not None:
                self._hold(slot, reason)
