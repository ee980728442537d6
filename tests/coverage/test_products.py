"""Products of a thing with itself: what a quadratic form sees of its matrix, in many spellings."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paramsym import find_symmetry, verify
from paramsym.primitives.blocks import are_apart
from tests.coverage.measure import Measured, measured
from tests.tracing.zoo import errors

DRAWN = torch.Generator().manual_seed(4)
WIDTH, OUT, BATCH = 5, 2, 31
ANTISYMMETRIC = WIDTH * (WIDTH - 1) // 2
Form = Callable[[Tensor, Tensor], Tensor]


class Scored(nn.Module):
    """A form of one vector, with a matrix (or several) that is a parameter."""

    def __init__(self, form: Form, *shape: int) -> None:
        super().__init__()
        self.form = form
        self.w = nn.Parameter(torch.randn(*shape, generator=DRAWN))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.w)


def count(model: nn.Module, *shape: int) -> Measured:
    found = measured(model, (torch.randn(*(shape or (BATCH, WIDTH)), generator=DRAWN),))
    assert found.error < 1e-11
    assert found.refuted == ()
    return found


def moves(found: Measured, name: str) -> int:
    """In how many directions shifts move a parameter."""
    return sum(shift.dimension for shift in found.symmetry.shifts if name in shift.parameters)


ONE: dict[str, Form] = {
    "product and sum": lambda x, w: ((x @ w) * x).sum(-1),
    "the other way": lambda x, w: (x * (x @ w.T)).sum(dim=1, keepdim=True),
    "mean": lambda x, w: (functional.linear(x, w) * x).mean(-1),
    "einsum": lambda x, w: torch.einsum("bi,ij,bj->b", x, w, x),
    "einsum, matrix last": lambda x, w: torch.einsum("bi,bj,ij->b", x, x, w),
    "two einsums": lambda x, w: torch.einsum("bj,bj->b", torch.einsum("bi,ij->bj", x, w), x),
    "rows and columns": lambda x, w: (x[:, None, :] @ w @ x[:, :, None]).flatten(),
    "bmm": lambda x, w: torch.bmm((x @ w).unsqueeze(1), x.unsqueeze(2)).reshape(-1),
    "vecdot": lambda x, w: torch.linalg.vecdot(x @ w, x),
}
OUTER: dict[str, Form] = {
    "outer products": lambda x, w: (torch.einsum("bi,bj->bij", x, x) * w).sum((1, 2)),
    "flat": lambda x, w: (x[:, :, None] * x[:, None]).reshape(len(x), -1) @ w.reshape(-1),
    "matrix product": lambda x, w: ((x[:, :, None] @ x[:, None]).flatten(1) * w.flatten()).sum(-1),
}
SEVERAL: dict[str, Form] = {
    "bilinear": lambda x, w: functional.bilinear(x, x, w),
    "einsum": lambda x, w: torch.einsum("bi,oij,bj->bo", x, w, x),
    "products": lambda x, w: ((x @ w) * x).sum(-1).T,
    "matrices": lambda x, w: (x[:, None, None] @ w @ x[:, None, :, None]).squeeze(-1),
}
OTHERS: dict[str, Form] = {
    "neighbours": lambda x, w: ((x[:-1] @ w) * x[1:]).sum(-1),
    "all pairs": lambda x, w: (x @ w) @ x.T,
    "rolled": lambda x, w: ((x @ w) * x.roll(1, -1)).sum(-1),
    "turned around": lambda x, w: ((x @ w) * x.flip(0)).sum(-1),
    "a function between": lambda x, w: (torch.tanh(x @ w) * x).sum(-1),
    "a function on one side": lambda x, w: ((x @ w) * torch.tanh(x)).sum(-1),
    "not summed": lambda x, w: (x @ w) * x,
    "seen elsewhere": lambda x, w: torch.cat([(x @ w) * x, x @ w], 1).sum(1),
    "below the diagonal": lambda x, w: (torch.tril(x[:, :, None] * x[:, None]) * w).sum((1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_a_quadratic_form_sees_the_symmetric_part(name: str) -> None:
    found = count(Scored(ONE[name], WIDTH, WIDTH))
    assert (moves(found, "w"), found.unexplained) == (ANTISYMMETRIC, 0)


@pytest.mark.parametrize("name", {**ONE, **OUTER})
def test_so_does_a_form_of_what_a_network_computes(name: str) -> None:
    """The basis of x and its matrix change together, and a length of x is one of that basis."""
    model = nn.Sequential(
        nn.Linear(7, WIDTH, bias=False), Scored({**ONE, **OUTER}[name], WIDTH, WIDTH)
    )
    found = count(model, BATCH, 7)
    assert (moves(found, "1.w"), found.unexplained) == (ANTISYMMETRIC, 0)
    assert found.explained == ANTISYMMETRIC + WIDTH * WIDTH


@pytest.mark.parametrize("name", SEVERAL)
def test_several_forms_see_their_symmetric_parts(name: str) -> None:
    found = count(Scored(SEVERAL[name], OUT, WIDTH, WIDTH))
    assert (moves(found, "w"), found.unexplained) == (OUT * ANTISYMMETRIC, 0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_quadratic_form_sees_all_of_its_matrix(name: str) -> None:
    found = count(Scored(OTHERS[name], WIDTH, WIDTH))
    assert moves(found, "w") == 0


class Embedded(nn.Module):
    """A quadratic form of what a network computes, and a layer that reads all products."""

    def __init__(self, outer: bool) -> None:
        super().__init__()
        self.outer = outer
        self.first = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4))
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        seen = h.transpose(1, 2) @ h if self.outer else h.transpose(1, 2) @ torch.tanh(h)
        return self.last(seen.flatten(1))


def test_a_gram_matrix_is_symmetric() -> None:
    """Its reader may be antisymmetric in the two indices, and h may turn."""
    found = count(Embedded(True), 29, 3, 6)
    assert (moves(found, "last.weight"), found.unexplained) == (3 * 6, 0)
    assert found.explained == 3 * 6 + 4 * 4


def test_products_of_different_things_are_not_symmetric() -> None:
    found = count(Embedded(False), 29, 3, 6)
    assert moves(found, "last.weight") == 0


def test_what_a_form_does_not_see_is_no_change_at_a_distance() -> None:
    """The finite motion, on fresh inputs."""
    model = Scored(SEVERAL["products"], OUT, WIDTH, WIDTH)
    found = count(model)
    checked = verify(model, found.symmetry, (torch.randn(8, WIDTH, generator=DRAWN),))
    assert checked.error < 1e-11


class Compared(nn.Module):
    """Dense features and tables, compared in pairs: a recommendation model."""

    def __init__(self, keep: bool, diagonal: int, bend: bool = False) -> None:
        super().__init__()
        self.keep, self.bend = keep, bend
        self.dense = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
        self.tables = nn.ModuleList([nn.Embedding(7, 3) for _ in range(3)])
        self.rows, self.columns = torch.tril_indices(4, 4, diagonal).tolist()
        self.top = nn.Linear(len(self.rows) + 3 * keep, 4)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        first = self.dense(x)
        rows = [table(chosen[:, k]) for k, table in enumerate(self.tables)]
        joined = torch.stack([first, *rows], 1)
        pairs = torch.bmm(joined, joined.transpose(1, 2))[:, self.rows, self.columns]
        pairs = torch.tanh(pairs) if self.bend else pairs
        return self.top(torch.cat([first, pairs], 1) if self.keep else pairs)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("diagonal", [-1, 0])
def test_each_table_that_is_compared_in_pairs_has_a_length(keep: bool, diagonal: int) -> None:
    inputs = (torch.randn(BATCH, 5, generator=DRAWN), torch.randint(7, (BATCH, 3), generator=DRAWN))
    found = measured(Compared(keep, diagonal), inputs)
    assert (found.error < 1e-11, found.refuted, found.unexplained) == (True, (), 0)
    assert found.explained == 6 + 3 + 4  # units of the first layer, rotations, lengths


@pytest.mark.parametrize("keep", [False, True])
def test_behind_a_function_that_bends_there_are_no_lengths(keep: bool) -> None:
    """Units of the first layer and rotations are left, and signs that count no direction."""
    inputs = (torch.randn(BATCH, 5, generator=DRAWN), torch.randint(7, (BATCH, 3), generator=DRAWN))
    found = measured(Compared(keep, -1, bend=True), inputs)
    assert (found.error < 1e-11, found.refuted, found.unexplained) == (True, (), 0)
    assert found.explained == 6 + 3


class Tensors(nn.Module):
    """A layer that adds a bilinear form of two parts to a linear one."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form
        self.left, self.right = nn.Linear(5, 4), nn.Linear(7, 3)
        self.w = nn.Parameter(torch.randn(2, 4, 3, generator=DRAWN))
        self.linear, self.last = nn.Linear(7, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.left(x), self.right(y)
        joined = self.linear(torch.cat([x, y], -1))
        return self.last(torch.tanh(self.form(x, self.w, y) + joined))


TENSORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "einsum": lambda x, w, y: torch.einsum("bi,kij,bj->bk", x, w, y),
    "bilinear": lambda x, w, y: functional.bilinear(x, y, w),
    "products": lambda x, w, y: torch.stack([((x @ m) * y).sum(-1) for m in w], -1),
}


