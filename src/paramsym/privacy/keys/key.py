"""Keys: elements of a symmetry that move inputs, outputs and parameters, and that training keeps.

A key is as secret as the numbers that it was drawn from, and hides what `audit` says and no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from paramsym.algebra import Group, Trivial, parse_group
from paramsym.geometry.commuting import commuting_subgroup
from paramsym.geometry.updates import Optimizers, Update, updates_of
from paramsym.privacy.keys.losses import Loss, Losses, loss_of
from paramsym.privacy.keys.rates import Rates, rates_of, require_rates
from paramsym.privacy.keys.refusals import (
    commuting_element,
    require_conditioned,
    require_exact,
    require_repeatable,
    require_within,
)
from paramsym.structure import stored
from paramsym.structure.element import GroupElement, parts_of, word_of
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True, eq=False)
class Key:
    """An element g with f(g·x; g·θ) = g·f(x; θ), from the subgroup that training commutes with.

    Attributes:
        symmetry: of the model, as it was found, with freed inputs and outputs.
        acting: the subgroup of it that the optimiser and the loss commute with.
        element: g, an element of `acting`.
        updates: the parts of the training step that g commutes with; empty if nobody trains.
        loss: what outputs and targets are compared by; None if nobody trains, or outputs stay.
        trainable: names of what is trained, or None for all parameters.
        scalings: whether g may scale, so that training needs `learning_rates`.
    """

    symmetry: ParameterSymmetry
    acting: ParameterSymmetry
    element: GroupElement
    updates: tuple[Update, ...] = ()
    loss: Loss | None = None
    trainable: tuple[str, ...] | None = None
    scalings: bool = False

    @staticmethod
    def generate(
        symmetry: ParameterSymmetry,
        generator: torch.Generator,
        optimizer: Optimizers = None,
        loss: Losses = None,
        *,
        groups: Callable[[int], Group] | Mapping[str, Group] | None = None,
        trainable: Collection[str] | None = None,
        scalings: bool = False,
        inexact: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> Key:
        """A random key from the largest subgroup that the optimiser and the loss commute with.

        Orders are uniform, rotations Haar, invertible maps have condition numbers of about two.

        Args:
            symmetry: from `find_symmetry(model, x, training=True, free_inputs=…, free_outputs=…)`.
            generator: the source of the key: who knows its seed knows the key.
            optimizer: what trains, see `commuting_subgroup`; None for inference alone.
            loss: what outputs and targets are compared by; without one, who trains holds outputs
                still.
            groups: ask for these groups, as in `ParameterSymmetry.restrict`; what training does not
                commute with is refused.
            trainable: names of the parameters that are trained; by default all.
            scalings: draw positive scales, too, which need `learning_rates`.
            inexact: accept an optimiser that commutes in exact arithmetic only.
            dtype: of the numbers of the key.

        Raises:
            ValueError: nothing is known of the optimiser or of the loss, one of them does not
                commute with what `groups` asks for, the optimiser commutes in exact arithmetic
                only, no rates undo scales under it, or the model draws random numbers while it
                trains.
        """
        key = _plan(symmetry, optimizer, loss, trainable, scalings, inexact)
        if groups is not None:
            wanted = symmetry.restrict(groups=groups, translations=False)
            asked = [*groups] if isinstance(groups, Mapping) else [*wanted.spaces]
            require_within(wanted, asked, key.acting, key.updates, key.loss)
            key = replace(key, acting=key.acting.restrict(groups=groups))
        return replace(key, element=key.acting.sample(generator, dtype=dtype))

    @staticmethod
    def of(
        symmetry: ParameterSymmetry,
        values: Mapping[str, Any],
        optimizer: Optimizers = None,
        loss: Losses = None,
        *,
        trainable: Collection[str] | None = None,
        scalings: bool = False,
        inexact: bool = False,
        limit: float = 1e6,
    ) -> Key:
        """The key with these values, and the identity everywhere else; see `generate`.

        Args:
            symmetry: of the model.
            values: by space, as `ParameterSymmetry.element` takes them: `{"input": A}`.
            optimizer: what trains.
            loss: what outputs and targets are compared by.
            trainable: names of the parameters that are trained.
            scalings: allow positive scales.
            inexact: accept an optimiser that commutes in exact arithmetic only.
            limit: the largest condition number of a matrix.

        Raises:
            KeyError: a name that is no space.
            ValueError: as `generate`, or a matrix is singular or worse conditioned than `limit`.
        """
        key = _plan(symmetry, optimizer, loss, trainable, scalings, inexact)
        require_conditioned(values, limit)
        element = commuting_element(symmetry, key.acting, values, key.updates, key.loss)
        return replace(key, element=element)

    def __repr__(self) -> str:
        made = ", ".join(each.name for each in self.updates) or "nobody who trains"
        groups = ", ".join(f"{s.name} by {s.group}" for s in self.acting.spaces.values())
        more = f"{groups[:200]}…" if groups[200:] else groups
        return f"Key({self.fingerprint[:12]}…, made for {made}, moving {more or 'nothing'})"

    # -- what follows from it ----------------------------------------------------------------------
    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 hash of the key and of the symmetry that it belongs to.

        It names the key without telling it, as far as the key has too many values to try them all.
        """
        digest = sha256(json.dumps([self.symmetry.fingerprint, self._settings()]).encode())
        for header, fields in parts_of(self.element):
            digest.update(json.dumps(header).encode())
            for field, named in sorted(fields.items()):
                for name, tensor in sorted(named.items()):
                    digest.update(f"{field} {name} {tensor.dtype} {[*tensor.shape]}".encode())
                    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                    digest.update(plain.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def inverse(self) -> GroupElement:
        """g⁻¹, which decodes."""
        return ~self.element

    @cached_property
    def learning_rates(self) -> Rates | None:
        """What the trainer has to be told where the key scales; None where it does not.

        **The rates are the scales**: against the trainer the scales of such a key hide nothing.
        """
        return rates_of(self.acting, self.element, self.updates) if self.scalings else None

    # -- files -------------------------------------------------------------------------------------
    def _settings(self) -> dict[str, Any]:
        return {
            "updates": [each.name for each in self.updates],
            "decays": [each.decays for each in self.updates],
            "loss": self.loss.name if self.loss else None,
            "trainable": None if self.trainable is None else [*self.trainable],
            "groups": {space.name: str(space.group) for space in self.acting.spaces.values()},
            "scalings": self.scalings,
        }

    def save(self, path: str | Path) -> None:
        """Write the key for its owner alone to read (mode 600), with hashes of itself and of the
        symmetry that it belongs to; as JSON if the path ends in `.json`, or as safetensors.

        Raises:
            ValueError: it was made for an update or a loss of one's own, which no file can hold.
        """
        head = {"key": self._settings(), "fingerprint": self.fingerprint}
        parts: stored.Parts = [(head, {}), *parts_of(self.element)]
        stored.write(path, "Key", self.symmetry, parts, _read)

    @staticmethod
    def load(path: str | Path, symmetry: ParameterSymmetry) -> Key:
        """Read what `save` wrote.

        Args:
            path: the file.
            symmetry: of the model, found as that of the key was.

        Raises:
            ValueError: the file is none, is the key of another model (both fingerprints are named),
                or was altered.
        """
        return stored.read(path, "Key", symmetry, _read)


def _read(symmetry: Any, parts: stored.Parts) -> Key:
    """The key that was stored; `ValueError` if it is not the one that was."""
    (head, _), *word = parts
    said = head["key"]
    updates = [
        replace(update, decays=bool(decays))
        for update, decays in zip(updates_of(said["updates"]), said["decays"], strict=True)
    ]
    key = _plan(symmetry, updates, said["loss"], said["trainable"], said["scalings"], True)
    groups = {name: parse_group(text) for name, text in said["groups"].items()}
    held = {s.name: Trivial(s.size) for s in key.acting.spaces.values() if s.name not in groups}
    acting = key.acting.restrict(groups={**held, **groups})
    key = replace(key, acting=acting, element=word_of(acting, word))
    if key.fingerprint != head["fingerprint"]:
        raise ValueError(
            f"the key that it holds has the fingerprint {key.fingerprint[:12]}…, and it says "
            f"{head['fingerprint'][:12]}…: it was altered after it was saved"
        )
    return key


def _plan(
    symmetry: ParameterSymmetry,
    optimizer: Optimizers,
    loss: Losses,
    trainable: Collection[str] | None,
    scalings: bool,
    inexact: bool,
) -> Key:
    """A key that moves nothing yet, with the subgroup that it may come from."""
    updates, known = updates_of(optimizer), loss_of(loss)
    if updates:
        require_exact(updates, inexact)
        require_repeatable(symmetry)
        if scalings:
            require_rates(updates)
    names = None if trainable is None else tuple(sorted(trainable))
    acting = commuting_subgroup(symmetry, updates, trainable=names, scalings=scalings)
    if updates:
        acting = _compared(acting, known)
    return Key(symmetry, acting, acting.identity(), updates, known, names, scalings)


def _compared(symmetry: ParameterSymmetry, loss: Loss | None) -> ParameterSymmetry:
    """The restriction to what the loss does not see of the outputs; none if there is no loss."""
    carried = {s for feature in symmetry.outputs.values() for s in feature.spaces}
    if loss is None:
        held = [name for name in (*symmetry.spaces, *(s.name for s in symmetry.shifts))
                if name not in carried]  # fmt: skip
        return symmetry.restrict(spaces=held) if carried else symmetry
    return symmetry.restrict(groups={s: loss.group(symmetry.sizes[s]) for s in carried})
