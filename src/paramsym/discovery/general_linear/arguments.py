"""What comes from a caller, looked at before torch meets it: one door per public function.

A message says what came, what was expected, where, and what to do instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..acting.networks import Network
from .degenerate import Degenerate
from .scales import norms


def require_real(place: str, /, **named: Any) -> None:
    """Refuse what is no tensor of real numbers, or of another dtype or device than the first one.

    Args:
        place: for messages.
        named: by the name of the argument; None is passed over.

    Raises:
        ValueError: with the name of the first argument that is something else.
    """
    first: tuple[str, Tensor] | None = None
    for name, tensor in named.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{place}: {name} came as {_kind(tensor)}, and a tensor was expected. Pass "
                "torch.as_tensor(…) of it, in the dtype of the others."
            )
        plain = tensor.layout == torch.strided and not tensor.is_meta
        if not tensor.is_floating_point() or not plain:
            layout = "" if tensor.layout == torch.strided else f" ({tensor.layout})"
            raise ValueError(
                f"{place}: {name} came in {tensor.dtype} on {tensor.device}{layout}, and real "
                "floating-point numbers were expected, in a dense tensor: GL_h(R) acts on real "
                "weights. Pass its real part, .double() or .to_dense()."
            )
        first = first or (name, tensor)
        if (tensor.dtype, tensor.device) != (first[1].dtype, first[1].device):
            raise ValueError(
                f"{place}: {name} came in {tensor.dtype} on {tensor.device} beside {first[0]} in "
                f"{first[1].dtype} on {first[1].device}, and the same were expected. Convert it "
                f"by {name}.to({first[0]})."
            )


def require_finite(place: str, /, **named: Any) -> None:
    """As `require_real`, and refuse NaN and infinities.

    Raises:
        ValueError: with the name of the first argument that is something else.
    """
    require_real(place, **named)
    for name, tensor in named.items():
        if tensor is not None and not bool(tensor.isfinite().all()):
            raise ValueError(
                f"{place}: {name} has entries that are not finite, and numbers were expected. "
                "Look at what made it."
            )


def _kind(item: Any) -> str:
    return "None" if item is None else f"a {type(item).__name__}"


def require_matrix(place: str, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Refuse another shape; None stands for any size but zero.

    Raises:
        ValueError: with both shapes.
    """
    came = tuple(tensor.shape)
    fits = len(came) == len(shape) and all(
        size > 0 and wanted in (None, size) for size, wanted in zip(came, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{place}: {name} of shape {came} came, and ({expected}) was expected, with at least "
            "one entry along each axis. Transpose, reshape or leave the call out."
        )


def as_columns(place: str, given: Any, name: str = "columns") -> Tensor:
    """S of shape (h, k) with 1 ≤ k ≤ h, of columns that have a length; (h,) is one column.

    Raises:
        ValueError: another shape or dtype.
        Degenerate: a column that is zero, not finite, or of a length beyond the range of its dtype.
    """
    require_real(place, **{name: given})
    columns = given[:, None] if given.ndim == 1 else given
    if columns.ndim != 2 or not 1 <= columns.shape[1] <= columns.shape[0]:
        raise ValueError(
            f"{place}: {name} of shape {tuple(given.shape)} came; (h,) or (h, k) with 1 ≤ k ≤ h "
            "was expected, since a matrix of size h has no more columns. Pass vectors as columns."
        )
    sizes = norms(columns.detach())
    tiny = torch.finfo(columns.dtype).tiny
    for at in (~((sizes >= tiny) & sizes.isfinite())).nonzero().flatten().tolist():
        raise Degenerate(
            f"{place}: column {at} of {name} has length {float(sizes[at]):.2g}; one that is "
            f"neither zero nor beyond the range of {columns.dtype} was expected, because no "
            "invertible matrix begins with it. Leave it out, or look at what made it."
        )
    return columns


def require_limit(place: str, limit: float) -> None:
    """Refuse what is no bound on condition numbers, which are 1 at least.

    Raises:
        ValueError: NaN, or less than 1.
    """
    if not limit >= 1:
        raise ValueError(
            f"{place}: limit={limit} came, and a condition number was expected, 1 or more. Leave "
            "it at 1e8, half of the digits of float64."
        )


def require_batch(place: str, batch: Any) -> None:
    """Refuse inputs without an entry or with NaN; infinities may be those of a mask.

    Raises:
        ValueError: with the position of the tensor.
    """
    for at, leaf in enumerate(pytree.tree_leaves(batch)):
        if not isinstance(leaf, Tensor):
            continue
        if not leaf.numel():
            raise ValueError(
                f"{place}: tensor {at} of the batch has shape {tuple(leaf.shape)}, without an "
                "entry, and at least one sample was expected. Pass the samples on which outputs "
                "are to stay."
            )
        if bool(leaf.isnan().any()):
            raise ValueError(
                f"{place}: tensor {at} of the batch, of shape {tuple(leaf.shape)}, has NaN, and "
                "numbers were expected. Leave out the samples that have it."
            )


def require_network(place: str, model: Any, batch: Any, training: bool) -> None:
    """Refuse what is no module with numbers, or a batch that it does not take.

    Raises:
        ValueError: another kind of object, parameters on the meta device, nothing or NaN in the
            batch, or what the model said of it.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{place}: {_kind(model)} came, and an nn.Module was expected, whose parameters have "
            "names. Wrap a function in a module that owns its weights."
        )
    meta = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if meta:
        raise ValueError(
            f"{place}: {meta[0]!r} of {type(model).__name__} is on the meta device, and numbers "
            "were expected. Load the weights, or model.to_empty(device='cpu') and initialise them."
        )
    require_batch(place, batch)
    try:
        with torch.no_grad():
            Network(model, training)({}, batch)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        said = str(error).strip().splitlines() or [""]
        raise ValueError(
            f"{place}: {type(model).__name__} does not run on this batch ({type(error).__name__}: "
            f"{said[0][:200]}), and inputs as the model takes them were expected. Pass a tuple of "
            "positional inputs or a dict of keyword arguments, in the model's dtype."
        ) from error
