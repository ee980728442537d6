"""What the optimisers of PyTorch keep of each parameter, and how that moves with it.

Under θ ↦ D θ with positive scales D gradients move by D⁻¹, squares of gradients by D⁻², and so do
their averages. An entry of degree d moves by D⁻ᵈ. Degree 0 is what has no unit: a count, or the
momentum of RMSprop, which averages gradients that have been divided by their own size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, optim

from paramsym.structure.state import FIRST, SECOND

Entries = Mapping[str, int]

_ADAM = {"step": 0, "exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
_KNOWN: dict[str, Entries] = {
    "SGD": {"momentum_buffer": 1},
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": {**_ADAM, "mu_product": 0},
    "RAdam": _ADAM,
    "Adamax": {"step": 0, "exp_avg": 1, "exp_inf": 1},
    "RMSprop": {"step": 0, "square_avg": 2, "grad_avg": 1, "momentum_buffer": 0},
    "Adagrad": {"step": 0, "sum": 2},
}
_LINEAR = {"SGD"}  # of these all that is kept moves by the dual of any element
_OTHERS: Entries = {"step": 0, **dict.fromkeys(FIRST, 1), **dict.fromkeys(SECOND, 2)}


def entries_of(optimizer: optim.Optimizer, given: Entries | None = None) -> tuple[Entries, bool]:
    """The degree of each entry of the state of an optimiser, by name; and whether all of them are
    sums of gradients, which any element moves, whereas others follow scales alone.

    An optimiser that is none of PyTorch's is taken to give averages the names that Adam gives.

    Raises:
        ValueError: an optimiser of PyTorch's whose state does not move so, unless its entries are
            given; L-BFGS in any case, which keeps all parameters in one vector.
    """
    for kind in type(optimizer).__mro__:
        if kind is optim.Optimizer or kind is not getattr(optim, kind.__name__, None):
            continue
        if kind.__name__ in _KNOWN and given is None:
            return _KNOWN[kind.__name__], kind.__name__ in _LINEAR
        if given is None or kind is optim.LBFGS:
            or_else = "" if kind is optim.LBFGS else ", or pass entries={name: degree}"
            raise ValueError(
                f"Rebalance(optimizer={type(optimizer).__name__}(…)): how all that it keeps moves "
                f"with the parameters is not known; one of {sorted(_KNOWN)} was expected. Use one "
                f"of these{or_else}."
            )
    if given is not None:
        require_entries(given)
        return given, all(degree == 1 for degree in given.values())
    return _OTHERS, False


def require_entries(entries: Any) -> None:
    """Refuse what names no degrees.

    Raises:
        ValueError: no mapping from names to whole numbers.
    """
    good = isinstance(entries, Mapping) and all(
        isinstance(k, str) and isinstance(d, int) for k, d in entries.items()
    )
    if not good:
        raise ValueError(
            f"Rebalance(entries={entries!r}): a dict from names of the optimiser's entries to "
            "degrees was expected: 1 for averages of gradients, 2 for those of squares, 0 for what "
            "has no unit. Pass for example entries={'momentum_buffer': 1}."
        )


def kept(
    optimizer: optim.Optimizer, params: Mapping[str, Tensor], entries: Entries
) -> dict[str, dict[str, Tensor]]:
    """What an optimiser keeps of some parameters that moves with them: tensors by name, by entry.

    Raises:
        ValueError: an entry whose degree is not known, or of another shape than its parameter.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, p in params.items():
        for key, value in optimizer.state[p].items() if p in optimizer.state else ():
            if key not in entries:
                _refuse(optimizer, name, key, value, entries)
            if entries[key] and value is not None:  # SGD holds None without momentum
                if not _follows(value, p):
                    _refuse(optimizer, name, key, value, entries)
                found.setdefault(key, {})[name] = value
    return found


def _follows(value: Any, parameter: Tensor) -> bool:
    """Whether an entry of the state can be multiplied as its parameter is: no packed integers."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return False
    return value.is_floating_point() or value.is_complex()


def _refuse(optimizer: optim.Optimizer, name: str, key: str, value: Any, entries: Entries) -> None:
    what = type(value).__name__
    if isinstance(value, torch.Tensor):
        what += f" {tuple(value.shape)} of {value.dtype}"
    known = f"numbers of the parameter's shape among {sorted(entries)}" if entries else "none"
    raise ValueError(
        f"Rebalance(optimizer={type(optimizer).__name__}(…)): its state of {name!r} holds {key!r}, "
        f"{what}, and how that moves is not known; {known} were expected. Pass "
        f"entries={{…, {key!r}: degree}} for all that it keeps, 1 for averages of gradients, 2 for "
        "those of their squares, 0 for what has no unit (D⁻ᵈ multiplies what has degree d); or use "
        "SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop or Adagrad."
    )