@pytest.mark.parametrize("name", TENSORS)
def test_biases_of_a_bilinear_form_are_absorbed_by_the_linear_one(name: str) -> None:
    """What is added to x shows as a linear map of y, whose weight is read from another window."""
    drawn = [torch.randn(41, n, generator=DRAWN) for n in (5, 7)]
    found = measured(Tensors(TENSORS[name]), tuple(drawn))
    assert (found.error < 1e-11, found.refuted, found.unexplained) == (True, (), 0)
    assert found.explained == 4 * 4 + 3 * 3 + (4 + 3)


def test_windows_that_are_called_apart_share_no_entry() -> None:
    """Against the sets of their entries."""
    generator, known = torch.Generator().manual_seed(0), 0

    def draw(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    for _ in range(400):
        strides = [[1, 4], [1, 6, 12], [2, 12], [1, 5], [3]][draw(5)]
        windows = [(draw(20), tuple((s, 1 + draw(4)) for s in strides)) for _ in range(2)]
        entries = [
            {start + sum(k * s for k, (s, _) in zip(at, slots, strict=True))
             for at in itertools.product(*(range(n) for _, n in slots))}
            for start, slots in windows
        ]  # fmt: skip
        if are_apart(*windows):
            known += 1
            assert not entries[0] & entries[1]
    assert known > 50


def published(e: Tensor) -> Tensor:
    square_of_sum = torch.sum(e, dim=1) ** 2
    sum_of_square = torch.sum(e**2, dim=1)
    return 0.5 * torch.sum(square_of_sum - sum_of_square, dim=1, keepdim=True)


MACHINES: dict[str, Callable[[Tensor], Tensor]] = {
    "published": published,
    "halved inside": lambda e: (0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1))).sum(1),
    "axes kept": lambda e: (e.sum(1, keepdim=True).square() - (e * e).sum(1, True)).sum(2) / 2,
    "negated": lambda e: -((e * e).sum(1) - e.sum(1) * e.sum(1)).sum(-1),
    "einsum": lambda e: torch.einsum("bif,bjf->bij", e, e).triu(1).sum((1, 2)),
}
DENSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, v: 0.5 * ((x @ v).pow(2) - x.pow(2) @ v.pow(2)).sum(1),
    "mm": lambda x, v: torch.sum(torch.mm(x, v) ** 2 - torch.mm(x**2, v**2), 1, True),
    "matmul": lambda x, v: torch.sub(torch.matmul(x, v).square(), x.square() @ v.square()).sum(-1),
}
NO_MACHINES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cubes": lambda x, v: ((x @ v).pow(3) - x.pow(3) @ v.pow(3)).sum(1),
    "weighed": lambda x, v: (torch.arange(1, 4) * ((x @ v) ** 2 - x**2 @ v**2)).sum(1),
    "a function of each": lambda x, v: torch.tanh((x @ v) ** 2 - x**2 @ v**2).sum(1),
    "a sum beside": lambda x, v: ((x @ v) ** 2 - x @ v).sum(1),
    "a product beside": lambda x, v: ((a := x @ v) ** 2 + a * torch.tanh(a)).sum(1),
    "a product of others": lambda x, v: ((a := x**2 @ v**2) + (x @ v) * torch.tanh(a)).sum(1),
    "one axis of two": lambda x, v: (x @ v).pow(2) - (x**2 @ v**2).sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_factors_of_a_factorisation_machine_may_turn(name: str) -> None:
    model = Scored(lambda x, w: MACHINES[name](functional.embedding(x.long(), w)), 11, 3)
    found = measured(model, (torch.randint(11, (97, 5), generator=DRAWN),))
    assert (found.error < 1e-11, found.refuted, found.unexplained) == (True, (), 0)
    assert found.explained == 3


