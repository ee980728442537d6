"""A module that reads and writes a space of a model, typed by its own symmetry.

Its symmetry is derived with the inputs and outputs freed that carry the space: what then acts on
them acts on its parameters as they need it, f(g·x; g·a) = g·f(x; a).
"""

from __future__ import annotations

from collections.abc import Mapping

from paramsym.artefacts.artefact import Artefact, Tensors, renamed
from paramsym.artefacts.refusals import listed, refused
from paramsym.artefacts.typing import candidates
from paramsym.structure.axes import Carried
from paramsym.structure.restriction import restrict
from paramsym.structure.symmetry import ParameterSymmetry


def head(
    tensors: Tensors,
    module: ParameterSymmetry,
    symmetry: ParameterSymmetry,
    spaces: Mapping[str, str],
) -> Artefact:
    """The tensors of a module, typed by its symmetry with the freed spaces named as in the model.

    Args:
        tensors: the state dict of the module.
        module: its symmetry, from `find_symmetry(module, inputs, free_inputs=…, free_outputs=…)`.
        symmetry: of the model.
        spaces: freed inputs and outputs → the space of the model that they carry; those that are
            left out get the only space of their size, where it is the only one.

    Raises:
        CheckpointError: nothing is freed, or what is freed does not carry one space as it is; two
            spaces of the model meet in one; the group of the model's space is no subgroup of what
            the module allows; a tensor that the symmetry of the module does not know.
    """
    names = _identified(module, symmetry, spaces)
    for mine, theirs in names.items():
        _require_group(mine, theirs, module, symmetry)
    small = restrict(module, spaces=[*names], translations=False)
    known = {**{n: n for n in small.signature}, **small.ties}
    if strange := sorted(tensors.keys() - known.keys()):
        raise refused(
            repr(strange[0]), "the symmetry of the module has no such tensor",
            f"one of {listed(sorted(known))}", "Pass module.state_dict() of the module that the "
            "symmetry was derived from",
        )  # fmt: skip
    types = {
        n: tuple(renamed(axis, names, tensors) for axis in small.signature[known[n]])
        for n in tensors
    }
    for name in tensors:
        wanted = small.shape(known[name])
        if tuple(tensors[name].shape) != wanted:
            raise refused(
                repr(name), f"it has shape {tuple(tensors[name].shape)}", f"{wanted}, as in the "
                "module whose symmetry was given", "Pass the state_dict() of that module",
            )  # fmt: skip
    offsets = {n: small.offsets[known[n]] for n in tensors if known[n] in small.offsets}
    return Artefact(tensors, types, offsets, meeting=frozenset(types))


def _identified(
    module: ParameterSymmetry, symmetry: ParameterSymmetry, spaces: Mapping[str, str]
) -> dict[str, str]:
    """The freed spaces of a module, and those of the model that they are."""
    features = {name.partition(" ")[2]: f for name, f in module.features.items()}
    if strange := sorted(spaces.keys() - features.keys()):
        raise refused(
            f"spaces={{{strange[0]!r}: …}}", "the module does not free such an input or output",
            f"one of {listed(sorted(features))}", "Free it: find_symmetry(module, inputs, "
            "free_inputs=…, free_outputs=…)",
        )  # fmt: skip
    names: dict[str, str] = {}
    for side, feature in module.features.items():
        name = side.partition(" ")[2]
        found = feature.type
        if not isinstance(found, Carried) or len(found.factors) != 1 or found.frame:
            raise refused(
                f"types=<symmetry with {side!r}>", f"its feature axis carries {found}",
                "one space as it is", "State the types of the tensors, or restrict(spaces=…) the "
                "symmetry of the module",
            )  # fmt: skip
        ((mine, power),), size = found.factors, found.size(module.sizes)
        theirs = spaces.get(name) or _only(side, size, symmetry)
        if power != 1 or names.setdefault(mine, theirs) != theirs:
            raise refused(
                f"types=<symmetry with {side!r}>", f"it carries {found}, which is "
                f"{names.get(mine, theirs)!r} elsewhere", f"{theirs!r} of the model as it is",
                "Give one space to all inputs and outputs that share one: spaces={name: space}",
            )  # fmt: skip
    if not names:
        raise refused(
            "types=<symmetry>", "nothing that it reads or writes is freed",
            "a symmetry with freed inputs and outputs", "Derive it with free_inputs=…, "
            "free_outputs=… of find_symmetry",
        )  # fmt: skip
    return names


def _only(side: str, size: int, symmetry: ParameterSymmetry) -> str:
    """The one space of the model of a size."""
    found = candidates(symmetry, size)
    if len(found) != 1:
        raise refused(
            f"types=<symmetry with {side!r}>", f"it has {size} coordinates, as have "
            f"{', '.join(found) or 'none of the spaces'} of the model", "one space of that size",
            f"Say which: spaces={{{side.partition(' ')[2]!r}: …}}",
        )  # fmt: skip
    return found[0]


def _require_group(
    mine: str, theirs: str, module: ParameterSymmetry, symmetry: ParameterSymmetry
) -> None:
    """Raise where the model moves a space by more than a module allows."""
    if theirs not in symmetry.spaces:
        raise refused(
            f"spaces={{…: {theirs!r}}}", "the model has no such space",
            f"one of {listed(sorted(symmetry.spaces))}", "Correct the name",
        )  # fmt: skip
    small, large = symmetry.spaces[theirs], module.spaces[mine]
    same = small.size == large.size and not small.over and not large.over
    if not same or not (small.group == large.group or small.group <= large.group):
        raise refused(
            f"spaces={{…: {theirs!r}}}", f"the model moves it by {small.group}"
            + (f" over {small.over}" if small.over else ""),
            f"a subgroup of {large.group}, by which the module can follow ({large.why or mine})",
            f"Move the model by less: symmetry.restrict(groups={{{theirs!r}: …}}).sample(…)",
        )  # fmt: skip
