"""Two sessions of one model, told by whoever is sent both: what no key changes links them.

Section IV has the model owner send g·θ with fresh hidden orders, scales and masks in every session,
and argues that this prevents linkage. But g·θ lies on the orbit of θ, and computes what θ computes:

    structure    invariants of the orbit (`fingerprint`) agree in all sessions, and `align` finds
                 the element between two of them. Inputs may move as well: what reads them is
                 left out, and all else tells.
    function     f(z; g·θ) = f(z; θ) for any z, where inputs and outputs stay: no structure is
                 needed at all. Where A moves the inputs, f(0; g·θ) = g·f(0; θ) still, for A 0 = 0.
    data         where nothing of the parameters is common (training from a new initialisation),
                 x̃ = A x spans what x spans: the leverage of each sample,
                 hᵢ = xᵢᵀ (Σ xⱼ xⱼᵀ)⁻¹ xᵢ, is changed by no A.

Polarity masks are part of what is sent, and signs of units change no invariant above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import process_time

import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramsym.algebra import AbstractMonomial
from paramsym.algebra.linear import AbstractRotation
from paramsym.geometry.alignment import align
from paramsym.geometry.fingerprints import Fingerprint, fingerprint
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.strangers import shuffled
from paramsym.privacy.attacks.untouched import untouched
from paramsym.privacy.job import Job
from paramsym.privacy.keys.key import Key
from paramsym.recording.outputs import named_outputs
from paramsym.recording.running import preserved
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
_LINKED, _APART = 1e-3, 1e-2  # of the distance to a stranger; at least, to be one
_QUERIES = 64


def session_fingerprint(symmetry: ParameterSymmetry, sent: Params) -> Fingerprint:
    """What no key changes of the parameters of a session.

    Args:
        symmetry: with what is freed; tensors that a basis of the inputs moves are left out.
        sent: the complete state dict, as it came.
    """
    left = untouched(symmetry)
    return fingerprint(left.symmetry, left.part(left.at_rest(sent)), control=False)


def matched_distance(symmetry: ParameterSymmetry, first: Params, second: Params) -> float:
    """How far two sessions stay apart when the one is brought next to the other, 0 for one model.

    Slower than fingerprints, and complete: it is zero for no two orbits.
    """
    left = untouched(symmetry)
    one, other = (left.part(left.at_rest(side)) for side in (first, second))
    return align(left.symmetry, one, other).distance


def answers_apart(
    model: nn.Module,
    first: Params,
    second: Params,
    queries: Tensor,
    invariant: Callable[[Tensor], Tensor] = lambda y: y,
) -> float:
    """The relative difference of what two sets of parameters answer: 0 for one function.

    Args:
        model: the architecture, whose own parameters are not read; it is evaluated.
        first, second: complete state dicts.
        queries: inputs.
        invariant: what is compared of the answers.

    Raises:
        NotApplicable: both answer zeros.
    """
    with preserved(model, False), torch.no_grad():
        returned = [functional_call(model, dict(each), (queries,)) for each in (first, second)]
    y, other = (invariant(next(iter(dict(named_outputs(made)).values()))) for made in returned)
    size = max(float(y.norm()), float(other.norm()))
    if size == 0:
        raise NotApplicable("all answers are zero, for the network has no biases")
    return float((y - other).norm()) / size


def leverages(inputs: Tensor, axis: int = -1) -> Tensor:
    """hᵢ = xᵢᵀ (Σ xⱼ xⱼᵀ)⁺ xᵢ of every vector along an axis, in order of size.

    No linear map of the axis changes them, nor another order of the samples.
    """
    rows = inputs.detach().double().movedim(axis, -1).flatten(0, -2)
    u, values, _ = torch.linalg.svd(rows, full_matrices=False)
    kept = values > 1e-9 * values.amax()
    return u[:, kept].square().sum(-1).sort().values


def relative(x: Tensor, y: Tensor) -> float:
    """‖x − y‖ / max(‖x‖, ‖y‖)."""
    return float((x - y).norm()) / (max(float(x.norm()), float(y.norm())) or 1.0)


def linking_rate(distances: Tensor, models: Sequence[int]) -> float:
    """The share of sessions whose nearest other session is one of the same model.

    Args:
        distances: between sessions, (sessions, sessions).
        models: the number of the model of each session.
    """
    apart = distances.clone()
    apart.fill_diagonal_(torch.inf)
    nearest = apart.argmin(-1)
    owners = torch.as_tensor(models)
    return float((owners[nearest] == owners).double().mean())


# -- against a job ---------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Two sessions linked by invariants of the orbit.

    It succeeds if they are a thousand times nearer to each other than to the control: the same
    parameters with the entries of each tensor in another order, in a session of their own. The
    control is one if it is at least 1 % away; of a network with one hidden layer without biases
    these invariants say nothing, and `attempt_by_matching` tells.

    Raises:
        NotApplicable: the job has no second session.
    """
    return _by_parameters(
        job,
        lambda symmetry, one, other: session_fingerprint(symmetry, one).distance(
            session_fingerprint(symmetry, other)
        ),
        "two sessions linked by invariants of the orbit",
        "relative distance of fingerprints",
        "Fresh keys and masks do not part sessions of one model.",
    )


