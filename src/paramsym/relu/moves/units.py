"""Moves of single units: order, scale, copies, units without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paramsym.relu.moves.tables import MoveError, check_unit, closed, opened
from paramsym.relu.network import Network
from paramsym.relu.rationals import ZERO, positive_ratio, rational


def permute(net: Any, layer: int, order: Sequence[int]) -> Network:
    """The units of a hidden layer in another order: new unit i is old unit order[i]."""
    network, w, b, v, e = opened(net, layer, "permute")
    if sorted(order) != list(range(len(b))):
        raise MoveError(
            f"order {list(order)}", f"a permutation of 0 to {len(b) - 1}", "relu.moves.permute",
            "List every unit once.",
        )  # fmt: skip
    return _selected(order, network, layer, w, b, v, e)


def _selected(units: Sequence[int], network, layer, w, b, v, e) -> Network:
    """The network with the listed units of a layer, in that order."""
    readers = [[row[i] for i in units] for row in v]
    return closed(network, layer, [w[i] for i in units], [b[i] for i in units], readers, e)


def scale(net: Any, layer: int, factors: Sequence[Any]) -> Network:
    """Positive factors on the units of a layer: input times s, output divided by s."""
    network, w, b, v, e = opened(net, layer, "scale")
    s = [rational(f, "relu.moves.scale(factors)") for f in factors]
    if len(s) != len(b) or any(f <= 0 for f in s):
        raise MoveError(
            f"{len(s)} factors, the least {min(s, default=ZERO)}",
            f"{len(b)} positive factors",
            "relu.moves.scale",
            "relu(s·u) = s·relu(u) holds for s > 0 only.",
        )
    return closed(
        network, layer,
        [[f * x for x in row] for f, row in zip(s, w, strict=True)],
        [f * x for f, x in zip(s, b, strict=True)],
        [[x / f for x, f in zip(row, s, strict=True)] for row in v], e,
    )  # fmt: skip


def split(net: Any, layer: int, unit: int, parts: Sequence[tuple[Any, Any]]) -> Network:
    """One unit as several copies: parts (s, p) give input s·(w, b) and output p·c/s, Σ p = 1.

    The first part takes the unit's place, the others are appended.
    """
    network, w, b, v, e = opened(net, layer, "split")
    check_unit(network, layer, unit, "split")
    pairs = [(rational(s), rational(p)) for s, p in parts]
    if not pairs or any(s <= 0 for s, _ in pairs) or sum((p for _, p in pairs), ZERO) != 1:
        raise MoveError(
            f"parts {[(str(s), str(p)) for s, p in pairs]}", "scales > 0 and shares with sum 1",
            "relu.moves.split", "For two halves use [(1, '1/2'), (1, '1/2')].",
        )  # fmt: skip
    row, t, out = w[unit], b[unit], [r[unit] for r in v]
    for index, (s, p) in enumerate(pairs):
        new_row, new_t = [s * x for x in row], s * t
        new_out = [p * c / s for c in out]
        if index == 0:
            w[unit], b[unit] = new_row, new_t
            for r, c in zip(v, new_out, strict=True):
                r[unit] = c
        else:
            w.append(new_row)
            b.append(new_t)
            for r, c in zip(v, new_out, strict=True):
                r.append(c)
    return closed(network, layer, w, b, v, e)


def merge(net: Any, layer: int, units: Sequence[int]) -> Network:
    """Several units of one direction as one: the first stays, the others go."""
    network, w, b, v, e = opened(net, layer, "merge")
    for unit in units:
        check_unit(network, layer, unit, "merge")
    if not units or len(set(units)) < len(units):
        raise MoveError(
            f"units {list(units)}", "at least one unit, and each of them once",
            "relu.moves.merge", "A copy that is named twice would be read twice.",
        )  # fmt: skip
    first, *rest = units
    for unit in rest:
        s = positive_ratio([*w[first], b[first]], [*w[unit], b[unit]])
        if s is None:
            raise MoveError(
                f"units {first} and {unit}", "rows that are positive multiples of each other",
                "relu.moves.merge", "Only copies of one unit can be merged.",
            )  # fmt: skip
        for r in v:
            r[first] += s * r[unit]
    kept = [i for i in range(len(b)) if i not in rest]
    return _selected(kept, network, layer, w, b, v, e)


def _append(network, layer, w, b, v, e, row, t, out) -> Network:
    w.append(row)
    b.append(t)
    for r, c in zip(v, out, strict=True):
        r.append(c)
    return closed(network, layer, w, b, v, e)


def insert_dead(net: Any, layer: int, row: Sequence[Any], bias: Any, out: Sequence[Any]) -> Network:
    """A unit that is never positive, read with any weights.

    In the first layer row = 0 and bias <= 0; later row <= 0 and bias <= 0, since inputs are >= 0.
    """
    network, w, b, v, e = opened(net, layer, "insert_dead")
    new = [rational(x) for x in row]
    t = rational(bias)
    if t > 0 or any(x > 0 for x in new) or (layer == 1 and any(new)):
        raise MoveError(
            f"row {[str(x) for x in new]} and bias {t}",
            "no positive entry" + (" and row 0 in the first layer" if layer == 1 else ""),
            "relu.moves.insert_dead",
            "Otherwise the unit may fire.",
        )
    return _append(network, layer, w, b, v, e, new, t, [rational(c) for c in out])


def insert_silent(net: Any, layer: int, row: Sequence[Any], bias: Any) -> Network:
    """A unit with any input that nobody reads."""
    network, w, b, v, e = opened(net, layer, "insert_silent")
    return _append(
        network, layer, w, b, v, e, [rational(x) for x in row], rational(bias), [ZERO] * len(v)
    )


def insert_cancelling(
    net: Any, layer: int, row: Sequence[Any], bias: Any, out: Sequence[Any], ratio: Any = 1
) -> Network:
    """Two copies of one unit, the second scaled by `ratio`, read with opposite weights."""
    network, w, b, v, e = opened(net, layer, "insert_cancelling")
    new, t, s = [rational(x) for x in row], rational(bias), rational(ratio)
    c = [rational(x) for x in out]
    if s <= 0:
        raise MoveError(
            f"ratio {s}", "ratio > 0", "relu.moves.insert_cancelling",
            "relu(-u) is no multiple of relu(u): that pair would leave c·u.",
        )  # fmt: skip
    for row_, t_, c_ in ((new, t, c), ([s * x for x in new], s * t, [-x / s for x in c])):
        w.append(row_)
        b.append(t_)
        for r, x in zip(v, c_, strict=True):
            r.append(x)
    return closed(network, layer, w, b, v, e)
