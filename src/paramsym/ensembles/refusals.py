"""What an orbit ensemble refuses: four parts each, and a way out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from paramsym.checking.pointwise import PointwiseSite

from .methods import METHODS


def require_options(
    members: Any, strength: Any, method: Any, generator: Any, correction: Any
) -> None:
    """Options of the types and in the ranges that they have."""
    if isinstance(members, bool) or not isinstance(members, Integral) or members < 1:
        raise ValueError(
            f"OrbitEnsemble(members={members!r}): a whole number of members was expected, at "
            "least one. Pass for example members=20."
        )
    good = isinstance(strength, Real) and not isinstance(strength, bool)
    if not good or not 0 <= float(strength) < math.inf:
        raise ValueError(
            f"OrbitEnsemble(strength={strength!r}): a finite number ε ≥ 0 was expected, since a "
            "member is moved by g = I + εM. Pass for example strength=0.1."
        )
    if method not in METHODS:
        raise ValueError(
            f"OrbitEnsemble(method={method!r}): it is none of the known ones; one of {[*METHODS]} "
            "was expected. Pass method='group' for the data-dependent action."
        )
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            f"OrbitEnsemble(generator={generator!r}): a {type(generator).__name__} came; a "
            "torch.Generator was expected, since members are random. Pass "
            "torch.Generator().manual_seed(0)."
        )
    if correction not in ("fitted", "batch") or (correction == "batch" and method != "group"):
        raise ValueError(
            f"OrbitEnsemble(correction={correction!r}, method={method!r}): 'fitted' was expected, "
            "or 'batch' with method='group', the published wrapper. Leave it at 'fitted'."
        )


def require_positional(inputs: Any) -> None:
    """Inputs by place: an ensemble is called as `ensemble.vote(*inputs)`."""
    if not isinstance(inputs, (Tensor, tuple)):
        raise ValueError(
            f"OrbitEnsemble(inputs=…): a {type(inputs).__name__} came; a tensor or a tuple of "
            "positional arguments was expected, as ensemble.vote(*inputs) takes them. Wrap a "
            "model that takes keywords into a module whose forward hands them on."
        )


def require_finite_inputs(batch: tuple[Any, ...]) -> None:
    """A fitting batch of finite numbers."""
    for place, entry in enumerate(batch):
        floats = isinstance(entry, Tensor) and entry.is_floating_point()
        if floats and not bool(entry.isfinite().all()):
            raise ValueError(
                f"OrbitEnsemble(inputs=…): input {place} has entries that are not finite; finite "
                "ones were expected, since the correction is fitted on them. Leave out the samples "
                "that have any."
            )


def require_finite_weights(state: Mapping[str, Tensor]) -> None:
    """A network of finite numbers."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(
                f"OrbitEnsemble(model=…): {name!r} has entries that are not finite; finite ones "
                "were expected, since members are made of them. Go back to a state before the "
                "training diverged."
            )


def require_hidden(hidden: Tensor, site: PointwiseSite) -> None:
    """What σ gets has to be finite on the batch."""
    if not bool(hidden.isfinite().all()):
        raise ValueError(
            f"OrbitEnsemble(space={site.space!r}): what {site.name} gets at {site.where} is not "
            "finite on this batch; finite numbers were expected. Look at the weights and inputs "
            "of the model."
        )


def require_samples(hidden: Tensor, site: PointwiseSite) -> None:
    """At least h different samples, or least squares does not determine the correction."""
    units, samples = hidden.shape
    different = samples if samples < units else torch.unique(hidden.mT + 0.0, dim=0).shape[0]
    if different < units:
        of = f" different from each other, of {samples}," if different < samples else ""
        raise ValueError(
            f"OrbitEnsemble(inputs=…): {different} samples{of} came for the {units} units of space "
            f"{site.space!r} at {site.where}; at least {units} were expected, since fewer do not "
            "determine the correction: it would be exact on them and arbitrary elsewhere. Pass a "
            f"fitting batch of {10 * units} different samples or more."
        )


def require_elements(given: Any, members: int, units: int, method: str) -> None:
    """Matrices of the size of the layer, one for each member."""
    if method == "interpolated-permutation":
        raise ValueError(
            "OrbitEnsemble(elements=…, method='interpolated-permutation'): matrices came for a "
            "method that makes its own from permutations; none were expected. Pass "
            "method='inverse' for (U g⁻¹, gV) with your g."
        )
    shape = (members, units, units)
    if not isinstance(given, Tensor) or given.shape != shape or not given.is_floating_point():
        came = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"OrbitEnsemble(elements=…): {came} came; real matrices of shape {shape} were "
            "expected, one for each member. Stack them, and pass members=len(elements)."
        )


def require_invertible(elements: Tensor) -> None:
    """Every g has to have an inverse, to rounding."""
    finite = bool(elements.isfinite().all())
    values = torch.linalg.svdvals(elements) if finite else elements.new_zeros(1, 1)
    floor = elements.shape[-1] * torch.finfo(elements.dtype).eps * values[:, 0]
    bad = (values[:, -1] <= floor).nonzero()
    if bad.numel():
        place = int(bad[0])
        raise ValueError(
            f"OrbitEnsemble(elements=…): g of member {place} has singular values from "
            f"{float(values[place, -1]):.3g} to {float(values[place, 0]):.3g}, or entries that are "
            "not finite; an invertible matrix was expected, since members lie on an orbit of GL_h. "
            "Draw it anew, or with another strength."
        )
