"""A model owner as a small HTTP service, for data owners who do not want to show their inputs.

    serve(model, symmetry, example, host="127.0.0.1", port=8765, masks=True, limits=None)

serves until it is interrupted. Bodies are safetensors (`bodies`), errors are JSON:

    GET    /                         what is served: the fingerprint and the limits, as JSON
    POST   /sessions                 201, θ′ and masks; the name of the session in `Location`
    PUT    /sessions/{id}/parameters 204, takes θ″ and masks, once
    POST   /sessions/{id}/queries    200, f(θ″, A x) for A x and a number that was not used yet
    DELETE /sessions/{id}            204, forgets the session

It speaks plain HTTP to everybody who reaches it: the name of a session is all that is asked for,
and an onlooker reads along. By default it listens on the loopback interface alone; for anything
else put a proxy in front of it that speaks TLS, knows its users and ends connections that idle.
What the protocol does not hide from either side is said in `protocol`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torch import nn

from paramsym.privacy.inference.application import ServerLimits, application, imported
from paramsym.privacy.inference.protocol import Given, ModelOwner
from paramsym.structure.symmetry import ParameterSymmetry

if TYPE_CHECKING:
    from starlette.applications import Starlette

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: nn.Module,
    symmetry: ParameterSymmetry,
    example: Given,
    host: str = "127.0.0.1",
    port: int = 8765,
    *,
    masks: bool = True,
    outputs: Callable[[Any], Any] | None = None,
    limits: ServerLimits | None = None,
    beyond_loopback: bool = False,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a model to data owners until interrupted.

    Args:
        model: the network, which is copied for each session and not touched.
        symmetry: from `find_symmetry(model, x, free_inputs=…)`.
        example: an input as queries have it, see `ModelOwner`.
        host: the address to listen on.
        port: 0 for any that is free.
        masks: send polarity masks, see `polarity`.
        outputs: which tensors are answered, as for `find_symmetry`.
        limits: by default `ServerLimits()`.
        beyond_loopback: listen on an address that other machines reach, without TLS.
        ready: is told the address once the server listens.

    Raises:
        ValueError: the address is not that of the loopback interface, or the model and the symmetry
            do not fit.
        ImportError: starlette and uvicorn are not installed (`pip install paramsym[web]`).
    """
    limits = limits or ServerLimits()
    owner = ModelOwner.of(
        model, symmetry, example, masks=masks, outputs=outputs, samples=limits.samples
    )
    listening = _listening(host, port, beyond_loopback)
    with listening:
        if ready:
            ready(_url(listening))
        with suppress(KeyboardInterrupt):  # which the server raises again once it has ended
            _uvicorn(application(owner, limits)).run(sockets=[listening])


@contextmanager
def serving(
    owner: ModelOwner, limits: ServerLimits | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Serve in a thread of this process while a block runs, on the loopback interface.

    Yields:
        The address.

    Raises:
        ValueError: as `serve`.
        ImportError: likewise.
    """
    listening = _listening(host, port, False)
    server = _uvicorn(application(owner, limits or ServerLimits()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with listening:
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield _url(listening)
        finally:
            server.should_exit = True
            thread.join()


def _uvicorn(app: Starlette) -> Any:
    uvicorn = imported("uvicorn")
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", loop="asyncio", log_level="warning",
        access_log=False, server_header=False, timeout_keep_alive=5, timeout_graceful_shutdown=5,
    )  # fmt: skip
    return uvicorn.Server(config)


def _listening(host: str, port: int, beyond_loopback: bool) -> socket.socket:
    if host not in LOOPBACK and not beyond_loopback:
        raise ValueError(
            f"serve(…, host={host!r}): other machines may reach this address, by plain HTTP and "
            f"without being asked who they are, and one of {LOOPBACK} was expected. Put a proxy "
            "with TLS in front of it, or pass beyond_loopback=True knowingly."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(2048)
    except OSError:
        made.close()
        raise
    return made


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
