"""One encoder layer that normalises afterwards has a direction that no group acts by.

The stream in front of the first norm may turn by any A that is antisymmetric with A 1 = 0. Behind
the norm, whose gain is g, it moves by T = γ + diag(g) A diag(g)⁻¹ if the gain moves by γ g, and the
second norm allows T = B + 1 vᵀ + u (1/g)ᵀ, B like A: it sees nothing of 1, and Σ h/g is constant.
These are as many unknowns as equations, and one more, at any width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym import audit
from tests.tracing.zoo import randomise


def turns(d: int) -> Tensor:
    """A basis of the antisymmetric matrices that take 1 to 0: (dimension, d, d)."""
    first = torch.cat([torch.ones(d, 1), torch.randn(d, d - 1)], 1).double()
    fixed = torch.linalg.qr(first).Q[:, 1:]
    rows, columns = torch.triu_indices(d - 1, d - 1, 1)
    planes = torch.einsum("in,jn->nij", fixed[:, rows], fixed[:, columns])
    return planes - planes.mT


def system_of(g: Tensor) -> Tensor:
    """γ, A, B, v and u as rows, by what each adds to T − T, all entries of it."""
    d = len(g)
    one, eye = torch.ones(d).double(), torch.eye(d).double()
    parts = [
        torch.diag_embed(eye), g[:, None] * turns(d) / g, -turns(d),
        -torch.einsum("i,nj->nij", one, eye), -torch.einsum("ni,j->nij", eye, 1 / g),
    ]  # fmt: skip
    return torch.cat(parts).flatten(1)


@pytest.mark.parametrize("d", [3, 4, 6, 9])
def test_there_is_one_unknown_more_than_equations(d: int) -> None:
    torch.manual_seed(d)
    system = system_of(torch.rand(d).double() + 0.5)
    kernel = len(system) - int(torch.linalg.matrix_rank(system))
    assert kernel - 1 == 1  # 1 (1/g)ᵀ is both 1 vᵀ and u (1/g)ᵀ


def spectrum(g: Tensor) -> Tensor:
    """The eigenvalues of n ↦ |P g n|² where n sums to zero, with P what a norm sees."""
    centre = torch.eye(len(g)).double() - 1 / len(g)
    seen = centre * g @ centre
    return torch.linalg.eigvalsh(seen.mT @ seen)


@pytest.mark.parametrize("d", [3, 4, 6, 9])
def test_the_gains_move_as_their_spectrum_stays(d: int) -> None:
    """So the second norm sees the stream at lengths that a turn in front of the first takes back:
    d − 1 numbers of d gains stay, which leaves a curve."""
    torch.manual_seed(d)
    g = torch.rand(d).double() + 0.5
    system = system_of(g)
    kernel = torch.linalg.svd(system.mT).Vh[int(torch.linalg.matrix_rank(system)) :]
    (first, _), others = torch.linalg.svd(kernel[:, :d]).Vh[:2], torch.randn(d).double()

    def moved(by: Tensor) -> float:
        away = [spectrum(g * (1 + sign * 1e-5 * by)) for sign in (1, -1)]
        return float((away[0] - away[1]).abs().max() / 2e-5)

    assert moved(first) < 1e-6 < 1e-2 < moved(others / others.norm())


class Encoder(nn.Module):
    def __init__(self, d: int, layers: int, before: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(d, d), nn.Linear(d, 3)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 2, 8, 0.0, "gelu", batch_first=True, norm_first=before)
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h)
        return self.leave(h)


@pytest.mark.parametrize(
    ("d", "layers", "before", "left"),
    [(4, 1, False, 1), (6, 1, False, 1), (4, 2, False, 0), (4, 1, True, 0)],
)
def test_one_layer_has_it_and_no_other(d: int, layers: int, before: bool, left: int) -> None:
    torch.manual_seed(0)
    model = randomise(Encoder(d, layers, before)).double()
    assert audit(model, (torch.randn(5, 6, d).double(),)).unexplained == left
