"""The audit as a whole: on a job where attacks succeed, and what it says of those that cannot."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.privacy import Attempt, Audit, Job, Key, audit
from paramsym.privacy.attacks import ATTACKS


def job() -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.randn(60, 6, dtype=torch.float64).exp()
    symmetry = find_symmetry(model, (x[:7],), free_inputs=True, free_outputs=True)
    key = Key.generate(symmetry, torch.Generator().manual_seed(1), "sgd", "cross-entropy")
    return Job(model, key, x, torch.randint(0, 3, (60,)))


def test_every_attack_is_tried_or_says_what_it_lacks() -> None:
    told: list[str] = []
    found = audit(job(), progress=told.append)
    assert told == [*ATTACKS]
    assert len(found.attempts) + len(found.skipped) == len(ATTACKS)
    assert found.against("data") and all(why.strip() for why in found.skipped.values())
    text = str(found)
    for attempt in found.attempts:
        assert attempt.attack in text
    assert "data (who is sent the inputs cannot recover them): false here" in text


def test_json_has_the_numbers() -> None:
    found = audit(job(), ["inner-products", "learning-rates"])
    read = json.loads(found.to_json())
    assert read["attempts"][0]["value"] == found.attempts[0].value < 1e-12
    assert read["attempts"][0]["control"] > 0.1
    assert "scales" in read["skipped"]["learning-rates"]


def test_an_attack_whose_control_succeeds_breaks_nothing() -> None:
    good = Attempt("a", "data", "n", "m", 0.0, 1.0, "c", True, True, 0.1, "s")
    bad = replace(good, control_failed=False)
    assert Audit((good,), {}).against("data") == [good]
    assert Audit((bad,), {}).against("data") == [] and Audit((bad,), {}).unsound == [bad]
    assert "DOES NOT FAIL" in str(Audit((bad,), {}))


def test_unknown_attacks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"audit\(job, attacks=\['magic'\]\)"):
        audit(job(), ["magic"])
