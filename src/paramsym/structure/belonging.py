"""Whether an element may act: on the spaces and shifts at hand, and on tensors of that kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from paramsym.algebra import Element, Group, Wreath
from paramsym.algebra.complex_scaling import AbstractComplexScaling
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import GroupElement, Slide, Values
from paramsym.structure.shift import Params, Shift
from paramsym.structure.space import Space

# The symmetry that an element was last found to be at home in: asked anew for every tensor.
_KNOWN: WeakKeyDictionary[GroupElement, SymmetryData] = WeakKeyDictionary()


def require_own(symmetry: SymmetryData, element: GroupElement) -> None:
    """Raise a `ValueError` if an element says more than the groups of a symmetry allow.

    It may belong to a smaller symmetry, or to the dual one: what counts is what it moves.
    """
    own = element.symmetry
    if own is symmetry or _KNOWN.get(element) is symmetry:
        return
    shifts = symmetry.shift_of
    for part in element.parts:
        if isinstance(part, Slide):
            if not _is_alike(own.shift_of.get(part.shift), shifts.get(part.shift)):
                raise _stranger(f"it slides along {part.shift!r}", "shifts", [*shifts])
            continue
        for name in part:
            theirs, ours = own.spaces.get(name), symmetry.spaces.get(name)
            if theirs is None or ours is None or not _is_within(theirs, ours):
                said = "it moves " + (repr(name) if theirs is None else _text(theirs))
                raise _stranger(said, "spaces", [*map(_text, symmetry.spaces.values())])
    _KNOWN[element] = symmetry


def _is_within(space: Space, larger: Space) -> bool:
    alike = (space.size, space.over) == (larger.size, larger.over)
    return alike and (space.group == larger.group or space.group <= larger.group)


def _is_alike(shift: Shift | None, other: Shift | None) -> bool:
    """Whether two shifts move alike, whatever space they are said to describe."""
    if shift is None or other is None:
        return False
    return replace(shift, space="", kind="") == replace(other, space="", kind="")


def _text(space: Space) -> str:
    return f"{space.name!r} by {space.group}" + (f" over {space.over}" if space.over else "")


def _stranger(said: str, kind: str, known: list[str]) -> ValueError:
    return ValueError(
        f"act(symmetry, element, …): the element belongs to another symmetry: {said}, which is not "
        f"among the {kind} of this one. Expected at most: {'; '.join(known[:8]) or 'none'}. Sample "
        "or write the element with the symmetry that you act with."
    )


# -- tensors ---------------------------------------------------------------------------------------

_NUMBERS = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip


def require_shape(symmetry: SymmetryData, name: str, tensor: torch.Tensor) -> None:
    """Raise a `ValueError` if a tensor has another shape than its type says."""
    if name not in symmetry.signature:
        return
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"act(symmetry, g, params): {name!r} is a {type(tensor).__name__}, and a tensor was "
            "expected. Pass torch.as_tensor(…) of it, or the state_dict() of a model."
        )
    wanted, shape = symmetry.shape(name), tuple(tensor.shape)
    if wanted != shape:
        raise ValueError(
            f"act(symmetry, g, params): {name!r} has shape {shape}, but its type "
            f"({_type(symmetry, name)}) needs {wanted}. Was the symmetry inferred from another "
            f"model?{_slice_of(shape, wanted)}"
        )


def _slice_of(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What to say of what may be one rank's part of a tensor: a slice would be moved wrongly."""
    if len(shape) != len(wanted) or not all(a <= b for a, b in zip(shape, wanted, strict=True)):
        return ""
    return (
        f" Or is it a slice, as of DTensor.to_local(), of a tensor whose whole shape is {wanted}? "
        "A slice cannot be moved by itself: pass the DTensor."
    )


def require_values(
    symmetry: SymmetryData,
    spaces: Mapping[str, Space],
    values: Values,
    names: Iterable[str],
    params: Params,
) -> None:
    """Raise a `ValueError` if the numbers of some tensors cannot carry the values that move them.

    Orders move anything that torch can index; scales and matrices need numbers that are rounded,
    and complex ones complex numbers, except on pairs of real coordinates.
    """
    turning = {s for s, value in values.items() if _is_complex(value, spaces[s].group)}
    gains = {n for n, x in params.items() if isinstance(x, torch.Tensor) and x.is_complex()}
    for name in names:
        x = params[name]
        if not (x.is_complex() or (x.dtype in _NUMBERS and not turning and not gains)):
            _require_carried(symmetry, spaces, values, name, x, turning, gains)


def _require_carried(
    symmetry: SymmetryData,
    spaces: Mapping[str, Space],
    values: Values,
    name: str,
    x: torch.Tensor,
    turning: set[str],
    gains: set[str],
) -> None:
    """`require_values` of a tensor of real numbers, or of none; `turning` are the spaces whose
    values are complex, and `gains` the complex parameters."""
    added = bool(symmetry.offsets.get(name))
    for leg in (leg for block in symmetry.blocks[name] for leg in block.legs):
        value = values.get(leg.space)
        if value is None:  # of a smaller symmetry, which need not have the space either
            continue
        frame = {f.parameter for f in leg.frame}
        if leg.space in turning or frame & gains:
            raise _unfit(symmetry, name, x, f"complex factors of {leg.space!r}", "complex")
        if x.dtype not in _NUMBERS:
            only_order = _is_order(value, scaled=leg.power != 0)
            if frame or added or x.is_quantized or not only_order:
                group = spaces[leg.space].group
                raise _unfit(symmetry, name, x, f"{leg.space!r} by {group}", "")


def require_slides(shift: Shift, delta: torch.Tensor, name: str, params: Params) -> None:
    """Raise a `ValueError` if the numbers of a tensor cannot carry a shift."""
    x = params[name]
    read = [delta, *(params[n] for n in shift.reads(name))]
    if x.dtype not in _NUMBERS:
        raise _unfit(None, name, x, f"the shift {shift.name!r}", "")
    if not x.is_complex() and any(tensor.is_complex() for tensor in read):
        raise _unfit(None, name, x, f"the complex shift {shift.name!r}", "complex")


def _is_order(value: Element, scaled: bool) -> bool:
    """Whether an element, all copies of a wreath product included, is an order alone."""
    if value.matrix is not None or (scaled and value.diagonal is not None):
        return False
    return value.base is None or _is_order(value.base, scaled)


def _is_complex(value: Element, group: Group) -> bool:
    """Whether complex numbers occur other than as factors of pairs of real coordinates."""
    if value.base is not None and isinstance(group, Wreath):
        return _is_complex(value.base, group.base)
    if value.matrix is not None and value.matrix.is_complex():
        return True
    turned = value.diagonal is not None and value.diagonal.is_complex()
    return turned and not isinstance(group, AbstractComplexScaling)


def _unfit(
    symmetry: SymmetryData | None, name: str, x: torch.Tensor, moving: str, kind: str
) -> ValueError:
    own = f" (of the type {_type(symmetry, name)})" if symmetry is not None else ""
    wanted = "complex64 or complex128" if kind else "float16, bfloat16, float32 or float64"
    rest = "" if kind else "; integers and booleans can be permuted, and nothing else"
    return ValueError(
        f"act(symmetry, element, params): {name!r}{own} has dtype {x.dtype}, which cannot carry "
        f"what the element does to it: {moving}. Expected {wanted}{rest}. Convert the tensor "
        f"first (params[{name!r}].to(…), or .dequantize()), or leave that out of the element "
        "(sample with only=…)."
    )


def _type(symmetry: SymmetryData, name: str) -> str:
    return ", ".join(map(str, symmetry.signature[name]))
