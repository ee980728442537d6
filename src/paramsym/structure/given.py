"""Elements and velocities that a user writes: plain values become parts, checked by the group.

    order    integers (*copies, n): (g x)[i] = x[order[i]]
    scales   real numbers (*copies, n), or complex ones (*copies, n / 2) for complex kinds
    matrix   real numbers (*copies, n, n), for linear kinds

One value stands for all copies where the copies' dimensions are left out, and a space of size one,
a scalar for each unit of what it stands over, may leave out its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from paramsym.algebra import (
    AbstractMonomial,
    ComplexScaling,
    Element,
    Tangent,
    UnitComplex,
)
from paramsym.algebra.following import is_transformed
from paramsym.algebra.linear import AbstractLinear
from paramsym.structure.data import SymmetryData, batch_of
from paramsym.structure.membership import is_tangent
from paramsym.structure.space import Space

Given = Mapping[str, Any]


def gathered(
    symmetry: SymmetryData, values: Given | None, named: Given, what: str
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Values by space and offsets by shift, from a mapping and from keywords.

    Raises `KeyError` for names that are neither spaces nor shifts.
    """
    given = {**(values or {}), **named}
    shifts = symmetry.shift_of
    if unknown := [n for n in given if n not in symmetry.spaces and n not in shifts]:
        known = [*symmetry.spaces, *shifts]
        raise KeyError(
            f"{what}: {unknown} are neither spaces nor shifts of this symmetry. Expected some of "
            f"{known[:12]}; print(symmetry) lists the spaces, symmetry.table() the shifts. Names "
            f"with dots go into a dict: {what.partition('(')[0]}({{name: value}})."
        )
    offsets = {
        n: as_offset(as_tensor(given[n]), shifts[n].shape, f"{what.partition('(')[0]}({n!r})")
        for n in given if n in shifts
    }  # fmt: skip
    return {n: given[n] for n in given if n in symmetry.spaces}, offsets


def as_tensor(value: Any) -> torch.Tensor:
    """Numbers as a tensor; Python's own keep their double precision."""
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))


def as_offset(offset: torch.Tensor, shape: tuple[int, ...], where: str) -> torch.Tensor:
    """An offset as it is; `ValueError` if it is not of a shape, or no real and finite number."""
    fits = tuple(offset.shape) == shape and offset.is_floating_point()
    if not fits or not (is_transformed(offset) or offset.isfinite().all()):
        raise ValueError(
            f"{where}: the offset of a shift has shape {tuple(offset.shape)} and dtype "
            f"{offset.dtype}, but finite real numbers of shape {shape} were expected. See "
            "symmetry.shifts for the shape of each δ."
        )
    return offset


def as_element(symmetry: SymmetryData, name: str, value: Any) -> Element:
    """One value as an element of the group of a space, with all its copies.

    Raises `ValueError` if it has another shape, is of another kind, or lies outside the group.
    Under `torch.func` transforms, where entries have no values, shapes and kinds alone are checked.
    """
    space = symmetry.spaces[name]
    reader = _Reader(symmetry, space, "element")
    element = reader.own(value) if isinstance(value, Element) else reader.element(value)
    made = element.map(lambda part, tail: reader.spread(part, tail))
    tensors = [part for part in (made.order, made.diagonal, made.matrix) if part is not None]
    if any(is_transformed(part) for part in tensors):
        return made
    if not space.group.contains(made.map(lambda part, _: part.detach())):
        read = "" if made.order is None else " (whole numbers are read as an order)"
        raise reader.refused(value, f"it lies outside the group {space.group}{read}")
    return made


def as_tangent(symmetry: SymmetryData, name: str, value: Any) -> Tangent:
    """One value as an element of the Lie algebra of a space, with all its copies.

    Raises `ValueError` as `as_element` does.
    """
    space = symmetry.spaces[name]
    reader = _Reader(symmetry, space, "velocity")
    velocity = value if isinstance(value, Tangent) else reader.tangent(value)
    made = Tangent(
        None if velocity.diagonal is None else reader.spread(velocity.diagonal, 1),
        None if velocity.matrix is None else reader.spread(velocity.matrix, 2),
    )
    tensors = [part for part in made[:2] if part is not None]
    if not tensors or any(is_transformed(part) for part in tensors):
        return made
    if not is_tangent(space.group, made.map(lambda part: part.detach())):
        raise reader.refused(value, f"it lies outside the Lie algebra of {space.group}")
    return made


