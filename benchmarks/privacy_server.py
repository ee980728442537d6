"""Obfuscated inference over HTTP: hostile requests, honest ones at once, and what masks cost.

    python benchmarks/privacy_server.py [--hostile 10000] [--honest 1000] [--only times]

A service in a process of its own; a perceptron 64-128-32-10 in float64. Hostile requests are honest
ones of every kind (queries, parameters, requests without a body) changed at random or replayed, and
a list by hand; the memory of the service is read before, meanwhile and behind. Honest queries all
have their connection open before the first is answered. Times are medians of interleaved runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.privacy.inference import DataOwner, Message, ModelOwner, Polarity
from paramsym.privacy.inference.application import ServerLimits
from paramsym.privacy.inference.bodies import read, write
from paramsym.privacy.inference.client import RemoteSession, opened
from paramsym.privacy.inference.protocol import ANSWER
from paramsym.privacy.inference.server import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.privacy.bodies_of_strangers import at_random, by_hand
from tests.privacy.strangers import exchange, request

WIDTHS = 64, 128, 32, 10


class Function(nn.Module):
    """A perceptron whose activations are calls within its `forward`."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(before, after) for before, after in zip(widths, widths[1:], strict=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def perceptron(
    widths: tuple[int, ...] = WIDTHS, activation: type[nn.Module] | None = nn.ReLU
) -> nn.Module:
    torch.manual_seed(0)
    if activation is None:
        return Function(widths).double().eval()
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1]).double().eval()


def example(samples: int = 4, width: int = WIDTHS[0]) -> Tensor:
    return torch.randn(samples, width, dtype=torch.float64)


# -- the service ---------------------------------------------------------------------------------


def run_service() -> None:
    torch.set_num_threads(1)
    model = perceptron()
    symmetry = find_symmetry(model, (example(),), free_inputs=True)
    serve(
        model, symmetry, example(), port=0, limits=ServerLimits(patience=3600.0),
        ready=lambda url: print(url, flush=True),
    )  # fmt: skip


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# -- hostile -------------------------------------------------------------------------------------


