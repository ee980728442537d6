"""Verdicts as files: JSON that holds the claim, its bounds and the certificate, read strictly.

Reading is the only door for what a certificate says, for files and for verdicts in memory alike:
`plain` turns any value into lists, numbers and texts, and `parse` accepts those of exactly the
right shape. Checkers behind it meet no wrong type, no NaN and no number whose exponent alone fills
the memory. Rationals are texts, floats are numbers as Python writes them, which come back exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from paramsym.relu.arithmetic import fmpq, fmpq_mat
from paramsym.relu.domains import Ball, Box, Domain, Everywhere, Orthant
from paramsym.relu.errors import ReLUError
from paramsym.relu.logs import IDENTITIES, RULES, LayerLog, Leaf, LeafBound, SignProof, Split, Step
from paramsym.relu.rationals import fraction, rational
from paramsym.relu.verdict import Bounds, Certificate, Kind, Verdict

FORMAT = "paramsym-relu-verdict/1"
_DEEPEST = 12


def write_verdict(verdict: Verdict, path: str | Path) -> None:
    """Write a verdict with its certificate to a JSON file."""
    Path(path).write_text(json.dumps(document(verdict)), encoding="utf-8")


def read_verdict(path: str | Path) -> Verdict:
    """The verdict in a file that `write_verdict` made.

    Raises `ReLUError` if there is no file, or if it holds anything but a well-formed verdict.
    Whether the verdict is true is what `verify` finds out.
    """
    file = Path(path)
    if not file.is_file():
        raise ReLUError(f"no file {str(file)!r}", "a file", "relu.read_verdict", "Check the path.")
    try:
        return parse(json.loads(file.read_text(encoding="utf-8")), str(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReLUError):
            raise
        raise _malformed(f"text that is no JSON ({str(error)[:80]})", str(file)) from None


def document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain JSON values; `parse` is the inverse."""
    held = verdict.certificate
    return {
        "format": FORMAT,
        "kind": plain(verdict.kind),
        "reason": plain(verdict.reason),
        "method": plain(verdict.method),
        "mode": plain(verdict.mode),
        "domain": _domain_document(verdict.domain),
        "witness": plain(verdict.witness),
        "values": plain(verdict.values),
        "furthest": plain(verdict.furthest),
        "bounds": {k: _bound_out(v) for k, v in verdict.bounds._asdict().items()},
        "tolerance": plain(verdict.tolerance),
        "tried": plain(verdict.tried),
        "certificate": held and {"kind": plain(held.kind), "data": plain(held.data)},
    }


def _bound_out(value: Any) -> Any:
    return "inf" if isinstance(value, float) and value == math.inf else plain(value)


def _domain_document(domain: Any) -> dict[str, Any]:
    if isinstance(domain, Box):
        return {"box": [plain(domain.lower), plain(domain.upper)]}
    if isinstance(domain, Ball):
        return {"ball": plain(domain.radius), "dimension": domain.dimension}
    if isinstance(domain, (Everywhere, Orthant)):
        name = "orthant" if isinstance(domain, Orthant) else "everywhere"
        return {name: plain(domain.dimension)}
    raise _malformed(f"a domain of type {type(domain).__name__}", "verdict.domain")


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((fmpq, Fraction), str),
    (Kind, lambda kind: kind.value),
    ((np.ndarray, np.generic), lambda array: array.tolist()),
    (fmpq_mat, lambda table: [[str(v) for v in row] for row in table.tolist()]),
)


