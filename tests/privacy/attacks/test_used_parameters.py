"""Parameters that were sent are used: on plain inputs, and in another session."""

from dataclasses import replace

import pytest
import torch

from paramsym.privacy import Key, NotApplicable
from paramsym.privacy.attacks.used_parameters import (
    attempt,
    attempt_in_another_session,
    same_samples,
    target_rows,
)
from tests.privacy.attacks.jobs import GROUPS, labelled
from tests.privacy.attacks.keys import seeded

SIZE = 6


def samples(seed, count=80):
    generator = seeded(seed)
    labels = torch.arange(count) % 10
    return torch.randn(count, SIZE, generator=generator, dtype=torch.float64), labels


def a_job(kind):
    return labelled(kind, samples(0), samples(1))


def with_second(job):
    groups = {name: space.group for name, space in job.key.acting.spaces.items()}
    return replace(job, second=Key.generate(job.key.symmetry, seeded(9), groups=groups))


@pytest.mark.parametrize("kind", GROUPS)
def test_known_pairs_make_the_parameters_usable(kind):
    found = attempt(a_job(kind))
    assert found.claim == "model"
    assert found.succeeded and found.value < 1e-10
    assert found.control_failed and found.control > 0.1


@pytest.mark.parametrize("kind", GROUPS)
def test_shared_samples_carry_parameters_into_another_session(kind):
    found = attempt_in_another_session(with_second(a_job(kind)))
    assert found.claim == "non-transferability"
    assert found.succeeded and found.value < 1e-8
    assert found.control_failed and found.control > 0.1


def test_samples_are_known_again_and_others_are_not():
    generator = seeded(4)
    x, a, b = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (40, 5, 5))
    order = torch.randperm(40, generator=generator)
    one, other = same_samples(x @ a.T, x[order] @ b.T)
    assert torch.equal(one, order[other])
    strange = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    one, other = same_samples(x @ a.T, strange[order] @ b.T)
    assert not torch.equal(one, order[other])


def test_labels_become_unit_vectors_and_numbers_stay():
    assert torch.equal(target_rows(torch.tensor([1, 0]), 3), torch.eye(3).double()[[1, 0]])
    assert torch.equal(target_rows(torch.ones(2, 3), 3), torch.ones(2, 3).double())


def test_what_a_job_lacks_is_named():
    job = a_job("orthogonal")
    with pytest.raises(NotApplicable, match="no targets"):
        attempt(replace(job, targets=None))
    with pytest.raises(NotApplicable, match="no second session"):
        attempt_in_another_session(job)
    few = replace(job, inputs=job.inputs[:20], targets=job.targets[:20])
    with pytest.raises(NotApplicable, match="20 rows, and this needs four times 6"):
        attempt(few)
