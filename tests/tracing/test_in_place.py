"""Writes in place: the record is the same function without writes, and agrees with itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paramsym import find_symmetry
from paramsym.lowering.lower import lower
from paramsym.primitives import Opaque
from paramsym.recording.graph import Call, Graph, Value, values_in
from paramsym.recording.layout import covers
from paramsym.recording.ledger import DEFECT, Ledger
from paramsym.recording.record import record
from tests.tracing.zoo import ZOO, build, errors

STATE = torch.zeros(2, 4, 4, dtype=torch.float64)  # brought along by a model, no parameter


class Net(nn.Module):
    """h = x wᵀ of shape (2, 4, 4), changed in place; then a reader u."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.function = function
        for name, shape in {"w": (4, 3), "g": (4,), "u": (4, 3)}.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            setattr(self, name, nn.Parameter(drawn))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x @ self.w.T)


X = (torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64),)
WRITES: dict[str, tuple[Callable[..., Tensor], str]] = {}


def writes(groups: str) -> Callable[..., Any]:
    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        WRITES[function.__name__] = (function, groups)
        return function

    return register


@writes("Monomial(4), PositiveScaling(1)")
def transposed(s: Net, h: Tensor) -> Tensor:
    h.transpose(1, 2).mul_(s.g)
    return F.relu(h) @ s.u


@writes("Permutation(4), PositiveScaling(1), Scaling(1)")
def flattened(s: Net, h: Tensor) -> Tensor:
    h.view(-1, 4).mul_(s.g)
    return F.relu(h) @ s.u


@writes("OrthogonalFixingOnes(4), PositiveScaling(1)")
def a_kept_axis(s: Net, h: Tensor) -> Tensor:
    m = h.mean(-1, keepdim=True).clone()
    m[..., 0] *= 3
    return (m - 2 * h) @ s.u


@writes("GeneralLinear(2), SignedPermutation(2)")
def slab(s: Net, h: Tensor) -> Tensor:
    h[..., :2].tanh_()
    return h @ s.u


@writes("Scaling(1), Scaling(1), SignedPermutation(2)")
def slab_inside(s: Net, h: Tensor) -> Tensor:
    h[..., 1:3].tanh_()
    return h @ s.u


@writes("Scaling(1), Scaling(1), SignedPermutation(2)")
def box(s: Net, h: Tensor) -> Tensor:
    h[:, 1:3, 1:3].tanh_()
    return h @ s.u


@writes("Permutation(2)")
def strided(s: Net, h: Tensor) -> Tensor:
    h[:, ::2] *= 2
    h[..., ::2].tanh_()
    return F.relu(h) @ s.u


@writes("Monomial(4)")
def a_row_is_set(s: Net, h: Tensor) -> Tensor:
    h[:, 0] = s.g
    return F.relu(h) @ s.u


@writes("Monomial(3), Scaling(1)")
def a_unit_is_set(s: Net, h: Tensor) -> Tensor:
    h[..., 0] = 1.0
    return F.relu(h) @ s.u


@writes("GeneralLinear(2), Permutation(2)")
def another_window_is_read(s: Net, h: Tensor) -> Tensor:
    v, k = h[..., :2], h[..., 2:]
    v.tanh_()
    return k @ s.u[2:] + F.relu(v) @ s.u[:2]


@writes("Monomial(2), Monomial(2), Permutation(2), PositiveScaling(1)")
def after_the_base_was_read(s: Net, h: Tensor) -> Tensor:
    v = h[..., :2]
    early = h * 2
    v.mul_(s.g[:2])
    return F.relu(early) @ s.u + F.relu(h) @ s.u


@writes("Monomial(2), Permutation(2)")
def chained(s: Net, h: Tensor) -> Tensor:
    h.transpose(1, 2)[:, :2].mul_(2)[..., 1].tanh_()
    return F.relu(h) @ s.u


@writes("")
def overlapping_windows(s: Net, h: Tensor) -> Tensor:
    h.as_strided((2, 3, 2), (16, 5, 4)).mul_(2)
    return F.relu(h) @ s.u


@writes("Permutation(4), PositiveScaling(1), Scaling(1)")
def out(s: Net, h: Tensor) -> Tensor:
    k = torch.empty_like(h)
    torch.mul(h, s.g, out=k)
    return F.relu(k) @ s.u


@writes("GeneralLinear(2), Monomial(2)")
def copied(s: Net, h: Tensor) -> Tensor:
    k = torch.zeros_like(h)
    k.copy_(h)
    k[..., :2].copy_(h[..., 2:])
    return F.relu(k) @ s.u


