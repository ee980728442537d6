"""Moves of a hidden hyperplane: the continuous translation and the discrete reflections.

A unit j of one layer is hidden if no reader fires on its hyperplane. Then every reader sees it only
where it is positive, relu(w·relu(z_j) - q) = relu(w·z_j - q) for q >= 0, and it acts linearly.
"""

from __future__ import annotations

from typing import Any

from paramsym.relu.arithmetic import fmpq
from paramsym.relu.moves.tables import MoveError, check_unit, closed, opened
from paramsym.relu.network import Network
from paramsym.relu.rationals import rational


def live_readers(net: Network, layer: int) -> list[int]:
    """Units of the next layer that can fire and are read: those that a move must respect.

    A reader with no positive weight and no positive bias never fires, whatever it reads.
    """
    if layer == net.depth:
        return list(range(net.widths[layer + 1]))
    weight, bias = net.exact[layer]
    out = net.exact[layer + 1].weight.transpose().tolist()
    return [
        i
        for i, (row, t) in enumerate(zip(weight.tolist(), bias, strict=True))
        if (t > 0 or any(x > 0 for x in row)) and any(out[i])
    ]


def translation_bound(net: Any, layer: int, unit: int) -> fmpq | None:
    """t_min of the translation of a hidden unit; None if the unit is not hidden.

    Needs, for every live reader i with W_ij != 0: W_ij > 0, W_ik <= 0 for k != j, b_i <= 0. Then
    the bias b_j may change by any t >= t_min = max_i b_i / W_ij (<= 0).
    """
    network, _, b, v, e = opened(net, layer, "translate")
    check_unit(network, layer, unit, "translate")
    bounds = []
    for i in live_readers(network, layer):
        row, t = v[i], e[i]
        if not row[unit]:
            continue
        if row[unit] < 0 or t > 0 or any(x > 0 for k, x in enumerate(row) if k != unit):
            return None
        bounds.append(t / row[unit])
    if layer == network.depth or not bounds:
        return None
    return max(bounds)


def translate(net: Any, layer: int, unit: int, amount: Any) -> Network:
    """T_j: b_j += t for a hidden unit j, and the biases of its readers against it.

    Valid for t >= t_min (`translation_bound`): relu(w·relu(z) - q) = relu(w·z - q) for q >= 0, so
    the unit acts linearly. Below t_min the function changes.
    """
    network, w, b, v, e = opened(net, layer, "translate")
    bound = translation_bound(network, layer, unit)
    t = rational(amount)
    if bound is None:
        raise MoveError(
            f"unit {unit} of layer {layer}",
            "a hidden unit: every reader i has W_ij > 0, W_ik <= 0 for k != j and b_i <= 0",
            "relu.moves.translate",
            "A visible hyperplane cannot move.",
        )
    if t < bound:
        raise MoveError(
            f"t = {t}", f"t >= t_min = {bound}", "relu.moves.translate",
            "Beyond the end of the half-line the function changes.",
        )  # fmt: skip
    b[unit] += t
    for i in live_readers(network, layer):
        e[i] -= t * v[i][unit]
    return closed(network, layer, w, b, v, e)


def reflection_ratio(net: Any, layer: int, unit: int, other: int) -> fmpq | None:
    """γ with column `other` = -γ·column `unit` of the readers, `unit` being hidden; else None."""
    network, _, b, v, e = opened(net, layer, "reflect")
    if unit == other or translation_bound(network, layer, unit) is None:
        return None
    ratio: fmpq | None = None
    live = [v[i] for i in live_readers(network, layer)]
    for row in live:
        if row[unit]:
            here = -row[other] / row[unit]
            if ratio is not None and here != ratio:
                return None
            ratio = here
    if ratio is None or any(row[other] and not row[unit] for row in live):
        return None
    return ratio


def reflect(net: Any, layer: int, unit: int, other: int) -> Network:
    """G_jk: z_k ↦ -z_k and z_j ↦ z_j - γ z_k where column k of the readers is -γ times column j.

    j = `unit` must be hidden; then p = w_j(z_j - γ relu(z_k)) and relu(z_k) = z_k + relu(-z_k).
    """
    network, w, b, v, e = opened(net, layer, "reflect")
    check_unit(network, layer, unit, "reflect")
    check_unit(network, layer, other, "reflect")
    ratio = reflection_ratio(network, layer, unit, other)
    if ratio is None:
        raise MoveError(
            f"units {unit} and {other} of layer {layer}",
            f"unit {unit} hidden and column {other} a non-positive multiple of column {unit}",
            "relu.moves.reflect",
            "With two readers of different ratio the reflection changes the function.",
        )
    w[unit] = [x - ratio * y for x, y in zip(w[unit], w[other], strict=True)]
    b[unit] -= ratio * b[other]
    w[other] = [-x for x in w[other]]
    b[other] = -b[other]
    return closed(network, layer, w, b, v, e)
