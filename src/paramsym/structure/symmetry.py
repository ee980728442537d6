"""The parameter symmetry of a network: spaces, signature, shifts, dead parameters.

A `ParameterSymmetry` holds no weights. It says which groups act on which feature spaces, how every
axis of every parameter carries them, along which additive directions parameters may slide, and
which parameters the function ignores. `act` turns it into motion; everything else is derived.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from paramsym.algebra import AbstractMonomial, Group, Wreath, parse_group
from paramsym.structure.axes import (
    AxisType,
    Carried,
    frames_of,
    parse_axis,
    parts_of,
    spaces_of,
)
from paramsym.structure.clashes import Clashes, clashes
from paramsym.structure.element import GroupElement, sample
from paramsym.structure.placing import misplaced


@dataclass(frozen=True)
class Space:
    """Coordinates of one kind of feature, and the group that may act on them.

    `over` names spaces of which every unit has its own copy of the group (coordinates over heads).
    `order_of` names the space whose permutation this one shares: that is how spaces are tied.
    `why` says what keeps the group from being larger.
    """

    name: str
    group: Group
    over: tuple[str, ...] = ()
    order_of: str | None = None
    why: str = ""
    exact: bool = True

    @property
    def size(self) -> int:
        return self.group.size


@dataclass(frozen=True)
class Window:
    """A strided view of one parameter, with a letter for each dimension."""

    parameter: str
    letters: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    def view(self, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tensor = params[self.parameter]
        flat = tensor if tensor.is_contiguous() else tensor.contiguous()
        return flat.as_strided(self.shape, self.strides, self.start + flat.storage_offset())

    def __str__(self) -> str:
        return f"{self.parameter}[{' '.join(self.letters)}]"


@dataclass(frozen=True)
class Factor:
    """A coefficient read from the parameters: (window + offset)^power.

    With `kernel`, instead: the orthogonal projector, with letters x and y, onto the vectors that
    are orthogonal to every column of these windows along their letter x.
    """

    window: Window
    power: float = 1.0
    offset: float = 0.0
    kernel: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Term:
    """What one shift does to one parameter: window += coefficient · Σ δ · factors / divisor."""

    target: Window
    coefficient: float = 1.0
    factors: tuple[Factor, ...] = ()
    divided: bool = False


@dataclass(frozen=True)
class Shift:
    """An additive symmetry: parameters slide along a free δ, with what compensates it.

    δ has the dimensions `letters` of the given `shape`. All terms read the parameters as they are
    before the shift. Where `divisor` is given, `divided` terms are divided by 1 + Σ δ·divisor,
    which makes the finite motion exact; to first order the divisor plays no role.
    """

    name: str
    family: str
    letters: str
    shape: tuple[int, ...]
    terms: tuple[Term, ...]
    divisor: tuple[Factor, ...] | None = None

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that the shift moves."""
        return tuple(dict.fromkeys(term.target.parameter for term in self.terms))


