"""Which axes are permuted together: git re-basin's form, and classes for networks on weights."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paramsym.algebra import Permutation
from paramsym.algebra.monomial import AbstractMonomial
from paramsym.structure.axes import AxisType, Carried, Fixed, carried, spaces_of
from paramsym.structure.space import Space
from paramsym.structure.symmetry import ParameterSymmetry

Labels = tuple[str | None, ...]


@dataclass(frozen=True)
class PermutationSpec:
    """For each axis of each tensor the permutation that it takes, or None.

    Attributes:
        axes: by the name of a tensor a label for each of its axes: `axes_to_perm` of git re-basin.
        left_out: spaces whose units may trade places, and which this form cannot say, each with
            the first axis that is more than their units one by one.
    """

    axes: Mapping[str, Labels]
    left_out: Mapping[str, str]

    @property
    def places(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """For each permutation the axes that take it: `perm_to_axes` of git re-basin."""
        found: dict[str, list[tuple[str, int]]] = {}
        for name, labels in self.axes.items():
            for k, label in enumerate(labels):
                if label is not None:
                    found.setdefault(label, []).append((name, k))
        return {label: tuple(places) for label, places in found.items()}


def permutation_spec(symmetry: ParameterSymmetry) -> PermutationSpec:
    """The orders of units in the form of git re-basin: one label for each axis.

    An axis that is more than the units of one space (heads beside their coordinates, a fused
    projection) has no such label; spaces that occur in one are left out everywhere, so that what is
    said stays a symmetry.

    Args:
        symmetry: of a model, as from `find_symmetry`.

    Returns:
        labels by the names of spaces, tensors without axes with an empty tuple.

    Source:
        S. K. Ainsworth, J. Hayase, S. Srinivasa, "Git Re-Basin" (2023), appendix A.4.
    """
    permuting = {
        name for name, space in symmetry.spaces.items()
        if isinstance(space.group, AbstractMonomial) and space.group.permutes and not space.over
    }  # fmt: skip
    left_out: dict[str, str] = {}
    for name, axes in symmetry.signature.items():
        for k, axis in enumerate(axes):
            for space in permuting & set(spaces_of(axis)):
                if not isinstance(axis, Carried) or len(permuting & set(spaces_of(axis))) > 1:
                    left_out.setdefault(space, f"axis {k} of {name!r} is {axis}")
    said = permuting - left_out.keys()

    def label(axis: AxisType) -> str | None:
        return next((space for space in spaces_of(axis) if space in said), None)

    made = {name: tuple(map(label, axes)) for name, axes in symmetry.signature.items()}
    order = [name for name in symmetry.spaces if name in left_out]
    return PermutationSpec(made, {name: left_out[name] for name in order})


def symmetry_of_spec(
    axes: Mapping[str, Sequence[str | None]], shapes: Mapping[str, Sequence[int]]
) -> ParameterSymmetry:
    """The symmetry that a specification of git re-basin claims; it is not proved.

    `verify(model, symmetry, inputs)` proves or refutes it beside a wrong move.

    Args:
        axes: `axes_to_perm`: for each tensor the permutation of each axis, or None.
        shapes: of the same tensors.

    Raises:
        ValueError: a tensor that has no shape, another number of axes, or a permutation that is
            claimed for axes of two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    signature: dict[str, tuple[AxisType, ...]] = {}
    for name, labels in axes.items():
        if name not in shapes:
            raise ValueError(
                f"symmetry_of_spec(axes, shapes): shapes has no {name!r}; the shape of every "
                f"tensor of the specification was expected, and it has {len(shapes)} others. Pass "
                "{n: t.shape for n, t in model.state_dict().items()}, and see how names are spelt."
            )
        shape = tuple(shapes[name])
        if len(labels) != len(shape):
            raise ValueError(
                f"symmetry_of_spec(axes, shapes): {name!r} has {len(labels)} labels; one for each "
                f"axis of its shape {shape} was expected. Write None for an axis that stays."
            )
        for k, (label, size) in enumerate(zip(labels, shape, strict=True)):
            if label is None:
                continue
            known, where = sizes.setdefault(label, (size, f"axis {k} of {name!r}"))
            if known != size:
                raise ValueError(
                    f"symmetry_of_spec(axes, shapes): {label!r} permutes {known} entries at "
                    f"{where} and {size} at axis {k} of {name!r}; one size was expected. One of "
                    "the two has another permutation: look where the tensors meet in the model."
                )
        signature[name] = tuple(
            Fixed(size) if label is None else carried(label)
            for label, size in zip(labels, shape, strict=True)
        )
    spaces = {label: Space(label, Permutation(size)) for label, (size, _) in sizes.items()}
    return ParameterSymmetry(spaces, signature)


def parameter_classes(
    spec: PermutationSpec, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """For every parameter the class of those that permutations carry it to.

    Two entries of a tensor are in one class where their indices agree along axes that stay, and
    are equal to each other along axes of one permutation alike: what a layer on weights that
    commutes with permutations may treat apart. Tensors do not share classes.

    Args:
        spec: which axes are permuted together.
        shapes: of its tensors.

    Returns:
        by name, in the shape of the tensor, the number of the class, counted from 0 over all.

    Source:
        A. Zhou et al., "Permutation Equivariant Neural Functionals" (2023), section 3, for the
        sharing of parameters that the classes are made for.
    """
    found: dict[str, Tensor] = {}
    count = 0
    for name, labels in spec.axes.items():
        shape = tuple(shapes[name])
        classes = torch.zeros(shape, dtype=torch.int64)
        for k, size in enumerate(shape):
            if labels[k] is None:
                along = torch.arange(size).reshape(-1, *[1] * (len(shape) - 1 - k))
                classes = classes * size + along
        for i, k in itertools.combinations(range(len(shape)), 2):
            if labels[i] is not None and labels[i] == labels[k]:
                one = torch.arange(shape[i]).reshape(-1, *[1] * (len(shape) - 1 - i))
                other = torch.arange(shape[k]).reshape(-1, *[1] * (len(shape) - 1 - k))
                classes = classes * 2 + (one == other)
        _, numbers = torch.unique(classes, return_inverse=True)
        found[name] = numbers + count
        count += int(numbers.max()) + 1 if numbers.numel() else 0
    return found
