"""Sessions of one model are linked, and told from sessions with others."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paramsym import act, same_orbit
from paramsym.geometry.same_orbit import Kind
from paramsym.privacy import Attempt, Job, Key, NotApplicable
from paramsym.privacy.attacks.linking import (
    answers_apart,
    attempt,
    attempt_at_zero,
    attempt_by_answers,
    attempt_by_data,
    attempt_by_matching,
    leverages,
    linking_rate,
    matched_distance,
    relative,
    session_fingerprint,
)

from .networks import freed, generator, masked, masks_of, normal, perceptron, session

MODELS, SESSIONS = 4, 5
ATTEMPTS: list[Callable[[Job], Attempt]] = [
    attempt, attempt_by_matching, attempt_by_answers, attempt_at_zero, attempt_by_data,
]  # fmt: skip


def trained(seed: int) -> nn.Sequential:
    """One task, learned from another initialisation each time."""
    model = perceptron(16, 24, 12, 4, seed=seed)
    x = normal(256, 16, seed=100)
    labels = (x @ normal(16, 4, seed=101)).argmax(-1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    assert float((model(x).argmax(-1) == labels).double().mean()) > 0.9
    return model


@pytest.fixture(scope="module")
def networks() -> list[nn.Sequential]:
    return [trained(seed) for seed in range(MODELS)]


# -- structure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_masks", [False, True], ids=["plain", "masks"])
def test_every_session_is_linked(networks: list[nn.Sequential], with_masks: bool) -> None:
    symmetry = freed(networks[0], 16)
    found, owners = [], []
    for number, model in enumerate(networks):
        for each in range(SESSIONS):
            seed = SESSIONS * number + each
            sent = session(symmetry, model.state_dict(), seed)[1]
            if with_masks:
                sent = masked(symmetry, sent, masks_of(symmetry, ["mlp", "mlp.2"], seed))
            found.append(session_fingerprint(symmetry, sent))
            owners.append(number)
    apart = torch.tensor([[one.distance(other) for other in found] for one in found])
    same = torch.as_tensor(owners)[:, None] == torch.as_tensor(owners)
    assert float(apart[same].max()) <= 1e-7
    assert float(apart[~same].min()) >= 1e-2  # models that learned the same task
    assert linking_rate(apart, owners) == 1.0


@pytest.mark.parametrize("widths", [(16, 9, 6, 4), (16, 24, 4)], ids=str)
def test_narrow_and_shallow_models_are_linked(widths: tuple[int, ...]) -> None:
    symmetry = freed(perceptron(*widths), 16)
    sent, again, other = (
        session_fingerprint(
            symmetry, session(symmetry, perceptron(*widths, seed=s).state_dict(), k)[1]
        )
        for s, k in ((0, 1), (0, 2), (1, 3))
    )
    assert sent.distance(again) <= 1e-9 and sent.distance(other) >= 1e-2


def test_an_answer_to_zero_that_is_a_bias_links_as_well() -> None:
    """Without hidden biases f(0) is the last one; a control of the same entries would not fail."""
    model = perceptron(16, 24, 12, 4)
    with torch.no_grad():
        model[0].bias.zero_(), model[2].bias.zero_()
    symmetry = freed(model, 16, outputs=True)
    keys = [Key.generate(symmetry, generator(s), "adam", "cross-entropy") for s in (1, 2)]
    found = attempt_at_zero(Job(model, keys[0], normal(60, 16), second=keys[1]))
    assert found.succeeded and found.control_failed


def test_the_rate_is_that_of_chance_where_nothing_links() -> None:
    draws = torch.rand(400, 400, generator=generator(0))
    rate = linking_rate(draws, [k % 4 for k in range(400)])
    assert 0.15 < rate < 0.35


def test_the_element_between_two_sessions_is_found(networks: list[nn.Sequential]) -> None:
    symmetry = freed(networks[0], 16)
    own = networks[0].state_dict()
    (first, sent), (second, again) = (session(symmetry, own, seed) for seed in (1, 2))
    verdict = same_orbit(symmetry, again, sent)
    assert verdict.kind is Kind.EQUAL
    expected = (second @ ~first)["mlp"]
    assert torch.equal(verdict.element["mlp"].order, expected.order)
    assert torch.allclose(verdict.element["mlp"].diagonal, expected.diagonal, rtol=1e-6)
    other = session(symmetry, networks[1].state_dict(), 3)[1]
    assert same_orbit(symmetry, other, sent).kind is not Kind.EQUAL


def test_fingerprints_of_one_hidden_layer_without_biases_say_nothing() -> None:
    """Its units are of length one at the reduced point; where they point, matching tells."""
    symmetry = freed(perceptron(16, 9, 5, bias=False), 16)
    sent, again, other = (
        session(symmetry, perceptron(16, 9, 5, seed=seed, bias=False).state_dict(), key)[1]
        for seed, key in ((0, 1), (0, 2), (1, 3))
    )
    prints = [session_fingerprint(symmetry, each) for each in (sent, other)]
    assert prints[0].distance(prints[1]) <= 1e-9
    assert matched_distance(symmetry, sent, again) <= 1e-9
    assert matched_distance(symmetry, sent, other) >= 0.1


def test_a_changed_model_is_as_far_as_it_was_changed() -> None:
    model = perceptron(16, 24, 12, 4)
    symmetry = freed(model, 16)
    own = model.state_dict()
    first = session_fingerprint(symmetry, session(symmetry, own, 1)[1])
    apart = []
    for size in (1e-6, 1e-4, 1e-2):
        tuned = {n: p + size * p.abs().mean() * normal(*p.shape) for n, p in own.items()}
        apart.append(first.distance(session_fingerprint(symmetry, session(symmetry, tuned, 2)[1])))
    assert 1e-8 < apart[0] < 1e-5 < apart[1] < 1e-3 < apart[2]


# -- function --------------------------------------------------------------------------------------


def test_equal_functions_answer_alike(networks: list[nn.Sequential]) -> None:
    symmetry = freed(networks[0], 16).restrict(spaces=["mlp", "mlp.2"])
    own, queries = networks[0].state_dict(), normal(20, 16)
    sent, again = (session(symmetry, own, seed)[1] for seed in (1, 2))
    assert answers_apart(networks[0], sent, again, queries) <= 1e-12
    other = session(symmetry, networks[1].state_dict(), 3)[1]
    assert answers_apart(networks[0], sent, other, queries) >= 0.1


def test_where_inputs_move_only_zero_is_answered_alike(networks: list[nn.Sequential]) -> None:
    symmetry = freed(networks[0], 16)
    own = networks[0].state_dict()
    sent, again = (session(symmetry, own, seed)[1] for seed in (1, 2))
    assert answers_apart(networks[0], sent, again, normal(20, 16)) >= 0.1
    assert answers_apart(networks[0], sent, again, torch.zeros(1, 16).double()) <= 1e-12


def test_a_model_is_given_back_as_it_was() -> None:
    model = perceptron(16, 9, 5).train()
    before = copy.deepcopy(model.state_dict())
    answers_apart(model, model.state_dict(), model.state_dict(), normal(3, 16))
    assert model.training
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())


# -- data ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 1000))
def test_no_linear_map_changes_leverages(n: int, more: int, seed: int) -> None:
    x = normal(n + more, n, seed=seed)
    a = normal(n, n, seed=seed + 1) + 3 * torch.eye(n)
    moved = (x @ a.mT)[torch.randperm(n + more, generator=generator(seed))]
    assert torch.allclose(leverages(moved), leverages(x), atol=1e-8)
    hat = x @ torch.linalg.solve(x.mT @ x, x.mT)  # the slow twin
    assert torch.allclose(leverages(x), hat.diagonal().sort().values, atol=1e-8)
    assert abs(float(leverages(x).sum()) - n) <= 1e-8


def test_leverages_add_up_to_the_rank_of_the_data() -> None:
    """Pixels that are never lit span nothing."""
    x = normal(40, 8)
    x[:, 3], x[:, 5] = 0, x[:, 6]
    assert abs(float(leverages(x).sum()) - 6) <= 1e-8
    mixed = x @ (normal(8, 8, seed=1) + 3 * torch.eye(8)).mT
    assert torch.allclose(leverages(mixed), leverages(x), atol=1e-8)


def test_other_data_have_other_leverages() -> None:
    one, other = (leverages(normal(50, 8, seed=seed)) for seed in (0, 1))
    assert relative(one, other) > 1e-2


def test_channels_are_mixed_at_every_place() -> None:
    x = normal(4, 3, 5, 5)
    mixed = torch.einsum("ij,bjhw->bihw", normal(3, 3, seed=1), x)
    assert torch.allclose(leverages(mixed, axis=1), leverages(x, axis=1), atol=1e-10)
    assert not torch.allclose(leverages(mixed.roll(1, 1), axis=2), leverages(x, axis=2), atol=1e-3)


# -- a job -----------------------------------------------------------------------------------------


def _job(dtype: torch.dtype = torch.float64, outputs: bool = False, **more) -> Job:
    model = perceptron(16, 24, 12, 4).to(dtype)
    symmetry = freed(model, 16, outputs=outputs)
    keys = [Key.generate(symmetry, generator(seed), **more) for seed in (1, 2)]
    inputs = normal(60, 16).to(dtype)
    return Job(model, keys[0], inputs, second=keys[1], public=normal(60, 16, seed=7).to(dtype))


@pytest.mark.parametrize("link", ATTEMPTS, ids=lambda f: f.__name__)
def test_each_attempt_links_and_fails_on_strangers(link, dtype: torch.dtype) -> None:
    found = link(_job(dtype))
    assert found.succeeded and found.control_failed and found.claim == "linkage"
    assert found.value <= (1e-9 if dtype == torch.float64 else 1e-4)
    assert found.control >= 1e-2


@pytest.mark.parametrize(
    ("optimizer", "loss"), [("adam", "cross-entropy"), ("sgd", "mse")], ids=["adam", "sgd"]
)
@pytest.mark.parametrize("link", ATTEMPTS, ids=lambda f: f.__name__)
def test_training_jobs_are_linked_with_their_outputs_moved(link, optimizer: str, loss: str) -> None:
    found = link(_job(outputs=True, optimizer=optimizer, loss=loss))
    assert found.succeeded and found.control_failed and found.value <= 1e-9


def test_a_session_with_another_model_is_not_linked() -> None:
    """What the attempts call a link, for two models that differ by training."""
    job = _job()
    key = job.key
    other = act(key.acting, key.element, perceptron(16, 24, 12, 4, seed=5).state_dict())
    one, another = (session_fingerprint(key.acting, p) for p in (job.view.state_dict, other))
    assert one.distance(another) >= 1e-2


@pytest.mark.parametrize("link", ATTEMPTS, ids=lambda f: f.__name__)
def test_one_session_alone_cannot_be_linked(link) -> None:
    job = _job()
    with pytest.raises(NotApplicable, match="no second session"):
        link(Job(job.model, job.key, job.inputs))


def _refused(change: str) -> tuple[Callable[[Job], Attempt], Job, str]:
    job = _job()
    if change == "few samples":
        return attempt_by_data, Job(job.model, job.key, job.inputs[:9], second=job.second), "9 samp"
    if change == "mixed outputs":
        return attempt_at_zero, _job(outputs=True), "mixes the outputs"
    model = perceptron(16, 9, 4, bias=False)
    keys = [Key.generate(freed(model, 16), generator(seed)) for seed in (1, 2)]
    return attempt_at_zero, Job(model, keys[0], job.inputs, second=keys[1]), "no biases"


@pytest.mark.parametrize("change", ["few samples", "mixed outputs", "no biases"])
def test_what_an_attempt_lacks_is_said(change: str) -> None:
    link, job, said = _refused(change)
    with pytest.raises(NotApplicable, match=said):
        link(job)


def test_without_public_data_features_are_shuffled() -> None:
    job = _job()
    found = attempt_by_data(Job(job.model, job.key, job.inputs, second=job.second))
    assert found.succeeded and found.control_failed and "another order" in found.control_is
