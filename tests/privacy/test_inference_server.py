"""The service: honest clients are answered, all others are told what is wrong, and it lives on."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.algebra import Orthogonal
from paramsym.privacy.inference import DataOwner, Message, ModelOwner, Refusal
from paramsym.privacy.inference.application import ServerLimits, application
from paramsym.privacy.inference.bodies import Limits, read, write
from paramsym.privacy.inference.client import RemoteSession, Service, opened, query
from paramsym.privacy.inference.server import serve, serving
from paramsym.privacy.inference.sessions import Sessions

from .bodies_of_strangers import at_random, by_hand
from .served import served
from .strangers import Answer, exchange, request

LIMITS = ServerLimits(seconds=3.0, samples=64, sessions=4, queries=10_000)


def example() -> Tensor:
    found = served("relu").example
    assert isinstance(found, Tensor)
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    case = served("relu")
    with serving(ModelOwner.of(case.model, case.symmetry, case.example), LIMITS) as address:
        yield address


@pytest.fixture
def session(url: str) -> Iterator[RemoteSession]:
    with opened(url, served("relu").symmetry) as made:
        yield made


def apart(found: object, wanted: Tensor) -> float:
    assert isinstance(found, Tensor)
    return float((found - wanted).abs().max() / wanted.abs().max())


# -- honest ---------------------------------------------------------------------------------------


def test_outputs_over_http_are_those_of_the_plain_network(url: str) -> None:
    case = served("relu")
    x = torch.randn(150, 6, dtype=torch.float64)
    assert apart(query(url, x, case.symmetry, batch=64), case.outputs(x)) <= 1e-10
    about = json.loads(exchange(url, request("GET", "/")).body)
    assert about["fingerprint"] == case.symmetry.fingerprint and about["samples"] == 64


def test_named_inputs_and_positions_pass_as_well() -> None:
    case = served("transformer")
    assert isinstance(case.example, dict)
    with serving(ModelOwner.of(case.model, case.symmetry, case.example)) as address:
        found = query(address, case.example, case.symmetry)
    assert apart(found, case.outputs()) <= 1e-10


def test_many_threads_share_a_session_and_none_is_lost(session: RemoteSession) -> None:
    case = served("relu")
    batches = [torch.randn(2, 6, dtype=torch.float64) for _ in range(150)]
    with ThreadPoolExecutor(24) as pool:
        answers = [*pool.map(session.ask, batches)]
    assert all(apart(y, case.outputs(x)) <= 1e-10 for x, y in zip(batches, answers, strict=True))


def test_another_network_is_refused_by_the_data_owner(url: str) -> None:
    with pytest.raises(Refusal, match="model owner's parameters: it lacks|has 'parameters"):
        query(url, example(), served("swish").symmetry)
    with pytest.raises(Refusal, match="they belong to the symmetry"):
        smaller = served("relu").symmetry.restrict(groups={"input": Orthogonal(6)})
        query(url, example(), smaller)


def test_a_service_in_a_process_of_its_own() -> None:
    code = """
import torch
from tests.privacy.served import served
from paramsym.privacy.inference.server import serve
case = served("relu")
serve(case.model, case.symmetry, case.example, port=0, ready=lambda url: print(url, flush=True))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            address = made.stdout.readline().strip()
            case = served("relu")
            assert apart(query(address, example(), case.symmetry), case.outputs()) <= 1e-10
        finally:
            made.send_signal(signal.SIGINT)
    assert made.returncode == 0  # interrupting is how it ends


# -- hostile --------------------------------------------------------------------------------------


def asked(session: RemoteSession, body: bytes, **headers: str) -> Answer:
    path = f"{session.place}/queries"
    return exchange(session.service.url, request("POST", path, body, **headers))


def test_a_query_that_is_sent_again_is_refused(session: RemoteSession) -> None:
    body = session.body(example())
    assert asked(session, body).status == 200
    again = asked(session, body)
    assert again.status == 409 and "was used before" in again.error
    assert asked(session, session.body(example())).status == 200
    with opened(session.service.url, served("relu").symmetry) as other:  # its own numbers, own A
        assert asked(other, body).status == 200


def test_a_query_that_was_refused_uses_no_number_up(session: RemoteSession) -> None:
    body = session.body(example())
    assert asked(session, body[:-1]).status == 400
    assert asked(session, body).status == 200


