"""Attacks against one's own job, one file each: mathematics on tensors, and an attempt with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..job import Job
from . import class_moments, independent_components, inner_products, known_pairs
from .attempt import Attempt

ATTACKS: Mapping[str, Callable[[Job], Attempt]] = MappingProxyType({
    "inner-products": inner_products.attempt,
    "neighbours": inner_products.attempt_neighbours,
    "whitened-inner-products": inner_products.attempt_whitened,
    "known-pairs": known_pairs.attempt,
    "independent-components": independent_components.attempt,
    "class-moments": class_moments.attempt,
    "class-labels": class_moments.attempt_labels,
})  # fmt: skip
