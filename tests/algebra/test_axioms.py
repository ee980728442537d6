"""Group axioms, the action, and the agreement of every fast path with the dense matrix."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from paramsym.algebra import (
    AbstractMonomial,
    Element,
    GeneralLinear,
    Group,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveScaling,
    SignedPermutation,
    Wreath,
)
from tests.instances import GROUPS

every_group = pytest.mark.parametrize("group", GROUPS, ids=str)
batched = pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=["single", "batch", "batch2"])


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    assert a.shape == b.shape
    return bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())


@every_group
@batched
def test_identity_changes_nothing(group: Group, batch, dtype, generator):
    x = torch.randn(*batch, 2, group.size, generator=generator, dtype=dtype)
    one = group.identity(batch, dtype)
    assert torch.equal(group.apply(one, x, -1), x)
    assert torch.equal(group.apply(Element(), x, -1), x)
    assert torch.equal(group.matrix(one, dtype).expand(*batch, -1, -1), _eye(group, batch, dtype))


def _eye(group: Group, batch: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.eye(group.size, dtype=dtype).expand(*batch, group.size, group.size)


@every_group
@batched
def test_product_is_the_product_of_matrices(group: Group, batch, dtype, tolerance, generator):
    g = group.sample(generator, batch=batch, dtype=dtype)
    h = group.sample(generator, batch=batch, dtype=dtype)
    product = group.compose(g, h)
    assert group.contains(product)
    expected = group.matrix(g, dtype) @ group.matrix(h, dtype)
    assert close(group.matrix(product, dtype), expected, tolerance)


@every_group
def test_one_element_multiplies_a_batch_from_either_side(group, dtype, tolerance, generator):
    g = group.sample(generator, dtype=dtype)
    many = group.sample(generator, batch=(3,), dtype=dtype)
    for left, right in ((g, many), (many, g)):
        expected = group.matrix(left, dtype) @ group.matrix(right, dtype)
        assert close(group.matrix(group.compose(left, right), dtype), expected, tolerance)


@every_group
@batched
def test_product_with_inverse_is_identity(group: Group, batch, dtype, tolerance, generator):
    g = group.sample(generator, batch=batch, dtype=dtype)
    inverse = group.inverse(g)
    assert group.contains(inverse)
    for product in (group.compose(g, inverse), group.compose(inverse, g)):
        matrix = group.matrix(product, dtype).expand(*batch, -1, -1)
        assert close(matrix, _eye(group, batch, dtype), tolerance)


@every_group
def test_product_is_associative(group: Group, dtype, tolerance, generator):
    a, b, c = (group.sample(generator, dtype=dtype) for _ in range(3))
    left = group.compose(group.compose(a, b), c)
    right = group.compose(a, group.compose(b, c))
    assert close(group.matrix(left, dtype), group.matrix(right, dtype), tolerance)


@every_group
@batched
@pytest.mark.parametrize("place", [0, 1, 2])
def test_apply_is_the_dense_matrix(group: Group, batch, place, dtype, tolerance, generator):
    shape = [2, 3]
    shape.insert(place, group.size)
    x = torch.randn(*batch, *shape, generator=generator, dtype=dtype)
    g = group.sample(generator, batch=batch, dtype=dtype)
    axis = len(batch) + place
    matrix = group.matrix(g, dtype).expand(*batch, -1, -1)
    for act, dense in (
        (group.apply, matrix),
        (group.apply_dual, torch.linalg.inv(matrix).mT),
    ):
        expected = torch.einsum("...ij,...jab->...iab", dense, x.movedim(axis, len(batch)))
        expected = expected.movedim(len(batch), axis)
        assert close(act(g, x, axis), expected, 10 * tolerance)
        assert torch.equal(act(g, x, axis), act(g, x, axis - x.dim()))


@every_group
def test_a_batch_of_elements_acts_one_by_one(group: Group, dtype, tolerance, generator):
    g = group.sample(generator, batch=(3,), dtype=dtype)
    x = torch.randn(3, 2, group.size, generator=generator, dtype=dtype)
    together = group.apply(g, x, 2)
    for k in range(3):
        single = g.map(lambda t, _, k=k: t[k])
        assert close(together[k], group.apply(single, x[k], 1), tolerance)
    # One tensor for the whole batch: a leading dimension of length 1 broadcasts.
    spread = group.apply(g, x[:1], 2).expand_as(x)
    assert close(spread, group.apply(g, x[:1].expand_as(x), 2), tolerance)


@every_group
def test_action_of_a_product_is_the_product_of_actions(group, dtype, tolerance, generator):
    x = torch.randn(4, group.size, generator=generator, dtype=dtype)
    g, h = (group.sample(generator, dtype=dtype) for _ in range(2))
    together = group.apply(group.compose(g, h), x, 1)
    assert close(together, group.apply(g, group.apply(h, x, 1), 1), tolerance)
    dual = group.apply_dual(group.compose(g, h), x, 1)
    assert close(dual, group.apply_dual(g, group.apply_dual(h, x, 1), 1), 10 * tolerance)


@every_group
def test_product_in_the_wrong_order_is_another_action(group: Group, generator):
    g, h = (group.sample(generator, dtype=torch.float64) for _ in range(2))
    a, b = group.matrix(g, torch.float64), group.matrix(h, torch.float64)
    commute = torch.allclose(a @ b, b @ a)
    wrong = group.matrix(group.compose(h, g), torch.float64)
    assert torch.allclose(wrong, a @ b) == commute
    if isinstance(group, GeneralLinear | Orthogonal | Permutation) and group.size > 2:
        assert not commute


@every_group
def test_dual_pairing_is_invariant(group: Group, dtype, tolerance, generator):
    g = group.sample(generator, dtype=dtype)
    x = torch.randn(group.size, generator=generator, dtype=dtype)
    xi = torch.randn(group.size, generator=generator, dtype=dtype)
    pairing = group.apply_dual(g, xi, 0) @ group.apply(g, x, 0)
    assert close(pairing, xi @ x, 10 * tolerance)
    assert group.contains(group.dual(g))


@every_group
def test_wrong_dual_breaks_the_pairing(group: Group, generator):
    """Where elements are not orthogonal, acting covariantly on both sides is no pairing."""
    g = group.sample(generator, dtype=torch.float64)
    x, xi = torch.randn(2, group.size, generator=generator, dtype=torch.float64)
    pairing = group.apply(g, xi, 0) @ group.apply(g, x, 0)
    orthogonal = group <= Orthogonal(group.size)
    assert (abs(pairing - xi @ x) < 1e-9) == orthogonal


POWERS = [0, 1, 2, -1, -2, 3]


@pytest.mark.parametrize("power", [*POWERS, Fraction(1, 3), Fraction(-3, 2)], ids=str)
@pytest.mark.parametrize("group", [g for g in GROUPS if isinstance(g, AbstractMonomial)], ids=str)
def test_entrywise_power_is_a_representation(group, power, dtype, tolerance, generator):
    g, h = (group.sample(generator, dtype=dtype) for _ in range(2))
    x = torch.randn(2, group.size, generator=generator, dtype=dtype)
    if group.signs and power != int(power):
        with pytest.raises(ValueError, match="has no real value at −1"):
            group.apply(g, x, 1, power)
        return
    once = group.apply(group.compose(g, h), x, 1, power)
    twice = group.apply(g, group.apply(h, x, 1, power), 1, power)
    assert close(once, twice, 10 * tolerance)
    dense = group.matrix(g, dtype)
    entries = dense[dense != 0]
    powered = torch.zeros_like(dense)
    powered[dense != 0] = entries ** int(power) if power == int(power) else entries ** float(power)
    assert close(group.apply(g, x, 1, power), x @ powered.mT, tolerance)
    xi = torch.randn(2, group.size, generator=generator, dtype=dtype)
    pairing = group.apply_dual(g, xi, 1, power) * group.apply(g, x, 1, power)
    assert close(pairing.sum(1), (xi * x).sum(1), 10 * tolerance)


@pytest.mark.parametrize(
    "group", [g for g in GROUPS if not isinstance(g, AbstractMonomial | Wreath)], ids=str
)
@pytest.mark.parametrize("power", [0, 2, Fraction(1, 2)], ids=str)
def test_entrywise_power_needs_a_monomial_group(group: Group, power, generator):
    g, x = group.sample(generator), torch.ones(group.size)
    with pytest.raises(ValueError, match="a representation only of a monomial group") as error:
        group.apply(g, x, 0, power)
    assert str(group) in str(error.value)
    with pytest.raises(ValueError, match="monomial group"):
        group.infinitesimal(group.random_algebra(generator), x, 0, power)


def test_entrywise_power_of_a_matrix_would_be_no_representation(generator):
    """The negative control of the error above: what it prevents is really wrong."""
    group = GeneralLinear(4)
    a, b = (group.sample(generator, dtype=torch.float64).matrix for _ in range(2))
    assert not torch.allclose((a @ b) ** 2, a**2 @ b**2)


@every_group
@batched
def test_samples_belong_to_the_group(group: Group, batch, dtype, generator):
    for strength in (0.0, 0.3, 1.0, 2.0):
        g = group.sample(generator, strength, batch, dtype)
        assert g.batch_shape in (torch.Size(batch), torch.Size())
        assert group.contains(g)
        assert group.contains_matrix(group.matrix(g, dtype))
        assert all(part.dtype in (dtype, dtype.to_complex(), torch.long) for part in _parts(g))


def _parts(g: Element) -> list[Tensor]:
    parts: list[Tensor] = []
    g.map(lambda t, _: parts.append(t) or t)
    return parts


@every_group
def test_strength_zero_is_the_identity(group: Group, dtype, tolerance, generator):
    matrix = group.matrix(group.sample(generator, 0.0, dtype=dtype), dtype)
    assert close(matrix, _eye(group, (), dtype), tolerance)


@every_group
def test_sampling_repeats_and_leaves_the_global_state_alone(group: Group):
    before = torch.get_rng_state()
    first, second = (
        group.matrix(group.sample(torch.Generator().manual_seed(7)), torch.float32)
        for _ in range(2)
    )
    group.random_algebra(torch.Generator().manual_seed(7))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_permutations_are_sampled_uniformly(generator):
    orders = Permutation(3).sample(generator, batch=(6000,)).order
    assert orders is not None
    _, counts = torch.unique(orders, dim=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000).abs() < 5 * math.sqrt(1000)).all()


def test_weak_permutations_move_few_places(generator):
    orders = Permutation(1000).sample(generator, 0.1).order
    assert orders is not None
    moved = int((orders != torch.arange(1000)).sum())
    assert 50 < moved <= 150


def test_general_linear_samples_are_well_conditioned(generator):
    for n in (2, 10, 60):
        matrix = GeneralLinear(n).sample(generator, dtype=torch.float64, batch=(5,)).matrix
        assert matrix is not None
        assert torch.linalg.cond(matrix).max() < 5


@every_group
def test_what_is_outside_is_not_contained(group: Group, dtype, generator):
    n = group.size
    assert not group.contains_matrix(torch.zeros(n, n, dtype=dtype))
    assert not group.contains_matrix(torch.full((n, n), torch.nan, dtype=dtype))
    singular = torch.ones(n, n, dtype=dtype) - torch.eye(n, dtype=dtype) * (n == 1)
    assert not group.contains_matrix(singular)
    generic = torch.eye(n, dtype=dtype) + 0.3 * torch.randn(n, n, generator=generator, dtype=dtype)
    dense = GeneralLinear(n) <= group or n == 1 or isinstance(group, Wreath) and group.copies == 1
    if not dense:
        assert not group.contains_matrix(generic)
        bad = torch.stack([torch.eye(n, dtype=dtype), generic])
        assert not group.contains_matrix(bad), "one bad element spoils a batch"


def test_malformed_elements_are_not_contained():
    assert not Permutation(3).contains(Element(order=torch.tensor([0, 0, 2])))
    assert not Permutation(3).contains(Element(order=torch.tensor([0, 1, 3])))
    assert not Permutation(3).contains(Element(order=torch.tensor([0, 1])))
    assert not PositiveScaling(3).contains(Element(order=torch.tensor([1, 0, 2])))
    assert not PositiveScaling(2).contains(Element(diagonal=torch.tensor([1.0, -1.0])))
    assert not Monomial(2).contains(Element(diagonal=torch.tensor([1.0, torch.inf])))
    assert not SignedPermutation(2).contains(Element(diagonal=torch.tensor([1.0, 2.0])))
    assert SignedPermutation(2).contains(Element(matrix=torch.tensor([[0.0, -1.0], [1.0, 0.0]])))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_log_order_counts_the_finite_groups(n: int):
    signs = list(itertools.product([1.0, -1.0], repeat=n))
    orders = list(itertools.permutations(range(n)))
    for group in (Permutation(n), SignedPermutation(n)):
        count = sum(
            group.contains(Element(order=torch.tensor(o), diagonal=torch.tensor(s)))
            for o in orders
            for s in signs
        )
        assert math.log(count) == pytest.approx(group.log_order)
    wreath = Wreath(SignedPermutation(n), 3)
    assert wreath.log_order == pytest.approx(3 * SignedPermutation(n).log_order + math.log(6))


@every_group
def test_apply_can_be_differentiated(group: Group, generator):
    g = group.sample(generator, dtype=torch.float64)
    x = torch.randn(2, group.size, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, group.size, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((group.apply(g, x, 1) * y).sum(), x)
    transpose = group.apply_dual(group.inverse(g), y, 1)
    assert close(gradient, transpose, 1e-11)


@every_group
def test_elements_move_between_dtypes(group: Group, dtype, generator):
    g = group.sample(generator, dtype=torch.float64).to(dtype)
    assert all(part.dtype in (dtype, dtype.to_complex(), torch.long) for part in _parts(g))
    x = torch.randn(group.size, generator=generator, dtype=dtype)
    assert group.apply(g, x, 0).dtype == dtype
    assert group.apply(g, x.double(), 0).dtype == torch.float64