@writes("")
def places_by_tensor(s: Net, h: Tensor) -> Tensor:
    h[:, torch.tensor([0, 2])] = 2.0
    h[h > 1] = 0.0
    return F.relu(h) @ s.u


@writes("PositiveScaling(1)")
def index_add(s: Net, h: Tensor) -> Tensor:
    h.index_add_(2, torch.tensor([0, 1]), h[..., 2:].clone())
    return F.relu(h) @ s.u


@writes("Monomial(4)")
def masked(s: Net, h: Tensor) -> Tensor:
    h.masked_fill_(X[0][..., :1] > 0, 0.0)
    F.relu(input=h, inplace=True)
    return h @ s.u


@writes("Permutation(4), PositiveScaling(1), Scaling(1)")
def through_data(s: Net, h: Tensor) -> Tensor:
    h.data.mul_(s.g)
    return F.relu(h) @ s.u


@writes("Permutation(4), PositiveScaling(1), Scaling(1)")
def data_is_set(s: Net, h: Tensor) -> Tensor:
    h.data = h * s.g
    return F.relu(h) @ s.u


@writes("Permutation(4), PositiveScaling(1), Scaling(1)")
def the_old_memory_is_written(s: Net, h: Tensor) -> Tensor:
    k = h + 1
    old = k[..., :2]
    k.data = h * s.g
    old.mul_(2)
    return F.relu(k) @ s.u


@writes("")
def bits(s: Net, h: Tensor) -> Tensor:
    return F.relu(h.view(torch.int64).abs().view(torch.float64)) @ s.u


@writes("")
def conjugated_in_place(s: Net, h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.view(2, 4, 2, 2)).clone()
    z[...] = z.conj()
    return F.relu(torch.view_as_real(z).flatten(2)) @ s.u


@writes("Monomial(4)")
def the_layout_changes(s: Net, h: Tensor) -> Tensor:
    h = h[0].clone()
    v = h[:2]
    h.t_()
    h.mul_(2)
    return (F.relu(v) @ s.u).sum() + F.relu(h.T) @ s.u


@writes("GeneralLinear(2), Monomial(2)")
def filled_by_parts(s: Net, h: Tensor) -> Tensor:
    k = torch.empty(2, 4, 4, dtype=h.dtype)
    k[..., :2] = h[..., :2]
    k[..., 2:] = F.relu(h[..., 2:])
    return k @ s.u


@writes("SignedPermutation(4)")
def filled_step_by_step(s: Net, h: Tensor) -> Tensor:
    k = torch.zeros(4, 2, 4, dtype=h.dtype)
    for t in range(4):
        k[t] = torch.tanh(h[:, t])
    return k @ s.u


@writes("GeneralLinear(2), Monomial(2)")
def into_a_constant(s: Net, h: Tensor) -> Tensor:
    state = STATE.clone()
    state[..., :2] = h[..., :2]
    return F.relu(state) @ s.u


@writes("Monomial(2), PositiveScaling(1), Scaling(1), Scaling(1)")
def zeros_and_numbers(s: Net, h: Tensor) -> Tensor:
    h[..., 0].zero_()
    h[..., 1].fill_(2.0)
    return F.relu(h) @ s.u


@writes("")
def many_at_once(s: Net, h: Tensor) -> Tensor:
    torch._foreach_mul_([h], [s.g])
    return F.relu(h) @ s.u


@writes("")
def two_types(s: Net, h: Tensor) -> Tensor:
    torch.view_as_complex(h.view(2, 4, 2, 2)).neg_()
    return F.relu(h) @ s.u


@writes("")
def a_view_of_parts(s: Net, h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.view(2, 4, 2, 2)) * STATE[0, 0, 0]
    parts = torch.view_as_real(z).flatten(2)
    parts.transpose(1, 2)[:, 0].mul_(2)
    return F.relu(parts) @ s.u


@writes("")
def what_parts_are_viewed_of(s: Net, h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.view(2, 4, 2, 2)) * STATE[0, 0, 0]
    parts = torch.view_as_real(z).flatten(2).transpose(1, 2)
    z[0] = 0
    return F.relu(parts.transpose(1, 2)) @ s.u


@writes("")
def resized(s: Net, h: Tensor) -> Tensor:
    k = torch.empty(0, dtype=h.dtype)
    torch.mul(h, s.g, out=k)
    return F.relu(k) @ s.u


