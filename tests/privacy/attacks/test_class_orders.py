"""The order of classes, from how frequent they are and from how they lie to each other."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paramsym.privacy import NotApplicable
from paramsym.privacy.attacks import class_frequencies, class_geometry
from paramsym.privacy.attacks.chance import beyond_chance
from paramsym.privacy.attacks.class_frequencies import counts_of, evened, matched_by_frequencies
from paramsym.privacy.attacks.class_geometry import class_gram, matched_by_geometry
from tests.privacy.attacks.digit_halves import HALVES
from tests.privacy.attacks.digit_jobs import job


def _matrix(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, n, generator=generator, dtype=torch.float64)


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


@pytest.mark.parametrize("split", HALVES)
@pytest.mark.parametrize("seed", range(3))
def test_classes_are_named_under_any_matrix(split: str, seed: int) -> None:
    (x, y), (secret, classes) = HALVES[split]()
    generator = torch.Generator().manual_seed(seed)
    renamed, key = torch.randperm(10, generator=generator), _matrix(64, generator)
    sent = (secret @ key.T, renamed[classes])
    assert _share(matched_by_geometry((x, y), sent, 10, generator), renamed) == 1.0
    unlabelled = (x, y[torch.randperm(len(y), generator=generator)])
    control = _share(matched_by_geometry(unlabelled, sent, 10, generator), renamed)
    assert not beyond_chance(control, 10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_gram_matrix_sees_no_key_on_the_inputs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=generator)
    renamed, key = torch.randperm(3, generator=generator), _matrix(5, generator)
    shift = torch.randn(5, generator=generator, dtype=torch.float64)
    plain, moved = class_gram(x, y, 3), class_gram(x @ key.T + shift, renamed[y], 3)
    torch.testing.assert_close(moved[renamed][:, renamed], plain, atol=1e-8, rtol=1e-8)


def test_the_gram_matrix_is_that_of_whitened_means(generator: torch.Generator) -> None:
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (60,), generator=generator)
    centred, counts = x - x.mean(0), counts_of(y, 3).double()
    means = torch.stack([centred[y == c].mean(0) for c in range(3)])
    whole = means @ torch.linalg.inv(centred.T @ centred) @ means.T
    expected = counts.sqrt()[:, None] * whole * counts.sqrt()
    torch.testing.assert_close(class_gram(x, y, 3), expected)


def test_a_nonlinear_map_of_the_inputs_is_seen(generator: torch.Generator) -> None:
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (40,), generator=generator)
    assert (class_gram(x**3, y, 3) - class_gram(x, y, 3)).norm() > 0.01


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


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_job_gives_its_classes_away_by_their_geometry(optimizer: str) -> None:
    attempt = class_geometry.attempt(job(optimizer))
    assert attempt.value == 1.0 and attempt.succeeded and attempt.claim == "labels"
    assert attempt.control <= 0.5 and attempt.control_failed


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


@pytest.mark.parametrize("attack", [class_frequencies, class_geometry], ids=["counts", "geometry"])
def test_what_a_job_lacks_is_named(attack) -> None:
    plain = job("adam")
    with pytest.raises(NotApplicable, match="public labels"):
        attack.attempt(replace(plain, public_targets=None))
    with pytest.raises(NotApplicable, match="public labels"):
        attack.attempt(job(None))
    with pytest.raises(NotApplicable, match="no classes"):
        one_hot = torch.nn.functional.one_hot(plain.targets, 10).double()  # type: ignore[arg-type]
        attack.attempt(replace(job("sgd", loss="mse"), targets=one_hot))


def test_geometry_needs_more_samples_than_features() -> None:
    plain = job("adam")
    assert plain.targets is not None
    with pytest.raises(NotApplicable, match="more samples than features"):
        class_geometry.attempt(replace(plain, inputs=plain.inputs[:64], targets=plain.targets[:64]))
