"""Why no point of an orbit has given conserved quantities: three kinds of proof.

**One quantity twice.** Where Σ c_k X_k vanishes at all parameters, Σ c_k Q_k is a constant.

**Scales.** Quantities of scales are Q_k = Σ_e p_ke w_e² + const, over the entries w_e of the
parameters, which the scales of logarithms y multiply by exp(Σ y_k p_ke). By Motzkin's theorem of
the alternative either Q* is reached, or some combination c of log-scales has p_e·c ≤ 0 at every
entry that is not zero, and ⟨Q*, c⟩ ≥ 0, not both zero: then Σ c_k Q_k is negative all along the
orbit (zero at most in a limit), and ⟨Q*, c⟩ is not. Two linear programs find c; it is rounded to
fractions, and checked as such.

**Bases.** With X what carries a space and Y what carries its dual, Q = X Xᵀ − Yᵀ Y, and all moves
keep the ranks of X, Y and Y X. On im X ∩ ker Y the form Q is positive, on im Yᵀ ∩ ker Xᵀ negative:

    rank X − rank Y X ≤ positive eigenvalues ≤ rank X,
    rank Y − rank Y X ≤ negative eigenvalues ≤ rank Y.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from paramsym.algebra import AbstractMonomial, GeneralLinear
from paramsym.structure.gram import gram
from paramsym.structure.origin import added
from paramsym.structure.pairing import rows
from paramsym.structure.rank import find_gap
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import as_real

from .conserved import ConservedQuantities, Params
from .targets import is_matrix

_DENSE = 1 << 24  # numbers of the largest matrix of fields that is formed
_POWERS = 5040  # powers and combinations are multiples of 1/5040
_ROUNDING = 1e-9
_SMALL = 1e-12  # of the quantities: what is no larger counts as zero
_NAMED = 4  # units that a message names


def obstruction(laws: ConservedQuantities, params: Params, aim: Tensor, slack: float) -> str:
    """Why no point of the orbit has these quantities; empty where that is not proved.

    Args:
        laws: the quantities.
        params: a point of the orbit, in float64.
        aim: the values asked for, (quantities,).
        slack: by how much they have to be missed at least.
    """
    if why := _by_ranks(laws, params, aim, slack):
        return why
    entries = sum(params[n].numel() for n in laws.operator.names)
    if laws.basis.generators * entries > _DENSE:
        return ""
    return _twice(laws, params, aim, slack) or _by_scales(laws, params, aim, slack)


# -- fields at other points --------------------------------------------------------------------


def _trained(laws: ConservedQuantities) -> list[str]:
    return [n for n in laws.operator.names if n not in laws.symmetry.buffers]


def _elsewhere(laws: ConservedQuantities, params: Params, seed: int) -> dict[str, Tensor]:
    """What is added to the parameters to be at a generic point; between one and two."""
    generator = torch.Generator().manual_seed(seed)
    return {
        n: 1 + torch.rand(params[n].shape, generator=generator, dtype=torch.float64).to(params[n])
        for n in _trained(laws)
    }


def _fields(laws: ConservedQuantities, params: Params, step: dict[str, Tensor]) -> Tensor:
    """The fields of all quantities, (quantities, real entries), at moved parameters."""
    operator = laws.tangent({**params, **{n: params[n] + x for n, x in step.items()}})
    columns = [operator.columns[n] for n in _trained(laws)]
    places = [torch.arange(c.start, c.stop) for c in columns]
    return operator.dense()[:, torch.cat([torch.zeros(0, dtype=torch.long), *places])]


# -- one quantity twice ------------------------------------------------------------------------


def _twice(laws: ConservedQuantities, params: Params, aim: Tensor, slack: float) -> str:
    first, second, third = (
        _fields(laws, params, _elsewhere(laws, params, seed)) for seed in range(3)
    )
    fields = torch.cat([first, second], 1)
    if not fields.numel():
        return ""
    left, values, _ = torch.linalg.svd(fields, full_matrices=fields.shape[0] > fields.shape[1])
    small = torch.ones(left.shape[1], dtype=torch.bool)
    small[: len(values)] = values <= _ROUNDING * values[0]
    null = left[:, small]
    null = null[:, torch.linalg.vector_norm(third.T @ null, dim=0) <= _ROUNDING * values[0]]
    wrong = null.T @ (aim - laws.quantities(params))
    if not len(wrong) or float(wrong.abs().max()) <= slack:
        return ""
    combination = null @ wrong
    combination = combination / combination.abs().max()
    now, asked = (float(combination @ q) for q in (laws.quantities(params), aim))
    return (
        f"{_text(laws, combination)} is {now:.6g} at every parameter of this orbit, for these "
        f"families say the same twice; {asked:.6g} was asked for"
    )


# -- scales ------------------------------------------------------------------------------------


class _Scales(NamedTuple):
    """Quantities Q_k = Σ_e p_ke w_e² + const of scales.

    Attributes:
        own: the places of these quantities among all.
        firm: the distinct columns of p at entries that are not zero and only scales move, in
            multiples of 1/5040, (scales, columns).
        loose: the same at entries that other families move as well, zero or not.
        constants: the constants, (scales,).
    """

    own: Tensor
    firm: Tensor
    loose: Tensor
    constants: Tensor


def _by_scales(laws: ConservedQuantities, params: Params, aim: Tensor, slack: float) -> str:
    scales = _scales(laws, params)
    if not len(scales.own):
        return ""
    asked = aim[scales.own] - scales.constants
    size = float(asked.abs().max()) or 1.0
    found = _combination(scales, (asked / size).numpy())
    if found is None:
        return ""
    combination = torch.zeros_like(aim)
    combination[scales.own] = torch.from_numpy(found / _POWERS)
    combination = combination / combination.abs().max()
    value = float(combination[scales.own] @ asked)
    strict = bool((torch.from_numpy(found) @ scales.firm < 0).any())
    if value <= slack and not (strict and value >= -_SMALL * size):
        return ""
    bound = float(combination[scales.own] @ scales.constants)
    return (
        f"{_text(laws, combination)} is {'below' if strict else 'at most'} {bound:.6g} all along "
        "the orbit, for no parameter that is not zero grows with these scales; "
        f"{float(combination @ aim):.6g} was asked for"
    )


def _combination(scales: _Scales, asked: np.ndarray) -> np.ndarray | None:
    """c with p_e·c ≤ 0 at all entries that pairs best with what is asked, times 5040.

    Where none pairs positively, one of those that pair to zero, with p_e·c < 0 somewhere.
    """
    columns = torch.cat([scales.firm, scales.loose], 1).T.numpy()  # whole numbers
    slopes = columns.astype(float) / _POWERS
    zero = np.zeros(len(slopes))
    best = linprog(-asked, A_ub=slopes, b_ub=zero, bounds=(-1, 1))
    if best.status == 0 and -best.fun <= _ROUNDING:
        fall = scales.firm.sum(1).numpy() / _POWERS
        best = linprog(
            fall, A_ub=np.vstack([slopes, -asked]), b_ub=np.append(zero, _ROUNDING), bounds=(-1, 1)
        )
    if best.status != 0:
        return None
    rounded = np.round(best.x * _POWERS).astype(np.int64)
    return rounded if rounded.any() and (columns @ rounded <= 0).all() else None


def _scales(laws: ConservedQuantities, params: Params) -> _Scales:
    """Which quantities are sums of squares, read off their fields p_ke u_e + a_ke at three points.

    With a_ke = p_ke s_e they are sums of p_ke (u_e + s_e)², less Σ_e p_ke s_e².
    """
    names = _trained(laws)

    def flat(parts: dict[str, Tensor]) -> Tensor:
        found = [as_real(parts[n]).reshape(-1) for n in names]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *found])

    steps = [_elsewhere(laws, params, seed) for seed in (0, 1)]
    here = _fields(laws, params, {})
    one, other = (_fields(laws, params, step) - here for step in steps)
    powers = (_POWERS * one / flat(steps[0])).round()
    p = powers / _POWERS
    size = here.abs().max() + one.abs().max()
    good = ((one - p * flat(steps[0])).abs().amax(1) <= _ROUNDING * size) & (
        (other - p * flat(steps[1])).abs().amax(1) <= _ROUNDING * size
    )
    u = flat({n: added(params[n], laws.symmetry.offsets.get(n, 0.0)) for n in names})
    a = here - p * u
    p, a = torch.where(good[:, None], p, 0.0), torch.where(good[:, None], a, 0.0)
    steepest = p.abs().argmax(0, keepdim=True)
    slope = p.gather(0, steepest)[0]
    s = torch.where(slope != 0, a.gather(0, steepest)[0] / slope, 0.0)
    good &= (a - p * s).abs().amax(1) <= _ROUNDING * size
    own = good.nonzero()[:, 0]
    loose = flat({n: torch.full_like(params[n], n in _mixed(laws.symmetry)) for n in names}) > 0
    alive = (u + s).abs() > _SMALL * (u.abs() + s.abs())
    kept = powers[own].long()
    return _Scales(
        own, kept[:, alive & ~loose].unique(dim=1), kept[:, loose].unique(dim=1),
        -(p[own] * s**2).sum(1),
    )  # fmt: skip


def _mixed(symmetry: ParameterSymmetry) -> set[str]:
    """Parameters that shifts move, or spaces that mix coordinates: their zeros may fill."""
    mixing = {n for n, s in symmetry.spaces.items() if not isinstance(s.group, AbstractMonomial)}
    mixing |= {*symmetry.shift_of}
    return {n for n, movers in symmetry.movers.items() if movers & mixing}


# -- bases -------------------------------------------------------------------------------------


def _by_ranks(laws: ConservedQuantities, params: Params, aim: Tensor, slack: float) -> str:
    here = laws.values(params)
    for name, matrices in laws.shaped(aim).items():
        if matrices.ndim > 1 and is_matrix(laws, name) and _plain(laws.symmetry, name):
            covariant, dual = gram(laws.symmetry, params, name)
            if torch.allclose(here[name], covariant - dual, rtol=_ROUNDING, atol=slack):
                for why in _signatures(laws.symmetry, params, name, matrices, slack):
                    return why
    return ""


def _plain(symmetry: ParameterSymmetry, name: str) -> bool:
    """Whether a space changes bases freely, of parameters alone, in no frame."""
    held = {*symmetry.buffers} & {*symmetry.parameters_of(name)}
    framed = any(leg.frame for leg in symmetry.legs(name))
    return isinstance(symmetry.spaces[name].group, GeneralLinear) and not held and not framed


def _signatures(
    symmetry: ParameterSymmetry, params: Params, name: str, matrices: Tensor, slack: float
) -> Iterator[str]:
    """What the eigenvalues of asked matrices contradict, copy by copy.

    What a shift moves may become anything: it counts with as many columns as it has.
    """
    moved = {n for shift in symmetry.shifts for n in shift.parameters}
    moved &= {*symmetry.parameters_of(name)}
    still = {
        n: added(torch.zeros_like(p), -symmetry.offsets.get(n, 0.0)) if n in moved else p
        for n, p in params.items()
    }
    covariant, dual = gram(symmetry, still, name)
    more, less = (_columns(symmetry, params, name, moved, is_dual) for is_dual in (False, True))
    for copy in product(*map(range, matrices.shape[:-2])):
        g, h = covariant[copy], dual[copy]
        values, zero = torch.linalg.eigvalsh(matrices[copy]), _SMALL * float(g.trace() + h.trace())
        both = _rank(h @ g)
        label = f"{name}[{', '.join(map(str, copy))}]" if copy else name
        sides = (
            ("positive", values, _rank(g), more, less),
            ("negative", -values, _rank(h), less, more),
        )
        for sign, signed, rank, own, other in sides:
            asked, least = int((signed > slack).sum()), rank - both - other
            if asked > rank + own:
                yield (
                    f"{label}: at most {rank + own} {sign} eigenvalues occur on the orbit, the "
                    f"rank of what makes them, and {asked} were asked for"
                )
            if int((signed > zero).sum()) < least:
                yield (
                    f"{label}: at least {least} {sign} eigenvalues occur on the orbit, for what "
                    f"makes them has {least} directions that the other side does not meet, and "
                    f"{asked} were asked for"
                )


def _columns(
    symmetry: ParameterSymmetry, params: Params, name: str, moved: set[str], is_dual: bool
) -> int:
    """How many vectors of a space, or of its dual, some parameters hold in each copy."""
    return sum(
        rows(block.view(params[n]), leg).shape[-1]
        for n in moved
        if n in params and n not in symmetry.ties
        for block in symmetry.blocks[n]
        for leg in block.legs
        if leg.space == name and leg.is_dual == is_dual
    )


def _rank(matrix: Tensor) -> int:
    """Of a Gram matrix, whose singular values are squares, or a product of two."""
    return find_gap(torch.linalg.svdvals(matrix), 1e-11).rank


# -- names -------------------------------------------------------------------------------------


def _text(laws: ConservedQuantities, combination: Tensor) -> str:
    """Σ c_k Q_k, with the names of families and units: 'mlp[3] − mlp[5]'."""
    parts = []
    units = laws.shaped(torch.ones_like(combination))
    for name, found in laws.shaped(combination).items():
        found = found / units[name].square()  # Σ c Q in the units of what is shown
        found = found.triu() if found.ndim > 1 and is_matrix(laws, name) else found
        for place in product(*map(range, found.shape)):
            if abs(c := float(found[place])) > _ROUNDING:
                unit = f"[{', '.join(map(str, place))}]" if place else ""
                factor = "" if abs(abs(c) - 1) < _ROUNDING else f"{abs(c):.4g}·"
                parts.append(f"{'−' if c < 0 else '+'} {factor}{name}{unit}")
    more = f" + {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return " ".join(parts[:_NAMED]).removeprefix("+ ") + more