@pytest.mark.parametrize("name", DENSE)
def test_so_may_those_of_dense_features(name: str) -> None:
    found = count(Scored(DENSE[name], 7, 3), 59, 7)
    assert (found.explained, found.unexplained) == (3, 0)


@pytest.mark.parametrize("name", NO_MACHINES)
def test_other_sums_along_the_factors_keep_them(name: str) -> None:
    model, inputs = Scored(NO_MACHINES[name], 7, 3), (torch.randn(59, 7, generator=DRAWN),)
    assert count(model, 59, 7).explained == 0
    derived = find_symmetry(model, inputs, check=False)  # nothing wrong is left to refute
    assert max({**errors(model, derived, inputs), "a wrong move": 0.0}.values()) < 1e-11


CODES = 7
APART: dict[str, Form] = {
    "product": lambda z, c: (
        torch.sum(z**2, dim=1, keepdim=True) + torch.sum(c**2, dim=1) - 2 * torch.matmul(z, c.t())
    ),
    "columns": lambda z, c: (
        -(z.pow(2).sum(1, keepdim=True) - 2 * z @ c.t() + c.t().pow(2).sum(0, keepdim=True))
    ),
    "einsum": lambda z, c: (
        (z**2).sum(1, True) + (c**2).sum(1) - 2 * torch.einsum("bd,nd->bn", z, c)
    ),
    "einsum of columns": lambda z, c: (
        -torch.einsum("bd,dn->bn", 2 * z, c.T) + (z * z).sum(-1)[:, None] + (c * c).sum(-1)[None]
    ),
    "linear": lambda z, c: (
        c.square().sum(-1, keepdim=True).t() - functional.linear(z, c) * 2 + z.square().sum(1, True)
    ),
    "halves": lambda z, c: (
        z @ c.T - 0.5 * z.pow(2).sum(-1, keepdim=True) - 0.5 * c.pow(2).sum(-1).unsqueeze(0)
    ),
    "batches": lambda z, c: (
        (b := z[None]).pow(2).sum(-1, keepdim=True) + c.pow(2).sum(-1) - 2 * b @ c.mT
    )[0],
}
NOT_APART: dict[str, Form] = {
    "another factor": lambda z, c: z.pow(2).sum(1, True) - 2.1 * z @ c.T + c.pow(2).sum(1),
    "one length": lambda z, c: c.pow(2).sum(1) - 2 * z @ c.T + c.pow(2).sum(1),
    "added": lambda z, c: z.pow(2).sum(1, True) + 2 * z @ c.T + c.pow(2).sum(1) * 2,
    "other lengths": lambda z, c: z.pow(2).sum(1, True) - 2 * z @ c.T + c.flip(0).pow(2).sum(1),
    "lengths elsewhere": lambda z, c: (
        z[:CODES].pow(2).sum(1) - 2 * z[:CODES] @ c.T + c.pow(2).sum(1, keepdim=True)
    ),
    "along the other axis": lambda z, c: (
        z[:, :WIDTH].pow(2).sum(1, True) - 2 * z @ c[:WIDTH] + c[:WIDTH].pow(2).sum(1)
    ),
}


