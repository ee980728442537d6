"""A ledger of the conserved quantities of a training run, exact for steps of any size.

Gradient flow conserves Q; descent does not. But what a step of SGD makes of Q follows from the
rates, the decay and the squares of the momentum alone, if the loss is invariant: the gradient does
not occur. The ledger adds this up, and compares it with Q at the parameters. The difference is zero
to rounding, over any number of steps, as long as every gradient is that of an invariant loss; a
wrong backward pass, a penalty on one layer or dropout that forgets itself leave a residual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakMethod, finalize

import torch
from torch import Tensor, nn

from paramsym.arguments import door, module_of, optimizer_of
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.whole import whole

from .changes import Marks, changed, moving_buffer, places_of, sampled
from .conserved import ConservedQuantities, conserved_quantities
from .descent import WHERE, Groups, LedgerError, groups_of, require_descent, untrained
from .forms import Forms
from .ledger_report import FamilyRow, LedgerReport
from .optimizer_buffers import (
    UsedGradients,
    gradients_of,
    looked_ahead,
    momentum_of,
    require_complete,
)
from .recursion import Recursion, Scheme


class ConservationLedger:
    """Measured and predicted conserved quantities along the steps of an optimiser.

        with ConservationLedger(find_symmetry(model, inputs), model, optimizer) as ledger:
            for x, y in data:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
                ledger.step()
        print(ledger)

    At the end of the block, as after `close()`, it follows the optimiser no longer; what has been
    entered can still be read.

    It reads the optimiser's own buffers and the gradients that it has used, copies no parameter,
    and adds up in float64. Schedules, clipping by norm, gradients added up over batches and steps
    that a `GradScaler` skips need nothing; groups may have decays of their own, and rates in a
    fixed proportion, by whose inverse the quantities are weighed then. With 16-bit parameters the
    rounding of their steps is what it shows. DTensors (FSDP2, tensor parallel) are gathered one at
    a time to be read, by all ranks together: what one rank enters and reads, every rank does.

    Attributes:
        laws: the quantities, with why there are no others.
        steps: how many have been entered.
        skipped: calls of `step` without a step of the optimiser.

    Args:
        symmetry: what `find_symmetry` derived, in the mode in which the model is trained.
        model: the module itself.
        optimizer: a `torch.optim.SGD` with parameters of the model, or what holds one in
            `.optimizer`. Those that it leaves alone count as frozen.
        decoupled: ω, for loops that multiply the parameters by 1 − η ω between `backward()` and
            `optimizer.step()`; or the key under which the groups of the optimiser hold it.
        precision: in which gradients are computed, if not in that of the parameters: that of
            autocast. What its rounding leaves counts in the floor of the report.

    Raises:
        LedgerError: another optimiser, rates of which some are zero, or no quantity at all.
        ValueError: as `conserved_quantities`.

    Source: Zhao, Ganev, Walters, Yu, Dehmamy (2023), Proposition 5.1 and appendix E; `recursion`
    derives the rest.
    """

    @door
    def __init__(
        self, symmetry: ParameterSymmetry, model: nn.Module, optimizer: torch.optim.Optimizer,
        decoupled: float | str = 0.0, precision: torch.dtype | None = None,
    ):  # fmt: skip
        optimizer, model = optimizer_of(optimizer, WHERE), module_of(model)
        require_descent(optimizer)
        _require_decay(decoupled)
        self.optimizer, self.decoupled = optimizer, bool(decoupled)
        trained = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        # the quantities are combined by the numbers of buffers, so that these are read precisely
        read = {n: b.detach().double() if b.is_floating_point() else b for n, b in buffers.items()}
        params = {**{n: p.detach() for n, p in trained.items()}, **read}
        missing = next((n for n in symmetry.blocks if n not in params), None)
        if missing is not None:
            raise LedgerError(
                f"{WHERE}: {type(model).__name__} has no {missing!r}, which the symmetry moves; "
                "the module was expected that find_symmetry was given. Derive the symmetry of the "
                "model that is trained: find_symmetry(model, inputs)."
            )
        frozen = untrained(optimizer, trained)
        self.laws: ConservedQuantities = conserved_quantities(symmetry, params, frozen)
        forms = Forms(self.laws, {n: read[n] for n in symmetry.buffers if n in read})
        self.params: dict[str, Tensor] = {n: trained[n] for n in forms.names}
        if not self.params:
            raise LedgerError(_nothing(self.laws, frozen))
        self.buffers = {n: buffers[n] for n in symmetry.buffers if n in forms.held}
        self.groups: Groups = groups_of(optimizer, self.params, decoupled)
        self.recursion = Recursion(forms, self.params, self.groups.ratios(), self._momentum())
        if precision is not None:
            self.recursion.epsilon = torch.finfo(precision).eps
        self.steps = self.skipped = 0
        self.scale = _largest(self.recursion.predicted)
        self._pending: tuple[Scheme, bool] | None = None
        self._done = self._closed = False
        self._used: UsedGradients | None = None
        self._velocity: dict[str, Tensor] = {}
        self._places = places_of(self.params | self.buffers)
        self._seen = self._marks()
        self._hooks = (
            optimizer.register_step_pre_hook(_weakly(self.before)),
            optimizer.register_step_post_hook(_weakly(self.after)),
        )
        for hook in self._hooks:
            finalize(self, hook.remove)

    # -- what it says ------------------------------------------------------------------------

    @property
    def predicted(self) -> dict[str, Tensor]:
        """By family what the quantities must be now if every gradient was that of the loss."""
        return self.laws.shaped(self.recursion.predicted)

    @property
    def measured(self) -> dict[str, Tensor]:
        """By family the quantities at the parameters as they are, in float64.

        Raises:
            LedgerError: a step is not entered, something else has moved the parameters since, or
                one is no longer finite.
        """
        return self.laws.shaped(self._measure())

    @property
    def residual(self) -> dict[str, Tensor]:
        """By family what was measured less what was predicted."""
        return self.laws.shaped(self._measure() - self.recursion.predicted)

    def report(self) -> LedgerReport:
        """All of it in a few numbers for each family."""
        measured, predicted = self._measure(), self.recursion.predicted
        epsilon = max(torch.finfo(p.dtype).eps for p in self.params.values())
        size = max(self.recursion.size(), self.scale)
        parts = (self.laws.shaped(x) for x in (measured, predicted, measured - predicted))
        rows = [
            FamilyRow(name, found.numel(), _largest(found), _largest(said), _largest(left))
            for (name, found), said, left in zip(
                *_aligned(*parts), strict=True
            )
        ]  # fmt: skip
        return LedgerReport(
            tuple(rows), self.steps, self.skipped, self.scale,
            epsilon * _roundings(1 + self.steps) * size + 2.0 * self.recursion.blur**0.5,
            dict(self.laws.why),
        )  # fmt: skip

    def __str__(self) -> str:
        return str(self.report())

    def _measure(self) -> Tensor:
        if self.due:
            raise LedgerError(
                "ledger.measured: the last optimizer.step() has not been entered; parameters and "
                "prediction of the same step were expected. Call ledger.step() first."
            )
        self._require_unchanged("ledger.measured")
        found = self.recursion.measured()
        if not found.isfinite().all():
            raise LedgerError(self._not_finite("ledger.measured"))
        self.scale = max(self.scale, _largest(found))
        return found

    # -- the steps -----------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether the optimiser has done a step that is not entered yet."""
        return self._done and self._pending is not None

    def step(self) -> None:
        """Enter the step that the optimiser has just done; without one nothing is entered.

        Raises:
            LedgerError: the gradients are gone already, or are not finite.
        """
        if not self.due or self._pending is None:
            self.skipped += 1
            return
        scheme, first = self._pending
        momentum, ahead = self._momentum(), set[str]()
        grads = self._used.read() if self._used else {}
        if scheme.nesterov:
            ahead = looked_ahead(
                scheme, grads, momentum, self._velocity, self._places, self.groups
            )  # fmt: skip
        self.recursion.after(scheme, grads, momentum, first, ahead)
        self._pending = self._used = None
        self._done = False
        self.steps += 1
        if not self.recursion.predicted.isfinite().all():
            raise LedgerError(self._not_finite("ledger.step()"))

    def close(self) -> None:
        """Stop following the optimiser; what has been entered stays."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> ConservationLedger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def before(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The hook that runs before each step of the optimiser.

        Raises:
            LedgerError: this step, or what happened since the last, is not described.
        """
        if self._done:
            raise LedgerError(
                "optimizer.step(): the step before has not been entered into the ledger. "
                "ledger.step() was expected after each optimizer.step(), before gradients are "
                "zeroed. Call it, or ledger.close() to stop."
            )
        for name, p in self.params.items():
            if not p.requires_grad:
                raise LedgerError(
                    f"optimizer.step(): {name!r} was frozen after the ledger began; gradients of "
                    "all parameters of its laws were expected. Begin a new ledger, which leaves "
                    "out what moves frozen parameters."
                )
        scheme = self.groups.scheme(self.recursion.ratios)
        self._require_unchanged("optimizer.step()", scheme)
        given = (*args, *kwargs.values())  # the optimiser itself, perhaps, and a closure
        closed = any(x is not None and x is not optimizer for x in given)
        if not closed:
            require_complete(self.params, scheme)
        momentum = self._momentum()
        if scheme.momentum is None and momentum:
            raise LedgerError(
                "optimizer.step(): momentum=0, but there are momentum buffers from before, which "
                "no longer move. One kind of step was expected. Begin a new optimiser and a new "
                "ledger."
            )
        self._pending = scheme, not momentum
        self._closed = closed
        self._velocity = sampled(momentum, self._places) if scheme.nesterov else {}
        scale = getattr(optimizer, "grad_scale", None)  # of a scaler, for a fused step
        grads = gradients_of(self.params, 1.0 if scale is None else float(scale))
        self.recursion.before(scheme, {} if closed else grads, momentum)

    def after(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The hook that runs after each step of the optimiser.

        Raises:
            LedgerError: a closure has left what is not described.
        """
        if self._pending is None:
            return
        scheme = self._pending[0]
        if self._closed:
            require_complete(self.params, scheme)
            self._require_buffers("optimizer.step()", self._marks())
        overflow = getattr(optimizer, "found_inf", None)  # a fused step that skips itself
        self._done = overflow is None or not float(overflow)
        self._seen = self._marks()
        if self._done and (scheme.momentum is None or scheme.nesterov):
            self._used = UsedGradients(self.params)

    # -- what it reads -------------------------------------------------------------------------

    def _momentum(self) -> dict[str, Tensor]:
        return momentum_of(self.optimizer, self.params)

    def _marks(self) -> Marks:
        """What tells whether a tensor has been written since."""
        watched = self.params | self.buffers
        momentum = self._momentum()
        return Marks(
            {n: x._version for n, x in watched.items()},
            sampled(watched, self._places),
            {n: (id(v), v._version) for n, v in momentum.items()},
        )

    def _require_unchanged(self, where: str, scheme: Scheme | None = None) -> None:
        """Refuse what was moved since the last step, but for the decay before `scheme`."""
        was, now = self._seen, self._marks()
        self._require_buffers(where, now)
        shrinks = scheme is not None and self.decoupled
        for name in (n for n in now.entries if n in self.params):
            if not now.same(was, name, scheme.shrinking[name] if scheme and shrinks else None):
                raise LedgerError(changed(where, repr(name), shrinks))
        for name, v in now.momentum.items():
            if v != was.momentum.get(name):
                raise LedgerError(changed(where, f"the momentum of {name!r}", False))

    def _require_buffers(self, where: str, now: Marks) -> None:
        for name in (n for n in now.entries if n in self.buffers):
            if not now.same(self._seen, name):
                raise LedgerError(moving_buffer(where, name))

    def _not_finite(self, where: str) -> str:
        def wrong() -> Iterator[str]:
            for name, p in self.params.items():
                for what, x in (("", p), ("the gradient of ", p.grad)):
                    if x is not None and not whole(x.detach()).isfinite().all():
                        yield f"{what}{name!r}"

        return (
            f"{where}: {next(wrong(), 'a square of a step')} is not finite, after {self.steps:,} "
            "steps. Finite numbers were expected. Lower the rate, clip gradients, or skip such "
            "steps as torch.amp.GradScaler does."
        )


def _require_decay(decoupled: Any) -> None:
    if isinstance(decoupled, bool) or not isinstance(decoupled, (int, float, str)):
        raise LedgerError(
            f"{WHERE}: decoupled={decoupled!r:.40}; a number ω was expected, or the key under "
            "which the groups of the optimiser hold it. Leave it out if the loop does not multiply "
            "parameters itself."
        )


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that does not keep its ledger alive: one that is dropped says nothing any more."""
    found = WeakMethod(method)

    def hook(*given: Any) -> None:
        alive = found()
        if alive is not None:
            alive(*given)

    return hook


def _roundings(steps: int) -> float:
    """Units in the last place by which rounding moves a quantity in some steps.

    It goes at random while gradients vary, and to the same side for long where they hardly do; one
    unit in each step is the most.
    """
    return min(float(steps), 4.0 * steps**0.5 + steps / 4.0)


def _largest(found: Tensor) -> float:
    return float(found.abs().max()) if found.numel() else 0.0


def _aligned(*families: Mapping[str, Tensor]) -> Iterator[Any]:
    first, *others = families
    yield first.items()
    for other in others:
        yield [other[name] for name in first]


def _nothing(laws: ConservedQuantities, frozen: list[str]) -> str:
    why = "; ".join(f"{n}: {reason}" for n, reason in [*laws.why.items()][:3])
    held = f" {len(frozen)} parameters are not trained." if frozen else ""
    return (
        f"{WHERE}: the symmetry gives no conserved quantity. {why or 'It has no families'}.{held} "
        "A family of scales, of changes of basis, or of constant shifts was expected. There is "
        "nothing to keep a ledger of; check_gradients also tests the other families."
    )
