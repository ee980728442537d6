"""What a loss does not see of outputs and targets: the maps that may move both.

    ℓ(U y, U t) = ℓ(y, t)

The square of a distance admits every orthogonal U, a sum of distances of entries signed
permutations, and a likelihood of classes the permutations of classes; weights of classes go along.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from paramsym.algebra import Group, Orthogonal, Permutation, SignedPermutation


@dataclass(frozen=True)
class Loss:
    """A loss by the maps of outputs and targets that it does not see.

    Attributes:
        name: "cross-entropy".
        group: from the number of outputs to the largest group that it does not see.
    """

    name: str
    group: Callable[[int], Group]


_LOSSES = {
    "cross-entropy": Loss("cross-entropy", Permutation),
    "nll": Loss("nll", Permutation),
    "bce-with-logits": Loss("bce-with-logits", Permutation),
    "bce": Loss("bce", Permutation),
    "kl-div": Loss("kl-div", Permutation),
    "mse": Loss("mse", Orthogonal),
    "l1": Loss("l1", SignedPermutation),
    "smooth-l1": Loss("smooth-l1", SignedPermutation),
    "huber": Loss("huber", SignedPermutation),
}
_MODULES: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "cross-entropy",
    nn.NLLLoss: "nll",
    nn.BCEWithLogitsLoss: "bce-with-logits",
    nn.BCELoss: "bce",
    nn.KLDivLoss: "kl-div",
    nn.MSELoss: "mse",
    nn.L1Loss: "l1",
    nn.SmoothL1Loss: "smooth-l1",
    nn.HuberLoss: "huber",
}
_AXIS_IS_SUMMED = ("cross-entropy", "nll")  # whatever the reduction leaves, classes are gone

Losses: TypeAlias = nn.Module | str | Loss | None


def loss_of(loss: Losses) -> Loss | None:
    """What is known of a loss.

    Args:
        loss: a module of `torch.nn`, a name ("cross-entropy", "mse", …), a `Loss` of one's own, or
            None where outputs are not to move.

    Raises:
        ValueError: nothing is known of it, or it returns one number for each output, of which
            nobody knows what becomes.
    """
    if loss is None or isinstance(loss, Loss):
        return loss
    name = loss if isinstance(loss, str) else _MODULES.get(type(loss), "")
    found = _LOSSES.get(name.lower().replace("_", "-"))
    if found is None:
        raise ValueError(
            f"loss={loss!r}: nothing is known of what it does not see. Expected a loss of "
            f"torch.nn or one of {', '.join(_LOSSES)}; for another one pass "
            "privacy.Loss(name, group), where "
            "group(n) is what may move n outputs and their targets together, or no loss, so that "
            "outputs stay."
        )
    if getattr(loss, "reduction", "mean") == "none" and name not in _AXIS_IS_SUMMED:
        raise ValueError(
            f"loss={loss!r}: it returns one number for each output, and what becomes of these is "
            "not known. A loss that sums or averages over the outputs was expected. Use "
            'reduction="mean" or "sum".'
        )
    return found


def moved_loss(
    loss: nn.Module, labels: Callable[[], torch.Tensor], axis: int = -1, rank: int | None = None
) -> nn.Module:
    """A loss of `torch.nn` whose weights of classes have gone along with their classes.

    Args:
        loss: is not changed.
        labels: gives the new label of each class, of shape (classes,); asked if there are classes.
        axis: of the outputs, which counts classes: weights of entries are broadcast against them.
        rank: how many axes the outputs have; needed where `axis` is counted from the first.

    Raises:
        ValueError: weights fit the classes no way, or `rank` is needed to tell.
    """
    entries = isinstance(loss, nn.BCEWithLogitsLoss | nn.BCELoss)
    moved = copy.deepcopy(loss)
    for name in ("weight", "pos_weight"):
        weight = getattr(loss, name, None)
        if isinstance(weight, torch.Tensor) and weight.ndim and len(new := labels()):
            along = _axis_of_classes(loss, name, weight, axis, rank) if entries else 0
            if along is not None and weight.shape[along] != 1:
                _require_classes(loss, name, weight, along, len(new))
                order = new.argsort().to(weight.device)
                setattr(moved, name, weight.index_select(along, order))
    ignored = getattr(loss, "ignore_index", -1)
    if ignored >= 0 and len(new := labels()) > ignored:
        vars(moved)["ignore_index"] = int(new[ignored])
    return moved


def _axis_of_classes(
    loss: nn.Module, name: str, weight: torch.Tensor, axis: int, rank: int | None
) -> int | None:
    """The axis of a weight that lies along the classes when it is broadcast; None if none does."""
    if axis >= 0 and rank is None:
        raise ValueError(
            f"encode(…, loss={loss}): its {name} of shape {tuple(weight.shape)} is broadcast "
            f"against outputs whose axis {axis} counts the classes, and how many axes they have is "
            "not known without targets of their shape. Pass the targets along, or free the output "
            "by an axis that is counted from the end: free_outputs={name: -3}."
        )
    along = axis - (rank or 0) if axis >= 0 else axis
    return along if weight.ndim >= -along else None


def _require_classes(
    loss: nn.Module, name: str, weight: torch.Tensor, along: int, classes: int
) -> None:
    if weight.shape[along] != classes:
        raise ValueError(
            f"encode(…, loss={loss}): its {name} of shape {tuple(weight.shape)} has "
            f"{weight.shape[along]} entries along axis {along}, where it weighs {classes} classes. "
            "One entry was expected for each class, or one for all. Give the loss such weights."
        )


def moved_labels(targets: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Integer targets by their new labels; marks outside the classes (such as −100) stay."""
    if not len(labels):
        return targets
    known = (targets >= 0) & (targets < len(labels))
    found = labels.to(targets.device)[targets.clamp(0, len(labels) - 1)]
    return torch.where(known, found.to(targets.dtype), targets)
