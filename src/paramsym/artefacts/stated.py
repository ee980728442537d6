"""Types that a user states: as text, as the library prints them, or by the symmetry of a module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from paramsym.artefacts.artefact import Artefact, Tensors, Types, renamed
from paramsym.artefacts.refusals import listed, refused
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Product,
    Sum,
    TypeSyntaxError,
    frames_of,
    parse_axis,
    powers_of,
    spaces_of,
)
from paramsym.structure.symmetry import ParameterSymmetry

Stated = Mapping[str, str | Sequence[AxisType]]
_BARS = re.compile(r"\s*\|(.*)\|\s*")


def typed(tensors: Tensors, types: Stated, symmetry: ParameterSymmetry) -> Artefact:
    """Tensors that meet activations of a model, with the types that are stated for them.

    Args:
        tensors: by name.
        types: for each of them the types of its axes, as text ('residual, (residual + residual)*';
            sizes for axes that stay, nothing for a number) or as values. Frames name tensors of
            the artefact where it has such, of the model otherwise. Bars around all, '|h.0.mlp|',
            say that absolute values are held, such as the ranges of activations.
        symmetry: of the model.

    Raises:
        CheckpointError: a type that cannot be read, of a space that the model does not have, or of
            another shape than the tensor; a tensor without a type, or a type without its tensor.
    """
    unknown = sorted(types.keys() - tensors.keys())
    if unknown:
        raise refused(
            f"types={{{unknown[0]!r}: …}}", "the artefact has no tensor of this name",
            f"one of {listed(sorted(tensors))}", "Correct the name",
        )  # fmt: skip
    plain, absolute = dict(types), set()
    for name, text in types.items():
        if isinstance(text, str) and (bars := _BARS.fullmatch(text)):
            plain[name] = bars[1]
            absolute.add(name)
    found = {
        name: tuple(renamed(axis, {}, tensors) for axis in _axes(name, plain[name]))
        for name in plain
    }
    for name, axes in found.items():
        _require_fit(name, axes, tensors, symmetry)
    return Artefact(tensors, found, absolute=frozenset(absolute), meeting=frozenset(found))


def require_all(tensors: Tensors, types: Mapping[str, object], symmetry: ParameterSymmetry) -> None:
    """Raise where a tensor has no type, with what its axes may be."""
    for name, tensor in tensors.items():
        if name not in types:
            axes = "; ".join(
                f"axis {k} of {n}: {', '.join([*candidates(symmetry, n), str(n)])}"
                for k, n in enumerate(tensor.shape)
            )
            raise refused(
                repr(name), f"nothing says how its axes {tuple(tensor.shape)} carry the spaces of "
                "the model", f"one type for each axis ({axes or 'a number has none'})",
                f"State it, types={{{name!r}: '…'}}: s where it is an activation, s* where it "
                "reads one, a size where it stays",
            )  # fmt: skip


def candidates(symmetry: ParameterSymmetry, size: int) -> list[str]:
    """The types of a size that some weight carries along a whole axis, outside of any frame.

    They are those that activations may have: one space, such as a stream, or an order with scalars
    over its units. Which weights read and which write, types do not say.
    """
    found = [str(axis) for axis in _whole(symmetry) if axis.size(symmetry.sizes) == size]
    return list(dict.fromkeys(found))


def streams(symmetry: ParameterSymmetry, size: int) -> list[str]:
    """The candidates that several weights carry: they add to one stream, or read one."""
    found = Counter(str(axis) for axis in _whole(symmetry) if axis.size(symmetry.sizes) == size)
    return [text for text, count in found.items() if count > 1]


def _whole(symmetry: ParameterSymmetry) -> Iterator[AxisType]:
    """The axes of weights that carry one space, or an order with scalars, to the power one."""
    for axis in (axis for axes in symmetry.signature.values() if len(axes) > 1 for axis in axes):
        parts = axis.factors if isinstance(axis, Product) else (axis,)
        large = [part for part in parts if part.size(symmetry.sizes) > 1]
        plain = all(isinstance(part, Carried) and not part.frame for part in parts)
        if plain and len(large) <= 1 and all(power == 1 for _, power in powers_of(axis)):
            yield axis


def _require_whole(name: str, axis: AxisType, symmetry: ParameterSymmetry) -> None:
    """Raise where an order is said to stand alone, and in the model has scalars beside it always.

    Such a type is easily written, and would leave out the signs of a stream.
    """
    for term in axis.terms if isinstance(axis, Sum) else (axis,):
        alone = isinstance(term, Carried) and len(term.factors) == 1 and not term.frame
        if not alone or not any(s.over == (*spaces_of(term),) for s in symmetry.spaces.values()):
            continue
        size, (space,) = term.size(symmetry.sizes), spaces_of(term)
        known = candidates(symmetry, size)
        beside = [text for text in known if text.startswith(f"({space} ")]
        if space not in known and beside:
            raise refused(
                f"types={{{name!r}: …}}", f"{space!r} is an order, which no weight carries alone",
                f"what activations carry: one of {', '.join(beside)}",
                "Write that type; readings(model, symmetry, params, inputs) gives those of each "
                "layer's activations",
            )  # fmt: skip


def _axes(name: str, stated: str | Sequence[AxisType]) -> tuple[AxisType, ...]:
    """The types of the axes of a tensor, from text or as they are."""
    if not isinstance(stated, str):
        return tuple(stated)
    try:
        return tuple(parse_axis(text) for text in _split(stated))
    except TypeSyntaxError as error:
        raise refused(
            f"types={{{name!r}: {stated!r}}}", str(error).rstrip("."), "types as print(symmetry) "
            "shows them, one for each axis, between commas", "Write 'residual, 128', say",
        ) from error  # fmt: skip


def _split(text: str) -> list[str]:
    """The parts between commas, of which frames have their own."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[(") - (sign in "])")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip() or len(parts) > 1]


def _require_fit(name: str, axes: Types, tensors: Tensors, symmetry: ParameterSymmetry) -> None:
    """Raise where a type speaks of something that is not there, or has another shape."""
    where = f"types={{{name!r}: {', '.join(map(str, axes))!r}}}"
    for axis in axes:
        strange = [s for s in spaces_of(axis) if s not in symmetry.spaces]
        if strange:
            raise refused(
                where, f"the model has no space {strange[0]!r}",
                f"one of {listed(sorted(symmetry.spaces, key=len))}",
                "Correct the name; print(symmetry) shows all of them",
            )  # fmt: skip
        known = {*symmetry.signature, *(f"artefact {n}" for n in tensors)}
        gains = [f.parameter for f in frames_of(axis) if f.parameter not in known]
        if gains:
            raise refused(
                where, f"neither the model nor the artefact has the gain {gains[0]!r}",
                "a frame that names a tensor", "Correct the name",
            )  # fmt: skip
    for axis in axes:
        _require_whole(name, axis, symmetry)
    shape, wanted = tuple(tensors[name].shape), tuple(a.size(symmetry.sizes) for a in axes)
    if shape != wanted:
        raise refused(
            where, f"the tensor has shape {shape}", f"{wanted}, which the type says",
            "Correct the type, or give the model that the artefact belongs to",
        )  # fmt: skip
