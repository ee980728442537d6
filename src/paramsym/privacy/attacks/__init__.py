"""Attacks against one's own job, one file each: mathematics on tensors, and an attempt with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..job import Job
from .attempt import Attempt

ATTACKS: Mapping[str, Callable[[Job], Attempt]] = MappingProxyType({})
