"""What an optimiser does in one step, as a `Scheme`; or what keeps it from being one.

`torch.optim.SGD` alone moves along gradients: momentum, dampening, Nesterov, coupled decay and
schedules are read from its groups at every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .recursion import Scheme

WHERE = "ConservationLedger(symmetry, model, optimizer)"
_PROPORTION = 1e-12  # how far, relatively, the rates of groups may leave their first proportion


class LedgerError(ValueError):
    """Training did something that the recursion of conserved quantities does not describe."""


def require_descent(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what is not SGD.

    Raises:
        LedgerError: with what holds for it all the same.
    """
    kind = type(optimizer)
    plain = isinstance(optimizer, torch.optim.SGD) and kind.step is torch.optim.SGD.step
    if plain:
        return
    raise LedgerError(
        f"{WHERE}: the optimiser is {kind.__module__}.{kind.__qualname__}; torch.optim.SGD was "
        "expected, whose steps are linear in the gradient. Where each entry has a step of its own, "
        "as in Adam, AdamW or RMSprop, no combination of generators gives a conserved quantity: "
        "only ⟨∇L, Xθ⟩ = 0 holds, at each step. Check that with check_gradients, or train with SGD."
    )


@dataclass(frozen=True)
class Groups:
    """The groups of an optimiser that hold the parameters of the laws.

    Attributes:
        optimizer: whose groups they are.
        group_of: the index of the group of each parameter, by name.
        decoupled: ω, or the key under which the groups hold it.
        precise: whether a parameter has double precision.
    """

    optimizer: torch.optim.Optimizer
    group_of: Mapping[str, int]
    decoupled: float | str
    precise: Mapping[str, bool]

    def option(self, key: str, name: str) -> Any:
        """An option of the group of a parameter."""
        value = self.optimizer.param_groups[self.group_of[name]][key]
        return value.item() if isinstance(value, Tensor) else value

    def ratios(self) -> dict[str, float]:
        """The rates of all parameters relative to the largest, which the laws weigh.

        Raises:
            LedgerError: some are zero, and others are not.
        """
        rates = {n: float(self.option("lr", n)) for n in self.group_of}
        if not all(rates.values()):  # a schedule that begins at 0
            rates = {n: float(self._first_rate(n)) for n in self.group_of}
        largest = max(rates.values(), default=0.0)
        still = [n for n, rate in rates.items() if largest and not rate]
        if still:
            raise LedgerError(
                f"{WHERE}: the rate of {still[0]!r} is 0, and that of others is {largest:g}; rates "
                "in a fixed proportion were expected, by which the quantities are weighed. Take "
                "parameters that are not trained out of the optimiser."
            )
        return {n: rate / largest if largest else 1.0 for n, rate in rates.items()}

    def _first_rate(self, name: str) -> float:
        group = self.optimizer.param_groups[self.group_of[name]]
        return group.get("initial_lr", group["lr"])

    def scheme(self, ratios: Mapping[str, float]) -> Scheme:
        """What the next step does.

        Raises:
            LedgerError: rates that left their proportion, or groups with momenta of their own.
        """
        rates = {n: float(self.option("lr", n)) for n in self.group_of}
        rate = max(rates.values(), default=0.0)
        for name, own in rates.items():
            if abs(own - ratios[name] * rate) > _PROPORTION * rate or not math.isfinite(own):
                raise LedgerError(
                    f"ledger: the rate of {name!r} is {own:g} beside {rate:g}; {ratios[name]:g} "
                    "times that was expected, as in the beginning, because a quantity weighs each "
                    "tensor by the inverse of its rate. Schedule all groups by one factor, or "
                    "begin a new ledger where the proportion changes."
                )
        momentum = self._same("momentum")
        return Scheme(
            rate=rate,
            momentum=momentum or None,
            dampening=self._same("dampening") if momentum else 0.0,
            nesterov=bool(momentum) and bool(self._same("nesterov")),
            sign=-1.0 if self._same("maximize") else 1.0,
            coupled={n: float(self.option("weight_decay", n)) for n in self.group_of},
            shrinking={n: self._shrinking(n, rates[n]) for n in self.group_of},
        )

    def _shrinking(self, name: str, rate: float) -> float:
        """ε, where 1 − ε is the factor in the precision in which a parameter is multiplied."""
        key = self.decoupled
        decay = float(self.option(key, name)) if isinstance(key, str) else key
        precise = self.precise.get(name, True)
        factor = torch.tensor(1.0 - rate * decay, dtype=torch.float64 if precise else torch.float32)
        return 1.0 - factor.item() if decay else 0.0

    def _same(self, key: str) -> Any:
        """An option that all groups must share."""
        found = {n: self.option(key, n) for n in self.group_of}
        values = [*dict.fromkeys(found.values())]
        if len(values) > 1:
            other = next(n for n, value in found.items() if value == values[1])
            raise LedgerError(
                f"ledger: {key}={values[1]!r} for {other!r}, and {values[0]!r} for {[*found][0]!r};"
                " one value was expected, because a quantity ties the velocities of both. Give all "
                f"groups the same {key}."
            )
        return values[0] if values else 0.0


def groups_of(
    optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], decoupled: float | str
) -> Groups:
    """Where the parameters of the laws are in an optimiser."""
    index = {
        id(p): k for k, group in enumerate(optimizer.param_groups) for p in group["params"]
    }  # fmt: skip
    found = {n: index[id(p)] for n, p in params.items()}
    if isinstance(decoupled, str):
        for name, k in found.items():
            if decoupled not in optimizer.param_groups[k]:
                raise LedgerError(
                    f"{WHERE[:-1]}, decoupled={decoupled!r}): the group of {name!r} has no such "
                    f"key, only {sorted(optimizer.param_groups[k])}. A key of every group was "
                    "expected, or the decay itself. Add it to the groups."
                )
    precise = {n: torch.finfo(p.dtype).bits == 64 for n, p in params.items()}
    return Groups(optimizer, found, decoupled, precise)


def untrained(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> list[str]:
    """The parameters that an optimiser leaves alone."""
    held: Sequence[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    trained = {id(p) for p in held}
    return [n for n, p in params.items() if id(p) not in trained or not p.requires_grad]
