"""Inputs as rows of features, on the side that is plain and on the side that is sent.

A key acts along one axis of an input, sample by sample and position by position. Against whoever
looks for the key, every position is thus a sample of its own: an image whose channels are mixed
gives as many known pairs as it has pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paramsym.privacy.attacks.attempt import NotApplicable
from paramsym.privacy.job import Job
from paramsym.structure.element import GroupElement
from paramsym.structure.feature import Feature
from paramsym.structure.interfaces import Params, act_inputs
from paramsym.structure.symmetry import ParameterSymmetry

_SMALLEST, _LARGEST = 1e-50, 1e50  # norms of inputs; beyond, products of a few leave float64
_ROUNDINGS = 2.0  # singular values below so many, relative to the largest, are none


def features_of(inputs: Tensor, feature: Feature | int) -> Tensor:
    """The rows that a key moves one by one: x̃ = A x for each row x.

    Args:
        inputs: a tensor with a feature axis and others, of real numbers.
        feature: the feature that the symmetry names, or its axis alone.

    Returns:
        A tensor of shape (samples, n) in float64, samples and positions in one axis, in the order
        in which they lie in memory.

    Raises:
        ValueError: the inputs have no such axis, or hold integers.
    """
    axis = feature if isinstance(feature, int) else feature.axis
    if not -inputs.dim() <= axis < inputs.dim():
        raise ValueError(
            f"features_of(inputs, feature): inputs of shape {tuple(inputs.shape)} came, and an "
            f"axis {axis} was expected. Pass the inputs in batches, as the model takes them."
        )
    if not inputs.is_floating_point():
        raise ValueError(
            f"features_of(inputs, feature): inputs of {inputs.dtype} came, and real numbers were "
            "expected, which a matrix can mix. Orders of tokens are attacked by other means."
        )
    return inputs.detach().double().movedim(axis, -1).flatten(0, -2)


def mixed(inputs: Tensor, feature: Feature | int, matrix: Tensor) -> Tensor:
    """Inputs with x ↦ A x along their feature axis, of their own shape, in float64.

    Args:
        inputs: a tensor with a feature axis of length n.
        feature: as for `features_of`.
        matrix: A, (n, n).
    """
    axis = feature if isinstance(feature, int) else feature.axis
    return (inputs.detach().double().movedim(axis, -1) @ matrix.T).movedim(-1, axis)


def map_on_input(
    symmetry: ParameterSymmetry,
    element: GroupElement,
    dimensions: int,
    params: Params | None = None,
) -> Tensor:
    """The matrix A by which an element moves the one freed input, x ↦ A x along its feature axis.

    Read off from unit vectors, whatever the type of the axis: matrices, orders, repeats of them.

    Args:
        symmetry: one that frees one input.
        element: of that symmetry.
        dimensions: how many axes the input has, two at least.
        params: the parameters before they move, where gains serve as frames.

    Returns:
        A tensor of shape (n, n) in float64.

    Raises:
        ValueError: the symmetry frees another number of inputs, or none.
    """
    if len(symmetry.inputs) != 1:
        raise ValueError(
            f"map_on_input(symmetry, element, …): the symmetry frees {len(symmetry.inputs)} "
            f"inputs, {[*symmetry.inputs][:8]}, and one was expected. Look at each by itself with "
            "find_symmetry(…, free_inputs=[name])."
        )
    (feature,) = symmetry.inputs.values()
    size = feature.type.size(symmetry.sizes)
    axis = feature.axis % dimensions
    shape = [1] * dimensions
    shape[0 if axis else 1] = shape[axis] = size
    units = torch.eye(size, dtype=torch.float64).reshape(shape)
    return act_inputs(symmetry, element, units, params).reshape(size, size).T  # units were rows


@dataclass(frozen=True, eq=False)
class Rows:
    """The freed input of a job on both sides, in float64.

    Attributes:
        plain: rows of features (rows, n), samples and positions in one axis.
        sent: what the other side sees of each, (rows, n).
        samples: how many samples the rows belong to, in their order.
        precision: of which what was sent was rounded.
        feature: the axis that moves.
    """

    plain: Tensor
    sent: Tensor
    samples: int
    precision: torch.dtype
    feature: Feature

    @property
    def size(self) -> int:
        """The number n of features."""
        return self.plain.shape[1]

    def some(self, most: int) -> tuple[Tensor, Tensor]:
        """At most so many rows of both sides, evenly spread."""
        step = -(-self.plain.shape[0] // most)
        return self.plain[::step], self.sent[::step]


def rows_of(job: Job, samples: int | None = None) -> Rows:
    """The freed input of a job as rows.

    Args:
        job: one's own.
        samples: take at most so many, evenly spread.

    Raises:
        NotApplicable: the key frees no input or several, or the input holds integers, or nothing
            but zeros, or numbers whose squares leave the range of float64.
    """
    features = job.key.acting.inputs
    if len(features) != 1:
        raise NotApplicable(f"the key frees {len(features)} inputs, and this needs one")
    if not job.inputs.is_floating_point():
        raise NotApplicable(f"the inputs are {job.inputs.dtype}, and this needs real numbers")
    (feature,) = features.values()
    step = 1 if samples is None else -(-job.inputs.shape[0] // samples)
    plain, sent = job.inputs[::step], job.view.inputs[::step]
    if not _SMALLEST < (size := float(plain.detach().double().norm())) < _LARGEST:
        raise NotApplicable(f"the inputs have the norm {size:g}, and nothing is relative to that")
    return Rows(
        features_of(plain, feature),
        features_of(sent, feature),
        plain.shape[0],
        sent.dtype,
        feature,
    )


def public_rows(job: Job, rows: Rows) -> Tensor:
    """The public inputs of a job as rows of the same features, (rows, n).

    Raises:
        NotApplicable: there are none, or they are of another kind.
    """
    public, axis = job.public, rows.feature.axis
    if public is None or not len(public):
        raise NotApplicable("public inputs of the same kind are needed")
    fits = public.dim() == job.inputs.dim() and public.is_floating_point()
    if not fits or public.shape[axis] != rows.size or not bool(public.isfinite().all()):
        raise NotApplicable(
            f"public inputs of shape {tuple(public.shape)} came, and this needs finite numbers "
            f"with the axes of {tuple(job.inputs.shape)}, {rows.size} of them features"
        )
    return features_of(public, rows.feature)


def require_varying(rows: Rows) -> None:
    """Raise `NotApplicable` where all samples are one, up to rounding."""
    spread = float((rows.plain - rows.plain.mean(dim=0)).norm())
    if spread <= relative_rounding(rows.plain, rows.precision) * float(rows.plain.norm()):
        raise NotApplicable("all samples are one, and this reads how they vary")


def pseudo_inverse(matrix: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    """A⁺, with singular values that are only the rounding of some dtype counted as zero."""
    return torch.linalg.pinv(matrix, rtol=relative_rounding(matrix, precision))


def relative_rounding(matrix: Tensor, precision: torch.dtype) -> float:
    """Up to which share of the largest singular value the others are only rounding."""
    # Rounding entry by entry makes a matrix of a relative norm of about eps, whatever its shape;
    # what grows with the shape is the error of the decomposition, which is done in float64.
    return (
        _ROUNDINGS * torch.finfo(precision).eps + max(matrix.shape) * torch.finfo(torch.float64).eps
    )


class Principal(NamedTuple):
    """Rows in principal coordinates: rows = mean + (white · deviations) axes."""

    mean: Tensor  # (n,)
    white: Tensor  # (rows, rank), of unit covariance
    deviations: Tensor  # (rank,), from the largest
    axes: Tensor  # (rank, n), orthonormal

    @property
    def whitening(self) -> Tensor:
        """From centred rows to white ones, (rank, n)."""
        return self.axes / self.deviations[:, None]

    @property
    def colouring(self) -> Tensor:
        """From white rows to centred ones, (n, rank)."""
        return self.axes.T * self.deviations


def principal(rows: Tensor, precision: torch.dtype = torch.float64) -> Principal:
    """Rows whitened: what is left of a linear key is one rotation of the white coordinates.

    Args:
        rows: (rows, n).
        precision: of which they were rounded; directions that vary less are left out.
    """
    mean, root = rows.mean(dim=0), rows.shape[0] ** 0.5
    left, values, right = torch.linalg.svd(rows - mean, full_matrices=False)
    centred = rows.norm() * relative_rounding(rows, rows.dtype)  # what the mean took away
    least = values[:1] * relative_rounding(rows, precision)
    rank = int((values > least.clamp_min(centred)).sum())
    return Principal(mean, left[:, :rank] * root, values[:rank] / root, right[:rank])
