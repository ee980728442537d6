"""Forms linear functions laid out as a network: one layer of units for each depth.

What is read beyond the next layer is carried. A hidden unit is not negative, so one unit carries
it, relu(u) = u; a form v of either sign takes two, v = relu(v) - relu(-v). A function that reads
early atoms through few forms has the forms carried instead of the atoms, whichever takes fewer
units; a form that has its unit relu(v) already, as the stream of a residual network, takes one
more.
"""

from __future__ import annotations

import numpy as np

from paramsym.relu.arithmetic import fmpq_mat
from paramsym.relu.coefficients import Coefficients, check_size
from paramsym.relu.entries import Entries, as_rationals, joined, zeros
from paramsym.relu.errors import ReLUError
from paramsym.relu.formats import EXACT, Format, Rounding, Storage
from paramsym.relu.forms import Atoms, Forms
from paramsym.relu.network import FloatLayer, Layer, Network
from paramsym.relu.restriction import reached

Units = dict[Atoms, np.ndarray]  # by atoms, which of them have a unit in a layer


def network_of(functions: Forms, name: str) -> Network:
    """The network whose outputs are these functions, in order."""
    plan = _Plan(functions, name)
    layers = [plan.layer(depth) for depth in range(1, functions.depth + 2)]
    storage = [_storage(weight, bias) for weight, bias in layers]
    if any(part.rational for layer in layers for part in layer):
        exact = [
            Layer(
                fmpq_mat(
                    w.values.shape[0],
                    w.values.shape[1],
                    as_rationals(w.values).reshape(-1).tolist(),
                ),
                as_rationals(b.values).tolist(),
            )
            for w, b in layers
        ]
        return Network(exact=exact, name=name, storage=storage)
    floats = [FloatLayer(w.values, b.values) for w, b in layers]
    return Network(floats=floats, name=name, storage=storage)


