"""Activations that never have a component along some direction.

What leaves a centred normalisation sums to zero, and what leaves a softmax sums to one, in the
frame of the gains that came after. Adding a bias moves the sum by a constant, averaging over
examples or positions keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paramsym.structure.symmetry import Factor, Window
from paramsym.tracing.blocks import Layout, tensor_blocks
from paramsym.tracing.builder import Tensor
from paramsym.tracing.mixing import Frame, _sum, frame_key
from paramsym.tracing.perturb import (
    Circuit,
    Joint,
    Key,
    Known,
    Transfer,
    is_linear_sum,
    parameter_factor,
    window_of,
)


@dataclass(frozen=True)
class Absence:
    """An activation block x with Σ x·w = offset, where w = 1 in a frame along one slot."""

    stride: int
    frame: Frame
    offset: tuple[tuple[float, tuple[Factor, ...], str], ...]  # weight, factors, letter of w


def frame_factors(
    parameters: dict[str, Tensor], frame: Frame, letter: str, sign: int
) -> Iterator[Factor]:
    """The diagonal of a frame as factors along one letter."""
    for (gain, offset), exponent in frame:
        size = max(parameters[gain].shape)
        yield Factor(Window(gain, letter, (size,), (1,), 0), float(sign * exponent), offset)


class Absences:
    """Finds the absence of every activation block, following the network forward."""

    def __init__(self, circuit: Circuit, layout: Layout, parameters: dict[str, Tensor]):
        self.circuit, self.layout, self.parameters = circuit, layout, parameters

    def find(self) -> dict[Key, Absence]:
        """Blocks without a component along the all-ones vector in some frame."""
        found: dict[Key, Absence] = {}
        for op in self.circuit.build.ops:
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
            single = len(self.layout.places(out.tensor.axes[axis])) == 1
            if place is not None and len(place.leaves) == 1 and single:
                return Absence(out.stride(axis, 0), (), ())
        sources = [(k, found[key]) for k, key in enumerate(joint.keys) if key in found]
        if len(sources) != 1 or (op.kind == "same" and not is_linear_sum(op)):
            return None
        (k, known), = sources  # fmt: skip
        if not self.circuit.is_whole(joint.inputs[k], known.stride):
            return None  # a window in a coarse place
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
        scaled = data.get("factor", 1.0) != 1.0 or float(data["signs"][k]) != 1.0
        if len(op.inputs) == 1:
            if scaled and known.offset:
                return None
            return Absence(stride, known.frame, known.offset)
        return None if scaled else self._with_bias(joint, k, known, stride, at)

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
        factors = (
            Factor(window, 1.0, found[2]),
            *frame_factors(self.parameters, known.frame, "z", 1),
        )
        weight = float(joint.op.data["signs"][1 - k])
        return Absence(stride, known.frame, (*known.offset, (weight, factors, "z")))
