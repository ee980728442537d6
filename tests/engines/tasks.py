"""Tasks that processes and clusters can import."""

import os
import time
from pathlib import Path

from paramsym.engines import Local


def square(number: int) -> int:
    return number * number


def fails_at(place: int, number: int) -> int:
    """Slow numbers, one of which is refused."""
    if number == place:
        raise LookupError(f"number {number}")
    time.sleep(0.05)
    return number


def ends(number: int) -> int:
    """A worker that is gone, as by a signal."""
    os._exit(number)


def shard(folder: Path, number: int, dying: int = 0) -> str:
    """Write a shard as a checkpoint is: under another name, then by rename; and note who runs it.

    A worker of the node `dying`, told by the process of its raylet, never comes to the end.
    """
    import torch  # which takes a second, and no other task needs it

    torch.set_num_threads(1)
    with (folder / "runs").open("a") as runs:
        runs.write(f"{number} {os.getppid()}\n")
    generator = torch.Generator().manual_seed(number)
    numbers = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    time.sleep(600 if os.getppid() == dying else 0)
    draft = folder / f".{number}.{os.getpid()}.draft"
    draft.write_bytes((numbers @ numbers.T).numpy().tobytes())
    draft.replace(folder / f"{number}.shard")
    return f"{number}.shard"


def rests(number: int) -> int:
    """A task that only Ctrl-C ends, which says that it has begun."""
    os.write(1, f"begun {number}\n".encode())  # at once: two processes write here
    time.sleep(600)
    return number


def until_interrupted() -> None:
    """What a script does that is stopped at the terminal."""
    try:
        list(Local(2, processes=True).map(rests, range(10)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
