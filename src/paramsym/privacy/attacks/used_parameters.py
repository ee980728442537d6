"""Parameters that were sent are used by who has them: on plain inputs, and in another session.

    f(x; θ) = U⁻¹ f(A x; θ̃)          A and U from known pairs of inputs and targets
    f(x̃₁; θ̃₁) = f(B x̃₂; θ̃₁)          B = A₁A₂⁻¹ from samples that both sessions sent

The second needs no plain sample: leverages, which no linear key changes, say which sample of one
session is which of the other. So "returned parameters cannot be converted to a usable model" holds
until as many pairs are known as span the inputs, and "cached parameters cannot be reused" until two
sessions share as many samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time

import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramsym.algebra import SignedPermutation
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.features import Rows, features_of, mixed, rows_of
from paramsym.privacy.attacks.known_pairs import fitted, least_squares, row_errors, undone
from paramsym.privacy.job import Job
from paramsym.recording.running import preserved

_USED = 1e-2  # relative error of answers of a model that is called usable
_MOST = 1000  # samples that an attempt is scored on


def target_rows(targets: Tensor, classes: int) -> Tensor:
    """Targets as vectors, (samples, outputs): labels become unit vectors.

    Raises:
        NotApplicable: there is no vector and no label below `classes` for each sample.
    """
    if targets.is_floating_point() and targets.dim() == 2:
        return targets.double()
    if targets.dtype != torch.int64 or targets.dim() != 1 or bool((targets >= classes).any()):
        raise NotApplicable(f"the targets are neither vectors nor labels below {classes}")
    return torch.nn.functional.one_hot(targets, classes).double()


def used(
    model: nn.Module, state: Mapping[str, Tensor], inputs: Tensor, outputs: Tensor | None = None
) -> Tensor:
    """Answers U⁻¹ f(x; θ̃) of parameters that came, (samples, outputs) in float64.

    Args:
        model: any network of the class.
        state: θ̃.
        inputs: in the basis of θ̃.
        outputs: U, or None to leave answers as they are.
    """
    dtype = next(t.dtype for t in state.values() if t.is_floating_point())
    with preserved(model, False), torch.no_grad():
        answers = functional_call(model, dict(state), (inputs.to(dtype),)).double()
    return answers if outputs is None else undone(outputs, answers)


def same_samples(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of rows of two sides that are one sample each, by order of their leverages.

    Args:
        first: rows (samples, n) under one linear key.
        second: the same samples in any order, under another one.
    """
    return _leverages(first).argsort(), _leverages(second).argsort()


def _leverages(rows: Tensor) -> Tensor:
    u, values, _ = torch.linalg.svd(rows, full_matrices=False)
    return u[:, values > 1e-9 * values.amax()].square().sum(-1)


