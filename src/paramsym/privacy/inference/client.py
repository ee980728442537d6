"""A data owner as the client of a model owner's service, with the standard library alone.

    query(url, inputs, symmetry, groups=None, batch=1024, seconds=60.0) -> outputs

opens a session with a key of its own, asks for the outputs of the network, and closes it. The
service learns A x and not the digits of x as they are; the model owner, who knows the network, can
undo A (see `protocol`), and everybody on the way can if the address is no `https`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import torch

from paramsym.algebra import Group
from paramsym.privacy.inference import bodies
from paramsym.privacy.inference.messages import Layout, Message, Refusal
from paramsym.privacy.inference.protocol import ANSWER, DataOwner, Given, Session
from paramsym.structure.symmetry import ParameterSymmetry


def query(
    url: str,
    inputs: Given,
    symmetry: ParameterSymmetry,
    *,
    groups: Callable[[int], Group] | Mapping[str, Group] | None = None,
    batch: int = 1024,
    seconds: float = 60.0,
    generator: torch.Generator | None = None,
) -> Given:
    """The outputs of a served network on inputs that are sent in a basis of one's own.

    Args:
        url: of the service, `http://127.0.0.1:8765`.
        inputs: a tensor, or tensors by the names of `forward`, samples along the first axis.
        symmetry: of the network, from its model class and not from the service.
        groups: smaller groups of the key, see `DataOwner`.
        batch: samples in one query.
        seconds: to wait for each answer.
        generator: the source of the key; by default one that nobody can try out.

    Returns:
        A tensor, or tensors by name where there are several.

    Raises:
        Refusal: the service refused something, or sent what was not expected.
        OSError: it does not answer.
        ValueError: the inputs do not fit the symmetry.
    """
    size = _samples(inputs)
    if batch < 1:
        raise ValueError(
            f"query(url, inputs, …, batch={batch}): a number of samples in one query was expected, "
            "1 at least. Leave it out for 1024."
        )
    with opened(url, symmetry, groups=groups, seconds=seconds, generator=generator) as session:
        answers = [
            _for_each(min(batch, size - k), session.ask(_part(inputs, k, batch)))
            for k in range(0, size, batch)
        ]
    if isinstance(answers[0], torch.Tensor):
        return torch.cat([y for y in answers if isinstance(y, torch.Tensor)])
    named = [each for each in answers if not isinstance(each, torch.Tensor)]
    return {name: torch.cat([each[name] for each in named]) for name in named[0]}


def _samples(inputs: Given) -> int:
    """How many samples there are, the same number in each input."""
    named = {"inputs": inputs} if isinstance(inputs, torch.Tensor) else dict(inputs)
    sizes = {name: x.shape[0] if x.dim() else 0 for name, x in named.items()}
    if len({*sizes.values()}) != 1 or not all(sizes.values()):
        raise ValueError(
            f"query(url, inputs, …): the inputs hold {sizes} samples, and one number was expected, "
            "1 at least. Pass tensors with samples along the first axis."
        )
    return next(iter(sizes.values()))


def _for_each(samples: int, answer: Given) -> Given:
    """An answer with one entry for each sample; `Refusal` (502) for another one."""
    named = {"output": answer} if isinstance(answer, torch.Tensor) else answer
    strange = {n: tuple(y.shape) for n, y in named.items() if y.shape[:1] != (samples,)}
    if strange or not named:
        raise Refusal(
            502,
            f"the answer to a query: it has the shapes {strange}, and one entry along the first "
            f"axis for each of {samples} samples was expected. Ask by opened(…).ask for outputs of "
            "other shapes.",
        )
    return answer


def _part(inputs: Given, start: int, size: int) -> Given:
    if isinstance(inputs, torch.Tensor):
        return inputs[start : start + size]
    return {name: x[start : start + size] for name, x in inputs.items()}


@contextmanager
def opened(
    url: str,
    symmetry: ParameterSymmetry,
    *,
    groups: Callable[[int], Group] | Mapping[str, Group] | None = None,
    seconds: float = 60.0,
    limits: bodies.Limits | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[RemoteSession]:
    """A session with a service while a block runs; see `query`.

    Yields:
        A session that several threads may ask at once.
    """
    service = Service(url, seconds, limits or bodies.Limits())
    owner = DataOwner(symmetry, groups)
    layout = owner.offer_layout
    body, place = service.send("POST", "/sessions", None, layout)
    if not re.fullmatch(r"/sessions/[A-Za-z0-9_-]{1,200}", place):
        raise Refusal(502, f"POST {url}/sessions: the service told no name of a session, which "
                           "was expected. Is it one of paramsym?")  # fmt: skip
    try:
        session, reply = owner.reply(bodies.read(body, layout, service.limits), generator)
        service.send("PUT", f"{place}/parameters", bodies.write(reply), None)
        yield RemoteSession(service, place, session)
    finally:
        with suppress(Refusal, OSError):  # it has expired, or the service has gone
            service.send("DELETE", place, None, None)


@dataclass(eq=False)
class RemoteSession:
    """A session at a service, whose queries are numbered."""

    service: Service
    place: str
    session: Session
    numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def body(self, inputs: Given) -> bytes:
        """One query as it is sent, with a number of its own."""
        with self._lock:
            number = next(self.numbers)
        message = self.session.query(inputs)
        return bodies.write(Message({"number": str(number)}, message.tensors))

    def ask(self, inputs: Given) -> Given:
        """The outputs on inputs.

        Raises:
            Refusal: the service refused, or its answer is not what was expected.
        """
        body, _ = self.service.send("POST", f"{self.place}/queries", self.body(inputs), ANSWER)
        return self.session.answer(bodies.read(body, ANSWER, self.service.limits))


@dataclass(frozen=True)
class Service:
    """The address of a service, and what is read of it at most."""

    url: str
    seconds: float
    limits: bodies.Limits

    def send(
        self, method: str, path: str, body: bytes | None, layout: Layout | None
    ) -> tuple[bytes, str]:
        """The body of an answer, and the place that it names.

        Raises:
            Refusal: the service answered with an error, or with more than was expected.
            OSError: it did not answer.
        """
        connection = self._connection()
        try:
            headers = {} if body is None else {"Content-Type": bodies.CONTENT_TYPE}
            try:
                connection.request(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused while it was sent: the answer may have come all the same
            answer = connection.getresponse()
            most = self.limits.body if layout else 1 << 16
            received = answer.read(most + 1)
            if answer.status >= 300:
                raise Refusal(answer.status, f"{method} {self.url}{path}: {_fault(received)}")
            if len(received) > most:
                raise Refusal(413, f"{method} {self.url}{path}: more than {most} bytes came, which "
                                   "is above the limit. Raise limits=… knowingly.")  # fmt: skip
            return received, answer.headers.get("Location") or ""
        except http.client.HTTPException as error:
            raise ConnectionError(
                f"{method} {self.url}{path}: no answer of HTTP came ({error!r}), and a service of "
                "paramsym was expected there. Compare the address."
            ) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(
                f"query({self.url!r}, …): no address of a service; http://host:port was expected. "
                "paramsym protect serve prints its own."
            )
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return kind(parts.hostname, parts.port, timeout=self.seconds)


def _fault(received: bytes) -> str:
    """What an answer says of its error."""
    try:
        return str(json.loads(received)["error"])[:2000]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"no reason was given ({received[:80]!r})"
