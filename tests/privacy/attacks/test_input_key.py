"""Who knows θ and is sent g·θ has the key of the inputs; who knows another network has nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from paramsym import ParameterSymmetry, act, find_symmetry
from paramsym.algebra import GeneralLinear, Group, Orthogonal
from paramsym.algebra.linear import OrthogonalFixingOnes
from paramsym.privacy import Job, Key, NotApplicable
from paramsym.privacy.attacks.input_key import attempt, key_error, recover_input_key
from paramsym.privacy.attacks.polarity import with_signs
from paramsym.privacy.attacks.strangers import shuffled
from paramsym.privacy.attacks.told_units import told_units
from paramsym.privacy.attacks.untouched import untouched
from paramsym.structure.axes import Carried, Fixed
from paramsym.structure.space import Space

from ..architectures import drawn as random_network
from .networks import (
    Polarised,
    Transformer,
    convolutions,
    drawn,
    freed,
    generator,
    masked,
    masks_of,
    normal,
    perceptron,
    session,
)

WIDTHS = [(64, w, *deep, 10) for w in (64, 128, 256) for deep in ((32,), (64, 32))]


def attacked(model: nn.Module, symmetry, seed: int = 1, **more):
    """The error of the key with one's own parameters, and what was found with another network's."""
    own = model.state_dict()
    element, sent = session(symmetry, own, seed)
    found = recover_input_key(symmetry, own, sent, **more)
    stranger = recover_input_key(symmetry, shuffled(own), sent, **more)
    return found, key_error(symmetry, element, found), stranger, element


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda w: "-".join(map(str, w)))
def test_the_key_of_a_perceptron_is_found(widths: tuple[int, ...]) -> None:
    symmetry = freed(perceptron(*widths), 64)
    found, error, stranger, element = attacked(perceptron(*widths), symmetry)
    assert error <= 1e-12 and found.fits and found.rank("input") == 64
    assert not stranger.fits and stranger.residual > 0.1  # which the attacker sees for himself
    assert key_error(symmetry, element, stranger) > 0.1


def test_every_input_follows() -> None:
    model = perceptron(64, 96, 32, 10)
    symmetry = freed(model, 64)
    own = model.state_dict()
    element, sent = session(symmetry, own, 1)
    x = normal(7, 64, seed=5)
    moved = x @ symmetry.spaces["input"].group.matrix(element["input"]).mT
    found = recover_input_key(symmetry, own, sent)
    assert torch.allclose(moved @ found.inverses["input"].mT, x, atol=1e-10)
    assert not torch.allclose(moved, x, atol=0.1)


def test_a_product_of_keys_is_a_key() -> None:
    model = perceptron(64, 128, 32, 10)
    symmetry = freed(model, 64)
    first, second = (symmetry.sample(generator(seed)) for seed in (1, 2))
    sent = act(symmetry, second, act(symmetry, first, model.state_dict()))
    found = recover_input_key(symmetry, model.state_dict(), sent)
    assert key_error(symmetry, second @ first, found) <= 1e-12
    assert key_error(symmetry, first, found) > 0.1


# -- narrow first layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(64, 32, 10), (64, 63, 16, 10), (64, 10)], ids=str)
def test_a_narrow_layer_gives_what_it_sees_and_no_more(widths: tuple[int, ...]) -> None:
    model = perceptron(*widths)
    symmetry = freed(model, 64)
    found, error, stranger, element = attacked(model, symmetry)
    assert found.fits and found.rank("input") == widths[1] and found.matrix("input") is None
    assert error <= 1e-12 and not stranger.fits
    x = normal(5, 64, seed=3)
    weight = model.state_dict()["0.weight"]
    moved = x @ symmetry.spaces["input"].group.matrix(element["input"]).mT
    recovered = moved @ found.inverses["input"].mT
    assert torch.allclose(recovered @ weight.mT, x @ weight.mT, atol=1e-10)  # W₁ x
    assert not torch.allclose(recovered, x, atol=0.1)


def test_keys_that_agree_on_what_is_seen_send_the_same() -> None:
    """Nothing beyond W₁ A⁻¹ stands in the parameters: another A sends the same tensors."""
    model = perceptron(64, 32, 10)
    symmetry = freed(model, 64)
    own = model.state_dict()
    first = normal(64, 64, seed=1) / 8 + torch.eye(64)
    kernel = torch.eye(64) - torch.linalg.pinv(own["0.weight"]) @ own["0.weight"]
    other = torch.linalg.inv(torch.linalg.inv(first) + kernel @ normal(64, 64, seed=2))
    sent = [act(symmetry, symmetry.element({"input": a}), own)["0.weight"] for a in (first, other)]
    assert torch.allclose(sent[0], sent[1], atol=1e-9)
    assert (first - other).norm() > 0.1 * first.norm()


def test_one_layer_alone_cannot_check_itself() -> None:
    model = perceptron(20, 10, bias=False)
    found, error, stranger, _ = attacked(model, freed(model, 20))
    assert error <= 1e-12 and not found.is_checked and not found.fits
    assert stranger.residual <= 1e-12  # it says nothing, and does not count


# -- masks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU], ids=["ReLU", "GELU"])
def test_unknown_masks_are_signs_that_are_matched(activation) -> None:
    model = perceptron(20, 40, 16, 10, activation=activation)
    symmetry = freed(model, 20)
    own = model.state_dict()
    element, sent = session(symmetry, own, 1)
    hidden = masked(symmetry, sent, masks_of(symmetry, ["mlp", "mlp.2"]))
    found = recover_input_key(symmetry, own, hidden, signs=True)
    assert found.fits and key_error(symmetry, element, found) <= 1e-12
    blind = recover_input_key(symmetry, own, hidden)  # who does not think of signs
    assert not blind.fits and key_error(symmetry, element, blind) > 0.1


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU], ids=["ReLU", "GELU"])
def test_masks_keep_the_function_of_a_network_that_is_told_them(activation) -> None:
    model = perceptron(6, 9, 7, 3, activation=activation)
    symmetry = freed(model, 6)
    masks = masks_of(symmetry, ["mlp", "mlp.2"])
    made = copy.deepcopy(model)
    made.load_state_dict(masked(symmetry, model.state_dict(), masks))
    x = normal(5, 6)
    assert torch.allclose(Polarised(made, [*masks.values()])(x), model(x), atol=1e-12)
    assert not torch.allclose(made(x), model(x), atol=1e-3)
    back = masked(symmetry, made.state_dict(), masks)
    assert all(torch.equal(back[n], p) for n, p in model.state_dict().items())


# -- other architectures ---------------------------------------------------------------------------


def _freed_network(kind: str) -> tuple[nn.Module, object]:
    if kind.startswith("CNN"):
        model = convolutions(norm=kind.endswith("batch norm"))
        return model, freed(model, 3, 8, 8, axis=1)
    if kind == "transformer":
        model = drawn(Transformer())
        return model, freed(model, 5, 8)
    layers = {
        "layer norm": [nn.Linear(12, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 5)],
        "linear bottleneck": [nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7), nn.Linear(7, 15),
                              nn.ReLU(), nn.Linear(15, 5)],
        "no biases": [nn.Linear(12, 20, bias=False), nn.ReLU(), nn.Linear(20, 9, bias=False),
                      nn.ReLU(), nn.Linear(9, 5, bias=False)],
        "one answer": [nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1)],
    }  # fmt: skip
    model = drawn(nn.Sequential(*layers[kind]))
    return model, freed(model, 12)


@pytest.mark.parametrize(
    "kind",
    ["CNN", "CNN with batch norm", "transformer", "layer norm", "linear bottleneck", "no biases",
     "one answer"],
)  # fmt: skip
def test_the_structure_is_what_counts(kind: str) -> None:
    model, symmetry = _freed_network(kind)
    found, error, stranger, element = attacked(model, symmetry)
    (space,) = found.inverses
    assert error <= 1e-10 and found.fits and found.matrix(space) is not None
    assert not stranger.fits and key_error(symmetry, element, stranger) > 0.1


@pytest.mark.parametrize("seed", [0, 4, 5, 6, 8, 9, 12, 15])
def test_networks_that_nobody_chose(seed: int) -> None:
    network = random_network(seed)
    model = network.model.eval()
    x, _ = network.data(seed, True)
    symmetry = find_symmetry(model, (x[:7],), free_inputs=network.axes)
    found, error, stranger, _ = attacked(model, symmetry, seed)
    assert error <= 1e-8 and found.fits and not stranger.fits


def test_where_a_key_adds_a_common_change_the_attack_says_that_it_does_not_fit() -> None:
    """x + 1 (z·x) behind the first layer, which a norm does not see: Gram matrices change."""
    network = random_network(1)
    model = network.model.eval()
    x, _ = network.data(1, True)
    symmetry = find_symmetry(model, (x[:7],), free_inputs=network.axes)
    assert any("common change" in shift.family for shift in symmetry.shifts)
    found, error, stranger, _ = attacked(model, symmetry, 1)
    assert error > 1e-3 and not found.fits and not stranger.fits
    plain = replace(
        symmetry, shifts=tuple(s for s in symmetry.shifts if "common change" not in s.family)
    )
    found, error, _, _ = attacked(model, plain, 1)
    assert error <= 1e-8 and found.fits


def test_moved_outputs_are_no_shelter() -> None:
    """With GL on the outputs, too, biases and Gram matrices still tell the hidden units."""
    model = perceptron(20, 40, 16, 10)
    found, error, stranger, _ = attacked(model, freed(model, 20, outputs=True))
    assert error <= 1e-10 and found.fits and not stranger.fits


# -- units that nothing tells ----------------------------------------------------------------------


def _with_equal_units() -> nn.Sequential:
    """Unit 3 is dead, and 10 and 11 are equal to whoever reads them."""
    model = perceptron(30, 30, 16, 10)
    with torch.no_grad():
        model[2].weight[:, 3], model[0].bias[3] = 0, 0
        model[2].weight[:, 10], model[0].bias[10] = (
            2 * model[2].weight[:, 11],
            model[0].bias[11] / 2,
        )
    return model


def test_equal_and_dead_units_are_left_out() -> None:
    model = _with_equal_units()
    symmetry = freed(model, 30)
    left = untouched(symmetry)
    told = told_units(left.symmetry, left.part(model.state_dict()))
    assert [*(~told["mlp"]).nonzero()[:, 0]] == [3, 10, 11] and bool(told["mlp.2"].all())
    found, error, _, _ = attacked(model, symmetry)
    assert found.rank("input") == 27 and error <= 1e-12 and found.fits


def test_units_of_a_generic_network_are_all_told() -> None:
    symmetry = freed(perceptron(30, 30, 16, 10), 30)
    left = untouched(symmetry)
    told = told_units(left.symmetry, left.part(perceptron(30, 30, 16, 10).state_dict()))
    assert all(bool(mask.all()) for mask in told.values())


def test_two_linear_layers_claim_nothing() -> None:
    """Their product alone is determined, and with it no row of the first."""
    model = drawn(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10)))
    found, error, _, _ = attacked(model, freed(model, 20))
    assert found.rank("input") == 0 and found.matrix("input") is None and error == 1.0


# -- the slow twin ---------------------------------------------------------------------------------


def _by_hand(own: dict, sent: dict) -> Tensor:
    """A of a three-layer perceptron: columns of W₃, then of W₂ matched up to positive scale."""

    def matched(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [side.norm(dim=0) for side in (x, y)]
        apart = torch.cdist((y / sizes[1]).mT, (x / sizes[0]).mT)
        order = torch.as_tensor(linear_sum_assignment(apart.numpy())[1])
        return order, sizes[0][order] / sizes[1]

    order, scale = matched(own["4.weight"], sent["4.weight"])
    second = own["2.weight"][order] * scale[:, None]
    order, scale = matched(second, sent["2.weight"])
    first = own["0.weight"][order] * scale[:, None]
    return torch.linalg.inv(torch.linalg.lstsq(first, sent["0.weight"]).solution)


def test_it_is_what_matching_layer_by_layer_gives() -> None:
    model = perceptron(64, 128, 32, 10)
    symmetry = freed(model, 64)
    element, sent = session(symmetry, model.state_dict(), 1)
    found = recover_input_key(symmetry, model.state_dict(), sent).matrix("input")
    twin = _by_hand(model.state_dict(), sent)
    assert found is not None and torch.allclose(found, twin, atol=1e-10)
    assert torch.allclose(twin, element["input"].matrix, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 9),
    st.lists(st.integers(2, 14), min_size=1, max_size=3),
    st.sampled_from([nn.ReLU, nn.GELU, nn.Tanh]),
    st.integers(0, 1000),
)
def test_the_rank_is_that_of_the_first_layer(n: int, hidden: list[int], activation, seed) -> None:
    model = perceptron(n, *hidden, 3, seed=seed, activation=activation)
    symmetry = freed(model, n)
    found, error, _, _ = attacked(model, symmetry, seed)
    assert found.fits and error <= 1e-8
    assert found.rank("input") == min(n, hidden[0])


# -- a job -----------------------------------------------------------------------------------------


def _job(dtype: torch.dtype, **more) -> Job:
    model = perceptron(16, 32, 12, 5).to(dtype)
    symmetry = freed(model, 16)
    key = Key.generate(symmetry, generator(3), **more)
    return Job(model, key, normal(9, 16).to(dtype))


def test_an_attempt_says_what_it_found(dtype: torch.dtype) -> None:
    found = attempt(_job(dtype))
    assert found.succeeded and found.control_failed and found.control > 0.1
    assert found.value <= (1e-12 if dtype == torch.float64 else 1e-4)
    assert found.claim == "data" and "every input" in found.says


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_keys_that_commute_with_training_fall_as_well(optimizer: str) -> None:
    found = attempt(_job(torch.float64, optimizer=optimizer))
    assert found.succeeded and found.control_failed and found.value <= 1e-12


def test_a_signed_permutation_is_found_although_the_layer_is_narrow() -> None:
    """Pixels are matched one by one, for which no full column rank is needed."""
    model = perceptron(16, 6, 5)
    key = Key.generate(freed(model, 16), generator(3), "adam")
    found = attempt(Job(model, key, normal(9, 16)))
    assert found.succeeded and found.value == 0.0 and found.measure == "relative error of A"


def test_a_narrow_layer_is_said() -> None:
    model = perceptron(16, 6, 5)
    found = attempt(Job(model, Key.generate(freed(model, 16), generator(3)), normal(9, 16)))
    assert found.succeeded and "6 of 16" in found.measure and "6 of 16" in found.says


def test_a_key_that_leaves_the_inputs_is_none_of_its_business() -> None:
    model = perceptron(16, 6, 5)
    symmetry = freed(model, 16).restrict(spaces=["mlp"])
    job = Job(model, Key.generate(symmetry, generator(3)), normal(9, 16))
    with pytest.raises(NotApplicable, match="leaves the inputs"):
        attempt(job)
    with pytest.raises(ValueError, match="free_inputs"):
        recover_input_key(symmetry, model.state_dict(), model.state_dict())


def test_signs_are_given_to_hidden_units_alone() -> None:
    symmetry = freed(perceptron(16, 6, 5), 16, outputs=True)
    signed = with_signs(symmetry)
    assert signed.spaces["mlp"].group.signs and not symmetry.spaces["mlp"].group.signs
    assert signed.spaces["input"] == symmetry.spaces["input"]
    assert signed.spaces["output"] == symmetry.spaces["output"]


@pytest.mark.parametrize(
    ("group", "told"),
    [(OrthogonalFixingOnes(4), True), (Orthogonal(4), False), (GeneralLinear(4), False)],
    ids=str,
)
def test_rotations_that_fix_ones_need_not_be_told_along_ones(group: Group, told: bool) -> None:
    axes = Fixed(6), Carried((("r", Fraction(-1)),))
    symmetry = ParameterSymmetry({"r": Space("r", group)}, {"w": axes})
    weight = normal(6, 4)
    centred = weight - weight.mean(-1, keepdim=True)
    assert bool(told_units(symmetry, {"w": centred})["r"].all()) is told
    assert bool(told_units(symmetry, {"w": weight})["r"].all())