def test_one_key_for_each_session(session: RemoteSession) -> None:
    case = served("relu")
    owner = ModelOwner.of(case.model, case.symmetry, case.example)
    body = write(DataOwner(case.symmetry).reply(owner.offer())[1])
    path = f"{session.place}/parameters"
    answer = exchange(session.service.url, request("PUT", path, body))
    assert answer.status == 409 and "one key for each session" in answer.error


def test_parameters_are_checked_before_they_are_taken(url: str) -> None:
    case = served("relu")
    place = opening(url)
    owner = ModelOwner.of(case.model, case.symmetry, case.example)
    reply = DataOwner(case.symmetry).reply(owner.offer())[1]
    early = exchange(url, request("POST", f"{place}/queries", query_body("0")))
    assert early.status == 409 and "no parameters yet" in early.error
    path = f"{place}/parameters"
    try:
        for name in ("parameters/0.weight", "masks/mlp"):
            for change in (lambda t: t * 0 + torch.nan, lambda t: t[:-1], lambda t: t.half()):
                changed = {**reply.tensors, name: change(reply.tensors[name].double())}
                body = write(replace(reply, tensors=changed))
                assert exchange(url, request("PUT", path, body)).status == 422
        other = write(Message({"fingerprint": "0" * 64}, reply.tensors))
        assert "belong to the symmetry" in exchange(url, request("PUT", path, other)).error
        assert exchange(url, request("PUT", path, write(reply))).status == 204
    finally:
        exchange(url, request("DELETE", place))


def opening(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("POST", "/sessions")
    place = connection.getresponse().headers["Location"]
    connection.close()
    return place


def query_body(number: str, x: Tensor | None = None) -> bytes:
    return write(Message({"number": number}, {"inputs/input": example() if x is None else x}))


def test_bodies_of_strangers_are_refused_and_honest_ones_answered_after_them(
    session: RemoteSession,
) -> None:
    honest = session.body(example())
    numbers = random.Random(0)
    strange = [(name, body) for name, body in by_hand(honest)]
    strange += [(f"random {k}", at_random(honest, numbers)) for k in range(150)]
    refused = 0
    for name, body in strange:
        answer = asked(session, body)
        # some changes hit the numbers alone or the number of the query, which makes another query
        assert answer.status in (200, 400, 409, 411, 413, 415, 422), (name, answer)
        if answer.status != 200:
            refused += 1
            assert answer.error
    assert refused >= 0.9 * len(strange)
    x = example()
    assert apart(session.ask(x), served("relu").outputs(x)) <= 1e-10


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("GET", "/nowhere"), 404),
        (request("GET", "/sessions/"), 404),
        (request("POST", "/sessions/../../etc/passwd"), 404),
        (request("GET", "/sessions"), 405),
        (request("POST", "/"), 405),
        (request("DELETE", "/sessions/{name}/queries"), 405),
        (request("PATCH", "/sessions/{name}/parameters"), 405),
        (request("OPTIONS", "/sessions"), 405),
        (request("BREW", "/sessions"), 405),
        (request("DELETE", "/sessions/unknown"), 404),
        (request("POST", "/sessions/unknown/queries", b"x" * 300), 404),
        (request("PUT", "/sessions/%00%ff/parameters", b"x"), 404),
        (request("POST", "/sessions", b"more than nothing"), 413),
        (request("POST", "/sessions", origin="https://example.org"), 403),
        (request("POST", "/sessions/{name}/queries", b"{}", content_type="application/json"), 415),
        (request("POST", "/sessions/{name}/queries", b"{}", content_type=""), 415),
        (request("POST", "/sessions/{name}/queries", content_length=str(1 << 40)), 413),
        (request("POST", "/sessions/{name}/queries", content_length="9" * 30), 400),
        (request("POST", "/sessions/{name}/queries", content_length="-1"), 400),
        (request("POST", "/sessions/{name}/queries", b"x" * 9, content_length="500"), 408),
        (request("POST", "/sessions/{name}/queries", b"3\r\nabc\r\n0\r\n\r\n", content_length="",
                 transfer_encoding="chunked"), 411),
        (request("POST", "/sessions/{name}/queries", b"3\r\nabc\r\n0\r\n\r\n", content_length="3",
                 transfer_encoding="chunked"), 411),
        (request("POST", "/sessions/{name}/queries", b"z" * 200_000), 413),
        (request("POST", "/sessions/{name}/queries", content_length="5, 6"), 400),
        (request("POST", "/sessions", host="x" * 2_000_000), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST /sessions\r\n\r\n", 400),
    ],
)  # fmt: skip
def test_requests_that_are_none_are_told_so(
    session: RemoteSession, sent: bytes, status: int
) -> None:
    name = session.place.removeprefix("/sessions/").encode()
    answer = exchange(session.service.url, sent.replace(b"{name}", name))
    assert answer.status == status
    if b"HTTP/1.1" in sent and b"x" * 100 not in sent and status != 400:
        assert answer.error
    assert session.ask(example()) is not None


