"""Streams that a norm begins and norms read: the gains of the first flow, and the stream turns.

The stream in front of the first norm may turn by any A that is antisymmetric with A 1 = 0. Behind
the norm, whose gain is g, it moves by T = γ + diag(g) A diag(g)⁻¹ if the gain moves by γ g, and the
second norm allows T = B + 1 vᵀ + u (1/g)ᵀ, B like A: it sees nothing of 1, and Σ h/g is constant.
These are as many unknowns as equations, and one more, at any width. It is the tangent of a motion:
`structure.gain_flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, audit, find_symmetry, same_orbit, tangent, twin, verify
from paramsym.geometry.reduced import reduce
from paramsym.geometry.same_orbit import Kind
from paramsym.recording.record import record
from paramsym.tracing.infer import infer
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


# -- where it is, and where not -------------------------------------------------------------------


class Tower(nn.Module):
    """A stream that a norm begins and a norm ends, with a layer beside it that reads it by one."""

    def __init__(self, d: int = 6, last: nn.Module | None = None) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, d), nn.Linear(d, 3)
        self.up, self.down = nn.Linear(d, 7), nn.Linear(7, d)
        self.first, self.read = nn.LayerNorm(d), nn.LayerNorm(d)
        self.last = last or nn.LayerNorm(d)

    def stream(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        return h + self.down(torch.sigmoid(self.up(self.read(h))))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.last(self.stream(x)))


class Weighed(Tower):
    """Weights read what the first norm wrote, and the stream at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        h = h + self.down(torch.sigmoid(self.up(h)))
        return torch.cat([self.leave(self.last(h)), self.other(h)], -1)


class Streams(Tower):
    """A stream that others read in front of the first norm, and that a token joins behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.more = nn.Parameter(torch.randn(6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + torch.tanh(self.more(h)).sum(-1, keepdim=True) * self.token
        h = h.unflatten(0, (-1, 5))
        h = torch.cat([self.token.expand(len(h), 1, 6), h], 1)
        h = self.first(h)
        h = h + self.down(torch.sigmoid(self.up(self.read(h))))
        return self.leave(self.last(h.mean(1)))


class Shared(Tower):
    """The gains of the first norm are those of the last, and what both write moves alike."""

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.first(self.stream(x)))


class Shifted(Tower):
    """The gains of the first norm are those of the last without a one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.layer_norm(self.stream(x), (6,)) * (1 + self.first.weight))


class Seen(Tower):
    """The stream is an output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stream(x)
        return h, self.leave(self.last(h))


class OneByOne(Tower):
    """The stream passes a function of each coordinate."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        h = h + self.down(torch.sigmoid(self.up(torch.tanh(h))))
        return self.leave(self.last(h))


class Doubled(Tower):
    """One weight writes the stream and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        h = h + self.square(torch.sigmoid(self.square(self.read(h))))
        return self.leave(self.last(h))


class FromData(Tower):
    """Data are added to the stream."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x)) + x.sum(-1, keepdim=True) * torch.arange(6).to(x)
        return self.leave(self.last(h))


