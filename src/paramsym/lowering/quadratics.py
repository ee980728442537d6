"""Quadratic forms: Σᵢⱼ Wᵢⱼ xᵢ xⱼ, in whatever order it is computed.

    ((x @ W) * x).sum(-1)     bilinear(x, x)     einsum("bi,oij,bj->bo", x, W, x)

first weigh x by W and compare the result with x. Written as W weighing x xᵀ, which is symmetric, it
is seen that the antisymmetric part of W has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paramsym.primitives import Contract
from paramsym.primitives.tensor import Tensor

Axes = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]  # of both factors and of the product


class AbstractWriter(Protocol):
    """What writes products down: a builder, which imports this module."""

    def contract(
        self, x: Tensor, y: Tensor, xs: Sequence[Any], ys: Sequence[Any], zs: Sequence[Any]
    ) -> Tensor:
        """Generalised matrix product."""
        ...

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same entries in another shape."""
        ...


def quadratic(
    build: AbstractWriter, x: Tensor, y: Tensor, axes: Axes, facts: Mapping[str, Any]
) -> Tensor | None:
    """A product of W·y with y over an axis as W·(y yᵀ), where W is a parameter; None for others.

    Args:
        build: where the products are written down.
        x: a factor of a generalised matrix product.
        y: the other factor.
        axes: the labels of x, of y and of the product.
        facts: what else is known of the product; only a plain one is a form.
    """
    if facts.get("mask") or facts.get("power", 1) != 1:
        return None
    xs, ys, zs = axes
    for one, ones, other, others in ((x, xs, y, ys), (y, ys, x, xs)):
        names = _names(one, ones)
        if names is None:
            continue
        for k in (0, 1):
            form = _form(one.owner.producer, k, names, other, others)
            if form is not None and not {form.first, form.second} & {*zs}:
                return form.written(build, zs, _sizes((x, xs), (y, ys)))
    return None


@dataclass(frozen=True)
class _Form:
    """Σ W y y over the labels `first` and `second`: `mine` are those of y, `theirs` those of W."""

    vector: Tensor
    weight: Tensor
    mine: list[Any]
    theirs: list[Any]
    first: Any
    second: Any

    def written(self, build: AbstractWriter, zs: Sequence[Any], sizes: Mapping[Any, int]) -> Tensor:
        """The products y yᵀ, and their sum weighed by W."""
        turned = [self.second if c == self.first else c for c in self.mine]
        outer = [c for c in dict.fromkeys((*self.mine, *turned)) if not isinstance(c, _Unit)]
        squares = build.contract(self.vector, self.vector, self.mine, turned, outer)
        kept = [z for z in zs if sizes[z] > 1]
        form = build.contract(squares, self.weight, outer, self.theirs, kept)
        return build.reshape(form, [sizes[z] for z in zs])


@dataclass(frozen=True)
class _Unit:
    """The label of an axis of one entry."""

    tensor: int
    axis: int


def _sizes(*factors: tuple[Tensor, Sequence[Any]]) -> dict[Any, int]:
    """How long the axis of each label is."""
    sizes: dict[Any, int] = {}
    for tensor, labels in factors:
        for n, label in zip(tensor.shape, labels, strict=True):
            sizes[label] = max(n, sizes.get(label, 1))
    return sizes


def _names(tensor: Tensor, labels: Sequence[Any]) -> dict[Any, Any] | None:
    """Labels in the product that wrote a tensor → those of the tensor; None if it is none."""
    op = tensor.owner.producer
    if type(op) is not Contract or op.power != 1 or op.is_square:
        return None
    read, written = _by_step(tensor, labels), _by_step(tensor.owner, op.axes[2])
    if read is None or written is None or read.keys() != written.keys():
        return None
    if tensor.offset != tensor.owner.offset:
        return None
    return {written[step]: read[step] for step in written}


def _by_step(tensor: Tensor, labels: Sequence[Any]) -> dict[tuple[int, int], Any] | None:
    """The labels of the axes by stride and length; None where two axes step alike."""
    found: dict[tuple[int, int], Any] = {}
    for n, step, label in zip(tensor.shape, _place(tensor)[2], labels, strict=True):
        if n > 1:
            if (step, n) in found or step == 0:
                return None
            found[step, n] = label
    return found


def _place(tensor: Tensor) -> tuple[Any, int, tuple[int, ...]]:
    """The storage of a tensor, its first entry there, and its strides."""
    if tensor.moves or tensor.value is None:
        return tensor.owner, tensor.offset, tensor.strides
    return tensor.value.storage, tensor.value.offset, tensor.value.strides


def _form(
    op: Contract, k: int, names: Mapping[Any, Any], other: Tensor, others: Sequence[Any]
) -> _Form | None:
    """W·y with y, where y is input k of the product `op`, and W the other input."""
    vector, weight = op.inputs[k], op.inputs[1 - k]
    if _place(vector)[:2] != _place(other)[:2] or weight.owner.producer is not None:
        return None
    mine, theirs = (
        [names.get(c, ("inner", c)) if n > 1 else _Unit(j, d)
         for d, (c, n) in enumerate(zip(op.axes[j], op.inputs[j].shape, strict=True))]
        for j in (k, 1 - k)
    )  # fmt: skip
    here, there = _by_step(vector, mine), _by_step(other, others)
    if not weight.moves or here is None or there is None or here.keys() != there.keys():
        return None
    apart = [step for step in here if here[step] != there[step]]
    if len(apart) != 1:
        return None
    first, second = here[apart[0]], there[apart[0]]
    if second in here.values() or not {first, second} <= {*theirs}:
        return None
    return _Form(vector, weight, mine, theirs, first, second)
