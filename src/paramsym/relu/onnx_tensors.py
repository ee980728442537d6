"""Numbers of an ONNX file as constants of a network: as they are stored, and integers with scales.

A tensor is read only after its bytes have been compared with its shape. Numbers that lie in another
file are read from the folder of the model alone. What a quantised integer stands for is

    (code - zero point)·scale, and whatever is within half a step (scale / 2) of it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from paramsym.relu.constants import Constant
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import COMPUTED, FORMATS, UP, Format, format_of

WHERE = "a tensor of the file"
_NARROW = ("int2", "uint2", "int4", "uint4")  # integers that torch holds in eight bits
_EXACT_CODES = 1 << 29  # with 24 bits of a scale in float32 their products are float64 numbers
_FLOATS = ("float", "bfloat")


def constant_of(tensor: Any, folder: Path | None = None) -> Constant:
    """The numbers of a `TensorProto` with what their storage leaves open.

    Args:
        folder: where files of external data may lie; None refuses them.

    Raises `ReLUError` for texts, complex numbers, bytes that do not fit the shape, and files
    outside the folder.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = _brought(tensor, folder)
    shape = tuple(tensor.dims)
    if any(n < 0 for n in shape) or len(shape) > 32:
        _refuse(f"the shape {shape[:8]}", "at most 32 sizes, none negative")
    if tensor.HasField("raw_data") and len(tensor.raw_data) != (size := bytes_of(tensor)):
        _refuse(f"{len(tensor.raw_data)} bytes", f"{size}, by its shape {shape}")
    try:
        return of_array(numpy_helper.to_array(tensor))
    except ReLUError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        _refuse(f"what is no tensor of shape {shape} ({str(error)[:80]})", "numbers that fill it")


def _refuse(came: str, expected: str) -> NoReturn:
    raise ReLUError(came, expected, WHERE, "Check that the file is whole, or export it again.")