def compared(form: Form) -> nn.Sequential:
    """A network whose outputs are compared with codes, the same whatever ran before.

    Of sixty starts one counts a direction more than the symmetry has; a second audit does not.
    """
    torch.manual_seed(0)
    DRAWN.manual_seed(4)
    return nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, WIDTH), Scored(form, CODES, WIDTH), nn.Tanh()
    )


@pytest.mark.parametrize("name", APART)
def test_squared_distances_written_out_know_no_origin(name: str) -> None:
    """Rotations, and translations of both sides."""
    found = count(compared(APART[name]), 89, 3)
    assert (found.explained, found.unexplained) == (10 + WIDTH, 0)


@pytest.mark.parametrize("name", NOT_APART)
def test_what_is_no_distance_has_an_origin(name: str) -> None:
    assert moves(count(compared(NOT_APART[name]), 89, 3), "3.w") == 0


class Quantised(nn.Module):
    """The nearest code, with the gradient handed through."""

    def __init__(self, form: Form, soft: bool) -> None:
        super().__init__()
        self.form, self.soft = form, soft
        self.first, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 4)
        count = 23 if soft else CODES  # the squares of few codes are a linear function of them
        self.codes = nn.Parameter(torch.randn(count, WIDTH, generator=DRAWN))

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        apart = self.form(z, self.codes)
        if self.soft:
            return self.last(torch.softmax(apart, -1) @ self.codes)
        chosen = functional.embedding(apart.argmin(1), self.codes)
        return self.last(z + (chosen - z).detach())


@pytest.mark.parametrize("name", ["product", "einsum", "linear"])
@pytest.mark.parametrize("soft", [False, True])
def test_codes_that_are_chosen_by_distance_move_with_what_is_compared(
    name: str, soft: bool
) -> None:
    found = measured(Quantised(APART[name], soft), (torch.randn(53, 6, generator=DRAWN),))
    assert (found.error < 1e-11, found.refuted) == (True, ())
    assert found.explained >= 10 + WIDTH
    assert found.unexplained == 0 or not soft


