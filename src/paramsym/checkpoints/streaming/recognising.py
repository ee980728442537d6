"""How quantised weights lie in files: which tensors are one weight, and which blocks they share.

`X.weight` or `X.qweight` are codes, and what stands beside them says what they mean:

layout      codes                               beside them
blocks      weight (out, in), 8 bits            weight_scale_inv or weight_scale (⌈out/b⌉, ⌈in/c⌉)
channels    weight (out, in), 8 bits            weight_scale (out, 1)
tensors     weight (out, in), 8 bits            weight_scale (1)
GPTQ        qweight (in·bits/32, out), int32    qzeros (groups, out·bits/32), scales (groups, out),
                                                g_idx (in)
AWQ         qweight (in, out·bits/32), int32    qzeros (groups, out·bits/32), scales (groups, out)

`weight_zero_point` has the shape of the scales; `input_scale` is of what is multiplied by the
weight. The sizes of blocks are those of config.json where shapes leave them open. A tensor beside
the codes that is none of these would be left behind when the weight moves, and is refused.

Sources: transformers `FineGrainedFP8Config` (weight_block_size), compressed-tensors 0.20
(`weight_scale`, `weight_zero_point`, `input_scale`), GPTQ of Frantar et al. 2023 as AutoGPTQ packs
it, AWQ of Lin et al. 2024 as AutoAWQ packs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from paramsym.checkpoints.checkpoint import Checkpoint, Entry
from paramsym.checkpoints.errors import CheckpointError, few
from paramsym.checkpoints.streaming.quantised import Follows, StoredPart, StoredWeight
from paramsym.checkpoints.streaming.spelling import PACKED
from paramsym.structure.symmetry import ParameterSymmetry

_SHARED = ("_scale_inv", "_scale", "_zero_point")
_INPUTS = ("input_scale", "input_scale_inv", "input_zero_point")
_TABLES = ("scales", "qzeros", "g_idx")
_INSTEAD = (
    "Move the weights that it was quantised from, and quantise them again; or leave out of the "
    "element what moves it, with --only"
)


def beside_codes(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, list[str]]:
    """Codes → the tensors beside them that a model does not know, which has `names`."""
    modules: dict[str, list[str]] = {}
    for name in checkpoint:
        if name not in names:
            modules.setdefault(name.rpartition(".")[0], []).append(name)
    found = {}
    for name in names:
        module, _, last = name.rpartition(".")
        own = modules.get(module, [])
        if last not in ("weight", PACKED):
            own = [other for other in own if other.startswith(f"{name}_")]
        if own or last == PACKED:
            found[name] = own
    return found


@dataclass(frozen=True)
class Storage:
    """The quantised weights of a checkpoint whose names a model knows.

    `names` maps a name of the files to that of the model.
    """

    checkpoint: Checkpoint
    symmetry: ParameterSymmetry
    names: Mapping[str, str]

    @cached_property
    def beside(self) -> dict[str, list[str]]:
        """Codes → the tensors beside them that the model does not know."""
        return beside_codes(self.checkpoint, self.names)

    @cached_property
    def models(self) -> dict[str, str]:
        """The quantised tensors of the signature → the codes in the files."""
        ties = self.symmetry.ties
        return {ties.get(self.names[name], self.names[name]): name for name in self.beside}

    def weight(self, name: str) -> StoredWeight:
        """How the weight with these codes is stored.

        Raises:
            CheckpointError: a tensor beside them is unknown, or shapes fit no layout.
        """
        own = self.symmetry.ties.get(self.names[name], self.names[name])
        if name.endswith(f".{PACKED}"):
            return _packed(self, name, own)
        return _in_blocks(self, name, own)

    def require_no_strangers(self, moved: Collection[str]) -> None:
        """Raise for scales of a module whose weights move: of its keys, values or outputs."""
        parents = {name.rpartition(".")[0].rpartition(".")[0] for name in moved}
        for name in self.checkpoint:
            module, _, last = name.rpartition(".")
            if name not in self.names and module in parents and last.endswith(("_scale", "_zero")):
                raise self.refused(name, "a tensor of numbers whose meaning is not known here, "
                                   "beside weights that move")  # fmt: skip

    def refused(self, name: str, came: str) -> CheckpointError:
        """An error about one tensor."""
        return CheckpointError(
            self.checkpoint.place.address, f"{name!r} is {came}",
            "codes in blocks, channels or tensors of 8 bits with their scales, GPTQ or AWQ",
            _INSTEAD,
        )  # fmt: skip

    @cached_property
    def sizes(self) -> list[tuple[int, ...]]:
        """Sizes of blocks, one for each of the last axes, that the configuration speaks of."""
        if "config.json" not in self.checkpoint.aside:
            return []
        try:
            said = json.loads((self.checkpoint.place / "config.json").text())
            found = said.get("quantization_config") or said.get("compression_config") or {}
            return list(_sizes(found))
        except (ValueError, AttributeError, TypeError):
            return []  # whoever reads the configuration for the model says what is wrong with it


def _sizes(said: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    groups = [g.get("weights") or {} for g in (said.get("config_groups") or {}).values()]
    for each in (said, *groups):
        blocks = each.get("weight_block_size") or each.get("block_structure")
        if isinstance(blocks, str):
            blocks = [int(n) for n in blocks.split("x")]
        if blocks:
            yield tuple(int(n) for n in blocks)
        elif (each.get("group_size") or 0) > 0:
            yield (int(each["group_size"]),)


# -- codes of 8 bits ---------------------------------------------------------------------------


def _in_blocks(storage: Storage, name: str, own: str) -> StoredWeight:
    entries, shape = storage.checkpoint.entries, storage.symmetry.shape(own)
    codes = entries[name]
    if codes.shape != shape:
        raise storage.refused(name, f"of shape {codes.shape}, for a weight of shape {shape}")
    parts = [StoredPart(name, tuple(Follows(k) for k in range(len(shape))), codes.dtype)]
    unscaled = {}
    for other in storage.beside[name]:
        ending = other.removeprefix(name)
        if other.rpartition(".")[2] in _INPUTS:
            if entries[other].numel != 1:
                raise storage.refused(other, "a scale for each input, which only one may be")
            unscaled[len(shape) - 1] = other
        elif ending in _SHARED:
            axes = _shared(storage, entries[other], shape)
            parts.append(StoredPart(other, axes, entries[other].dtype, ending != "_zero_point"))
        else:
            raise storage.refused(other, f"unknown, and stands beside {name!r}, which moves")
    scales = [part for part in parts if part.scales]
    if len(scales) > 1:
        raise storage.refused(name, f"stored with several scales, {few([s.name for s in scales])}")
    blocks = [_block_of(scales[0], k, n) for k, n in enumerate(shape)] if scales else []
    layout = f"{codes.code} with a scale for blocks of {' × '.join(map(str, blocks))}"
    return StoredWeight(name, own, layout if scales else codes.code, shape, tuple(parts), unscaled)


def _block_of(part: StoredPart, axis: int, size: int) -> int:
    """How many entries along an axis of a weight share a number of a part."""
    return next((f.unit for f in part.axes if f is not None and f.axis == axis), size)


def _shared(storage: Storage, entry: Entry, shape: tuple[int, ...]) -> tuple[Follows | None, ...]:
    """What the axes of numbers follow that blocks of a weight share."""
    if entry.numel == 1:
        return (None,) * len(entry.shape)
    if len(entry.shape) == 1 and entry.shape[0] == shape[0]:
        return (Follows(0),)
    if len(entry.shape) != len(shape):
        raise storage.refused(entry.name, f"of shape {entry.shape}, for a weight of shape {shape}")
    found = []
    for axis, (count, size) in enumerate(zip(entry.shape, shape, strict=True)):
        said = {s[axis - len(shape)] for s in storage.sizes if axis - len(shape) >= -len(s)}
        found.append(Follows(axis, _unit(storage, entry, size, count, said)))
    return tuple(found)


def _unit(storage: Storage, entry: Entry, size: int, count: int, said: set[int]) -> int:
    """The size of blocks of which there are so many along an axis of a size."""
    if count == size:
        return 1
    if count == 1:
        return size
    fits = {unit for unit in said if -(-size // unit) == count}
    if not said and count:  # what the shape itself leaves possible
        fits = set(range(-(-size // count), -(-size // (count - 1))))
        fits = {unit for unit in fits if -(-size // unit) == count}
    if len(fits) != 1:
        blocks = few([*map(str, sorted(said))], show=str)
        told = f"config.json speaks of blocks of {blocks}" if said else (
            "no config.json says how large the blocks are")  # fmt: skip
        raise storage.refused(entry.name, f"{count} numbers for {size} entries, and {told}")
    return fits.pop()


# -- packed codes ------------------------------------------------------------------------------


def _packed(storage: Storage, name: str, own: str) -> StoredWeight:
    entries, shape = storage.checkpoint.entries, storage.symmetry.shape(own)
    module, codes = name.removesuffix(PACKED), entries[name].shape
    for other in storage.beside[name]:
        if other.removeprefix(module) not in _TABLES:
            raise storage.refused(other, f"unknown, and stands beside {name!r}, which moves")
    if len(shape) != 2 or len(codes) != 2 or _inputs_first(storage.symmetry, own):
        raise storage.refused(name, "packed, of a weight that is no matrix (outputs, inputs)")
    tables = {kind: entries[module + kind] for kind in _TABLES if module + kind in entries}
    if entries[name].dtype != torch.int32 or "scales" not in tables:
        raise storage.refused(name, "packed, but not into int32 with 'scales' beside it")
    outputs, inputs = shape
    packs = _pack(codes[0], inputs), _pack(codes[1], outputs)
    if max(packs) == 1 or min(packs) != 1:
        raise storage.refused(name, f"of shape {codes}, which packs no weight of shape {shape} in "
                              "whole codes along one of its axes")  # fmt: skip
    by_index, group = _groups(storage, name, tables, inputs)
    axes = Follows(1, packs[0], packs[0] > 1), Follows(0, packs[1], packs[1] > 1)
    parts = [StoredPart(name, axes, torch.int32)]
    parts += _parts_beside(storage, tables, outputs, None if by_index else Follows(1, group))
    kind, axis = ("GPTQ", "inputs") if packs[0] > 1 else ("AWQ", "outputs")
    layout = f"{kind}, {max(packs)} codes to a number along the {axis}, groups of {group} inputs"
    return StoredWeight(name, own, layout, shape, tuple(parts), {})


def _parts_beside(
    storage: Storage, tables: Mapping[str, Entry], outputs: int, along: Follows | None
) -> Iterator[StoredPart]:
    """Scales, zeros and the index of groups; `along` is None where the index says the groups."""
    for kind, entry in tables.items():
        if kind == "scales" and entry.shape[1:] == (outputs,):
            yield StoredPart(entry.name, (along, Follows(0)), entry.dtype, True)
        elif kind == "qzeros" and (pack := _pack(entry.shape[-1], outputs)):
            yield StoredPart(entry.name, (along, Follows(0, pack, True)), entry.dtype)
        elif kind == "g_idx":
            yield StoredPart(entry.name, (Follows(1) if along is None else None,), entry.dtype)
        else:
            raise storage.refused(entry.name, f"of shape {entry.shape}, for {outputs} outputs")


def _pack(count: int, size: int) -> int:
    """How many codes are in one of so many numbers; 0 where they are not whole."""
    return size // count if count and size % count == 0 else 0


def _groups(
    storage: Storage, name: str, tables: Mapping[str, Entry], inputs: int
) -> tuple[bool, int]:
    """Whether an index says which group each input is of; and how many inputs a group has."""
    count = tables["scales"].shape[0]
    group = math.ceil(inputs / max(1, count))
    if "g_idx" in tables:
        entry = tables["g_idx"]
        found = storage.checkpoint[entry.name].long()
        if found.shape != (inputs,) or not bool(((found >= 0) & (found < count)).all()):
            raise storage.refused(entry.name, f"no group among {count} for each of {inputs} inputs")
        if not torch.equal(found, torch.arange(inputs) // group):
            return True, group
    if count == 0 or inputs % count:
        raise storage.refused(name, f"{inputs} inputs in {count} groups, which differ in size")
    return False, group


def _inputs_first(symmetry: ParameterSymmetry, own: str) -> bool:
    """Whether a matrix is stored as (inputs, outputs), as the type of its bias says."""
    axes = symmetry.signature[own]
    bias = symmetry.signature.get(own.removesuffix("weight") + "bias")
    return bias is not None and len(axes) == 2 and bias[0] == axes[1] != axes[0]
