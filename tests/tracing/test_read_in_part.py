"""What is read in part, by a mean, or twice: claims about each part that hold for the whole alone.

Derived without a check, so that nothing but the derivation is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import audit, verify
from paramsym.checking.verify import Verification
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.infer import infer


class Network(nn.Module):
    """A function of itself and an input, with parameters of some shapes."""

    def __init__(self, function: Callable[[Network, Tensor], object], **shapes: tuple[int, ...]):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def derived(model: nn.Module, x: Tensor) -> tuple[ParameterSymmetry, Verification]:
    """What is derived of a model, and how true it is."""
    symmetry = infer(record(model.double(), (x,)))
    return symmetry, verify(model, symmetry, (x,), limit=100)


# -- rotations of which one member of a pair is read ----------------------------------------------


def rotated(z: Tensor, interleaved: bool, turning: bool) -> Tensor:
    """Pairs turned by angles that are the same at all positions, or not."""
    half = z.shape[-1] // 2
    positions = torch.arange(z.shape[1]) if turning else torch.ones(1)
    angles = positions.to(z)[:, None] * torch.linspace(0.5, 0.9, half).to(z)
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = z[..., ::2], z[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = z.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _written(z: Tensor) -> Tensor:
    z = z.clone()
    z[..., 0] = 0.5
    return z


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda z: z[..., :1], "last": lambda z: z[..., -1:], "even": lambda z: z[..., ::2],
    "but the first": lambda z: z[..., 1:], "exchanged": lambda z: z.flip(-1),
    "shifted": lambda z: functional.pad(z, (1, 0)), "written": _written,
    "half": lambda z: z.unflatten(-1, (2, -1))[..., 0, :],
}  # fmt: skip
WAYS = [*product(PARTS, [2, 4], [False, True], [False, True])]


@pytest.mark.parametrize(("part", "width", "interleaved", "turning"), WAYS)
def test_both_members_of_a_pair_enter_what_is_read_of_it(
    part: str, width: int, interleaved: bool, turning: bool
) -> None:
    def attend(m: Network, x: Tensor) -> Tensor:
        query, key = (rotated(x @ w, interleaved, turning) for w in (m.query, m.key))
        return PARTS[part](query) @ PARTS[part](key).mT

    torch.manual_seed(0)
    model = Network(attend, query=(3, width), key=(3, width))
    assert derived(model, torch.randn(2, 3, 3).double())[1].error < 1e-10


def test_pairs_that_are_read_as_wholes_turn() -> None:
    def attend(m: Network, x: Tensor) -> Tensor:
        return rotated(x @ m.query, False, True) @ rotated(x @ m.key, False, True).mT

    torch.manual_seed(0)
    model, x = Network(attend, query=(5, 4), key=(5, 4)), torch.randn(9, 4, 5).double()
    symmetry, checked = derived(model, x)
    assert "ComplexScaling(2)" in {str(space.group) for space in symmetry.spaces.values()}
    assert checked.error < 1e-10
    assert audit(model, (x,), symmetry=symmetry).unexplained == 0


# -- means over the units that have a kernel each --------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
def test_what_each_unit_hides_by_itself_is_not_hidden_in_their_mean(dim: int) -> None:
    def read(m: Network, x: Tensor) -> Tensor:
        h = x[:, :3, None] * x[:, None, 3:] + m.bias
        return functional.gelu((h - h.mean(dim, keepdim=True)).flatten(1) @ m.read)

    torch.manual_seed(0)
    model, x = Network(read, bias=(3, 2), read=(6, 1)), torch.randn(30, 5).double()
    symmetry, checked = derived(model, x)
    assert checked.error < 1e-10
    assert any("shift:bias" in row.name for row in checked.rows)  # what all of them have in common
    assert not audit(model, (x,), symmetry=symmetry).refuted


# -- a matrix that is read as a form, and as itself ------------------------------------------------


def _form(m: Network, x: Tensor) -> Tensor:
    return (x @ m.weight * x).sum(-1)


OTHERS: dict[str, Callable[[Network, Tensor], Tensor]] = {
    "its shares": lambda m, x: x @ m.weight.softmax(0),
    "a row": lambda m, x: (x + m.weight[0] + m.bias) @ m.read,  # the bias takes a change of it up
}


@pytest.mark.parametrize("other", OTHERS)
def test_no_form_is_antisymmetric_which_is_no_direction_of_its_input(other: str) -> None:
    shapes = {"weight": (3, 3), "bias": (3,), "read": (3, 2)}
    torch.manual_seed(0)
    model = Network(lambda m, x: (_form(m, x), functional.gelu(OTHERS[other](m, x))), **shapes)
    symmetry, checked = derived(model, torch.randn(30, 3).double())
    assert checked.error < 1e-10
    assert not [s.name for s in symmetry.shifts if "unreceived" in s.name]


# -- a table that is the last layer, too, and is summed --------------------------------------------


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_a_common_change_of_all_units_is_summed_over_all_of_them(how: str) -> None:
    def tied(m: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        v = functional.embedding(x, m.table)
        h = functional.layer_norm(v * m.gain + m.bias, (3,))
        return h @ m.table.T, getattr(v, how)(-1) + m.number

    torch.manual_seed(0)
    shapes = {"table": (4, 3), "gain": (3,), "bias": (3,), "number": ()}
    model, x = Network(tied, **shapes), torch.tensor([[0, 1, 2], [2, 3, 1]])
    symmetry, checked = derived(model, x)
    assert checked.error < 1e-10
    moving = [s for s in symmetry.shifts if "table" in s.parameters and "number" in s.parameters]
    assert len(moving) == 1  # and it is told once


def test_a_function_that_refuses_some_numbers_is_no_defect() -> None:
    torch.manual_seed(0)
    model = Network(lambda m, x: x @ torch.linalg.cholesky(m.a @ m.a.T), a=(1, 1))
    assert derived(model, torch.randn(5, 1).double())[1].error < 1e-10


# -- parameters that are given out as they are, or are pieces of something else --------------------

SHOWN: dict[str, tuple[Callable[[Network, Tensor], object], dict[str, tuple[int, ...]]]] = {
    "a weight behind shares": (
        lambda m, x: ((x + m.u).softmax(-1) @ m.w + m.c, m.w),
        {"u": (3,), "w": (3, 2), "c": (2,)},
    ),
    "a piece of a table": (
        lambda m, x: (x + torch.cat([m.u, m.w])).softmax(-1) @ m.w + m.c,
        {"u": (2, 3), "w": (3, 3), "c": (5, 3)},
    ),
    "a padded weight": (
        lambda m, x: ((x @ m.a).softmax(-1) @ m.w + m.c, functional.pad(m.w, (1, 0)) * m.t),
        {"a": (3, 3), "w": (3, 2), "c": (2,), "t": (3,)},
    ),
    "a weight behind a projection": (
        lambda m, x: ((x @ m.a @ m.b + m.u) @ m.w + m.c, m.w),
        {"a": (3, 2), "b": (2, 4), "u": (4,), "w": (4, 2), "c": (2,)},
    ),
    "a gain of one more": (lambda m, x: ((1 + m.g) * (x @ m.a), m.g), {"a": (3, 3), "g": (3,)}),
    "a number of one more": (lambda m, x: ((1 + m.g) * (x @ m.a), m.g), {"a": (3, 3), "g": ()}),
    "a gain of a norm": (
        lambda m, x: (functional.rms_norm(x @ m.a, (3,), 1 + m.g, 0.01) @ m.b, m.g.detach()),
        {"a": (3, 3), "b": (3, 2), "g": (3,)},
    ),
    "a bias of one more": (
        lambda m, x: ((x @ m.a + m.b + 1.0).relu() @ m.w, m.b),
        {"a": (3, 3), "b": (3,), "w": (3, 2)},
    ),
}


@pytest.mark.parametrize("way", SHOWN)
def test_what_is_given_out_or_read_as_it_is_stays_as_it_is(way: str) -> None:
    function, shapes = SHOWN[way]
    torch.manual_seed(0)
    x = torch.randn(4, 5, 3) if way == "a piece of a table" else torch.randn(4, 3)
    assert derived(Network(function, **shapes), x.double())[1].error < 1e-10


def test_what_is_not_given_out_moves() -> None:
    torch.manual_seed(0)
    model = Network(lambda m, x: (x + m.u).softmax(-1) @ m.w + m.c, u=(3,), w=(3, 2), c=(2,))
    assert [s for s in derived(model, torch.randn(4, 3).double())[0].shifts if "w" in s.parameters]
    model = Network(lambda m, x: (1 + m.g) * (x @ m.a), a=(3, 3), g=(3,))
    assert derived(model, torch.randn(4, 3).double())[0].offsets == {"g": 1.0}
