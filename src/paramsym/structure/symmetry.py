"""The parameter symmetry of a network: what it says, and what can be done with it.

`act` turns it into motion; everything else is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from paramsym.algebra import Group
from paramsym.arguments import checked, door
from paramsym.structure.data import SymmetryData
from paramsym.structure.element import (
    AlgebraElement,
    GroupElement,
    Rotations,
    algebra,
    element,
    sample,
    velocity,
)
from paramsym.structure.files import from_json, to_json
from paramsym.structure.needs import needs
from paramsym.structure.patterns import Patterns
from paramsym.structure.restriction import restrict
from paramsym.structure.stored import fingerprint
from paramsym.structure.text import listing, table
from paramsym.structure.walk import Blocks


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
    `probed` maps operators without a rule to what was found of them on numbers (entrywise, a
    degree, odd or even) and their first place: evidence at many points, and no theorem.
    `inputs` and `outputs` are those that change basis, each with its feature axis: then
    f(g·x; g·θ) = g·f(x; θ), where g acts on them by `act_inputs` and `act_outputs`.
    `checked` says how the whole was tried on numbers; it is no part of what the symmetry is, so
    that it takes no part in equality.
    """

    # -- motion ------------------------------------------------------------------------------
    @door
    def sample(
        self,
        generator: torch.Generator,
        strength: float = 1.0,
        only: Patterns | None = None,
        dtype: torch.dtype = torch.float64,
        rotations: Rotations = "haar",
    ) -> GroupElement:
        """A random element; `only` restricts it to the spaces and shifts of these names.

        Names may be patterns, as in `restrict`; a space moves without its shifts, which have names
        of their own. Without `only`, every family that is exact takes part; approximate ones
        (`exact=False`) move when they are named.

        Rotations of a space are drawn by Haar measure. `rotations="woven"` draws those of 256
        coordinates and more as two rounds of small ones over a grid of k × m of them: as dense, and
        applied to a tensor with k + m multiplications for each number instead of k·m. They are a
        small part of all rotations: no secret, and no average over all.
        """
        return sample(self, generator, strength, only, dtype, rotations)

    def identity(self) -> GroupElement:
        """The element that moves nothing; `g[space]` reads the identity of any space off it."""
        return GroupElement(self)

    @door
    def element(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> GroupElement:
        """The element with these values, and the identity everywhere else.

        A value is an order (integers, (g x)[i] = x[order[i]]), scales, a pair of both, or a matrix,
        as the group of the space has them: `symmetry.group(space)`. Spaces with copies take one
        value per copy, with the units of what they stand over as leading dimensions, or one for
        all. Orders act first: value k is that of the copy that stands at place k then. Shifts take
        their offset δ and act after the spaces, in the order given.

        Args:
            values: by name; names with dots need a dict.
            named: the same by keyword.

        Raises:
            KeyError: a name that is neither a space nor a shift.
            ValueError: a value of another shape or kind, or outside the group (a negative scale
                through a ReLU, a singular matrix). Under `torch.func` transforms entries have no
                values, and shapes and kinds alone are checked.
        """
        return element(self, values, named)

    @door
    def velocity(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> AlgebraElement:
        """The Lie algebra element with these values, and zero everywhere else.

        A value is a vector of log-scales (complex ones for complex kinds) or a matrix of the
        algebra (skew for rotations), with copies as in `element`; shifts take their offset. Its
        `exp(t)` is the element at time t.

        Raises:
            KeyError: a name that is neither a space nor a shift.
            ValueError: a value of another shape or kind, or outside the Lie algebra.
        """
        return velocity(self, values, named)

    @door
    def algebra(self, coordinates: torch.Tensor) -> AlgebraElement:
        """The Lie algebra element with these coordinates, of shape (generators,).

        They are those of `AlgebraElement.coordinates` and, where all parameters are there, of
        `tangent`; no parameters are needed.

        Raises:
            ValueError: another number of coordinates, or no real ones.
        """
        return algebra(self, coordinates)

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 hash of what acts and how; elements on file carry it."""
        return fingerprint(self)

    @door
    def needs(self, name: str, element: GroupElement | None = None) -> tuple[str, ...]:
        """The tensors that must be together so that `act_tensor` can move one of them.

        A tensor is moved by what the tensors were before: values of spaces read the gains in whose
        frames they act, shifts read windows of other tensors. In a product each part reads what the
        earlier ones have moved, so that the list is closed under reading.

        Args:
            name: a parameter or buffer; a tied name stands for the one in the signature.
            element: the element that is to move it; without one, whatever any element may need.

        Returns:
            Names, the tensor's own first. That is the only one for most tensors, and for one that
            this symmetry does not know, as nothing moves it.
        """
        return needs(self, name, element)

    @door
    def restrict(
        self,
        groups: Callable[[int], Group] | Mapping[str, Group] | None = None,
        spaces: Patterns | None = None,
        translations: bool | None = None,
    ) -> ParameterSymmetry:
        """The restriction to a subgroup H ≤ G: the same action, fewer moves.

        Every element of the result is an element of this symmetry, space by space one of the meet
        Hₛ = Gₛ ∧ Kₙ in the lattice of listed groups, with as many copies (for subgroups of wreath
        products: Dixon and Mortimer, Permutation Groups, 1996, section 2.6). The arguments combine.

        What no longer moves leaves a fixed size in the types, or a `Trivial` index where copies of
        something else stand over it. A space whose frame is a gain keeps the frame: f P f⁻¹ is
        conjugate to P, and as much a subgroup. Where an order would come to stand beside scales on
        one axis, which no type can say, one of the two yields: whichever loses fewer dimensions
        and, if none, fewer components. `why` of each space says what became of it. Dead parameters
        stay dead, and what was checked of G holds for H.

        Args:
            groups: n ↦ a group on n coordinates, for example `Permutation`; every space keeps the
                meet of its group with it. Or a group for each of some spaces, by name; the others
                keep theirs.
            spaces: patterns of names as `print` shows them, such as `"h.{0..11}.mlp"` or
                `"*.attn.head"`; all other spaces are held still. Shifts stay if their own name or
                that of their space matches.
            translations: False leaves out all shifts.

        Raises:
            UnknownName: a pattern matches no space and no shift; a `KeyError`.
            ValueError: `groups` gives no group for the size of some space, or one with copies.
        """
        return restrict(self, groups, spaces, translations)

    @property
    def dual(self) -> ParameterSymmetry:
        """The signature of gradients and momenta: every axis type replaced by its dual.

        Gradients have no offsets, and shifts act on them by their transposes, not by sliding; see
        `act_dual` for the exact action where gains serve as frames.
        """
        return replace(
            self,
            signature={n: tuple(axis.T for axis in axes) for n, axes in self.signature.items()},
            inputs={name: feature.T for name, feature in self.inputs.items()},
            outputs={name: feature.T for name, feature in self.outputs.items()},
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
    @door
    def from_json(text: str) -> ParameterSymmetry:
        """Read what `to_json` wrote.

        Raises `ValueError` if the text is not of that form.
        """
        return ParameterSymmetry(**from_json(text))


@checked
def blocks(symmetry: SymmetryData) -> Blocks:
    """The blocks of each tensor, after sums are cut and products unfolded, with what acts on them.

    Args:
        symmetry: derived or written by hand.

    Returns:
        For each parameter and buffer of the signature its blocks, windows that tile it. A block has
        plain axes (`shape`; `block.view(tensor)` is that window of a tensor), and its `legs` say
        which space acts on which axis, to which power, in the frame of which gains, and which other
        axes of the block count the copies of its group.
    """
    return symmetry.blocks
