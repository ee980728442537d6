"""Linear maps along another axis, and places given by data: what they must let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import find_symmetry
from paramsym.algebra import PositiveScaling
from paramsym.checking.lowering import assert_lowering
from tests.coverage.measure import Measured, measured

GENERATOR = torch.Generator().manual_seed(3)
NODES = torch.randn(5, 6, generator=GENERATOR).double()
SOURCES = torch.tensor([0, 1, 2, 3, 4, 4, 0, 2])
TARGETS = torch.tensor([1, 2, 3, 4, 0, 1, 2, 0])  # every node has an edge

Aggregate = Callable[[Tensor, Tensor, int], Tensor]


class Messages(nn.Module):
    """A message-passing network by hand: read nodes of edges, transform, put them to targets."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__()
        self.aggregate = aggregate
        self.embed = nn.Linear(6, 5)
        self.message = nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 4))
        self.update = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, sources: Tensor = SOURCES, targets: Tensor = TARGETS) -> Tensor:
        h = self.embed(x)
        messages = self.message(torch.cat([h[sources], h[targets]], -1))
        gathered = self.aggregate(messages, targets, len(x))
        return self.update(torch.cat([h, gathered], -1))


class Settled(Messages):
    """The same with a place for each of five nodes."""

    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate)
        self.register_buffer("places", torch.ones(5, 1))

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return super().forward(x * self.places, *edges)


def wide(index: Tensor, like: Tensor) -> Tensor:
    return index[:, None].expand_as(like)


def counted(m: Tensor, at: Tensor, n: int) -> Tensor:
    """Sums divided by the number of edges."""
    total = m.new_zeros(n, m.shape[1]).index_add_(0, at, m)
    count = m.new_zeros(n).index_add_(0, at, torch.ones_like(at, dtype=m.dtype))
    return total / count.clamp(min=1)[:, None]


SUMS: dict[str, Aggregate] = {
    "index_add": lambda m, at, n: torch.zeros(n, m.shape[1], dtype=m.dtype).index_add(0, at, m),
    "index_add_": lambda m, at, n: m.new_zeros(n, m.shape[1]).index_add_(0, at, m),
    "scatter_add": lambda m, at, n: m.new_zeros(n, 4).scatter_add(0, wide(at, m), m),
    "scatter_add_ repeat": lambda m, at, n: m.new_zeros(n, 4).scatter_add_(
        0, at.unsqueeze(-1).repeat(1, 4), m),
    "scatter_reduce": lambda m, at, n: m.new_zeros(n, 4).scatter_reduce(0, wide(at, m), m, "sum"),
    "index_put": lambda m, at, n: m.new_zeros(n, 4).index_put((at,), m, accumulate=True),
    "index_put_": lambda m, at, n: m.new_zeros(n, 4).index_put_((at,), m, accumulate=True),
}  # fmt: skip
MEANS: dict[str, Aggregate] = {
    "scatter_reduce": lambda m, at, n: m.new_zeros(n, 4).scatter_reduce(
        0, wide(at, m), m, "mean", include_self=False),
    "index_reduce": lambda m, at, n: m.new_zeros(n, 4).index_reduce(
        0, at, m, "mean", include_self=False),
    "count": counted,
}  # fmt: skip


def sound(found: Measured) -> Measured:
    assert found.refuted == ()
    assert found.error < 1e-10
    return found


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("given", [False, True], ids=["constant", "input"])
def test_sums_over_edges_let_every_basis_pass(name: str, given: bool) -> None:
    inputs = (NODES, SOURCES, TARGETS) if given else (NODES,)
    found = sound(measured(Messages(SUMS[name]).double(), inputs))
    assert (found.explained, found.unexplained) == (59, 0)


