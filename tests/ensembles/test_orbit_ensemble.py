"""Members of data-dependent orbits: five methods, one frozen correction, one published wrapper."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from paramsym.checking.pointwise import NotPointwise
from paramsym.ensembles import OrbitEnsemble, fitted_correction
from paramsym.ensembles.methods import METHODS, Draw
from tests.ensembles.networks import HIDDEN, apart, convolutional, digits, seeded, trained


def matrices(count: int, seed: int = 0, strength: float = 0.5) -> Tensor:
    g = torch.randn(count, HIDDEN, HIDDEN, generator=seeded(seed), dtype=torch.float64)
    return torch.eye(HIDDEN).double() + strength * g / HIDDEN**0.5


def test_the_group_moves_the_layers_as_written() -> None:
    x, _ = digits()
    model, g = trained(), matrices(3)
    ensemble = OrbitEnsemble(model, x, "mlp", 3, generator=seeded(), elements=g)
    v, b, u, _ = model.state_dict().values()
    hidden = (x @ v.T + b).T.detach()
    leaky = nn.functional.leaky_relu
    for place in range(3):
        pi = torch.linalg.lstsq(leaky(g[place] @ hidden).T, leaky(hidden).T).solution.T
        member = ensemble.member(place)
        assert apart(member["0.weight"], g[place] @ v) < 1e-12
        assert apart(member["0.bias"], g[place] @ b) < 1e-12
        assert apart(member["2.weight"], u @ pi) < 1e-8
        assert member["2.bias"].data_ptr() == model.state_dict()["2.bias"].data_ptr()
        fit = ensemble.fits[place]
        error = pi @ leaky(g[place] @ hidden) - leaky(hidden)
        assert fit.residual == pytest.approx(float(error.norm() / leaky(hidden).norm()))
        assert fit.condition == pytest.approx(
            float(torch.linalg.cond(leaky(g[place] @ hidden))), rel=1e-6
        )
        assert fit.rank == HIDDEN


@pytest.mark.parametrize("method", METHODS)
def test_at_no_strength_all_members_are_the_network(method: str) -> None:
    x, _ = digits()
    still = OrbitEnsemble(trained(), x, "mlp", 3, 0.0, method, generator=seeded())
    moved = OrbitEnsemble(trained(), x, "mlp", 3, 0.3, method, generator=seeded())
    answers = trained()(x)
    assert apart(moved.logits(x), answers.expand(3, *answers.shape)) > 1e-3
    if method == "shuffle":  # I in random order is no identity: it does not preserve anything
        assert apart(still.logits(x), answers.expand(3, *answers.shape)) > 1e-1
    else:
        assert apart(still.logits(x), answers.expand(3, *answers.shape)) < 1e-9


def test_inverse_random_and_permutation_are_as_published() -> None:
    x, _ = digits()
    model = trained()
    u = model.state_dict()["2.weight"]
    g = matrices(2)
    inverse = OrbitEnsemble(model, x, "mlp", 2, method="inverse", generator=seeded(), elements=g)
    for place in range(2):
        member = inverse.member(place)
        assert apart(member["2.weight"] @ g[place], u) < 1e-11
    random = OrbitEnsemble(model, x, "mlp", 2, 0.2, "random", generator=seeded(), elements=g)
    ratio = random.member(0)["2.weight"] / u  # U g' with a diagonal g': columns are scaled
    assert apart(ratio, ratio[:1].expand_as(ratio)) < 1e-9
    assert 0.02 < float(ratio[0].std()) < 0.6
    strength = 0.6
    permuted = OrbitEnsemble(
        model, x, "mlp", 2, strength, "interpolated-permutation", generator=seeded()
    )
    v = model.state_dict()["0.weight"]
    s = torch.linalg.lstsq(v.T, permuted.member(0)["0.weight"].T).solution.T
    order = (s * (1 + strength) - (1 + strength / 2) * torch.eye(HIDDEN).double()) / (strength / 2)
    assert apart(order.sum(0), torch.ones(HIDDEN).double()) < 1e-9
    assert apart(order.sum(1), torch.ones(HIDDEN).double()) < 1e-9
    assert set(order.round().flatten().tolist()) == {0.0, 1.0}
    assert apart(permuted.member(0)["2.weight"] @ s, u) < 1e-9


def test_shuffled_corrections_have_the_entries_of_the_group() -> None:
    x, _ = digits()
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 12)).double()
    both = [
        OrbitEnsemble(wide, x, "mlp", 1, 0.3, m, generator=seeded()) for m in ("group", "shuffle")
    ]
    group, shuffle = (
        torch.linalg.lstsq(wide.state_dict()["2.weight"], e.member(0)["2.weight"]).solution
        for e in both
    )
    assert both[0].fits == both[1].fits
    assert apart(shuffle.flatten().sort()[0], group.flatten().sort()[0]) < 1e-9
    assert apart(shuffle, group) > 0.1


def test_elements_are_drawn_with_variance_one_over_width() -> None:
    """One ε moves narrow and wide layers alike: the singular values of M lie in [0, 2]."""
    for units in (8, 200):
        hidden = torch.zeros(units, 1).double()
        draw = Draw(hidden, torch.tanh, 0.3, seeded())
        g = torch.stack([METHODS["group"].element(draw) for _ in range(40)])
        m = (g - torch.eye(units).double()) / 0.3
        assert float(m.std()) == pytest.approx(units**-0.5, rel=0.05)
        assert 1.5 < float(torch.linalg.matrix_norm(m, 2).median()) < 2.5


def test_corrections_of_deficient_rank_have_least_norm() -> None:
    generator = seeded()
    wanted = torch.randn(5, 30, generator=generator, dtype=torch.float64)
    given = torch.randn(5, 3, generator=generator, dtype=torch.float64) @ torch.randn(
        3, 30, generator=generator, dtype=torch.float64
    )
    found = fitted_correction(wanted, given)
    assert apart(found.matrix, wanted @ torch.linalg.pinv(given, rcond=1e-10)) < 1e-10
    assert found.rank == 3 and found.condition == float("inf") and found.residual > 0.1
    full = fitted_correction(wanted, wanted)
    assert apart(full.matrix, torch.eye(5).double()) < 1e-12 and full.residual < 1e-12
    nothing = fitted_correction(torch.zeros(5, 30), torch.zeros(5, 30))
    assert nothing.rank == 0 and nothing.residual == 0 and not bool(nothing.matrix.any())


def test_a_generator_says_all_that_is_random() -> None:
    x, _ = digits()
    made = [OrbitEnsemble(trained(), x, "mlp", 2, generator=seeded(s)).logits(x) for s in (1, 1, 2)]
    assert torch.equal(made[0], made[1])
    assert apart(made[2], made[0]) > 1e-4


def test_the_frozen_correction_depends_on_no_batch_mates() -> None:
    x, _ = digits()
    ensemble = OrbitEnsemble(trained("Tanh"), x, "mlp", 4, 0.5, generator=seeded())
    alone, among = ensemble.logits(x[:1]), ensemble.logits(x[:40])[:, :1]
    assert apart(alone, among) < 1e-12


def test_the_published_wrapper_is_no_ensemble_up_to_as_many_samples_as_units() -> None:
    x, _ = digits()
    model = trained("Tanh")
    wrapped = OrbitEnsemble(model, x, "mlp", 6, 0.4, generator=seeded(), correction="batch")
    for size in (1, HIDDEN // 2, HIDDEN):
        answers = model(x[100 : 100 + size])
        assert apart(wrapped.logits(x[100 : 100 + size]), answers.expand(6, *answers.shape)) < 1e-10
    fitted = OrbitEnsemble(model, x, "mlp", 6, 0.4, generator=seeded())
    answers = model(x[100:116])
    assert apart(fitted.logits(x[100:116]), answers.expand(6, *answers.shape)) > 1e-3
    assert wrapped.fits == ()
    narrow = copy.deepcopy(wrapped).float()
    assert apart(narrow.logits(x[:8].float()), model(x[:8]).expand(6, 8, 10).float()) < 1e-4


def test_above_that_its_answer_to_a_sample_depends_on_batch_mates() -> None:
    x, _ = digits()
    wrapped = OrbitEnsemble(
        trained("Tanh"), x, "mlp", 6, 0.4, generator=seeded(), correction="batch"
    )
    size = 2 * HIDDEN
    one = wrapped.logits(x[:size])[:, 0]
    other = wrapped.logits(torch.cat([x[:1], x[size : 2 * size - 1]]))[:, 0]
    change = float(((one - other).norm(dim=-1) / one.norm(dim=-1)).mean().detach())
    assert 0.01 < change < 0.5
    assert not torch.allclose(one, other, rtol=1e-3)


@pytest.mark.parametrize("h", [16, 32])
def test_the_wrapper_in_numbers(h: int) -> None:
    """σ'(H) = σ(H)σ(gH)⁺σ(gH): rounding for k ≤ h, tens of per cent between batches at k = 2h."""
    strength, changes, errors = 0.1, [], []  # of standard normal M, as published: 0.1 √h in ours
    for seed in range(20):
        generator = seeded(seed)

        def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        g = torch.eye(h).double() + strength * normal(h, h)

        def wrapped(hidden: Tensor, g: Tensor = g) -> Tensor:
            moved = torch.tanh(g @ hidden)
            return fitted_correction(torch.tanh(hidden), moved).matrix @ moved

        few = normal(h, h // 2)
        errors.append(apart(wrapped(few), torch.tanh(few)))
        one, mates, others = normal(h, 1), normal(h, 2 * h - 1), normal(h, 2 * h - 1)
        answers = [wrapped(torch.cat([one, rest], 1))[:, 0] for rest in (mates, others)]
        changes.append(float((answers[0] - answers[1]).norm() / answers[0].norm()))
    assert max(errors) < 1e-14
    assert 0.1 < sum(changes) / len(changes) < 0.3  # 0.14 at h = 16 and 0.22 at h = 32


def test_the_square_fit_is_exact_and_conditioned_worst() -> None:
    """As many samples as units: no residual on the batch, and an error elsewhere that is larger."""
    x, _ = digits()
    model, rest = trained("Tanh"), x[900:]
    worst, errors, residuals = [], [], []
    for samples in (HIDDEN, 4 * HIDDEN, 50 * HIDDEN):
        ensemble = OrbitEnsemble(model, x[:samples], "mlp", 10, 0.5, generator=seeded())
        worst.append(max(fit.condition for fit in ensemble.fits))
        residuals.append(max(fit.residual for fit in ensemble.fits))
        apart_by = (ensemble.logits(rest) - model(rest)).norm(dim=(1, 2)) / model(rest).norm()
        errors.append(float(apart_by.median().detach()))
    assert residuals[0] < 1e-9 < 1e-3 < residuals[1] < residuals[2]
    assert worst[0] > worst[1] > worst[2]
    assert errors[0] > errors[1] > errors[2]


def test_a_layer_behind_convolutions_is_found() -> None:
    x, _ = digits()
    images = x.reshape(-1, 1, 8, 8)
    ensemble = OrbitEnsemble(convolutional(), images, "mlp", 3, generator=seeded())
    assert set(ensemble.names) == {"3.weight", "3.bias", "5.weight"}


def test_outputs_may_be_chosen() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x), "twice": 2 * x}

    x, _ = digits()
    ensemble = OrbitEnsemble(
        Pair(), x, "mlp", 3, generator=seeded(), outputs=lambda made: made["logits"]
    )
    assert ensemble.logits(x[:5]).shape == (3, 5, 10)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 0}, "members=0.*at least one"),
        ({"members": 2.0}, "members=2.0"),
        ({"strength": -1.0}, "strength=-1.0.*ε ≥ 0 was expected"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"method": "rotate"}, "method='rotate'.*'group', 'inverse'"),
        ({"generator": None}, "NoneType came; a torch.Generator was expected"),
        ({"correction": "none"}, "correction='none'"),
        ({"correction": "batch", "method": "inverse"}, "with method='group'"),
        ({"elements": torch.eye(3)}, r"\(3, 3\) came; real matrices of shape \(4, 16, 16\)"),
        ({"elements": torch.zeros(4, 16, 16)}, "g of member 0 has singular values from 0 to 0"),
        ({"elements": matrices(4) * float("nan")}, "not finite; an invertible matrix"),
        ({"elements": matrices(4), "method": "interpolated-permutation"}, "makes its own"),
    ],
    ids=lambda v: v if isinstance(v, str) else ", ".join(v),
)
def test_options_are_refused_with_a_way_out(change: dict, message: str) -> None:
    x, _ = digits()
    options = {"members": 4, "strength": 0.1, "generator": seeded(), **change}
    with pytest.raises(ValueError, match=message):
        OrbitEnsemble(trained(), x, "mlp", **options)


