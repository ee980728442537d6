"""ONNX files as ReLU networks: the function that ONNX defines, and nothing else."""

from __future__ import annotations

import itertools
import time

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Graph
from torch import nn
from typer.testing import CliRunner

from paramsym import relu
from paramsym.cli import app
from paramsym.relu import precision
from paramsym.relu.onnx_graph import network_of_model

RUNNER = CliRunner()
EPSILON = float(np.float32(1e-5))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def statistics(channels, seed=0):
    rng = np.random.default_rng(seed)
    gain, bias, mean = rng.normal(size=(3, channels))
    return gain, bias, mean, rng.uniform(0.5, 2, channels)


def residual(g):
    h = g("Relu", g("BatchNormalization", g("Conv", g.x, numbers(2, 1, 3, 3), pads=[1, 1, 1, 1]),
                    *statistics(2)))  # fmt: skip
    inner = g("Relu", g("Conv", h, numbers(2, 2, 3, 3, seed=1), numbers(2), auto_pad="SAME_UPPER"))
    pooled = g("GlobalAveragePool", g("Relu", g("Add", h, inner)))
    return g("Gemm", g("Flatten", pooled), numbers(2, 3), numbers(3))


def linear(g, n=4, m=4, seed=3):
    return g("Gemm", g.x, numbers(n, m, seed=seed), numbers(m))


def batch_of(g):
    """The number of rows, computed as exporters do."""
    return g("Gather", g("Shape", g.x), np.array([0]), axis=0)


