"""A move as a step of tools that convert checkpoints tensor by tensor.

compressed-tensors converts the files of a checkpoint by a list of converters. Each is asked which
tensors have to be together (`get_dependencies`), is tried on tensors without numbers (`validate`),
is given tensors and returns what is to be written (`process`), and says what becomes of the
configuration (`update_config`). A move followed by a quantiser so reads and writes the files once:

    convert_checkpoint(source, target, [SymmetryConverter(symmetry, element), quantiser])

Source: compressed-tensors 0.20, `entrypoints/convert/converters/base.py`. The package is not needed
to use the class: whoever calls these methods in this way can do so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from paramsym.checkpoints.errors import CheckpointError, few, refused
from paramsym.checkpoints.streaming.spelling import spelling
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.needs import steps
from paramsym.structure.symmetry import ParameterSymmetry

_WHERE = "SymmetryConverter"
_MOVABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class SymmetryConverter:
    """Weights moved along their symmetry, θ ↦ g·θ, in the four verbs of compressed-tensors.

    A tensor that others need, as a gain in whose frame a rotation acts, is loaded beside each of
    them and may so come several times. It is returned beside one of them, always the same, so that
    every tensor is written once.

    Args:
        symmetry: of the model, as for `act`.
        element: what moves it.
        names: of all tensors in the files; by default those of the model. A prefix that all have,
            or that all lack, is no difference.

    Raises:
        CheckpointError: a tensor that moves is not among the names; or two tensors need each other,
            which such tools cannot keep together.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, element: GroupElement,
        names: Collection[str] | None = None,
    ):  # fmt: skip
        self.symmetry, self.element = symmetry, element
        known = {*symmetry.signature, *symmetry.ties}
        self.names: Mapping[str, str] = spelling(known if names is None else names, known)
        self._files: dict[str, str] = {}
        for file, model in self.names.items():
            self._files.setdefault(symmetry.ties.get(model, model), file)
        found = {name: steps(symmetry, element, name) for name in symmetry.signature}
        self._moved = {name for name, each in found.items() if name in each.moved_names}
        if lost := [n for n in (*symmetry.signature,) if n in self._moved and n not in self._files]:
            raise CheckpointError(
                _WHERE, f"{few(lost)} missing among {len(self.names)} names, and the element moves "
                "them", "the names of all tensors of the model that the symmetry is of",
                "Give the names in the files with names=…, or an element of these weights",
            )  # fmt: skip
        read = {name: {*each.names} - {name} for name, each in found.items()}
        self._needs = {name: _closed(read, name) for name in self._moved}
        self._owners = self._owned()

    def get_dependencies(self, weight_name: str) -> set[str]:
        """The other tensors that have to be there so that one of them can be moved.

        Args:
            weight_name: as the files have it; nothing is needed for names that the model lacks.
        """
        own = self._own(weight_name)
        return {self._files[need] for need in self._needs.get(own, ())} - {weight_name}

    def process(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The moved tensors, by the names that they came with.

        What does not move is returned as it came, dependencies of others beside one of these alone.

        Raises:
            CheckpointError: a tensor is quantised or packed, and has to be read as numbers first;
                one that is needed is missing, or has another shape than its type.
        """
        self._refuse_codes(tensors)
        state = {self._own(name): tensor for name, tensor in tensors.items()}
        made = {}
        for name, tensor in tensors.items():
            own = self._own(name)
            if (owner := self._owners.get(own)) is not None and owner not in state:
                continue  # it is only read here, and is written beside its owner
            made[name] = tensor if own not in self._moved else self._acted(own, state)
        return made

    def moved(self, name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """One tensor, given it and all that `get_dependencies` names, as they are before the move.

        Raises:
            CheckpointError: as `process`.
        """
        self._refuse_codes(tensors)
        state = {self._own(n): tensor for n, tensor in tensors.items()}
        own = self._own(name)
        return self._acted(own, state) if own in self._moved else tensors[name]

    def _acted(self, own: str, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with refused(_WHERE, "tensors with all that `get_dependencies` names",
                     "Call it with those, as they are before the move"):  # fmt: skip
            return act_tensor(self.symmetry, self.element, own, state).contiguous()

    def validate(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What `process` would return, without numbers; the same errors are raised."""
        return self.process({n: tensor.to("meta") for n, tensor in tensors.items()})

    def update_config(self, config: Any) -> Any:
        """The configuration of a quantiser as it is: a move quantises nothing."""
        return config

    def update_model_config(self, model_config: dict[str, Any]) -> dict[str, Any]:
        """The configuration of the model as it is: sizes and names stay."""
        return model_config

    def _own(self, name: str) -> str:
        model = self.names.get(name, name)
        return self.symmetry.ties.get(model, model)

    def _owned(self) -> dict[str, str]:
        """Each tensor that others need → the first of them that nobody needs."""
        needed = {need for needs in self._needs.values() for need in needs}
        found: dict[str, str] = {}
        for name in self.symmetry.signature:
            if name in self._needs and name not in needed:
                for need in self._needs[name]:
                    found.setdefault(need, name)
        if lost := sorted(needed - found.keys()):
            raise CheckpointError(
                _WHERE, f"{few(lost)} need each other", "an element by which no two tensors do, "
                "since each is given to `process` beside those that read it",
                "Leave out of it what reads them both ways (shifts, above all), with only=…; or "
                "move the files with `transform`",
            )  # fmt: skip
        return found

    def _refuse_codes(self, tensors: Mapping[str, torch.Tensor]) -> None:
        modules = {self._files[name].rpartition(".")[0] for name in self._moved}
        for name, tensor in tensors.items():
            moves = self._own(name) in self._moved
            strange = name not in self.names and name.rpartition(".")[0] in modules - {""}
            if strange or (moves and tensor.dtype not in _MOVABLE):
                kind = str(tensor.dtype).removeprefix("torch.")
                raise CheckpointError(
                    _WHERE, f"{name!r} ({kind}) is part of a weight that moves and no number of it",
                    "weights in float64, float32, bfloat16 or float16",
                    "Put a converter that dequantises before this one, or move the codes with "
                    "`transform`, where that is exact",
                )  # fmt: skip


def _closed(read: Mapping[str, set[str]], name: str) -> dict[str, None]:
    """All that a tensor needs, and what these need to be moved themselves, without itself."""
    found: dict[str, None] = {}
    left = [name]
    while left:
        new = [n for n in sorted(read.get(left.pop(), ())) if n not in found]
        found |= dict.fromkeys(new)
        left += new
    return {n: None for n in found if n != name}
