"""Transport: what is attached to a model moves with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paramsym.artefacts.adapters import adapter, is_adapter
from paramsym.artefacts.artefact import Artefact, Tensors
from paramsym.artefacts.heads import head
from paramsym.artefacts.moving import Mover
from paramsym.artefacts.reading import FileTensors, read_artefact
from paramsym.artefacts.refusals import refused
from paramsym.artefacts.slides import require_followed
from paramsym.artefacts.stated import Stated, require_all, typed
from paramsym.artefacts.streams import found_types
from paramsym.structure.element import GroupElement
from paramsym.structure.state import act_state
from paramsym.structure.symmetry import ParameterSymmetry


@torch.no_grad()
def transport(
    artefact: Mapping[str, Any] | str | Path,
    element: GroupElement,
    base: Tensors | str | Path | None = None,
    types: Stated | ParameterSymmetry | None = None,
    spaces: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Move what is attached to a model along with the model, so that the pair computes the same.

        f(g·θ; g·a) = f(θ; a)

    An artefact a is typed by the spaces of the model that it reads and writes, and the one action
    moves it. Low-rank pairs W + s·B A carry the type of W, outputs on B and inputs on A, the rank
    fixed; what reads activations of a space carries its dual, what adds to them the space itself.
    The move is exact, or an error says what stands in the way: an adapter changes what shifts read
    (all motions of g·(θ + Δ) − g·θ must lie in Δ), and activations that a shift moves are followed
    by no type.

    Args:
        artefact: tensors by name, or a path: the folder of an adapter (adapter_config.json and
            adapter_model.safetensors), or a safetensors file. Pairs in the layout of peft are known
            by their names, sparse autoencoders (W_enc, W_dec, b_enc, b_dec; encoder.weight, …),
            control vectors (direction.3) and probes (probe.weight) by names and sizes: they are
            taken to stand on the one stream of their size, before its norms. A dict of dicts is the
            state of an optimiser by parameter, which `act_state` moves.
        element: what moves the model.
        base: the tensors of the model before it moves, or the path of its safetensors; only those
            are read that the element needs, such as gains in whose frames it acts.
        types: for each tensor the types of its axes ('residual, (residual + residual)*'), which
            take precedence over names, in bars where it holds absolute values ('|h.0.mlp|': ranges
            of activations); or the symmetry of a module with freed inputs and outputs.
        spaces: with such a symmetry: freed inputs and outputs → the type of the model that they
            carry, 'residual' or an order with its scalars; by default the only one of their size.
        config: of an adapter that comes as tensors: 'fan_in_fan_out' where a weight is square (for
            all, or by weight), 'r' and 'lora_alpha' where lengths of rows (DoRA) are measured.

    Returns:
        New tensors by the same names, in the same dtypes; those that do not move are shared.

    Raises:
        ValueError: the artefact belongs to another model (a tensor that this one does not have, or
            another shape); a method other than LoRA; nothing says which spaces an axis carries, or
            several are possible; tensors of the model are needed and missing; the element moves
            along shifts, or in frames, that the artefact cannot follow, or mixes outputs whose
            lengths it holds.

    Source: Hu et al., "LoRA: low-rank adaptation of large language models" (2022); the action on a
    product of factors is that on its outer axes.
    """
    symmetry = element.symmetry
    if not isinstance(symmetry, ParameterSymmetry):
        raise refused(
            "element=…", f"an element of a {type(symmetry).__name__}",
            "one of a ParameterSymmetry", "Sample it from find_symmetry(model, inputs)",
        )  # fmt: skip
    held = FileTensors(Path(base).expanduser()) if isinstance(base, (str, Path)) else base
    if isinstance(artefact, (str, Path)):
        artefact, said = read_artefact(Path(artefact).expanduser())
        config = {**said, **(config or {})}
    if artefact and all(isinstance(value, Mapping) for value in artefact.values()):
        return act_state(symmetry, element, artefact, held)
    _require_tensors(artefact)
    found = recognised(artefact, symmetry, types, spaces, config)
    require_followed(symmetry, element, found)
    return Mover(symmetry, element, found, held or {}).moved()


def recognised(
    tensors: Tensors,
    symmetry: ParameterSymmetry,
    types: Stated | ParameterSymmetry | None = None,
    spaces: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Artefact:
    """The tensors with the types that are stated, or that their names and shapes say.

    The arguments are those of `transport`, and so are the errors.
    """
    if isinstance(types, ParameterSymmetry):
        return head(tensors, types, symmetry, spaces or {})
    if spaces:
        raise refused(
            f"spaces={spaces!r:.60}", "no symmetry of a module came beside it",
            "types=find_symmetry(module, inputs, free_inputs=…, free_outputs=…)",
            "Pass it, or state types by name",
        )  # fmt: skip
    stated = typed(tensors, types or {}, symmetry)
    left = {name: tensor for name, tensor in tensors.items() if name not in stated.types}
    if is_adapter(left) or config:
        return adapter(tensors, symmetry, config or {}, stated)
    found = found_types(left, symmetry)
    every = {**stated.types, **found}
    require_all(tensors, every, symmetry)
    return replace(stated, types=every, meeting=frozenset(every))


def _require_tensors(artefact: Mapping[str, Any]) -> None:
    if not artefact:
        raise refused(
            "artefact={}", "no tensors", "an artefact", "Give the tensors that belong to the model"
        )
    for name, value in artefact.items():
        if not isinstance(value, torch.Tensor):
            raise refused(
                repr(name), f"a {type(value).__name__}", "a tensor by each name, or for each "
                "parameter the state of its optimiser", "Pass the tensors alone",
            )  # fmt: skip
