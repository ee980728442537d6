"""One encoder layer that normalises afterwards has one direction more: a flow of its gains.

The stream in front of the first norm may turn by any A that is antisymmetric with A 1 = 0. Behind
the norm, whose gain is g, it moves by T = γ + diag(g) A diag(g)⁻¹ if the gain moves by γ g, and the
second norm allows T = B + 1 vᵀ + u (1/g)ᵀ, B like A: it sees nothing of 1, and Σ h/g is constant.
These are as many unknowns as equations, and one more, at any width.

It is the tangent of an exact motion. Where μ are the critical points of q(x) = Π (x − gᵢ), the
vectors 1/(gᵢ − μ) are the eigenvectors of P diag(g) P with P what a norm sees, and μ the values.
q + c has the same critical points, so that its roots are gains which the second norm cannot tell
from g up to a turn; and motions by c and c′ are one by c + c′.
"""

from __future__ import annotations

import copy

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


def seen_by_a_norm(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The critical points μ of q, with their vectors 1/(gᵢ − μ), of length one, and the square of
    what diag(g) leads from each to 1/√d, which is −q(μ) / Π (μ − μ′)."""
    first = torch.cat([torch.ones(len(g), 1), torch.randn(len(g), len(g) - 1)], 1).double()
    sum_to_zero = torch.linalg.qr(first).Q[:, 1:]
    critical, vectors = torch.linalg.eigh(sum_to_zero.mT * g @ sum_to_zero)
    vectors = sum_to_zero @ vectors
    led = g @ vectors / len(g) ** 0.5
    return critical, vectors * led.sign(), led.square()


def spread(critical: Tensor) -> Tensor:
    """Π (μ − μ′) over all others, of each critical point."""
    return (critical[:, None] - critical + torch.eye(len(critical))).prod(1)


def flowed(g: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """The roots of q + c, in the order of g, and the turn S with P diag(g′) S = S P diag(g) on what
    sums to zero."""
    critical, vectors, led = seen_by_a_norm(g)
    arrow = torch.diag(torch.cat([g.mean()[None], critical]))
    arrow[0, 1:] = arrow[1:, 0] = (led - c / spread(critical)).sqrt()
    roots, frame = torch.linalg.eigh(arrow)
    there = (frame * frame[0].sign())[:, g.argsort().argsort()]
    return roots[g.argsort().argsort()], there[1:].mT @ vectors.mT + 1 / len(g)


def most(g: Tensor) -> float:
    """How far the constant of q may move until two roots meet."""
    critical, _, led = seen_by_a_norm(g)
    return float((led * spread(critical)).abs().min())


@pytest.mark.parametrize("d", [3, 4, 6, 9])
def test_the_flow_turns_what_the_norms_see(d: int) -> None:
    torch.manual_seed(d)
    g = torch.rand(d).double() + torch.arange(d) / d
    centre = torch.eye(d).double() - 1 / d
    moved, turn = flowed(g, 0.6 * most(g))
    close = {"rtol": 0.0, "atol": 1e-12}
    torch.testing.assert_close(turn @ turn.mT, torch.eye(d).double(), **close)
    torch.testing.assert_close(turn.sum(1), torch.ones(d).double(), **close)
    critical, _, led = seen_by_a_norm(g)
    q = (critical[:, None] - g).prod(1)  # in factors, with the roots of q + c beside them
    torch.testing.assert_close((critical[:, None] - moved).prod(1), q + 0.6 * most(g), **close)
    torch.testing.assert_close(-led * spread(critical), q, **close)
    seen = centre * moved @ turn @ centre
    torch.testing.assert_close(seen, turn @ (centre * g) @ centre, **close)
    assert float((moved - g).abs().max()) > 1e-3
    twice, again = flowed(moved, -0.2 * most(g))
    at_once, turned = flowed(g, 0.4 * most(g))
    torch.testing.assert_close(twice, at_once, **close)
    torch.testing.assert_close(again @ turn, turned, **close)


class Tower(nn.Module):
    """A stream that a norm begins and a norm ends, with a layer beside it that reads it by one."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, d), nn.Linear(d, 3)
        self.up, self.down = nn.Linear(d, 7), nn.Linear(7, d)
        self.first, self.read, self.last = (nn.LayerNorm(d) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        h = h + self.down(torch.sigmoid(self.up(self.read(h))))
        return self.leave(self.last(h))


@torch.no_grad()
def turned(model: Tower, gains: Tensor, turn: Tensor) -> Tower:
    """A tower with other gains of its first norm, and a stream that is turned."""
    moved = copy.deepcopy(model)
    moved.first.weight.copy_(gains)
    for vector in (moved.enter.bias, moved.first.bias, moved.down.bias):
        vector.copy_(turn @ vector)
    for matrix in (moved.enter.weight, moved.down.weight):
        matrix.copy_(turn @ matrix)
    for norm, reader in ((moved.read, moved.up), (moved.last, moved.leave)):
        within = norm.weight[:, None] * turn / norm.weight
        norm.bias.copy_(within @ norm.bias)
        reader.weight.copy_(reader.weight @ torch.linalg.inv(within))
    return moved


def test_a_tower_computes_the_same_along_the_flow() -> None:
    torch.manual_seed(0)
    model = randomise(Tower(6)).double()
    with torch.no_grad():
        model.first.weight.copy_(torch.rand(6) + torch.arange(6) / 6)
    g, x = model.first.weight.detach().clone(), torch.randn(9, 5).double()
    moved, turn = flowed(g, 0.6 * most(g))
    close = {"rtol": 0.0, "atol": 1e-12}
    torch.testing.assert_close(turned(model, moved, turn)(x), model(x), **close)
    other = moved + 0.01 * torch.randn(6).double()
    assert float((turned(model, other, turn)(x) - model(x)).detach().abs().max()) > 1e-4


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