SYMMETRIC_PART, SKEW_PART = WIDTH * (WIDTH + 1) // 2, ANTISYMMETRIC


def cayley(w: Tensor) -> Tensor:
    """A rotation."""
    one, skew = torch.eye(len(w)).to(w), w - w.T
    return torch.linalg.solve(one + skew, one - skew)


PARTS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "symmetric": (lambda w: w + w.T, SKEW_PART),
    "mean of both": (lambda w: (w + w.transpose(0, 1)) / 2, SKEW_PART),
    "skew": (lambda w: w - w.mT, SYMMETRIC_PART),
    "skew, halved": (lambda w: (w.T - w).mul(0.5), SYMMETRIC_PART),
    "exponential": (lambda w: torch.matrix_exp(w - w.T), SYMMETRIC_PART),
    "cayley": (cayley, SYMMETRIC_PART),
}
NO_PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "other weights": lambda w: w + 2 * w.T,
    "a function of one": lambda w: w + torch.tanh(w).T,
    "one of them moved": lambda w: w + w.T.roll(1, 0),
    "seen elsewhere": lambda w: torch.relu(w + w.T) + w.sum(0),
    "product": lambda w: w * w.T,
    "below the diagonal": lambda w: w.tril() + w.T,
}


def weighed(part: Callable[[Tensor], Tensor], *shape: int) -> nn.Sequential:
    """A network with a layer whose matrix is a part of a parameter."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return (x @ part(w)).flatten(1) if w.ndim == 2 else torch.einsum("bi,hij->bhj", x, part(w))

    scored = Scored(layer, *(shape or (WIDTH, WIDTH)))
    return nn.Sequential(nn.Linear(7, WIDTH), nn.Tanh(), scored, nn.Tanh(), nn.Linear(WIDTH, 3))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_matrix_does_not_see_the_other(name: str) -> None:
    part, size = PARTS[name]
    found = count(weighed(part), 61, 7)
    assert (moves(found, "2.w"), found.explained, found.unexplained) == (size, size, 0)


@pytest.mark.parametrize("name", NO_PARTS)
def test_other_sums_with_a_transpose_see_everything(name: str) -> None:
    assert moves(count(weighed(NO_PARTS[name]), 61, 7), "2.w") == 0


def test_parts_are_taken_matrix_by_matrix() -> None:
    """Of several matrices each by itself; of a tensor whose axes go round, none."""
    each = count(weighed(lambda w: w + w.mT, 2, WIDTH, WIDTH), 61, 7)
    assert (moves(each, "2.w"), each.unexplained) == (2 * SKEW_PART, 0)
    around = count(weighed(lambda w: w + w.permute(1, 2, 0), WIDTH, WIDTH, WIDTH), 61, 7)
    assert moves(around, "2.w") == 0


def test_a_window_takes_what_a_part_beside_it_gives() -> None:
    """Wherever the matrix moves, what is added to the part is taken from the rest."""
    part = weighed(lambda w: w[:, :WIDTH] + w[:, :WIDTH].T + w[:, WIDTH:], WIDTH, 2 * WIDTH)
    found = count(part, 61, 7)
    assert (found.explained, found.unexplained) == (WIDTH * WIDTH, 0)


class Dotted(nn.Module):
    """A perceptron whose products are written with `tensordot`."""

    def __init__(self, dims: object, transposed: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 6) if transposed else torch.randn(6, 5))
        self.out, self.dims = nn.Linear(5, 3), dims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tensordot(x, self.w, dims=self.dims).tanh())


@pytest.mark.parametrize(
    ("dims", "transposed"), [(1, False), (([-1], [0]), False), (([2], [1]), True)]
)
def test_tensordot_is_a_product(dims: object, transposed: bool) -> None:
    found = measured(Dotted(dims, transposed), (torch.randn(7, 4, 6),))
    assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown
    (space,) = found.symmetry.spaces.values()
    assert str(space.group) == "SignedPermutation(5)"


def test_tensordot_over_no_and_over_two_axes() -> None:
    outer, inner = Apart(0), Apart(2)
    for model in (outer, inner):
        found = measured(model, (torch.randn(4, 6, 5),))
        assert found.error < 1e-9 and not found.refuted and not found.symmetry.unknown


class Apart(nn.Module):
    def __init__(self, dims: int) -> None:
        super().__init__()
        self.first, self.dims = nn.Linear(5, 4), dims
        self.w = nn.Parameter(torch.randn(6, 4, 3) if dims else torch.randn(2))
        self.out = nn.Linear(3, 2) if dims else nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).tanh()
        return self.out(torch.tensordot(hidden, self.w, self.dims))
