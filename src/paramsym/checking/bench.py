"""A model at its parameters, beside the outputs that moved parameters must reproduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from paramsym.checking.ends import Ends
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.recording.precision import converted_inputs, functional
from paramsym.recording.record import Inputs
from paramsym.structure.origin import Origin

_INVISIBLE = 1e-6  # a control this small: the moved entries do not matter to the function

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
        self.values = self.function(self.state)
        if not self.values:
            raise ValueError(
                f"verify(model={type(self.model).__name__}): the model returned no floating "
                "tensor, but a function with values is needed. Choose some with outputs=…."
            )

    def generic(self, offsets: Mapping[str, Origin]) -> Bench:
        """The same model at generic parameters, vectors positive: some models take roots of them.

        `offsets` are constants that the model adds to a parameter; see `generic_state`.
        """
        source = Source(self.generator, self.dtype, pooled=False)
        drawn = generic_state(self.model, offsets, source, positive=True)
        trained = {name: drawn[name] for name in self.trained & self.state.keys()}
        return replace(self, state={**self.state, **trained})

    @torch.no_grad()
    def function(self, state: State, ends: Ends | None = None) -> list[torch.Tensor]:
        (args, kwargs), outputs = self.arguments, self.outputs
        if ends is not None:
            (args, kwargs), outputs = ends.forth(self.model, (args, kwargs)), ends.back(outputs)
        return functional(self.model, state, args, kwargs, outputs, self.training)

    def error(self, state: State, ends: Ends | None = None) -> float:
        """The relative function error at other parameters, by way of moved inputs and outputs;
        infinite where it is not a number."""
        worst = 0.0
        for before, after in zip(self.values, self.function(state, ends), strict=True):
            if before.numel():
                size = before.abs().max().clamp_min(torch.finfo(before.dtype).tiny)
                change = float((after - before).abs().max() / size)
                worst = max(worst, change if change == change else float("inf"))
        return worst

    def displaced(self, norms: dict[str, float]) -> State:
        """The parameters with random displacements of given norms."""
        state = dict(self.state)
        for name, norm in norms.items():
            noise = torch.randn(state[name].shape, generator=self.generator, dtype=torch.float64)
            noise = noise * (norm / max(float(noise.norm()), 1e-300))
            state[name] = state[name] + noise.to(state[name])
        return state

    def control(self, changed: State) -> float:
        """The function error of a wrong move of the size of these changes."""
        norms = {name: float(change.norm()) for name, change in changed.items()}
        own = {name: norm for name, norm in norms.items() if name in self.trained}
        error = self.error(self.displaced(own or norms))
        if error > _INVISIBLE:
            return error
        total = sum(norm**2 for norm in norms.values()) ** 0.5
        entries = sum(self.state[name].numel() for name in self.trained)
        spread = {n: total * (self.state[n].numel() / entries) ** 0.5 for n in self.trained}
        return self.error(self.displaced(spread))


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
