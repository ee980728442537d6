"""Variants of a tiny model and its inputs: what comes and goes with them is no symmetry."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from atlas_page import REASONS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paramsym.primitives import NEGLIGIBLE
from paramsym.recording.record import split_inputs

_AGAIN = 12_000  # parameters, of what is audited again with so many words, or on so many places:
_WORDS, _TIMES = 180, 16  # and no more than so many times as many
_PLACES = 17
_LONGER = 3  # times, of sound
_NOISE = 0.3  # that is added to weights, and in further draws:
_NOISES = _NOISE, 2.4, 0.6, 1.2
_SEEN = 0.01  # an ε that is no rounding
Made = tuple[nn.Module, Any]


def randomise(model: nn.Module, inputs: Any, seed: int = 0, noise: float = _NOISE) -> None:
    """Generic parameters, statistics of the inputs, and an ε of norms that numbers can see.

    With other statistics a ReLU may be open wherever its batch norm can be. A scale before an ε of
    1e-6 leaves the function as it is to eight digits, and is no symmetry; scales before one below
    `NEGLIGIBLE` are claimed, and said to be approximate.
    """
    _widen(model, NEGLIGIBLE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.add_(noise * torch.randn(p.shape, generator=generator).to(p))
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(0.2 * torch.randn(b.shape, generator=generator).to(b))
            elif name.endswith("running_var"):
                b.copy_(0.5 + torch.rand(b.shape, generator=generator).to(b))
    model.eval()
    _settle(model, inputs)


def _settle(model: nn.Module, inputs: Any) -> None:
    """Give batch norms the statistics of these inputs, where there are several values of each."""
    every = (m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats)
    norms = nn.ModuleList(every)
    if not norms:
        return
    before = copy.deepcopy(norms.state_dict())
    for m in norms:
        m.momentum = 1.0  # the last statistics are all; nothing else reads it in eval mode
    args, kwargs = split_inputs(inputs)
    norms.train()
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except ValueError:  # one value has no variance
        norms.load_state_dict(before)
    norms.eval()


def _widen(model: nn.Module, least: float) -> bool:
    """Give norms with an ε above `least` one that numbers can see; whether there was any."""
    widened = False
    for module in model.modules():
        for name in ("eps", "epsilon", "variance_epsilon"):
            if isinstance(size := getattr(module, name, 0), float) and least < size < _SEEN:
                setattr(module, name, _SEEN)
                widened = True
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            module.eps = _SEEN
    return widened


def _with_wide_norms(model: nn.Module, inputs: Any) -> Iterator[Made]:
    """The same model where no ε is below `NEGLIGIBLE`, if one was.

    What such a norm lets pass, up to ε, is more than the scales that are claimed: that of the one
    vector that it sees at the padding, say.
    """
    other = copy.deepcopy(model)
    if _widen(other, 0.0):
        yield other, inputs


def _at_other_weights(model: nn.Module, inputs: Any) -> Iterator[Made]:
    """The same model at other weights, with more words where it can have them.

    A ReLU that is open wherever its layer norm can be leads on in a straight line, and a maximum of
    two sees one: at these weights, and not at others, or larger ones. What leaves the function
    unchanged at all weights does so at each, so that the least count of several draws is an upper
    bound as each is.
    """
    for seed, noise in enumerate(_NOISES, 1):
        other = _with_more_words(model, inputs, seed, noise)
        if other is None:
            other = copy.deepcopy(model)
            randomise(other, inputs, seed, noise)
        yield other, inputs


def _on_more_words(model: nn.Module, inputs: Any) -> Iterator[Made]:
    other = _with_more_words(model, inputs)
    if other is not None:
        yield other, inputs


def _with_more_words(
    model: nn.Module, inputs: Any, seed: int = 0, noise: float = _NOISE
) -> nn.Module | None:
    """The same model with more words, where it has words, builds so, and can be audited.

    A layer that sees nothing but words is seen at so many inputs only: with 40 words, the experts
    beside the first attention of a parallel block have more parameters than values.
    """
    few = getattr(getattr(model, "config", None), "vocab_size", None) or _WORDS
    words = min(_WORDS, _TIMES * few)
    made = _rebuilt(model, inputs, {"vocab_size": words}, seed, noise)
    count = sum(p.numel() for p in made.parameters()) if made is not None else 0
    return made if sum(p.numel() for p in model.parameters()) < count <= _AGAIN else None


def _rebuilt(
    model: nn.Module, inputs: Any, sizes: dict[str, int], seed: int = 0, noise: float = _NOISE
) -> nn.Module | None:
    """The same model with other sizes where its configuration has them; None if it has none."""
    config = copy.deepcopy(getattr(model, "config", None))
    for part in (config, getattr(config, "get_text_config", lambda: None)()):
        for name, size in sizes.items():
            if hasattr(part, name):
                setattr(part, name, size)
    torch.manual_seed(seed)
    try:
        made = type(model)._from_config(config).eval()
    except Exception:  # it has no configuration, or other sizes go by these
        return None
    randomise(made, inputs, seed, noise)
    return made


def _on_longer_inputs(model: nn.Module, inputs: Any) -> Iterator[Made]:
    """The same model on longer texts and longer sound, where these are all that it is given.

    What reads positions alone sees as many vectors as there are.
    """
    named = inputs if isinstance(inputs, dict) else {}
    config = vars(getattr(model, "config", None) or model)
    known = {name: _PLACES + 4 for name in config if "max_position" in name}
    other = _rebuilt(model, inputs, known) if known else copy.deepcopy(model)
    for axis in (-1, -2):  # along which sound is long
        given = {name: _longer(name, x, axis) for name, x in named.items()}
        if other is None or not given or any(x is None for x in given.values()):
            return
        try:
            other(**given)
        except Exception:  # that is no length that it takes
            continue
        yield other, given
        return


def _longer(name: str, x: torch.Tensor, axis: int) -> torch.Tensor | None:
    """More words of a text, or more sound; None where it is neither."""
    generator = torch.Generator().manual_seed(7)
    if name.endswith("input_ids"):
        words = x[x != x.min()]
        return words[torch.randint(len(words), (len(x), _PLACES), generator=generator)]
    if name not in ("input_values", "input_features") or x.ndim <= -axis:
        return None
    shape = [*x.shape]
    shape[axis] *= _LONGER
    return torch.randn(shape, generator=generator)


WAYS: dict[str, Callable[[nn.Module, Any], Iterator[Made]]] = dict(
    zip(
        REASONS,
        (_with_wide_norms, _on_longer_inputs, _on_more_words, _at_other_weights),
        strict=True,
    )
)
