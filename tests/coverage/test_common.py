"""What all coordinates have in common: no norm sees it, and a projection may lead to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, verify
from paramsym.recording.record import record
from paramsym.structure.shift import Factor, Window, columns_of
from paramsym.structure.sliding import projector
from paramsym.tracing.infer import infer
from tests.coverage.measure import measured
from tests.tracing.zoo import randomise

NARROW, WIDTH, OUT = 4, 6, 5
INPUTS = (torch.randn(9, 7, generator=torch.Generator().manual_seed(1)),)


class Gained(nn.Module):
    """A layer norm whose gain is one more than its parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], eps=0.01) * (1 + self.weight) + self.bias


NORMS = {
    "layer": lambda: nn.LayerNorm(NARROW, eps=0.01),
    "plain": lambda: nn.LayerNorm(NARROW, eps=0.01, elementwise_affine=False),
    "rms": lambda: nn.RMSNorm(NARROW, eps=0.01),
    "offset": lambda: Gained(NARROW),
}


class Projected(nn.Module):
    """A norm, a projection to more channels, and a branch beside a skip before another norm."""

    def __init__(self, norm: str = "layer", last: str = "layer", near: str = "") -> None:
        super().__init__()
        self.near = near
        self.first, self.norm = nn.Linear(7, NARROW), NORMS[norm]()
        self.up, self.read = nn.Linear(NARROW, WIDTH), nn.Linear(WIDTH, OUT)
        self.out, self.head = nn.Linear(OUT, WIDTH), nn.Linear(WIDTH, 3)
        kinds = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
        self.last = kinds[last](WIDTH, eps=0.01)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(self.first(x)))
        if self.near == "constant":
            h = h + torch.linspace(0.0, 1.0, WIDTH)
        skip = h * self.gain if self.near == "gain" else h
        branch = self.out(self.read(h).tanh())
        if self.near == "twice":
            branch = branch + self.out(self.read(h * h).tanh())
        if self.near == "entrywise":
            branch = branch + h.tanh()
        return self.head(self.last(skip + branch).tanh())


def common(symmetry: ParameterSymmetry) -> list[int]:
    return [s.dimension for s in symmetry.shifts if s.name.endswith(".common")]


def in_kernels(symmetry: ParameterSymmetry, name: str) -> list[int]:
    """The dimensions of what moves a weight along what its input never has."""
    return [
        s.dimension for s in symmetry.shifts
        if s.kind == "absent" and s.terms[0].target.parameter == name
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "dimensions"),
    [("layer", WIDTH - NARROW + 1), ("plain", WIDTH - NARROW + 1), ("rms", WIDTH - NARROW)],
)
def test_a_projection_of_a_norm_leaves_one_direction_more(norm: str, dimensions: int) -> None:
    found = measured(Projected(norm), INPUTS)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert sum(in_kernels(found.symmetry, "read.weight")) == OUT * dimensions
    assert common(found.symmetry) == [WIDTH]


def test_a_gain_with_an_offset_is_not_read_as_one_without() -> None:
    found = measured(Projected("offset"), INPUTS)
    assert found.refuted == ()
    assert found.error < 1e-12
    assert sum(in_kernels(found.symmetry, "read.weight")) == OUT * (WIDTH - NARROW)


@pytest.mark.parametrize(
    ("last", "near"),
    [("rms", ""), ("layer", "gain"), ("layer", "twice"), ("layer", "entrywise"),
     ("layer", "constant")],
)  # fmt: skip
def test_nothing_in_common_moves_that_somebody_sees(last: str, near: str) -> None:
    found = measured(Projected("layer", last, near), INPUTS)
    assert found.refuted == ()
    assert found.error < 1e-12
    assert common(found.symmetry) == []


class Summed(nn.Module):
    """A stream written by several linear maps and a table, before attention with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(5, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=0.01), nn.Linear(WIDTH, 11)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids) + self.places
        q, k, v = (m(h) for m in (self.query, self.key, self.value))
        return self.head(self.norm(h + (q @ k.mT).softmax(-1) @ v).tanh())


def test_tables_and_positions_write_the_common_change() -> None:
    ids = torch.randint(0, 9, (8, 5), generator=torch.Generator().manual_seed(1))
    found = measured(Summed(), (ids,))
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert common(found.symmetry) == [WIDTH]
    (shift,) = (s for s in found.symmetry.shifts if s.name.endswith(".common"))
    written = {t.target.parameter for t in shift.terms if not t.divided}
    assert written == {"words.weight", "places"}


class Chain(nn.Module):
    """Norms, projections and branches in a random order, at random widths."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=generator))

        self.kinds, self.parts = [], nn.ModuleList()
        width = 5
        front = (("norm", "linear"), ("rms", "linear"), ("linear",), ("norm", "rms"))[drawn(0, 3)]
        for kind in (*front, *(("branch", "tanh", "linear")[drawn(0, 2)] for _ in range(2))):
            after = drawn(3, 8) if kind == "linear" else width
            biased = bool(drawn(0, 1))
            part = {
                "linear": lambda n=width, m=after, b=biased: nn.Linear(n, m, bias=b),
                "norm": lambda n=width, b=biased: nn.LayerNorm(n, eps=0.01, elementwise_affine=b),
                "rms": lambda n=width, b=biased: nn.RMSNorm(n, eps=0.01, elementwise_affine=b),
                "branch": lambda n=width, b=biased: nn.Sequential(
                    nn.Linear(n, 3, bias=b), nn.Tanh(), nn.Linear(3, n)
                ),
                "tanh": nn.Tanh,
            }[kind]()
            self.kinds.append(kind)
            self.parts.append(part)
            width = after
        self.last, self.head = nn.LayerNorm(width, eps=0.01), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for kind, part in zip(self.kinds, self.parts, strict=True):
            x = x + part(x) if kind == "branch" else part(x)
        return self.head(self.last(x))


