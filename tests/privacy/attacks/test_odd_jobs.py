"""Audits of jobs that lack something: whatever it is, they end, and every number is one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramsym import find_symmetry
from paramsym.privacy import Job, Key, audit
from paramsym.privacy.attacks import ATTACKS

FEATURES, CLASSES, SAMPLES = 6, 4, 60


def network(size: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, size), nn.ReLU(), nn.Linear(size, CLASSES)
    return nn.Sequential(*layers).double()


def rows(seed: int, samples: int = SAMPLES) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)


def labels(seed: int, samples: int = SAMPLES) -> Tensor:
    return torch.randint(CLASSES, (samples,), generator=torch.Generator().manual_seed(seed))


def key(
    model: nn.Module, seed: int, optimizer: str | None = "sgd", loss: str | None = "cross-entropy"
) -> Key:
    symmetry = find_symmetry(model, (rows(3)[:5],), free_inputs=True, free_outputs=True)
    return Key.generate(symmetry, torch.Generator().manual_seed(seed), optimizer, loss)


def job(model: nn.Module | None = None, **others: Any) -> Job:
    model = model or network()
    given = {
        "inputs": rows(11), "targets": labels(12), "public": rows(13), "public_targets": labels(14),
        "initial": model.state_dict(), "second": key(model, 2),
    }  # fmt: skip
    return Job(model, key(model, 1), **(given | others))


def ignored(targets: Tensor) -> Tensor:
    return torch.where(torch.arange(len(targets)) % 7 == 0, -100, targets)


def dead(model: nn.Module) -> nn.Module:
    for each in model.parameters():
        each.data.zero_()
    return model


ODD: dict[str, Callable[[], Job]] = {
    "evaluation": lambda: replace(job(), key=key(network(), 1, None, None), second=None),
    "ignored": lambda: job(targets=ignored(labels(12))),
    "public-ignored": lambda: job(public_targets=ignored(labels(14))),
    "all-ignored": lambda: job(targets=torch.full((SAMPLES,), -100)),
    "one-class": lambda: job(targets=torch.zeros(SAMPLES, dtype=torch.long)),
    "strange-classes": lambda: job(public_targets=torch.arange(SAMPLES) % 7),
    "one-sample": lambda: job(inputs=rows(11, 1), targets=labels(12, 1)),
    "zeros": lambda: job(inputs=torch.zeros(SAMPLES, FEATURES, dtype=torch.float64)),
    "constant": lambda: job(inputs=torch.ones(SAMPLES, FEATURES, dtype=torch.float64)),
    "tiny": lambda: job(inputs=1e-200 * rows(11)),
    "huge": lambda: job(inputs=1e150 * rows(11)),
    "public-of-other-features": lambda: job(public=torch.ones(SAMPLES, 7, dtype=torch.float64)),
    "public-of-other-axes": lambda: job(public=rows(13)[:, :, None]),
    "public-infinite": lambda: job(public=rows(13) / 0),
    "public-empty": lambda: job(public=rows(13)[:0], public_targets=labels(14)[:0]),
    "fewer-public-labels": lambda: job(public_targets=labels(14, 10)),
    "boolean-public-labels": lambda: job(public_targets=labels(14) > 1),
    "initial-incomplete": lambda: job(initial={"0.weight": network().state_dict()["0.weight"]}),
    "initial-of-another": lambda: job(initial=network(9).state_dict()),
    "zero-network": lambda: job(dead(network())),
}


@pytest.mark.parametrize("name", ODD)
def test_audits_of_odd_jobs_end_and_every_number_is_one(name: str) -> None:
    found = audit(ODD[name]())
    assert len(found.attempts) + len(found.skipped) == len(ATTACKS)
    assert all(math.isfinite(x) for a in found.attempts for x in (a.value, a.control, a.seconds))
    assert all(why.strip() for why in found.skipped.values())
    json.loads(found.to_json(), parse_constant=pytest.fail)


def test_of_an_ordinary_job_all_attacks_that_can_be_are_tried() -> None:
    found = audit(job())
    assert {*found.skipped} == {"public-statistics", "class-frequencies", "learning-rates"}


def test_ignored_samples_are_left_out_and_the_others_attacked_all_the_same() -> None:
    plain, some = (audit(each, ["used-parameters"]) for each in (job(), ODD["ignored"]()))
    assert plain.against("model") and some.against("model")


def test_labels_of_another_number_of_samples_are_not_taken_for_those_of_positions() -> None:
    found = audit(ODD["fewer-public-labels"](), ["class-moments", "class-labels"])
    assert [*found.skipped] == ["class-moments", "class-labels"]


def test_labels_that_a_key_mixes_are_not_sent_and_others_are() -> None:
    assert ODD["evaluation"]().view.targets is None
    assert job().view.targets is not None


def test_controls_do_not_draw_the_numbers_that_the_data_were_made_of() -> None:
    found = audit(job(inputs=rows(0)), ["neighbours", "whitened-inner-products"])
    assert not found.unsound and len(found.against("data")) == 2


def test_the_second_key_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' has the shape \(9, 6\) there"):
        job(second=key(network(9), 2))
