"""The order of classes, from how frequent they are."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks import class_frequencies
from paramsym.privacy.attacks.class_frequencies import counts_of, evened, matched_by_frequencies
from tests.privacy.attacks.digit_halves import HALVES
from tests.privacy.attacks.digit_jobs import job


def _share(found: Tensor, renamed: Tensor) -> float:
    """Secret class i is public class argsort(renamed)[i]."""
    return float((found == renamed.argsort()).double().mean())


def _drawn(count: int, generator: torch.Generator) -> Tensor:
    """Classes of which class c is drawn c + 1 times as often as class 0."""
    return torch.multinomial(torch.arange(1.0, 11.0), count, True, generator=generator)


@pytest.mark.parametrize(("samples", "least"), [(1000, 0.5), (100_000, 1.0)])
def test_uneven_frequencies_name_the_classes(samples: int, least: float) -> None:
    shares = []
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        renamed = torch.randperm(10, generator=generator)
        public, secret = (_drawn(samples, generator) for _ in range(2))
        found = matched_by_frequencies(public, renamed[secret], 10, generator)
        shares.append(_share(found, renamed))
    assert sum(shares) / len(shares) >= least


def test_even_frequencies_say_nothing() -> None:
    (_, public), (_, secret) = HALVES["drawn"]()
    shares = []
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        renamed = torch.randperm(10, generator=generator)
        even = [y[evened(y, 10, generator)] for y in (public, secret)]
        assert all(len(set(counts_of(y, 10).tolist())) == 1 for y in even)
        shares.append(
            _share(matched_by_frequencies(even[0], renamed[even[1]], 10, generator), renamed)
        )
    assert sum(shares) / 50 == pytest.approx(0.1, abs=0.06)  # four standard deviations


def test_ties_are_not_broken_by_the_numbering() -> None:
    # Classes of equal frequency whose numbers happen to agree must not be told from their numbers.
    targets = torch.arange(10)
    shares = [
        _share(
            matched_by_frequencies(targets, targets, 10, torch.Generator().manual_seed(seed)),
            torch.arange(10),
        )
        for seed in range(50)
    ]
    assert sum(shares) / 50 == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (torch.tensor([0.5, 1.0]), r"float32 came.*class indices.*regression"),
        (torch.tensor([0, 7]), r"a class 7 came.*below 3.*number of outputs"),
    ],
    ids=["real", "too large"],
)
def test_targets_that_are_no_classes_are_refused(targets: Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        counts_of(targets, 3)


def test_a_job_with_uneven_classes_gives_them_away_by_frequencies() -> None:
    even, generator = job("adam"), torch.Generator().manual_seed(0)
    assert even.targets is not None and even.public_targets is not None
    attempt = class_frequencies.attempt(even)  # digits are nearly even
    assert not attempt.succeeded and attempt.control_failed and "luck" in attempt.says

    def thinned(targets: Tensor) -> Tensor:
        many = targets.repeat(50)  # as if there were 45,000 samples
        return many[torch.rand(len(many), generator=generator) < (targets.repeat(50) + 1) / 10]

    targets = thinned(even.targets)
    uneven = replace(
        even, targets=targets, inputs=even.inputs[:1].expand(len(targets), -1),
        public_targets=thinned(even.public_targets),
    )  # fmt: skip
    attempt = class_frequencies.attempt(uneven)
    assert attempt.value >= 0.8 and attempt.succeeded
    assert attempt.control <= 0.5 and attempt.control_failed


def test_what_a_job_lacks_is_named() -> None:
    plain = job("adam")
    with pytest.raises(NotApplicable, match="public labels"):
        class_frequencies.attempt(replace(plain, public_targets=None))
    with pytest.raises(NotApplicable, match="public labels"):
        class_frequencies.attempt(job(None))
    with pytest.raises(NotApplicable, match="no classes"):
        one_hot = torch.nn.functional.one_hot(plain.targets, 10).double()  # type: ignore[arg-type]
        class_frequencies.attempt(replace(job("sgd", loss="mse"), targets=one_hot))
