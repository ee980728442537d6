"""The smallest model of a configuration of transformers that is built consistently, and its inputs.

    model, inputs = twin(transformers.GPT2Config())
    symmetry = find_symmetry(model, inputs)
    audit(large, large_inputs, twin=(model, inputs))

What each number of a configuration is for follows from its name (`shrinking`), and what depends on
what follows from trying: where a small configuration does not build, or its model does not run,
fields are given back their own values one by one, and then sizes of images and lists of layers are
left alone. What is returned has run. Whether it has the symmetry of the large model is compared by
`smallest_twin`, and by `audit`, which takes no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from paramsym.checking.audit import LIMIT
from paramsym.checkpoints.errors import first_line
from paramsym.checkpoints.inputs import inputs_from_config, tries_of
from paramsym.checkpoints.quieting import quiet
from paramsym.checkpoints.roles import role_of
from paramsym.checkpoints.shrinking import (
    PROFILES,
    Changes,
    Path,
    changed,
    changes_of,
    experts_by_one_product,
    fillings_of,
)
from paramsym.checkpoints.source import Inputs

_MOST = 5_000_000  # parameters of what is built while sizes are tried
_PIXELS = 500_000  # of one picture, above which what stayed large is not run
_AIM = 4_000  # parameters above which smaller sizes are looked for
_SMALL, _SMALLS = 6, (8, 16)
_TABLES = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "MULTIMODAL_LM", "IMAGE_CLASSIFICATION",
    "SPEECH_SEQ_2_SEQ", "CTC", "AUDIO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION",
    "DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION",
)  # fmt: skip


class NoTwin(ValueError):
    """No small model of the configuration has the symmetry of the large one."""


def twin(
    config: Any, *, kind: type[torch.nn.Module] | str | None = None, limit: int = LIMIT
) -> tuple[torch.nn.Module, Inputs]:
    """The smallest model of a configuration that is built consistently, with its example inputs.

    Args:
        config: a configuration of transformers; only read.
        kind: the class of the model, or its name in transformers. By default the one that
            `config.architectures` names, and otherwise the first of the tables of transformers that
            knows the configuration: causal language models, sequence to sequence, masked ones,
            multimodal ones, images, audio, and last the model without a head.
        limit: the largest number of parameters.

    Returns:
        The model, in memory, with fresh weights and in evaluation mode, and keyword inputs with
        which it has run: what `find_symmetry` takes, and `audit` as `twin`.

    Raises:
        NoTwin: no small model could be built or run; the message says why not.
        TypeError: this is no configuration, or no class is known for it.
    """
    kind = _class_of(config, kind)
    if kind.forward is torch.nn.Module.forward:
        raise NoTwin(
            f"twin(config={type(config).__name__}, kind={kind.__name__}): this class has no "
            "forward pass, and a model that runs was expected. Name one of its parts: kind=…"
        )
    config = _own(kind, config)
    failed: list[str] = []
    large: list[Changes] = []
    for changes in _smaller(config):
        if any(changes.items() <= other.items() for other in large):
            continue  # with less of what made it small it is no smaller
        try:
            found = _attempt(kind, changed(config, changes))
            found = _shrunk(kind, found, ordered=True) if found.size > min(limit, _AIM) else found
            if limit < found.size <= _MOST:
                found = _shrunk(kind, found, ordered=False)
        except Exception as error:  # whatever a configuration that nobody meant can raise
            failed.append(first_line(error))
            continue
        if found.size <= limit:
            return found.model, found.inputs
        failed.append(f"its size: {found.size} parameters, more than {limit}")
        large.append(changes)
    raise NoTwin(
        f"twin(config={type(config).__name__}, kind={kind.__name__}): none of {len(failed)} small "
        f"configurations makes a model that runs; the first fails with: {failed[0]}. A "
        f"configuration whose model runs on its main input with at most {limit} parameters was "
        "expected. Build a small model by hand, and give it with its inputs where a twin is asked."
    )


def build(kind: Callable[..., Any], config: Any, device: str) -> torch.nn.Module:
    """A model of a configuration, without a trace in the global random state."""
    own = changed(config, {})  # building writes into the configuration
    construct = getattr(kind, "_from_config")  # noqa: B009 - of every class of transformers
    with quiet(), torch.random.fork_rng(devices=[]), torch.device(device):
        return construct(own).eval()


@dataclass(frozen=True)
class _Attempt:
    """A model that was built and has run on example inputs."""

    config: Any
    model: torch.nn.Module
    inputs: Inputs

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())


def _attempt(kind: type[torch.nn.Module], config: Any, most: int = _MOST) -> _Attempt:
    """Build a model and run it, or only build it where it is too large; failures are raised."""
    found = _Attempt(config, build(kind, config, "meta"), ())
    if found.size > most:
        return found
    model = build(kind, config, "cpu")
    return _Attempt(config, model, _running_inputs(model, config))


def _shrunk(kind: type[torch.nn.Module], found: _Attempt, ordered: bool) -> _Attempt:
    """Shrink what no name speaks of: each number by trying, those that are equal together.

    Where they stay `ordered`, a number that was above a width still is, and so is the vocabulary.
    """
    left = ("token", "vocabulary") if ordered else ("token",)
    sizes = sorted({n for _, value in _fields(found.config, left) for n in _large(value)})
    for rank, value in reversed([*enumerate(sizes)]):
        for small in _below(found.config, value, _SMALL + 2 * rank, ordered):
            changes = {
                path: _with(own, value, small)
                for path, own in _fields(found.config, left) if value in _large(own)
            }  # fmt: skip
            try:
                other = _attempt(kind, changed(found.config, changes), min(_MOST, found.size - 1))
            except Exception:  # this number has to be what it was, or another one
                continue
            if other.size < found.size:
                found = other
                break
    return found


def _large(value: Any) -> list[int]:
    """The large numbers in a number or a list of them."""
    if isinstance(value, (list, tuple)):
        return [n for part in value for n in _large(part)]
    return [value] if type(value) is int and value > max(_SMALLS) else []


def _with(value: Any, old: int, new: int) -> Any:
    """A number, or a list of them, with another one in the place of each that is `old`."""
    if isinstance(value, (list, tuple)):
        return type(value)(_with(part, old, new) for part in value)
    return new if type(value) is int and value == old else value


def _below(config: Any, value: int, small: int, ordered: bool) -> Iterator[int]:
    """Smaller sizes, above all widths that a number was above where they are `ordered`."""
    least = max((own for own in _widths(config) if own < value), default=0) if ordered else 0
    for size in dict.fromkeys((small, *_SMALLS, least + min(_SMALLS))):
        if least < size < value:
            yield size


def _widths(config: Any) -> Iterator[int]:
    """The widths of a configuration and of those nested in it, and of one head."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            yield from _widths(value)
        elif type(value) is int and role_of(name) in ("width", "head"):
            yield value