ROW, IMAGE, SERIES = ["n", 4], ["n", 2, 5, 5], ["n", 2, 9]
MODELS = {
    "perceptron": (lambda g: g("Add", g("MatMul", g("Relu", linear(g)), numbers(4, 2)),
                               numbers(2)), ROW),
    "gemm": (lambda g: g("Gemm", g.x, numbers(3, 4), numbers(1, 3), transB=1, alpha=0.5, beta=2.0),
             ROW),
    "gemm of the transpose": (lambda g: g("Transpose", g("Gemm", numbers(4, 3), g.x, transA=1,
                              transB=1)), ROW),
    "residual": (residual, ["n", 1, 4, 4]),
    "arithmetic": (lambda g: g("Sub", g("Div", g("Mul", g("Neg", g.x), numbers(4)), np.array(3.0)),
                               g("Sum", linear(g), g.x, np.ones(4))), ROW),
    "from a constant": (lambda g: g("Sub", np.array(1.0), g("Mul", np.array(2.0), g.x)), ROW),
    "mean": (lambda g: g("Mean", g.x, linear(g), g("Abs", g.x)), ROW),
    "bends": (lambda g: g("Add", g("LeakyRelu", g.x, alpha=0.25), g("PRelu", linear(g),
                          np.array([0.1, 0.2, -0.3, 2.0]))), ROW),
    "hard sigmoid": (lambda g: g("HardSigmoid", g.x, alpha=0.25, beta=0.5), ROW),
    "maximum": (lambda g: g("Max", g.x, linear(g), np.array(-0.3)), ROW),
    "minimum": (lambda g: g("Min", g("Max", np.array(0.25), g.x), linear(g)), ROW),
    "clip": (lambda g: g("Clip", linear(g), np.array(-0.5), np.array(0.75)), ROW),
    "clip below": (lambda g: g("Clip", linear(g), np.array(-0.5)), ROW),
    "clip above": (lambda g: g("Clip", linear(g), "", np.array(0.75)), ROW),
    "choice": (lambda g: g("Where", g("Greater", linear(g), np.array(0.0)), linear(g),
                           g("Mul", linear(g), np.array(0.1)))
               , ROW),
    "grouped": (lambda g: g("Conv", g.x, numbers(4, 1, 3, 2), group=2, strides=[2, 1],
                            dilations=[1, 2], pads=[1, 0, 2, 1]), IMAGE),
    "same lower": (lambda g: g("Conv", g.x, numbers(1, 2, 2, 4), auto_pad="SAME_LOWER",
                               strides=[2, 3]), IMAGE),
    "valid": (lambda g: g("Conv", g.x, numbers(1, 2, 2, 2), auto_pad="VALID"), IMAGE),
    "series": (lambda g: g("MaxPool", g("Conv", g.x, numbers(3, 2, 3), numbers(3), dilations=[2]),
                           kernel_shape=[2]), SERIES),
    "average": (lambda g: g("AveragePool", g.x, kernel_shape=[3, 2], strides=[2, 2],
                            pads=[1, 0, 1, 1]), IMAGE),
    "average with padding": (lambda g: g("AveragePool", g.x, kernel_shape=[3, 3], strides=[2, 2],
                             pads=[1, 1, 1, 1], count_include_pad=1), IMAGE),
    "maximum pool": (lambda g: g("MaxPool", g.x, kernel_shape=[3, 2], strides=[2, 2],
                                 pads=[1, 0, 1, 1]), IMAGE),
    "ceiling": (lambda g: g("MaxPool", g.x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
                IMAGE),
    "largest of all": (lambda g: g("Flatten", g("GlobalMaxPool", g.x)), IMAGE),
    "norm": (lambda g: g("BatchNormalization", g.x, *statistics(4), epsilon=0.01), ROW),
    "means": (lambda g: g("Add", g("ReduceMean", g.x, np.array([2, -1]), keepdims=0),
                          g("ReduceSum", g("Relu", g.x), np.array([2, 3]), keepdims=0)), IMAGE),
    "extremes": (lambda g: g("Sub", g("ReduceMax", g.x, np.array([1])),
                             g("ReduceMin", g.x, np.array([1]))), ROW),
    "shapes": (lambda g: g("Reshape", g.x, g("Concat", batch_of(g), np.array([-1]), axis=0)),
               IMAGE),
    "sizes as scalars": (lambda g: g("Reshape", g.x, g("Concat", g("Unsqueeze", g("Gather", g(
                         "Shape", g.x), np.array(0)), np.array([0])), np.array([-1]), axis=0)),
                         IMAGE),
    "reshape": (lambda g: g("Squeeze", g("Unsqueeze", g("Reshape", g.x, np.array([0, 2, -1])),
                            np.array([1])), np.array([1])), ROW),
    "arranged": (lambda g: g("Concat", g("Slice", g.x, np.array([-1]), np.array([-9]),
                 np.array([1]), np.array([-2])), g("Gather", g.x, np.array([3, -4]), axis=1),
                 *g("Split", g.x, np.array([1, 3]), axis=1, outputs=2), axis=1), ROW),
    "padded": (lambda g: g("Pad", g("Pad", g.x, np.array([0, 0, 0, 1, 0, 0, 2, 0]),
               np.array(0.5)), np.array([0, 0, 1, 2, 0, 0, 1, 0]), mode="reflect"), IMAGE),
    "expanded": (lambda g: g("Add", g("Tile", g("ReduceMean", g.x, np.array([1])),
                 np.array([1, 3])), g("Expand", g("Slice", g.x, np.array([0]), np.array([1]),
                 np.array([1])), g("Concat", batch_of(g), np.array([3]), axis=0))), ROW),
    "folded": (lambda g: g("Mul", g.x, g("Div", g("Sqrt", g("Abs", numbers(4))), g("Cast", g(
               "Add", g("ConstantOfShape", np.array([4]), value=helper.make_tensor(
                   "c", TensorProto.INT64, [1], [3])), g("Range", np.array(0), np.array(4),
                                                         np.array(1))), to=FLOAT[g.dtype]))), ROW),
    "silent": (lambda g: g("Identity", g("Dropout", g("Cast", linear(g), to=FLOAT[g.dtype]))), ROW),
}  # fmt: skip
FLOAT = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def compared(model, dtype, tolerance, shape, count=30):
    """The largest output, after the values were compared with those of the reference."""
    net = network_of_model(model, "model")
    sizes = [n for n in shape[1:]]
    x = np.random.default_rng(7).normal(size=(count, *sizes)).astype(dtype) * dtype(1.5)
    right = np.concatenate([ReferenceEvaluator(model).run(None, {"x": x[k : k + 2]})[0].reshape(
        2, -1) for k in range(0, count, 2)])  # fmt: skip
    made = net.batch(x.reshape(count, -1).astype(np.float64))
    assert made.shape == right.shape
    assert (np.abs(made - right) <= tolerance * (1 + np.abs(right).max())).all()
    return right


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 1e-6)])
@pytest.mark.parametrize("kind", MODELS)
def test_the_function_is_that_of_the_reference(kind, dtype, tolerance):
    build, shape = MODELS[kind]
    graph = Graph(shape, dtype)
    right = compared(graph.model(build(graph)), dtype, tolerance, shape)
    assert np.abs(right).max() > 0.1 and np.ptp(right, axis=0).max() > 0.1  # there is something


