"""What the types say of a key and a training step before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from paramsym.arguments import checked
from paramsym.geometry.updates import Update, updates_of
from paramsym.privacy.keys.key import Key
from paramsym.structure.element import Slide
from paramsym.structure.symmetry import ParameterSymmetry

Compare: TypeAlias = Callable[[Any, Tensor], Tensor]
Clip: TypeAlias = Callable[[list[nn.Parameter]], Any]
_TOLERANCE = 1e-7  # half of the digits: products of many elements lose some


class Expected(Enum):
    """What is known beforehand of a key and a training step; the value says it in words."""

    RETRACES = "the step commutes with the key, up to rounding"
    EXACT_ONLY = "the step commutes with the key in exact arithmetic only"
    PARTS = "the step does not commute with the key"
    UNKNOWN = "nothing is known of a part of the step"


@checked
def expectation(
    key: Key,
    optimizer: torch.optim.Optimizer,
    loss: nn.Module | Compare | None = None,
    clip: Clip | None = None,
) -> Expected:
    """What the types say of a key and a training step, before anything is run.

    Args:
        key: made for this step or for another one.
        optimizer: of the step.
        loss: of `torch.nn`; of others it is believed that the key was made for them.
        clip: what is done to gradients, if it is known by its name.
    """
    try:
        updates = (*updates_of(optimizer), *_clipping(clip))
        known = loss if isinstance(loss, nn.Module) else key.loss
        allowed = Key.of(
            key.symmetry, {}, updates, known, trainable=key.trainable, inexact=True
        ).acting
    except ValueError:
        return Expected.UNKNOWN
    if not _contains(allowed, key):
        return Expected.PARTS
    inexact = any(each.inexact for each in updates)
    return Expected.EXACT_ONLY if inexact else Expected.RETRACES


def _clipping(clip: Clip | None) -> tuple[Update, ...]:
    """What is known of a clipping by its name, where its norm is the Euclidean one."""
    if clip is None:
        return ()
    other = getattr(clip, "keywords", {}).get("norm_type", 2)
    name = getattr(getattr(clip, "func", clip), "__name__", "")
    return updates_of("clip_grad_value" if float(other) != 2 else name)


def _contains(allowed: ParameterSymmetry, key: Key) -> bool:
    """Whether a key lies in a subgroup, space by space; what acts in frames lies in none."""
    for part in key.element.parts:
        if isinstance(part, Slide):
            if part.shift not in allowed.shift_of:
                return False
            continue
        for name, value in part.items():
            own, space = key.acting.spaces[name], allowed.spaces.get(name)
            if space is None or (space.over, space.size) != (own.over, own.size):
                return False
            known = own.group <= space.group
            if not known and not space.group.contains(value.to(torch.float64), _TOLERANCE):
                return False
            if any(leg.frame for leg in key.acting.legs(name)):
                return False
    return True
