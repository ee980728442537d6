"""Tensors of an artefact moved by the one action, beside the tensors of the model that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from paramsym.artefacts.artefact import Artefact, Pair, Tensors, Types, axes_of, own, without_head
from paramsym.artefacts.merging import lengths_of, merged_weight, summed
from paramsym.artefacts.refusals import listed, refused
from paramsym.structure.action import act_tensor
from paramsym.structure.axes import AxisType, Carried, with_parts
from paramsym.structure.element import GroupElement, Slide
from paramsym.structure.restriction import restrict
from paramsym.structure.symmetry import ParameterSymmetry


@dataclass(frozen=True)
class Mover:
    """One artefact on its way along an element; `base` has tensors of the model before it moves."""

    symmetry: ParameterSymmetry
    element: GroupElement
    artefact: Artefact
    base: Tensors

    def moved(self) -> dict[str, torch.Tensor]:
        """All tensors of the artefact after the move."""
        whole = _beside(self.artefact, self.symmetry)
        tensors = dict(self.artefact.tensors)
        tensors |= {name: self._typed(whole, name) for name in self.artefact.types}
        tensors |= {name: self._replacing(name) for name in self.artefact.replaces}
        for pair in self.artefact.pairs:
            if pair.magnitude:
                tensors[pair.magnitude] = self._magnitude(pair, tensors)
        return tensors

    def _typed(self, whole: ParameterSymmetry, name: str) -> torch.Tensor:
        """A tensor that moves by its type."""
        needed = whole.needs(own(name), self.element)
        given = {own(n): tensor for n, tensor in self.artefact.tensors.items()}
        given |= self._of_base([n for n in needed if n not in given], name)
        found = act_tensor(whole, self.element, own(name), given)
        if name not in self.artefact.absolute:
            return found
        self._orders(self.artefact.types[name], name, "coordinates")
        return found.abs()

    def _replacing(self, name: str) -> torch.Tensor:
        """A tensor that stands for one of the model, which moves as that does in its place."""
        base, ties = self.artefact.replaces[name], self.symmetry.ties
        needed = self.symmetry.needs(base, self.element)
        held = {b: self.artefact.tensors[n] for n, b in self.artefact.replaces.items()
                if b not in ties and b not in ties.values()}  # fmt: skip
        given = self._of_base([n for n in needed if n not in held], name)
        pairs = {pair.weight: pair for pair in self.artefact.pairs}
        for weight in given.keys() & pairs.keys():
            given[weight] = merged_weight(pairs[weight], self.artefact.tensors, given[weight])
        held[ties.get(base, base)] = self.artefact.tensors[name]
        return act_tensor(self.symmetry, self.element, base, {**given, **held})

    def _magnitude(self, pair: Pair, moved: Tensors) -> torch.Tensor:
        """The lengths m of a weight whose rows are scaled to them: m / ‖w‖ moves as an order.

        An element that takes each output to a multiple of an output multiplies m / ‖w‖ by nothing:
        it is one number for each output, in front of the row.
        """
        m = self.artefact.tensors[pair.magnitude]
        needed = self.symmetry.needs(pair.weight, self.element)
        base = self._of_base(needed, pair.magnitude)
        start = base[needed[0]]
        before = lengths_of(pair, summed(pair, self.artefact.tensors, start))
        weight = act_tensor(self.symmetry, self.element, pair.weight, base)
        after = lengths_of(pair, summed(pair, moved, weight))
        ratio = self._ordered(pair, m.to(before).reshape(-1) / before)
        return (ratio * after).reshape(m.shape).to(m.dtype)

    def _ordered(self, pair: Pair, numbers: torch.Tensor) -> torch.Tensor:
        """One number for each output of a weight, where outputs change places."""
        outputs = axes_of(self.symmetry, pair.weight)[1 if pair.transposed else 0]
        alone = self._orders((outputs,), pair.magnitude, f"the outputs of {pair.weight!r}")
        return act_tensor(alone, _values(self.element, alone), "m", {"m": numbers})

    def _orders(self, axes: Types, name: str, what: str) -> ParameterSymmetry:
        """The symmetry that orders alone what has these types.

        Raises `CheckpointError` where the element takes something to other than a multiple of one.
        """
        names = {n for p in self.element.parts if not isinstance(p, Slide) for n in p}
        typed = replace(self.symmetry, signature={"m": axes}, shifts=(), ties={}, offsets={})
        small = restrict(typed, spaces=sorted(names), translations=False)
        try:
            return replace(
                small, signature={"m": tuple(map(_order, small.signature["m"]))}, inputs={},
                outputs={},
            )  # fmt: skip
        except ValueError as error:
            raise refused(
                repr(name), f"the element mixes {what} ({', '.join(map(str, axes))}), whose "
                "lengths or absolute values then follow from nothing",
                "an element that takes each coordinate to a multiple of one",
                "Move the model by such: symmetry.sample(generator, only=[…]) without that space, "
                "or symmetry.restrict(groups={…: Permutation}); or measure them anew",
            ) from error  # fmt: skip

    def _of_base(self, names: Iterable[str], name: str) -> dict[str, torch.Tensor]:
        """Tensors of the model, as they were before it moved."""
        found, missing = {}, []
        for needed in names:
            known = (needed, *self.symmetry.aliases.get(needed, ()))
            known += tuple(map(without_head, known))  # files of a body alone
            at = next((n for n in known if n in self.base), None)
            if at is None:
                missing.append(needed)
            else:
                found[needed] = self.base[at]
        if missing:
            raise refused(
                f"{name!r}, base=…", f"{len(missing)} tensors of the model that the element reads "
                f"to move it are missing: {listed(missing)}",
                "the tensors of the model before it was moved",
                "Pass base=model.state_dict(), or the path of its safetensors, from before act",
            )  # fmt: skip
        return found


def _beside(artefact: Artefact, symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The symmetry with the tensors of the artefact in its signature."""
    try:
        return artefact.beside(symmetry)
    except ValueError as error:
        raise refused(
            "types of the artefact", str(error).rstrip("."),
            "types that can move", "Where it is a factor of a pair, its axis moves by copies that "
            "another axis of the weight counts, which no factor can say: merge it into the model, "
            "and move the whole. Otherwise correct the type",
        ) from error  # fmt: skip


def _order(axis: AxisType) -> AxisType:
    """How an axis carries the orders of its spaces, and nothing else of them."""
    return with_parts(axis, lambda part: Carried(tuple((s, 0 * p) for s, p in part.factors)))


def _values(element: GroupElement, symmetry: ParameterSymmetry) -> GroupElement:
    """An element without its slides, on the spaces of a symmetry."""
    parts = [part for part in element.parts if not isinstance(part, Slide)]
    own = [{n: value for n, value in part.items() if n in symmetry.spaces} for part in parts]
    return GroupElement(symmetry, tuple(part for part in own if part))
