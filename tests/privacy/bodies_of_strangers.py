"""Bodies that nobody honest sends: a list written by hand, and honest ones changed at random."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

HEADER = 8


def packed(header: object, numbers: bytes = b"") -> bytes:
    """The bytes of a safetensors file with any JSON as its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def taken_apart(body: bytes) -> tuple[dict, bytes]:
    """The header and the numbers of an honest body."""
    length = int.from_bytes(body[:HEADER], "little")
    return json.loads(body[HEADER : HEADER + length]), body[HEADER + length :]


def by_hand(honest: bytes) -> Iterator[tuple[str, bytes]]:
    """Each with what is wrong with it."""
    header, numbers = taken_apart(honest)
    name = next(n for n in header if n != "__metadata__")
    entry = header[name]

    def altered(**changes: object) -> bytes:
        return packed({**header, name: {**entry, **changes}}, numbers)

    yield "nothing", b""
    yield "seven bytes", honest[:7]
    yield "the length alone", honest[:8]
    yield "half", honest[: len(honest) // 2]
    yield "all but a byte", honest[:-1]
    yield "a byte more", honest + b"\0"
    yield "twice", honest * 2
    for length in (1 << 63, (1 << 64) - 1, 1 << 31, 1 << 20, len(honest), 0):
        yield f"a header of {length} bytes", length.to_bytes(8, "little") + honest[8:]
    yield "a pickle", b"\x80\x04\x95" + honest
    yield "an archive", b"PK\x03\x04" + honest
    for text in (b"", b"{", b"[]", b"null", b"7", b'"x"', b"{}" * 2, b"\xff" * 9, b"\xef\xbb\xbf{}",
                 "{}".encode("utf-16"), "{}".encode("utf-32"), b"[" * 9000, b'{"a":' * 9000,
                 b'{"a": NaN}', b'{"a": 1e9}', b'{"a": ' + b"9" * 5000 + b"}"):  # fmt: skip
        yield f"the header {text[:12]!r}", packed(text, numbers)
    twice = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}"
    yield "a name twice", packed(twice.encode(), numbers)
    for shape in ([], [1], [-1, -6], [1 << 62, 4], [0, 6], [1.0, 6], [True, 6], ["1", "6"], "16",
                  None, {}, [[1], 6], [1] * 9 + [6], [1 << 47] * 8):  # fmt: skip
        yield f"the shape {str(shape)[:24]}", altered(shape=shape)
    size = len(numbers)
    for offsets in ([0], [], [0, 1], [size, 0], [-8, size - 8], [8, size + 8], [0, 1 << 60],
                    [0.0, size], [0, size, 0], "0", [None, None], [0, str(size)]):  # fmt: skip
        yield f"the offsets {str(offsets)[:24]}", altered(data_offsets=offsets)
    for dtype in ("F32", "I64", "F16", "BF16", "BOOL", "U8", "C64", "F8_E4M3", "", "f64", "O", 8,
                  None, [], {}):  # fmt: skip
        yield f"the dtype {dtype!r}", altered(dtype=dtype)
    for other in (None, 3, [], "x", {}, {"dtype": "F64"}, {**entry, "more": 1}):
        yield f"the entry {str(other)[:24]}", packed({**header, name: other}, numbers)
    for words in (None, [], "x", {"number": 1}, {"number": None}, {}, {"number": "x"},
                  {"number": "-1"}, {"number": "1" * 40}, {"number": "٣"}, {"number": "1e3"},
                  {"number": "999999999"}, {"number": "0", "more": ""},
                  {"fingerprint": "0" * 10000}):  # fmt: skip
        yield f"the words {str(words)[:24]}", packed({**header, "__metadata__": words}, numbers)
    for strange in ("", "inputs", "inputs/\ud800", "../../etc/passwd", "x" * 5000, "parameters/w"):
        renamed = {n: e for n, e in header.items() if n != name} | {strange: entry}
        yield f"the name {strange[:16]!a}", packed(renamed, numbers)
        yield f"the name {strange[:16]!a} beside", packed({**header, strange: entry}, numbers)
    many = {f"t{k}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for k in range(20000)}
    yield "20000 tensors", packed(many)


def at_random(honest: bytes, random_numbers: random.Random) -> bytes:
    """An honest body, changed in a way that cannot keep it one.

    Half of the changes hit the header, which is where most of what is believed stands.
    """
    body = bytearray(honest)
    length = HEADER + int.from_bytes(honest[:HEADER], "little")
    while True:
        kind = random_numbers.randrange(6)
        if kind == 0:  # cut short
            del body[random_numbers.randrange(len(body)) :]
        elif kind == 1:  # a byte of the header
            body[random_numbers.randrange(min(length, len(body)))] = random_numbers.randrange(256)
        elif kind == 2:  # a piece that is repeated
            start = random_numbers.randrange(len(body))
            piece = body[start : start + random_numbers.randrange(1, 40)]
            body[start:start] = piece
        elif kind == 3:  # a piece that is lost
            start = random_numbers.randrange(len(body))
            del body[start : start + random_numbers.randrange(1, 40)]
        elif kind == 4:  # the length
            body[:HEADER] = random_numbers.randbytes(HEADER)
        else:  # numbers in the header
            digits = [k for k in range(HEADER, min(length, len(body))) if 48 <= body[k] < 58]
            for k in random_numbers.sample(digits, min(len(digits), 3)):
                body[k] = random_numbers.randrange(48, 58)
        if len(body) <= HEADER or body != honest:
            return bytes(body)
