"""Generalised Procrustes analysis over a parameter symmetry: one element for every model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from paramsym.geometry.reading import Reading
from paramsym.merging.differences import determining, squared_distance
from paramsym.merging.interpolation import mixed
from paramsym.merging.states import State
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

Readings: TypeAlias = Mapping[str, Reading]
Read: TypeAlias = Callable[[State], Readings]
_FALL = 1e-9  # relative; what lowers the objective by less is no progress
_ROUNDINGS = 1e3  # units in the last place, below which two places are one


class Alignment(Protocol):
    """What an aligner returns: at least the element that moves b next to a."""

    @property
    def element(self) -> GroupElement: ...


class Aligner(Protocol):
    """Moves parameters b along a symmetry next to a, by themselves or by readings of both."""

    def __call__(
        self,
        symmetry: ParameterSymmetry,
        a: dict[str, Tensor],
        b: dict[str, Tensor],
        *,
        data: tuple[dict[str, Reading], dict[str, Reading]] | None = None,
    ) -> Alignment: ...


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a model is now: its element, its parameters, and what the objective sees of them."""

    element: GroupElement
    params: dict[str, Tensor]
    seen: dict[str, Tensor]
    readings: Readings | None


class Procrustes:
    """The places of several models under Σ wᵢ |gᵢ xᵢ − m|², which no step raises.

    With |gᵢ xᵢ − m| summed over i, the part that depends on gᵢ is |gᵢ xᵢ − mᵢ|² for the weighted
    mean mᵢ of all others: aligning each to that is descent by blocks.

    Attributes:
        objective: as given, after `settle` began, and after each of its rounds.
    """

    def __init__(
        self,
        symmetry: ParameterSymmetry,
        models: Sequence[dict[str, Tensor]],
        align: Aligner,
        shares: Sequence[float],
        reference: int,
        read: Read | None = None,
    ):
        self.symmetry, self.models, self.align = symmetry, models, align
        self.shares, self.reference, self.read = shares, reference, read
        identity = symmetry.identity()
        self.places = [self._place(identity, model) for model in models]
        self.given = list(self.places)
        self._require_readings()
        self.objective = [self._value()]

    @property
    def elements(self) -> list[GroupElement]:
        """By model the element that moves it."""
        return [place.element for place in self.places]

    @property
    def moved(self) -> list[dict[str, Tensor]]:
        """By model its parameters where it is now."""
        return [place.params for place in self.places]

    def settle(self, rounds: int) -> None:
        """Align each to the mean of those before it, then all in turn to the mean of the others."""
        start = list(self.places)
        others = [i for i in range(len(self.models)) if i != self.reference]
        done = [self.reference]
        for i in others:
            self.places[i] = self._nearer(i, done)
            done.append(i)
        self._note(start)
        for _ in range(rounds):
            start = list(self.places)
            for i in others:
                self.places[i] = self._nearer(i, [j for j in range(len(self.models)) if j != i])
            if not self._note(start):
                return

    def _note(self, start: list[_Place]) -> bool:
        """Keep the places if the objective fell, those at the start otherwise."""
        value, last = self._value(), self.objective[-1]
        if value > last:  # the first alignments see some models only, and rounding is left
            self.places, value = start, last
        self.objective.append(value)
        return value < (1 - _FALL) * last

    def _nearer(self, i: int, others: Sequence[int]) -> _Place:
        """The model after its alignment to the mean of some others, if that brings it nearer."""
        now, target = self.places[i], self._middle(others)
        if squared_distance(target.seen, now.seen) <= _floor(target.seen):
            return now
        # From where it was given first, for an element that does not grow by rounds; then from
        # where it is, for aligners that only descend.
        for start in dict.fromkeys((self.given[i], now)):
            new = self._aligned(i, start, target)
            if _falls(target, now, new):
                return new
        return now

    def _middle(self, which: Sequence[int]) -> _Place:
        """The weighted mean of some models where they are now."""
        total = sum(self.shares[j] for j in which)
        shares = [self.shares[j] / total for j in which]
        around = [self.places[j] for j in which]
        if len(around) == 1:
            return around[0]
        identity, params = self.symmetry.identity(), mixed([p.params for p in around], shares)
        first = around[0].readings
        if first is None:
            return _Place(identity, params, determining(self.symmetry, params), None)
        seen = _mean([place.seen for place in around], shares)
        return _Place(identity, params, seen, {n: Reading(first[n].type, seen[n]) for n in seen})

    def _aligned(self, i: int, start: _Place, target: _Place) -> _Place:
        """The model aligned to a target, from one of its places."""
        data = None
        if target.readings is not None and start.readings is not None:
            data = dict(target.readings), dict(start.readings)
        found = self.align(self.symmetry, target.params, start.params, data=data).element
        return self._place(found @ start.element, self.models[i])

    def _place(self, element: GroupElement, model: dict[str, Tensor]) -> _Place:
        """A model moved from where it was given, so that roundings do not add up."""
        params = act(self.symmetry, element, model)
        if self.read is None:
            return _Place(element, params, determining(self.symmetry, params), None)
        readings = self.read(params)
        return _Place(element, params, {n: r.values for n, r in readings.items()}, readings)

    def _require_readings(self) -> None:
        """Refuse readings that differ in what they read, or that are none."""
        if self.read is None:
            return
        described = [{n: tuple(x.shape) for n, x in place.seen.items()} for place in self.places]
        if not described[0] or any(each != described[0] for each in described):
            raise ValueError(
                f"merge(read=…): it read {[len(each) for each in described]} layers of the models, "
                "and the same ones of all, at least one, with equal numbers of samples were "
                "expected. Read all models on the same inputs, or align by weights."
            )

    @torch.no_grad()
    def _value(self) -> float:
        """Σ wᵢ |gᵢ xᵢ − m|² at the places of now, tensor by tensor."""
        value = 0.0
        for name in self.places[0].seen:
            each = [{name: place.seen[name]} for place in self.places]
            mean = _mean(each, self.shares)
            parts = zip(self.shares, each, strict=True)
            value += sum(share * squared_distance(mean, one) for share, one in parts)
        return value


def _mean(seen: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean by name, half precision in single."""
    first, *rest = zip(seen, shares, strict=True)
    return {
        name: sum(
            (share * each[name].to(_wide(x)) for each, share in rest), first[1] * x.to(_wide(x))
        )
        for name, x in first[0].items()
    }


def _falls(target: _Place, now: _Place, new: _Place) -> bool:
    """Whether a new place is nearer to a target, by more than roundings."""
    if new.seen.keys() != now.seen.keys():  # a trial of readings failed there
        return False
    least = (1 - _FALL) * squared_distance(target.seen, now.seen)
    return squared_distance(target.seen, new.seen) < least


def _floor(target: Mapping[str, Tensor]) -> float:
    """The squared distance that roundings of an element and a mean may make."""
    sizes = ((float(x.double().norm()), torch.finfo(_wide(x)).eps) for x in target.values())
    return sum((_ROUNDINGS * eps * size) ** 2 for size, eps in sizes)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
