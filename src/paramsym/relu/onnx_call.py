"""One node of an ONNX graph as the call of an operator: inputs that are known, and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from paramsym.relu.choices import refused
from paramsym.relu.constants import Constant

_KNOWN = ("", "ai.onnx")
_CHECK = "Check the file with onnx.checker.check_model."


class Call:
    """An operator with what it is called with.

    Attributes:
        op: its name, with its domain where this is not ONNX's own.
        inputs: arrays of functions and constants; None for what is left out.
        attributes: numbers, lists of them, bytes and tensors, by name.
        outputs: how many results the graph names.
        opset: the version of the operators.
        folder: where files of external data may lie.
    """

    def __init__(
        self, node: onnx.NodeProto, inputs: list[Any], opset: int, folder: Path | None
    ) -> None:
        self.op = node.op_type if node.domain in _KNOWN else f"{node.domain}.{node.op_type}"
        self.inputs, self.outputs, self.opset, self.folder = inputs, len(node.output), opset, folder
        self._node = node

    def check(self) -> None:
        """Raises `ReLUError` if this version of the operator takes no such inputs or attributes.

        An attribute that a version does not know is one that a runtime would not read as we do.
        """
        try:
            schema = onnx.defs.get_schema(self._node.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            refused(f"the operator {self.op}, which version {self.opset} does not have", _CHECK)
        unknown = sorted({str(a.name) for a in self._node.attribute} - set(schema.attributes))
        if unknown:
            refused(f"the attributes {unknown} of {self.op} in version {self.opset}", _CHECK)
        count = len(self.inputs)
        if not schema.min_input <= count <= schema.max_input or self.outputs > schema.max_output:
            refused(f"{count} inputs and {self.outputs} outputs of {self.op}", _CHECK)

    @property
    def attributes(self) -> dict[str, Any]:
        return {a.name: onnx.helper.get_attribute_value(a) for a in self._node.attribute}

    def having(self, inputs: list[Any]) -> Call:
        """The same operator with other inputs."""
        return Call(self._node, inputs, self.opset, self.folder)

    def input(self, place: int) -> Any:
        """An input, None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def number(self, name: str, default: Any = None) -> Any:
        """An attribute that is one number, of the kind of its default."""
        value = self.attributes.get(name, default)
        kinds = int if default is None or isinstance(default, int) else (int, float)
        if not isinstance(value, kinds):
            refused(f"the attribute {name} = {str(value)[:40]}")
        return value

    def text(self, name: str, default: str) -> str:
        """An attribute that is a word."""
        value = self.attributes.get(name, default)
        return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)

    def ints(self, name: str, place: int | None = None) -> list[int]:
        """Integers that are an attribute, or in other versions an input; empty where neither is."""
        given = self.input(place) if place is not None else None
        if given is not None:
            return integers(given).reshape(-1).tolist()
        value = self.attributes.get(name, [])
        if not isinstance(value, Sequence) or not all(isinstance(n, int) for n in value):
            refused(f"the attribute {name} = {str(value)[:40]}")
        return list(value)


def integers(value: Any) -> np.ndarray:
    """The integers of a constant."""
    if not isinstance(value, Constant) or value.value.is_floating_point():
        refused("sizes or places that depend on the input, or are no integers")
    return value.value.long().numpy()


def single(number: float) -> float:
    """A default as attributes store it, in float32."""
    return float(np.float32(number))
