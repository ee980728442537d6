"""What the service answers: sessions, bodies and turns, as an ASGI application.

Requests hold a session's name against the sessions, the length and the type of a body against what
its step can have, and only then receive it; what takes long is done in threads, few at a time.
Whatever is refused is answered by a status from 400 to 499 and a JSON object with an `error`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from paramsym.privacy.inference import bodies
from paramsym.privacy.inference.messages import Layout, Message, Refusal
from paramsym.privacy.inference.protocol import ModelOwner
from paramsym.privacy.inference.sessions import Sessions

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Made = TypeVar("Made")
_DRAINING = 1.0  # seconds for which a body that was refused is read, so that the answer arrives
_ASKED = "paramsym.asked"  # in the scope of a request whose body has been asked for


@dataclass(frozen=True)
class ServerLimits:
    """What a server takes on.

    Attributes:
        bodies: of each message.
        pending: bytes of all bodies that are being received or worked on.
        seconds: that a body may take to arrive.
        concurrency: evaluations at a time.
        samples: the most in one query.
        sessions: open at a time.
        lifetime: of a session, in seconds.
        patience: seconds until the data owner must have sent the parameters.
        queries: of one session.
    """

    bodies: bodies.Limits = field(default_factory=bodies.Limits)
    pending: int = 1 << 29
    seconds: float = 30.0
    concurrency: int = 2
    samples: int = 4096
    sessions: int = 16
    lifetime: float = 3600.0
    patience: float = 60.0
    queries: int = 1 << 20


def imported(name: str) -> Any:
    """A module of the extra `web`; an `ImportError` that says so if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"paramsym.privacy.inference: {name} is not installed, which the service was "
            "expected to find. Install it with: pip install 'paramsym[web]'"
        ) from error


def application(owner: ModelOwner, limits: ServerLimits | None = None) -> Starlette:
    """The service as an ASGI application, for a server of one's own.

    Raises:
        ImportError: starlette is not installed.
    """
    imported("starlette")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = _Service(owner, limits or ServerLimits())

    async def refused(request: Request, error: Exception) -> Response:
        await _drain(request)
        if isinstance(error, Refusal):
            return _error(error.status, str(error))
        status = error.status_code if isinstance(error, HTTPException) else 400
        return _error(
            status,
            f"{request.method[:20]} {request.url.path[:80]!r}: there is no such place or method. "
            "GET / tells what there is.",
        )

    made = Starlette(
        routes=[
            Route("/", service.about, methods=["GET"]),
            Route("/sessions", service.open, methods=["POST"]),
            Route("/sessions/{name}", service.close, methods=["DELETE"]),
            Route("/sessions/{name}/parameters", service.reply, methods=["PUT"]),
            Route("/sessions/{name}/queries", service.query, methods=["POST"]),
        ],
        exception_handlers={Refusal: refused, HTTPException: refused},
    )
    made.router.redirect_slashes = False
    return made


