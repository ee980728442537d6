"""Symmetries as JSON text: every section a list of records, repeated layers folded.

What a record ends with is left out where it is the default, and a folded stretch of records is
{"each": [first, count], "of": [records with {} for the number]}. Reading it back gives an equal
value.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramsym.algebra import parse_group
from paramsym.structure.axes import parse_axis
from paramsym.structure.checked import Checked
from paramsym.structure.data import SymmetryData
from paramsym.structure.feature import Feature
from paramsym.structure.folding import Repeat, fold, unfold
from paramsym.structure.origin import Diagonal, Origin, Windows
from paramsym.structure.shift import Factor, Shift, Term, Window
from paramsym.structure.space import Space

FORMAT = "paramsym/2"


def to_json(symmetry: SymmetryData) -> str:
    """See `ParameterSymmetry.to_json`."""
    sections: dict[str, list[Any]] = {
        "spaces": [
            _trimmed([s.name, str(s.group), list(s.over), s.why, s.exact], [[], "", True])
            for s in symmetry.spaces.values()
        ],
        "signature": [[name, *map(str, axes)] for name, axes in symmetry.signature.items()],
        "shifts": [_shift(shift) for shift in symmetry.shifts],
        "dead": list(symmetry.dead),
        "ties": _pairs(symmetry.ties),
        "offsets": [_origin(*pair) for pair in symmetry.offsets.items()],
        "buffers": list(symmetry.buffers),
        "reasons": [[name, *found] for name, found in symmetry.reasons.items()],
        "unknown": _pairs(symmetry.unknown),
        "inputs": [[n, str(f.type), f.axis] for n, f in symmetry.inputs.items()],
        "outputs": [[n, str(f.type), f.axis] for n, f in symmetry.outputs.items()],
        "random": _pairs(symmetry.random),
        "probed": _pairs(symmetry.probed),
        "unreached": [[name, *_ranges(rows)] for name, rows in symmetry.unreached.items()],
    }
    folded = {name: [_item(i) for i in fold(found)] for name, found in sections.items() if found}
    checked = symmetry.checked.to_dict()
    return json.dumps(
        {"format": FORMAT, **folded, "checked": checked}, separators=(",", ":"), ensure_ascii=False
    )


def _pairs(items: Mapping[str, str]) -> list[Any]:
    return [list(pair) for pair in items.items()]


def from_json(text: str) -> dict[str, Any]:
    """The fields of the `ParameterSymmetry` that `to_json` wrote.

    Raises `ValueError` if the text is not of that form.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"the format {data['format']!r}")

        def section(name: str) -> list[Any]:
            return unfold(_folded(item) for item in data.get(name, []))

        spaces = [_space(*record) for record in section("spaces")]
        return {
            "spaces": {space.name: space for space in spaces},
            "signature": {n: tuple(map(parse_axis, axes)) for n, *axes in _all(data, section)},
            "shifts": tuple(_read_shift(*record) for record in section("shifts")),
            "dead": tuple(section("dead")),
            "ties": dict(section("ties")),
            "offsets": dict(_read_origin(*record) for record in section("offsets")),
            "buffers": tuple(section("buffers")),
            "reasons": {name: tuple(found) for name, *found in section("reasons")},
            "unknown": dict(section("unknown")),
            "random": dict(section("random")),
            "probed": dict(section("probed")),
            "inputs": {n: Feature(parse_axis(t), axis) for n, t, axis in section("inputs")},
            "outputs": {n: Feature(parse_axis(t), axis) for n, t, axis in section("outputs")},
            "checked": Checked.from_dict(data["checked"]) if "checked" in data else Checked(),
            "unreached": {
                name: tuple(itertools.chain(*(range(a, b) for a, b in ranges)))
                for name, *ranges in section("unreached")
            },
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"ParameterSymmetry.from_json: the text lacks or misspells {error}. Expected what "
            f"ParameterSymmetry.to_json writes (format {FORMAT!r}). Derive the symmetry anew and "
            "write it with to_json."
        ) from error


