"""What a model computes with the weights of two checkpoints, read module by module."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from paramsym.checking.measure import change, nudged, scale_of, step_of
from paramsym.checkpoints.checkpoint import Checkpoint, Opened
from paramsym.checkpoints.equivalent import allowed
from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.source import Weights, aliases
from paramsym.checkpoints.streaming.dequantised import Dequantised
from paramsym.checkpoints.streaming.recognising import Storage
from paramsym.checkpoints.streaming.running import (
    Inputs,
    Passed,
    outputs_of_files,
    sampled_layers,
)
from paramsym.checkpoints.streaming.spelling import Named, Tensors
from paramsym.structure.fast import Rows

_WHOLE = 1 << 31  # bytes of weights that may all be in memory
# What a network with some of its layers left out, or without a parameter, may stop with.
_STOPS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
Run = Callable[[Named], list[torch.Tensor]]


@dataclass(frozen=True)
class Verified:
    """The largest difference of an output, what it may be, and which layers were run; None for all
    of them."""

    error: float
    tolerance: float
    passed: Passed | None


class NotRun(Exception):
    """The model cannot be run with weights in files; one that is `small` not as a whole either."""

    def __init__(self, said: str, small: bool):
        super().__init__(said)
        self.small = small


def verified(
    skeleton: Callable[[], torch.nn.Module], inputs: Inputs, weights: Weights, written: Checkpoint,
    tolerance: float, progress: Callable[[str], None], storage: Storage,
) -> Verified:  # fmt: skip
    """Run a model on some inputs with its weights, and with those that were written.

    Quantised ones are run as the numbers that they stand for; `storage` says how they lie in the
    files, before and after.

    Only a difference above `tolerance` is measured again, beside what rounding the weights of
    before does to the outputs.

    Raises:
        NotRun: it cannot be run so, and is too large to be run otherwise.
    """
    model = skeleton()
    names, same = weights.joins.spelled({}), aliases(model)
    with Opened(weights.checkpoint) as files, Opened(written) as made:
        before, after = _numbers(files, storage), _numbers(made, storage)
        before, after = weights.joins.of(before), weights.joins.of(after)
        old, new = Named(before, names, same), Named(after, names, same)
        progress("running the model with the weights as they are")
        run, passed, reference = _first_run(model, old, inputs)
        progress(f"running {passed or 'the model'} with the weights that were written")
        outputs = run(new)
        if len(outputs) != len(reference):
            return Verified(math.inf, tolerance, passed)
        scales = [scale_of(y) for y in reference]
        error = max(map(change, reference, outputs, scales), default=0.0)
        if error > tolerance:
            step = max((step_of(d) for d in _floats(old)), default=0.0)
            others = run(Named(_Nudged(before, step), names, same))
            scales = [scale_of(y, [z], step) for y, z in zip(reference, others, strict=True)]
            error = max(map(change, reference, outputs, scales), default=0.0)
        if error > tolerance:
            tolerance = allowed(tolerance, partial(run, old))
    return Verified(error, tolerance, passed)


def _first_run(
    model: torch.nn.Module, weights: Named, inputs: Inputs
) -> tuple[Run, Passed | None, list[torch.Tensor]]:
    """How a model can be run, on some layers, module by module or as a whole, and what it gives."""
    passed = sampled_layers(model, weights)
    total = sum(weights.bytes(name) for name, _ in model.named_parameters())
    ways = [(passed, False)] if passed is None else [(passed, False), (None, False)]
    ways += [(None, True)] if total <= _WHOLE else []
    said = ""
    for some, whole in ways:
        run = partial(outputs_of_files, model, inputs=inputs, passed=some, whole=whole)
        try:
            return run, some, run(weights)
        except _STOPS as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    raise NotRun(said, total <= _WHOLE)


def _numbers(opened: Opened, storage: Storage) -> Tensors:
    """The tensors of files as numbers."""
    if not storage.beside:
        return opened
    try:
        found = Dequantised(opened, replace(storage, checkpoint=opened.checkpoint))
    except CheckpointError as error:
        raise NotRun(error.came, False) from error
    if found.packed:
        raise NotRun(f"{few(found.packed)} are packed, which its own kernels read", False)
    return found


class _Nudged:
    """Tensors of files, displaced by a relative step when they are read."""

    def __init__(self, tensors: Tensors, step: float):
        self.tensors, self.step = tensors, step

    def __getitem__(self, name: str) -> Rows:
        return _NudgedTensor(self.tensors[name], self.step, name)


class _NudgedTensor:
    def __init__(self, tensor: Rows, step: float, name: str):
        self.tensor, self.step, self.name = tensor, step, name
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, rows: slice) -> torch.Tensor:
        seed = zlib.crc32(f"{self.name}:{rows.start}".encode())
        generator = torch.Generator().manual_seed(seed)
        found = self.tensor[rows]
        return nudged(found, lambda x: torch.randn(x.shape, generator=generator).to(x), self.step)


def _floats(weights: Named) -> set[torch.dtype]:
    return {weights[n].dtype for n in weights if weights[n].dtype.is_floating_point}