def attempt(job: Job) -> Attempt:
    """Use the parameters that were sent on plain inputs, with A and U from known pairs.

    It succeeds where the median relative error of answers to inputs that are not known is at most
    0.01. Control: as many pairs of another key of the inputs.

    Raises:
        NotApplicable: there are no targets, or too few samples, or answers are no rows of outputs.
    """
    rows = _samples(job)
    if job.targets is None or job.view.targets is None:
        raise NotApplicable("there are no targets, and what outputs mean is learnt from them")
    plain_answers = _answers(job)
    generator = torch.Generator().manual_seed(job.seed)
    order = torch.randperm(rows.samples, generator=generator)
    known, new = order[: rows.samples // 2], order[rows.samples // 2 :][:_MOST]
    if not job.targets.is_floating_point():  # a negative label says that a sample is ignored
        known = known[(job.targets[known] >= 0).reshape(len(known), -1).all(1)]
    if not len(known):
        raise NotApplicable("every known sample is ignored by its label")
    classes = plain_answers.shape[1]
    plain, sent = (features_of(x[known], rows.feature) for x in (job.inputs, job.view.inputs))
    before, after = (target_rows(t[known], classes) for t in (job.targets, job.view.targets))

    def answers(seen: Tensor) -> Tensor:
        _, a = fitted(plain, seen, rows.precision)
        u = least_squares(before, after)
        return used(job.model, job.view.state_dict, mixed(job.inputs[new], rows.feature, a), u)

    started = process_time()
    found = answers(sent)
    seconds = process_time() - started
    other = SignedPermutation(rows.size).sample(generator, dtype=torch.float64)
    assert other.order is not None and other.diagonal is not None
    wrong = answers(sent[:, other.order] * other.diagonal)
    value, control = (float(row_errors(plain_answers[new], y).median()) for y in (found, wrong))
    return Attempt(
        attack="the parameters that were sent, on plain inputs",
        claim="model",
        needs=f"{len(known)} plain samples with their targets, and what was sent of them",
        measure="median relative error of answers to other inputs",
        value=value,
        control=control,
        control_is="as many pairs of another key",
        succeeded=value <= _USED,
        control_failed=control > _USED,
        seconds=seconds,
        says=f"The parameters compute on plain inputs, with answers that are {value:.1e} off."
        if value <= _USED else "This does not turn the parameters into a usable model.",
    )  # fmt: skip


def attempt_in_another_session(job: Job) -> Attempt:
    """Use the parameters of one session on the inputs of another, which sent the same samples.

    Samples come in another order there; half of them give B, and the others are asked. It succeeds
    where the median relative error of answers is at most 0.01. Control: the parameters as they are.

    Raises:
        NotApplicable: the job has no second session, too few samples, or answers are no rows.
    """
    if job.second is None:
        raise NotApplicable("the job has no second session")
    rows = _samples(job)
    _answers(job)
    generator = torch.Generator().manual_seed(job.seed)
    order = torch.randperm(rows.samples, generator=generator)
    here, there = job.view.inputs, job.seen_with(job.second).inputs[order]
    started = process_time()
    ours, theirs = (features_of(x, rows.feature) for x in (here, there))
    one, other = same_samples(ours, theirs)
    pairs = torch.randperm(len(one), generator=generator)[: len(one) // 2]
    b = least_squares(theirs[other[pairs]], ours[one[pairs]], rows.precision)
    asked = torch.arange(rows.samples)[-min(_MOST, rows.samples) :]
    found = used(job.model, job.view.state_dict, mixed(there[asked], rows.feature, b))
    seconds = process_time() - started
    right = used(job.model, job.view.state_dict, here[order[asked]])
    as_they_are = used(job.model, job.view.state_dict, there[asked])
    value, control = (float(row_errors(right, y).median()) for y in (found, as_they_are))
    return Attempt(
        attack="the parameters of one session, on the inputs of another",
        claim="non-transferability",
        needs="what two sessions sent of the same samples, in any order",
        measure="median relative error of answers",
        value=value,
        control=control,
        control_is="the parameters as they are, on the inputs of the other session",
        succeeded=value <= _USED,
        control_failed=control > _USED,
        seconds=seconds,
        says=f"Cached parameters serve another session, with answers that are {value:.1e} off."
        if value <= _USED else "This does not carry parameters into another session.",
    )  # fmt: skip


def _samples(job: Job) -> Rows:
    rows = rows_of(job)
    if rows.plain.shape[0] < 4 * rows.size:
        raise NotApplicable(
            f"there are {rows.plain.shape[0]} rows, and this needs four times {rows.size}, its "
            "number of features"
        )
    return rows


def _answers(job: Job) -> Tensor:
    """What the plain model answers; `NotApplicable` unless that is one row for each sample."""
    with preserved(job.model, False), torch.no_grad():
        answers = functional_call(job.model, dict(job.model.state_dict()), (job.inputs,))
    if (
        not isinstance(answers, Tensor)
        or answers.dim() != 2
        or answers.shape[:1] != job.inputs.shape[:1]
    ):
        raise NotApplicable("the model does not answer with one row of outputs for each sample")
    if not 0 < (size := float(answers.double().norm())) < torch.inf:
        raise NotApplicable(f"the answers have the norm {size:g}, and nothing is relative to that")
    return answers.double()
