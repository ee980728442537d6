"""Example inputs from text and from Hugging Face configurations.

    2x3x32x32                       one floating input, in the dtype of the model
    2x7:int64<50257                 whole numbers from 0 to 50256
    2x7:int64<100,2x7:bool          two positional inputs
    input_ids=2x7:int64<100         a keyword input

Batch 2 and sequence length 7 are primes that seldom equal another size by accident.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paramsym.checkpoints.errors import CheckpointError
from paramsym.checkpoints.source import Inputs

BATCH, LENGTH = 2, 7
_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_BANDS = ("num_mel_bins", "n_mels", "input_feat_per_channel", "feature_projection_input_dim",
          "input_dim", "num_mel_bin", "mel_bins", "feature_size")  # fmt: skip
_FRAMES = 32  # of sound where no table of positions counts them
_HEARD = 10  # places behind a model's first steps, or more
_SAMPLES = 4000  # of sound, at most
_SIDE = 64  # of an image where nothing says how large it is
_PATCHES = 8  # on each side, where windows of some are attended to
_PLACES = (1, 2, 3, 4, 5, 8, 9, 16)  # of an image in a text
LARGEST = 1 << 28  # numbers in all inputs together
AXES = 16
_ITEM = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+)(?:<(?P<below>\d+))?)?",
    re.ASCII,
)
_DTYPES = (
    "float64 float32 bfloat16 float16 complex64 complex128 int64 int32 int16 uint8 bool".split()
)


def parse_inputs(text: str, floating: torch.dtype | None = None) -> Inputs:
    """Random example inputs of the described shapes; always the same ones for one text.

    Args:
        text: see the head of this module.
        floating: dtype of inputs without one; default float32.

    Raises:
        CheckpointError: the text cannot be read.
    """
    generator = torch.Generator().manual_seed(0)
    named: dict[str, torch.Tensor] = {}
    positional: list[torch.Tensor] = []
    items = [_parse(text, item, floating) for item in text.replace(" ", "").split(",")]
    if sum(math.prod(shape) for _, shape, _, _ in items) > LARGEST:
        raise _unreadable(text, f"more than {LARGEST} numbers")
    for name, shape, dtype, below in items:
        made = _random(shape, dtype, below, generator)
        if name in named:
            raise _unreadable(text, f"{name!r} stands in it twice")
        if name:
            named[name] = made
        else:
            positional.append(made)
    if named and positional:
        raise _unreadable(text, "some inputs have a name and others have none")
    return named or tuple(positional)


def _parse(
    text: str, item: str, floating: torch.dtype | None
) -> tuple[str | None, tuple[int, ...], torch.dtype, int]:
    """Name, shape, dtype and bound of one input, each compared with what a tensor can have."""
    match = _ITEM.fullmatch(item)
    if match is None or (match["dtype"] or "float32") not in _DTYPES:
        raise _unreadable(text, f"{item[:60]!r} cannot be read")
    dtype = getattr(torch, match["dtype"]) if match["dtype"] else floating or torch.float32
    sizes = match["shape"].split("x")
    if len(sizes) > AXES or max(len(n.lstrip("0")) for n in sizes) > 18:
        raise _unreadable(text, f"{item[:60]!r} is larger than any memory")
    shape = tuple(int(n) for n in sizes)
    if 0 in shape:
        raise _unreadable(text, f"{item[:60]!r} has no entries")
    return match["name"], shape, dtype, _bound(text, item, match["below"], dtype)


def _bound(text: str, item: str, below: str | None, dtype: torch.dtype) -> int:
    """What the numbers of an input stay below; 2 if the text does not say."""
    if below is None:
        return 2
    most = _most(dtype)
    if len(below.lstrip("0")) > 19 or not 0 < int(below) <= most:
        bound = f"from 1 to {most}" if most else "for whole numbers only"
        raise _unreadable(text, f"the bound in {item[:60]!r}, which for this dtype is {bound}")
    return int(below)


def _most(dtype: torch.dtype) -> int:
    """The largest bound that numbers of a dtype may stay below; 0 where there is none."""
    if dtype == torch.bool:
        return 2
    if dtype.is_floating_point or dtype.is_complex:
        return 0
    return min(torch.iinfo(dtype).max + 1, (1 << 63) - 1)


def _unreadable(text: str, came: str) -> CheckpointError:
    return CheckpointError(
        f"--inputs {text if len(text) < 100 else text[:100] + '…'}", came,
        f"shapes such as 2x3x32x32, 2x7:int64<50257 or x=2x5 (dtypes: {', '.join(_DTYPES)})",
        "Separate several inputs by commas, and name all of them or none",
    )  # fmt: skip


def _random(
    shape: tuple[int, ...], dtype: torch.dtype, below: int, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, below, shape, generator=generator).to(dtype)


def floating_dtype(model: torch.nn.Module) -> torch.dtype:
    """The dtype of the first floating parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def inputs_from_config(model: torch.nn.Module, config: Any) -> dict[str, torch.Tensor]:
    """Keyword inputs for a Hugging Face model, from the sizes in its configuration.

    Those are its main input, and what else it accepts that the configuration speaks of.
    """
    generator, dtype = torch.Generator().manual_seed(0), floating_dtype(model)
    accepted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    spoken_of = {
        "input_ids": hasattr(config, "text_config"),
        "pixel_values": getattr(config, "vision_config", None) is not None,
        "decoder_input_ids": getattr(config, "is_encoder_decoder", False),
    }
    made = {
        name: make(config, dtype, generator)
        for name, make in _INPUTS.items()
        if name == main or (name in accepted and spoken_of.get(name))
    }
    if not made:
        raise CheckpointError(
            type(model).__name__, f"its main input is {main!r}",
            "input_ids, pixel_values, input_features or input_values",
            f"Give --inputs {main}=SHAPE, for example --inputs {main}=2x7:float32",
        )  # fmt: skip
    return made


