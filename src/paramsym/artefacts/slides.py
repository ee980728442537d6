"""Slides of an element that an artefact cannot follow, found by what they read and write.

A slide adds to tensors what it reads off others, w += Σ δ · factors(θ). Where a factor is a weight
that an adapter changes, the whole network slides by factors(θ + Δ) and the model alone by
factors(θ): the difference would have to go to a tensor that the adapter does not hold. So do the
frames of gains that an artefact replaces.

What meets activations must know how these move. A slide that is silent about a space neither
changes a tensor that carries it nor reads one, for every path to its activations leads through
such a tensor: those slides alone are followed.
"""

from __future__ import annotations

from paramsym.artefacts.artefact import Artefact
from paramsym.artefacts.refusals import listed, refused
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.needs import moved_by, reads
from paramsym.structure.shift import Shift
from paramsym.structure.symmetry import ParameterSymmetry

_WAY_OUT = "Move the model without it: symmetry.sample(generator, only=[…]) names spaces alone"


def require_followed(
    symmetry: ParameterSymmetry, element: GroupElement, artefact: Artefact
) -> None:
    """Raise where a part of an element moves the model in a way that an artefact cannot follow.

    Raises:
        CheckpointError: with the space or shift, and the tensor that stands in the way.
    """
    tied, ties = {*symmetry.ties.values()}, symmetry.ties
    altered = {ties.get(name, name) for name in artefact.altered}
    paired = {ties.get(pair.weight, pair.weight) for pair in artefact.pairs}
    whole = {*artefact.replaces.values()} - paired - tied
    scaled = {ties.get(pair.weight, pair.weight) for pair in artefact.pairs if pair.magnitude}
    for name in sorted(scaled & symmetry.offsets.keys()):
        raise refused(
            repr(name), "the model adds a constant to it, and the artefact scales its rows",
            "rows that are scaled as they are", "Merge the adapter, and move the whole",
        )  # fmt: skip
    for part in element.parts:
        shift = symmetry.shift_of.get(part.shift) if isinstance(part, Slide) else None
        if shift is not None:
            _require_untied(shift, altered & tied)
            _require_unscaled(shift, scaled)
            _require_silent(symmetry, shift, artefact)
        if not altered:
            continue
        for name in moved_by(symmetry, part):
            read = [n for n in reads(symmetry, part, name) if n in altered]
            if read and name not in whole:
                raise _unfollowed(part, shift, name, read[0])


def _unfollowed(part: object, shift: Shift | None, name: str, read: str) -> Exception:
    if shift is not None:
        return refused(
            f"element with {shift.name!r}", f"it moves {name!r} by what {read!r} says, which the "
            "artefact changes, so that with it another motion is needed",
            "an element whose shifts read no tensor that the artefact changes", _WAY_OUT,
        )  # fmt: skip
    return refused(
        f"element moving {name!r}", f"it acts in the frame of the gain {read!r}, which the "
        "artefact replaces", "the gains of the model, by which it was moved",
        "Fold the new gain into its readers, or move the model without that space: "
        "symmetry.sample(generator, only=[…])",
    )  # fmt: skip


def _require_untied(shift: Shift, altered: set[str]) -> None:
    """A table that is tied in the model is no longer, where an adapter changes one of its uses."""
    touched = {
        *shift.parameters,
        *(n for name in shift.parameters for n in shift.reads(name, True)),
    }
    for name in sorted(touched & altered):
        raise refused(
            f"element with {shift.name!r}", f"{name!r} is one tensor with several uses, of which "
            "the artefact changes some", "an element without shifts of tied tensors", _WAY_OUT,
        )  # fmt: skip


def _require_unscaled(shift: Shift, scaled: set[str]) -> None:
    """What is added to a weight would be scaled with its rows, and lies across them."""
    for name in sorted(scaled & {*shift.parameters}):
        raise refused(
            f"element with {shift.name!r}", f"it adds to {name!r}, whose rows the artefact scales "
            "to given lengths", "an element that adds nothing to such weights", _WAY_OUT,
        )  # fmt: skip


def _require_silent(symmetry: ParameterSymmetry, shift: Shift, artefact: Artefact) -> None:
    """Raise where a slide may move the activations that an artefact meets."""
    if artefact.meeting and not artefact.spaces:
        raise refused(
            f"element with {shift.name!r}", f"the types of {listed(sorted(artefact.meeting))} name "
            "no space, so that nothing says whether the activations that they meet move with it",
            "an element without shifts, or types that carry the space of these activations",
            _WAY_OUT,
        )  # fmt: skip
    for name in shift.parameters:
        for touched in (name, *shift.reads(name, inverse=True)):
            shared = artefact.spaces & symmetry.movers.get(touched, frozenset())
            if shared:
                raise refused(
                    f"element with {shift.name!r}", f"it moves or reads {touched!r}, which carries "
                    f"{sorted(shared)[0]!r}, so that the activations which the artefact meets may "
                    "move by more than their type says",
                    "an element whose shifts leave that space alone", _WAY_OUT,
                )  # fmt: skip
