"""Forged verdicts: valid ones of every kind, changed in one place, and what is true of them.

A change is one of: a number by one unit in the last place, by orders of magnitude, or its sign; a
text by another (other names, huge exponents, NaN and infinities, nonsense); a value of another
type; a list with an entry lost, doubled, swapped or cut off; a key lost, renamed or new; nesting; a
part of another verdict; and the text of the file cut, or one character of it changed.

A forged verdict may pass only if what it claims is still true. That is decided without any
certificate: for pairs that are the same function by construction, EQUAL with lower = 0 is true and
nothing else is; for pairs that differ, DIFFERENT if both networks, evaluated in `Fraction`s, differ
at the witness with the values that are claimed; bounds are held against the largest difference at
many inputs, evaluated in `Fraction`s too, and claims of EQUAL or EQUAL_TO_PRECISION against what
the pair was made to be.
"""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from flint import fmpq
from networks import gaussian, perturbed, random_network, twin, type_b

from paramsym import relu
from paramsym.relu import moves
from paramsym.relu.documents import document, parse


@dataclass
class Case:
    """A pair of networks, a valid verdict on it, and the truth about the pair.

    Attributes:
        truth: "same" (one function by construction), "float64" or "storage" (equal up to rounding
            to that), or "different".
        gaps: (|x|, largest |f - g|) at inputs of the domain, exactly evaluated.
    """

    name: str
    a: relu.Network
    b: relu.Network
    verdict: relu.Verdict
    truth: str
    gaps: list[tuple[float, Fraction]]


def stored(net: relu.Network, dtype: torch.dtype) -> relu.Network:
    """The network with its weights rounded to a format, and known to be stored in it."""
    return relu.as_network([tuple(torch.tensor(t).to(dtype) for t in part) for part in net.floats])


def cases() -> list[Case]:
    """One valid verdict of every kind of certificate, of every answer, on every kind of domain."""
    rng, generator = random.Random(3), np.random.default_rng(3)
    shallow = random_network((2, 4, 2), rng)
    deep = type_b((3, 3, 2, 1), rng)
    moved = moves.scramble(deep, 3, rng)
    fold = relu.as_network(
        [([[1, 1], [1, 0], [0, 1]], [0, 0, 0]), ([[1, -1, -1]], [0]), ([[5]], [2])]
    )
    flat = relu.as_network([([[0, 0]], [0]), ([[0]], [2])])
    near = gaussian((3, 5, 4, 2), generator)
    single = gaussian((3, 6, 2), generator)
    # relu(a + b) <= relu(a) + relu(b), up to the rounding of thirds and sevenths
    thirds = np.array([[1 / 3 + 1 / 7, 1 / 7], [1 / 3, 0.0], [1 / 7, 1 / 7]])
    folded = relu.as_network(
        [(thirds, np.zeros(3)), (np.array([[1.0, -1, -1], [3, 0, 0]]), np.zeros(2)),
         (np.array([[5.0, 7.0]]), np.array([2.0]))]
    )  # fmt: skip
    level = relu.as_network(
        [(thirds[:1] * 3.0 / 7.0, np.zeros(1)), (np.array([[7.0]]), np.zeros(1)),
         (np.array([[7.0]]), np.array([2.0]))]
    )  # fmt: skip
    half = stored(near, torch.float32)
    pairs: list[tuple[str, Any, Any, str, dict[str, Any]]] = [
        ("canonical", shallow, moves.scramble(shallow, 3, rng), "same", {}),
        ("canonical on a box", shallow, moves.scramble(shallow, 3, rng), "same",
         {"domain": (-1, 2)}),
        ("absolute-value", deep, moved, "same", {}),
        ("signs", fold, flat, "same", {}),
        ("signs on a box", fold, flat, "same", {"domain": (-1, 1)}),
        ("signs of two layers", *_nested(), "same", {}),
        ("cells", *_hat(), "same", {}),
        ("cells on a box", *_hat(), "same", {"domain": (-2, 2)}),
        ("bound", near, twin(near, generator), "float64", {"mode": "float"}),
        ("bound on a box", single, twin(single, generator), "float64",
         {"mode": "float", "domain": (-1, 1)}),
        ("bound, tolerance", near, twin(near, generator), "float64",
         {"mode": "float", "tolerance": 1e-9, "domain": {"ball": 2}}),
        ("cell bounds", folded, level, "float64", {"mode": "float"}),
        ("storage", half, stored(twin(half, generator), torch.float32), "storage",
         {"mode": "float"}),
        ("different", deep, perturbed(moved, fmpq(1, 100), rng, layer=2), "different", {}),
        ("different in float32", half, stored(gaussian((3, 5, 4, 2), generator), torch.float32),
         "different", {"mode": "float", "domain": (-1, 1)}),
    ]  # fmt: skip
    made = []
    for name, a, b, truth, options in pairs:
        verdict = relu.decide(a, b, **options)
        assert relu.verify(verdict, a, b), (name, verdict)
        made.append(Case(name, a, b, verdict, truth, _gaps(a, b, verdict, generator)))
    return made