class Joined(Tower):
    """What a norm wrote is added to the stream that weights read: one turns, the other does not
    quite."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x))
        h = h + torch.layer_norm(h + self.down(torch.sigmoid(self.up(h))), (6,))
        return self.leave(h)


class Places(Tower):
    """Gains of places, as many as coordinates or not, behind the first norm and beside a reader."""

    def __init__(self, places: int, first: bool) -> None:
        super().__init__()
        self.places, self.first_of_all = nn.Parameter(torch.randn(places, 1)), first

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x[: 6 * len(self.places)]).unflatten(0, (-1, len(self.places)))
        if self.first_of_all:
            h = torch.layer_norm(h, (6,)) * self.places
        h = self.first(h)
        h = h + self.down(torch.sigmoid(self.up(self.read(h) * self.places)))
        return self.leave(self.last(h) * self.places)


class Absorbed(Tower):
    """Weights alone read what the first norm wrote, so that its gains are free."""

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.first(self.enter(x)))


class Encoder(nn.Module):
    def __init__(self, d: int, layers: int, before: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, d), nn.Linear(d, 3)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 2, 8, 0.0, "gelu", batch_first=True, norm_first=before)
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).unflatten(0, (-1, 5))
        for layer in self.layers:
            h = layer(h)
        return self.leave(h)


def made(build: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return randomise(build()).double(), torch.randn(40, 5).double()


def flow_of(model: nn.Module, x: Tensor) -> tuple[ParameterSymmetry, list[str]]:
    """The derivation alone, verified, and the flows in it."""
    symmetry = infer(record(model, (x,)))
    assert verify(model, symmetry, (x,), limit=100).error < 1e-11
    return symmetry, [shift.name for shift in symmetry.shifts if shift.is_flow]


FLOWING = {
    "tower": Tower, "shared": Shared, "weighed": Weighed, "streams": Streams,
    "no gain at its end": lambda: Tower(6, nn.LayerNorm(6, elementwise_affine=False)),
    "encoder": lambda: Encoder(4, 1, False),
    "places": lambda: Places(5, False), "as many places": lambda: Places(6, False),
    "norms of places": lambda: Places(6, True),
}  # fmt: skip
STILL = {
    "narrow": lambda: Tower(2), "ended by lengths": lambda: Tower(6, nn.RMSNorm(6)),
    "absorbed": Absorbed, "shifted": Shifted, "seen": Seen, "one by one": OneByOne,
    "doubled": Doubled, "from data": FromData, "joined": Joined,
    "two layers": lambda: Encoder(4, 2, False),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FLOWING if "places" not in name])
def test_gains_flow_and_nothing_is_left(name: str) -> None:
    model, x = made(FLOWING[name])
    assert len(flow_of(model, x)[1]) == 1
    assert audit(model, (x,)).unexplained == 0


@pytest.mark.parametrize("name", STILL)
def test_where_something_sees_it_gains_stand_still(name: str) -> None:
    model, x = made(STILL[name])
    assert flow_of(model, x)[1] == []
    if name in ("absorbed", "seen", "two layers"):
        assert audit(model, (x,)).unexplained == 0


@pytest.mark.parametrize("name", FLOWING)
def test_every_part_of_the_motion_is_needed(name: str) -> None:
    model, x = made(FLOWING[name])
    symmetry, (flow,) = flow_of(model, x)
    state = {n: p.detach() for n, p in model.state_dict().items()}

    def moved(own: ParameterSymmetry, by: float) -> float:
        there = act(own, own.element({flow: torch.tensor([by], dtype=torch.float64)}), state)
        found = torch.func.functional_call(model, there, (x,))
        return float((found - model(x)).detach().abs().max())

    assert max(moved(symmetry, by) for by in (-6.0, 0.3, 2.0)) < 1e-11
    shift = symmetry.shift_of[flow]
    for k in range(len(shift.terms)):
        less = replace(shift, terms=shift.terms[:k] + shift.terms[k + 1 :])
        others = tuple(less if s is shift else s for s in symmetry.shifts)
        assert moved(replace(symmetry, shifts=others), 2.0) > 1e-5


def test_an_element_is_undone_and_one_follows_another() -> None:
    model, x = made(Weighed)
    symmetry, (flow,) = flow_of(model, x)
    state = {n: p.detach() for n, p in model.state_dict().items()}
    step = symmetry.element({flow: torch.tensor([1.7], dtype=torch.float64)})
    there = act(symmetry, step, state)
    twice = symmetry.element({flow: torch.tensor([3.4], dtype=torch.float64)})
    close = {"rtol": 0.0, "atol": 1e-10}
    torch.testing.assert_close(act(symmetry, ~step, there), state, **close)
    torch.testing.assert_close(act(symmetry, step @ step, state), act(symmetry, twice, state),
                               **close)  # fmt: skip
    assert float((there["first.weight"] - state["first.weight"]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["tower", "weighed"])
def test_its_velocity_and_its_pairing_are_those_of_the_motion(name: str) -> None:
    model, x = made(FLOWING[name])
    symmetry, (flow,) = flow_of(model, x)
    state = {n: p.detach() for n, p in model.state_dict().items()}
    found = tangent(symmetry, state)
    along = [torch.full((b.size,), float(b.name == flow)).double() for b in found.blocks]
    coordinates, h = torch.cat(along), 1e-5
    velocity = found.matvec(coordinates)
    ends = [
        act(symmetry, symmetry.element({flow: torch.tensor([by], dtype=torch.float64)}), state)
        for by in (h, -h)
    ]
    for tensor, own in velocity.items():
        difference = (ends[0][tensor] - ends[1][tensor]) / (2 * h)
        torch.testing.assert_close(own, difference, rtol=0.0, atol=1e-7)
    (paired,) = found.rmatvec(velocity)[coordinates > 0]
    square = sum(float(v.square().sum()) for v in velocity.values())
    assert float(paired) == pytest.approx(square, rel=1e-10)
    assert square > 1e-4


def test_it_is_kept_in_a_file() -> None:
    model, x = made(Weighed)
    symmetry = find_symmetry(model, (x,))
    again = ParameterSymmetry.from_json(symmetry.to_json())
    assert again.shifts == symmetry.shifts
    (flow,) = (shift for shift in symmetry.shifts if shift.is_flow)
    assert flow.dimension == 1
    assert flow.is_counted


def test_gains_of_one_do_not_move() -> None:
    torch.manual_seed(0)
    model = Tower(6).double()
    symmetry, (flow,) = flow_of(model, torch.randn(9, 5).double())
    state = {n: p.detach() for n, p in model.state_dict().items()}
    step = symmetry.element({flow: torch.tensor([1.7], dtype=torch.float64)})
    torch.testing.assert_close(act(symmetry, step, state), state, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["tower", "streams", "shared"])
def test_networks_along_a_flow_are_one_and_others_are_not(name: str, kind: torch.dtype) -> None:
    """Each flow has one middle, to which both are led."""
    model, x = made(FLOWING[name])
    model, x = model.to(kind), x.to(kind)
    symmetry = infer(record(model, (x,)))
    state = {n: p.detach() for n, p in model.state_dict().items()}
    (flow,) = (shift.name for shift in symmetry.shifts if shift.is_flow)
    step = symmetry.element({flow: torch.tensor([2.0], dtype=kind)})
    assert same_orbit(symmetry, state, act(symmetry, step, state)).kind is Kind.EQUAL
    noise = 0.01 * torch.randn_like(state["down.weight"])
    other = state | {"down.weight": state["down.weight"] + noise}
    assert same_orbit(symmetry, state, other).kind is not Kind.EQUAL


def test_what_others_move_again_has_no_size() -> None:
    """A tower of CLIP without a last norm: one shift was to make a number one that another shift
    made zero, by turns, until weights were 1e16 and `compare` stopped at NaN."""
    import transformers

    model, inputs = twin(transformers.CLIPConfig(), kind="CLIPForImageClassification")
    model = randomise(model)
    symmetry = find_symmetry(model, inputs)
    state = {n: p.detach() for n, p in model.state_dict().items()}
    found = reduce(symmetry, state)
    assert max(float(x.abs().max()) for x in found.params.values()) < 1e3
    assert any("moved again" in why for why in found.held.values())
    moved = act(symmetry, symmetry.sample(torch.Generator().manual_seed(1)), state)
    assert same_orbit(symmetry, state, moved).kind is not Kind.DIFFERENT
