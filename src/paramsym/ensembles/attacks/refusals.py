"""What an attack refuses: four parts each, and a way out."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

METHODS = ("fgsm", "pgd")
THROUGH = ("mean-logits", "mean-probabilities", "mean-loss", "margin")
_OUTSIDE = (
    "Images that are centred, in [-0.5, 0.5], lose half of their pixels when they are clipped to "
    "[0, 1], and the accuracy that this costs looks like that of an attack. "
)


def require_data(x: Any, y: Any, clip: Any) -> None:
    """Finite inputs in the range of the data, and a label for each."""
    low, high = _range(clip)
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim:
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"attack(x=…): {came} came; a floating tensor (batch, …) was expected, since an "
            "attack moves its entries continuously. Pass x.float() / 255 for bytes."
        )
    if not bool(x.isfinite().all()):
        raise ValueError(
            "attack(x=…): entries that are not finite came; finite ones were expected, as there is "
            "no gradient at others. Leave out the samples that have any."
        )
    if x.numel() and (float(x.min()) < low or float(x.max()) > high):
        raise ValueError(
            f"attack(x=…, clip=({low}, {high})): entries from {float(x.min()):.4g} to "
            f"{float(x.max()):.4g} came; entries in [{low}, {high}] were expected. {_OUTSIDE}"
            "Pass as clip the least and largest value that the data can have."
        )
    _require_labels(y, x.shape[0])


def require_model(model: Any) -> None:
    """A module, which has a mode to be evaluated in."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"attack(model=…): a {type(model).__name__} came; an nn.Module was expected, since it "
            "is run in evaluation mode. Pass the network itself, or a module that calls your "
            "function."
        )


def require_answers(made: Any, labels: Tensor, axes: int) -> None:
    """Logits with a class for each label, behind `axes` axes of members and samples."""
    good = isinstance(made, Tensor) and made.is_floating_point() and made.ndim == axes + 1
    if not good or made.shape[-2] != len(labels) or made.shape[-1] < 2:
        came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"attack(model=…): the model answers {came} to {len(labels)} samples; logits (batch, "
            "classes) of at least two classes were expected. Pass a module that picks them out "
            "of what yours returns; an ensemble has outputs= for that."
        )
    if labels.numel() and int(labels.max()) >= made.shape[-1]:
        raise ValueError(
            f"attack(y=…): class {int(labels.max())} came; classes below {made.shape[-1]} were "
            "expected, as many as the model has logits. Pass the labels that it was trained on."
        )


def require_slope(loss: Tensor) -> None:
    """A loss that autograd can follow back to the inputs."""
    if not loss.requires_grad:
        raise ValueError(
            "attack(model=…): what the model answers has no gradient in x; an answer that autograd "
            "follows was expected. Look for detach(), no_grad() or NumPy in the model, or for an "
            "answer that does not depend on x."
        )


def _require_labels(y: Any, count: int) -> None:
    good = isinstance(y, Tensor) and y.shape == (count,) and not y.is_floating_point()
    if not good or y.dtype == torch.bool or (y.numel() and int(y.min()) < 0):
        came = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"attack(y=…): {came} came; one class was expected, a whole number ≥ 0, for each "
            f"of {count} inputs. Pass the true labels as a tensor of integers."
        )


def _range(clip: Any) -> tuple[float, float]:
    good = isinstance(clip, (tuple, list)) and len(clip) == 2
    if not good or not all(isinstance(v, Real) for v in clip) or not clip[0] < clip[1]:
        raise ValueError(
            f"attack(clip={clip!r}): it is no range; (low, high) with low < high was expected, the "
            "least and largest value that the data can have. Pass (0, 1) for images in [0, 1]."
        )
    return float(clip[0]), float(clip[1])


def require_options(
    method: Any, epsilon: Any, steps: Any, step_size: Any, random_start: Any, through: Any,
    generator: Any,
) -> None:  # fmt: skip
    """Known methods, and sizes in their ranges."""
    if method not in METHODS or through not in THROUGH:
        raise ValueError(
            f"attack(method={method!r}, through={through!r}): one of {[*METHODS]} and one of "
            f"{[*THROUGH]} were expected. Pass method='pgd' for the stronger attack."
        )
    if not _positive(epsilon, zero=True):
        raise ValueError(
            f"attack(epsilon={epsilon!r}): a finite radius ≥ 0 was expected, in the unit of the "
            "inputs. Pass for example epsilon=8 / 255 for images in [0, 1]."
        )
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise ValueError(
            f"attack(steps={steps!r}): a whole number of steps was expected, at least one. Pass "
            "for example steps=10."
        )
    if step_size is not None and not _positive(step_size):
        raise ValueError(
            f"attack(step_size={step_size!r}): a positive finite number was expected, in the unit "
            "of the inputs. Leave it out for 2.5 ε / steps."
        )
    if random_start and not isinstance(generator, torch.Generator):
        raise ValueError(
            f"attack(random_start=True, generator={generator!r}): a torch.Generator was expected, "
            "since the start is random. Pass torch.Generator().manual_seed(0)."
        )


def _positive(value: Any, zero: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return (0 <= float(value) if zero else 0 < float(value)) and float(value) < math.inf
