"""Found against derived vector fields: both directions, on models whose answer is known."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paramsym import ParameterSymmetry, find_symmetry
from paramsym.discovery import linear_symmetries
from paramsym.discovery.algebras.comparison import Comparison, compare_fields
from paramsym.structure.tangent import tangent


def linear(a: int, b: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(a, b, bias=bias)


class Held(nn.Module):
    """A linear network; an operator that no rule knows holds the units between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(3, 3), linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        return self.last(z * torch.special.erfcx(0.0 * z))


class Branches(nn.Module):
    """W₂W₁x + V₂V₁x."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.v1, self.v2 = linear(2, 1), linear(1, 2), linear(2, 1), linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(self.w1(x)) + self.v2(self.v1(x))


class Tied(nn.Module):
    """ReLU units whose reading and writing weights are one tensor: nothing may scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(3, 4), linear(4, 3)
        self.middle, self.again = linear(4, 4), linear(4, 4)
        self.again.weight = self.middle.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(torch.relu(self.middle(torch.relu(self.first(x))))))


def compared(model: nn.Module, width: int, symmetry=None, **options) -> Comparison:
    inputs = (torch.randn(2, width),)
    found = linear_symmetries(model, inputs, **options)
    symmetry = find_symmetry(model, inputs) if symmetry is None else symmetry
    return found.compare(symmetry, model.state_dict())