def bytes_of(tensor: Any) -> int:
    """How many bytes the shape and the type of a tensor take."""
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        _refuse(f"numbers of the unknown type {tensor.data_type}", "floats or integers")
    name = dtype.name
    bits = 8 * dtype.itemsize if name not in (*_NARROW, "float4_e2m1fn") else int(name[-1:])
    bits = 4 if name == "float4_e2m1fn" else bits
    return -(-math.prod(tensor.dims) * bits // 8)


def of_array(array: np.ndarray) -> Constant:
    """An array in the dtype of its storage as a constant.

    Raises `ReLUError` for dtypes that hold no real numbers, or whose rounding is not known.
    """
    name = array.dtype.name
    if name.startswith(_FLOATS):
        held = format_of(array)
        wide = torch.from_numpy(np.array(array, dtype=np.float64))
        slack = torch.from_numpy(np.asarray(held.rounding(np.abs(wide.numpy()))))
        return Constant(wide, slack, frozenset({held}))
    if array.dtype == bool:
        return exactly(torch.from_numpy(np.array(array)))
    if name in ("int8", "uint8", *_NARROW):
        held = _grid(name)
        codes = torch.from_numpy(np.array(array, dtype=np.uint8 if name == "uint8" else np.int8))
        return Constant(codes, torch.full(codes.shape, 0.5).double(), frozenset({held}))
    if array.dtype.kind in "iu" and not (array.size and int(array.max()) >= 1 << 63):
        return exactly(torch.from_numpy(np.array(array, dtype=np.int64)))
    _refuse(f"numbers of the type {name}", "floats, integers of at most 63 bits, or booleans")


def exactly(value: torch.Tensor) -> Constant:
    """Numbers that stand for themselves."""
    return Constant(value, torch.zeros(value.shape, dtype=torch.float64), frozenset())


def _grid(name: str) -> Format:
    return FORMATS.get(name, Format(name, 0.0, 0.5))


# ------------------------------------------------------------ other files


def _brought(tensor: Any, folder: Path | None) -> Any:
    """A tensor of external data with its bytes inside."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        _refuse(f"external data {location[:80]!r}", "numbers inside the model")
    try:
        root = folder.resolve()
        file = (root / location).resolve()
        inside = file.is_relative_to(root) and file != root and not Path(location).is_absolute()
        if not inside:
            raise ReLUError(
                f"external data at {location[:80]!r}", "a file in the folder of the model", WHERE,
                "Nothing outside the folder is read; put the file beside the model.",
            )  # fmt: skip
        if not file.is_file():
            raise ReLUError(
                f"external data at {location[:80]!r}, which is no file", "a file beside the model",
                WHERE, "Copy the data file together with the model.",
            )  # fmt: skip
        offset, size = int(entries.get("offset", "0")), bytes_of(tensor)
        length = int(entries.get("length", size))
        if length != size or not 0 <= offset <= file.stat().st_size - size:
            _refuse(f"{length} bytes from {offset} on of the file {location[:80]!r}",
                    f"{size} bytes inside it, by the shape")  # fmt: skip
        with file.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(size)
    except (OSError, ValueError) as error:
        if isinstance(error, ReLUError):
            raise
        _refuse(f"external data at {location[:80]!r} ({str(error)[:80]})", "a readable file")
    return TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=data)


# ------------------------------------------------------------ integers with scales


def dequantised(
    codes: Constant, scale: Constant, zero: Constant | None, axis: int, block: int = 0
) -> Constant:
    """(codes - zero)·scale, with half a step of slack for integers.

    Args:
        scale: one number, one for each place along `axis`, or one for each `block` of them.
        zero: the code of 0, of the shape of `scale`.
    """
    scale = _along(scale, codes, axis, block)
    size = scale.value.double().abs()
    shifted = codes.value.double()
    if zero is not None:
        shifted = shifted - _along(zero, codes, axis, block).value.double()
    value = shifted * scale.value
    integers = not codes.value.is_floating_point()
    half = torch.full_like(size, 0.5) if integers else codes.slack
    slack = shifted.abs() * scale.slack + half * (size + scale.slack)
    formats = codes.formats | scale.formats
    coarse = all(f.unit > 2.0**-30 for f in scale.formats) and bool(scale.formats)
    if not (coarse and integers and bool((shifted.abs() <= _EXACT_CODES).all())):
        slack, formats = slack + COMPUTED.unit * value.abs(), formats | {COMPUTED}
    return Constant(value, (slack * UP).expand(value.shape).contiguous(), formats)


def quantised(x: Constant, scale: Constant, zero: Constant | None, axis: int) -> Constant:
    """The codes round(x / scale) + zero, inside the range of the type of `zero` (uint8 if None).

    The quotient is rounded to float32 first, as runtimes do.
    """
    dtype = torch.uint8 if zero is None else zero.value.dtype
    if dtype not in (torch.uint8, torch.int8):
        _refuse(f"quantised weights of the type {dtype}", "int8 or uint8")
    step = _along(scale, x, axis).value.float()
    shift = _along(zero, x, axis).value.double() if zero is not None else 0
    limits = torch.iinfo(dtype)
    codes = ((x.value.float() / step).round().double() + shift).clamp(limits.min, limits.max)
    slack = torch.full(codes.shape, 0.5).double()
    return Constant(codes.to(dtype), slack, frozenset({_grid(str(dtype).removeprefix("torch."))}))


def _along(part: Constant, whole: Constant, axis: int, block: int = 0) -> Constant:
    """Scales or zero points, laid along the axis that they belong to."""
    shape = tuple(whole.value.shape)

    def laid(tensor: torch.Tensor) -> torch.Tensor:
        if block:
            return tensor.repeat_interleave(block, axis).narrow(axis, 0, shape[axis])
        if tensor.numel() == 1:
            return tensor.reshape(())
        view = [1] * len(shape)
        view[axis] = shape[axis]
        return tensor.reshape(view)

    if block:
        blocks = [-(-n // block) if k == axis else n for k, n in enumerate(shape)]
        if not 0 < block <= shape[axis] or list(part.value.shape) != blocks:
            _refuse(f"blocks of {block} for scales of shape {tuple(part.value.shape)}",
                    f"{blocks}, for codes of shape {shape}")  # fmt: skip
    return Constant(laid(part.value), laid(part.slack), part.formats)
