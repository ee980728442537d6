"""A module that reads and writes a space of a model, typed by its own symmetry.

Its symmetry is derived with the inputs and outputs freed that carry the space: what then acts on
them acts on its parameters as they need it, f(g·x; g·a) = g·f(x; a).
"""

from __future__ import annotations

from collections.abc import Mapping

from paramsym.algebra import AbstractMonomial, Group
from paramsym.algebra.lattice import monomial
from paramsym.artefacts.artefact import Artefact, Tensors, renamed
from paramsym.artefacts.refusals import listed, refused
from paramsym.artefacts.stated import candidates
from paramsym.structure.axes import AxisType, Carried, parse_axis, spaces_of
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
        spaces: freed inputs and outputs → the space of the model that they carry, or an order with
            its scalars ('(residual signs)'); those that are left out get the only one of their
            size.

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
) -> dict[str, AxisType]:
    """The freed spaces of a module, and the types of the model that they are."""
    features = {name.partition(" ")[2]: f for name, f in module.features.items()}
    if strange := sorted(spaces.keys() - features.keys()):
        raise refused(
            f"spaces={{{strange[0]!r}: …}}", "the module does not free such an input or output",
            f"one of {listed(sorted(features))}", "Free it: find_symmetry(module, inputs, "
            "free_inputs=…, free_outputs=…)",
        )  # fmt: skip
    names: dict[str, AxisType] = {}
    for side, feature in module.features.items():
        name, found = side.partition(" ")[2], feature.type
        if not isinstance(found, Carried) or len(found.factors) != 1 or found.frame:
            raise refused(
                f"types=<symmetry with {side!r}>", f"its feature axis carries {found}",
                "one space as it is", "State the types of the tensors, or restrict(spaces=…) the "
                "symmetry of the module",
            )  # fmt: skip
        ((mine, power),), size = found.factors, found.size(module.sizes)
        theirs = parse_axis(spaces.get(name) or _only(side, size, symmetry))
        if power != 1 or names.setdefault(mine, theirs) != theirs:
            raise refused(
                f"types=<symmetry with {side!r}>", f"it carries {found}, which is "
                f"'{names.get(mine, theirs)}' elsewhere", f"'{theirs}' of the model as it is",
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
    """The one type of the model of a size."""
    found = candidates(symmetry, size)
    if len(found) != 1:
        raise refused(
            f"types=<symmetry with {side!r}>", f"it has {size} coordinates, as have "
            f"{', '.join(found) or 'none of the spaces'} of the model", "one space of that size",
            f"Say which: spaces={{{side.partition(' ')[2]!r}: …}}",
        )  # fmt: skip
    return found[0]


def _require_group(
    mine: str, theirs: AxisType, module: ParameterSymmetry, symmetry: ParameterSymmetry
) -> None:
    """Raise where the model moves a space by more than a module allows."""
    where, names = f"spaces={{…: '{theirs}'}}", [*spaces_of(theirs)]
    if str(theirs) not in candidates(symmetry, module.sizes[mine]):
        raise refused(
            where, "no weight of the model carries this along an axis of that size",
            f"one of {', '.join(candidates(symmetry, module.sizes[mine])) or 'none'}",
            "Give one of these, or state the types of the tensors",
        )  # fmt: skip
    small, large = _group(symmetry, names), module.spaces[mine]
    inside = small is not None and (small == large.group or small <= large.group)
    if large.over or not inside:
        raise refused(
            where, f"the model moves it by {small or ', '.join(names)}",
            f"a subgroup of {large.group}, by which the module can follow ({large.why or mine})",
            f"Move the model by less: symmetry.restrict(groups={{{names[0]!r}: …}}).sample(…)",
        )  # fmt: skip


def _group(symmetry: ParameterSymmetry, names: list[str]) -> Group | None:
    """The group of a space, or of an order together with the scalars over its units."""
    first, *scalars = (symmetry.spaces[name] for name in names)
    if first.over or any(s.over != (first.name,) or s.size != 1 for s in scalars):
        return None
    groups = [s.group for s in (first, *scalars) if isinstance(s.group, AbstractMonomial)]
    if not scalars:
        return first.group
    if len(groups) != len(names):
        return None
    return monomial(
        first.size, any(g.permutes for g in groups), any(g.signs for g in groups),
        any(g.scales for g in groups),
    )  # fmt: skip
