"""An engine from a word, as `--engine` says it."""

from __future__ import annotations

from paramsym.engines.engine import Engine
from paramsym.engines.local import Local
from paramsym.engines.on_ray import SCHEME, OnRay
from paramsym.formats.errors import CheckpointError


def engine_of(said: str | Engine | None) -> Engine:
    """The engine that a word names.

    Args:
        said: `local` for one thread on each core, `local:4` for four, `local:processes` and
            `local:4:processes` for processes; `ray` for the Ray that runs in this process or that
            `RAY_ADDRESS` names, or a new one on this machine; `ray://host:port` for a cluster. None
            is `local`; an engine is itself.

    Raises:
        CheckpointError: another word.
    """
    if isinstance(said, Engine):
        return said
    word = "local" if said is None else str(said)
    if word == "ray" or word.startswith(SCHEME) and word != SCHEME:
        return OnRay(None if word == "ray" else word)
    kind, *rest = word.split(":")
    processes = rest[-1:] == ["processes"]
    counts = rest[:-1] if processes else rest
    if kind != "local" or len(counts) > 1 or not all(n.isdecimal() and int(n) for n in counts):
        raise CheckpointError(
            f"engine {said!r}", "a word that names no engine",
            "local, local:4, local:processes, local:4:processes, ray or ray://host:port",
            "Say one of them; a number is that of the tasks that run at a time",
        )  # fmt: skip
    return Local(int(counts[0]) if counts else None, processes)
