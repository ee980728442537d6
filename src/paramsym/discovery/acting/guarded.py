"""An action and a loss that are called with copies, and looked at when they come back.

What changes its arguments in place would change what it is compared with: one that writes into the
data makes the loss before the move that of other data, and any action passes then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .commutators import Action, Params
from .networks import require_tensor

_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None))
Loss = Callable[[dict[str, Tensor], Any], Tensor]


@dataclass(frozen=True)
class Guarded:
    """An action and a loss whose answers are looked at.

    Attributes:
        action: a_X(g, θ).
        loss: L(θ, X).
        place: of error messages.
    """

    action: Action
    loss: Loss
    place: str

    def act(self, g: Tensor, params: dict[str, Tensor], data: Any) -> dict[str, Tensor]:
        """The parameters that the action leads to, as copies without a graph."""
        given = copied((g, params, data))
        try:
            found = self.action(*given)
        except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
            raise ValueError(
                f"{self.place}: the action has no value at an element ({error}), and invertible "
                "elements were expected. Let `elements` draw nearer to the identity, such as "
                "torch.linalg.matrix_exp of a small matrix."
            ) from error
        self._require_untouched("action", given, (g, params, data))
        self._require_alike(found, params)
        return {n: t.detach().clone() for n, t in found.items()}

    def value(self, params: dict[str, Tensor], data: Any) -> Tensor:
        """L(θ, X) as a vector."""
        given = copied((params, data))
        found = require_tensor(self.loss(*given), self.place).detach().reshape(-1)
        self._require_untouched("loss", (None, *given), (None, params, data))
        if not len(found):
            raise ValueError(
                f"{self.place}: the loss has no entries, and at least one number was expected. "
                "Return one number, or one for each data point."
            )
        return found.clone()

    def slope(self, params: dict[str, Tensor], data: Any, velocity: dict[str, Tensor]) -> Tensor:
        """D_θL at θ along a velocity, by forward mode."""
        return torch.func.jvp(lambda p: self.loss(p, copied(data)), (params,), (velocity,))[1]

    def _require_untouched(self, who: str, given: tuple[Any, ...], before: tuple[Any, ...]) -> None:
        for name, now, then in zip(("g", "params", "data"), given, before, strict=True):
            if same(now, then):
                continue
            raise ValueError(
                f"{self.place}: the {who} changed its argument {name!r} in place, and arguments "
                "that stay as they came were expected, since what follows is compared with them. "
                "Work on copies: x.clone(), dict(params), x + y in place of x.add_(y)."
            )

    def _require_alike(self, found: Any, params: Params) -> None:
        """Refuse parameters of other names, shapes, dtypes, or with NaN."""
        kind = type(found).__name__
        if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
            raise ValueError(
                f"{self.place}: the action gave {'a ' + kind if found is not None else None} back, "
                "and a dict of tensors by name was expected, as it came. Return every parameter, "
                "those at rest as they came."
            )
        if _kinds(found) != _kinds(params):
            raise ValueError(
                f"{self.place}: the action gave {_kinds(found)} back for {_kinds(params)}, and "
                "the same names and shapes were expected, in the same dtype. Return every "
                "parameter, those at rest as they came."
            )
        for name, tensor in found.items():
            if not torch.isfinite(tensor).all():
                raise ValueError(
                    f"{self.place}: {name!r} is not finite after the action, and finite parameters "
                    "were expected. Let `elements` draw nearer to the identity, away from singular "
                    "elements, and look where the action divides."
                )


def _kinds(params: Params) -> dict[str, tuple[object, ...]]:
    """Shapes, with the dtype where it is not the default one."""
    default = torch.float64
    return {
        name: tuple(t.shape) if t.dtype == default else (*t.shape, t.dtype)
        for name, t in params.items()
    }


def copied(item: Any) -> Any:
    """Nested inputs with all that can be written to copied."""
    return pytree.tree_map(_copied_leaf, item)


def _copied_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    if isinstance(leaf, _IMMUTABLE):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except (TypeError, RuntimeError):  # handles of the system, tensors with a graph
        return leaf


def same(one: Any, other: Any) -> bool:
    """Whether nested inputs have the same structure and bits; NaN is one number here.

    Objects that are neither tensors, arrays nor numbers are not compared: they were copied.
    """
    leaves, structure = pytree.tree_flatten(one)
    others, wanted = pytree.tree_flatten(other)
    return structure == wanted and all(map(_same_leaf, leaves, others))


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if not isinstance(one, Tensor):
        return one is other or not isinstance(one, _IMMUTABLE) or one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