def attempt_by_matching(job: Job) -> Attempt:
    """Two sessions linked by the element that carries the one to the other; see `attempt`.

    Raises:
        NotApplicable: the job has no second session.
    """
    return _by_parameters(
        job,
        matched_distance,
        "two sessions linked by matching their parameters",
        "distance that is left after matching",
        "One session is an element of the group away from the other, and that element is found.",
    )


def _by_parameters(
    job: Job,
    distance: Callable[[ParameterSymmetry, Mapping[str, Tensor], Mapping[str, Tensor]], float],
    attack: str,
    measure: str,
    says: str,
) -> Attempt:
    """Two sessions linked by a distance of the parameters that they were sent."""
    second = _second(job)
    symmetry = _common(job.key, second)
    sent, again = job.view.state_dict, job.seen_with(second).state_dict
    start = process_time()
    value = distance(symmetry, sent, again)
    seconds = process_time() - start
    control = distance(symmetry, sent, _stranger(job, second))
    needs = "the architecture, and the parameters that two sessions were sent"
    return _told(attack, needs, measure, (value, control, seconds), says)


def attempt_by_answers(job: Job) -> Attempt:
    """Two sessions linked by what the parameters of step 1 answer to random inputs; see `attempt`.

    Those of step 1 are moved by hidden spaces alone: A comes into play with the data.

    Raises:
        NotApplicable: the job has no second session, or takes no numbers.
    """
    second = _second(job)
    _require_numbers(job)
    own = job.model.state_dict()
    step = [act(key.acting, _hidden_part(key), own) for key in (job.key, second)]
    strange = act(second.acting, _hidden_part(second), shuffled(own, job.seed))
    generator = torch.Generator().manual_seed(job.seed)
    shape = (_QUERIES, *job.inputs.shape[1:])
    queries = torch.randn(shape, generator=generator, dtype=job.inputs.dtype)
    queries = queries.to(job.inputs.device)
    start = process_time()
    value = answers_apart(job.model, step[0], step[1], queries)
    seconds = process_time() - start
    control = answers_apart(job.model, step[0], strange, queries)
    return _told(
        "two sessions linked by their answers to random inputs",
        "the parameters that two sessions were sent in step 1 of section IV",
        "relative difference of answers",
        (value, control, seconds),
        "What is sent computes the same function in every session, which no structure need be "
        "known to see.",
    )


def attempt_at_zero(job: Job) -> Attempt:
    """Two sessions, inputs and outputs moved, linked by their answers to zero; see `attempt`.

    Raises:
        NotApplicable: the job has no second session, takes no numbers, scales or mixes its outputs
            without keeping lengths, or answers zeros.
    """
    second = _second(job)
    _require_numbers(job)
    invariant = _invariant_of(second)
    sent, again = job.view.state_dict, job.seen_with(second).state_dict
    zero = torch.zeros_like(job.inputs[:1])
    start = process_time()
    value = answers_apart(job.model, sent, again, zero, invariant)
    seconds = process_time() - start
    control = answers_apart(job.model, sent, _stranger(job, second, spread=0.3), zero, invariant)
    return _told(
        "two sessions linked by their answers to the zero input",
        "the parameters that two sessions were sent",
        "relative difference of answers",
        (value, control, seconds),
        "Every A takes zero to zero, so that the answer to it is the same in every session.",
        "parameters in another order, each of them off by a third",
    )