def empty(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    return symmetry.restrict(spaces=[], translations=False)


def test_scales_of_relu_are_found_and_derived():
    model = nn.Sequential(linear(3, 4), nn.ReLU(), linear(4, 2))
    found = compared(model, 3)
    assert (found.found, found.derived, found.both) == (4, 4, 4) and found.agrees
    assert [(s.name, s.derived, s.linear, s.found) for s in found.spaces] == [("mlp", 4, 4, 4)]


def test_slides_along_a_product_of_matrices_are_derived_and_not_linear():
    """U ↦ U + δ, V ↦ V − …δ of a bottleneck depends on θ in another way than linearly."""
    found = compared(nn.Sequential(linear(2, 3), linear(3, 2)), 2)
    assert found.found == found.both == 9 and found.agrees
    assert found.nonlinear == found.derived - 9 > 0
    assert found.spaces[0].found == found.spaces[0].linear == 9
    assert all(s.linear == 0 and "not linear in θ" in s.note for s in found.spaces[1:])


def test_translations_need_constants():
    model = nn.Sequential(linear(2, 2, True), linear(2, 2, True))
    without, with_constants = compared(model, 2), compared(model, 2, affine=True)
    assert without.found == 4 and without.affine == 2 and without.agrees
    assert with_constants.found == 6 == with_constants.both and with_constants.affine == 0
    assert with_constants.agrees


def test_what_an_unknown_operator_holds_is_found_but_not_derived():
    found = compared(Held(), 3)
    assert found.found == 9 and found.both == found.derived < 9
    assert found.beyond == 9 - found.both and found.pointwise < found.beyond
    assert not found.agrees and "first.weight[0, :] += first.weight[1, :]" in found.fields[0]


def test_a_turn_between_branches_is_found_but_not_derived():
    """The two branches are one of width two, with GL(2); derived are the scales of each."""
    found = compared(Branches(), 2)
    assert (found.found, found.derived, found.both, found.beyond) == (4, 2, 2, 2)
    assert {line.split(" ")[0] for line in found.fields} == {"w1.weight", "w2.weight"}
    assert not found.agrees


def test_what_the_ansatz_does_not_hold_is_missed():
    """The level of sides has no field that turns one branch into the other."""
    branches = compared(Branches(), 2, level="sides")
    assert (branches.found, branches.derived, branches.missed) == (2, 2, 0)
    model = Branches()
    inputs = (torch.randn(2, 2),)
    symmetry, found = find_symmetry(model, inputs), linear_symmetries(model, inputs)
    fewer = replace(found, generators=())
    against = fewer.compare(symmetry)
    assert (against.found, against.missed, against.beyond) == (0, 2, 0) and not against.agrees
    assert "2 linear and not found" in [s.note for s in against.spaces] or against.missed == 2


def test_frames_of_a_norm_are_not_linear():
    """An orthogonal change of basis through gains γ reads γ Q γ⁻¹."""
    model = nn.Sequential(linear(3, 3), nn.RMSNorm(3), linear(3, 2))
    found = compared(model, 3)
    frames = next(s for s in found.spaces if s.name == "mlp")
    assert frames.derived == 3 and frames.linear == frames.affine == 0
    assert found.nonlinear == 3 and found.missed == 0 and found.both == 3


def test_the_scale_in_front_of_a_norm_is_found_where_epsilon_is_negligible():
    tiny = compared(nn.Sequential(linear(3, 3), nn.RMSNorm(3, eps=1e-300), linear(3, 2)), 3)
    assert tiny.agrees and tiny.found == 4  # derived as well, and said to be not exact
    assert {s.name: s.found for s in tiny.spaces if not s.exact} == {"scale": 1}
    visible = compared(nn.Sequential(linear(3, 3), nn.RMSNorm(3, eps=1e-2), linear(3, 2)), 3)
    assert visible.agrees and visible.found == 3


def test_dead_entries_make_no_difference():
    """A key bias does nothing under a softmax: the derived change of keys moves it along."""
    model = nn.MultiheadAttention(2, 1, batch_first=True)
    inputs = (torch.randn(1, 3, 2),) * 3
    found = linear_symmetries(model, inputs, "sides")
    symmetry = find_symmetry(model, inputs)
    comparison = found.compare(symmetry)
    assert comparison.agrees and comparison.both == 8
    blind = compare_fields(found.generators, found.shapes, symmetry)
    assert not blind.agrees and blind.both == 4  # the control: with all entries counted


def test_buffers_are_held():
    """A scale in front of a batch norm moves its running variance: it does not count."""
    norm = nn.BatchNorm1d(3)
    norm.get_buffer("running_mean").add_(0.3)
    model = nn.Sequential(linear(2, 3), norm, nn.ReLU(), linear(3, 2)).eval()
    found = compared(model, 2)
    symmetry = find_symmetry(model, (torch.randn(2, 2),))
    state = {n: t.double() for n, t in model.state_dict().items() if t.is_floating_point()}
    everything = torch.linalg.matrix_rank(tangent(symmetry, state).dense())
    assert found.derived < everything and found.agrees


def test_parameters_that_were_not_searched_are_held():
    model = nn.Sequential(linear(2, 2), nn.ReLU(), linear(2, 2), nn.ReLU(), linear(2, 2))
    assert compared(model, 2).derived == 4
    part = compared(model, 2, names=["0.weight", "2.weight"])
    assert part.found == part.derived == part.both == 2


def test_dead_parameters_may_move():
    """The bias of keys is dead, and the basis of queries and keys moves it along."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = linear(2, 2), linear(2, 2, True), linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)

    inputs = (torch.randn(3, 2),)
    model = Attention()
    found = linear_symmetries(model, inputs)
    against = found.compare(find_symmetry(model, inputs))
    assert found.dead == ("k.bias",) and against.both == 4 and against.agrees


def test_tied_tensors_are_compared_under_one_name():
    found = compared(Tied(), 3)
    assert found.found == found.derived == found.both > 0


def test_an_empty_symmetry_derives_nothing():
    model = nn.Sequential(linear(3, 4), nn.ReLU(), linear(4, 2))
    symmetry = empty(find_symmetry(model, (torch.randn(2, 3),)))
    found = compared(model, 3, symmetry)
    assert (found.found, found.derived, found.beyond, found.missed) == (4, 0, 4, 0)
    assert found.fields[0] == "0.weight[0, :] grows, 2.weight[:, 0] shrinks"
    tanh = nn.Sequential(linear(2, 3), nn.Tanh(), linear(3, 2))
    nothing = compared(tanh, 2)
    assert (nothing.found, nothing.derived) == (0, 0) and nothing.agrees


def test_coefficients_that_depend_on_the_weights_do_not_make_a_field_new():
    """A softmax sees no constant: v ↦ ℓ(θ)·1 for any linear ℓ moves along the derived orbit."""
    model = nn.Sequential(linear(2, 2), nn.Softmax(-1))
    found = compared(model, 2)
    assert found.found == found.beyond == found.pointwise == 8
    assert "along derived orbits, with coefficients that depend on θ" in str(found)
    assert len(found.fields) == 2


def test_dimensions_are_those_of_matrices():
    """The slow twin: all fields as matrices, read off at the axes, in exact echelon form."""
    import sympy

    model = Branches()
    inputs = (torch.randn(2, 2),)
    symmetry, found = find_symmetry(model, inputs), linear_symmetries(model, inputs)
    state = {n: p.detach().double() for n, p in model.named_parameters()}
    names = list(found.shapes)
    size = sum(state[n].numel() for n in names)
    columns = []
    for k in range(size):
        flat, start, at = torch.eye(size, dtype=torch.float64)[k], 0, {}
        for n in names:
            at[n] = flat[start : start + state[n].numel()].reshape(state[n].shape)
            start += state[n].numel()
        columns.append(tangent(symmetry, at).dense())
    derived = torch.stack(columns).transpose(0, 1).reshape(len(columns[0]), -1)
    own = torch.stack(
        [
            torch.from_numpy(f.matrix.toarray()[:size, :size].T.reshape(-1))
            for f in found.algebra.basis
        ]
    )
    exact = [
        sympy.Matrix(m.round(decimals=9).tolist()).applyfunc(sympy.nsimplify)
        for m in (own, derived)
    ]
    union = exact[0].col_join(exact[1]).rank()
    against = found.compare(symmetry)
    assert against.beyond == union - exact[1].rank()
    assert against.both == exact[0].rank() + exact[1].rank() - union


def test_the_table_says_what_the_numbers_say():
    text = str(compared(nn.Sequential(linear(2, 3), linear(3, 2)), 2))
    assert text.splitlines()[1] == "found but not derived: 0"
    assert "not linear in θ" in text and "mlp" in text


def test_the_symmetry_of_another_model_is_refused():
    model = nn.Sequential(linear(3, 4), nn.ReLU(), linear(4, 2))
    other = nn.Sequential(linear(3, 5), nn.ReLU(), linear(5, 2))
    found = linear_symmetries(model, (torch.randn(2, 3),))
    with pytest.raises(ValueError, match="searched with shape .* same model"):
        found.compare(find_symmetry(other, (torch.randn(2, 3),)))
    with pytest.raises(ValueError, match="does not name it"):
        compare_fields(
            found.generators, {"elsewhere": (4, 3)}, find_symmetry(model, (torch.randn(2, 3),))
        )


def test_a_symmetry_that_moves_inputs_is_refused():
    model = nn.Sequential(linear(3, 4), nn.ReLU(), linear(4, 2))
    inputs = (torch.randn(2, 3),)
    free = find_symmetry(model, inputs, free_inputs=True)
    with pytest.raises(ValueError, match="leaves the function unchanged"):
        linear_symmetries(model, inputs).compare(free)