def tries_of(
    model: torch.nn.Module, config: Any, inputs: dict[str, torch.Tensor]
) -> Iterator[dict[str, torch.Tensor]]:
    """Example inputs that a model may ask for: the given ones, a film for an image, with
    places for an image in a text, and without what belongs to another tower.

    Where an image enters a text, as many places of the text as it has features hold a token of its
    own; how many that are is found by trying.
    """
    if "pixel_values" in inputs and (side := _side_of_patches(config)):
        x = inputs["pixel_values"]
        generator = torch.Generator().manual_seed(0)
        picture = _random((*x.shape[:2], side, side), x.dtype, 0, generator)
        yield {**inputs, "pixel_values": picture}
    yield inputs
    if "input_features" in inputs:  # frames first, and many where steps skip some of them
        x = inputs["input_features"]
        yield {**inputs, "input_features": x.transpose(1, 2).contiguous()}
        generator = torch.Generator().manual_seed(0)
        long = _random((len(x), 4 * _FRAMES, x.shape[1]), x.dtype, 0, generator)
        yield {**inputs, "input_features": long}
        yield {**inputs, "input_features": long.transpose(1, 2).contiguous()}
    frames = getattr(config, "num_frames", None)
    if isinstance(frames, int) and "pixel_values" in inputs:
        x = inputs["pixel_values"]
        generator = torch.Generator().manual_seed(0)
        film = _random((len(x), frames, *x.shape[1:]), x.dtype, 0, generator)
        yield {**inputs, "pixel_values": film}
    token = next((t for name in _IMAGE_TOKENS if (t := getattr(config, name, None))), None)
    if token is not None and {"input_ids", "pixel_values"} <= inputs.keys():
        for count in _PLACES:
            ids = torch.where(inputs["input_ids"] == token, token - 1, inputs["input_ids"])
            places = ids.new_full((len(ids), count), token)
            yield {**inputs, "input_ids": torch.cat([places, ids], 1)}
    if "input_ids" in inputs and len(inputs) > 1:
        yield {name: x for name, x in inputs.items() if name != "pixel_values"}


def _tokens(config: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Whole numbers below the size of the vocabulary; the dtype is that of other inputs."""
    text = getattr(config, "text_config", None) or config
    count = int(getattr(text, "vocab_size", None) or 2)
    room = int(getattr(text, "max_position_embeddings", None) or 0)
    room = room if room > 0 else 1 << 20  # −1 says that there is no limit (XLNet)
    length = max(1, min(LENGTH, room - 2 if room > 4 else room))
    padding = getattr(text, "pad_token_id", None)
    ids = torch.randint(0, count, (BATCH, length), generator=generator)
    if padding is None or count == 1:
        return ids
    # Padding would hide positions from the function.
    return torch.where(ids == padding, (ids + 1) % count, ids)


def _pixels(config: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or _SIDE
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    channels = int(getattr(vision, "num_channels", None) or 3)
    return _random((BATCH, channels, int(height), int(width)), dtype, 0, generator)


def _side_of_patches(config: Any) -> int:
    """The side of an image of some patches, where only a part of the configuration speaks of
    patches and nothing of the image that goes in; 0 otherwise."""
    vision = getattr(config, "vision_config", None) or config
    if getattr(vision, "image_size", None) or getattr(vision, "patch_size", None):
        return 0
    side = _PATCHES * next(_sizes(config, ("patch_size",)), 0)
    return side if side < _SIDE else 0


def _spectrogram(config: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    bands = next(_sizes(config, _BANDS), 16)
    steps = next(_sizes(config, ("subsampling_factor",)), 1)
    frames = max(_FRAMES, _HEARD * steps)
    frames = next((2 * n for n in _sizes(config, ("max_source_positions",))), frames)
    return _random((BATCH, bands, frames), dtype, 0, generator)


def _sizes(config: Any, names: Sequence[str]) -> Iterator[int]:
    """Numbers that a configuration, or one nested in it, has under the first of some names."""
    parts = [part for part in vars(config).values() if hasattr(part, "to_dict")]
    for own in (config, *parts):
        found = (getattr(own, name, None) for name in names)
        yield from (size for size in found if isinstance(size, int) and size > 0)


def _waveform(config: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Sound of some frames, where convolutions say how long one is."""
    kernels, strides = (getattr(config, f"conv_{name}", ()) or () for name in ("kernel", "stride"))
    samples = _FRAMES if kernels else _SAMPLES
    for kernel, stride in reversed([*zip(kernels, strides, strict=False)]):
        samples = (samples - 1) * stride + kernel
    return _random((BATCH, min(samples, _SAMPLES)), dtype, 0, generator)


_INPUTS = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "input_features": _spectrogram,
    "input_values": _waveform,
    "decoder_input_ids": _tokens,
}