def attempt_by_data(job: Job) -> Attempt:
    """Two sessions linked by the leverages of their samples; see `attempt`.

    The control are inputs of the same kind, or those of the job with the entries of each feature
    in another order.

    Raises:
        NotApplicable: the job has no second session, no input is moved by a linear map, or there
            are too few samples for leverages to say anything.
    """
    second = _second(job)
    _require_numbers(job)
    feature = next(iter(second.acting.inputs.values()), None)
    if feature is None:
        raise NotApplicable("no input is moved, so that the data are the same in every session")
    axis = feature.axis
    x, other = job.view.inputs, job.seen_with(second).inputs
    start = process_time()
    one = leverages(x, axis)
    value = relative(one, leverages(other, axis))
    seconds = process_time() - start
    if float(one.max() - one.min()) < _APART:
        raise NotApplicable(f"there are {len(one)} samples, of which all are independent")
    control = relative(one, leverages(_other_inputs(job), axis))
    return _told(
        "two sessions linked by the leverages of their samples",
        "the inputs that two sessions were sent",
        "relative difference of leverages",
        (value, control, seconds),
        "The same data are known again under any A, whatever the parameters.",
        "other inputs of the same kind" if _has_public(job) else "each feature in another order",
    )


def _told(
    attack: str,
    needs: str,
    measure: str,
    numbers: tuple[float, float, float],
    says: str,
    control_is: str = "parameters of the same shapes and entries in another order",
) -> Attempt:
    value, control, seconds = numbers
    linked = value <= _LINKED * control
    return Attempt(
        attack,
        "linkage",
        needs,
        measure,
        value,
        control,
        control_is,
        linked,
        control >= _APART,
        seconds,
        says if linked else "This does not link the two sessions.",
    )


def _second(job: Job) -> Key:
    if job.second is None:
        raise NotApplicable("the job has no second session: Job(second=Key.generate(…))")
    return job.second


def _common(first: Key, second: Key) -> ParameterSymmetry:
    """A symmetry that holds the keys of both sessions."""
    return second.acting if first.acting == second.acting else second.symmetry


def _require_numbers(job: Job) -> None:
    if not job.inputs.is_floating_point():
        raise NotApplicable("the inputs are tokens, which no linear map moves")


def _stranger(job: Job, key: Key, spread: float = 0.0) -> dict[str, Tensor]:
    """What a session with another model of the same shapes is sent."""
    return act(key.acting, key.element, shuffled(job.model.state_dict(), job.seed, spread))


def _hidden_part(key: Key) -> GroupElement:
    """A key without what moves inputs and outputs."""
    ends = key.acting.ends
    parts = tuple(
        part if isinstance(part, Slide) else {n: v for n, v in part.items() if n not in ends}
        for part in key.element.parts
    )
    return GroupElement(key.element.symmetry, parts)


def _invariant_of(key: Key) -> Callable[[Tensor], Tensor]:
    """What a key leaves of an answer: all of it, lengths, or entries up to order and sign."""
    carried = {s for f in key.acting.outputs.values() for s in f.spaces}
    groups = [key.acting.spaces[name].group for name in carried]
    if not groups:
        return lambda y: y
    if any(isinstance(g, AbstractMonomial) and g.scales for g in groups):
        raise NotApplicable("the key scales the outputs")
    if all(isinstance(g, AbstractMonomial) for g in groups):
        return lambda y: y.abs().reshape(-1).sort().values
    if all(isinstance(g, AbstractRotation) for g in groups):
        return lambda y: y.norm().reshape(1)
    raise NotApplicable("the key mixes the outputs without keeping lengths")


def _has_public(job: Job) -> bool:
    public, own = job.public, job.inputs
    if public is None or len(public) < len(own) or public.shape[1:] != own.shape[1:]:
        return False
    return public.is_floating_point() and bool(public[: len(own)].isfinite().all())


def _other_inputs(job: Job) -> Tensor:
    """As many inputs of other samples."""
    if job.public is not None and _has_public(job):
        return job.public[: len(job.inputs)]
    generator = torch.Generator().manual_seed(job.seed)
    flat = job.inputs.flatten(1)
    order = torch.rand(flat.shape, generator=generator).argsort(0).to(flat.device)
    return flat.gather(0, order).view_as(job.inputs)
