"""`merge`: one network from several of one architecture, aligned first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paramsym.geometry.alignment import align as nearest
from paramsym.geometry.given import numbers_of
from paramsym.merging.differences import relative_distances
from paramsym.merging.interpolation import mixed, require_kind
from paramsym.merging.procrustes import Aligner, Procrustes, Read
from paramsym.merging.shares import normalised
from paramsym.merging.states import State, combined, has_values, require_alike
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.layout import working_dtype
from paramsym.structure.symmetry import ParameterSymmetry

Params = dict[str, Tensor]


class Hopeless(ValueError):
    """Networks that stay so far from each other that their mean is none of them."""


@dataclass(frozen=True)
class Merged:
    """One network from several.

    Attributes:
        params: the merged state dict.
        elements: one for each model, which moves it to where the reference is; the identity for
            the reference.
        aligned: the models after their elements, whose average `params` is (of half precision
            before it is rounded); the parents that `repair` takes.
        distances: of each aligned model y from the reference x, |x − y| / √(|x|² + |y|²): 0 for
            equal ones and 1 for orthogonal ones. Buffers and dead parameters do not count.
        objective: Σ wᵢ |gᵢ xᵢ − m|² about the weighted mean m, as given, after the first
            alignment and after each round; it never rises.
    """

    params: dict[str, Tensor]
    elements: tuple[GroupElement, ...]
    aligned: tuple[dict[str, Tensor], ...]
    distances: tuple[float, ...]
    objective: tuple[float, ...]

    def between(self, i: int, j: int) -> GroupElement:
        """The element that moves model i to where model j is: g_j⁻¹ g_i.

        They are consistent around cycles: `between(j, k) @ between(i, j)` acts as `between(i, k)`.
        """
        return ~self.elements[j] @ self.elements[i]


def merge(
    symmetry: ParameterSymmetry,
    models: Sequence[State],
    align: Aligner = nearest,
    weights: Sequence[float] | None = None,
    kind: str = "linear",
    reference: int | None = None,
    rounds: int = 20,
    read: Read | None = None,
    threshold: float = 0.9,
    force: bool = False,
) -> Merged:
    """The weighted mean of networks, after each is moved along its orbit next to the others.

    Two are aligned and averaged. For more the elements g_i of generalised Procrustes analysis are
    found: each model in turn is aligned to the mean of all others as they are now, which lowers

        Σ wᵢ |gᵢ xᵢ − m|²,   m = Σ wᵢ gᵢ xᵢ,

    until it falls no longer. A move that would raise it is not made. Since every model has one
    element, the maps g_j⁻¹ g_i between pairs compose without contradiction, unlike those found
    pair by pair.

    Args:
        symmetry: of the architecture.
        models: complete state dicts, at least two; they are only read.
        align: moves one set of parameters next to another: `align(symmetry, a, b, data=None)`, a
            result with the `element` that moves b; `paramsym.align` by default, which gets options
            by a partial function, `partial(align, spaces="permutations")`.
        weights: of the models, positive; all alike by default.
        kind: "linear", or for two models "spherical" as in `interpolate`.
        reference: the model that stays where it is, by its place; the first by default.
        rounds: for more than two models, at most so many turns of all after the first.
        read: from a state dict to its readings on data, for an alignment by activations: `lambda
            params: readings(model, symmetry, params, inputs)`. They are then the xᵢ of the
            objective, and `align` gets those of both sides as `data`.
        threshold: the largest of `distances` at which models are merged; 1 is that of orthogonal
            ones. It says whether entries agree, and no more: wide networks of independent seeds
            stay at 0.7 and merge without a barrier, so look at `loss_barrier`, too.
        force: merge beyond the threshold all the same.

    Returns:
        A `Merged`.

    Raises:
        Hopeless: an aligned model is beyond the threshold; a `ValueError`.
        ValueError: fewer than two models, models that differ in names, shapes or dtypes, weights
            that are not positive, spherical paths between more than two, a reference that is none
            of them, or as `act`.

    Source: Gower, "Generalized Procrustes analysis" (1975); for permutations of networks
    Crisostomi, Fumero, Baieri, Bernard and Rodolà, "C²M³: Cycle-consistent multi-model merging"
    (2024); two models Ainsworth, Hayase and Srinivasa, "Git Re-Basin" (2023).
    """
    fixed = _checked(models, kind, reference, rounds)
    given = [numbers_of(symmetry, model, "merge") for model in models]
    require_alike("merge", given)
    shares = normalised("merge", weights, len(models))
    search = Procrustes(symmetry, given, align, shares, fixed, read)
    search.settle(rounds if len(models) > 2 else 0)
    distances = [relative_distances(symmetry, search.moved[fixed], x) for x in search.moved]
    whole = tuple(each.pop("") for each in distances)
    if not force:
        _require_near(whole, distances, threshold, fixed)
    order = sorted(range(len(models)), key=lambda i: i != fixed)  # integers are of the reference
    if kind == "spherical":
        order = [0, 1]
    params = _mean(search, order, [shares[i] for i in order], kind)
    return Merged(
        params, tuple(search.elements), tuple(search.moved), whole, tuple(search.objective)
    )


def _mean(search: Procrustes, order: Sequence[int], shares: Sequence[float], kind: str) -> Params:
    """The mean of all models where they are now, rounded once.

    What is in half precision is moved and averaged in single; `search.moved` was rounded there.
    """
    moved = [search.moved[i] for i in order]
    first = [t for t in moved[0].values() if has_values(t)]
    if all(working_dtype(t) == t.dtype for t in first):
        return mixed(moved, shares, kind)
    wide = [act(search.symmetry, search.elements[i], _widely(search.models[i])) for i in order]
    found = mixed(wide, shares, kind)
    return combined(moved[:1], lambda name, _: found[name])


def _widely(params: Params) -> Params:
    return {n: t.to(working_dtype(t)) if has_values(t) else t for n, t in params.items()}


def _checked(models: Sequence[Any], kind: str, reference: int | None, rounds: int) -> int:
    """The place of the reference, after a look at the arguments."""
    require_kind("merge", kind)
    count = len(models)
    if count < 2:
        raise ValueError(
            f"merge(models=…): {count} came, and at least two state dicts were expected. Pass a "
            "list of them."
        )
    if kind == "spherical" and count > 2:
        raise ValueError(
            f"merge(kind='spherical'): {count} models came, and a great circle goes through two. "
            "Pass kind='linear' for the mean of many."
        )
    if rounds < 0:
        raise ValueError(
            f"merge(rounds={rounds}): a number of turns was expected, zero for the first alignment "
            "alone. Leave it at 20."
        )
    if reference is not None and not 0 <= reference < count:
        raise ValueError(
            f"merge(reference={reference}): the place of one of {count} models was expected, from "
            "0 on. Leave it out for the first."
        )
    return reference or 0


def _require_near(
    whole: Sequence[float],
    by_tensor: Sequence[Mapping[str, float]],
    threshold: float,
    reference: int,
) -> None:
    worst = max(range(len(whole)), key=lambda i: whole[i])
    if whole[worst] <= threshold:
        return
    tensors = sorted(by_tensor[worst].items(), key=lambda item: -item[1])[:3]
    far = ", ".join(f"{name!r} ({distance:.2f})" for name, distance in tensors)
    raise Hopeless(
        f"merge(models=…, threshold={threshold}): after alignment model {worst} is at a relative "
        f"distance of {whole[worst]:.3f} from model {reference}, farthest in {far}; at most "
        f"{threshold} was expected of networks that share an origin. Their mean may be no network "
        "at all: check that they are trained on one task, measure loss_barrier, and pass "
        "force=True or a larger threshold to merge them all the same."
    )
