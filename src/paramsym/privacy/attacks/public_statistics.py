"""Signed orders of features, from the statistics of public data of the same kind.

An optimiser that steps entry by entry leaves a key nothing but signed orders of the inputs,
x̃[i] = s_i x[o_i], and these carry every statistic of a feature over unchanged. Whoever has other
samples of the same kind compares, feature by feature and standardised on each side,

    marginals       the distance between quantile functions, ∫ (q_j(t) − s q̃_i(t))² dt
    correlations    E z_i z_j, which knows its neighbours
    co-skewness     E (z_i² − 1) z_j, which is odd in j alone and so tells signs

and the best signed order is a quadratic assignment (`quadratic_matching`). No parameter and no
known pair is needed, only the data that were sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor

from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.chance import FEWEST, beyond_chance
from paramsym.privacy.attacks.features import map_on_input, public_rows, rows_of
from paramsym.privacy.attacks.quadratic_matching import (
    PairStatistics,
    SignedOrder,
    assigned,
    matched,
)
from paramsym.privacy.job import Job

_LEVELS = 100  # at which quantile functions are compared
_OUTLYING = 4.0  # standard deviations past which a value counts as so many: features that are
# nearly constant have a few huge ones, and their third moments would be noise
_WEIGHT = 0.3  # of marginals beside correlations; a tenth of it and ten times it do as well


@dataclass(frozen=True)
class RightPlaces:
    """How much of a signed order was found, among the features that vary.

    Attributes:
        places: the share of features that were given their true place.
        signs: the share whose sign is right, wherever they were put.
        varying: how many features vary.
    """

    places: float
    signs: float
    varying: int


def marginal_costs(public: Tensor, secret: Tensor) -> Tensor:
    """How far the distribution of feature i of the secret data is from ± feature j of the public.

    Args:
        public, secret: of shape (samples, n), of any two numbers of samples.

    Returns:
        Squared distances of standardised quantile functions (Wasserstein), of shape (2, n, n): with
        the sign as it is, and negated.

    Raises:
        ValueError: they have no common n, or no samples.
    """
    _require_alike(public, secret)
    known, sent = (_quantiles(_standardised(x)) for x in (public, secret))
    turned = -sent.flip(-1)  # the quantile function of −z̃
    return torch.stack([torch.cdist(side, known).square() / _LEVELS for side in (sent, turned)])


def matched_by_marginals(public: Tensor, secret: Tensor) -> SignedOrder:
    """The signed order under which single features look most alike; see `marginal_costs`.

    Returns:
        The A with secret ≈ A · public, sample by sample in distribution: the estimate of the key.
    """
    return assigned(marginal_costs(public, secret))


def matched_by_correlations(
    public: Tensor, secret: Tensor, generator: torch.Generator, restarts: int = 200
) -> SignedOrder:
    """The signed order under which single features and pairs of them look most alike.

    Args:
        public, secret: of shape (samples, n), of any two numbers of samples.
        generator: draws where the search starts again.
        restarts: how often it does; each costs a few linear assignments of n units.

    Returns:
        The A with secret ≈ A · public, sample by sample in distribution: the estimate of the key.

    Raises:
        ValueError: as `marginal_costs`.
    """
    costs = _WEIGHT * marginal_costs(public, secret)
    return matched(costs, pair_statistics(public, secret), generator, restarts).found


def pair_statistics(public: Tensor, secret: Tensor) -> list[PairStatistics]:
    """Correlations and co-skewness of both sides."""
    one, other = (_standardised(x) for x in (public, secret))
    return [
        PairStatistics(one.T @ one / len(one), other.T @ other / len(other)),
        PairStatistics(_co_skewness(one), _co_skewness(other), odd=(False, True)),
    ]


def right_places(found: SignedOrder, true: SignedOrder, secret: Tensor) -> RightPlaces:
    """Score a signed order against the true one.

    Args:
        found, true: of n features.
        secret: the data that were sent, of shape (samples, n), which say what varies.
    """
    varies = secret.std(0) > 0
    count = max(1, int(varies.sum()))
    at_home = (found.order == true.order) & varies
    signed = (found.signs == true.signs) & varies
    return RightPlaces(int(at_home.sum()) / count, int(signed.sum()) / count, int(varies.sum()))


def shuffled_within_samples(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Each sample with its features in an order of its own: the same numbers, no feature known.

    All features are then alike in distribution, so that nothing tells one from another: the control
    of every attack that reads statistics of public data.
    """
    noise = torch.rand(inputs.shape, generator=generator)
    return inputs.gather(-1, noise.argsort(-1))