OLD = {
    "axes as attributes": (lambda g: g("Squeeze", g("Unsqueeze", g("ReduceSum", g.x, axes=[1]),
                                                    axes=[1]), axes=[2]), ROW, 11),
    "means by attribute": (lambda g: g("ReduceMean", g.x, axes=[2, 3], keepdims=0), IMAGE, 13),
    "bounds as attributes": (lambda g: g("Clip", g.x, min=-0.5, max=0.5), ROW, 9),
    "widths as attribute": (lambda g: g("Pad", g.x, pads=[0, 1, 0, 2], value=0.5), ROW, 9),
    "slice by attributes": (lambda g: g("Slice", g.x, starts=[1], ends=[99], axes=[1]), ROW, 9),
    "split by attribute": (lambda g: g("Sub", *g("Split", g.x, axis=1, split=[2, 2], outputs=2)),
                           ROW, 11),
    "split evenly": (lambda g: g("Sub", *g("Split", g.x, axis=1, outputs=2)), ROW, 11),
    "split by number": (lambda g: g("Concat", *g("Split", g.x, axis=1, num_outputs=3, outputs=3)[
        :2], axis=1), ROW, 18),
    "dropout by ratio": (lambda g: g("Dropout", g.x, ratio=0.5), ROW, 10),
}  # fmt: skip


@pytest.mark.parametrize("kind", OLD)
def test_older_and_newer_versions_of_operators(kind):
    build, shape, opset = OLD[kind]
    graph = Graph(shape, np.float32, opset)
    compared(graph.model(build(graph)), np.float32, 1e-6, shape)


def test_paddings_below_zero_cut():
    a, b = Graph(ROW), Graph(ROW)
    cut = network_of_model(a.model(a("Pad", a.x, np.array([0, -1, 0, -2]))))
    taken = network_of_model(b.model(b("Slice", b.x, np.array([1]), np.array([2]), np.array([1]))))
    assert cut == taken and cut.widths == (4, 1)


def test_defaults_are_numbers_of_float32():
    a, b = Graph(ROW), Graph(ROW)
    plain = network_of_model(a.model(a("LeakyRelu", a.x)))
    assert plain == network_of_model(b.model(b("LeakyRelu", b.x, alpha=0.01)))


def test_bounds_that_no_number_of_the_type_passes_are_none():
    plain, bounded = Graph(ROW), Graph(ROW)
    largest = np.finfo(np.float32).max
    a = network_of_model(plain.model(plain("Relu", linear(plain))))
    b = network_of_model(bounded.model(bounded("Clip", linear(bounded), np.array(0.0),
                                               np.array(largest))))  # fmt: skip
    assert a == b


