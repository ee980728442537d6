"""The walk over blocks: windows that tile every tensor, and Gram matrices read off them.

The twin of a Gram matrix is the derivative of half the squared norm along every generator, which
knows nothing of blocks.
"""

from __future__ import annotations

import pytest
import torch

from paramsym import act, blocks, gram
from paramsym.algebra import AbstractMonomial
from paramsym.structure.coordinates import Generators
from paramsym.structure.tangent import TangentOperator
from tests.tracing import zoo

NAMES = [
    "MLP, ReLU", "MLP, squared ReLU", "MLP, identity", "convolutions", "MultiheadAttention",
    "LSTM", "GPT-2", "Llama", "Mistral", "Qwen3", "Phi-3", "T5", "ViT", "ResNet", "ConvNeXt",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_blocks_tile_every_tensor(name: str) -> None:
    model, _ = zoo.build(name)
    symmetry = zoo.derived(name)
    for key, tensor in model.state_dict().items():
        if key not in symmetry.signature:
            continue
        count = torch.zeros(tensor.shape)
        for block in blocks(symmetry)[key]:
            block.view(count).add_(1)
            for leg in block.legs:
                assert block.shape[leg.axis] == symmetry.spaces[leg.space].size
                over = [symmetry.spaces[base].size for base in symmetry.spaces[leg.space].over]
                assert [block.shape[k] for k in leg.copies] == over
        assert bool((count == 1).all())


def along_generators(operator: TangentOperator, generators: Generators) -> torch.Tensor:
    """⟨θ, X_j θ⟩ for every generator of one space."""
    found = []
    for batch in operator.velocities(generators):
        inner = sum((v * operator.params[n]).flatten(1).sum(1) for n, v in batch.items())
        assert isinstance(inner, torch.Tensor)
        found.append(inner.real if inner.is_complex() else inner)
    return torch.cat(found)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "LSTM"])  # discrete alone
def test_gram_matrices_are_derivatives_of_the_norm(name: str) -> None:
    model, _ = zoo.build(name)
    symmetry = zoo.derived(name)
    params = {n: p.detach() for n, p in model.double().state_dict().items()}
    operator = TangentOperator(symmetry, params)
    framed = {
        leg.space
        for block in (block for found in blocks(symmetry).values() for block in found)
        for leg in block.legs
        if leg.frame or symmetry.offsets.get(block.parameter)
    }
    seen = 0
    for generators in operator.blocks:
        if generators.is_shift or generators.name in framed:
            continue
        group = symmetry.spaces[generators.name].group
        covariant, dual = gram(symmetry, params, generators.name)
        basis = group.tangent(torch.eye(generators.width, dtype=torch.float64))
        if isinstance(group, AbstractMonomial):
            expected = covariant - dual
        elif basis.matrix is not None:
            expected = torch.einsum("kij,...ij->...k", basis.matrix, covariant - dual)
        else:
            continue  # complex factors: the twin has no matrices
        torch.testing.assert_close(
            along_generators(operator, generators), expected.reshape(-1), rtol=1e-9, atol=1e-9
        )
        seen += bool((covariant - dual).abs().max() > 1e-3)
    assert seen


def test_gram_matrices_move_with_the_parameters() -> None:
    model, _ = zoo.build("MultiheadAttention")
    symmetry = zoo.derived("MultiheadAttention")
    params = dict(model.double().state_dict())
    name = next(n for n, s in symmetry.spaces.items() if str(s.group).startswith("General"))
    g = symmetry.sample(torch.Generator().manual_seed(0), only=[name])
    before, after = gram(symmetry, params, name), gram(symmetry, act(symmetry, g, params), name)
    matrix = g[name].matrix
    torch.testing.assert_close(after.covariant, matrix @ before.covariant @ matrix.mT)
    inverse = torch.linalg.inv(matrix)
    torch.testing.assert_close(after.dual, inverse.mT @ before.dual @ inverse)
    assert (after.covariant - before.covariant).abs().max() > 1e-3


def test_gram_of_no_space_is_refused() -> None:
    model, _ = zoo.build("MLP, ReLU")
    symmetry = zoo.derived("MLP, ReLU")
    with pytest.raises(KeyError, match="no space of this symmetry"):
        gram(symmetry, model.state_dict(), "hidden")
