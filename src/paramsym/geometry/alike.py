"""Whether two state dicts are two points of one parameter space, said in the user's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from paramsym.geometry.given import numbers_of
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
_LARGEST = 1e150


def alike(
    symmetry: ParameterSymmetry, a: Params, b: Params, call: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Both points, shared and apart from any graph of gradients.

    Args:
        symmetry: the symmetry of the architecture that both should have.
        a, b: complete state dicts.
        call: the function that is named in errors.

    Raises:
        ValueError: a tensor is missing or left over, has another shape or dtype than the symmetry
            or the other point, or numbers that are not finite.
    """
    require_symmetry(symmetry, call)
    for side, params in (("a", a), ("b", b)):
        if not isinstance(params, Mapping):
            _refuse(call, f"{side} is a {type(params).__name__}", "a dict of tensors by name",
                    "Pass model.state_dict()")  # fmt: skip
    for name in (*symmetry.signature, *symmetry.ties):
        _require_one(symmetry, a, b, name, call)
    for side, params in (("a", a), ("b", b)):
        require_ties(symmetry, params, call, f" of {side}")
    known = {*symmetry.signature, *symmetry.ties}
    for one, other, side in ((a, b, "a"), (b, a, "b")):
        extra = [name for name in one if name not in other and name not in known]
        if extra:
            _refuse(call, f"{extra[0]!r} is in {side} alone", "two state dicts of one architecture",
                    "Leave it out, or load both with the same model class")  # fmt: skip
    return numbers_of(symmetry, a, call), numbers_of(symmetry, b, call)


def require_symmetry(symmetry: object, call: str) -> None:
    """Refuse what is no symmetry."""
    if not isinstance(symmetry, ParameterSymmetry):
        raise ValueError(
            f"{call}(symmetry, …): a {type(symmetry).__name__} came, and a ParameterSymmetry was "
            "expected. Pass find_symmetry(model, inputs)."
        )


def _require_one(symmetry: ParameterSymmetry, a: Params, b: Params, name: str, call: str) -> None:
    """One tensor that both should have alike."""
    if (name in a) != (name in b):
        side = "b" if name in a else "a"
        _refuse(call, f"{name!r} is missing in {side}", f"it, {_typed(symmetry, name)},",
                "Load both from the same model class")  # fmt: skip
    if name not in a:
        if name in symmetry.signature and symmetry.movers[name]:
            _refuse(call, f"{name!r} is missing in both", f"it, {_typed(symmetry, name)},",
                    "Pass the complete state_dict() of each model")  # fmt: skip
        return
    one, other = a[name], b[name]
    for side, value in (("a", one), ("b", other)):
        _require_numbers(symmetry, name, side, value, call)
    if one.shape != other.shape:
        _refuse(call, f"{name!r} has shape {tuple(one.shape)} in a and {tuple(other.shape)} in b",
                f"one shape, {_typed(symmetry, name)},",
                "Compare networks of one architecture")  # fmt: skip
    if name in symmetry.signature and tuple(one.shape) != symmetry.shape(name):
        _refuse(call, f"{name!r} has shape {tuple(one.shape)} in both",
                f"{symmetry.shape(name)}, {_typed(symmetry, name)},",
                "Take the symmetry of the model that they belong to")  # fmt: skip
    if one.dtype != other.dtype:
        _refuse(call, f"{name!r} is {one.dtype} in a and {other.dtype} in b", "one precision",
                "Convert one of them, for example with model.to(torch.float32)")  # fmt: skip


def require_ties(symmetry: ParameterSymmetry, params: Params, call: str, whose: str = "") -> None:
    """Refuse tied tensors that are not equal."""
    for alias, name in symmetry.ties.items():
        if alias in params and name in params and not torch.equal(params[alias], params[name]):
            raise ValueError(
                f"{call}(symmetry, …): {alias!r}{whose} is not equal to {name!r}, to which it is "
                "tied; one tensor under both names was expected. Load it into the model first, and "
                "pass model.state_dict()."
            )


def _require_numbers(
    symmetry: ParameterSymmetry, name: str, side: str, value: object, call: str
) -> None:
    """A tensor of one side, whose numbers are finite."""
    if not isinstance(value, Tensor):
        _refuse(call, f"{name!r} of {side} is a {type(value).__name__}", "a tensor",
                "Pass model.state_dict()")  # fmt: skip
    numbers = (value.is_floating_point() and value.itemsize > 1) or value.is_complex()
    if not numbers or value.is_meta or value.layout is not torch.strided or not value.numel():
        return  # what is no number for other reasons is refused with them
    if not bool(torch.isfinite(value).all()):
        _refuse(call, f"{name!r} of {side} has entries that are not finite", "finite numbers",
                "Look where training diverged, or leave that checkpoint out")  # fmt: skip
    if float(value.abs().max()) > _LARGEST:
        _refuse(call, f"{name!r} of {side} has entries above {_LARGEST:.0e}",
                "numbers whose squares do not overflow",
                "Multiply the parameters by a power of two first")  # fmt: skip


def _typed(symmetry: ParameterSymmetry, name: str) -> str:
    own = symmetry.ties.get(name, name)
    axes = symmetry.signature.get(own)
    return f"of type ({', '.join(map(str, axes))})" if axes is not None else "as the model has it"


def _refuse(call: str, came: str, expected: str, instead: str) -> NoReturn:
    raise ValueError(f"{call}(symmetry, a, b): {came}; {expected} was expected. {instead}.")
