"""What models of images and sounds write: position tables, class tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paramsym import ParameterSymmetry, find_symmetry
from tests.coverage.measure import measured
from tests.tracing.zoo import randomise

INPUTS = (torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(1)),)
ROWS, WIDTH = 5, 6
POSITIONS = {
    "a buffer": torch.arange(ROWS).expand(1, -1),
    "one axis": torch.arange(ROWS),
    "repeated": torch.arange(ROWS).expand(8, -1),
    "another order": torch.tensor([[3, 1, 4, 0, 2]]),
    "twice": torch.tensor([[0, 0, 1, 2, 3]]),
    "not all": torch.tensor([[0, 1, 2, 3, 5]]),
}


class Patches(nn.Module):
    """A class token before patches, a table of positions read by `read`, and a block on a norm."""

    ids: Tensor

    def __init__(self, read: str, where: str = "a buffer", kept: bool = False) -> None:
        super().__init__()
        self.read = read
        self.enter = nn.Linear(3, WIDTH, bias=False)
        self.first = nn.Parameter(torch.randn(WIDTH))
        self.positions = nn.Embedding(ROWS + (where == "not all"), WIDTH)
        self.register_buffer("ids", POSITIONS[where].clone(), persistent=kept)
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = torch.cat([self.first.expand(len(x), 1, -1), h], dim=1)
        table, ids = self.positions.weight, self.ids
        if self.read == "embedding":
            h = h + self.positions(ids)
        elif self.read == "arange":
            h = h + self.positions(torch.arange(h.shape[1], device=h.device))
        elif self.read == "getitem":
            h = h + table[ids]
        elif self.read == "flat":
            h = h + table[ids.reshape(-1)].reshape(*ids.shape, -1)
        elif self.read == "window":
            h = h + table[None, :ROWS]
        h = h + self.outer(torch.tanh(self.inner(self.norm(h))).mean(1, keepdim=True))
        return self.last(self.norm(h))


def together(symmetry: ParameterSymmetry) -> int:
    """Dimensions in which the class token moves with something else."""
    moved = (set(shift.parameters) for shift in symmetry.shifts)
    return sum(
        shift.dimension
        for shift, names in zip(symmetry.shifts, moved, strict=True)
        if {"first", "positions.weight"} <= names
    )


@pytest.mark.parametrize(
    ("read", "where"),
    [
        ("window", "a buffer"), ("arange", "a buffer"),
        ("flat", "another order"), ("getitem", "repeated"), ("getitem", "another order"),
        ("embedding", "a buffer"), ("embedding", "one axis"), ("embedding", "repeated"),
    ],
)  # fmt: skip
def test_a_table_read_once_at_fixed_positions_is_the_table(read: str, where: str) -> None:
    found = measured(Patches(read, where), INPUTS)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert together(found.symmetry) == WIDTH


@pytest.mark.parametrize(
    ("read", "where"), [("embedding", "twice"), ("getitem", "not all"), ("embedding", "not all")]
)
def test_rows_that_are_read_twice_or_not_at_all_stay(read: str, where: str) -> None:
    found = measured(Patches(read, where), INPUTS)
    assert found.refuted == () and found.error < 1e-12
    assert together(found.symmetry) == 0
    rows = (s for s in found.symmetry.shifts if "positions.weight" in s.parameters)
    assert all(s.family != "dead" for s in rows)


def test_positions_that_a_checkpoint_brings_are_data() -> None:
    found = measured(Patches("embedding", kept=True), INPUTS)
    assert found.refuted == () and found.error < 1e-12
    assert together(found.symmetry) == 0


def test_positions_that_are_inputs_are_data() -> None:
    class Given(Patches):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
            self.ids = ids
            return super().forward(x)

    found = measured(Given("embedding"), (*INPUTS, torch.arange(ROWS).expand(8, -1)))
    assert found.refuted == () and found.error < 1e-12
    assert together(found.symmetry) == 0


class Joined(nn.Module):
    """Two streams side by side, a norm of `groups` over both, and a linear way round it."""

    def __init__(self, groups: int, around: bool = True, padded: bool = False) -> None:
        super().__init__()
        self.up, self.enter = nn.Conv2d(13, 6, 1), nn.Conv2d(13, 6, 1)
        self.inner, self.norm = nn.GroupNorm(2, 6), nn.GroupNorm(groups, 12)
        self.wide = nn.Conv2d(12, 5, 1)
        self.around = nn.Conv2d(12, 5, 3 if padded else 1, padding=int(padded)) if around else None
        self.last = nn.Conv2d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + nn.functional.silu(self.inner(h))
        both = torch.cat([self.up(x), h], dim=1)
        out = self.wide(nn.functional.silu(self.norm(both)))
        if self.around is not None:
            out = out + self.around(both)
        return self.last(torch.tanh(out))


def moved(symmetry: ParameterSymmetry, name: str) -> int:
    return sum(s.dimension for s in symmetry.shifts if s.parameters[0] == name)


IMAGES = (torch.randn(8, 13, 2, 3, generator=torch.Generator().manual_seed(2)),)


@pytest.mark.parametrize("around", [True, False])
def test_a_shift_of_a_whole_piece_that_other_norms_count_in_groups(around: bool) -> None:
    found = measured(Joined(2, around), IMAGES)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert moved(found.symmetry, "up.bias") == 1


def test_smaller_groups_shift_one_by_one() -> None:
    found = measured(Joined(4), IMAGES)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert moved(found.symmetry, "up.bias") == 2


@pytest.mark.parametrize(("groups", "padded"), [(1, False), (2, True)])
def test_one_piece_of_a_group_and_what_a_border_cuts_do_not_shift(
    groups: int, padded: bool
) -> None:
    found = measured(Joined(groups, padded=padded), IMAGES)
    assert found.refuted == () and found.error < 1e-12
    assert moved(found.symmetry, "up.bias") == 0


NORMS = {
    "plain": lambda: nn.LayerNorm(6),
    "without a bias": lambda: nn.LayerNorm(6, bias=False),
    "without weights": lambda: nn.LayerNorm(6, elementwise_affine=False),
    "of squares": lambda: nn.RMSNorm(6, eps=1e-6),
}


class Grouped(nn.Module):
    """Positions by a convolution in groups, as models of sounds have them, a norm, and readers.

    The axis of channels is counted by two leaves: groups, and what each of them holds.
    """

    def __init__(self, norm: str, shuffled: bool, reader: str, bias: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(7, 6)
        self.places = nn.Conv1d(6, 6, 3, padding=1, groups=2)
        self.norm, self.shuffled, self.reader = NORMS[norm](), shuffled, reader
        width = 3 if reader == "one group" else 6
        self.inner = nn.Linear(width, 6, bias=bias)
        self.window = nn.Conv1d(6, 6, 1, groups=2, bias=bias)
        self.outer, self.last = nn.Linear(6, 6), nn.Linear(6, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + torch.tanh(self.places(h.transpose(1, 2))).transpose(1, 2)
        h = self.norm(h)
        if self.shuffled:
            h = h.unflatten(-1, (2, 3)).transpose(-1, -2).flatten(-2)
        if self.reader == "in groups":
            y = self.window(h.transpose(1, 2)).transpose(1, 2)
        elif self.reader == "one group":
            y = self.inner(h[..., :3])
        elif self.reader == "flat":
            y = self.inner(h.flatten(0, 1)).unflatten(0, h.shape[:2])
        else:
            y = self.inner(h)
        return self.last(torch.tanh(self.outer(torch.tanh(y))).mean(1))


SOUNDS = (torch.randn(8, 5, 7, generator=torch.Generator().manual_seed(3)),)


def received_by(symmetry: ParameterSymmetry, name: str) -> int:
    """Dimensions of a weight that its input leaves free."""
    kinds = ("absent", "unread")
    return sum(s.dimension for s in symmetry.shifts if s.parameters[0] == name and s.kind in kinds)


@pytest.mark.parametrize("reader", ["all", "flat"])
@pytest.mark.parametrize(
    ("norm", "bias"), [("plain", True), ("without weights", True), ("without weights", False)]
)
def test_what_a_norm_never_has_along_an_axis_of_groups(norm: str, bias: bool, reader: str) -> None:
    found = measured(Grouped(norm, shuffled=False, reader=reader, bias=bias), SOUNDS)
    assert (found.refuted, found.unexplained) == ((), 0)
    assert found.error < 1e-12
    assert received_by(found.symmetry, "inner.weight") == 6


@pytest.mark.parametrize(
    ("norm", "reader", "shuffled"),
    [("of squares", "all", False), ("plain", "one group", True), ("plain", "in groups", False)],
)
def test_a_norm_without_a_mean_and_readers_of_one_group_leave_nothing_free(
    norm: str, reader: str, shuffled: bool
) -> None:
    found = measured(Grouped(norm, shuffled, reader, bias=True), SOUNDS)
    assert found.refuted == () and found.error < 1e-12
    assert received_by(found.symmetry, "inner.weight") == 0
    assert received_by(found.symmetry, "window.weight") == 0


@pytest.mark.parametrize(
    ("norm", "bias", "shuffled"),
    [("plain", True, True), ("plain", False, False), ("without a bias", False, True)],
)
def test_shuffled_groups_and_readers_without_a_bias_claim_nothing_wrong(
    norm: str, bias: bool, shuffled: bool
) -> None:
    found = measured(Grouped(norm, shuffled, "all", bias), SOUNDS)
    assert found.refuted == () and found.error < 1e-12


class Crossing(nn.Module):
    """One axis in groups of one size for a norm, and of another one for a convolution."""

    def __init__(self, width: int, groups: int, others: int, norm: bool) -> None:
        super().__init__()
        self.enter, self.last = nn.Linear(7, width), nn.Linear(width, 3)
        self.inner = nn.Conv1d(width, width, 1, groups=groups)
        self.others, self.norm = others, norm

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).unflatten(-1, (self.others, -1))
        h = nn.functional.layer_norm(h, h.shape[-1:]) if self.norm else h - h.mean(-1, True)
        return self.last(torch.tanh(self.inner(h.flatten(-2).transpose(1, 2))).transpose(1, 2))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("width", "groups", "others"), [(6, 2, 3), (12, 4, 6), (12, 3, 4)])
def test_groups_that_cross_those_of_a_norm_receive_everything(
    width: int, groups: int, others: int, norm: bool
) -> None:
    model = randomise(Crossing(width, groups, others, norm), 0)
    symmetry = find_symmetry(model, SOUNDS, check=False)
    assert received_by(symmetry, "inner.weight") == 0