@pytest.mark.parametrize("name", MEANS)
def test_means_over_known_edges_let_constants_pass(name: str) -> None:
    found = sound(measured(Settled(MEANS[name]).double(), (NODES,)))
    assert (found.explained, found.unexplained) == (63, 0)
    more = sound(measured(Messages(MEANS[name]).double(), (NODES,)))
    assert (more.explained, more.unexplained) == (59, 0)  # a sixth node would have no edge
    unknown = sound(measured(Messages(MEANS[name]).double(), (NODES, SOURCES, TARGETS)))
    assert (unknown.explained, unknown.unexplained) == (59, 0)  # a node may have no edge


def test_a_mean_that_counts_the_start_lets_no_constant_pass() -> None:
    def half(m: Tensor, at: Tensor, n: int) -> Tensor:
        return m.new_zeros(n, 4).scatter_reduce(0, wide(at, m), m, "mean")

    assert sound(measured(Messages(half).double(), (NODES,))).explained == 59


def test_places_that_differ_by_unit_hold_the_units() -> None:
    def turned(m: Tensor, at: Tensor, n: int) -> Tensor:
        places = (at[:, None] + torch.arange(4)) % n
        return m.new_zeros(n, 4).scatter_add(0, places, m)

    assert sound(measured(Messages(turned).double(), (NODES,))).explained < 59


def test_products_over_edges_are_held() -> None:
    def product(m: Tensor, at: Tensor, n: int) -> Tensor:
        return m.new_ones(n, 4).scatter_reduce(0, wide(at, m), m, "prod")

    assert sound(measured(Messages(product).double(), (NODES,))).explained < 59


FRAMES = torch.randn(11, 5, 6, generator=GENERATOR).double()
PLACES = torch.tensor([2, 0, 1, 5, 3, 4])
TIMES = torch.tensor([3, 1, 0, 4, 2])