def plain(value: Any, deep: int = 0) -> Any:
    """Lists, numbers, texts and None; raises `ReLUError` for what certificates never hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if deep > _DEEPEST:
        raise _malformed("a nesting that is too deep", "certificate")
    for kinds, convert in _PLAIN:
        if isinstance(value, kinds):
            return convert(value)
    if isinstance(value, LayerLog):
        value = vars(value)
    if isinstance(value, dict):
        return {str(k): plain(v, deep + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, deep + 1) for v in value]
    raise _malformed(f"a value of type {type(value).__name__}", "certificate")


def _malformed(came: str, where: str) -> ReLUError:
    return ReLUError(
        came, "a verdict as write_verdict makes it", where, "Decide again and write the verdict."
    )


# ------------------------------------------------------------------ reading


def parse(content: Any, where: str = "verdict") -> Verdict:
    """The verdict that a document holds; raises `ReLUError` unless every part has its shape."""
    body = _record(content, where, {
        "format", "kind", "reason", "method", "mode", "domain", "witness", "values", "furthest",
        "bounds", "tolerance", "tried", "certificate",
    })  # fmt: skip
    if body["format"] != FORMAT:
        raise _malformed(f"the format {str(body['format'])[:40]!r}", where)
    kind = _one_of(body["kind"], tuple(k.value for k in Kind), f"{where}, kind")
    values = body["values"]
    return Verdict(
        Kind(kind),
        _text(body["reason"], f"{where}, reason"),
        _text(body["method"], f"{where}, method"),
        _one_of(body["mode"], ("exact", "float"), f"{where}, mode"),
        _domain(body["domain"], f"{where}, domain"),
        certificate=_certificate(body["certificate"], f"{where}, certificate"),
        witness=_vector(body["witness"], f"{where}, witness"),
        values=None if values is None else _values(values, f"{where}, values"),
        bounds=_bounds(body["bounds"], f"{where}, bounds"),
        furthest=_vector(body["furthest"], f"{where}, furthest"),
        tolerance=_optional(body["tolerance"], f"{where}, tolerance"),
        tried=tuple(_text(v, f"{where}, tried") for v in _list(body["tried"], where)),
    )


def _certificate(value: Any, where: str) -> Certificate | None:
    if value is None:
        return None
    body = _record(value, where, {"kind", "data"})
    readers = {
        "canonical": _groups,
        "absolute-value": _passes,
        "absolute-value with signs": _signed,
        "cells": _cells,
        "cell bounds": _cells,
        "bound": _forms,
    }
    kind = _one_of(body["kind"], tuple(readers), where)
    data = readers[kind](body["data"], where)
    if (kind == "cell bounds") != (isinstance(data, dict) and "bounds" in data):
        raise _malformed("bounds of leaves in the wrong kind of certificate", where)
    return Certificate(kind, "", data)


def _groups(value: Any, where: str) -> list[list[tuple[int, int]]]:
    pairs = [[_counts(m, where) for m in _list(group, where)] for group in _list(value, where)]
    if any(len(member) != 2 for group in pairs for member in group):
        raise _malformed("a member that is no pair (network, neuron)", where)
    return [[(w, n) for w, n in group] for group in pairs]


def _passes(value: Any, where: str) -> list[tuple[list, list]]:
    made = []
    for logs in _list(value, where):
        pair = [
            [[_step(step, where) for step in _list(layer, where)] for layer in _list(log, where)]
            for log in _list(logs, where, 2)
        ]
        made.append((pair[0], pair[1]))
    return made


def _step(value: Any, where: str) -> Step:
    rule, units, identities = _list(value, where, 3)
    found = []
    for entry in _list(identities, where):
        kind, first, second = _list(entry, where, 3)
        pair = (_counts(first, where), _counts(second, where))
        if not all(pair):
            raise _malformed("an identity without units", where)
        found.append((_one_of(kind, IDENTITIES, where), *pair))
    return Step(_one_of(rule, RULES, where), _counts(units, where), tuple(found))


def _signed(value: Any, where: str) -> dict[str, Any]:
    body = _record(value, where, {"signs", "passes"})
    proofs = [_sign_proof(proof, where) for proof in _list(body["signs"], where)]
    return {"signs": proofs, "passes": _passes(body["passes"], where)}


def _sign_proof(value: Any, where: str) -> SignProof:
    network, layer, unit, without, side, tree = _list(value, where, 6)
    steps = tuple(_case(step, where) for step in _list(tree, where))
    place = (_count(network, where), _count(layer, where), _count(unit, where))
    return SignProof(*place, _counts(without, where), _sign(side, where), steps)


def _case(value: Any, where: str) -> Split | Leaf:
    first, second = _list(value, where, 2)
    if type(second) is int:
        return Split(_count(first, where), _count(second, where))
    slopes = []
    for layer in _list(second, where):
        pairs = [_list(pair, where, 2) for pair in _list(layer, where)]
        slopes.append(tuple((_count(k, where), rational(_text(v, where))) for k, v in pairs))
    return Leaf(_count(first, where), tuple(slopes))


def _cells(value: Any, where: str) -> dict[str, Any]:
    names = {"lift", "base", "steps"}
    tolerant = isinstance(value, dict) and "bounds" in value
    body = _record(value, where, names | {"bounds"} if tolerant else names)
    table = [
        [rational(_text(v, where)) for v in _list(r, where)] for r in _list(body["lift"], where)
    ]
    width = len(table[0]) if table else 0
    if any(len(row) != width for row in table):
        raise _malformed("a table with rows of different lengths", where)
    made: dict[str, Any] = {
        "lift": fmpq_mat(len(table), width, [v for row in table for v in row]),
        "base": [rational(_text(v, where)) for v in _list(body["base"], where)],
        "steps": [_decision(step, where) for step in _list(body["steps"], where)],
    }
    if tolerant:
        made["bounds"] = [_leaf(leaf, where) for leaf in _list(body["bounds"], where)]
    return made


def _decision(value: Any, where: str) -> Any:
    if type(value) is int and value == 0:
        return 0
    sign, tight = _list(value, where, 2)
    return (_sign(sign, where), _count(tight, where))


def _sign(value: Any, where: str) -> int:
    if type(value) is not int or value not in (1, -1):
        raise _malformed(f"the sign {str(value)[:20]!r}", where)
    return value


def _leaf(value: Any, where: str) -> LeafBound:
    offset, slope, direction, tight = _list(value, where, 4)
    numbers = tuple(_real(v, where) for v in _list(direction, where))
    return LeafBound(_size(offset, where), _size(slope, where), numbers, _counts(tight, where))


def _forms(value: Any, where: str) -> dict[str, Any]:
    body = _record(value, where, {"atoms", "logs"})
    atoms = [np.array([_real(v, where) for v in _list(row, where)]) for row in
             _list(body["atoms"], where)]  # fmt: skip
    logs = [
        [_layer(layer, where) for layer in _list(log, where)]
        for log in _list(body["logs"], where, 2)
    ]
    return {"atoms": atoms, "logs": (logs[0], logs[1])}


def _layer(value: Any, where: str) -> LayerLog:
    body = _record(value, where, {"rule", "atom", "sign", "scale", "units"})
    rule = [_count(v, where) for v in _list(body["rule"], where)]
    n = len(rule)
    atom = _list(body["atom"], where, n)
    if any(type(v) is not int or not -1 <= v < 2**31 for v in atom) or max(rule, default=0) > 5:
        raise _malformed("a rule or an atom that does not exist", where)
    sign = [_real(v, where) for v in _list(body["sign"], where, n)]
    if any(v not in (1.0, -1.0) for v in sign):
        raise _malformed("an orientation other than 1 and -1", where)
    scale = [_size(v, where) for v in _list(body["scale"], where, n)]
    units: dict[int, tuple[int, ...]] = {}
    if not isinstance(body["units"], dict):
        raise _malformed("no record of unbent units", where)
    for key, chosen in body["units"].items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise _malformed(f"the unit {key[:20]!r}", where)
        units[int(key)] = _counts(chosen, where)
    return LayerLog(
        np.array(rule, dtype=int), np.array(atom, dtype=int), np.array(sign), np.array(scale), units
    )  # fmt: skip


def _bounds(value: Any, where: str) -> Bounds:
    body = _record(value, where, set(Bounds._fields))
    upper = body["upper"]
    if (body["offset"] is None) != (body["slope"] is None):
        raise _malformed("an offset without a slope, or the reverse", where)
    return Bounds(
        _size(body["lower"], where),
        math.inf if upper == "inf" else _size(upper, where),
        *(_optional(body[name], where) for name in ("radius", "offset", "slope", "precision")),
    )


def _domain(value: Any, where: str) -> Domain:
    if not isinstance(value, dict):
        raise _malformed("no domain", where)
    if set(value) == {"box"}:
        lower, upper = (_vector(v, where) or () for v in _list(value["box"], where, 2))
        return Box(lower, upper)
    if set(value) == {"ball", "dimension"}:
        radius = rational(_text(value["ball"], where), where)
        return Ball(_count(value["dimension"], where), radius)
    if set(value) == {"orthant"}:
        return Orthant(_count(value["orthant"], where))
    return Everywhere(_count(_record(value, where, {"everywhere"})["everywhere"], where))


def _values(value: Any, where: str) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    first, second = (_vector(v, where) or () for v in _list(value, where, 2))
    return first, second


def _vector(value: Any, where: str) -> tuple[Fraction, ...] | None:
    if value is None:
        return None
    return tuple(fraction(rational(_text(v, where), where)) for v in _list(value, where))


def _record(value: Any, where: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise _malformed(f"{type(value).__name__} instead of a record of {sorted(names)}", where)
    return value


def _list(value: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise _malformed(f"{type(value).__name__} instead of a list of the right length", where)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{type(value).__name__} instead of a text", where)
    return value


def _one_of(value: Any, names: tuple[str, ...], where: str) -> str:
    if _text(value, where) not in names:
        raise _malformed(f"{value[:40]!r} instead of one of {', '.join(names)}", where)
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise _malformed(f"{str(value)[:20]!r} instead of a number that counts", where)
    return value


def _counts(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_count(v, where) for v in _list(value, where))


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1.7e308:
        raise _malformed(f"{str(value)[:20]!r} instead of a finite number", where)
    if math.isnan(value):
        raise _malformed("NaN instead of a number", where)
    return float(value)


def _size(value: Any, where: str) -> float:
    number = _real(value, where)
    if number < 0:
        raise _malformed(f"{number} instead of a number >= 0", where)
    return number


def _optional(value: Any, where: str) -> float | None:
    return None if value is None else _size(value, where)