# ------------------------------------------------------------------ integers with scales


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_integer_weights_with_scales_are_exact_constants(dtype, axis):
    rng = np.random.default_rng(0)
    codes = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (4, 3), dtype=dtype)
    count = 1 if axis is None else (4, 3)[axis]
    scale = rng.uniform(0.001, 0.01, count).astype(np.float32)
    zero = rng.integers(1, 9, count).astype(dtype)
    graph = Graph(ROW)
    given = [scale, zero] if axis is not None else [scale[0], zero[0]]
    weight = graph("DequantizeLinear", graph.put(codes), *(graph.put(v) for v in given),
                   **({} if axis is None else {"axis": axis}))  # fmt: skip
    model = graph.model(graph("Relu", graph("MatMul", graph.x, weight)))
    compared(model, np.float32, 1e-6, ROW)
    net = network_of_model(model)
    laid = [v if axis != 0 else v[:, None] for v in (scale, zero)]
    right = (codes.astype(np.float64) - laid[1]) * laid[0].astype(np.float64)
    assert (net.floats[0].weight == right.T).all()  # not one rounding
    assert precision.storage_name(net) == f"{np.dtype(dtype).name} and float32"
    (bound, _), half = precision.roundings(net)[0], laid[0].astype(np.float64) / 2
    half = np.broadcast_to(half, right.shape).T
    assert (bound >= half).all() and (bound <= half * 1.01).all()
    # The float weights behind the codes, half a step away at most, and others, five away.
    fine = (codes.astype(np.float64) - laid[1] + rng.uniform(-0.5, 0.5, (4, 3))) * laid[0]
    for moved, kind in ((fine, "EQUAL_TO_PRECISION"), (fine + 5 * laid[0], "DIFFERENT")):
        other = relu.as_network([(moved.T, None), (np.eye(3), None)])
        assert relu.decide(other, net, mode="float", domain=(-1, 1)).kind == kind


def test_weights_that_are_quantised_in_the_file():
    graph = Graph(ROW)
    scale, zero = graph.put(np.array([0.5, 0.25, 0.125])), graph.put(np.array([0, 1, -2], np.int8))
    codes = graph("QuantizeLinear", numbers(4, 3), scale, zero, axis=1)
    weight = graph("DequantizeLinear", codes, scale, zero, axis=1)
    compared(graph.model(graph("MatMul", graph.x, weight)), np.float32, 1e-6, ROW)


def test_four_bits_and_blocks():
    graph = Graph(ROW)
    codes = helper.make_tensor("codes", TensorProto.INT4, [4, 2], [-8, 7, 3, -1, 0, 5, 6, -4])
    graph.stored.append(codes)
    scale = graph.put(np.array([[0.5, 0.25], [0.125, 1.0]]))
    weight = graph("DequantizeLinear", "codes", scale, axis=0, block_size=2)
    net = network_of_model(graph.model(graph("MatMul", graph.x, weight)))
    right = np.array([[-4, 1.75], [1.5, -0.25], [0, 5], [0.75, -4]])
    assert (net.floats[0].weight == right.T).all()
    assert precision.storage_name(net) == "int4 and float32"


