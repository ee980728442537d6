"""`attack`: the thin door to attacks in the maximum norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import refusals
from .ball import projection
from .fast_gradient_sign import fast_gradient_sign
from .losses import loss_of
from .modes import evaluating
from .projected_gradient import projected_gradient
from .slope import Slope


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: str = "fgsm",
    *,
    epsilon: float,
    clip: tuple[float, float],
    steps: int = 10,
    step_size: float | None = None,
    random_start: bool = False,
    through: str = "mean-logits",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Inputs within ε of the given ones, in every entry, at which a classifier does worse.

    An attack is **adaptive** where `model` is what is to be judged, and **transferred** where the
    result is shown to another model: attack the single network, and let the ensemble vote. For an
    ensemble the gradient goes through all of its members, since a vote has none.

    One attack that fails shows nothing about robustness: `robust_accuracy` takes several.

    Args:
        model: a network that returns logits (batch, classes), not probabilities: a softmax in the
            model is applied a second time by the loss, and flattens it. Or an ensemble. It is run
            in evaluation mode, and keeps its mode.
        x: clean inputs, (batch, …), within `clip`.
        y: their labels, (batch,).
        method: "fgsm", one step to the corner of the ball, or "pgd", projected steps.
        epsilon: radius in the maximum norm, in the unit of the inputs.
        clip: least and largest value of the data: (0, 1) for images in [0, 1], (-0.5, 0.5) where
            they are centred. There is no default, since a wrong one destroys the images and looks
            like an attack that works; (-inf, inf) stands for no range.
        steps: of "pgd".
        step_size: of "pgd", in the unit of the inputs; by default 2.5 ε / steps.
        random_start: begin at a uniform point of the ball.
        through: how an ensemble is climbed: "mean-logits", "mean-probabilities" or "mean-loss",
            cross-entropies that are all the same for one network; or "margin", the largest other
            logit minus that of the label, which has a gradient where these saturate.
        generator: for the random start.

    Returns:
        Adversarial inputs, in the ball and in the range.

    Warns:
        UserWarning: samples whose gradient is zero in every entry, with their number. They stay
            where they are, and an accuracy on them is none under attack. Entries that ε cannot
            move, since it is less than the distance to the next number of that precision.

    Raises:
        ValueError: inputs outside the range or not finite, labels that are none, a method that is
            not known, sizes that are not positive, a random start without a generator, a model
            that is no module or answers something else, a gradient that is none or not finite.

    Source: Goodfellow et al. 2015; Madry et al. 2018; on adaptive attacks Athalye, Carlini and
    Wagner, "Obfuscated gradients give a false sense of security" (2018).
    """
    refusals.require_model(model)
    refusals.require_data(x, y, clip)
    refusals.require_options(method, epsilon, steps, step_size, random_start, through, generator)
    with torch.inference_mode(False), evaluating(model):
        x, y = x.detach().clone(), y.long().clone()  # autograd takes no tensors of inference mode
        into = projection(x, epsilon, clip)
        start = x
        if random_start and generator is not None:
            drawn = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=generator.device)
            start = into(x + epsilon * (2 * drawn.to(x.device) - 1))
        slope = Slope(loss_of(model, y, through))
        if method == "fgsm":
            found = into(fast_gradient_sign(slope, start, epsilon))
        else:
            step = 2.5 * epsilon / steps if step_size is None else step_size
            found = projected_gradient(slope, start, step, steps, into)
    if epsilon:
        slope.tell(through)
    return found
