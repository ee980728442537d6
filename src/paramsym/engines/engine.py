"""What every engine promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(ABC):
    """Runs independent tasks, and gives each result as it is ready.

        with engine_of("local:4") as engine:
            for place, written in engine.map(write_shard, shards):
                progress(place, written)

    It is a context manager, which ends what the engine has started and nothing else.
    """

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many tasks run at a time, and are taken from the iterable before they are needed."""

    @abstractmethod
    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """f(task) for every task, in whatever order, each with the place of its task: 0, 1, ….

        Tasks are taken from the iterable one by one, `workers` of them at most being unfinished,
        so that memory is bounded however many there are. Where the engine may lose a worker, a task
        can run twice: it must leave the same behind.

        Args:
            function: of one task. Processes and clusters need to pickle it, hence a function of a
                module, or `functools.partial` of one; its constants travel once to each worker.
            tasks: any number of values, which may be made while others run.

        Yields:
            The place of a task and its result.

        Raises:
            Exception: whatever a task raises, once those that run have ended; no other is begun,
                and what is done stays done.
            CheckpointError: a worker ended without a word, by a signal or for want of memory.
        """

    def close(self) -> None:
        """End what the engine has started. What is mapped afterwards starts it anew."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def lost(where: str, how: Any) -> tuple[str, str, str, str]:
    """The four parts of an error about a worker that ended without a word."""
    return (
        where, f"a worker ended without a word ({how}), by a signal or for want of memory",
        "workers that end by themselves", "Take fewer workers, or more memory, and run it again: "
        "what is done stays done",
    )  # fmt: skip