def test_half_precision_and_eight_bit_floats_are_read_as_stored():
    for kind, name in ((TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16"),
                       (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn")):  # fmt: skip
        graph = Graph(ROW)
        graph.stored.append(helper.make_tensor("w", kind, [4, 1], [0.1, 0.5, -3.0, 1.7]))
        net = network_of_model(graph.model(graph("MatMul", graph.x, graph(
            "Cast", "w", to=TensorProto.FLOAT))))  # fmt: skip
        assert name in precision.storage_name(net)
        assert np.abs(net.floats[0].weight - [0.1, 0.5, -3.0, 1.7]).max() < 0.1


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("build, words", [
    (lambda g: g("Erf", g.x), ["the operator Erf", "node 'Erf_v0'"]),
    (lambda g: g("Gelu", g.x), ["the operator Gelu"]),
    (lambda g: g("Sigmoid", g.x), ["the operator Sigmoid"]),
    (lambda g: g("Softmax", g.x), ["the operator Softmax"]),
    (lambda g: g("Sign", g.x), ["the operator Sign"]),
    (lambda g: g("Exp", g.x), ["Exp of values that depend on the input"]),
    (lambda g: g("Mul", g.x, g.x), ["product of two values"]),
    (lambda g: g("MatMul", g.x, g("Transpose", g.x)), ["product of two values"]),
    (lambda g: g("Div", np.array(1.0), g.x), ["quotient"]),
    (lambda g: g("Div", g.x, np.array(0.0)), ["may be zero"]),
    (lambda g: g("Where", g("Greater", g.x, np.array(0.0)), g.x, np.array(1.0)), ["a jump"]),
    (lambda g: g("QuantizeLinear", g.x, np.array(0.1)), ["QuantizeLinear of values that depend"]),
    (lambda g: g("Cast", g.x, to=TensorProto.INT64), ["to integers"]),
    (lambda g: g("Sub", g.x, g("ReduceMean", g.x, np.array([0]))), ["rows of a batch"]),
    (lambda g: g("Transpose", g.x), ["output of shape (4, 2)"]),
    (lambda g: g("Reshape", g.x, np.array([3, -1])), ["Reshape in a form that is not known"]),
    (lambda g: g("MatMul", g.x, np.ones((3, 2))), ["MatMul", "expected 4"]),
    (lambda g: g("Dropout", g.x, np.array(0.5), g.put(np.array(True))), ["training mode"]),
    (lambda g: g("BatchNormalization", g.x, *statistics(4), training_mode=1), ["training mode"]),
    (lambda g: g("Add", g.x, np.array([1, 2, 3, np.nan])), ["the number nan"]),
    (lambda g: g("Add", np.ones(4), np.ones(4)), ["does not depend on the input"]),
    (lambda g: g("Relu", "nothing"), ["'nothing', which nothing before it makes"]),
    (lambda g: g("Add", g.x, g("Cast", g("MaxPool", g("Unsqueeze", g.x, np.array([1])), outputs=2,
     kernel_shape=[1])[1], to=1)), ["the places of a maximum"]),
    (lambda g: g("FusedGemm", g.x, domain="com.microsoft"), ["com.microsoft.FusedGemm"]),
    (lambda g: g("ReduceMean", g.x, axes=[1]), ["['axes'] of ReduceMean in version 21"]),
    (lambda g: g("Relu", g.x, g.x), ["2 inputs and 1 outputs of Relu"]),
    (lambda g: g("GlobalAveragePool", g.x), ["nothing after its channels"]),
    (lambda g: g("MaxPool", g("Unsqueeze", g.x, np.array([1])), kernel_shape=[2], pads=[2, 0]),
     ["a maximum over padding alone"]),
    (lambda g: g("MaxPool", g("Unsqueeze", g("Slice", g.x, np.array([0]), np.array([1]), np.array(
        [1])), np.array([1])), kernel_shape=[2], pads=[1, 1], dilations=[2]),
     ["a maximum over padding alone"]),
    (lambda g: g("AveragePool", g("Unsqueeze", g.x, np.array([1])), kernel_shape=[2], pads=[0, 2]),
     ["an average over padding alone"]),
    (lambda g: g("Expand", g.x, np.array([10**9, 10**9, 1, 4])), [",000,000,000,000"]),
    (lambda g: g("Tile", g.x, np.array([1, 2**19])), ["4,194,304 entries"]),
    (lambda g: g("Add", g.x, g("ConstantOfShape", np.array([10**12]))), ["1,000,000,000,000"]),
])  # fmt: skip
def test_what_is_not_piecewise_linear_is_named(build, words):
    graph = Graph(ROW)
    with pytest.raises(relu.ReLUError) as caught:
        network_of_model(graph.model(build(graph)), "net.onnx")
    for word in [*words, "net.onnx", "got", "expected"]:
        assert word in str(caught.value)


def test_what_no_output_reads_is_no_obstacle():
    graph = Graph(ROW)
    graph("Erf", graph.x)
    assert network_of_model(graph.model(graph("Relu", graph.x))).widths == (4, 4, 4)


def test_two_values_of_one_name_are_refused():
    graph = Graph(ROW)
    model = graph.model(graph("Relu", linear(graph)))
    for name in ("x", model.graph.initializer[0].name, model.graph.node[1].output[0]):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.node[0].output[0] = name
        with pytest.raises(relu.ReLUError, match="several values of the name"):
            network_of_model(changed)


def test_operators_of_unknown_versions_are_refused():
    graph = Graph(ROW, opset=6)
    with pytest.raises(relu.ReLUError, match="version 6.*one of 7"):
        network_of_model(graph.model(graph("Relu", graph.x)))


# ------------------------------------------------------------------ files


def saved(folder, name, graph, result, **options):
    path = folder / name
    onnx.save(graph.model(result), str(path), **options)
    return path


def test_open_sizes_have_to_be_said(tmp_path):
    graph = Graph(["n", 1, "h", "w"])
    h = graph("GlobalMaxPool", graph("Conv", graph.x, numbers(2, 1, 2, 2)))
    path = saved(tmp_path, "a.onnx", graph, graph("Flatten", h))
    with pytest.raises(relu.ReLUError, match=r"shape \('\?', 1, '\?', '\?'\).*input_shape"):
        relu.read_network(path)
    assert relu.read_network(path, (1, 3, 3)).input_dim == 9
    for wrong in ((2, 3, 3), (1, 3), (1, 0, 3)):
        with pytest.raises(relu.ReLUError, match="the sizes of one input"):
            relu.read_network(path, wrong)
    asked = ["relu-equal", str(path), str(path)]
    assert RUNNER.invoke(app, [*asked, "--input-shape", "1x3x3"]).exit_code == 0
    for wrong in ([], ["--input-shape", "1x3"], ["--input-shape", "1xa"], ["--input-shape", "9" * 30
                  + "x1x1"]):  # fmt: skip
        assert RUNNER.invoke(app, [*asked, *wrong]).exit_code == 2


def test_external_data_inside_the_folder_and_beyond(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    graph = Graph(ROW)
    path = saved(inner, "a.onnx", graph, linear(graph), save_as_external_data=True,
                 location="a.data", size_threshold=0)  # fmt: skip
    assert relu.read_network(path).widths == (4, 4)
    (tmp_path / "a.data").write_bytes((inner / "a.data").read_bytes())
    (inner / "link").symlink_to(tmp_path / "a.data")
    model = onnx.load(str(path), load_external_data=False)
    changes = [("location", "../a.data"), ("location", str(tmp_path / "a.data")),
               ("location", "link"), ("location", "none"), ("location", ""), ("location", "a\0b"),
               ("offset", "999"), ("offset", "-1"), ("length", "1"), ("length", "x"),
               ("offset", "9" * 5000)]  # fmt: skip
    for key, value in changes:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for tensor in changed.graph.initializer:
            kept = [e for e in tensor.external_data if e.key != key]
            entry = onnx.StringStringEntryProto(key=key, value=value)
            del tensor.external_data[:]
            tensor.external_data.extend([*kept, entry])
        other = inner / "b.onnx"
        other.write_bytes(changed.SerializeToString())
        with pytest.raises(relu.ReLUError, match="b.onnx.*expected"):
            relu.read_network(other)
    with pytest.raises(relu.ReLUError, match="numbers inside the model"):
        network_of_model(model)


def small(seed=0):
    graph = Graph(["n", 1, 4, 4])
    result = residual(graph)
    scaled = graph("DequantizeLinear", graph.put(np.arange(-3, 3).astype(np.int8).reshape(3, 2)),
                   np.array(0.25))  # fmt: skip
    return graph.model(graph("Clip", graph("MatMul", result, scaled), np.array(-1.0),
                             np.array(1.0))).SerializeToString()  # fmt: skip


def test_truncated_and_mutated_files_are_refused_or_read(tmp_path):
    content, path = small(), tmp_path / "m.onnx"
    rng, outcomes = np.random.default_rng(0), []
    cuts = [content[: k * len(content) // 40] for k in range(40)]
    mutations = []
    for _ in range(300):
        broken = bytearray(content)
        for place in rng.integers(0, len(broken), rng.integers(1, 8)):
            broken[place] = rng.integers(0, 256)
        mutations.append(bytes(broken))
    for broken in itertools.chain(cuts, mutations, [b"junk", b"\xff" * 99]):
        path.write_bytes(broken)
        start = time.perf_counter()
        try:
            relu.read_network(path)
            outcomes.append("read")
        except relu.ReLUError as error:
            assert error.came and error.expected and "m.onnx" in error.where and error.todo
            outcomes.append("refused")
        assert time.perf_counter() - start < 5
    assert outcomes.count("refused") > 100 and outcomes.count("read") > 20


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    import sys

    graph = Graph(ROW)
    path = saved(tmp_path, "a.onnx", graph, linear(graph))
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = RUNNER.invoke(app, ["relu-equal", str(path), str(path)])
    assert result.exit_code == 2 and "pip install 'paramsym[onnx]'" in result.stderr


# ------------------------------------------------------------------ decisions


def convolutional():
    """One network as a module and as a graph, in the same numbers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2, eps=EPSILON), nn.ReLU(),
                           nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 2)).eval()  # fmt: skip
    norm = module[1]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    state = {k: v.numpy() for k, v in module.state_dict().items()}

    def written(changed=0.0, order=(0, 1)):
        order = list(order)
        g = Graph(["n", 1, 3, 3])
        weight = state["0.weight"].copy()
        weight[0, 0, 0, 0] += changed
        h = g("Conv", g.x, weight[order], state["0.bias"][order])
        h = g("BatchNormalization", h, *(state[f"1.{k}"][order] for k in (
            "weight", "bias", "running_mean", "running_var")))  # fmt: skip
        h = g("AveragePool", g("Relu", h), kernel_shape=[2, 2], strides=[2, 2])
        return g.model(g("Gemm", g("Flatten", h), state["5.weight"][:, order], state["5.bias"],
                         transB=1))  # fmt: skip

    return module, written


def test_a_file_and_its_module_are_one_function_and_a_changed_weight_is_not():
    module, written = convolutional()
    a = relu.as_network(module, input_shape=(1, 3, 3))
    assert a == relu.as_network(written())
    for mode in ("exact", "float"):
        same = relu.as_network(written(order=(1, 0)))
        verdict = relu.decide(a, same, mode=mode, domain=(-1, 1))
        assert verdict.kind == "EQUAL" and relu.verify(verdict, a, same)
        other = relu.as_network(written(changed=1e-2))
        verdict = relu.decide(a, other, mode=mode, domain=(-1, 1))
        assert verdict.kind == "DIFFERENT" and relu.verify(verdict, a, other)


def test_the_command_reads_files(tmp_path):
    _, written = convolutional()
    paths = [str(tmp_path / f"{name}.onnx") for name in "abc"]
    for path, model in zip(paths, (written(), written(order=(1, 0)), written(changed=1e-2)),
                           strict=True):  # fmt: skip
        onnx.save(model, path)
    a, b, c = paths
    verdict = str(tmp_path / "verdict.json")
    same = RUNNER.invoke(app, ["relu-equal", a, b, "--box", "-1", "1", "--certificate", verdict])
    assert same.exit_code == 0 and same.stdout.startswith("EQUAL"), same.output
    assert RUNNER.invoke(app, ["relu-verify", verdict, a, b]).exit_code == 0
    assert RUNNER.invoke(app, ["relu-verify", verdict, a, c]).exit_code == 1
    other = RUNNER.invoke(app, ["relu-equal", a, c, "--box", "-1", "1"])
    assert other.exit_code == 1 and other.stdout.startswith("DIFFERENT")


def test_numbers_of_every_field_of_a_tensor():
    for raw in (True, False):
        graph = Graph(ROW, np.float64)
        array = numbers(4, 2)
        held = numpy_helper.from_array(array, "w") if raw else helper.make_tensor(
            "w", TensorProto.DOUBLE, [4, 2], array.reshape(-1).tolist())  # fmt: skip
        graph.stored.append(held)
        net = network_of_model(graph.model(graph("MatMul", graph.x, "w")))
        assert (net.floats[0].weight == array.T).all()
        held.dims[0] = 5
        with pytest.raises(relu.ReLUError, match="a tensor of the file|MatMul"):
            network_of_model(graph.model(graph("MatMul", graph.x, "w")))
