"""The parameter symmetry of a network: what it says, and what can be done with it.

`act` turns it into motion; everything else is derived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from paramsym.structure.data import SymmetryData
from paramsym.structure.element import GroupElement, sample
from paramsym.structure.files import from_json, to_json
from paramsym.structure.text import listing, table


@dataclass(frozen=True)
class ParameterSymmetry(SymmetryData):
    """Everything by which the parameters of a network can move without changing its function.

    `signature` maps a parameter or buffer to one axis type per axis; `ties` maps further names of
    the same tensor to the one in the signature; `offsets` are constants that the model adds to a
    parameter before using it (a gain stored as γ − 1; `Diagonal` for W + I), so that the group acts
    on the sum.
    `unreached` lists rows of tables that inputs of the given shapes never read: dead at these
    shapes, and counted as such, but left alone by `sample` because longer inputs may read them.
    `random` maps operators that draw numbers to their first place: past them the symmetry holds in
    distribution, as with numbers drawn anew and not number by number.
    `checked` says how the whole was tried on numbers; it is no part of what the symmetry is, so
    that it takes no part in equality.
    """

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
        move when they are named.
        """
        return sample(self, generator, strength, only, dtype)

    def only(self, *names: str) -> ParameterSymmetry:
        """The symmetry without its shifts, or with the named shifts alone."""
        return replace(self, shifts=tuple(s for s in self.shifts if s.name in names))

    @property
    def dual(self) -> ParameterSymmetry:
        """The signature of gradients and momenta: every axis type replaced by its dual.

        Gradients have no offsets, and shifts act on them by their transposes, not by sliding; see
        `act_dual` for the exact action where gains serve as frames.
        """
        return replace(
            self,
            signature={n: tuple(axis.T for axis in axes) for n, axes in self.signature.items()},
            shifts=(),
            offsets={},
        )

    # -- text and files ----------------------------------------------------------------------
    def __str__(self) -> str:
        return listing(self)

    def table(self) -> str:
        """The signature in full, tensor by tensor, and every space and shift by itself."""
        return table(self)

    def to_json(self) -> str:
        """The whole structure as JSON text; `from_json` reads it back to an equal value."""
        return to_json(self)

    @staticmethod
    def from_json(text: str) -> ParameterSymmetry:
        """Read what `to_json` wrote.

        Raises `ValueError` if the text is not of that form.
        """
        return ParameterSymmetry(**from_json(text))
