"""One trial: a model at generic weights over generic inputs, and the outputs that must stay.

Every evaluation starts from the same place: inputs and buffers are cloned, the attributes that the
forward pass sets are put back, random numbers start from one seed, and dropout is left out. Who
makes a trial gives back the states of the generators (`preserved`).
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from paramsym.checking.ends import Arguments, Ends
from paramsym.checking.generic import generic_inputs
from paramsym.checking.generic_weights import Source
from paramsym.checking.measure import NUDGES, change, nudged, scale_of, step_of
from paramsym.recording.freed import named_arguments
from paramsym.recording.graph import canonical_name
from paramsym.recording.outputs import named_outputs
from paramsym.recording.precision import Lift, converted_inputs, lifted
from paramsym.recording.record import Inputs, split_inputs
from paramsym.recording.running import Walk, seeded

State = dict[str, torch.Tensor]
Outputs = Callable[[Any], Any] | None

_MARGIN = 1e3  # what a symmetry may lose over a displacement that is hardly more than rounding
_CLONED = 1 << 20  # entries up to which parameters are cloned as well: some models write to them


class Unusable(RuntimeError):
    """The model cannot be compared at generic weights; the message says why."""


class Unseen(Unusable):
    """No output depends on what moves."""


class Trial:
    """A model at generic weights, with the outputs that moved weights must reproduce.

    Args:
        model: only read; it must be in the mode to be compared.
        state: generic parameters and buffers.
        inputs: example inputs, in whose likeness generic ones are drawn.
        lengths: of the tables that integer inputs index, by position; see `table_lengths`.
        outputs: which tensors count as the function.
        training: whether that is the training mode; dropout is left out there.
        generator: of the inputs.
        repeat: copies of the inputs along their first axis, each drawn anew.
        calls: how many inputs of that size are drawn.
        walk: over the model, by who makes several trials of it.

    Raises `Unusable` if the outputs cannot be compared.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        state: State,
        inputs: Inputs,
        lengths: dict[int, int],
        outputs: Outputs,
        training: bool,
        generator: torch.Generator,
        repeat: int = 1,
        calls: int = 1,
        walk: Walk | None = None,
    ):
        self.model, self.state, self.outputs, self.training = model, state, outputs, training
        self.lengths = lengths
        self.dtype = next((t.dtype for t in state.values() if t.is_floating_point()), torch.float64)
        self.buffers = {name for name, _ in model.named_buffers()}
        self.cloned = sum(t.numel() for t in state.values()) <= _CLONED
        self.walk = walk or Walk(model, state.keys())
        self.named: State = {}  # the outputs of the last call
        self.dropped = False  # whether dropout was left out somewhere
        self._look(_repeated(inputs, repeat), generator, calls)

    def elsewhere(self, inputs: Inputs, calls: int = 1) -> Trial:
        """The same model at the same weights, in calls with other inputs."""
        other = copy.copy(self)
        other.__dict__.pop("_nudged", None)
        other._look(inputs, torch.Generator().manual_seed(0), calls)
        return other

    def _look(self, inputs: Inputs, generator: torch.Generator, calls: int) -> None:
        """Draw inputs in the likeness of these, and keep the outputs that must stay."""
        drawn = [generic_inputs(inputs, self.lengths, generator) for _ in range(calls)]
        self.calls = [
            (converted_inputs(args, self.dtype)[0], converted_inputs(kwargs, self.dtype)[1])
            for args, kwargs in drawn
        ]
        self.asked, self.listens = False, True  # for float32: whether the first run did
        self.values = self.function(self.state)
        self.listens = self.asked
        self.scales = [scale_of(y) for y in self.values]
        self.sizes = [float(s.max()) if s.numel() else 0.0 for s in self.scales]
        if not any(self.sizes):
            finite = any(bool(y.isfinite().any()) for y in self.values)
            raise Unusable(
                "every output vanishes at generic weights"
                if finite
                else "no output is finite at generic weights"
            )

    def function(self, state: State, ends: Ends | None = None, seed: int = 0) -> list[torch.Tensor]:
        """The outputs at other weights, call after call, by way of moved inputs and outputs."""
        found: list[torch.Tensor] = []
        with _from(seed):
            for args, kwargs in self.calls:
                found += self._call(state, pytree.tree_map(_clone, (args, kwargs)), ends)
        return found

    def _call(
        self, state: State, given: Arguments, ends: Ends | None, afresh: bool = True
    ) -> list[torch.Tensor]:
        """The outputs of one call; unless `afresh`, it leaves its traces in state and modules."""
        model, quiet = self.model, _Undropped()
        (args, kwargs), outputs = given, self.outputs
        if ends is not None:
            (args, kwargs), outputs = ends.forth(model, given), ends.back(outputs)
        if afresh:
            state = self._cloned(state)
        wide = lifted(self.listens) if self.dtype == torch.float64 else nullcontext(Lift())
        without = quiet if self.training else nullcontext()
        try:
            with without, wide as lift:
                returned = self.walk.call_at(state, args, kwargs)
                chosen = returned if outputs is None else outputs(returned)
                named = [(name, y.clone()) for name, y in named_outputs(chosen)]
        finally:
            if afresh:
                self.walk.attributes.restore()
        self.dropped, self.asked = self.dropped | quiet.met, self.asked | lift.met
        self.named = dict(named)
        return [y for _, y in named]

    def _cloned(self, state: State) -> State:
        return {n: t.clone() if self.cloned or n in self.buffers else t for n, t in state.items()}

    def interfaces(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs and outputs, by side and name."""
        given = named_arguments(self.model, *self.calls[0])
        tensors = {f"input {n}": x for n, x in given.items() if isinstance(x, torch.Tensor)}
        outputs = {f"output {n}": y for n, y in self.named.items()}
        return {name: tuple(x.shape) for name, x in (tensors | outputs).items()}

    def error(
        self, state: State, ends: Ends | None = None, tolerance: float = 0.0, hasty: bool = False
    ) -> float:
        """The largest relative change of the outputs; infinite where a number is lost.

        Args:
            state: the moved weights.
            ends: what the move does to inputs and outputs.
            tolerance: an error above it is measured again, with what rounding alone does to the
                outputs; up to the tolerance that many times as much is allowed.
            hasty: allow rounding no more than against the largest entry of an output: for an alarm
                that is looked into, and that must not be missed.
        """
        after = self.function(state, ends)
        found = self._worst(after, self.scales)
        if found > tolerance:
            found = self._worst(after, self._rounded(tolerance, hasty))
        return found

    def _worst(self, after: list[torch.Tensor], scales: list[torch.Tensor]) -> float:
        if len(after) != len(self.values):
            return math.inf
        rows = zip(self.values, after, scales, self.sizes, strict=True)
        # an output that vanishes, or has no finite entry, shows nothing
        return max((change(y, z, scale) for y, z, scale, size in rows if size), default=0.0)

    def _rounded(self, tolerance: float, hasty: bool) -> list[torch.Tensor]:
        """What changes count against where a tolerance is exceeded: see `error`."""
        unit = max(tolerance, torch.finfo(self.dtype).tiny) / _MARGIN
        found = []
        for y, scale, size, *others in zip(
            self.values, self.scales, self.sizes, *self._nudged, strict=True
        ):
            noise = scale_of(y, others, unit)
            found.append(torch.maximum(scale, noise.clamp_max(size)) if hasty else noise)
        return found

    @cached_property
    def _nudged(self) -> list[list[torch.Tensor]]:
        """The outputs at weights that differ by little more than rounding, several times."""
        source = Source(torch.Generator().manual_seed(7), self.dtype, pooled=not self.cloned)
        step = step_of(self.dtype)

        def draw(x: torch.Tensor) -> torch.Tensor:
            return source.normal(tuple(x.shape)).to(x)

        moving = {n: x for n, x in self.state.items() if self._is_nudged(x)}
        states = [{n: nudged(x, draw, step) for n, x in moving.items()} for _ in range(NUDGES)]
        return [self.function(self.state | state) for state in states]

    def _is_nudged(self, x: torch.Tensor) -> bool:
        """Of a large model in float32, which is judged in float64, gains and biases show enough."""
        return x.numel() <= _CLONED or self.dtype == torch.float64

    def notes(self) -> list[str]:
        """What the reader of a result has to know."""
        found = []
        if quiet := sum(not size for size in self.sizes):
            found.append(f"{quiet} of {len(self.sizes)} outputs vanish and were not checked")
        if self.dropped:
            found.append("dropout left out: with it the symmetry holds in distribution")
        return found

    def is_steady(self) -> bool:
        """Whether two calls, one in the place that the other leaves, from other seeds, give the
        first outputs: then the forward pass neither keeps nor draws anything that they show.

        A coin may fall alike, so that False is said where a generator has moved.
        """
        found = self._in_a_row(1, 2)
        return bool(found) and not any(
            drew or _differ(self.values[: len(one)], one) for one, drew in found
        )

    def is_random(self, seeds: Sequence[int] = (1,)) -> bool:
        """Whether other seeds give other outputs: the forward pass draws numbers that they show.

        Generators that torch does not know, and a count outside of the model, show likewise.
        """
        return any(_differ(self.values, self.function(self.state, seed=seed)) for seed in seeds)

    def is_stateful(self) -> bool:
        """Whether a second call, in the place that the first one leaves, gives other outputs."""
        found = self._in_a_row(0, 0)
        return not found or _differ(*(one for one, _ in found))

    def _in_a_row(self, *seeds: int) -> list[tuple[list[torch.Tensor], bool]]:
        """The outputs of the first input, again and again, and whether a generator has moved; none
        where that does not run."""
        state, given, found = self._cloned(self.state), self.calls[0], []
        try:
            for seed in seeds:
                with _from(seed):
                    start, again = _generators(), pytree.tree_map(_clone, given)
                    one = self._call(state, again, None, afresh=False)
                    found.append((one, _generators() != start))
        except Exception:  # a second call may not even run
            return []
        finally:
            self.walk.attributes.restore()
        return found


@contextmanager
def _from(seed: int) -> Iterator[None]:
    """Run a block without derivatives and warnings, with all generators at a seed."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seeded(seed)
        yield


def _generators() -> tuple[Any, ...]:
    """Where the generators of torch, Python and numpy stand."""
    state: Any = np.random.get_state()
    _, key, *rest = state
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), key.tobytes(), *rest


