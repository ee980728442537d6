"""Low-rank adapters in the layout of peft: which weight each tensor belongs to, and its type.

    W (outputs, inputs) ↦ W + s · B A    A (rank, *inputs), B (outputs, rank)

The rank stays. Where the weight has the type (o, i), B has (o, rank) and A has (rank, i): what acts
on W acts on the product through its factors, gains in whose frame it acts included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from paramsym.artefacts.artefact import (
    Artefact,
    Pair,
    Tensors,
    Types,
    axes_of,
    shape_of,
    without_head,
)
from paramsym.artefacts.refusals import listed, refused
from paramsym.artefacts.settings import Settings, check_settings, scaling_of
from paramsym.structure.axes import Fixed
from paramsym.structure.symmetry import ParameterSymmetry

_PREFIXES = ("base_model.model.", "base_model.")
_PART = re.compile(
    r"^(?P<module>.*?)\.?(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|"
    r"lora_magnitude_vector)(?:\.(?!weight$|bias$)(?P<adapter>[^.]+))?(?:\.(?P<leaf>weight|bias))?$"
)
_KEPT = re.compile(r"\.(?:modules_to_save(?:\.[^.]+)?|original_module|base_layer)(?=\.)")
_SUPPORTED = "lora_A, lora_B, lora_embedding_A, lora_embedding_B, lora_magnitude_vector, and " \
    "whole tensors of the model (modules_to_save, bias)"  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """The tensors of one module, by their part: lora_A, lora_B, bias."""

    module: str
    parts: Mapping[str, str]


def is_adapter(tensors: Tensors) -> bool:
    """Whether some tensor is a factor of a low-rank pair."""
    return any(_PART.match(name) for name in tensors)


def adapter(
    tensors: Tensors,
    symmetry: ParameterSymmetry,
    settings: Settings,
    stated: Artefact,
) -> Artefact:
    """An adapter, typed by the weights that it adapts.

    Args:
        tensors: of the adapter, as its file names them.
        symmetry: of the model.
        settings: the configuration of the adapter; empty where there is none.
        stated: the tensors whose types are known otherwise; these are not looked up.

    Raises:
        CheckpointError: see `transport`.
    """
    check_settings(settings)
    left = {name: tensor for name, tensor in tensors.items() if name not in stated.types}
    pairs, types = [], dict(stated.types)
    for found in _modules(left):
        pair = _pair(found, left, symmetry, settings)
        types |= _types(pair, left, symmetry)
        pairs.append(pair)
    known = {name for pair in pairs for name in (pair.A, pair.B, pair.magnitude, pair.bias)}
    replaces = {n: _replaced(n, left, symmetry) for n in left if n not in known}
    return replace(stated, types=types, replaces=replaces, pairs=tuple(pairs))


# -- names ---------------------------------------------------------------------------------------


def _stripped(name: str) -> str:
    """The name of a tensor of the model in the file of an adapter."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    return _KEPT.sub("", name)


def _modules(tensors: Tensors) -> Iterator[_Found]:
    """The adapted modules with their tensors; all of one adapter."""
    found: dict[str, dict[str, str]] = {}
    adapters: dict[str, str] = {}
    for name in tensors:
        match = _PART.match(name)
        if match is None:
            continue
        part = match["part"] + (".bias" if match["leaf"] == "bias" else "")
        module = found.setdefault(match["module"], {})
        adapters.setdefault(match["adapter"] or "default", name)
        if part in module or len(adapters) > 1:
            raise refused(
                repr(name), f"{[*adapters.values()][0]!r} belongs to another adapter",
                "the tensors of one adapter", "Transport adapters one by one",
            )  # fmt: skip
        module[part] = name
    yield from (_Found(_stripped(module), parts) for module, parts in found.items())


def _base_name(name: str, symmetry: ParameterSymmetry, where: str) -> str:
    """The tensor of the model that a name means, with or without the prefix of a head.

    Raises `CheckpointError` where there is none, or several.
    """
    known = {*symmetry.signature, *symmetry.ties}
    if name in known:
        return name
    near = sorted(n for n in known if name == without_head(n) or n == without_head(name))
    if len(near) == 1:
        return near[0]
    if near:
        raise refused(
            where, f"it may belong to {listed(near)}", "a name of one tensor of the model",
            "Rename it in full, as the model's state_dict does",
        )  # fmt: skip
    leaf = name.split(".")[-2:]
    alike = [n for n in known if n.split(".")[-2:] == leaf] or sorted(known)
    raise refused(
        where, f"the model has no tensor {name!r}", f"one of its tensors, such as {listed(alike)}",
        "Give the element of the model that it was trained on; where it is a new layer, state its "
        f"type: types={{{where.strip(chr(39))!r}: '2, residual*'}}",
    )  # fmt: skip


def _replaced(name: str, tensors: Tensors, symmetry: ParameterSymmetry) -> str:
    """The tensor of the model in whose place one of the adapter stands."""
    leaf = name.rpartition(".")[2]
    if re.search(r"lora|trainable_tokens|vera_|ia3_|hada_|lokr_|oft_|boft_|prompt", name):
        raise refused(
            repr(name), f"tensors named {leaf!r} have no known place in the model", _SUPPORTED,
            "State its type, types={name: 'residual, 8'}; or merge the adapter into its model, and "
            "move the whole",
        )  # fmt: skip
    base = _base_name(_stripped(name), symmetry, repr(name))
    _require_shape(name, tensors, shape_of(symmetry, base), f"that of {base!r}, which it replaces")
    return base


