"""The scales of a key, from the learning rates that undo them.

Training retraces with positive scales D only if each entry of the parameters has a rate of its own,
lr·D² for SGD and its momentum, lr·D for Adam (with ε/D). Whoever trains is told these rates, and
divides them by the base rate: what is left is D, entry by entry and to rounding. The scales of
units follow, since log D is linear in them,

    log D[θ_k] = Σ_s J[k, s] log d_s

with J the derivative of the action. What was scaled is thus undone, θ̃/D; orders and signs are what
a key with rates still has to hide with. Rates say nothing of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, lsqr
from torch import Tensor

from paramsym.algebra import Element, PositiveScaling
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.job import Job
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import tangent

_PRECISION = 1e-15  # of the least squares
_FOUND, _UNKNOWN = 1e-6, 1e-2  # relative errors of scales: read off, and not


def scales_from_rates(rates: Mapping[str, Tensor | float], base: float, squared: bool) -> dict:
    """The entrywise factors D of the parameters.

    Args:
        rates: the learning rate of each entry, by parameter; one number where all are alike.
        base: the learning rate of plain training.
        squared: whether rates are base·D² (SGD), and not base·D (Adam).

    Returns:
        A dict of tensors of the shapes of the rates.

    Raises:
        ValueError: a rate or the base is not positive.
    """
    found = {}
    for name, rate in {**rates, "": base}.items():
        each = torch.as_tensor(rate, dtype=torch.float64)
        if not bool((each > 0).all()):
            raise ValueError(
                f"scales_from_rates(rates, base={base:g}): {name or 'the base rate'!r} is "
                f"{float(each.min()):g} somewhere, and positive rates were expected. Leave out "
                "what is not trained."
            )
        found[name] = each / base
    del found[""]
    return {name: each.sqrt() if squared else each for name, each in found.items()}


def scales_of_units(symmetry: ParameterSymmetry, factors: Mapping[str, Tensor]) -> dict:
    """The scales of the units of each space, from entrywise factors of the parameters.

    Least squares for log D = J log d; where scales of several spaces cancel in every parameter,
    those of least norm.

    Args:
        symmetry: the structure of the network; its scales alone count.
        factors: positive, by parameter, in the shapes of the parameters; those that are missing
            count as unknown, and so does an entry that is not finite or zero.

    Returns:
        Tensors of shape (*copies, n) by space, for each space that may scale.
    """
    scaling = symmetry.restrict(groups=PositiveScaling, translations=False)
    moved = {n for space in scaling.spaces for n in scaling.parameters_of(space)}
    names = [n for n in factors if n in moved]
    given = {n: factors[n].detach().double().expand(scaling.shape(n)) for n in names}
    system = _Logarithms(scaling, {n: (x > 0) & x.isfinite() for n, x in given.items()})
    if not all(system.shape):
        return {}
    logs = [x.log().where(system.known[n], torch.zeros(())).flatten() for n, x in given.items()]
    wanted = torch.cat(logs).double().numpy()
    solved = lsqr(system, wanted, atol=_PRECISION, btol=_PRECISION, conlim=0)[0]
    return {b.name: x.exp() for b, x in system.operator.split(torch.from_numpy(solved))}


class _Logarithms(LinearOperator):
    """J: logarithms of scales ↦ logarithms of factors, of the entries that are known.

    It is the velocity of parameters that are all one.
    """

    def __init__(self, scaling: ParameterSymmetry, known: Mapping[str, Tensor]) -> None:
        ones = {n: torch.ones(scaling.shape(n), dtype=torch.float64) for n in scaling.signature}
        self.operator, self.known = tangent(scaling, ones), known
        entries = sum(x.numel() for x in known.values())
        super().__init__(np.dtype(np.float64), (entries, self.operator.shape[0]))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        found = self.operator.matvec(torch.from_numpy(x.reshape(-1).copy()))
        return torch.cat([(found[n] * known).flatten() for n, known in self.known.items()]).numpy()

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(x.reshape(-1).copy()).split(
            [k.numel() for k in self.known.values()]
        )
        paired = {
            n: part.reshape(known.shape) * known
            for (n, known), part in zip(self.known.items(), parts, strict=True)
        }
        return self.operator.rmatvec(paired).numpy()


# -- the attempt -----------------------------------------------------------------------------------


def attempt(job: Job) -> Attempt:
    """Read the scales of the job's key off its learning rates.

    It succeeds where no unit is off by more than 1e-6.

    Raises:
        NotApplicable: the key needs no rates of its own, since it scales nothing.
    """
    rates = job.view.rates
    if rates is None or not rates.scales:
        raise NotApplicable("a key that scales, and so learning rates for each entry, are needed")
    base = 1e-3  # any: it is what plain training uses, and no secret
    told = {
        name: torch.as_tensor(rates.learning_rate(name, base), dtype=torch.float64)
        for name in rates.scales
    }
    began = process_time()
    found = scales_from_rates(told, base, rates.squared)
    units = scales_of_units(job.key.acting, found)
    seconds = process_time() - began
    true = {name: _sizes(job.key.element[name]) for name in units}
    value = _worst(units, true)
    control = _worst({name: torch.ones_like(x) for name, x in units.items()}, true)
    return Attempt(
        attack="the scales of the key from its learning rates",
        claim="model",
        needs="the learning rates that the trainer is told, and that of plain training",
        measure="largest relative error of the scale of a unit",
        value=value,
        control=control,
        control_is="a trainer who is told one rate for all, and takes the scales for one",
        succeeded=value <= _FOUND,
        control_failed=control > _UNKNOWN,
        seconds=seconds,
        says=(
            f"The rates are the scales: those of {len(found)} tensors and of "
            f"{sum(x.numel() for x in units.values())} units are read off and undone, and orders "
            "and signs are all that is left."
        ),
    )


def _sizes(value: Element | Tensor) -> Tensor:
    """The scales of one space of the key."""
    assert isinstance(value, Element) and value.diagonal is not None
    return value.diagonal.double().abs()


def _worst(found: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> float:
    """The largest relative error of all units."""
    apart = [(found[n].flatten() / x.flatten() - 1).abs().max() for n, x in true.items()]
    return max(map(float, apart), default=0.0)
