"""Powers of affine forms, and the shapes in which a layer keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby
from numbers import Integral
from typing import NamedTuple

from torch import Tensor

Kind = tuple[int, int]  # degree and sign of a term
Degrees = Sequence[int] | Sequence[Sequence[int]]


class Term(NamedTuple):
    """One term sign · (aᵀx + b)^degree; `weight` a has shape (in,), `bias` b none."""

    degree: int
    sign: int
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Block:
    """Rows start … start + copies · outputs − 1: terms of one kind, `copies` for each output.

    Row start + i · copies + c is copy c of the i-th output of the group.
    """

    start: int
    kind: Kind
    copies: int


@dataclass(frozen=True)
class Group:
    """Outputs with the same kinds of terms; only these can be permuted among each other."""

    outputs: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def rows(self) -> int:
        return sum(block.copies for block in self.blocks) * len(self.outputs)


def kinds_of(outputs: int, degrees: Degrees, signs: Degrees | None) -> list[list[Kind]]:
    """The kind of every term of every output, from one list for all or one list for each."""
    by_output = _each(outputs, degrees, "degrees")
    signs_by_output = (
        [[1] * len(row) for row in by_output] if signs is None else _each(outputs, signs, "signs")
    )
    kinds = []
    for k, (row, marks) in enumerate(zip(by_output, signs_by_output, strict=True)):
        if len(row) != len(marks) or not row:
            raise ValueError(
                f"Polynomial: output {k} has {len(row)} degrees and {len(marks)} signs; at least "
                "one term was expected, and one sign for each. Give both lists the same shape."
            )
        for degree in row:
            if not _whole(degree) or degree < 1:
                raise ValueError(
                    f"Polynomial: a term of output {k} has degree {degree!r}; a whole number of at "
                    "least 1 was expected. A constant belongs into the bias of a term of degree 1."
                )
        for degree, mark in zip(row, marks, strict=True):
            if not _whole(mark) or mark not in (1, -1):
                raise ValueError(
                    f"Polynomial: a term of output {k} has sign {mark!r}; 1 or -1 was expected. "
                    "Other factors belong into the weights, as their root of the term's degree."
                )
            if degree % 2 and mark < 0:
                raise ValueError(
                    f"Polynomial: a term of odd degree {degree} of output {k} has sign -1; 1 was "
                    "expected, since an odd power takes the sign of its form. Negate the weights "
                    "and the bias of the form instead."
                )
        kinds.append([(int(d), int(s)) for d, s in zip(row, marks, strict=True)])
    return kinds


def _each(outputs: int, given: Degrees, what: str) -> list[list[int]]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise ValueError(
            f"Polynomial({what}={given!r}): a list of whole numbers was expected for all outputs, "
            f"or one list for each of the {outputs} outputs. Pass for example {what}=[1, 1]."
        )
    rows = [list(row) for row in given if isinstance(row, Sequence)]
    if not rows:
        return [[*given] for _ in range(outputs)]  # pyright: ignore[reportReturnType]
    if len(rows) != outputs or len(rows) != len(given):
        raise ValueError(
            f"Polynomial({what}=…): {len(given)} entries, {len(rows)} of them lists, came for "
            f"{outputs} outputs. Pass one list for all outputs, or one list for each."
        )
    return rows


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def grouped(kinds: list[list[Kind]]) -> tuple[Group, ...]:
    """The outputs by their kinds of terms, and the rows of each group by kind."""
    profiles: dict[tuple[Kind, ...], list[int]] = {}
    for k, row in enumerate(kinds):
        profiles.setdefault(tuple(sorted(row)), []).append(k)
    groups, start = [], 0
    for profile, outputs in profiles.items():
        blocks = []
        for kind, same in groupby(profile):
            copies = len(list(same))
            blocks.append(Block(start, kind, copies))
            start += copies * len(outputs)
        groups.append(Group(tuple(outputs), tuple(blocks)))
    return tuple(groups)


def rows_of(kinds: list[list[Kind]], groups: tuple[Group, ...]) -> list[list[int]]:
    """By output and term, in the order in which they were given, the row that holds it."""
    rows: list[list[int]] = [[] for _ in kinds]
    for group in groups:
        for i, k in enumerate(group.outputs):
            free = {b.kind: count(b.start + i * b.copies) for b in group.blocks}
            rows[k] = [next(free[kind]) for kind in kinds[k]]
    return rows


def group_end(block: Block, group: Group) -> int:
    """One past the last row of a block."""
    return block.start + block.copies * len(group.outputs)
