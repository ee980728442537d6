"""The rows of a report: tensors in the order of calls, spaces, and which are shown as one.

The table, the drawing and the proof fold alike: where a network has few spaces and tensors, each
stands by itself; else those of repeated layers are one row, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from paramsym.report.collapse import ENOUGH, Group, collapse, sizeless
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.text import group_text, is_free

_ROWS = 24  # tensors that are drawn as they are


def is_folded(symmetry: ParameterSymmetry) -> bool:
    """Whether rows of repeated layers are one."""
    return len(shown(symmetry)) > ENOUGH or len(_with_axes(symmetry)) > _ROWS


def shown(symmetry: ParameterSymmetry) -> list[Space]:
    """Spaces that have a freedom, or whose units tell apart copies of one that has."""
    free = [space for space in symmetry.spaces.values() if is_free(space)]
    named = {base for space in free for base in space.over}
    return [s for s in symmetry.spaces.values() if is_free(s) or s.name in named]


def folded_spaces(symmetry: ParameterSymmetry) -> list[Group[Space]]:
    """The spaces that are shown, in the order of the network."""

    def says(space: Space) -> str:
        kind = sizeless(group_text(symmetry, space))
        return f"{kind}|{space.over}|{space.exact}|{space.why}"

    return collapse(shown(symmetry), lambda s: s.name, says, _enough(symmetry))


def folded_tensors(symmetry: ParameterSymmetry, order: Iterable[str]) -> list[Group[str]]:
    """Tensors with axes, those of one module together, in the order in which these are called.

    Args:
        symmetry: whose signature names them.
        order: names of modules as they are called; those that are missing come where they stand.
    """
    modules: dict[str, list[str]] = {}  # buffers come last in the signature
    for name in _with_axes(symmetry):
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    called = [m for m in dict.fromkeys(order) if m in modules]
    places = _places([*modules], called)
    ordered = [n for m in sorted(modules, key=places.__getitem__) for n in modules[m]]

    def says(name: str) -> str:
        return sizeless(", ".join(map(str, symmetry.signature[name])))

    return collapse(ordered, str, says, _enough(symmetry))


def _places(modules: list[str], called: list[str]) -> dict[str, tuple[int, int]]:
    """Where each module stands: at its call; one that nobody calls behind the one before it."""
    places, last = {}, -1
    index = {module: k for k, module in enumerate(called)}
    for k, module in enumerate(modules):
        last = index.get(module, last)
        places[module] = last, 0 if module in index else k + 1
    return places


def _with_axes(symmetry: ParameterSymmetry) -> list[str]:
    return [name for name, axes in symmetry.signature.items() if axes]


def _enough(symmetry: ParameterSymmetry) -> int:
    return 0 if is_folded(symmetry) else len(symmetry.spaces) + len(symmetry.signature)