def groups_of(model: nn.Module) -> str:
    return ", ".join(sorted(str(s.group) for s in find_symmetry(model, X).spaces.values()))


@pytest.mark.parametrize("name", WRITES)
def test_the_symmetry_of_writes_in_place_is_found_and_holds(name: str) -> None:
    function, groups = WRITES[name]
    model = Net(function)
    assert groups_of(model) == groups
    found = errors(model, find_symmetry(model, X), X)
    wrong = found.pop("a wrong move")
    assert max(found.values()) < 1e-12 and wrong > 1e-2, found


def test_the_answer_does_not_depend_on_how_a_write_is_spelled() -> None:
    """Negative control of the table: without the write these are other groups."""

    def functional(s: Net, h: Tensor) -> Tensor:
        return torch.cat([h[..., :2].tanh(), h[..., 2:]], -1) @ s.u

    assert groups_of(Net(functional)) == WRITES["slab"][1]
    assert groups_of(Net(lambda s, h: h @ s.u)) == "GeneralLinear(4)"


# -- the recorded graph computes what the model computes ------------------------------------------


def evaluate(graph: Graph, state: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    """Run a recorded graph without any write; windows are read off their owners."""
    numbers: dict[int, Tensor] = {v.id: state[v.name] for v in graph.parameters.values()}
    given = iter(inputs)

    def read(value: Value) -> Tensor:
        if value.id not in numbers:
            if value.storage != value.id:
                owner = read(graph.values[value.storage])
                first = value.offset - graph.values[value.storage].offset
                first += owner.storage_offset()
                numbers[value.id] = torch.as_strided(owner, value.shape, value.strides, first)
            else:
                assert value.kind in ("input", "constant")
                numbers[value.id] = next(given) if value.kind == "input" else value.data  # type: ignore[assignment]
        return numbers[value.id]

    for call in graph.calls:
        args, kwargs = pytree.tree_map(
            lambda leaf: read(leaf) if isinstance(leaf, Value) else leaf,
            (call.args, call.kwargs),
            is_leaf=lambda leaf: isinstance(leaf, Value),
        )
        result = call.target(*args, **kwargs)
        results = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        for value, tensor in zip(values_in(call.result), results, strict=True):
            numbers[value.id] = tensor
    return read(graph.outputs[0])


def record_error(model: nn.Module) -> float:
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        found = evaluate(record(model, X), state, X)
        return float((found - model(*X)).abs().max())


# functions of which only the arguments are known are not evaluated
UNKNOWN = {"many_at_once", "two_types", "resized", "conjugated_in_place",
           "a_view_of_parts", "what_parts_are_viewed_of"}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in WRITES if n not in UNKNOWN])
def test_the_record_computes_what_the_model_computes(name: str) -> None:
    assert record_error(Net(WRITES[name][0])) == 0.0


def random_writes(seed: int) -> Callable[..., Tensor]:
    """A program that writes a few times through windows of windows, and reads some of them."""
    draw = random.Random(seed)
    plan = [[draw.random() for _ in range(6)] for _ in range(draw.randint(1, 5))]

    def window(h: Tensor, steps: list[float]) -> Tensor:
        for step in steps:
            if step < 0.2 and h.ndim > 1:
                h = h.transpose(0, -1)
            elif step < 0.4 and h.ndim > 1:
                h = h[..., int(step * 100) % h.shape[-1]]
            elif step < 0.6:
                h = h[: max(1, int(step * 100) % h.shape[0])]
            elif step < 0.7:
                h = h[..., :: 1 + int(step * 100) % 2]
            elif step < 0.8 and h.is_contiguous() and h.numel() % 2 == 0:
                h = h.view(2, -1)
            elif step < 0.9:
                h = h.unsqueeze(int(step * 100) % h.ndim)
        return h

    def forward(s: Net, h: Tensor) -> Tensor:
        early, total = window(h, plan[0][3:]), 0.0
        for a, b, c, d, e, f in plan:
            target = window(h, [a, b, c])
            if d < 0.3:
                target.tanh_()
            elif d < 0.5:
                target.mul_(1 + s.g[int(10 * e) % 4])
            elif d < 0.7:
                target += f
            elif d < 0.8:
                target.copy_(window(h, [a, b, c]).flip(0))
            elif d < 0.9 and target.ndim > 1:
                target[..., 0] = e
            else:
                F.relu(target, inplace=True)
            total = total + window(h, [e, f]).sum()
        return torch.tanh(h) @ s.u + early.sum() + total

    return forward