@dataclass(frozen=True)
class ParameterSymmetry:
    """Everything by which the parameters of a network can move without changing its function.

    `signature` maps a parameter or buffer to one axis type per axis; `ties` maps further names of
    the same tensor to the one in the signature; `offsets` are constants that the model adds to a
    parameter before using it (a gain stored as γ − 1), so that the group acts on the sum.
    `unreached` lists rows of tables that inputs of the given shapes never read: dead at these
    shapes, and counted as such, but left alone by `sample` because longer inputs may read them.
    """

    spaces: Mapping[str, Space]
    signature: Mapping[str, tuple[AxisType, ...]]
    shifts: tuple[Shift, ...] = ()
    dead: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unreached: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for space in self.spaces.values():
            for base in (*space.over, *((space.order_of,) if space.order_of else ())):
                _require_space(self.spaces, base, f"spaces={{{space.name!r}: …}}", "it stands over")
            for base in space.over:
                if not set(self.spaces[base].over) <= {*space.over}:
                    raise ValueError(
                        f"ParameterSymmetry(spaces={{{space.name!r}: …}}): it stands over "
                        f"{space.over}, but {base!r} has copies itself, over "
                        f"{self.spaces[base].over}; what stands over a space must stand over all "
                        f"that is below. Add them to Space({space.name!r}, over=…)."
                    )
        for name, axes in self.signature.items():
            for axis in axes:
                for space in spaces_of(axis):
                    _require_space(
                        self.spaces, space, f"signature={{{name!r}: …}}", f"'{axis}' carries"
                    )
                for item in parts_of(axis):
                    _check_factors(self.spaces, name, item)
        for space, base, name in misplaced(self.spaces, self.signature):
            axes = ", ".join(map(str, self.signature[name]))
            raise ValueError(
                f"ParameterSymmetry(signature={{{name!r}: …}}): the type ({axes}) carries "
                f"{space!r}, which has a copy for each unit of {base!r}, but no axis carries "
                f"{base!r}, so that it does not say which copy is meant. Add it to the type, or "
                f"leave it out of Space({space!r}, over=…)."
            )

    # -- what it is --------------------------------------------------------------------------
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a parameter must have."""
        sizes = {s.name: s.size for s in self.spaces.values()}
        return tuple(axis.size(sizes) for axis in self.signature[name])

    def parameters_of(self, space: str) -> list[str]:
        """Parameters and buffers that move with a space, directly or through its order."""
        tied = {s.name for s in self.spaces.values() if space in (s.name, s.order_of)}
        return [
            name
            for name, axes in self.signature.items()
            if any(found in tied for axis in axes for found in spaces_of(axis))
        ]

    def group(self, space: str) -> Group:
        """The group of a space with all its copies: G, or G ≀ S_n over a permuted index."""
        own = self.spaces[space]
        group: Group = own.group
        for base in reversed(own.over):
            group = Wreath(group, self.spaces[base].size)
        return group

    def dimension(self, space: str) -> int:
        """Continuous dimension of a space, all copies together."""
        own = self.spaces[space]
        return own.group.dimension * math.prod(self.spaces[base].size for base in own.over)

    def log_order(self) -> float:
        """log₁₀ of the number of equivalent copies by discrete moves (permutations, signs)."""
        total = 0.0
        for space in self.spaces.values():
            group = space.group
            if space.order_of is not None:  # its permutation is counted with the one it shares
                group = _without_order(group)
            copies = math.prod(self.spaces[base].size for base in space.over)
            total += group.log_order * copies
        return total / math.log(10)

    @cached_property
    def clashes(self) -> Clashes:
        """Each change of basis with the spaces that do not commute with it."""
        return clashes(self)

    # -- motion ------------------------------------------------------------------------------
    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        only: list[str] | tuple[str, ...] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> GroupElement:
        """A random element; `only` restricts it to the named spaces and shifts.

        Without `only`, every family that is exact takes part; approximate ones (`exact=False`)
        move when they are named. Naming a space whose order others share moves their order as
        well, as it must.
        """
        return sample(self, generator, strength, only, dtype)

    def only(self, *names: str) -> ParameterSymmetry:
        """The symmetry without its shifts, or with the named shifts alone."""
        return replace(self, shifts=tuple(s for s in self.shifts if s.name in names))

    @property
    def dual(self) -> ParameterSymmetry:
        """The signature of gradients and momenta: every axis type replaced by its dual.

        Shifts act on gradients by their transposes, not by sliding; see `act_dual` for the exact
        action where gains serve as frames.
        """
        return replace(
            self,
            signature={n: tuple(axis.T for axis in axes) for n, axes in self.signature.items()},
            shifts=(),
        )

    # -- text and files ----------------------------------------------------------------------
    def __str__(self) -> str:
        width = max((len(n) for n in self.signature), default=0)
        lines = [
            f"{name:<{width}}  " + ", ".join(map(str, axes))
            for name, axes in self.signature.items()
        ]
        lines += ["", *(f"{s.name}: {_describe(s)}" for s in self.spaces.values())]
        lines += [f"{s.name}: {s.family}, {s.dimension} free" for s in self.shifts]
        lines += [f"{name}: dead" for name in self.dead]
        lines += [f"{name}: {len(rows)} rows not reached" for name, rows in self.unreached.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The whole structure as JSON text; `from_json` reads it back to an equal value."""
        return json.dumps(
            {
                "format": "paramsym/1",
                "spaces": [
                    {
                        "name": s.name, "group": str(s.group), "over": s.over,
                        "order_of": s.order_of, "why": s.why, "exact": s.exact,
                    }
                    for s in self.spaces.values()
                ],
                "signature": {n: [str(a) for a in axes] for n, axes in self.signature.items()},
                "shifts": [_shift_to_dict(s) for s in self.shifts],
                "dead": self.dead, "ties": dict(self.ties), "offsets": dict(self.offsets),
                "buffers": self.buffers,
                "reasons": {n: list(r) for n, r in self.reasons.items()},
                "unknown": dict(self.unknown),
                "unreached": {n: list(r) for n, r in self.unreached.items()},
            },
            indent=1,
        )  # fmt: skip

    @staticmethod
    def from_json(text: str) -> ParameterSymmetry:
        """Read what `to_json` wrote.

        Raises `ValueError` if the text is not of that form.
        """
        try:
            data = json.loads(text)
            if data["format"] != "paramsym/1":
                raise KeyError(data["format"])
            spaces = {
                s["name"]: Space(s["name"], parse_group(s["group"]), tuple(s["over"]),
                                 s["order_of"], s["why"], s["exact"])
                for s in data["spaces"]
            }  # fmt: skip
            return ParameterSymmetry(
                spaces,
                {n: tuple(map(parse_axis, axes)) for n, axes in data["signature"].items()},
                tuple(map(_shift_from_dict, data["shifts"])),
                tuple(data["dead"]),
                data["ties"],
                data["offsets"],
                tuple(data["buffers"]),
                {n: tuple(r) for n, r in data["reasons"].items()},
                data["unknown"],
                {n: tuple(r) for n, r in data["unreached"].items()},
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"ParameterSymmetry.from_json: the text lacks or misspells {error}. Expected what "
                "ParameterSymmetry.to_json writes (format 'paramsym/1'). Write the file anew."
            ) from error

    @property
    def frame_parameters(self) -> set[str]:
        """Gains in whose frame some axis is moved."""
        return {f.parameter for axes in self.signature.values() for a in axes for f in frames_of(a)}