class _Service:
    """The requests, each of which checks a session, receives a body and works in a thread."""

    def __init__(self, owner: ModelOwner, limits: ServerLimits) -> None:
        self.owner, self.limits = owner, limits
        self.sessions = Sessions(limits.sessions, limits.lifetime, limits.patience, limits.queries)
        self.turns = asyncio.Semaphore(limits.concurrency)
        self.pending = 0
        query = owner.query_layout
        self.query_layout = Layout(query.what, query.slots, {"number": 19})

    async def about(self, request: Request) -> Response:
        limits = self.limits
        said = {
            "format": "paramsym-inference/1",
            "fingerprint": self.owner.symmetry.fingerprint,
            "samples": limits.samples,
            "queries": limits.queries,
            "body": bodies.bytes_of(self.query_layout, limits.bodies),
        }
        return _json(200, said)

    async def open(self, request: Request) -> Response:
        async with self._received(request, None):
            name = self.sessions.open()
            try:
                body = await self._work(lambda: bodies.write(self.owner.offer()))
            except BaseException:  # the client has gone, too
                self.sessions.close(name)
                raise
        return _body(201, body, {"Location": f"/sessions/{name}"})

    async def reply(self, request: Request) -> Response:
        name = request.path_params["name"]
        layout = self.owner.reply_layout
        self.sessions.require(name)
        async with self._received(request, layout) as body:
            self.sessions.claim(name)
            try:
                read = self._reading(body, layout)
                evaluator = await self._work(lambda: self.owner.accept(read()))
            except BaseException:
                self.sessions.refuse(name)
                raise
            self.sessions.begin(name, evaluator)
        return _nothing()

    async def query(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.sessions.require(name)
        async with self._received(request, self.query_layout) as body:
            read = self._reading(body, self.query_layout)

            def answer() -> bytes:
                query = read()
                evaluator = self.sessions.take(name, query.header["number"])
                return bodies.write(evaluator.answer(Message({}, query.tensors)))

            answered = await self._work(answer)
        return _body(200, answered)

    async def close(self, request: Request) -> Response:
        async with self._received(request, None):
            self.sessions.close(request.path_params["name"])
        return _nothing()

    # -- bodies and turns --------------------------------------------------------------------------
    def _reading(self, body: bytearray, layout: Layout) -> Callable[[], Message]:
        return lambda: bodies.read(body, layout, self.limits.bodies)

    async def _work(self, task: Callable[[], Made]) -> Made:
        """Do what takes long in a thread, few at a time, so that the event loop lives."""
        from starlette.concurrency import run_in_threadpool

        async with self.turns:
            return await run_in_threadpool(task)

    @asynccontextmanager
    async def _received(self, request: Request, layout: Layout | None) -> AsyncIterator[bytearray]:
        """The body of a request, which counts as pending until it has been dealt with.

        Its length must be said beforehand, and is held against what the layout can have.
        """
        _require_no_page(request)
        most = 0 if layout is None else bodies.bytes_of(layout, self.limits.bodies)
        length = _length(request, most)
        if layout is not None:
            _require_type(request)
        if self.pending + length > self.limits.pending:
            raise Refusal(
                429,
                f"a body of {length} bytes: {self.pending} bytes of others are pending, and at "
                f"most {self.limits.pending} may be. Send it again later.",
            )
        self.pending += length
        try:
            yield await _arriving(request, length, self.limits.seconds)
        finally:
            self.pending -= length


async def _arriving(request: Request, length: int, seconds: float) -> bytearray:
    from starlette.requests import ClientDisconnect

    request.scope[_ASKED] = True
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > length:  # framed otherwise than its length says
                    raise Refusal(
                        413,
                        f"a body: more than the {length} bytes came that were expected. Send the "
                        "length that it has.",
                    )
                body += chunk
    except TimeoutError:
        raise Refusal(
            408,
            f"a body of {length} bytes: {len(body)} have arrived within {seconds} seconds, and all "
            "were expected. Send less at once.",
        ) from None
    except ClientDisconnect:
        raise Refusal(400, "a body: the connection ended before it had arrived.") from None
    if len(body) != length:  # a server below that does not count
        raise Refusal(
            400,
            f"a body: {len(body)} bytes came, and {length} were expected. Send the length that it "
            "has.",
        )
    return body


async def _drain(request: Request) -> None:
    """Read on for a moment, since a connection that is closed on a sender loses the answer."""
    from starlette.requests import ClientDisconnect

    if request.scope.get(_ASKED):
        return
    request.scope[_ASKED] = True
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAINING):
            async for _ in request.stream():
                pass


def _length(request: Request, most: int) -> int:
    said = request.headers.get("content-length")
    if "transfer-encoding" in request.headers:  # by which a server below goes, whatever is said
        said = None
    elif said is None:
        return 0
    if said is None or not (said.isascii() and said.isdigit() and len(said) < 20):
        raise Refusal(
            411,
            f"a body: its length is said as {said!r}, and a number of bytes was expected. Send it "
            "with Content-Length.",
        )
    if int(said) > most:
        raise Refusal(
            413,
            f"a body: it is to have {said} bytes, and at most {most} were expected. Send no more "
            "than the step needs, or less samples at once.",
        )
    return int(said)


def _require_no_page(request: Request) -> None:
    """Raise a `Refusal` for what a page in a browser sends, which anybody may have written."""
    if "origin" in request.headers:
        raise Refusal(
            403,
            f"a page of {request.headers['origin'][:80]!r} asks, and a program was expected. Use "
            "paramsym.privacy.inference.client.",
        )


def _require_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    if given.split(";")[0].strip().lower() != bodies.CONTENT_TYPE:
        raise Refusal(
            415,
            f"a body: its content type is {given[:80]!r}, and {bodies.CONTENT_TYPE!r} was "
            "expected. Send safetensors, and say so.",
        )


def _json(status: int, said: Any) -> Response:
    from starlette.responses import Response

    text = json.dumps(said)  # ASCII alone: what is quoted may be no text at all
    return Response(text, status, media_type="application/json")


def _error(status: int, text: str) -> Response:
    response = _json(status, {"error": text, "status": status})
    if status in (408, 429):
        response.headers["Retry-After"] = "1"
    return response


def _body(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(body, status, headers, media_type=bodies.CONTENT_TYPE)


def _nothing() -> Response:
    from starlette.responses import Response

    return Response(status_code=204)
