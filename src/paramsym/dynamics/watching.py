"""A ledger for a training script that knows nothing of it.

Hooks of PyTorch that see every module and every optimiser find the model: the first module called
that holds all parameters of the first optimiser. What it is called with next derives its symmetry,
so that the ledger begins with the second step.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map_only

from paramsym.checking.find import find_symmetry

from .descent import LedgerError, require_descent
from .ledger import ConservationLedger


class _Refused(BaseException):
    """Ends a script that cannot be followed, past its own `except Exception`."""


class Watch:
    """Finds the model and the optimiser of whatever trains within it, and keeps their ledger.

    Attributes:
        ledger: of the first optimiser that steps; None until its second step.
        model: the name of the class of what is trained.
        stopped: why the ledger ended before the training, if it did.
        refused: why there can be no ledger.

    Args:
        decoupled: as for `ConservationLedger`.
        say: is told what goes on.
    """

    def __init__(self, decoupled: float | str = 0.0, say: Callable[[str], None] = lambda _: None):
        self.decoupled, self.say = decoupled, say
        self.ledger: ConservationLedger | None = None
        self.stopped, self.model = "", ""
        self.refused: Exception | None = None
        self._called: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        self._optimizer: torch.optim.Optimizer | None = None
        self._module: nn.Module | None = None
        self._inputs: Any = None
        self._precision: torch.dtype | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> Watch:
        self._hooks = [
            register_module_forward_pre_hook(self._calls),
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._stepped),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _calls(self, module: nn.Module, args: Any) -> None:
        if self._optimizer is None:
            self._called.setdefault(id(module), module)

    def _found(self, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The first module called that holds all parameters of an optimiser."""
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for module in self._called.values():
            if trained <= {id(p) for p in module.parameters()}:
                return module
        raise LedgerError(
            f"paramsym watch: no module that was called holds all {len(trained)} parameters of the "
            "optimiser; one that computes everything was expected. Wrap the parts in one "
            "torch.nn.Module and call that."
        )

    def _catch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the inputs of the model until its next step; hooks of one module see all of them."""
        if self._inputs is None:
            named = dict(zip(inspect.signature(module.forward).parameters, args, strict=False))
            self._inputs = tree_map_only(
                torch.Tensor, lambda x: x.detach().clone(), {**named, **kwargs} if kwargs else args
            )
            kind = next(module.parameters()).device.type
            if torch.is_autocast_enabled(kind):
                self._precision = torch.get_autocast_dtype(kind)

    def _steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self._begin(optimizer)
        except Exception as error:
            self.refused = error
            raise _Refused from error
        if optimizer is self._optimizer:
            self._entered(lambda ledger: ledger.before(optimizer, args, kwargs))

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Choose the model with the first step, and begin its ledger with the second."""
        if self._optimizer is None:
            require_descent(optimizer)
            self._optimizer, self._module = optimizer, self._found(optimizer)
            self.model = type(self._module).__name__
            self._hooks.append(
                self._module.register_forward_pre_hook(self._catch, with_kwargs=True)
            )
        elif optimizer is self._optimizer and self.ledger is None and self._inputs is not None:
            module, inputs, self._inputs = self._module, self._inputs, ()
            assert module is not None
            self.say(f"finding the symmetry of {self.model}")
            symmetry = find_symmetry(module, inputs, training=module.training)
            self.ledger = ConservationLedger(
                symmetry, module, optimizer, self.decoupled, self._precision
            )
            self.ledger.close()  # its hooks may raise, which must not end a training that runs
            self.say("training")

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer is self._optimizer:
            self._entered(lambda ledger: ledger.after(optimizer, args, kwargs))
            self._entered(ConservationLedger.step)

    def _entered(self, act: Callable[[ConservationLedger], None]) -> None:
        """Let the ledger do something, unless it has ended."""
        if self.ledger is not None and not self.stopped:
            try:
                act(self.ledger)
            except LedgerError as error:
                self.stopped = str(error)


def watched(
    script: Path, arguments: Sequence[str], decoupled: float | str = 0.0,
    say: Callable[[str], None] = lambda _: None,
) -> Watch:  # fmt: skip
    """Run a training script as `python script arguments…` does, with a ledger.

    Returns:
        The watch, whose ledger has been kept to the end.

    Raises:
        LedgerError: the optimiser is no SGD, or the script fails or never takes a second step.
        ValueError: as `find_symmetry`.
    """
    kept_argv, kept_path = sys.argv, [*sys.path]
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    watch = Watch(decoupled, say)
    try:
        with watch:
            runpy.run_path(str(script.absolute()), run_name="__main__")
    except (Exception, SystemExit, _Refused) as error:
        if watch.refused is None and (why := _failure(error)):
            raise LedgerError(
                f"paramsym watch {script}: {why}. A script that trains to its end was expected. "
                f"Run it by itself first: python {script}"
            ) from error
    finally:
        sys.argv, sys.path[:] = kept_argv, kept_path
    if watch.refused is not None:
        raise watch.refused
    if watch.ledger is None or not watch.ledger.steps:
        raise LedgerError(
            f"paramsym watch {script}: the script ended before an optimiser had taken two steps on "
            "one model; the ledger begins with the second. Run it for longer."
        )
    return watch


def _failure(error: BaseException) -> str:
    """What made a script fail, if it did."""
    if isinstance(error, SystemExit):
        return "" if error.code in (None, 0) else f"it ended with exit code {error.code!r}"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
