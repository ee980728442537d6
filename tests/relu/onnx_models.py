"""ONNX models for the tests, built node by node."""

from __future__ import annotations

import itertools

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOATS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE,
          np.dtype(np.float16): TensorProto.FLOAT16}  # fmt: skip


class Graph:
    """Nodes one after the other; `x` is the input, and every call returns the name of a result."""

    def __init__(self, shape, dtype=np.float32, opset=21):
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes, self.stored, self.count = [], [], itertools.count()
        self.x = "x"
        self.input = helper.make_tensor_value_info("x", FLOATS[self.dtype], shape)

    def put(self, array, dtype=None):
        """Numbers as an initialiser: floats in the graph's dtype, integers as they are."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(dtype or self.dtype)
        name = f"w{next(self.count)}"
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, op, *inputs, outputs=1, **attributes):
        names = [i if isinstance(i, str) else self.put(i) for i in inputs]
        made = [f"v{next(self.count)}" for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, f"{op}_{made[0]}", **attributes))
        return made[0] if outputs == 1 else made

    def model(self, result):
        output = helper.make_tensor_value_info(result, FLOATS[self.dtype], None)
        graph = helper.make_graph(self.nodes, "graph", [self.input], [output], self.stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)],
                                 ir_version=10)  # fmt: skip