def _standardised(x: Tensor) -> Tensor:
    """Mean zero and variance one by feature; a feature that does not vary is zero."""
    x = x.detach().double()
    x = x - x.mean(0)
    spread = x.square().mean(0).sqrt()
    return x / spread.where(spread > 0, spread.new_ones(()))


def _quantiles(z: Tensor) -> Tensor:
    """Quantile functions of features, of shape (n, levels)."""
    levels = (torch.arange(_LEVELS, dtype=z.dtype) + 0.5) / _LEVELS
    return torch.quantile(z, levels, dim=0).T.contiguous()


def _co_skewness(z: Tensor) -> Tensor:
    """E (z_i² − E z_i²) z_j of bounded z, of shape (n, n)."""
    z = z.clamp(-_OUTLYING, _OUTLYING)
    squares = z.square()
    return (squares - squares.mean(0)).T @ z / len(z)


def _require_alike(public: Tensor, secret: Tensor) -> None:
    shapes = [tuple(x.shape) for x in (public, secret)]
    if any(len(shape) != 2 or not shape[0] for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"marginal_costs(public, secret): shapes {shapes[0]} and {shapes[1]} came, and "
            "(samples, n) with one n and at least one sample were expected on both sides. Flatten "
            "positions into samples, and take public data with the same features."
        )


# -- the attempt -----------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Put the features of the job's inputs back in order, from `job.public`.

    It succeeds where more features find their places than a random order would put there but once
    in a thousand times.

    Raises:
        NotApplicable: no public inputs, no freed input of real numbers, a key that mixes features,
            or too few features to tell the attack from luck.
    """
    if job.public is None:
        raise NotApplicable("public inputs of the same kind are needed")
    key, rows = job.key, rows_of(job)
    params = job.model.state_dict()
    true = signed_order_of(map_on_input(key.acting, key.element, job.inputs.dim(), params))
    if true is None:
        raise NotApplicable("the key mixes features, so that none of them is any one of the others")
    public, sent = public_rows(job, rows), rows.sent
    varying = right_places(true, true, sent).varying
    if varying < FEWEST:
        raise NotApplicable(f"{varying} features vary, and with fewer than {FEWEST} luck does it")
    generator = torch.Generator().manual_seed(job.seed)
    began = process_time()
    found = right_places(matched_by_correlations(public, sent, generator), true, sent)
    seconds = process_time() - began
    alone = right_places(matched_by_marginals(public, sent), true, sent)
    strange = shuffled_within_samples(public, generator)
    control = right_places(matched_by_correlations(strange, sent, generator), true, sent)
    succeeded = beyond_chance(found.places, varying)
    return Attempt(
        attack="the order of features from public data of the same kind",
        claim="data",
        needs="what was sent, and other data of the same kind",
        measure="share of features in their true place",
        value=found.places,
        control=control.places,
        control_is="the same public data with each sample's features shuffled",
        succeeded=succeeded,
        control_failed=not beyond_chance(control.places, varying),
        seconds=seconds,
        says=(
            f"{found.places:.0%} of {varying} features are put back in their places and "
            f"{found.signs:.0%} get their signs ({alone.places:.0%} by their distributions alone)"
            + ("." if succeeded else ", which is no more than luck.")
        ),
    )


def signed_order_of(matrix: Tensor) -> SignedOrder | None:
    """The order and signs of a matrix with one entry in each row and column; None for others."""
    entries = matrix != 0
    if not bool((entries.sum(0) == 1).all() and (entries.sum(1) == 1).all()):
        return None
    order = matrix.abs().argmax(1)
    return SignedOrder(order, matrix.gather(1, order[:, None])[:, 0].sign().double())