def _nested() -> tuple[Any, Any]:
    """relu(u + v - w) <= u + v for u, v, w >= 0, one layer above: against a constant."""
    first = [[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 2, 1]]
    second = [[1, 1, -1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, -1]]
    a = [(first, [0] * 4), (second, [0] * 4), ([[1, -1, -1, 0], [0, 0, 0, 1]], [0, 0]),
         ([[2, 3]], [1])]  # fmt: skip
    b = [(first, [0] * 4), ([[1, 1, 0, -1]], [0]), ([[1]], [0]), ([[3]], [1])]
    return relu.as_network(a), relu.as_network(b)


def _hat() -> tuple[Any, Any]:
    """relu(|x| - 1) = relu(x - 1) + relu(-x - 1), deeper and in one layer."""
    a = [([[1, 0], [-1, 0]], [0, 0]), ([[1, 1]], [-1]), ([[1]], [0])]
    b = [([[1, 0], [-1, 0]], [-1, -1]), ([[1, 1]], [0])]
    return relu.as_network(a), relu.as_network(b)


def _gaps(a, b, verdict, generator) -> list[tuple[float, Fraction]]:
    found = []
    points = generator.normal(size=(60, a.input_dim)) * 10.0 ** generator.uniform(-1, 1, (60, 1))
    for x in [*points, *np.clip(points, -1, 1)]:
        x = [Fraction(float(v)) for v in x]
        if verdict.domain.contains([relu_rational(v) for v in x]):
            gap = max(abs(u - v) for u, v in zip(a(x), b(x), strict=True))
            found.append((math.sqrt(sum(v * v for v in x)), gap))
    return found


def relu_rational(value: Fraction):
    from paramsym.relu.rationals import rational

    return rational(value)


# ------------------------------------------------------------------ is it still true?


def is_true(claim: relu.Verdict, case: Case) -> bool:
    """Whether what a forged verdict claims holds, decided without its certificate."""
    a, b, bounds = case.a, case.b, claim.bounds
    if claim.domain.dimension != a.input_dim or math.isnan(bounds.lower + bounds.upper):
        return False
    for x in (claim.furthest or claim.witness,):
        if bounds.lower > 0 and _gap(case, x) < Fraction(bounds.lower):
            return False
    limit = min(claim.domain.norm(), math.inf if bounds.radius is None else bounds.radius)
    here = str(claim.domain) == str(case.verdict.domain)
    for norm, gap in case.gaps if here else []:
        if norm <= limit * (1 - 1e-9) and gap > Fraction(min(bounds.upper, 1e300)):
            return False
        if bounds.offset is not None and bounds.slope is not None:
            if gap > Fraction(bounds.offset + bounds.slope * norm * (1 + 1e-9)):
                return False
    if claim.kind == "UNDECIDED":
        return True
    if claim.kind == "DIFFERENT":
        if claim.witness is None or not _gap(case, claim.witness):
            return False
        x = [relu_rational(v) for v in claim.witness]
        values = (tuple(a(claim.witness)), tuple(b(claim.witness)))
        loud = claim.mode == "exact" or _gap(case, claim.witness) > Fraction(1, 10**9)
        return claim.domain.contains(x) and claim.values in (None, values) and loud
    if case.truth == "same":
        return claim.kind == "EQUAL" and bounds.lower == 0
    allowed = {"float64": "EQUAL", "storage": "EQUAL_TO_PRECISION"}.get(case.truth)
    return claim.kind == allowed and claim.mode == "float"


def _gap(case: Case, x) -> Fraction:
    if x is None or len(x) != case.a.input_dim:
        return Fraction(0)
    return max(abs(u - v) for u, v in zip(case.a(x), case.b(x), strict=True))


