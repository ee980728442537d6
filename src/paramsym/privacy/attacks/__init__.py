"""Attacks against one's own job, one file each: mathematics on tensors, and an attempt with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..job import Job
from . import (
    class_frequencies,
    class_moments,
    independent_components,
    inner_products,
    input_key,
    known_pairs,
    linking,
    public_statistics,
    public_weights,
    rates,
    used_parameters,
)
from .attempt import Attempt

ATTACKS: Mapping[str, Callable[[Job], Attempt]] = MappingProxyType({
    "inner-products": inner_products.attempt,
    "neighbours": inner_products.attempt_neighbours,
    "whitened-inner-products": inner_products.attempt_whitened,
    "known-pairs": known_pairs.attempt,
    "independent-components": independent_components.attempt,
    "class-moments": class_moments.attempt,
    "class-labels": class_moments.attempt_labels,
    "input-key": input_key.attempt,
    "orbit-invariants": linking.attempt,
    "matched-sessions": linking.attempt_by_matching,
    "answers": linking.attempt_by_answers,
    "answer-to-zero": linking.attempt_at_zero,
    "leverages": linking.attempt_by_data,
    "public-statistics": public_statistics.attempt,
    "class-frequencies": class_frequencies.attempt,
    "public-weights": public_weights.attempt,
    "learning-rates": rates.attempt,
    "used-parameters": used_parameters.attempt,
    "cached-parameters": used_parameters.attempt_in_another_session,
})  # fmt: skip
