"""The polar split of an element of a whole symmetry."""

from __future__ import annotations

from paramsym.algebra import Element
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.multiplying import reindex


def polar(element: GroupElement) -> tuple[GroupElement, GroupElement]:
    """The polar factors (k, p) of an element, g = k @ p, space by space.

    k permutes, flips signs, turns and rotates; p scales and stretches by symmetric positive maps
    (`Group.polar`), and acts first. On parameters without frames k keeps all norms.

    Args:
        element: of one part, as `sample` draws it where there are no shifts, or a product of such.

    Raises:
        ValueError: the element slides along a shift, or changes of basis and scales meet on one
            axis without commuting; the factors of each space then make no product.
    """
    symmetry = element.symmetry
    compact: dict[str, Element] = {}
    positive: dict[str, Element] = {}
    for values in _only_part(element):
        for name, value in values.items():
            compact[name], positive[name] = symmetry.spaces[name].group.polar(value)
        # copies of the first factor are counted before the orders of the second
        positive = {
            name: reindex(symmetry, symmetry.spaces[name], value, compact, inverse=True)
            for name, value in positive.items()
        }
    return _moving(element, compact), _moving(element, positive)


def _moving(element: GroupElement, values: dict[str, Element]) -> GroupElement:
    """Of the values that hold anything: one without tensors is the identity of its group."""
    held = {name: value for name, value in values.items() if value.device is not None}
    return GroupElement(element.symmetry, (held,) if held else ())


def _only_part(element: GroupElement) -> list:
    """The values of an element of one part, whose spaces commute; nothing for the identity."""
    parts = [part for part in element.parts if isinstance(part, Slide) or part]
    slides = [part.shift for part in parts if isinstance(part, Slide)]
    if slides:
        raise ValueError(
            f"polar(element): the element slides along {slides[0]!r} ({len(slides)} such parts), "
            "and only values of groups have polar factors. Sample without shifts: "
            "symmetry.restrict(translations=False).sample(generator)."
        )
    clashing = [
        (basis, sorted(others & {*part})[0])
        for part in parts
        for basis, others in element.symmetry.clashes.items()
        if not isinstance(part, Slide) and basis in part and not others.isdisjoint(part)
    ]
    if len(parts) > 1 or clashing:
        pair = ", ".join(map(repr, clashing[0] if clashing else element.symmetry.clashes))
        raise ValueError(
            f"polar(element): spaces of the element do not commute ({pair}), "
            "so that the factors of each make no product. An element of spaces that commute was "
            "expected; split them one by one, with Group.polar."
        )
    return parts