def hostile(session: RemoteSession, count: int) -> Iterator[tuple[str, bytes]]:
    """Requests of which none may be taken, each with its kind."""
    numbers = random.Random(0)
    url, place = session.service.url, session.place
    query = f"{place}/queries"
    begun = exchange(url, request("POST", "/sessions"))  # a session that waits for parameters
    parameters = f"{begun.headers['location']}/parameters"
    owner = ModelOwner.of(perceptron(), session.session.key.symmetry, example())
    honest = session.body(example())
    replayed = session.body(example())
    assert exchange(url, request("POST", query, replayed)).status == 200
    reply = write(owner.offer())
    listed = [*by_hand(honest)]
    for k in range(count):
        kind = k % 10
        if kind < 3:
            name, body = listed[(k // 10 * 3 + kind) % len(listed)]
            if name.startswith("the words {'number': '"):
                body = replayed
            yield "by hand", request("POST", query, body)
        elif kind < 5:
            yield "changed query", request("POST", query, broken(honest, numbers))
        elif kind == 5:
            yield "changed parameters", request("PUT", parameters, broken(reply, numbers))
        elif kind == 6:
            yield "replay", request("POST", query, replayed)
        elif kind == 7:
            x = example()
            x[numbers.randrange(4), numbers.randrange(64)] = numbers.choice(
                [torch.nan, torch.inf, -torch.inf]
            )
            other = [x, example().float(), example()[:, :-1], example()[0], example(4097)]
            tensor = other[k // 10 % 5]
            yield (
                "NaN, dtype, shape",
                request(
                    "POST", query, write(Message({"number": str(k)}, {"inputs/input": tensor}))
                ),
            )
        elif kind == 8:
            wrong = f"/sessions/{numbers.randbytes(16).hex()}/queries"
            yield "wrong session", request("POST", wrong, honest)
        else:
            yield "HTTP", http(numbers, query, honest)


def broken(honest: bytes, numbers: random.Random) -> bytes:
    """An honest body changed until its header cannot be the same: numbers alone may be any."""
    start = 8 + int.from_bytes(honest[:8], "little")
    while True:
        body = at_random(honest, numbers)
        if len(body) != len(honest) or body[8:14] != honest[8:14]:
            return body
        if body[:8] != honest[:8] and body[8:start] == honest[8:start]:
            return body


def http(numbers: random.Random, path: str, honest: bytes) -> bytes:
    """A request that is wrong as HTTP, or says something else than it sends."""
    choices = [
        request(numbers.choice(["GET", "PUT", "DELETE", "PATCH", "BREW", "OPTIONS"]), path, honest),
        request("POST", f"/{numbers.randbytes(8).hex()}", honest),
        request("POST", path, honest, content_type="application/json"),
        request("POST", path, honest, content_length=str(1 << numbers.randrange(30, 60))),
        request("POST", path, honest, content_length="-7"),
        request("POST", path, honest, transfer_encoding="chunked", content_length=""),
        request("POST", path, honest, origin="https://example.org"),
        request("POST", path, numbers.randbytes(300_000)),
        numbers.randbytes(200) + b"\r\n\r\n",
    ]
    return numbers.choice(choices)


async def spoken(host: str, port: int, sent: bytes) -> tuple[int, bytes]:
    """The status of an answer, 0 if the connection ended without one, and its body."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        await writer.drain()
        received = await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        received = b""
    finally:
        writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0, body


async def attack(session: RemoteSession, count: int, pid: int) -> None:
    host, port = address(session)
    found: Counter[tuple[str, int]] = Counter()
    used = [memory(pid)]
    waiting: set[asyncio.Task[tuple[int, bytes]]] = set()
    kinds: dict[asyncio.Task[tuple[int, bytes]], str] = {}
    begun = time.perf_counter()
    for k, (kind, sent) in enumerate(hostile(session, count)):
        task = asyncio.create_task(spoken(host, port, sent))
        kinds[task] = kind
        waiting.add(task)
        if len(waiting) >= 8:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            found.update((kinds.pop(each), each.result()[0]) for each in done)
        if (k + 1) % (count // 10) == 0:
            used.append(memory(pid))
    done, _ = await asyncio.wait(waiting)
    found.update((kinds.pop(each), each.result()[0]) for each in done)
    print(f"hostile: {found.total()} requests in {time.perf_counter() - begun:.0f} s")
    for kind in sorted({kind for kind, _ in found}):
        statuses = {s: n for (k, s), n in sorted(found.items()) if k == kind}
        print(f"  {kind:20} {statuses}")
    others = {key: n for key, n in found.items() if not 400 <= key[1] < 500}
    print(f"  others than 4xx: {others or 'none'}")
    print("  memory of the service, MB, at each tenth:", *(f"{mb:.1f}" for mb in used))


# -- honest --------------------------------------------------------------------------------------


async def at_once(session: RemoteSession, count: int, plain: nn.Module) -> None:
    """Queries whose connections are all open before one is sent."""
    host, port = address(session)
    inputs = [example() for _ in range(count)]
    sent = [request("POST", f"{session.place}/queries", session.body(x)) for x in inputs]
    everybody = asyncio.Barrier(count)

    async def one(body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        await everybody.wait()
        writer.write(body)
        received = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        return received

    begun = time.perf_counter()
    answers = await asyncio.gather(*(one(body) for body in sent))
    seconds = time.perf_counter() - begun
    right, worst = 0, 0.0
    for x, answer in zip(inputs, answers, strict=True):
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 200"):
            with torch.no_grad():
                wanted = plain(x)
            found = session.session.answer(read(body, ANSWER))
            assert isinstance(found, Tensor)
            error = float((found - wanted).abs().max() / wanted.abs().max())
            worst, right = max(worst, error), right + (error <= 1e-10)
    print(f"honest: {right} of {count} queries at once answered rightly in {seconds:.1f} s, "
          f"worst relative error {worst:.1e}")  # fmt: skip


def address(session: RemoteSession) -> tuple[str, int]:
    host, port = session.service.url.removeprefix("http://").split(":")
    return host, int(port)


# -- times ---------------------------------------------------------------------------------------


def times() -> None:
    """The evaluated network beside the plain one: CPU-seconds of one thread."""
    print("evaluated beside plain, medians of ratios")
    sizes = (WIDTHS, 1), (WIDTHS, 256), ((784, 1024, 1024, 10), 256)
    for (widths, batch), activation in product(sizes, (nn.ReLU, nn.GELU, None)):
        model, x = perceptron(widths, activation), example(batch, widths[0])
        symmetry = find_symmetry(model, (x,), free_inputs=True)
        networks = {}
        for name, polarity in (
            ("moved", None),
            ("masked", Polarity.of(model, symmetry, (x,))),
        ):
            owner = ModelOwner(model, symmetry, x, polarity)
            _, reply = DataOwner(symmetry).reply(owner.offer())
            networks[name] = owner.accept(reply).network
        calls = max(1, 10_000_000 // (batch * sum(p.numel() for p in model.parameters())))
        ratios = {name: [] for name in networks}
        for _ in range(31):
            plain = seconds(model, x, calls)
            for name, network in networks.items():
                ratios[name].append(seconds(network, x, calls) / plain)
        said = ", ".join(f"{name} {median(found):.3f}" for name, found in ratios.items())
        kind = activation.__name__ if activation else "torch.relu in forward"
        print(f"  {'-'.join(map(str, widths))}, {batch} samples, {kind}: {said}")


def seconds(network: nn.Module, x: Tensor, calls: int) -> float:
    with torch.inference_mode():
        begun = time.process_time()
        for _ in range(calls):
            network(x)
        return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", type=int, default=10_000)
    parser.add_argument("--honest", type=int, default=1_000)
    parser.add_argument("--only", choices=["times", "service"])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        return run_service()
    torch.set_num_threads(1)
    if told.only != "service":
        times()
    if told.only == "times":
        return None
    model = perceptron()
    symmetry = find_symmetry(model, (example(),), free_inputs=True)
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            with opened(service.stdout.readline().strip(), symmetry) as session:
                asyncio.run(at_once(session, told.honest, model))
                asyncio.run(attack(session, told.hostile, service.pid))
                asyncio.run(at_once(session, told.honest, model))
            print(f"the service runs: {service.poll() is None}")
        finally:
            service.terminate()
    return None


if __name__ == "__main__":
    main()
