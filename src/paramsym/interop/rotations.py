"""Rotation maps: who writes a feature space in rows, who reads it in columns, which gains to fold.

SpinQuant and QuaRot turn a space by an orthogonal matrix R that is the same for all heads:

    W ↦ Rᵀ W, b ↦ Rᵀ b   for all who write it,      W ↦ W R   for all who read it,

after the gain of a norm between the two has been multiplied into the columns of its readers. The
function stays if the group of the space has R, and if nobody else carries the space.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paramsym.algebra import GeneralLinear, Orthogonal
from paramsym.algebra.linear import OrthogonalFixingOnes
from paramsym.arguments import checked
from paramsym.formats.errors import few
from paramsym.interop.maps import Dialect, Refused, ScaleMap, Scales
from paramsym.interop.parts import NONE, Layer
from paramsym.structure.axes import (
    AxisType,
    Carried,
    Product,
    Sizes,
    frames_of,
    parts_of,
    spaces_of,
)
from paramsym.structure.symmetry import ParameterSymmetry

_CENTRING = "the tool would centre it, which is no symmetry under RMS norm, and is left out"


@dataclass(frozen=True)
class Rotation:
    """A space that can be turned, by names of modules.

    Attributes:
        space: its name in the symmetry.
        size: rows of R; where an axis is longer it holds one copy for each head.
        writers: modules whose rows carry it.
        readers: modules whose columns carry it.
    """

    space: str
    size: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]

    def __str__(self) -> str:
        writers, readers = few(self.writers, 3, str), few(self.readers, 3, str)
        return f"{self.space} ({self.size}): {writers} -> {readers}"


@dataclass(frozen=True)
class Fold:
    """A norm whose gain is multiplied into the columns of all who read it, and becomes one."""

    norm: str
    linears: tuple[str, ...]


class Rotations:
    """The rotations of a model that a tool can be told."""

    def __init__(self, symmetry: ParameterSymmetry, model: nn.Module, dialect: Dialect) -> None:
        self.symmetry = symmetry
        self.sizes: Sizes = {name: space.size for name, space in symmetry.spaces.items()}
        self.scales = Scales(symmetry, model, dialect)
        self.modules = dict(model.named_modules())
        self.carriers: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for parameter, axes in symmetry.signature.items():
            for k, axis in enumerate(axes):
                for space in dict.fromkeys(spaces_of(axis)):
                    self.carriers[space].append((parameter, k))
        self.owners: dict[str, list[str]] = defaultdict(list)
        for name, layer in self.scales.layers.items():
            for part in (layer.weight, layer.bias):
                if part is not None:
                    self.owners[part.parameter].append(name)

    def found(self) -> tuple[tuple[Rotation, ...], tuple[Fold, ...], tuple[Refused, ...]]:
        """All rotations, the norms to fold for them, and what cannot be turned, with the reason."""
        rotations: list[Rotation] = []
        refused: list[Refused] = []
        folds: dict[str, Fold] = {}
        for name in self.symmetry.spaces:
            try:
                rotation, own = self._rotation(name)
            except _Refusal as refusal:
                refused.append(Refused(name, refusal.kind, str(refusal)))
                continue
            if rotation is not None:
                rotations.append(rotation)
                folds.update((fold.norm, fold) for fold in own)
                tables = [n for n in rotation.writers if self.scales.layers[n].is_table]
                refused.extend(Refused(name, "centring", f"{n}: {_CENTRING}") for n in tables)
        return tuple(rotations), tuple(folds.values()), tuple(refused)

    def _rotation(self, name: str) -> tuple[Rotation | None, list[Fold]]:
        space = self.symmetry.spaces[name]
        if isinstance(space.group, OrthogonalFixingOnes):
            raise _Refusal("layer norm", "only rotations that fix the vector of ones are in it")
        if not isinstance(space.group, GeneralLinear | Orthogonal) or space.size < 2:
            self._say_why_not(name)
            return None, []
        if not space.exact:
            raise _Refusal("not exact", "it holds but for the ε of a norm")
        if space.size % 2:
            raise _Refusal("format", f"no Hadamard matrix of a size that divides {space.size}")
        writers: dict[str, None] = {}
        readers: dict[str, None] = {}
        norms: dict[str, None] = {}
        for parameter, axis in self.carriers[name]:
            type_ = self.symmetry.signature[parameter][axis]
            if not self._is_whole(type_, name):
                raise _Refusal("format", f"{parameter} carries it in {type_}, beside others")
            if self.symmetry.offsets.get(parameter):
                raise _Refusal("offset", f"{parameter} acts by its value plus a constant: a skip")
            owners = self._owners(parameter)
            rows = [self._is_row(module, parameter, axis) for module in owners]
            norms.update(dict.fromkeys(self._gains(parameter, type_, all(rows))))
            (writers if all(rows) else readers).update(dict.fromkeys(owners))
        self._require_wholes(name, writers)
        folds = [self._fold(norm) for norm in norms]
        return Rotation(name, space.size, tuple(writers), tuple(readers)), folds

    def _require_wholes(self, name: str, writers: Iterable[str]) -> None:
        """The tool turns the weight and the bias of a writer together."""
        carriers = {*self.carriers[name]}
        for module in writers:
            layer = self.scales.layers[module]
            for part in (layer.weight, layer.bias):
                if part is None or part.parameter not in self.symmetry.signature:
                    continue
                place = part.parameter, 1 if layer.is_table else part.axis(0)
                if place not in carriers and part.parameter not in self.symmetry.dead:
                    raise _Refusal("format", f"the rows of {part.parameter} do not carry it")

    def _owners(self, parameter: str) -> list[str]:
        """The modules of a parameter: one, or the experts that are parts of it."""
        owners = self.owners[parameter] or [""]
        whole = [name for name in owners if not self._is_expert(name)]
        if len(whole) > 1:
            raise _Refusal("tied", f"{' and '.join(whole[:3])} have one weight, turned only once")
        return owners

    def _is_expert(self, module: str) -> bool:
        layer = self.scales.layers.get(module)
        return layer is not None and layer.weight.expert != NONE

    def _say_why_not(self, name: str) -> None:
        """A stream that embeddings write, and that cannot be turned, is worth a word."""
        tables = (p for p, k in self.carriers[name] if k == 1)
        if name == "residual" or any(self._is_table(p) for p in tables):
            group, why = self.symmetry.spaces[name].group, self.symmetry.spaces[name].why
            tied = "; the output head is tied: derive this for untied(model)" * self._is_tied()
            raise _Refusal("no symmetry", f"its group is {group}" + f" ({why})" * bool(why) + tied)

    def _is_tied(self) -> bool:
        return any(self._is_table(name) for name in self.symmetry.ties.values())

    def _is_table(self, parameter: str) -> bool:
        return any(self.scales.layers[name].is_table for name in self.owners[parameter])

    def _is_whole(self, axis: AxisType, space: str) -> bool:
        """Whether an axis is copies of a space, one after the other."""
        factors = [f for f in _flattened(axis) if f.size(self.sizes) > 1]
        inner, outer = factors[-1:], factors[:-1]
        return all(
            isinstance(f, Carried) and f.factors[0][0] == space and abs(f.factors[0][1]) == 1
            for f in inner
        ) and not any(space in spaces_of(f) for f in outer)  # fmt: skip

    def _is_row(self, module: str, parameter: str, axis: int) -> bool:
        """Whether the axis is the rows of a module that the tool can turn; else its columns."""
        layer: Layer | None = self.scales.layers.get(module)
        plain = type(self.modules.get(module)) in (nn.Linear, nn.Embedding)
        if layer is None or not (plain or self._is_expert(module)):
            raise _Refusal("format", f"{parameter} is no weight of a Linear or an Embedding")
        part = layer.weight if layer.weight.parameter == parameter else layer.bias
        assert part is not None
        if axis == part.axis(0):
            if part.rows != (None, None, None):
                raise _Refusal("format", f"{module} has a part of the rows of {parameter}")
            if layer.is_table:
                raise _Refusal("format", f"the rows of the table {module} carry it")
            return True
        return layer.is_table

    def _gains(self, parameter: str, axis: AxisType, writes: bool) -> Iterator[str]:
        """The norms whose gains stand between the space and a reader.

        A reader W behind a gain γ carries γ g⁻¹ γ⁻¹ on its columns. Which of the two directions a
        signature calls the dual one is a choice, and the exponent of the gain turns with it.
        """
        frames = [(frame, part.factors[0][1]) for part in parts_of(axis) for frame in part.frame]
        if len(frames) > 1:
            raise _Refusal("format", f"two gains stand between it and {parameter}")
        for frame, power in frames:
            norm = frame.parameter.rpartition(".")[0]
            if writes:
                raise _Refusal("fold", f"the gain of {norm} stands behind {parameter}, a writer")
            if frame.offset:
                raise _Refusal("offset", f"{norm} multiplies by its weight plus a constant")
            if -power * frame.exponent != 1:
                raise _Refusal("fold", f"{norm} multiplies by its weight to another power than one")
            if norm not in self.scales.layers:
                raise _Refusal("format", f"the gain {frame.parameter} is no weight of a module")
            yield norm

    def _fold(self, norm: str) -> Fold:
        """All who read a norm, where multiplying its gain into their columns keeps the function."""
        parameter = self.scales.layers[norm].weight.parameter
        linears = [
            module for name, axes in self.symmetry.signature.items()
            for axis in axes if parameter in (frame.parameter for frame in frames_of(axis))
            for module in self._owners(name)
        ]  # fmt: skip
        verdict = self.scales.verdict(ScaleMap(norm, tuple(linears)))
        if verdict.kind != "sound":
            raise _Refusal("fold", f"the gain of {norm} cannot be folded: {verdict}")
        return Fold(norm, tuple(linears))


class _Refusal(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def turned(weight: Tensor, rotation: Tensor, *, rows: bool) -> Tensor:
    """A weight with its rows or columns turned by R, copy by copy: Rᵀ W or W R."""
    if rows:
        return turned(weight.T, rotation, rows=False).T
    return (weight.unflatten(-1, (-1, len(rotation))) @ rotation).flatten(-2)


def drawn_rotation(size: int, generator: torch.Generator) -> Tensor:
    """An orthogonal matrix, uniformly distributed but for signs."""
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q


@checked
def untied(model: nn.Module) -> nn.Module:
    """A copy of a language model whose output head is a parameter of its own.

    A rotation of the stream turns the table of tokens by R, and the head by R after a gain: one
    tensor cannot do both. llm-compressor unties them before it rotates.

    Args:
        model: with `get_input_embeddings` and `get_output_embeddings`, as in transformers; any
            other is copied as it is.

    Returns:
        A deep copy, with weights of its own.
    """
    made = copy.deepcopy(model)
    table = getattr(made, "get_input_embeddings", lambda: None)()
    head = getattr(made, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if (
        isinstance(head, nn.Module)
        and isinstance(weight, nn.Parameter)
        and weight is getattr(table, "weight", None)
    ):
        head.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
        config = getattr(made, "config", None)
        if config is not None:
            config.tie_word_embeddings = False
    return made


def _flattened(axis: AxisType) -> Iterator[AxisType]:
    """The factors of nested products, outermost first."""
    if isinstance(axis, Product):
        for factor in axis.factors:
            yield from _flattened(factor)
    else:
        yield axis
