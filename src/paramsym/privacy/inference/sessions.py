"""The sessions of a server: few, short, one key each, and no query twice."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paramsym.privacy.inference.messages import Refusal
from paramsym.privacy.inference.protocol import Evaluator


@dataclass(eq=False)
class OpenSession:
    """One session: nothing but its end until the data owner has replied, then a network.

    Queries are numbered by who sends them, from 0, in any order; one bit remembers each number, so
    that memory does not grow with what is sent.
    """

    ends: float  # seconds of the clock
    queries: int  # how many there may be
    replied: bool = False
    evaluator: Evaluator | None = None
    seen: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.seen = bytearray(-(-self.queries // 8))


@dataclass(eq=False)
class Sessions:
    """All sessions that are open; safe to use from several threads.

    Attributes:
        most: at a time.
        seconds: that a session lasts after the data owner has replied.
        patience: seconds until the data owner must have replied.
        queries: the most in one session.
        clock: seconds that only grow.
    """

    most: int = 16
    seconds: float = 3600.0
    patience: float = 60.0
    queries: int = 1 << 20
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, OpenSession] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._open)

    def open(self) -> str:
        """A new session, by a name that cannot be guessed.

        Raises:
            Refusal: as many are open as may be (429).
        """
        with self._lock:
            self._forget()
            if len(self._open) >= self.most:
                raise Refusal(
                    429,
                    f"a new session: {len(self._open)} are open, and at most {self.most} may be. "
                    "Close one with DELETE, or wait until one expires.",
                )
            name = secrets.token_urlsafe(32)
            self._open[name] = OpenSession(self.clock() + self.patience, self.queries)
            return name

    def close(self, name: str) -> None:
        """Forget a session and its network; `Refusal` (404) if there is none."""
        with self._lock:
            self._found(name)
            del self._open[name]

    def claim(self, name: str) -> None:
        """Let the one reply of a session in.

        Raises:
            Refusal: there is no such session (404), or it has been replied to (409).
        """
        with self._lock:
            session = self._found(name)
            if session.replied:
                raise Refusal(
                    409,
                    "the data owner's parameters: this session has been sent some, and one key for "
                    "each session was expected. Open another session for another key.",
                )
            session.replied = True

    def refuse(self, name: str) -> None:
        """Let another reply in after one that was not taken."""
        with self._lock:
            if session := self._open.get(name):
                session.replied = False

    def begin(self, name: str, evaluator: Evaluator) -> None:
        """Give a session its network; `Refusal` (404) if it has ended meanwhile."""
        with self._lock:
            session = self._found(name)
            session.evaluator, session.ends = evaluator, self.clock() + self.seconds

    def require(self, name: str) -> None:
        """Raise a `Refusal` (404) if there is no such session."""
        with self._lock:
            self._found(name)

    def take(self, name: str, number: str) -> Evaluator:
        """The network of a session for the query of a number, which is used up by that.

        Raises:
            Refusal: there is no such session (404), it has no network yet (409), the number is
                none (422) or above the most (409), or it was used before (409).
        """
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise Refusal(
                422,
                f"a query: its number is {number[:20]!r}, and a whole number from 0 on was "
                "expected. Count the queries of a session.",
            )
        with self._lock:
            session = self._found(name)
            if session.evaluator is None:
                raise Refusal(
                    409,
                    "a query: the session has no parameters yet, and those of the data owner were "
                    "expected first. PUT them to /sessions/…/parameters.",
                )
            place, bit = divmod(int(number), 8)
            if int(number) >= session.queries:
                raise Refusal(
                    409,
                    f"a query: its number is {number}, and a session has {session.queries} "
                    "queries. Open another session.",
                )
            if session.seen[place] >> bit & 1:
                raise Refusal(
                    409,
                    f"a query: the number {number} was used before in this session, and a fresh "
                    "one was expected. Count on; a query that was lost is sent with a new number.",
                )
            session.seen[place] |= 1 << bit
            return session.evaluator

    def _found(self, name: str) -> OpenSession:
        self._forget()
        if name not in self._open:
            raise Refusal(
                404,
                f"there is no session {name[:60]!r}: it was never opened, was closed, or has "
                "expired. Open one with POST /sessions.",
            )
        return self._open[name]

    def _forget(self) -> None:
        now = self.clock()
        for name in [n for n, session in self._open.items() if session.ends <= now]:
            del self._open[name]
