"""Piecewise linear functions of some coordinates of their input, without what they do not read."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from paramsym.relu.coefficients import Coefficients
from paramsym.relu.forms import Atoms, Forms

Functions = TypeVar("Functions", bound=Forms)


def reached(functions: Forms) -> list[Atoms]:
    """The atoms that functions are of, by depth."""
    found: dict[Atoms, None] = {}
    waiting = list(functions.terms)
    while waiting:
        atoms = waiting.pop()
        if atoms not in found:
            found[atoms] = None
            waiting += atoms.read.terms if atoms.read is not None else []
    return sorted(found, key=lambda atoms: atoms.depth)


def restricted(functions: Functions, coordinates: np.ndarray) -> Functions | None:
    """The same functions of an input that has these coordinates alone, in this order.

    Units that they do not read are left out. None if they read another coordinate.
    """
    whole = reached(functions)
    used = {atoms: np.zeros(atoms.size, dtype=bool) for atoms in whole}
    for atoms, c in functions.terms.items():
        used[atoms][c.columns] = True
    for atoms in reversed(whole):
        for read, c in (atoms.read.terms if atoms.read is not None else {}).items():
            used[read][c.columns[used[atoms][c.rows]]] = True
    made: dict[Atoms, Atoms] = {}
    place: dict[Atoms, np.ndarray] = {}
    # One object for one selection of rows: layouts recognise a stream by its coefficients.
    known: dict[tuple[int, bytes], Coefficients] = {}

    def renamed(part: Forms, rows: np.ndarray) -> Functions:
        terms = {}
        for atoms, c in part.terms.items():
            key = id(c), rows.tobytes()
            if key not in known:
                taken = c.take(rows)
                columns = place[atoms][taken.columns]
                known[key] = Coefficients.summed(
                    len(rows), made[atoms].size, taken.rows, columns, taken.entries
                )
            terms[made[atoms]] = known[key]
        return type(functions)((len(rows),), terms, part.constant.at(rows))

    for atoms in whole:
        kept = np.flatnonzero(used[atoms]) if atoms.read is not None else coordinates
        place[atoms] = np.full(atoms.size, -1)
        place[atoms][kept] = np.arange(len(kept))
        if atoms.read is not None:
            made[atoms] = Atoms(len(kept), renamed(atoms.read, kept))
        elif (place[atoms][used[atoms]] < 0).any():
            return None
        else:
            made[atoms] = Atoms(len(kept))
    rows = np.arange(functions.size)
    return renamed(functions, rows).reshape(functions.shape)