def _differ(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) != len(other) or any(
        x.shape != y.shape or not torch.equal(x.nan_to_num(), y.nan_to_num())
        for x, y in zip(one, other, strict=True)
    )


def first_axis(inputs: Inputs) -> int:
    """The length of the first axis of the inputs, their batch in most models; 1 without one."""
    leaves = pytree.tree_leaves(split_inputs(inputs))
    lengths = [(t.ndim > 1, t.shape[0]) for t in leaves if isinstance(t, torch.Tensor) and t.ndim]
    return max(lengths, key=lambda each: each[0], default=(False, 1))[1]


def _repeated(inputs: Inputs, times: int) -> Any:
    """Inputs repeated along the first axis, where it is as long as the batch."""
    batch = first_axis(inputs)

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == batch:
            return leaf.repeat(times, *[1] * (leaf.ndim - 1))
        return leaf

    args, kwargs = pytree.tree_map(wide, split_inputs(inputs))
    return kwargs or args


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


# -- without dropout ---------------------------------------------------------------------------

_DROPOUTS = ("dropout", "feature_alpha_dropout")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PLACES = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # of dropout_p


class _Undropped(TorchFunctionMode):
    """Leaves dropout out: a symmetry of it holds in distribution, not number by number."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), canonical_name(func)
        if name in _DROPOUTS:
            given = {**dict(enumerate(args)), **kwargs}
            self.met |= bool(given.get(2, given.get("training", given.get("train", True))))
            return given.get(0, given.get("input"))
        if name in _PLACES:
            place = _PLACES[name]
            share = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
            self.met |= bool(share)
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        if name in _RECURRENT:
            self.met |= any(type(a) is float and a > 0 for a in args)
            args = tuple(0.0 if type(a) is float else a for a in args)
        return func(*args, **kwargs)
