"""Tensors that stand beside a model, each typed by the spaces of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from paramsym.structure.axes import AxisType, Carried, Frame, Product, spaces_of, with_inside
from paramsym.structure.origin import Origin
from paramsym.structure.symmetry import ParameterSymmetry

Tensors = Mapping[str, torch.Tensor]
Types = tuple[AxisType, ...]


@dataclass(frozen=True)
class Pair:
    """A low-rank change of one weight, W + scaling · B A, by the names of its tensors.

    `weight` is the tensor of the model, by the name of that use where it has several; `transposed`
    says that it is used as its transpose, inputs first, as tables and the Conv1D of GPT-2 are.
    `magnitude` names the lengths of rows that replace those of the sum (DoRA), and `bias` what is
    added to the outputs with the scaling.
    """

    weight: str
    A: str
    B: str
    transposed: bool = False
    scaling: float | None = None
    magnitude: str = ""
    bias: str = ""


@dataclass(frozen=True)
class Artefact:
    """Tensors beside a model, with one axis type per axis in the spaces of the model.

    Args:
        tensors: by name.
        types: of the tensors that move by a type; frames name tensors of the model, or of the
            artefact by `own`.
        offsets: constants that are added to a tensor of the artefact before it is used.
        replaces: tensors that stand for one of the model → the name of what they replace.
        pairs: low-rank changes of weights of the model.
        absolute: the names of tensors of absolute values, which move as these do.
        meeting: the names of tensors that meet activations of the model, rather than change its
            weights.
    """

    tensors: Tensors
    types: Mapping[str, Types]
    offsets: Mapping[str, Origin] = field(default_factory=dict)
    replaces: Mapping[str, str] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    absolute: frozenset[str] = frozenset()
    meeting: frozenset[str] = frozenset()

    @property
    def altered(self) -> frozenset[str]:
        """Tensors of the model that are other ones with the artefact than without it."""
        return frozenset(pair.weight for pair in self.pairs) | {*self.replaces.values()}

    @property
    def spaces(self) -> frozenset[str]:
        """The spaces of the activations that it meets."""
        axes = (axis for name in self.meeting for axis in self.types[name])
        return frozenset(space for axis in axes for space in spaces_of(axis))

    def beside(self, symmetry: ParameterSymmetry) -> ParameterSymmetry:
        """The symmetry of the model whose signature has the tensors of the artefact, too."""
        types = {own(name): axes for name, axes in self.types.items()}
        offsets = {own(name): origin for name, origin in self.offsets.items()}
        return replace(
            symmetry,
            signature={**symmetry.signature, **types},
            offsets={**symmetry.offsets, **offsets},
        )


def axes_of(symmetry: ParameterSymmetry, name: str) -> Types:
    """The types of a tensor of the model, by any of its names."""
    return symmetry.signature[symmetry.ties.get(name, name)]


def shape_of(symmetry: ParameterSymmetry, name: str) -> tuple[int, ...]:
    """The shape of a tensor of the model, by any of its names."""
    return symmetry.shape(symmetry.ties.get(name, name))


def without_head(name: str) -> str:
    """A name without its first part: models with a head call their body `model`, `transformer`."""
    return name.partition(".")[2]


def own(name: str) -> str:
    """What a tensor of the artefact is called beside those of the model."""
    return f"artefact {name}"


def renamed(axis: AxisType, spaces: Mapping[str, AxisType], tensors: Iterable[str]) -> AxisType:
    """A type with others in the place of its spaces, and frames read from the artefact itself.

    Scalars over an order commute with a frame, so that of the two the order stands in it.
    """
    if isinstance(axis, Carried):
        frame = tuple(_framed(item, tensors) for item in axis.frame)
        ((space, power), *others) = axis.factors
        if space not in spaces:
            return Carried(axis.factors, frame)
        if others or abs(power) != 1:
            raise ValueError(f"'{axis}' stands beside others, or to a power, and not by itself")
        return _in_frame(spaces[space] if power > 0 else spaces[space].T, frame)
    return with_inside(axis, lambda part: renamed(part, spaces, tensors))


def _in_frame(axis: AxisType, frame: tuple[Frame, ...]) -> AxisType:
    """A space, or an order with scalars over it, in a frame."""
    if isinstance(axis, Product):
        return Product((_in_frame(axis.factors[0], frame), *axis.factors[1:]))
    return replace(axis, frame=frame) if isinstance(axis, Carried) and frame else axis


def _framed(frame: Frame, tensors: Iterable[str]) -> Frame:
    known = frame.parameter in tensors
    return replace(frame, parameter=own(frame.parameter)) if known else frame