# Kernels and common changes are rare: the last three have them.
@pytest.mark.parametrize(
    "seeds", [(*range(10), 15, 17, 23), pytest.param(range(48), marks=pytest.mark.slow)], ids=len
)
def test_random_chains_keep_their_function(seeds: Sequence[int]) -> None:
    met = {"kernel": 0, "common": 0}
    inputs = (torch.randn(6, 5, generator=torch.Generator().manual_seed(2)),)
    for seed in seeds:
        found = measured(Chain(seed), inputs, seed, check=False)
        factors = [f for s in found.symmetry.shifts for t in s.terms for f in t.factors]
        met["kernel"] += any("z" in w.letters for f in factors for w in f.kernel)
        met["common"] += bool(common(found.symmetry))
        assert found.error < 1e-9, seed
        assert found.refuted == (), seed
    assert min(met.values()) > 1, met


@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [*itertools.product((3, 5), (2, 4))])
def test_the_projector_leads_where_columns_agree(rows: int, columns: int, gained: bool) -> None:
    """Against the null space of the differences of columns, by another decomposition."""
    generator = torch.Generator().manual_seed(rows * columns)
    params = {
        "w": torch.randn(rows, columns, generator=generator, dtype=torch.float64),
        "g": torch.randn(columns, generator=generator, dtype=torch.float64),
    }
    kernel = [Window("w", "xz", (rows, columns), (columns, 1))]
    kernel += [Window("g", "z", (columns,), (1,))] if gained else []
    factor = Factor(Window("w", "ab", (rows, rows), (0, 0)), kernel=tuple(kernel))
    found = projector(factor, params, torch.zeros((), dtype=torch.float64))
    seen = params["w"] * params["g"] if gained else params["w"]
    assert torch.allclose(found @ found, found, atol=1e-12)
    assert torch.allclose(found @ (seen[:, 1:] - seen[:, :1]), torch.zeros(()).double(), atol=1e-12)
    left = max(0, rows - columns + 1)
    assert round(float(found.trace())) == left == rows - min(rows, columns_of(factor.kernel) or 0)


class Residual(nn.Module):
    """A residual stream that norms read on the way, and a weight at its end (no last norm)."""

    def __init__(self, near: str = "") -> None:
        super().__init__()
        self.near = near
        self.first, self.last = nn.Linear(7, WIDTH), nn.Linear(WIDTH, 4)
        self.places = nn.Parameter(torch.randn(5, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=0.01) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, OUT), nn.Linear(OUT, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.places
        y = self.norms[0](h)
        weights = (self.query(y) @ self.key(y).mT).softmax(-1)
        h = h + self.out(weights @ self.value(y))
        y = self.down(torch.tanh(self.up(self.norms[1](h))))
        h = h + (y.tanh() if self.near == "entrywise" else y)
        if self.near == "mean":
            h = h.mean(1)
        if self.near == "twice":
            return self.last(h) + self.last(self.norms[1](h))
        return h if self.near == "output" else self.last(h)


@pytest.mark.parametrize("near", ["", "mean"])
def test_a_stream_without_a_last_norm_has_something_in_common(near: str) -> None:
    found = measured(Residual(near), (torch.randn(8, 5, 7),))
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert common(found.symmetry) == [WIDTH]
    (shift,) = (s for s in found.symmetry.shifts if s.name.endswith(".common"))
    written = {t.target.parameter for t in shift.terms if not t.divided}
    assert written == {"places"} | {
        f"{name}.{part}" for name in ("first", "out", "down") for part in ("weight", "bias")
    }
    assert {t.target.parameter for t in shift.terms if t.divided} == {"last.weight"}


@pytest.mark.parametrize("near", ["entrywise", "twice", "output"])
def test_a_stream_that_somebody_else_writes_or_reads_has_nothing_in_common(near: str) -> None:
    found = measured(Residual(near), (torch.randn(8, 5, 7),))
    assert found.refuted == ()
    assert found.error < 1e-12
    assert common(found.symmetry) == []


class Tower(nn.Module):
    """A residual stream through many layers, each of which writes it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(WIDTH, OUT) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(OUT, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            h = h + down(torch.tanh(up(norm(h))))
        return self.last(h)


@pytest.mark.parametrize("layers", [3, 40])
def test_a_motion_has_as_many_terms_as_a_network_has_layers(layers: int) -> None:
    """An einsum has fifty letters, which all layers once shared: each term has them for itself."""
    model, x = randomise(Tower(layers)).double(), torch.randn(4, 3).double()
    symmetry = infer(record(model, (x,)))
    assert common(symmetry) == [WIDTH]
    assert verify(model, symmetry, (x,), limit=10).error < 1e-11
