"""The action on the state of an optimiser: what training needs to go on from moved parameters.

The gradient moves by the dual of what moves the parameters, hence so do averages of gradients.
Averages of squares move by the entrywise square of that, which is a linear map of squares only for
monomial elements: under x ↦ R x the squares of a rotated gradient depend on its products, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from paramsym.algebra import AbstractMonomial
from paramsym.arguments import checked
from paramsym.structure.action import act, act_dual
from paramsym.structure.axes import AxisType, Carried, parts_of, spaces_of, with_parts
from paramsym.structure.element import GroupElement, Part, Slide
from paramsym.structure.shift import Params
from paramsym.structure.symmetry import ParameterSymmetry

FIRST = ("exp_avg", "momentum_buffer")
SECOND = ("exp_avg_sq", "max_exp_avg_sq")
_PLAIN = ("step",)
State = Mapping[str, Mapping[str, Any]]


@checked
def act_state(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    optimizer_state: State,
    params: Params | None = None,
) -> dict[str, dict[str, Any]]:
    """The state of an optimiser at the moved parameters, from that at the original ones.

    First moments m (`exp_avg` of Adam, `momentum_buffer` of SGD) are averages of gradients and move
    as these do, by the dual action; second moments v (`exp_avg_sq`) by its entrywise square,

        m ↦ D⁻¹ P m,    v ↦ D⁻² P v    for θ ↦ D P θ.

    They are what the optimiser would hold, had it seen the same gradients in the new coordinates.
    Its next step is another one, for the update of Adam and SGD is not equivariant under scales.

    Args:
        symmetry: what `find_symmetry` derived.
        element: what moves the parameters; monomial if there are second moments.
        optimizer_state: by parameter name, what `optimizer.state` holds for it. `step` is kept.
        params: the complete state dict before the move; needed where gradients mix with the
            weights: the element slides along a shift by what other parameters say, or acts in the
            frame of a gain.

    Raises:
        ValueError: an entry that is no moment of these names, second moments under an element that
            is not monomial, or `params` are needed and missing.
    """
    moved = {name: dict(entries) for name, entries in optimizer_state.items()}
    element = _without_translations(symmetry, element)
    for key in _moments(symmetry, optimizer_state):
        found = {n: entries[key] for n, entries in moved.items() if entries.get(key) is not None}
        if key in SECOND:
            result = _squares(symmetry, element, found, key)
        else:
            result = _averages(symmetry, element, found, params)
        for name in found:
            moved[name][key] = result[name]
    return moved


def _moments(symmetry: ParameterSymmetry, state: State) -> list[str]:
    """The moments that occur, after a look at every entry."""
    found: dict[str, None] = {}
    for name, entries in state.items():
        if name not in symmetry.signature:
            own = symmetry.ties.get(name)
            hint = (
                f"It is tied to {own!r}; use that name." if own else "Key it by named_parameters."
            )
            raise ValueError(
                f"act_state(optimizer_state={{{name!r}: …}}): the name is none of the "
                f"{len(symmetry.signature)} in the signature, among which are "
                f"{sorted(symmetry.signature)[:3]}. Parameter names were expected. {hint}"
            )
        for key, value in entries.items():
            if key in (*FIRST, *SECOND):
                found |= {} if value is None else {key: None}  # SGD holds None without momentum
            elif key not in _PLAIN:
                raise ValueError(
                    f"act_state(optimizer_state={{{name!r}: {{{key!r}: …}}}}): "
                    f"{type(value).__name__} came under a name whose action is not known; "
                    f"{', '.join((*FIRST, *SECOND, *_PLAIN))} were expected (SGD, Adam, AdamW, "
                    "NAdam without its extras). Leave the entry out, and let the optimiser start "
                    "it anew."
                )
    return list(found)


def _restricted(
    symmetry: ParameterSymmetry, names: Iterable[str], typed: Callable[[AxisType], AxisType]
) -> ParameterSymmetry:
    """The signature of some tensors alone, with other types."""
    signature = {n: tuple(typed(axis) for axis in symmetry.signature[n]) for n in names}
    return replace(symmetry, signature=signature, shifts=(), offsets={}, ties={})


def _averages(
    symmetry: ParameterSymmetry, element: GroupElement, found: Params, params: Params | None
) -> Params:
    """Averages of gradients, by the dual."""
    why = _mixing(symmetry, element)
    if not why:
        dual = _restricted(symmetry, found, lambda axis: axis.T)
        return act(dual, element, found)
    if params is None:
        raise ValueError(
            f"act_state(symmetry, element, optimizer_state): the element {why}, so that gradients "
            "mix with the weights, and params=None came. The parameters before the move were "
            "expected; pass params=model.state_dict()."
        )
    return act_dual(symmetry, element, params, found)


def _without_translations(symmetry: ParameterSymmetry, element: GroupElement) -> GroupElement:
    """What is left of an element for gradients: translations by constants have the derivative 1."""

    def moves(part: Part) -> bool:
        shift = symmetry.shift_of.get(part.shift) if isinstance(part, Slide) else None
        return shift is None or not shift.is_constant

    kept = tuple(filter(moves, element.parts))
    return element if len(kept) == len(element.parts) else GroupElement(element.symmetry, kept)


def _framed(symmetry: ParameterSymmetry) -> set[str]:
    """The spaces that act in the frame of a gain somewhere."""
    axes = [axis for axes in symmetry.signature.values() for axis in axes]
    return {item.factors[0][0] for axis in axes for item in parts_of(axis) if item.frame}


def _mixing(symmetry: ParameterSymmetry, element: GroupElement) -> str:
    """Why the dual action reads the parameters; empty if it does not."""
    framed = _framed(symmetry)
    for part in element.parts:
        if isinstance(part, Slide):
            return f"slides along the shift {part.shift!r}"
        if found := framed & {*part}:
            return f"moves {sorted(found)[0]!r} in the frame of a gain"
    return ""


def _squares(symmetry: ParameterSymmetry, element: GroupElement, found: Params, key: str) -> Params:
    """Averages of squares of gradients, by the entrywise square of the dual."""
    monomial = {s.name for s in symmetry.spaces.values() if isinstance(s.group, AbstractMonomial)}
    carried = {s for n in found for axis in symmetry.signature[n] for s in spaces_of(axis)}
    framed = _framed(symmetry)
    for part in element.parts:
        if isinstance(part, Slide):
            _refuse(key, f"along the shift {part.shift!r}", "mixes gradients of several parameters")
        elif gains := sorted(framed & {*part}):
            _refuse(key, f"{gains[0]!r} in the frame of a gain", "mixes its gradient with others")
        elif mixing := sorted({*part} & carried - monomial):
            group = symmetry.spaces[mixing[0]].group
            _refuse(key, f"{mixing[0]!r} by {group}", "mixes entries, whose squares do not add up")

    def square(part: Carried) -> Carried:  # what mixes entries stands still
        return Carried(tuple((s, -2 * p if s in monomial else p) for s, p in part.factors))

    squared = _restricted(symmetry, found, lambda axis: with_parts(axis, square))
    return act(squared, element, found)


def _refuse(key: str, what: str, why: str) -> NoReturn:
    raise ValueError(
        f"act_state(symmetry, element, optimizer_state): the element moves {what}, which {why}, so "
        f"that {key!r} at the new parameters does not follow from it. A monomial element was "
        "expected (orders, signs, scales): sample(generator, only=[…]) with spaces of such groups, "
        f"or leave {key!r} out and let the optimiser start it anew."
    )