class Around(nn.Module):
    """A function of units, between a layer with a ReLU (or without) and another layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], bent: bool = True) -> None:
        super().__init__()
        self.function = function
        self.bent = bent
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(function(torch.randn(11, 5, 6)).shape[-1], 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(self.function(torch.relu(h) if self.bent else h))


def image(h: Tensor) -> Tensor:
    return h.unflatten(1, (5, 1)).permute(0, 3, 1, 2)


SCALED: dict[str, Callable[[Tensor], Tensor]] = {  # every unit keeps its scale
    "index_copy": lambda h: torch.zeros_like(h).index_copy(1, TIMES, h),
    "index_put": lambda h: torch.zeros_like(h[0]).index_put((TIMES,), h[0]),
    "scatter": lambda h: torch.zeros_like(h).scatter(1, TIMES[None, :, None].expand_as(h), h),
    "gather": lambda h: h.gather(1, TIMES[None, :, None].expand_as(h)),
    "gather fewer": lambda h: torch.gather(h, 1, TIMES[None, :3, None].expand(11, -1, 6)),
    "take_along_dim": lambda h: torch.take_along_dim(h, TIMES[None, :, None], 1),
    "segment_reduce": lambda h: torch.segment_reduce(
        h[0], "sum", lengths=torch.tensor([2, 3]), axis=0),
    "cumsum": lambda h: h.cumsum(1),
    "cummax": lambda h: h.cummax(1)[0],
    "cummin": lambda h: h.cummin(dim=-2).values,
    "rfft": lambda h: torch.fft.rfft(h, dim=1).abs(),
    "real part": lambda h: torch.fft.fft(h, dim=1).real,
    "both parts": lambda h: torch.view_as_real(torch.fft.rfft(h, dim=1)).flatten(2),
    "joined parts": lambda h: torch.cat(
        [torch.fft.rfft(h, dim=1).real, torch.fft.rfft(h, dim=1).imag], -1),
    "correlation": lambda h: torch.fft.irfft(
        torch.fft.rfft(h, dim=1) * torch.fft.rfft(h, dim=1).conj(), n=5, dim=1),
    "there and back": lambda h: torch.fft.ifft(torch.fft.fft(h, dim=1), dim=1).real,
    "fftshift": lambda h: torch.fft.fftshift(h, 1),
    "flip": lambda h: h.flip(-1),
    "flip both": lambda h: torch.flip(h, [1, 2]),
    "roll": lambda h: torch.roll(h, -1, dims=-1),
    "roll both": lambda h: h.roll((1, 2), (1, 2)),
    "half a turn": lambda h: torch.rot90(h, 2, (1, 2)),
    "fliplr": lambda h: h.flatten(0, 1).fliplr(),
    "getitem": lambda h: h[..., PLACES],
    "index_select": lambda h: h.index_select(-1, PLACES),
    "gather units": lambda h: h.gather(-1, PLACES.expand_as(h)),
    "tril": lambda h: h.transpose(1, 2).tril().transpose(1, 2),
    "pad": lambda h: functional.pad(h, (0, 0, 1, 1)),
    "grid_sample": lambda h: functional.grid_sample(
        image(h), torch.zeros(11, 2, 3, 2, dtype=h.dtype), align_corners=False).mean((2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_each_unit_keeps_its_scale(name: str) -> None:
    model = Around(SCALED[name]).double()
    found = sound(measured(model, (FRAMES,)))
    assert (found.explained, found.unexplained) == (6, 0)
    assert assert_lowering(model, (FRAMES,)).not_computed == ()


def test_angles_see_no_positive_scale() -> None:
    model = Around(lambda h: torch.fft.rfft(h, dim=1).angle()).double()
    assert sound(measured(model, (FRAMES,))).unexplained == 0
    groups = [space.group for space in find_symmetry(model, (FRAMES,)).spaces.values()]
    assert any(isinstance(group, PositiveScaling) for group in groups), groups


HELD: dict[str, Callable[[Tensor], Tensor]] = {
    "cumprod": lambda h: h.cumprod(1),
    "logcumsumexp": lambda h: h.logcumsumexp(1),
    "log of a spectrum": lambda h: torch.fft.rfft(h, dim=1).abs().log1p(),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_not_linear_lets_nothing_pass(name: str) -> None:
    assert sound(measured(Around(HELD[name]).double(), (FRAMES,))).explained == 0


def test_a_transform_of_the_units_lets_their_common_scale_pass() -> None:
    """Scales that are equal at n and −n pass too, with another basis of the next weight."""
    model = Around(lambda h: torch.fft.fft2(h, dim=(1, 2)).real).double()
    found = sound(measured(model, (FRAMES,)))
    assert (found.explained, found.unexplained) == (1, 3)


PAIRS = torch.tensor([0, 0, 1, 1, 1])


def highest(h: Tensor, into: Tensor, **options: bool) -> Tensor:
    return into.scatter_reduce(1, PAIRS[None, :, None].expand_as(h), h, "amax", **options)


LIFTED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "amax": (lambda h: h.amax(1), 12),
    "max": (lambda h: h.max(1).values, 12),
    "max_pool": (lambda h: functional.max_pool1d(h.mT, 2, padding=1).mT, 12),
    "cummax": (lambda h: h.cummax(1)[0], 12),
    "scatter": (lambda h: highest(h, torch.full_like(h[:, :2], -torch.inf)), 12),
    "with zero": (lambda h: highest(h, torch.zeros_like(h[:, :2])), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", LIFTED)
def test_what_is_added_to_all_entries_is_added_to_their_maximum(name: str) -> None:
    function, count = LIFTED[name]
    model = Around(function, bent=False).double()
    found = sound(measured(model, (FRAMES,)))
    assert (found.explained, found.unexplained) == (count, 0)
    assert assert_lowering(model, (FRAMES,)).not_computed == ()


def test_a_place_that_nothing_is_put_to_lifts_nothing() -> None:
    model = Around(lambda h: highest(h, torch.zeros_like(h[:, :3]), include_self=False), bent=False)
    assert sound(measured(model.double(), (FRAMES,))).explained == 6  # scales alone


class Attending(nn.Module):
    def __init__(self, mask: Tensor | None, causal: bool, **options: bool) -> None:
        super().__init__()
        self.mask, self.causal = mask, causal
        self.first = nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        mixed, _ = self.attention(
            h, h, h, need_weights=False, attn_mask=self.mask, is_causal=self.causal
        )
        return self.last(torch.relu(h + mixed))


HIDES = torch.ones(5, 5, dtype=torch.bool).triu(1)
MASKS = {"booleans": HIDES,
         "numbers": torch.zeros(5, 5).double().masked_fill(HIDES, -torch.inf)}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("options", "count"),
    [({"add_bias_kv": True}, 60), ({"add_zero_attn": True}, 48),
     ({"add_bias_kv": True, "add_zero_attn": True}, 48),
     ({"add_bias_kv": True, "bias": False}, 42)],
    ids=["learned", "zero", "both", "no bias"],
)  # fmt: skip
def test_keys_besides_those_of_the_input(mask: str, options: dict[str, bool], count: int) -> None:
    model = Attending(MASKS[mask], False, **options).double()
    found = sound(measured(model, (FRAMES,)))
    assert (found.explained, found.unexplained) == (count, 0)
    assert assert_lowering(model, (FRAMES,)).not_computed == ()


def test_causal_attention_does_not_see_the_learned_key() -> None:
    model = Attending(HIDES, True, add_bias_kv=True).double()
    found = sound(measured(model, (FRAMES,)))
    assert (found.explained, found.unexplained) == (72, 0)
    assert assert_lowering(model, (FRAMES,)).not_computed == ()


class Recurrent(nn.Module):
    def __init__(self, **options: bool | int) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(6, 4, proj_size=3, **options)
        self.last = nn.Linear(6 if options.get("bidirectional") else 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(x)[0])


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 25), ({"num_layers": 2}, 50), ({"bias": False, "batch_first": True}, 9),
     ({"bidirectional": True}, 50)],
    ids=["one", "two layers", "no bias", "both ways"],
)  # fmt: skip
def test_projected_states_take_any_basis(options: dict[str, bool | int], count: int) -> None:
    found = sound(measured(Recurrent(**options).double(), (FRAMES,)))
    assert (found.explained, found.unexplained) == (count, 0)


READ = torch.rand(2, 1, 3, 2, generator=GENERATOR, dtype=torch.float64) - 0.5


class Deformable(nn.Module):
    """Attention that reads an image at positions: each of two heads at its own."""

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.offsets = nn.Linear(5, 2 * 3 * 2) if learned else None
        self.value, self.weights, self.out = nn.Linear(5, 8), nn.Linear(5, 6), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)  # 4 by 4 positions
        value = self.value(x).view(n, 16, 2, 4).permute(0, 2, 3, 1).reshape(2 * n, 4, 4, 4)
        if self.offsets is not None:
            grid = self.offsets(x).view(n, 16, 2, 3, 2).transpose(1, 2).flatten(0, 1).tanh()
        else:
            grid = READ.expand(2, 16, 3, 2).repeat(n, 1, 1, 1)
        seen = functional.grid_sample(value, grid.to(value), align_corners=False)
        weights = self.weights(x).view(n, 16, 2, 3).softmax(-1).transpose(1, 2).flatten(0, 1)
        found = (seen * weights[:, None]).sum(-1).view(n, 8, 16)
        return self.out(found.transpose(1, 2)).mean(1)


IMAGES = torch.randn(7, 16, 5, generator=GENERATOR).double()


def test_heads_take_along_where_they_read() -> None:
    """Their order; for each a basis, what no output reads, and what softmax does not see."""
    model = Deformable(learned=True).double()
    found = sound(measured(model, (IMAGES,)))
    assert (found.explained, found.unexplained) == (2 * (16 + 2 + 6), 0)
    heads = [s for s in found.symmetry.spaces.values() if str(s.group) == "Permutation(2)"]
    assert len(heads) == 1
    assert heads[0].name in str(found.symmetry.signature["offsets.bias"][0])


def test_heads_that_read_at_given_places_keep_their_order() -> None:
    found = sound(measured(Deformable(learned=False).double(), (IMAGES,)))
    assert not [s for s in found.symmetry.spaces.values() if str(s.group) == "Permutation(2)"]