@pytest.mark.parametrize("seed", range(30))
def test_random_writes_are_recorded_and_their_symmetry_holds(seed: int) -> None:
    model = Net(random_writes(seed))
    assert record_error(model) == 0.0
    symmetry = find_symmetry(model, X)
    assert DEFECT not in symmetry.unknown
    found = errors(model, symmetry, X, each=False)
    assert found["everything"] < 1e-12


def test_whether_a_write_reaches_the_input_depends_on_its_strides() -> None:
    def forward(s: Net, h: Tensor) -> Tensor:
        return h @ s.u

    class Clearing(Net):
        def forward(self, x: Tensor) -> Tensor:
            x.reshape(-1).zero_()  # a copy where x is transposed, a view where it is not
            return F.relu(x @ self.w.T) @ self.u

    transposed = (X[0][0].T.contiguous().T,)
    free = find_symmetry(Clearing(forward), transposed)
    assert [str(s.group) for s in free.spaces.values()] == ["Monomial(4)"]
    found = errors(Clearing(forward), free, transposed)
    assert found["everything"] < 1e-12 < 1e-2 < found["a wrong move"]


# -- the record agrees with itself ----------------------------------------------------------------


def misreading(self: Ledger, tensor: Tensor) -> tuple[Value, Call | None]:
    """What once was wrong: the whole gets the shape of the window through which it was written."""
    key = self._key(tensor)
    old, owner = self.known[id(tensor)], self.owners[key]
    assert covers(old, owner)
    written = self._new(old, None, old.dtype)
    self.owners[key] = written
    for other in self.sharers[key]:
        self.known[id(other)] = written
    return written, None


@pytest.mark.parametrize("name", ["transposed", "flattened"])
def test_a_misread_write_is_held_fixed_and_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net(WRITES[name][0])
    assert DEFECT not in find_symmetry(model, X).unknown
    monkeypatch.setattr(Ledger, "write", misreading)
    symmetry = find_symmetry(model, X)
    assert symmetry.unknown[DEFECT].startswith("test_in_place.py:")
    assert "a defect of paramsym" in symmetry.reasons["w"][0]
    assert errors(model, symmetry, X)["everything"] < 1e-12
    monkeypatch.setattr(Ledger, "_agrees", lambda *_: True)  # without the check it goes wrong
    try:
        wrong = errors(model, find_symmetry(model, X, check=False), X)["everything"]
    except AssertionError:
        wrong = 1.0
    assert wrong > 1e-3


def test_the_zoo_raises_no_alarm() -> None:
    for name in ZOO:
        calls = record(*build(name)).calls
        assert calls and not [c for c in calls if c.name == "torn" or "(what it" in c.name], name


def test_what_nobody_recorded_is_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without a known origin depends on all parameters, as far as anybody knows."""
    from paramsym.recording import recorder as module

    def forward(s: Net, h: Tensor) -> Tensor:
        return F.relu(torch.triu(h)) @ s.u

    assert groups_of(Net(lambda s, h: F.relu(torch.tril(h)) @ s.u)) == "PositiveScaling(4)"
    monkeypatch.setattr(module, "_UNTRACED", module._UNTRACED | {"triu"})
    assert groups_of(Net(forward)) == ""


class Substituted(nn.Module):
    """A delta rule: rows of a triangular matrix are written one by one, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(3, 4), nn.Linear(3, 4)
        self.leave = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        key = self.key(x)
        found = torch.tril(key @ key.mT, -1)
        for i in range(1, x.shape[1]):
            row, above = found[..., i, :i].clone(), found[..., :i, :i].clone()
            found[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
        return self.leave(found @ self.value(x))


@pytest.mark.parametrize(("length", "whole"), [(6, False), (60, True)])
def test_a_matrix_that_is_written_row_by_row_is_cut_into_so_many_blocks_at_most(
    length: int, whole: bool
) -> None:
    torch.manual_seed(0)
    model, x = Substituted().double(), (torch.randn(2, length, 3).double() / length,)
    symmetry = find_symmetry(model, x)
    opaque = [op for op in lower(record(model, x)).ops if isinstance(op, Opaque)]
    assert bool(opaque) == whole
    groups = {str(space.group) for space in symmetry.spaces.values()}
    assert {"Orthogonal(4)", "GeneralLinear(4)"} <= groups  # of keys, and of values
    assert errors(model, symmetry, x)["everything"] < 1e-9
