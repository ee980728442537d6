"""Whether values that come from elsewhere are of their group, or of its Lie algebra."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paramsym.algebra import Element, GeneralLinear, Group, Tangent


def tensors_of(value: Element | Tangent, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a value by field; those of a base have `base/` before."""
    for field, part in value._asdict().items():
        if isinstance(part, torch.Tensor):
            yield prefix + field, part
        elif part is not None:
            yield from tensors_of(part, f"{prefix}{field}/")


def require_element(group: Group, batch: tuple[int, ...], value: Element) -> Element:
    """The value, if it has the form and the numbers of an element, once for each of the copies.

    Products of many elements lose digits, so that numbers are compared to half of those that their
    dtype has. Raises `ValueError`.
    """
    _require_form(group, batch, value, group.identity(batch))
    wide = value.to(torch.float64)
    numbers = [x for _, x in tensors_of(value) if x.is_floating_point() or x.is_complex()]
    half = max((torch.finfo(x.dtype).eps ** 0.5 for x in numbers), default=None)
    # of a matrix nothing is asked but that it has an inverse
    tolerance = None if isinstance(group, GeneralLinear) else half
    if any(tensors_of(value)) and not group.contains(wide, tolerance):
        raise ValueError(f"a value outside the group {group}")
    return value


def require_tangent(group: Group, batch: tuple[int, ...], value: Tangent) -> Tangent:
    """The value, if it has the form and the numbers of a velocity, once for each of the copies.

    Raises `ValueError`.
    """
    _require_form(group, batch, value, group.tangent(torch.zeros(*batch, group.dimension)))
    if not is_tangent(group, value.to(torch.float64)):
        raise ValueError(f"a value outside the Lie algebra of {group}")
    return value


def is_tangent(group: Group, value: Tangent) -> bool:
    """Whether a velocity is its own projection onto the Lie algebra."""
    given = dict(tensors_of(value))
    if not given:
        return True
    found = dict(tensors_of(group.tangent(group.coordinates(value))))
    return all(
        field in found and bool(x.isfinite().all()) and torch.allclose(x, found[field], atol=1e-6)
        for field, x in given.items()
    )


def leading(group: Group, batch: tuple[int, ...], value: Element | Tangent) -> tuple[int, ...]:
    """The dimensions that a batch of values has in front of those of its copies."""
    known: Element | Tangent = group.identity(batch)
    if isinstance(value, Tangent):
        known = group.tangent(torch.zeros(*batch, group.dimension))
    wanted = dict(tensors_of(known))
    for field, x in tensors_of(value):
        if field in wanted:
            return tuple(x.shape[: max(0, x.ndim - wanted[field].ndim)])
    return ()


def _require_form(
    group: Group, batch: tuple[int, ...], value: Element | Tangent, form: Element | Tangent
) -> None:
    """No other fields than a known value has, of its shapes (or those of one copy) and kinds."""
    wanted = dict(tensors_of(form))
    for field, x in tensors_of(value):
        if field not in wanted:
            raise ValueError(f"the field {field!r}, which {group} does not have")
        shape = wanted[field].shape
        if x.shape not in (shape, shape[len(batch) :]):
            raise ValueError(f"{field!r} of shape {tuple(x.shape)}, for {tuple(shape)} of {group}")
        if _kind(x) != _kind(wanted[field]):
            raise ValueError(f"{field!r} of dtype {x.dtype}, which {group} does not have")


def _kind(x: torch.Tensor) -> object:
    return (x.is_complex(), x.is_floating_point()) if x.dtype != torch.long else "places"