# -- pairs ---------------------------------------------------------------------------------------


def _pair(found: _Found, tensors: Tensors, symmetry: ParameterSymmetry, settings: Settings) -> Pair:
    """The pair of one module, and how it lies on the weight."""
    parts = found.parts
    table = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    first, second = ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A", "lora_B")
    for part in (first, second):
        if part not in parts:
            raise refused(
                repr(next(iter(parts.values()))), f"{part} of {found.module!r} is missing",
                f"{first} and {second} of every module", "Take the complete adapter",
            )  # fmt: skip
    A, B = parts[first], parts[second]
    weight = _base_name(f"{found.module}.weight", symmetry, repr(A))
    transposed = _is_transposed(A, B, tensors, symmetry, weight, table, settings)
    return Pair(
        weight, A, B, transposed, scaling_of(settings, found.module),
        parts.get("lora_magnitude_vector", ""), parts.get("lora_B.bias", ""),
    )  # fmt: skip


def _is_transposed(
    A: str, B: str, tensors: Tensors, symmetry: ParameterSymmetry, weight: str, table: bool,
    settings: Settings,
) -> bool:  # fmt: skip
    """Whether the inputs of a weight stand first; shapes say it, or what else is known."""
    a, b, shape = tuple(tensors[A].shape), tuple(tensors[B].shape), shape_of(symmetry, weight)
    ways = {True: _shapes(shape, a[0], True)} if len(shape) == 2 and a else {}
    if not table and len(shape) > 1 and a:
        ways[False] = _shapes(shape, a[0], False)
    fitting = [turned for turned, wanted in ways.items() if wanted == (a, b)]
    if not fitting:
        said = " or ".join(f"A {x} and B {y}" for x, y in dict.fromkeys(ways.values()))
        raise refused(
            repr(A), f"A {a} and B {b} do not fit {weight!r} of shape {shape}",
            said or "an adapter of a matrix or a convolution",
            "Give the base model that it was trained on; this is an adapter of another",
        )  # fmt: skip
    return fitting[0] if len(fitting) == 1 else _is_square_transposed(A, weight, symmetry, settings)


def _is_square_transposed(
    A: str, weight: str, symmetry: ParameterSymmetry, settings: Settings
) -> bool:
    """Whether the inputs of a square weight stand first, by the type of its bias or as it is said.

    Raises `CheckpointError` where neither says it.
    """
    if (outputs := _outputs(weight, symmetry)) is not None:
        return outputs == 1
    said = settings.get("fan_in_fan_out")
    said = said.get(weight) if isinstance(said, Mapping) else said
    if said is None:
        raise refused(
            repr(A), f"{weight!r} is square, so that shapes do not say whether its inputs or "
            "its outputs stand first", "the configuration of the adapter: 'fan_in_fan_out'",
            "Pass config={'fan_in_fan_out': True} for the Conv1D of GPT-2, False for linear "
            "layers; or give the folder of the adapter",
        )  # fmt: skip
    return bool(said)


def _outputs(weight: str, symmetry: ParameterSymmetry) -> int | None:
    """Which axis of a matrix its outputs have: the one with the type of the bias, if that says it.

    The configuration of an adapter has one word for all modules, and where these differ, the last
    one has it.
    """
    bias = symmetry.signature.get(weight.removesuffix("weight") + "bias", ())
    alike = [k for k, axis in enumerate(axes_of(symmetry, weight)) if (axis,) == bias]
    return alike[0] if len(alike) == 1 else None


def _shapes(
    shape: tuple[int, ...], rank: int, transposed: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of A and B on a weight of this shape."""
    if transposed:
        return (rank, shape[0]), (shape[1], rank)
    return (rank, *shape[1:]), (shape[0], rank, *[1] * (len(shape) - 2))


def _types(pair: Pair, tensors: Tensors, symmetry: ParameterSymmetry) -> dict[str, Types]:
    """The types of the factors, from that of the weight."""
    axes, rank = axes_of(symmetry, pair.weight), Fixed(tensors[pair.A].shape[0])
    outputs, inputs = (axes[1], axes[:1]) if pair.transposed else (axes[0], axes[1:])
    ones = (Fixed(1),) * (len(inputs) - 1)
    types: dict[str, Types] = {pair.A: (rank, *inputs), pair.B: (outputs, rank, *ones)}
    size = outputs.size(symmetry.sizes)
    for name in filter(None, (pair.bias, pair.magnitude)):
        length = tensors[name].numel()
        if length != size:
            _require_shape(name, tensors, (size,), f"one number for each output of {pair.weight!r}")
    if pair.bias:
        types[pair.bias] = (outputs,)
    return types


def _require_shape(name: str, tensors: Tensors, wanted: tuple[int, ...], why: str) -> None:
    if tuple(tensors[name].shape) != wanted:
        raise refused(
            repr(name), f"it has shape {tuple(tensors[name].shape)}", f"{wanted}, {why}",
            "Give the base model that it was trained on; this is an adapter of another",
        )  # fmt: skip
