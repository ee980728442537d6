"""Values of conserved quantities that a user asks for, read as one vector."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paramsym.structure.given import as_tensor

from .conserved import ConservedQuantities, Params

Quantities = Mapping[str, Tensor | float]

_SYMMETRIC = 1e-10  # of the largest entry: how far two equal entries of a matrix may differ


def targets(laws: ConservedQuantities, params: Params, quantities: Quantities) -> Tensor:
    """The asked values of all quantities, (quantities,); those of `params` where none is asked.

    Args:
        laws: whose quantities they are.
        params: that keep the values of families without a name in `quantities`.
        quantities: by family a value in the shape that `laws.values` gives; of a matrix its
            diagonal alone, where the rest is zero; a number stands for its multiple of the identity
            and, in other families, for every entry.

    Raises:
        KeyError: a name without quantities.
        ValueError: another shape, no real and finite numbers, a matrix that is not symmetric.
    """
    found = laws.quantities(params)
    # Every entry tells which quantity stands there, and by what it is multiplied: the modulus of
    # a pair has another unit than its coordinate.
    places = laws.shaped(torch.arange(1, len(found) + 1).to(found)) if len(found) else {}
    units = laws.shaped(torch.ones_like(found)) if len(found) else {}
    for name, value in quantities.items():
        if name not in places:
            raise KeyError(_unknown(laws, name, [*places]))
        unit = units[name]
        place = (places[name] / unit).round().long() - 1
        whole = _whole(laws, name, value, tuple(place.shape)).to(found)
        found[place] = whole / unit
        _require_same(name, whole, unit * found[place])
    return found


def is_matrix(laws: ConservedQuantities, name: str) -> bool:
    """Whether the quantities of a family are symmetric matrices."""
    space = laws.symmetry.spaces.get(name)
    if space is None:
        return False
    return space.group.tangent(torch.zeros(space.group.dimension)).matrix is not None


def _whole(
    laws: ConservedQuantities, name: str, value: Tensor | float, shape: tuple[int, ...]
) -> Tensor:
    """A given value in the shape of its family."""
    given = as_tensor(value).detach()
    matrix = is_matrix(laws, name) and len(shape) > 1
    if given.is_complex() or given.dtype == torch.bool or not bool(given.isfinite().all()):
        kind = "it holds numbers that are not finite" if given.is_floating_point() else given.dtype
    elif not given.ndim:
        filled = given.expand(shape[:-1] if matrix else shape)
        return torch.diag_embed(filled) if matrix else filled
    elif tuple(given.shape) == shape:
        return given
    elif matrix and tuple(given.shape) == shape[:-1]:
        return torch.diag_embed(given)
    else:
        kind = f"it has shape {tuple(given.shape)}"
    diagonal = f", its diagonal {shape[:-1]}" if matrix else ""
    raise ValueError(
        f"initialise_with(quantities={{{name!r}: …}}): {kind}, and real, finite numbers of shape "
        f"{shape}{diagonal}, or a single number were expected. "
        f"conserved_quantities(symmetry, params).values(params)[{name!r}] has that shape."
    )


def _require_same(name: str, given: Tensor, read: Tensor) -> None:
    """Refuse a matrix of which an entry was read at another place, with another number."""
    difference = (given - read).abs()
    if not given.numel() or float(difference.max()) <= _SYMMETRIC * float(given.abs().max()):
        return
    place = tuple(torch.unravel_index(difference.argmax(), difference.shape))
    at = ", ".join(str(int(k)) for k in place)
    raise ValueError(
        f"initialise_with(quantities={{{name!r}: …}}): entry [{at}] is {float(given[place]):.6g} "
        f"and {float(read[place]):.6g} in the transpose, and a symmetric matrix was expected: "
        "quantities are moments of scales and symmetric changes of basis. "
        "Pass (Q + Q.mT) / 2, or the diagonal alone."
    )


def _unknown(laws: ConservedQuantities, name: str, known: list[str]) -> str:
    why = f" ({laws.why[name]})" if name in laws.why else ""
    if name in laws.constants:
        why = " (the loss does not depend on it: set the parameter itself)"
    return (
        f"initialise_with(quantities={{{name!r}: …}}): no quantity is conserved under this "
        f"name{why}, and some of {known[:12]} were expected. "
        "print(conserved_quantities(symmetry, params)) lists them."
    )