def _all(data: dict[str, Any], section: Callable[[str], list[Any]]) -> list[Any]:
    """The signature, which no symmetry lacks."""
    if "signature" not in data:
        raise KeyError("signature")
    return section("signature")


def _item(item: Any) -> Any:
    if isinstance(item, Repeat):
        return {"each": [item.start, item.count], "of": list(item.records)}
    return item


def _folded(item: Any) -> Any:
    if isinstance(item, dict):
        return Repeat(*item["each"], records=tuple(item["of"]))
    return item


def _trimmed(record: list[Any], defaults: Sequence[Any]) -> list[Any]:
    """A record without the defaults at its end."""
    for default in reversed(defaults):
        if record[-1] != default:
            break
        record = record[:-1]
    return record


def _space(
    name: str, group: str, over: Sequence[str] = (), why: str = "", exact: bool = True
) -> Space:
    return Space(name, parse_group(group), tuple(over), why, exact)


def _origin(name: str, origin: Origin) -> list[Any]:
    if isinstance(origin, Windows):
        return [name, [origin.period, *map(list, origin.runs)], "windows"]
    return [name, origin.value, "identity"] if isinstance(origin, Diagonal) else [name, origin]


def _read_origin(name: str, number: Any, kind: str = "") -> tuple[str, Origin]:
    if kind not in ("", "identity", "windows"):
        raise ValueError(f"the kind of offset {kind!r} of {name!r}")
    if kind == "windows":
        period, *runs = number
        return name, Windows(period, tuple((a, b, x) for a, b, x in runs))
    return name, Diagonal(number) if kind else number


def _ranges(rows: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as half-open ranges."""
    found: list[list[int]] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1][1] += 1
        else:
            found.append([row, row + 1])
    return found


# -- shifts --------------------------------------------------------------------------------------


def _shift(shift: Shift) -> list[Any]:
    terms = [
        _trimmed(
            [_window(t.target), t.coefficient, [_factor(f) for f in t.factors], t.divided],
            [1.0, [], False],
        )
        for t in shift.terms
    ]
    divisor = None if shift.divisor is None else [_factor(f) for f in shift.divisor]
    return _trimmed(
        [shift.name, shift.family, shift.letters, list(shift.shape), terms, shift.space,
         shift.kind, divisor],
        ["", "", None],
    )  # fmt: skip


def _factor(f: Factor) -> list[Any]:
    kernel = [_window(w) for w in f.kernel]
    return _trimmed([_window(f.window), f.power, f.offset, kernel, f.flow], [1.0, 0.0, [], ""])


def _window(w: Window) -> list[Any]:
    strides = None if w.strides == _row_major(w.shape) else list(w.strides)
    return _trimmed([w.parameter, w.letters, list(w.shape), w.start, strides], [0, None])


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _read_shift(
    name: str, family: str, letters: str, shape: Sequence[int], terms: list[Any],
    space: str = "", kind: str = "", divisor: list[Any] | None = None,
) -> Shift:  # fmt: skip
    return Shift(
        name, family, letters, tuple(shape), tuple(_read_term(*t) for t in terms),
        None if divisor is None else tuple(_read_factor(*f) for f in divisor), space, kind,
    )  # fmt: skip


def _read_term(
    target: list[Any],
    coefficient: float = 1.0,
    factors: Sequence[list[Any]] = (),
    divided: bool = False,
) -> Term:
    found = tuple(_read_factor(*f) for f in factors)
    return Term(_read_window(*target), coefficient, found, divided)


def _read_factor(
    window: list[Any], power: float = 1.0, offset: float = 0.0, kernel: Sequence[list[Any]] = (),
    flow: str = "",
) -> Factor:  # fmt: skip
    columns = tuple(_read_window(*w) for w in kernel)
    return Factor(_read_window(*window), power, offset, columns, flow)


def _read_window(
    parameter: str,
    letters: str,
    shape: Sequence[int],
    start: int = 0,
    strides: Sequence[int] | None = None,
) -> Window:
    found = _row_major(shape) if strides is None else tuple(strides)
    return Window(parameter, letters, tuple(shape), found, start)