# ------------------------------------------------------------------ forging

NONSENSE: list[Any] = [
    None, True, -1, 0, 1, 7, 10**30, 0.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf, "",
    "NaN", "inf", "-inf", "1e100000000", "1/0", "0", "-1/3", "EQUAL", "DIFFERENT", "UNDECIDED",
    "EQUAL_TO_PRECISION", "exact", "float", "bound", "cells", "canonical", "absolute-value",
    "unbend", "dead", "linear", "tie", [], [[]], [0], {}, {"box": [["0"], ["1"]]},
]  # fmt: skip


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every part, the more frequent kinds thinned by the caller's choice."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items if isinstance(value, (dict, list)) else ():
        if isinstance(part, (dict, list)):
            found += _places(part, (*path, key))
        else:
            found.append((*path, key))
    return found


def _part(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _number(value: float, rng: random.Random) -> Any:
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value, value * 1000 + 3, 2**70])
    return rng.choice([
        math.nextafter(value, math.inf), math.nextafter(value, -math.inf), -value, value * 1.001,
        value * 1e-6, value / 2, value * 1e6, 0.0,
    ])  # fmt: skip


def forge(body: Any, other: Any, rng: random.Random) -> Any:
    """A document with one change."""
    body = copy.deepcopy(body)
    # Half of the changes go to the claims: certificates have most of the places.
    top = [p for p in _places(body) if p[0] != "certificate"]
    path = rng.choice(top if rng.random() < 0.5 else _places(body))
    holder, key = _part(body, path[:-1]), path[-1]
    value = holder[key]
    how = rng.choice([0, 1, 1, 1, 1, 2, 2, 3, 4, 5, 5])
    if how == 0 or (how == 1 and not isinstance(value, (int, float))):
        holder[key] = copy.deepcopy(rng.choice(NONSENSE))
    elif how == 1 and not isinstance(value, bool):
        holder[key] = _number(value, rng)
    elif how == 2 and isinstance(holder, list):
        rng.choice([
            lambda: holder.pop(key), lambda: holder.insert(key, value), holder.reverse,
            lambda: holder.__delitem__(slice(key, None)), lambda: rng.shuffle(holder),
        ])()  # fmt: skip
    elif how == 3 and isinstance(holder, dict):
        del holder[key]
        if rng.random() < 0.5:
            holder[rng.choice([f"{key}s", "extra", "0", "-1", "99999"])] = value
    elif how == 4:
        for _ in range(rng.choice([1, 2, 50])):
            value = [value]
        holder[key] = value
    else:
        try:
            holder[key] = copy.deepcopy(_part(other, path))
        except (LookupError, TypeError):
            holder[key] = str(value)
    return body


def forged_text(text: str, rng: random.Random) -> str:
    """A file that was cut, or in which one character was changed."""
    at = rng.randrange(len(text))
    if rng.random() < 0.5:
        return text[:at]
    return text[:at] + rng.choice('0123456789.,:[]{}"-/eEnN \x00') + text[at + 1 :]


def campaign(count: int, seed: int, folder) -> dict[str, int]:
    """Forge `count` verdicts; raises if one raises, or passes with a claim that is false.

    Every other forgery goes through a file, the rest through a verdict in memory.
    """
    rng = random.Random(seed)
    held = cases()
    bodies = [document(case.verdict) for case in held]
    texts = [json.dumps(body) for body in bodies]
    tally = {"unreadable": 0, "not proved": 0, "still true": 0, "unchanged": 0}
    for number in range(count):
        which = number % len(held)
        case, file = held[which], folder / "forged.json"
        if rng.random() < 0.3:
            file.write_text(forged_text(texts[which], rng), encoding="utf-8")
        else:
            body = forge(bodies[which], rng.choice(bodies), rng)
            file.write_text(json.dumps(body), encoding="utf-8")
        try:
            claim = relu.read_verdict(file)
        except relu.ReLUError:
            tally["unreadable"] += 1
            continue
        if not relu.verify(claim, case.a, case.b):
            tally["not proved"] += 1
        elif document(claim) == document(parse(bodies[which])):
            tally["unchanged"] += 1
        else:
            assert is_true(claim, case), (case.name, file.read_text(encoding="utf-8")[:2000])
            tally["still true"] += 1
    return tally
