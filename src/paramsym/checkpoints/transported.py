"""Move what is attached to a checkpoint along an element, and write it beside a proof."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paramsym.artefacts.artefact import Artefact, Tensors, axes_of
from paramsym.artefacts.checking import TransportCheck, verify_adapter, verify_types, worst
from paramsym.artefacts.reading import WEIGHTS, files_of, read_artefact
from paramsym.artefacts.transport import recognised, transport
from paramsym.checking.find import find_symmetry
from paramsym.checkpoints.equivalent import TOLERANCE, tolerance_of
from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.fitting import fitting
from paramsym.checkpoints.sketch import are_alike, parsed, sketch_of, written
from paramsym.checkpoints.source import Source
from paramsym.checkpoints.tensors import check_finite, require_file
from paramsym.checkpoints.told import Told
from paramsym.checkpoints.writing import (
    check_name,
    check_place,
    owned,
    refuse_source,
    staged,
)
from paramsym.formats.weights import metadata_of, read_safetensors, write_safetensors
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.terminal import silent

_AN_ELEMENT = "an element of the symmetry of the model"
# What the control has to exceed, as a multiple of what the moved artefact may differ by.
_SEEN = 100.0
# The entry of a file's metadata that says which weights it belongs to; see `sketch`.
_MARK = "paramsym.model"
# Bytes of parameters in float64 beyond which the model is compared in its own dtype.
_LARGEST = 2 << 30


@dataclass(frozen=True)
class WrittenTransported(Told):
    """What was written, and the proof that it went with its model.

    `error` is the largest difference that the move makes for what the artefact and the model
    compute together, relative to the largest number, and `control` the same for the artefact as it
    was on the moved model. `compared` says what was compared.
    """

    path: Path
    check: TransportCheck
    tolerance: float
    compared: str
    types: dict[str, str]
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, Any]:
        """The result with the types as text."""
        return {
            "written": str(self.path), "error": self.check.error, "control": self.check.control,
            "tolerance": self.tolerance, "compared": self.compared, "types": self.types,
            "notes": list(self.notes),
        }  # fmt: skip


def write_transported(
    checkpoint: Source,
    artefact: Path,
    out: Path,
    along: Path,
    types: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] = silent,
) -> WrittenTransported:
    """Move an artefact along an element of a checkpoint, compare, and write it in its own layout.

    An adapter is compared by the outputs of the model with its weights merged, before and after;
    anything else by pairing it with random activations of its types. Beside it stands the control:
    the artefact that was left as it is. The file gets its name only where the comparison holds.

    Args:
        checkpoint: the model as it was before it moved, from `open_checkpoint`; it is only read.
        artefact: the folder of an adapter, or a safetensors file.
        out: a folder or a file, as the artefact is.
        along: the element by which the model moved.
        types: a JSON file with the types of tensors by name; see `transport`.
        force: replace what stands at `out`; see `staged`.
        progress: is told each step when it begins.

    Raises:
        CheckpointError: the model has no weights; the element belongs to another model (both
            fingerprints are named), as may the artefact (a name or a shape is); the artefact cannot
            follow the element; the comparison fails; the system does not let it be written.
    """
    _require_places(checkpoint, artefact, out, along, force)
    told, base = metadata_of(files_of(artefact)[0]), checkpoint.state()
    _require_model(told, artefact, base)
    tensors, config = read_artefact(artefact)
    check_finite(tensors, str(artefact), set())
    stated = _stated(types)
    progress("deriving the symmetry")
    with fitting(checkpoint):
        symmetry = find_symmetry(checkpoint.model, checkpoint.inputs)
    with refused(f"--along {along}", _AN_ELEMENT, "Give the element that moved this model"):
        element = GroupElement.load(along, symmetry)
    progress("moving the artefact")
    settings = {**config, "fan_in_fan_out": _turned(checkpoint.model)} if config else {}
    try:
        found = recognised(tensors, symmetry, stated, config=settings)
        moved = transport(tensors, element, base, stated, config=settings)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(
            str(artefact), str(error).rstrip("."), "tensors that can be moved",
            "See the end of the message",
        ) from error  # fmt: skip
    progress("comparing the pair before and after")
    check, compared = _compared(checkpoint, found, moved, element, base)
    tolerance = tolerance_of(t.dtype for t in tensors.values())
    _require_small(artefact, check, tolerance, compared)
    if tolerance > TOLERANCE[torch.float32]:  # rounding alone may hide what is wrong
        wide = {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}
        exact = transport(wide, element, base, stated, config=settings)
        same = replace(found, tensors=wide)
        _require_small(
            artefact, _compared(checkpoint, same, exact, element, base)[0],
            TOLERANCE[torch.float32], compared,
        )  # fmt: skip
    told = {"format": "pt", **told, _MARK: written(sketch_of(act(symmetry, element, base)))}
    _write(artefact, out, moved, told, force, progress)
    notes = [*checkpoint.notes, *_control_note(check, tolerance)]
    shown = _shown(found, symmetry)
    return WrittenTransported(out, check, tolerance, compared, shown, tuple(notes))


def _shown(artefact: Artefact, symmetry: ParameterSymmetry) -> dict[str, str]:
    """The types of all tensors as text, absolute values in bars."""
    types = {name: axes_of(symmetry, base) for name, base in artefact.replaces.items()}
    texts = {n: ", ".join(map(str, axes)) for n, axes in {**artefact.types, **types}.items()}
    return {n: f"|{text}|" if n in artefact.absolute else text for n, text in texts.items()}


def _require_small(artefact: Path, check: TransportCheck, tolerance: float, compared: str) -> None:
    """Raise where what is compared changes by more than rounding."""
    if not check.error <= tolerance:
        raise CheckpointError(
            str(artefact), "moved with its model it computes another function: what is compared "
            f"changes by {check.error:.1e} of its size ({compared})", f"at most {tolerance:.0e}",
            "Nothing is kept. Move by less, which rounds less; where that does not help, please "
            "report the model",
        )  # fmt: skip


def _require_places(
    checkpoint: Source, artefact: Path, out: Path, along: Path, force: bool
) -> None:
    """Raise where something is missing, or where nothing may be written."""
    files_of(artefact)
    require_file(along, _AN_ELEMENT)
    refuse_source(out, [artefact, along, *checkpoint.files])
    check_name(out, () if artefact.is_dir() else (".safetensors",))
    check_place(out, force)
    if not checkpoint.has_weights:
        raise CheckpointError(
            checkpoint.label, "a model on the meta device, without numbers",
            "the weights before they were moved", "Give --weights FILE",
        )  # fmt: skip


def _require_model(told: Mapping[str, str], artefact: Path, base: Tensors) -> None:
    """Raise where an artefact was moved before, and belongs to a model of other weights.

    No comparison would see it: moved twice, it fits a model that moved twice.
    """
    known, here = parsed(told.get(_MARK, "")), sketch_of(base)
    if known and not are_alike(known, here):
        raise CheckpointError(
            str(artefact), "it belongs to a model of other weights, along with which it was moved "
            f"(fingerprint {written(known[:3])} …, that of --of is {written(here[:3])} …)",
            "the model that it belongs to",
            "Give --of that model; or take the artefact as it was before it was moved",
        )  # fmt: skip


def _stated(types: Path | None) -> dict[str, str]:
    """Types by name, from a file."""
    if types is None:
        return {}
    expected = 'a JSON object of texts: {"W_enc": "residual*, 128"}'
    require_file(types, expected)
    try:
        found = json.loads(types.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"--types {types}", f"it is no JSON ({error})", expected, "Write one type for each axis"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(t, str) for t in found.values()):
        raise CheckpointError(
            f"--types {types}", "something else than texts by name", expected,
            "Write one type for each axis",
        )  # fmt: skip
    return found


def _turned(model: torch.nn.Module) -> Mapping[str, bool]:
    """For the weights of linear layers, whether their inputs stand first."""
    kinds = {"Linear": False, "NonDynamicallyQuantizableLinear": False, "Conv1D": True}
    return {
        f"{name}.weight": kinds[type(module).__name__]
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module).__name__ in kinds
    }


def _compared(
    checkpoint: Source, found: Artefact, moved: Tensors, element: GroupElement, base: Tensors
) -> tuple[TransportCheck, str]:
    """What the move does to what model and artefact compute together, and what that is."""
    size = 8 * checkpoint.parameters
    wide = {n: t.double() if t.is_floating_point() else t for n, t in base.items()}
    params = wide if size <= _LARGEST else base
    checks, said = [], []
    if found.altered:
        if any(pair.bias for pair in found.pairs):
            said.append("not compared: the adapter has biases that no weight holds")
        else:
            checks.append(
                verify_adapter(checkpoint.model, found, moved, element, checkpoint.inputs, params)
            )
            said.append("outputs of the model with the adapter merged")
    if found.meeting:
        generator = torch.Generator().manual_seed(0)
        checks.append(verify_types(found, moved, element, generator, base))
        said.append("pairings with random activations of the types")
    error, control = worst(c.error for c in checks), worst(c.control for c in checks)
    return TransportCheck(error, control), "; ".join(said)


def _control_note(check: TransportCheck, tolerance: float) -> list[str]:
    """What a reader should know where the artefact hardly had to move."""
    if check.control > _SEEN * tolerance or check.control >= 1e-2:
        return []
    return [
        f"the artefact left as it is changes what is compared by {check.control:.1e} only: the "
        "element hardly moves what it touches, so that the comparison shows little"
    ]


def _write(
    artefact: Path,
    out: Path,
    moved: Tensors,
    metadata: Mapping[str, str],
    force: bool,
    progress: Callable[[str], None],
) -> None:
    """Write the tensors in the layout of the artefact, with everything else that is in its folder.

    What is read back has to be what was written, to the last bit.
    """
    room = sum(tensor.numel() * tensor.element_size() for tensor in moved.values())
    with staged(out, force, room) as draft:
        progress(f"writing {out.name}")
        file = draft
        if artefact.is_dir():
            shutil.copytree(artefact, draft, ignore=shutil.ignore_patterns("adapter_model.*"))
            file = draft / WEIGHTS
        write_safetensors(owned(moved), file, metadata=dict(metadata))
        wrong = [name for name, t in read_safetensors(file) if not torch.equal(t, moved[name])]
        if wrong:
            raise CheckpointError(
                str(out), f"{few(wrong)} read back with other numbers than were written",
                "the same numbers", "Nothing is kept. Check the disk, then try again",
            )  # fmt: skip