def test_the_event_loop_lives_while_the_model_works() -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 2)
            self.working = threading.Event()
            self.go_on = threading.Event()

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.relu(self.inner(x)))

        def __deepcopy__(self, memo: object) -> Slow:
            return self  # the test waits for the very network that is asked

    model = Slow().double()
    symmetry = find_symmetry(model, (example(),), free_inputs=True)
    owner = ModelOwner.of(model, symmetry, example(), masks=False)

    def wait(module: nn.Module, args: object) -> None:
        model.working.set()
        assert model.go_on.wait(20)

    with serving(owner, ServerLimits(concurrency=1)) as address:
        with opened(address, symmetry) as session, ThreadPoolExecutor(2) as pool:
            handle = model.register_forward_pre_hook(wait)
            first = pool.submit(session.ask, example())
            assert model.working.wait(20)
            second = pool.submit(session.ask, example())
            assert exchange(address, request("GET", "/")).status == 200
            assert not first.done() and not second.done()
            model.go_on.set()
            assert torch.equal(first.result(), second.result())
            handle.remove()


# -- sessions -------------------------------------------------------------------------------------


def test_sessions_are_few_and_expire() -> None:
    now = [0.0]
    sessions = Sessions(most=2, seconds=100, patience=10, queries=20, clock=lambda: now[0])
    first, _ = sessions.open(), sessions.open()
    with pytest.raises(Refusal, match="at most 2 may be") as refused:
        sessions.open()
    assert refused.value.status == 429
    evaluator: object = object()
    sessions.claim(first)
    sessions.begin(first, evaluator)  # type: ignore[arg-type]
    now[0] = 11.0  # the other has not been replied to
    assert len(sessions) == 1
    assert sessions.take(first, "7") is evaluator
    for number, status in (("7", 409), ("20", 409), ("x", 422), ("-1", 422), ("٣", 422)):
        with pytest.raises(Refusal) as refused:
            sessions.take(first, number)
        assert refused.value.status == status
    assert all(sessions.take(first, str(k)) for k in range(20) if k != 7)
    now[0] = 101.0
    with pytest.raises(Refusal, match="has expired") as refused:
        sessions.take(first, "8")
    assert refused.value.status == 404 and len(sessions) == 0


def test_names_of_sessions_are_long_and_all_different() -> None:
    sessions = Sessions(most=500, queries=8)
    names = {sessions.open() for _ in range(500)}
    assert len(names) == 500 and min(map(len, names)) >= 43


def test_a_server_that_is_full_says_so_and_takes_up_again(url: str) -> None:
    places = [opening(url) for _ in range(LIMITS.sessions)]
    answer = exchange(url, request("POST", "/sessions"))
    assert answer.status == 429 and "are open" in answer.error
    for place in places:
        assert exchange(url, request("DELETE", place)).status == 204
    assert exchange(url, request("DELETE", places[0])).status == 404


def test_bodies_that_are_pending_are_bounded() -> None:
    case = served("relu")
    owner = ModelOwner.of(case.model, case.symmetry, case.example)
    body = query_body("0")
    with serving(owner, replace(LIMITS, pending=3 * len(body), seconds=60.0)) as address:
        place, parts = opening(address), urlsplit(address)
        whole = request("POST", f"{place}/queries", body)
        where = parts.hostname, parts.port

        def statuses(until: int) -> int:
            """The status of an honest query, once it is this one or nothing else comes."""
            for _ in range(400):
                answer = exchange(address, whole)
                if answer.status == until:
                    break
                time.sleep(0.01)
            return answer.status

        with ExitStack() as held:
            for _ in range(3):  # announced, and never sent
                connection = held.enter_context(socket.create_connection(where, 20))
                connection.sendall(whole[: -len(body)])
            assert statuses(429) == 429
        assert statuses(409) == 409  # room again, and no parameters yet