def _fields(config: Any, left: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The fields of a configuration and of those nested in it, some roles left out."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            yield from _fields(value, left, (*path, name))
        elif role_of(name) not in left:
            yield (*path, name), value


def _smaller(config: Any) -> Iterator[Changes]:
    """Small configurations: every profile; then the first one with sizes where none were said; then
    less a change, less those under one word, and less a part."""
    profiles = [changes_of(config, profile) for profile in PROFILES]
    yield from profiles
    if experts := experts_by_one_product(config):
        yield from (profile | experts for profile in profiles)
    filled, *others = (fillings_of(config, profile) for profile in PROFILES[:2])
    yield profiles[0] | filled
    yield from (made | other for made, other in zip(profiles[1:2], others, strict=True))
    for left in _left(profiles[0]):
        yield {path: value for path, value in profiles[0].items() if path not in left} | filled


def _left(changes: Changes) -> Iterator[set[Path]]:
    """Changes to leave out: one, those of names that begin with one word, those of a part."""
    yield from ({path} for path in _alone(changes))
    first = [path[-1].split("_")[0] + "_" for path in changes if "_" in path[-1]]
    for word in dict.fromkeys(word for word in first if first.count(word) > 1):  # as "mamba_"
        yield {path for path in changes if path[-1].startswith(word)}
    for part in dict.fromkeys(path[:-1] for path in changes if len(path) > 1):
        yield {path for path in changes if path[: len(part)] == part}


def _alone(changes: Changes) -> Iterator[Path]:
    """Changes that others can do without; not that of an image whose patches are small, which would
    be thousands."""
    roles = {path: role_of(path[-1]) for path in changes}
    cut = "patch" in roles.values()
    yield from (path for path, role in roles.items() if not (cut and role == "image"))


def _running_inputs(model: torch.nn.Module, config: Any) -> Inputs:
    """The first of the example inputs that the configuration suggests with which the model runs."""
    refused: Exception | None = None
    for inputs in tries_of(model, config, inputs_from_config(model, config)):
        if any(math.prod(x.shape[-2:]) > _PIXELS for x in inputs.values()):
            continue  # it has patches by the thousand
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                model(**{name: x.clone() for name, x in inputs.items()})
        except Exception as error:  # whatever a model says of inputs that are not its own
            refused = refused or error
        else:
            return inputs
    raise refused or RuntimeError(f"its pictures have more than {_PIXELS} pixels")


def _class_of(config: Any, kind: type[torch.nn.Module] | str | None) -> type[torch.nn.Module]:
    """The class of a model, from an argument, a configuration, or the tables of transformers."""
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        raise TypeError(
            f"twin(config={config!r:.80}): a {type(config).__name__} came, and a configuration of "
            "transformers was expected. Make one, for example transformers.GPT2Config(), or read "
            "one with transformers.AutoConfig.from_pretrained(folder)."
        )
    import transformers

    if isinstance(kind, type):
        return kind
    names = [kind] if kind else [*(getattr(config, "architectures", None) or ()), *_known(config)]
    for name in names:
        found = getattr(transformers, name, None)
        if isinstance(found, type) and hasattr(found, "_from_config"):
            return found
    raise TypeError(
        f"twin(config={type(config).__name__}, kind={kind!r}): {names or 'no class'} came, and the "
        "class of a model in transformers was expected. Give the class itself: kind=…"
    )


def _own(kind: type[torch.nn.Module], config: Any) -> Any:
    """The configuration of a class: where it is that of a part, the part's."""
    wanted = getattr(kind, "config_class", None)
    parts = [part for part in vars(config).values() if hasattr(part, "to_dict")]
    if wanted is None or isinstance(config, wanted):
        return config
    return next((part for part in parts if isinstance(part, wanted)), config)


def _known(config: Any) -> Iterator[str]:
    """Names of the classes that the tables of transformers have for a configuration, in order."""
    from transformers.models.auto import modeling_auto

    tables = [f"MODEL_FOR_{name}_MAPPING_NAMES" for name in _TABLES] + ["MODEL_MAPPING_NAMES"]
    for table in tables:
        names = getattr(modeling_auto, table, {}).get(config.model_type)
        yield from [names] if isinstance(names, str) else names or ()