class _Reader:
    """Reads the plain values of one space, and says what is wrong with them."""

    def __init__(self, symmetry: SymmetryData, space: Space, what: str):
        self.space, self.group, self.what = space, space.group, what
        self.batch = batch_of(symmetry, space)

    def element(self, value: Any) -> Element:
        """An order, scales or a matrix; an order and scales as a pair."""
        if isinstance(value, tuple) and len(value) == 2 and self._is_monomial:
            order, scales = (as_tensor(part) for part in value)
            return Element(order=self._order(order), diagonal=self._numbers(scales, value))
        tensor = as_tensor(value)
        if self._is_monomial and not (tensor.is_floating_point() or tensor.is_complex()):
            return Element(order=self._order(tensor))
        return self._with(Element, tensor, value)

    def own(self, value: Element) -> Element:
        """An element of another group in the form in which this one acts.

        A group of matrices reads matrices alone: an order that came as such would move nothing.
        """
        if isinstance(self.group, AbstractLinear) and value.matrix is None and value.base is None:
            dtype = torch.float64 if value.diagonal is None else value.diagonal.dtype
            return Element(matrix=self.group.matrix(value, dtype))
        if self._is_monomial and value.matrix is not None:
            raise self.refused(value.matrix, "it is a matrix")
        return value

    def tangent(self, value: Any) -> Tangent:
        """Log-scales (complex ones for complex kinds) or a matrix."""
        return self._with(Tangent, as_tensor(value), value)

    def _with(self, kind: Callable[..., Any], tensor: torch.Tensor, value: Any) -> Any:
        if isinstance(self.group, (AbstractMonomial, ComplexScaling, UnitComplex)):
            return kind(diagonal=self._numbers(tensor, value))
        if tensor.is_floating_point():
            return kind(matrix=tensor)
        raise self.refused(value, f"it has dtype {tensor.dtype}")

    @property
    def _is_monomial(self) -> bool:
        return isinstance(self.group, AbstractMonomial)

    def _order(self, order: torch.Tensor) -> torch.Tensor:
        if order.dtype == torch.bool or order.is_floating_point() or order.is_complex():
            raise self.refused(order, f"an order has dtype {order.dtype}")
        return order.long()

    def _numbers(self, scales: torch.Tensor, value: Any) -> torch.Tensor:
        if not (scales.is_floating_point() or scales.is_complex()):
            raise self.refused(value, f"it has dtype {scales.dtype}")
        if scales.is_complex() == self._is_monomial:
            raise self.refused(value, f"it has dtype {scales.dtype}")
        alone = self.space.size == 1 and self._is_monomial
        if alone and tuple(scales.shape) == self.batch:  # one scalar per unit
            return scales[..., None]
        return scales

    def spread(self, part: torch.Tensor, tail: int) -> torch.Tensor:
        """A part at every copy; its last `tail` dimensions belong to the group."""
        n = self.group.size
        own = (n // 2 if part.is_complex() else n,) if tail == 1 else (n, n)
        if tuple(part.shape) == (*self.batch, *own):
            return part
        if tuple(part.shape) == own:
            return part.expand(*self.batch, *own)
        raise self.refused(part, f"it has shape {tuple(part.shape)}")

    def refused(self, value: Any, why: str) -> ValueError:
        shape, kinds = (*self.batch, self.group.size), []
        group = self.group
        if isinstance(group, AbstractMonomial):
            if group.permutes and self.what == "element":
                kinds.append(f"an order, integers of shape {shape}")
            if group.signs or group.scales:
                kinds.append(f"{'scales' if self.what == 'element' else 'log-scales'} of {shape}")
        elif isinstance(group, (ComplexScaling, UnitComplex)):
            kinds.append(f"complex factors of shape {(*self.batch, group.size // 2)}")
        else:
            kinds.append(f"matrices of shape {(*shape, group.size)}")
        text = str(value).replace("\n", " ")
        over = f", one for each copy over {', '.join(self.space.over)}" if self.batch else ""
        return ValueError(
            f"{self.what}({{{self.space.name!r}: {text[:60]}{'…' if text[60:] else ''}}}): {why}, "
            f"but {' or '.join(kinds) or 'nothing, for it does not move,'} was expected{over}, in "
            f"{group}. Give a value of that kind, or leave the space out to keep it still."
        )
