"""Write an equivalent checkpoint: other numbers, the same function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paramsym.checking.find import find_symmetry
from paramsym.checking.measure import change, nudged, scale_of, step_of
from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import check_name, check_place, refuse_source
from paramsym.recording.record import floating_outputs, preserved, split_inputs
from paramsym.structure.patterns import UnknownName, matching
from paramsym.structure.symmetry import ParameterSymmetry

# What a random move may change in the outputs by rounding alone, relative to those around them.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.3}


@dataclass(frozen=True)
class Transformed(Told):
    """What was written, and the proof that it is equivalent.

    `error` is the largest difference of an output, relative to the largest numbers of the slices
    through it and of these to the least, measured after reading the written files back; None where
    no model was run. `changed` of `entries` numbers are in tensors that moved. `element` and
    `record` are the files beside the weights.
    """

    path: Path
    symmetry: ParameterSymmetry
    error: float | None
    tolerance: float
    changed: int
    entries: int
    element: Path | None = None
    record: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the parameters that changed."""
        return self.changed / max(1, self.entries)

    def numbers(self) -> dict[str, Any]:
        """The result without the symmetry."""
        return {
            "written": str(self.path), "error": self.error, "tolerance": self.tolerance,
            "changed": self.changed, "parameters": self.entries,
            "element": self.element and str(self.element),
            "record": self.record and str(self.record), "notes": list(self.notes),
        }  # fmt: skip


def tolerance_of(dtypes: Iterable[torch.dtype]) -> float:
    """What a move may change by rounding alone, of weights of these dtypes; see `TOLERANCE`."""
    floats = (dtype for dtype in dtypes if dtype.is_floating_point)
    return max((TOLERANCE.get(dtype, 1e-3) for dtype in floats), default=0.0)


class _Narrowing(TorchDispatchMode):
    """Notes to which dtypes wider numbers are rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.is_floating_point():
            given = args[0].dtype
            if given.is_floating_point and given.itemsize > made.dtype.itemsize:
                self.found.add(made.dtype)
        return made


def allowed(tolerance: float, run: Callable[[], object]) -> float:
    """What a move may change by rounding, where a run rounds on its way as well.

    Norms of transformers compute in float32 whatever their weights are: a network of float64
    changes by the rounding of that.
    """
    with _Narrowing() as seen:
        run()
    return max(tolerance, tolerance_of(seen.found))


def require_equal(out: Path, error: float, tolerance: float) -> None:
    """Raise a `CheckpointError` where what was written computes another function."""
    if not error <= tolerance:
        raise CheckpointError(
            str(out),
            "what was written computes another function: the outputs change by "
            f"{error:.1e} of their size, slice by slice",
            f"at most {tolerance:.0e}",
            "Nothing is kept. Move less, which rounds less: a smaller --strength, --only, "
            "--spaces or --hold; where that does not help, please report the model",
        )


def movable(
    checkpoint: Source,
    out: Path,
    option: str,
    names: list[str] | None,
    force: bool,
    progress: Callable[[str], None],
) -> ParameterSymmetry:
    """The symmetry of a checkpoint that can be moved and written to `out`.

    Raises:
        CheckpointError: `out` is the source or exists, there are no weights, or one of the patterns
            `names` of the command's `option` matches nothing.
    """
    require_writable(checkpoint, out, force)
    progress("deriving the symmetry")
    with fitting(checkpoint):
        symmetry = find_symmetry(checkpoint.model, checkpoint.inputs)
    check_names(symmetry, option, names)
    return symmetry


def require_writable(checkpoint: Source, out: Path, force: bool) -> None:
    """Raise where a checkpoint has no weights, or where `out` is no place for other ones."""
    refuse_source(out, checkpoint.files)
    check_name(out, checkpoint.suffixes)
    check_place(out, force)
    if not checkpoint.has_weights and checkpoint.streamable() is None:
        raise CheckpointError(
            checkpoint.label, "a model on the meta device, without numbers", "weights to move",
            "Give --weights FILE",
        )  # fmt: skip


def check_names(symmetry: ParameterSymmetry, option: str, names: list[str] | None) -> None:
    """Raise where one of the patterns of an option names no space and no shift."""
    try:
        matching(names or [], [*symmetry.spaces, *symmetry.shift_of], option)
    except UnknownName as error:
        raise CheckpointError(
            f"{option} {error.pattern}", "the model has no space or shift that matches",
            ", ".join(error.near) or "nothing: this model has no symmetry",
            "Names as `inspect` prints them, braces included; * is any text",
        ) from error  # fmt: skip


def outputs_of(model: torch.nn.Module, checkpoint: Source) -> list[torch.Tensor]:
    """The floating outputs on the example inputs, in evaluation mode."""
    args, kwargs = split_inputs(checkpoint.inputs)
    with preserved(model, training=False), torch.no_grad():
        return [out.clone() for out in floating_outputs(model(*args, **kwargs))]


def difference_from(
    reference: list[torch.Tensor],
    model: torch.nn.Module,
    before: Mapping[str, torch.Tensor],
    checkpoint: Source,
    tolerance: float,
) -> float:
    """How much the outputs of a model that was read back differ from the reference; see `measure`.

    Only a difference above `tolerance` is measured again, beside what rounding the weights of
    before does to the outputs: the model then gets those, and is used up.
    """
    after = outputs_of(model, checkpoint)
    if len(after) != len(reference):
        return math.inf
    scales = [scale_of(y) for y in reference]
    error = max(map(change, reference, after, scales), default=0.0)
    if error > tolerance:
        step = _nudge(model, before)
        others = outputs_of(model, checkpoint)
        scales = [scale_of(y, [z], step) for y, z in zip(reference, others, strict=True)]
        error = max(map(change, reference, after, scales), default=0.0)
    return error


@torch.no_grad()
def _nudge(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> float:
    """Give a model the weights of before, parameters displaced by a relative step; which it is."""
    generator = torch.Generator().manual_seed(0)
    trained = dict(model.named_parameters())
    dtypes = {x.dtype for x in trained.values() if x.is_floating_point()}
    step = max(map(step_of, dtypes), default=0.0)

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=generator).to(x)

    for name, x in model.state_dict().items():
        x.copy_(nudged(before[name], draw, step) if name in trained else before[name])
    return step
