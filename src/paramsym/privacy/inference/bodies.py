"""Messages as bytes, in the format of safetensors, read as what a stranger may have sent.

    8 bytes: the length N of the header, little-endian
    N bytes: JSON, {"__metadata__": {word: text}, name: {"dtype", "shape", "data_offsets"}, …}
    the numbers of all tensors, one after the other

N, every shape and every offset are the sender's word. Each is held against the limits, against
what the receiver expects and against the length of the body, before a tensor is made; a body is
read whole or refused, and nothing in it can run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save

from paramsym.formats.header import once
from paramsym.privacy.inference.messages import Layout, Message, Refusal, require_finite

CONTENT_TYPE = "application/x-safetensors"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_METADATA = "__metadata__"
_LENGTH = 8  # bytes of the number at the beginning


@dataclass(frozen=True)
class Limits:
    """The most that a body may have, whatever is expected of it.

    Attributes:
        body: bytes in all.
        header: bytes of the JSON header.
        tensors: their number.
        axes: of each tensor.
    """

    body: int = 1 << 28
    header: int = 1 << 20
    tensors: int = 1 << 14
    axes: int = 8


def write(message: Message) -> bytes:
    """A message as the bytes of a safetensors file, every tensor with numbers of its own."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in message.tensors.items()}
    return save(tensors, dict(message.header))


def bytes_of(layout: Layout, limits: Limits) -> int:
    """The most bytes that a body can have that is laid out so, within the limits."""
    entries = sum(
        math.prod(slot.longest if n is None else n for n in slot.shape)
        * max((dtype.itemsize for dtype in slot.dtypes), default=0)
        for slot in layout.slots.values()
    )
    names = sum(len(json.dumps(name)) + 128 for name in layout.slots)
    words = sum(len(word) + 6 * most + 16 for word, most in layout.words.items())
    return min(limits.body, _LENGTH + entries + min(limits.header, names + words + 64))


def read(body: bytes | bytearray, layout: Layout, limits: Limits | None = None) -> Message:
    """The message that a body holds, if it is what is expected.

    Args:
        body: all of it.
        layout: the words and tensors that are expected.
        limits: by default `Limits()`.

    Raises:
        Refusal: with status 413 for what is above a limit, 400 for what is no such body, and 422
            for a body that holds something else than is expected.
    """
    reader = _Reader(layout.what, limits or Limits())
    header, start = reader.header(body)
    words = reader.words(header.pop(_METADATA, {}), layout)
    layout.check_names(words, header)
    places = {name: reader.place(name, entry) for name, entry in header.items()}
    for name, place in places.items():
        layout.check_tensor(name, place.shape, place.dtype)
    reader.require_filled(places, len(body) - start)
    view = memoryview(body)[start:]
    tensors = {name: _tensor(view, place) for name, place in places.items()}
    for name, tensor in tensors.items():
        require_finite(layout.what, name, tensor)
    return Message(words, tensors)


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies behind the header, and as what."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def _tensor(view: memoryview, place: _Place) -> torch.Tensor:
    if place.start == place.stop:
        return torch.empty(place.shape, dtype=place.dtype)
    # its own bytes: aligned, writable, and the body can go
    own = bytearray(view[place.start : place.stop])
    if place.dtype == torch.bool:  # other bytes than 0 and 1 are no booleans
        return torch.frombuffer(own, dtype=torch.uint8).reshape(place.shape) != 0
    return torch.frombuffer(own, dtype=place.dtype).reshape(place.shape)


@dataclass(frozen=True)
class _Reader:
    """The checks of one body, in the order in which they are made."""

    what: str
    limits: Limits

    def header(self, body: bytes | bytearray) -> tuple[dict[str, Any], int]:
        """The JSON header as a dict, and where the numbers begin."""
        self._below("bytes", len(body), self.limits.body)
        if len(body) < _LENGTH:
            raise self._malformed(f"{len(body)} bytes came, fewer than its length takes")
        length = int.from_bytes(body[:_LENGTH], "little")
        self._below("bytes of the header", length, self.limits.header)
        if length > len(body) - _LENGTH:
            raise self._malformed(
                f"its header is to have {length} bytes, and {len(body) - _LENGTH} follow"
            )
        try:
            header = json.loads(
                bytes(body[_LENGTH : _LENGTH + length]).decode(),
                object_pairs_hook=once, parse_constant=_no_number, parse_float=_no_number,
            )  # fmt: skip
        except (ValueError, RecursionError) as error:  # too deep, no UTF-8, an endless integer
            fault = str(error).split("\n")[0][:120]
            raise self._malformed(f"its header is no JSON of its kind ({fault})") from None
        if not isinstance(header, dict):
            raise self._malformed(f"its header is a JSON {type(header).__name__}")
        self._below("tensors", len(header) - (_METADATA in header), self.limits.tensors)
        return header, _LENGTH + length

    def words(self, given: Any, layout: Layout) -> dict[str, str]:
        """The words of a header, none longer than is expected."""
        if not isinstance(given, dict) or not all(isinstance(t, str) for t in given.values()):
            raise self._malformed("its metadata are no texts by name")
        for word, text in given.items():
            if word in layout.words:
                self._below(f"letters of {word!r}", len(text), layout.words[word])
        return given

    def place(self, name: str, entry: Any) -> _Place:
        """What the header says of one tensor, if it can be."""
        if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
            raise self._malformed(f"{name[:80]!r} is described by something else than dtype, "
                                  "shape and data_offsets")  # fmt: skip
        shape, offsets, said = entry["shape"], entry["data_offsets"], entry["dtype"]
        dtype = DTYPES.get(said) if isinstance(said, str) else None
        if dtype is None:
            raise Refusal(
                422,
                f"{self.what}: {name[:80]!r} has the dtype {str(said)[:20]!r}, and one of "
                f"{[*DTYPES]} was expected. Convert it before it is sent.",
            )
        if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            raise self._malformed(f"the shape or the offsets of {name[:80]!r} are no counts")
        self._below(f"axes of {name[:80]!r}", len(shape), self.limits.axes)
        if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise self._malformed(
                f"{name[:80]!r} of shape {tuple(shape)} is to have {offsets[1] - offsets[0]} bytes"
            )
        return _Place(dtype, tuple(shape), *offsets)

    def require_filled(self, places: dict[str, _Place], size: int) -> None:
        """Raise a `Refusal` unless tensors lie one after the other and fill what follows."""
        end = 0
        for place in sorted(places.values(), key=lambda place: (place.start, place.stop)):
            if place.start != end:
                raise self._malformed(f"its tensors overlap or leave a gap at byte {end}")
            end = place.stop
        if end != size:
            raise self._malformed(f"{size} bytes of numbers came, and its header tells of {end}")

    def _below(self, what: str, found: int, limit: int) -> None:
        if found > limit:
            raise Refusal(
                413,
                f"{self.what}: {found} {what} came, and at most {limit} were expected. Send less "
                "at once, or raise the limits on the side that receives.",
            )

    def _malformed(self, fault: str) -> Refusal:
        return Refusal(
            400,
            f"{self.what}: {fault}; the bytes of a safetensors file were expected. Write it with "
            "paramsym.privacy.inference.bodies.write.",
        )


def _no_number(text: str) -> Any:
    raise ValueError(f"{text[:20]} is no count")


def _are_counts(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in given)