def test_one_singular_element_among_others_is_named() -> None:
    x, _ = digits()
    g = matrices(4)
    g[2, :, 0] = g[2, :, 1]
    with pytest.raises(ValueError, match="member 2 has singular values.*invertible"):
        OrbitEnsemble(trained(), x, "mlp", 4, generator=seeded(), elements=g)


def test_batches_that_determine_no_correction_are_refused() -> None:
    x, _ = digits()
    for samples in (1, HIDDEN - 1):
        with pytest.raises(ValueError, match=f"{samples} samples came for the 16 units.*'mlp'"):
            OrbitEnsemble(trained(), x[:samples], "mlp", generator=seeded())
    OrbitEnsemble(trained(), x[:1], "mlp", method="inverse", generator=seeded())  # it fits nothing
    broken = x.clone()
    broken[3, 3] = float("nan")
    with pytest.raises(ValueError, match="input 0 has entries that are not finite.*Leave out"):
        OrbitEnsemble(trained(), broken, "mlp", generator=seeded())


def test_spaces_that_are_none_or_not_between_linear_maps() -> None:
    x, _ = digits()
    with pytest.raises(KeyError, match="it is no space of this symmetry"):
        OrbitEnsemble(trained(), x, "hidden", generator=seeded())
    with pytest.raises(NotPointwise, match="space='channels'"):
        OrbitEnsemble(convolutional(), x.reshape(-1, 1, 8, 8), "channels", generator=seeded())
    normed = nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 10)).double()
    with pytest.raises((NotPointwise, KeyError)):
        OrbitEnsemble(normed, x, "mlp", generator=seeded())
    broken = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()
    broken.state_dict()["0.weight"].fill_(float("nan"))
    with pytest.raises(ValueError, match="'0.weight' has entries that are not finite.*Go back"):
        OrbitEnsemble(broken, x, "mlp", generator=seeded())