class _Plan:
    """Which units every layer has, and what they read.

    Attributes:
        reads: by hidden atoms, and by None for the outputs, what they are of, rewritten so that
            early atoms are ones that can be carried.
        until: by atoms, the depth below which each of them is carried.
    """

    def __init__(self, functions: Forms, name: str) -> None:
        self.reads: dict[Atoms | None, Forms] = {}
        self.until: dict[Atoms, np.ndarray] = {}
        self.negatives: dict[Atoms, Atoms] = {}
        whole = reached(functions)
        inputs = [atoms for atoms in whole if atoms.read is None]
        if len(inputs) != 1:
            raise ReLUError(
                f"a function of {len(inputs)} inputs", "a function of one input", name,
                "Pass a network that reads its input, and no other.",
            )  # fmt: skip
        self.input = inputs[0]
        size = self.input.size
        self.x = Forms((size,), {self.input: Coefficients.identity(size)}, zeros(size))
        # A form by its coefficients as objects: equal numbers may stand for different weights.
        self.units_of = {
            _key(a.read): a for a in reversed(whole) if a.read is not None
        }  # fmt: skip
        for atoms in whole:
            if atoms.read is not None:
                self.reads[atoms] = self._readable(atoms.read, atoms.depth)
        self.depth = functions.depth + 1
        self.reads[None] = self._readable(functions, self.depth)

    # ------------------------------------------------------------ what is carried

    def _readable(self, functions: Forms, depth: int) -> Forms:
        """The functions as units of this depth read them, early atoms being carried to them."""
        early = {atoms: c for atoms, c in functions.terms.items() if atoms.depth < depth - 1}
        if not early:
            return functions
        late = {atoms: c for atoms, c in functions.terms.items() if atoms not in early}
        forms = Forms((functions.size,), early, zeros(functions.size))
        if self._units_for_atoms(forms, depth) > self._units_for_forms(forms, depth):
            forms = self._as_pair(forms)
        elif self.input in early:
            x = Forms((functions.size,), {self.input: early.pop(self.input)}, forms.constant)
            forms = Forms((functions.size,), early, forms.constant) + self._of_pairs(x)
        for atoms, c in forms.terms.items():
            until = self.until.setdefault(atoms, np.zeros(atoms.size, dtype=np.int64))
            until[c.used] = np.maximum(until[c.used], depth)
        return Forms((functions.size,), late, functions.constant) + forms

    def _units_for_atoms(self, forms: Forms, depth: int) -> int:
        """How many more units carry the atoms of these forms to a layer of this depth."""
        count = 0
        for atoms, c in forms.terms.items():
            until = self.until.get(atoms, np.zeros(atoms.size, dtype=np.int64))
            begin = np.maximum(until[c.used], atoms.depth + 1)
            count += int(np.maximum(depth - begin, 0).sum()) * (1 if atoms.depth else 2)
        return count

    def _units_for_forms(self, forms: Forms, depth: int) -> int:
        """The same for the forms themselves."""
        levels = depth - 1 - forms.depth
        known = self.units_of.get(_key(forms))
        if known is None:
            return 2 * forms.size * levels
        return forms.size * (2 * levels - 1 if known not in self.negatives else levels - 1)

    def _as_pair(self, forms: Forms) -> Forms:
        """The forms v as relu(v) - relu(-v), both being units one level above what v reads."""
        positive = self.units_of.get(_key(forms))
        if positive is None:
            positive = Atoms(forms.size, forms)
            self.units_of[_key(forms)] = positive
            self.reads[positive] = self._readable(forms, positive.depth)
        if positive not in self.negatives:
            assert positive.read is not None
            opposite = self.negatives[positive] = Atoms(positive.size, -positive.read)
            self.reads[opposite] = -self.reads.get(positive, positive.read)
        assert positive.read is not None
        unit = Coefficients.identity(positive.size)
        terms = {positive: unit, self.negatives[positive]: -unit}
        return Forms((forms.size,), terms, -positive.read.constant)

    def _of_pairs(self, forms: Forms) -> Forms:
        """Forms of the input x as forms of relu(x) and relu(-x)."""
        return self._as_pair(self.x).mapped(forms.terms[self.input], (forms.size,))

    # ------------------------------------------------------------ layers

    def units(self, depth: int) -> Units:
        """The units of the layer at a depth: the atoms of this depth, and those that it carries."""
        if depth == 0:
            return {self.input: np.arange(self.input.size)}
        made = {}
        for atoms in self.reads:
            if atoms is not None and atoms.depth == depth:
                made[atoms] = np.arange(atoms.size)
            elif atoms is not None and atoms.depth < depth and atoms in self.until:
                made[atoms] = np.flatnonzero(self.until[atoms] > depth)
        return made

    def layer(self, depth: int) -> tuple[Entries, Entries]:
        """Weight and bias of the layer whose units have this depth."""
        if depth == self.depth:
            read = [self.reads[None]]
        else:
            read = [
                self.reads[atoms] if atoms.depth == depth else _carried(atoms, columns)
                for atoms, columns in self.units(depth).items()
            ]
        height, width, place = sum(r.size for r in read), 0, {}
        for atoms, columns in self.units(depth - 1).items():
            place[atoms] = np.full(atoms.size, -1)
            place[atoms][columns] = width + np.arange(len(columns))
            width += len(columns)
        check_size(height * width)
        blocks = [
            (c.rows + start, place[atoms][c.columns], c.entries)
            for r, start in zip(read, np.cumsum([0, *(r.size for r in read)]), strict=False)
            for atoms, c in r.terms.items()
        ]
        return _dense(height, width, blocks), joined([r.constant for r in read])


def _key(functions: Forms) -> frozenset[tuple[int, int]]:
    return frozenset((id(atoms), id(c)) for atoms, c in functions.terms.items())


def _carried(atoms: Atoms, columns: np.ndarray) -> Forms:
    """Some hidden units, as functions."""
    terms = {atoms: Coefficients.identity(atoms.size).take(columns)}
    return Forms((len(columns),), terms, zeros(len(columns)))


def _dense(
    height: int, width: int, blocks: list[tuple[np.ndarray, np.ndarray, Entries]]
) -> Entries:
    """The table with these (rows, columns, entries), no place twice, and zeros elsewhere."""
    values, slack = np.zeros((height, width)), np.zeros((height, width))
    if any(entries.rational for _, _, entries in blocks):
        values = as_rationals(values)
    for rows, columns, entries in blocks:
        values[rows, columns] = as_rationals(entries.values) if values.dtype == object else (
            entries.values
        )  # fmt: skip
        slack[rows, columns] = entries.slack
    return Entries(values, slack, frozenset().union(*(e.formats for _, _, e in blocks)))


def _storage(weight: Entries, bias: Entries) -> Storage:
    """How a layer is stored: by formats where its rounding is theirs, else entry by entry."""
    held = _format(weight), _format(bias)
    if held[0] is None or held[1] is None:
        return Rounding(weight.slack, bias.slack, weight.formats | bias.formats)
    return held[0], held[1]


def _format(table: Entries) -> Format | None:
    """The format that numbers are stored in as they are."""
    if not table.slack.any():
        return EXACT
    if len(table.formats) == 1:
        (held,) = table.formats
        if np.array_equal(table.slack, held.rounding(table.sizes)):
            return held
    return None