@pytest.mark.parametrize("said", [3, 400])
def test_a_body_ends_at_the_length_that_was_said_whatever_server_is_below(said: int) -> None:
    case = served("relu")
    app = application(ModelOwner.of(case.model, case.symmetry, case.example), LIMITS)
    received, answers = [0], []

    async def receive() -> dict[str, object]:
        received[0] += 100
        return {"type": "http.request", "body": b"x" * 100, "more_body": received[0] < 1 << 20}

    async def send(message: dict[str, object]) -> None:
        answers.append(message)

    async def calls() -> None:
        def scope(method: str, path: str, *headers: tuple[bytes, bytes]) -> dict[str, object]:
            return {"type": "http", "method": method, "path": path, "query_string": b"",
                    "headers": [*headers]}  # fmt: skip

        async def nothing() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        await app(scope("POST", "/sessions"), nothing, send)  # pyright: ignore
        place = dict(answers[0]["headers"])[b"location"].decode()  # pyright: ignore
        answers.clear()
        length = (b"content-length", str(said).encode())
        kind = (b"content-type", b"application/x-safetensors")
        await app(scope("POST", f"{place}/queries", length, kind), receive, send)  # pyright: ignore

    asyncio.run(calls())
    assert answers[0]["status"] == 413
    assert received[0] <= said + 100


# -- clients, and services that are none ----------------------------------------------------------


def test_answers_are_as_wide_as_a_vocabulary() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 70_000)).eval()
    x = torch.randn(3, 4)
    symmetry = find_symmetry(model, (x,), free_inputs=True)
    with serving(ModelOwner.of(model, symmetry, x)) as address:
        found = query(address, x, symmetry)
    assert apart(found, model(x).detach()) <= 1e-4


@pytest.mark.parametrize(
    ("inputs", "batch", "said"),
    [
        (torch.zeros(3, 6), 0, "batch=0"),
        (torch.zeros(3, 6), -1, "batch=-1"),
        (torch.zeros(0, 6), 8, "1 at least"),
        (torch.zeros(()), 8, "1 at least"),
        ({}, 8, "one number was expected"),
        ({"x": torch.zeros(3, 6), "y": torch.zeros(4, 6)}, 8, "one number was expected"),
    ],
)
def test_queries_without_a_number_of_samples_are_refused_before_a_session_is_opened(
    inputs: Tensor | dict[str, Tensor], batch: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        query("http://127.0.0.1:1", inputs, served("relu").symmetry, batch=batch)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (), (3, 7)], ids=str)
def test_answers_of_another_number_of_samples_are_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    answer = torch.zeros(shape, dtype=torch.float64)
    monkeypatch.setattr(RemoteSession, "ask", lambda *_: answer)
    if shape[:1] == (3,):  # so many samples are asked
        assert query(url, example()[:3], served("relu").symmetry) is not None
    else:
        with pytest.raises(Refusal, match="for each of 3 samples"):
            query(url, example()[:3], served("relu").symmetry)


@pytest.mark.parametrize(
    "place", ["/sessions/é", "/sessions/a b", "/sessions/", "/x", "/sessions/.."]
)
def test_places_that_are_no_session_are_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(Service, "send", lambda *_: (b"", place))
    with pytest.raises(Refusal, match="told no name of a session"):
        query(url, example(), served("relu").symmetry)


# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_other_addresses_than_loopback_are_refused(host: str) -> None:
    case = served("relu")
    with pytest.raises(ValueError, match="beyond_loopback=True"):
        serve(case.model, case.symmetry, case.example, host=host, port=0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ftp://127.0.0.1", "http://", "http://h/path"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="http://host:port was expected"):
        query(address, example(), served("relu").symmetry)


def test_an_answer_above_the_limit_is_refused_by_the_client(url: str) -> None:
    with pytest.raises(Refusal, match="above the limit"):
        with opened(url, served("relu").symmetry, limits=Limits(body=100)):
            pass


def test_an_offer_is_read_as_strictly_as_a_query(url: str) -> None:
    case = served("relu")
    offer = write(ModelOwner.of(case.model, case.symmetry, case.example).offer())
    layout = DataOwner(case.symmetry).offer_layout
    read(offer, layout)
    numbers = random.Random(1)
    for body in (*(b for _, b in by_hand(offer)), *(at_random(offer, numbers) for _ in range(50))):
        try:
            DataOwner(case.symmetry).reply(read(body, layout))
        except Refusal:
            pass
