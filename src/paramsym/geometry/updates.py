"""Which linear maps of the parameters the step of an optimiser commutes with.

A step θ ↦ θ − u(g₁, …, g_t) on a moved loss L̃(Rθ) = L(θ) sees the gradients R⁻ᵀ g. It commutes
with R,

    u(R⁻ᵀ g₁, …, R⁻ᵀ g_t) = R u(g₁, …, g_t),

for every orthogonal R if it is made of sums and inner products alone; for signed permutations if it
treats each entry by itself, by a function that is odd; and if it treats a matrix as a whole, for
what acts on its rows and its columns as such.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import torch

from paramsym.algebra import Group, Orthogonal, SignedPermutation
from paramsym.arguments import optimizer_of


class Kind(Enum):
    """What an update does with gradients; the value says it in words."""

    INNER_PRODUCTS = "uses sums and inner products of gradients alone"
    MATRICES = "treats each matrix as a map between two spaces"
    ENTRYWISE = "treats each entry by itself"
    FACTORED = "treats each entry by itself, with means over rows and columns"


@dataclass(frozen=True)
class Update:
    """One part of a step, and what it commutes with.

    Attributes:
        name: in lower case, "adamw".
        kind: what it does with gradients.
        decays: whether it pulls parameters to zero, which no translation commutes with.
        inexact: why it commutes in exact arithmetic only, or empty.
        rates: how gradients of scaled parameters θ̃ = Dθ can be told to it: "squared" where a rate
            of D² for each entry undoes the scales, "single" where D does with ε/D in the place of
            ε, and empty where nothing does.
    """

    name: str
    kind: Kind
    decays: bool = False
    inexact: str = ""
    rates: str = ""

    def group(self, size: int) -> Group:
        """The largest group on an axis of this size that the update commutes with."""
        dense = self.kind in (Kind.INNER_PRODUCTS, Kind.MATRICES)
        return Orthogonal(size) if dense else SignedPermutation(size)

    @property
    def measures(self) -> bool:
        """Whether the step depends on the lengths of parameters, and not on gradients alone."""
        return self.decays or self.kind is Kind.FACTORED

    @property
    def keeps_axes(self) -> bool:
        """Whether what moves one axis of a matrix must not depend on the place along the other."""
        return self.kind in (Kind.MATRICES, Kind.FACTORED)


_BF16 = "it orthogonalises in bfloat16, whose rounding no key commutes with"
_UPDATES = {
    each.name: each
    for each in (
        Update("sgd", Kind.INNER_PRODUCTS, rates="squared"),
        Update("asgd", Kind.INNER_PRODUCTS, decays=True),
        Update("clip_grad_norm", Kind.INNER_PRODUCTS),
        # Of the method every part is an inner product. But torch scales the first step by the sum
        # of absolute gradients, and stops at their largest entry.
        Update("lbfgs", Kind.ENTRYWISE),
        Update("adam", Kind.ENTRYWISE, rates="single"),
        Update("adamw", Kind.ENTRYWISE, decays=True, rates="single"),
        Update("nadam", Kind.ENTRYWISE, rates="single"),
        Update("radam", Kind.ENTRYWISE),
        Update("adamax", Kind.ENTRYWISE),
        Update("rmsprop", Kind.ENTRYWISE, rates="single"),
        Update("adagrad", Kind.ENTRYWISE, rates="single"),
        Update("adadelta", Kind.ENTRYWISE),
        Update("rprop", Kind.ENTRYWISE),
        Update("sparseadam", Kind.ENTRYWISE),
        Update("lion", Kind.ENTRYWISE, decays=True),
        Update("clip_grad_value", Kind.ENTRYWISE),
        Update("adafactor", Kind.FACTORED, decays=True),
        Update("shampoo", Kind.MATRICES, decays=True),
        Update("muon", Kind.MATRICES, decays=True, inexact=_BF16),
    )
}
# Classes whose name is the whole truth: of others of that name nothing is known.
_TORCH = {
    name.lower(): kind for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
}  # fmt: skip

One: TypeAlias = torch.optim.Optimizer | type[torch.optim.Optimizer] | str | Update
Optimizers: TypeAlias = One | Iterable[One] | None


def updates_of(optimizer: Optimizers) -> tuple[Update, ...]:
    """What is known of the parts of a training step.

    Args:
        optimizer: an optimiser of `torch.optim`, its class, its name, "clip_grad_norm",
            "clip_grad_value", "lion" or "shampoo", an `Update` of one's own, or several of these,
            all of which take part. None where nobody trains. A class or a name says nothing of
            weight decay, and is taken to decay if it can; an optimiser says it.

    Raises:
        ValueError: nothing is known of one of them.
    """
    if optimizer is None:
        return ()
    if isinstance(optimizer, str | Update | torch.optim.Optimizer) or inspect.isclass(optimizer):
        return (_update_of(optimizer),)
    return tuple(map(_update_of, optimizer if isinstance(optimizer, Iterable) else [optimizer]))


def _update_of(optimizer: Any) -> Update:
    if isinstance(optimizer, Update):
        return optimizer
    if isinstance(optimizer, str):
        found = _UPDATES.get(optimizer.lower().replace("-", "_").rstrip("_"))
        return _unknown(repr(optimizer)) if found is None else _with_decay(found, None)
    if not inspect.isclass(optimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer_of(optimizer, "optimizer=…")
    kind = optimizer if inspect.isclass(optimizer) else type(optimizer)
    name = kind.__name__.lower()
    if _TORCH.get(name) is not kind or name not in _UPDATES:
        return _unknown(f"{kind.__module__}.{kind.__qualname__}")
    return _with_decay(_UPDATES[name], None if inspect.isclass(optimizer) else optimizer)


def _with_decay(update: Update, optimizer: torch.optim.Optimizer | None) -> Update:
    """The update with what an optimiser says of its decay; a name or a class leaves it open."""
    if optimizer is None:
        own = _TORCH.get(update.name)
        may = own is not None and "weight_decay" in inspect.signature(own).parameters
        return replace(update, decays=update.decays or may)
    pulls = [g.get(name) for g in optimizer.param_groups for name in ("weight_decay", "lambd")]
    return replace(update, decays=any(pulls))


def _unknown(what: str) -> Update:
    raise ValueError(
        f"optimizer={what}: nothing is known of its step, so that no key is known to commute with "
        f"it. Expected an optimiser of torch.optim, or one of {', '.join(_UPDATES)}. If you know "
        "what it does, say so: privacy.Update(name, privacy.Kind.ENTRYWISE) for a step that treats "
        "each entry by itself."
    )