def _require_space(spaces: Mapping[str, Space], name: str, where: str, how: str) -> None:
    if name not in spaces:
        raise ValueError(
            f"ParameterSymmetry({where}): {how} the space {name!r}, which is not among the spaces "
            f"{sorted(spaces)[:8]}. Add the space or correct the name."
        )


def _check_factors(spaces: Mapping[str, Space], name: str, item: Carried) -> None:
    """Changes of basis come first, alone and without powers."""
    for k, (space, power) in enumerate(item.factors):
        group = spaces[space].group
        if isinstance(group, AbstractMonomial):
            continue
        if power not in (1, -1):
            raise ValueError(
                f"{space!r} carries {group}; an entrywise power is a representation "
                f"only of a monomial group. {name!r} therefore needs that axis to be "
                "monomial or fixed."
            )
        if k:
            raise ValueError(
                f"ParameterSymmetry(signature={{{name!r}: …}}): in '{item}' the change of basis "
                f"{space!r} ({group}) comes after another factor, but at most one was expected, "
                "and first. Write it first, or give the two spaces one group."
            )


def _describe(space: Space) -> str:
    text = str(space.group)
    if space.over:
        text += " over " + ", ".join(space.over)
    if space.order_of:
        text += f", in the order of {space.order_of}"
    return text


def _without_order(group: Group) -> Group:
    from paramsym.algebra import (  # fmt: skip
        Monomial,
        Permutation,
        PositiveScaling,
        Scaling,
        SignedPermutation,
        Signs,
        Trivial,
    )

    if isinstance(group, Permutation):
        return Trivial(group.size)
    if isinstance(group, SignedPermutation):
        return Signs(group.size)
    if isinstance(group, Monomial):
        return Scaling(group.size) if group.signed else PositiveScaling(group.size)
    return group


def _shift_to_dict(shift: Shift) -> dict[str, Any]:
    def factor(f: Factor) -> list:
        return [_window(f.window), f.power, f.offset, [_window(w) for w in f.kernel]]

    return {
        "name": shift.name, "family": shift.family, "letters": shift.letters,
        "shape": shift.shape,
        "terms": [[_window(t.target), t.coefficient, [factor(f) for f in t.factors], t.divided]
                  for t in shift.terms],
        "divisor": None if shift.divisor is None else [factor(f) for f in shift.divisor],
    }  # fmt: skip


def _window(w: Window) -> list:
    return [w.parameter, w.letters, list(w.shape), list(w.strides), w.start]


def _shift_from_dict(data: dict[str, Any]) -> Shift:
    def window(item: list) -> Window:
        return Window(item[0], item[1], tuple(item[2]), tuple(item[3]), item[4])

    def factor(item: list) -> Factor:
        return Factor(window(item[0]), item[1], item[2], tuple(map(window, item[3])))

    return Shift(
        data["name"], data["family"], data["letters"], tuple(data["shape"]),
        tuple(Term(window(t[0]), t[1], tuple(map(factor, t[2])), t[3]) for t in data["terms"]),
        None if data["divisor"] is None else tuple(map(factor, data["divisor"])),
    )  # fmt: skip
