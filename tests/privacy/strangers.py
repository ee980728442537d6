"""Raw HTTP of any kind, and what came back: for requests that no client would send."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TYPE = "application/x-safetensors"


@dataclass(frozen=True)
class Answer:
    """The status of an answer, or 0 if the connection ended without one, and what it says."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; `content_length` and `content_type` by default are honest."""
    given = {"Host": "127.0.0.1", "Connection": "close", "Content-Length": str(len(body)),
             "Content-Type": TYPE}  # fmt: skip
    given |= {name.replace("_", "-").title(): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in given.items() if v)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def exchange(url: str, sent: bytes, seconds: float = 20.0) -> Answer:
    """Send bytes and read until the other side closes."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), seconds) as connection:
        try:
            connection.sendall(sent)
            while piece := connection.recv(1 << 16):
                received += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return Answer(0, body)
    pairs = (line.decode("latin-1").split(": ", 1) for line in head.split(b"\r\n")[1:])
    return Answer(int(head.split()[1]), body, {name.lower(): value for name, value in pairs})
