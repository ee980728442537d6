"""The weights of a model with its adapter added: W + s · B A, or m · (W + s · B A) / ‖W + s · B A‖.

Lengths are those of the weights of each output (DoRA: Liu et al., "DoRA: weight-decomposed low-rank
adaptation", 2024); pairs without lengths are LoRA (Hu et al., "LoRA: low-rank adaptation of large
language models", 2022).
"""

from __future__ import annotations

import torch

from paramsym.artefacts.artefact import Artefact, Pair, Tensors
from paramsym.artefacts.refusals import refused


def merged(artefact: Artefact, params: Tensors) -> dict[str, torch.Tensor]:
    """The state dict of a model with an adapter.

    Args:
        artefact: an adapter, as `adapter` types it.
        params: the state dict of the model; those tensors that are not changed are shared.

    Raises:
        CheckpointError: nothing says the scaling, or a pair has a bias of its own.
    """
    made = dict(params)
    for name, base in artefact.replaces.items():
        made[base] = artefact.tensors[name].to(params[base])
    for pair in artefact.pairs:
        if pair.bias:
            raise refused(
                repr(pair.bias), "the bias of an adapter, which no weight of the model holds",
                "an adapter without lora_bias", "Compare the models themselves",
            )  # fmt: skip
        made[pair.weight] = merged_weight(pair, artefact.tensors, made[pair.weight])
    return made


def merged_weight(pair: Pair, tensors: Tensors, weight: torch.Tensor) -> torch.Tensor:
    """One weight with its pair added, in the dtype of the weight."""
    found = summed(pair, tensors, weight)
    if pair.magnitude:
        lengths = tensors[pair.magnitude].to(found).reshape(-1)
        found = found * _along(pair, lengths / lengths_of(pair, found), found)
    return found.to(weight.dtype)


def summed(pair: Pair, tensors: Tensors, weight: torch.Tensor) -> torch.Tensor:
    """W + s · B A, in single precision at least."""
    if pair.scaling is None:
        raise refused(
            repr(pair.A), "nothing says the factor before B A",
            "the configuration of the adapter: 'r' and 'lora_alpha'",
            "Pass config={'r': 8, 'lora_alpha': 16}, or give the folder of the adapter",
        )  # fmt: skip
    dtype = torch.promote_types(weight.dtype, torch.float32)
    A, B = tensors[pair.A].to(dtype), tensors[pair.B].to(dtype)
    product = (B.flatten(1) @ A.flatten(1)).reshape(B.shape[0], *A.shape[1:])
    return weight.to(dtype) + pair.scaling * (product.mT if pair.transposed else product)


def lengths_of(pair: Pair, weight: torch.Tensor) -> torch.Tensor:
    """The Euclidean lengths of the weights of each output."""
    outputs = weight.mT if pair.transposed else weight
    return outputs.flatten(1).norm(dim=1)


def _along(pair: Pair, numbers: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Numbers for each output, shaped to multiply a weight."""
    return numbers if pair.transposed else numbers.reshape(-1, *[1] * (weight.ndim - 1))
