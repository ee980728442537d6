"""A model at its parameters, beside the outputs that moved parameters must reproduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from paramsym.checking.ends import Ends
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.measure import (
    NUDGES,
    SMALL,
    change,
    nudged,
    scale_of,
    size_of,
    step_of,
)
from paramsym.recording.precision import converted_inputs, functional
from paramsym.recording.record import Inputs
from paramsym.recording.running import Walk
from paramsym.structure.origin import Origin

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
        self.walk = Walk(self.model, self.state.keys())
        self.trained = self.walk.trained
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
        """For each output, what a change of an entry counts against; see `measure`."""
        step, others = step_of(self.dtype), []
        found: list[torch.Tensor] = []
        largest = max((float(size_of(y).max()) for y in self.values if y.numel()), default=0.0)
        for _ in range(NUDGES):
            state = {
                name: nudged(x, self._noise, step) if name in self.trained else x
                for name, x in self.state.items()
            }
            others.append(self.function(state))
            found = [scale_of(y, z, step) for y, *z in zip(self.values, *others, strict=True)]
            if all(bool((scale > SMALL * largest).all()) for scale in found):
                break  # nothing here may be the rounding of what cancels
        # an output that vanishes now and every time counts against the others
        return [scale if bool(scale.any()) else scale + largest for scale in found]

    @torch.no_grad()
    def function(self, state: State, ends: Ends | None = None) -> list[torch.Tensor]:
        (args, kwargs), outputs = self.arguments, self.outputs
        if ends is not None:
            (args, kwargs), outputs = ends.forth(self.model, (args, kwargs)), ends.back(outputs)
        return functional(self.model, state, args, kwargs, outputs, self.training, self.walk)

    def error(self, state: State, ends: Ends | None = None) -> float:
        """The relative function error at other parameters, by way of moved inputs and outputs;
        infinite where a number is lost."""
        after = self.function(state, ends)
        return max(map(change, self.values, after, self.scales), default=0.0)

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
