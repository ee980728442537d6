"""A model at its parameters, beside the outputs that moved parameters must reproduce."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from paramsym.checking.ends import Ends
from paramsym.checking.generic_weights import Source, generic_state, unit
from paramsym.recording.precision import converted_inputs, functional
from paramsym.recording.record import Inputs
from paramsym.structure.origin import Origin

_NUDGE = 64  # relative displacement that measures how sensitive outputs are, in roundings

State = dict[str, torch.Tensor]


@dataclass
class Bench:
    """The model at its parameters, with the outputs that moved parameters must reproduce."""

    model: torch.nn.Module
    state: State
    inputs: Inputs
    outputs: Callable[[Any], Any] | None
    training: bool
    generator: torch.Generator

    def __post_init__(self) -> None:
        floating = (t.dtype for t in self.state.values() if t.is_floating_point())
        self.dtype = next(floating, torch.float64)
        self.arguments = converted_inputs(self.inputs, self.dtype)
        self.trained = {name for name, _ in self.model.named_parameters()}
        self._require_finite()
        self.values = self.function(self.state)
        if not self.values:
            raise ValueError(
                f"verify(model={type(self.model).__name__}): the model returned no floating "
                "tensor, but a function with values is needed. Choose some with outputs=…."
            )

    def _require_finite(self) -> None:
        for name in sorted(self.trained & self.state.keys()):
            lost = ~self.state[name].isfinite()
            if bool(lost.any()):
                raise ValueError(
                    f"verify(model={type(self.model).__name__}): {int(lost.sum())} of "
                    f"{lost.numel()} entries of {name!r} are NaN or infinite, but numbers were "
                    "expected: at these weights the function has no values to compare. Load other "
                    "weights, or initialise that tensor anew."
                )

    def generic(self, offsets: Mapping[str, Origin]) -> Bench:
        """The same model at generic parameters, vectors positive: some models take roots of them.

        `offsets` are constants that the model adds to a parameter; see `generic_state`.
        """
        source = Source(self.generator, self.dtype, pooled=False)
        drawn = generic_state(self.model, offsets, source, positive=True)
        trained = {name: drawn[name] for name in self.trained & self.state.keys()}
        return replace(self, state={**self.state, **trained})

    @property
    def is_finite(self) -> bool:
        """Whether some output is a finite number at all."""
        return any(bool(y.isfinite().any()) for y in self.values)

    @cached_property
    def scales(self) -> list[torch.Tensor]:
        """For each output, what a change of an entry counts against.

        That is the entry's size, or how far it moves when every parameter changes by a relative
        unit, whichever is larger: an entry that vanishes for every parameter has no size of its
        own. Sizes are the largest along each slice, and the least of all slices through the entry,
        so that an output column of size 1e13 does not stand for its neighbours.
        """
        share = _NUDGE * torch.finfo(self.dtype).eps
        nudged = {
            name: x + share * _usual(x) * self._noise(x) if name in self.trained else x
            for name, x in self.state.items()
        }
        return [
            slicewise(torch.maximum(size_of(y), size_of(z - y) / share))
            for y, z in zip(self.values, self.function(nudged), strict=True)
        ]

    @torch.no_grad()
    def function(self, state: State, ends: Ends | None = None) -> list[torch.Tensor]:
        (args, kwargs), outputs = self.arguments, self.outputs
        if ends is not None:
            (args, kwargs), outputs = ends.forth(self.model, (args, kwargs)), ends.back(outputs)
        return functional(self.model, state, args, kwargs, outputs, self.training)

    def error(self, state: State, ends: Ends | None = None) -> float:
        """The relative function error at other parameters, by way of moved inputs and outputs;
        infinite where a number is lost."""
        worst = 0.0
        after = self.function(state, ends)
        for y, z, scale in zip(self.values, after, self.scales, strict=True):
            if y.numel():
                if y.shape != z.shape or not torch.equal(y.isfinite(), z.isfinite()):
                    return math.inf
                change = size_of(z - y) / scale.clamp_min(torch.finfo(scale.dtype).tiny)
                worst = max(worst, float(change.max()))
        return worst

    def displaced(self, norms: dict[str, float]) -> State:
        """The parameters with random displacements of given norms."""
        state = dict(self.state)
        for name, norm in norms.items():
            x = state[name]
            if x.is_floating_point() or x.is_complex():
                noise = self._noise(x)
                state[name] = x + noise * (norm / max(float(noise.norm()), 1e-300))
            else:  # integers and booleans move by their order alone
                order = torch.randperm(x.numel(), generator=self.generator).to(x.device)
                state[name] = x.reshape(-1)[order].reshape(x.shape)
        return state

    def _noise(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=self.generator, dtype=torch.float64)
        return noise.to(x)

    def control(self, changed: State) -> float:
        """The function error of a wrong move: the same parameters displaced as far at random.

        Parameters alone are displaced where some move: a buffer is not always free to.
        """
        norms = {name: float(change.norm()) for name, change in changed.items()}
        own = {name: norm for name, norm in norms.items() if name in self.trained}
        return self.error(self.displaced(own or norms))


def _usual(x: torch.Tensor) -> torch.Tensor:
    """The sizes of the entries; those that are usual for the shape where all are zero."""
    if not (x.is_floating_point() or x.is_complex()):
        return torch.zeros_like(x)
    return x if bool((x != 0).any()) else torch.full_like(x, unit(tuple(x.shape)))


def size_of(y: torch.Tensor) -> torch.Tensor:
    """The modulus of the finite entries, and zero for the others."""
    return torch.where(y.isfinite(), y, 0).abs()


def slicewise(sizes: torch.Tensor) -> torch.Tensor:
    """Of the slices through each entry, along every axis, the least of their largest numbers."""
    scale = sizes.max() if sizes.numel() else sizes
    for axis in range(sizes.ndim):
        if sizes.numel():
            others = [k for k in range(sizes.ndim) if k != axis]
            scale = torch.minimum(scale, sizes.amax(others, keepdim=True) if others else sizes)
    return scale.expand(sizes.shape)


def around(y: torch.Tensor) -> torch.Tensor:
    """The size of the outputs around each entry; one where they vanish."""
    sizes = slicewise(size_of(y))
    return torch.where(sizes > 0, sizes, 1.0)


@contextmanager
def progress(total: int, label: str = "verify") -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal's standard error, for what takes longer than two seconds."""
    start, done, bar, task = time.monotonic(), 0, None, None

    def advance() -> None:
        nonlocal done, bar, task
        done += 1
        if bar is None and time.monotonic() - start > 2.0:
            from rich.console import Console  # only where somebody waits
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task(label, total=total, completed=done)
        elif bar is not None and task is not None:
            bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
