"""Tasks on a Ray cluster, whose retries, placement and object store do the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from paramsym.engines.engine import Engine, Result, Task, lost
from paramsym.formats.errors import CheckpointError, Transient

SCHEME = "ray://"
_RETRIES = (
    5  # of a task whose worker or machine was lost; an exception of its own is not tried again
)


class OnRay(Engine):
    """A Ray cluster: one that this process is part of already, one at an address, or a new one.

    A task takes one of the cluster's cores, wherever Ray places it, spread over the machines. One
    whose machine is lost runs again elsewhere, so that tasks must be idempotent; one that raises
    does not. The function, with what it holds, goes once into the object store. paramsym must be
    installed on the machines; on this one, a source tree will do.

    Args:
        address: `ray://host:port` of a cluster. Without it the Ray that runs in this process, or
            the one that the variable RAY_ADDRESS names, or else a new one on this machine.
        settings: further arguments of `ray.init`, for what this engine starts.

    Raises:
        CheckpointError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, **settings: Any):
        self.address, self.settings = address, settings
        self._started = False
        _ray()

    @property
    def workers(self) -> int:
        """The cores of the cluster, which may have more or fewer at another time."""
        ray = self._running()
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """See `Engine.map`."""
        ray = self._running()
        call = ray.remote(_call).options(
            num_cpus=1, max_retries=_RETRIES, retry_exceptions=False,
            scheduling_strategy="SPREAD", runtime_env=_runtime(),
        )  # fmt: skip
        held, numbered = ray.put(function), enumerate(tasks)
        running: dict[Any, int] = {}
        try:
            while True:
                for place, task in islice(numbered, max(0, self.workers - len(running))):
                    running[call.remote(held, task)] = place
                if not running:
                    return
                for ready in ray.wait([*running])[0]:
                    yield running.pop(ready), self._result(ray, ready, running)
        finally:
            for left in running:  # the caller stopped: at Ctrl-C, or since it wants no more
                ray.cancel(left)

    def _result(self, ray: Any, ready: Any, running: dict[Any, int]) -> Any:
        try:
            return ray.get(ready)
        except ray.exceptions.RayTaskError as error:
            ray.wait([*running], num_returns=len(running)) if running else None
            running.clear()
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise Transient(*lost("engine ray", type(error).__name__)) from error

    def close(self) -> None:
        """Leave the cluster that this engine has joined, and end the one that it has started."""
        if self._started:
            _ray().shutdown()
            self._started = False

    def _running(self) -> Any:
        """Ray, joined or started."""
        ray = _ray()
        if not ray.is_initialized():
            given = {"address": self.address, "log_to_driver": False, "logging_level": "error"}
            try:
                ray.init(**{**given, **self.settings})
            except (ConnectionError, RuntimeError) as error:
                raise CheckpointError(
                    f"engine {self.address or 'ray'}", f"Ray cannot be reached ({error})",
                    "the address of a cluster that runs", "Start one with `ray start --head` and "
                    "say its address, set RAY_AUTH_MODE=token if it asks for a token, or take "
                    "--engine ray without RAY_ADDRESS for one on this machine",
                ) from error  # fmt: skip
            self._started = True
        return ray


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    return function(task)


def _runtime() -> dict[str, Any]:
    """What a worker needs to import paramsym where this process has it from a source tree."""
    root = str(Path(__file__).parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(p for p in (root, *given) if p)}}


def _ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise CheckpointError(
            "engine ray", "Ray is not installed here", "the extra [ray] of paramsym",
            "Install it: pip install 'paramsym[ray]'",
        ) from error  # fmt: skip
