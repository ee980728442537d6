"""`Rebalance`: parameters stay at the least norm of their orbit while they train.

A step of an optimiser depends on the point of the orbit that it starts from, and a penalty on the
norm on top of it. After every n-th step the parameters, and what the optimiser keeps of them, move
along the orbit to where the norm is least: the function stays, and the penalty falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.arguments import door, module_of, optimizer_of
from paramsym.geometry.balance import OBJECTIVES, balance
from paramsym.geometry.bounds import Bounds, limits_of, require_bounded
from paramsym.geometry.costs import scaled_by
from paramsym.geometry.movers import movers_of
from paramsym.geometry.result import Status
from paramsym.geometry.scales import Scales
from paramsym.structure.patterns import Patterns
from paramsym.structure.rescaling import Rescaling
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.training.entries import Entries, entries_of, kept
from paramsym.training.moving import Carried, moved
from paramsym.training.parameters import Parameters
from paramsym.training.result import Rebalanced

_FAR = 20.0  # e-folds of a scale beyond which its square may overflow float32
_SQUARES = (
    "the optimiser keeps averages of squares, or what else follows scales alone; a change of basis "
    "or a shift would mix them"
)


class Rebalance:
    """Moves parameters to the least norm of their orbit after every n-th step of an optimiser.

        symmetry = find_symmetry(model, inputs, training=True)
        Rebalance(symmetry, optimizer, every=10, model=model)

    From then on `optimizer.step()` does it: Σ |w|^p falls to its minimum along scales, changes of
    basis and shifts (Kempf and Ness), in the same tensors. Averages of gradients move by the dual
    action, averages of squares by its square, so that the optimiser goes on as if it had seen the
    same gradients at the new point (`act_state`). Parameters that are frozen move as
    well, and so do buffers, because the function could not stay otherwise.

    Attributes:
        held: spaces and shifts that never move, with the reason. Where the optimiser keeps averages
            of squares (Adam, RMSprop, Adagrad, …) these are all but scales.
        steps: how many steps of the optimiser it has seen.
        count: how many rebalances there were.
        last: what the last one did; None before the first.

    Args:
        symmetry: what `find_symmetry` derived, in the mode in which the model is trained.
        optimizer: SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop or Adagrad; or any other whose
            `entries` are given; or what holds one in `.optimizer`, as accelerate's does. Groups may
            have any options.
        every: n ≥ 1.
        objective: "l2", Σ |w|², or "l1", Σ |w|, as for `balance`.
        model: what holds the parameters and buffers. Without it the optimiser has to know them by
            name, SGD(model.named_parameters(), …), and no buffer may move.
        hold, include, bounds: as for `balance`; bounds are relative to where each rebalance begins.
        shifts: whether shifts take part; with them it takes longer, and the point is LOCAL.
        tolerance: gap relative to the norm at which it is least enough; what is reached is mostly
            below 1e-6. Speed depends on it, and the function does not.
        entries: for other optimisers the degree of each entry of their state: 1 for averages of
            gradients, 2 for averages of their squares, 0 for what has no unit.
        gradients: whether `.grad` moves as well, by the dual action. It is of the point before the
            step, and by default stays so: `zero_grad()` drops it next. Pass True where gradients
            are added up across steps.

    Raises:
        ValueError: as `balance`; no names, a tensor that is missing or of half precision, tied
            names of two tensors, an optimiser of another model or of a part of what moves and has
            a gradient, or one whose state does not move so (Adadelta, L-BFGS, …).
        UnknownName: a pattern that matches nothing.

    Source: Kempf and Ness, "The length of vectors in representation spaces" (1979); Stock, Graham,
    Gribonval and Jégou, "Equi-normalization of neural networks" (2019), balances after each step.
    """

    @door
    def __init__(
        self, symmetry: ParameterSymmetry, optimizer: torch.optim.Optimizer, every: int = 10,
        objective: str = "l2", *, model: nn.Module | None = None, hold: Patterns = (),
        include: Patterns = (), bounds: Bounds | None = None, shifts: bool = False,
        tolerance: float = 1e-3, entries: Entries | None = None, gradients: bool = False,
    ):  # fmt: skip
        optimizer = optimizer_of(optimizer, "Rebalance(optimizer=…)")
        model = module_of(model)
        _require_options(symmetry, every, objective, tolerance)
        self.symmetry, self.optimizer, self.every = symmetry, optimizer, every
        self.gradients = gradients
        self.parameters = Parameters(symmetry, optimizer, model)
        self.entries, linear = entries_of(optimizer, entries)
        power = OBJECTIVES[objective]
        movers = movers_of(symmetry, power, hold, include, shifts, "Rebalance")
        if not linear:
            movers.held |= dict.fromkeys((*movers.bases, *movers.shifts), _SQUARES)
            movers.bases, movers.shifts = [], []
        limits = limits_of(symmetry, bounds or {}, {}, movers.held)
        require_bounded(symmetry, movers.scales, limits, "Rebalance")
        self.held = movers.held
        self.parameters.require_together(optimizer, self.held)
        if model is not None:
            self.parameters.warn_of_buffers((*movers.scales, *movers.bases, *movers.shifts), model)
        self._scales = Scales(symmetry, power, movers, limits, tolerance)
        self._rescaling = Rescaling(symmetry, movers.scales)
        self._turns: Callable[[Mapping[str, Tensor]], Any] | None = None
        if movers.bases or movers.shifts:
            still = {*symmetry.spaces, *symmetry.shift_of} & {*movers.held}
            self._turns = lambda params: balance(
                symmetry, params, objective, hold=still, include=include, shifts=shifts,
                tolerance=tolerance, bounds=bounds,
            )  # fmt: skip
        self._slides = bool(movers.shifts)
        self.steps = self.count = 0
        self.last: Rebalanced | None = None
        self._kept()
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def now(self) -> Rebalanced:
        """Rebalance at once.

        Returns:
            What it did.

        Raises:
            ValueError: numbers that are not finite, or an entry of the optimiser's state that is
                not known.
        """
        params = self.parameters.current()
        carried = self._kept(params)
        if self._turns is None:
            self.last = self._scaled(params, carried)
        else:
            self.last = self._turned(params, carried)
        self.count += 1
        return self.last

    def remove(self) -> None:
        """Follow the optimiser no longer."""
        self._hook.remove()

    def __enter__(self) -> Rebalance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.remove()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            self.now()

    def _kept(self, params: Mapping[str, Tensor] | None = None) -> list[Carried]:
        """What moves with the parameters: gradients, and what the optimiser keeps, by degree."""
        params = self.parameters.now() if params is None else params
        found = kept(self.optimizer, params, self.entries)
        carried = [Carried(tensors, self.entries[key]) for key, tensors in found.items()]
        if self.gradients:
            grads = {n: p.grad for n, p in params.items() if p.grad is not None}
            carried.append(Carried(grads, 1))
        return carried

    def _scaled(self, params: Mapping[str, Tensor], carried: list[Carried]) -> Rebalanced:
        """Along scales alone, in place."""
        with torch.no_grad():
            found = self._scales.least(params, near=self.count > 0)
            if found.moves:
                move = self._rescaling.by(found.logs)
                move(params, 1)
                far = any(float(y.abs().max()) > _FAR for y in found.logs.values())
                for entry in carried:
                    _follow(move, entry, far)
        enough = found.gap <= self._scales.tolerance * found.value
        status = Status.OPTIMAL if enough else Status.LOCAL
        return Rebalanced(
            found.before, found.value, found.gap,
            Status.UNATTAINED if found.unattained else status,
            self.held | found.held, partial(scaled_by, self.symmetry, found.logs),
        )  # fmt: skip

    def _turned(self, params: Mapping[str, Tensor], carried: list[Carried]) -> Rebalanced:
        """Along changes of basis and shifts as well, by turns."""
        assert self._turns is not None
        found = self._turns({n: p.detach() for n, p in params.items()})
        moved(self.symmetry, found.element, params, carried)
        status = found.status
        if status is Status.LOCAL and not self._slides:
            enough = found.gap <= self._scales.tolerance * found.value
            status = Status.OPTIMAL if enough else status
        return Rebalanced(
            found.before, found.value, found.gap, status, found.held | self.held,
            lambda: found.element,
        )  # fmt: skip


def _follow(move: Callable[[Mapping[str, Tensor], int], None], entry: Carried, far: bool) -> None:
    """Move an entry by D⁻ᵈ; one D⁻¹ after the other where the power itself would overflow."""
    if not far or abs(entry.degree) < 2:
        move(entry.tensors, -entry.degree)
        return
    for _ in range(abs(entry.degree)):
        move(entry.tensors, -1 if entry.degree > 0 else 1)
    for tensor in entry.tensors.values():
        tensor.nan_to_num_()  # what is too large is the largest that there is


def _require_options(symmetry: Any, every: Any, objective: Any, tolerance: Any) -> None:
    if not isinstance(symmetry, ParameterSymmetry):
        raise ValueError(
            f"Rebalance(symmetry=…): a {type(symmetry).__name__} came; a ParameterSymmetry was "
            "expected. Pass what find_symmetry(model, inputs) gives, then the optimiser."
        )
    if isinstance(every, bool) or not isinstance(every, Integral) or every < 1:
        raise ValueError(
            f"Rebalance(every={every!r}): a whole number of steps was expected, at least one. "
            "Pass every=1 for a rebalance after each step, or leave it at 10."
        )
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise ValueError(
            f"Rebalance(objective={objective!r}): it is none of {[*OBJECTIVES]}. The sum of "
            "squares ('l2') or of absolute values ('l1') was expected. Pass one of the two."
        )
    good = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not good or not 0 < tolerance < math.inf:
        raise ValueError(
            f"Rebalance(tolerance={tolerance!r}): a positive number was expected, the gap relative "
            "to the norm at which it is least enough. Pass for example tolerance=1e-4."
        )
