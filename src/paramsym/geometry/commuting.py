"""The largest subgroup of a symmetry that commutes with what trains the parameters.

A space moves the tensors that carry it, axis by axis. Where one of them is trained, its group is
met with what the update commutes with on that axis, for every update of a step:

    Hₛ = Gₛ ∧ O(n)      inner products alone (SGD, momentum, decay, clipping by the norm)
    Hₛ = Gₛ ∧ {±1} ≀ Sₙ   entry by entry (Adam, RMSprop, …)

and a space that moves frozen tensors alone keeps its group. Every representation that a type names
is orthogonal where its element is: powers of signs and orders, duals, sums and products. What acts
in the frame of a gain is not, for the frame is trained: it moves as an order that carries the gain
along. Where the model adds a constant to a parameter, 1 + w, and the step measures w itself, groups
are met with what keeps the constant, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from paramsym.algebra import AbstractMonomial, Group, Permutation, Trivial
from paramsym.algebra.lattice import monomial
from paramsym.geometry.plain_orders import plain_orders
from paramsym.geometry.updates import Kind, Optimizers, Update, updates_of
from paramsym.structure.axes import AxisType, parts_of, spaces_of
from paramsym.structure.origin import Diagonal
from paramsym.structure.shift import Shift
from paramsym.structure.symmetry import ParameterSymmetry


def commuting_subgroup(
    symmetry: ParameterSymmetry,
    optimizer: Optimizers,
    *,
    trainable: Collection[str] | None = None,
    scalings: bool = False,
) -> ParameterSymmetry:
    """The restriction to the elements g that training commutes with: step(g·θ) = g·step(θ).

    Args:
        symmetry: of the model in training mode, with or without freed inputs and outputs.
        optimizer: an optimiser of `torch.optim`, its class or name, or several parts of one step,
            `("adam", "clip_grad_norm")`; None for no training, with which everything commutes.
        trainable: names of the parameters that are trained; by default all that are no buffers.
        scalings: keep positive scales, too. They commute with rates for each entry alone; see
            `Key.learning_rates`.

    Returns:
        A symmetry whose every element commutes, exactly but for rounding. `why` of each space says
        what it was restricted by. Translations are left out unless the update is made of inner
        products and decays nothing.

    Raises:
        ValueError: nothing is known of an optimiser, or `trainable` names no parameter.

    Source: the source text's section VI-G claims it for "standard training (SGD, Adam, …)" and all
    of the group; it holds for this subgroup.
    """
    updates = updates_of(optimizer)
    if not updates:
        return symmetry
    symmetry = plain_orders(symmetry)
    moving = {*symmetry.signature} - {*symmetry.buffers}
    if trainable is not None:
        moving &= {symmetry.ties.get(name, name) for name in trainable}
        _require_known(symmetry, trainable)
    groups = {
        name: group for name in symmetry.spaces
        if (group := _largest(symmetry, name, updates, moving, scalings)) is not None
    }  # fmt: skip
    smaller = symmetry.restrict(groups=groups)
    return replace(smaller, shifts=tuple(_translations(smaller, updates)))


def orthogonal_part(symmetry: ParameterSymmetry) -> ParameterSymmetry:
    """The elements that act by orthogonal matrices on every trained tensor: no translations."""
    return commuting_subgroup(symmetry, _ANY_LINEAR)


_ANY_LINEAR = Update("any step of inner products", Kind.INNER_PRODUCTS, decays=True)


def _require_known(symmetry: ParameterSymmetry, trainable: Collection[str]) -> None:
    """Raise a `ValueError` for a name of no parameter: what trains unseen would be moved freely."""
    known = {*symmetry.signature, *symmetry.ties} - {*symmetry.buffers}
    if strange := sorted({*trainable} - known):
        raise ValueError(
            f"commuting_subgroup(trainable=…): {strange[0]!r} is none of the {len(known)} "
            f"parameters of the model, such as {sorted(known)[:3]}. Names of named_parameters() "
            "were expected. Leave trainable out if all are trained."
        )


def _largest(
    symmetry: ParameterSymmetry, name: str, updates: Iterable[Update], trained: set[str],
    scalings: bool,
) -> Group | None:  # fmt: skip
    """What all updates commute with on a space; None if they do not see it."""
    carriers = [n for n in symmetry.parameters_of(name) if n in trained]
    if not carriers:
        return None
    size = symmetry.spaces[name].size
    if any(each.keeps_axes and _crosses(symmetry, name, carriers) for each in updates):
        return Trivial(size)
    group = symmetry.spaces[name].group
    scaled = scalings and isinstance(group, AbstractMonomial)
    for update in updates:
        group &= monomial(size, True, True, True) if scaled else update.group(size)
    if any(each.measures for each in updates):
        group = _fixing_constants(symmetry, name, carriers, group)
    return group


def _fixing_constants(
    symmetry: ParameterSymmetry, name: str, tensors: Iterable[str], group: Group
) -> Group:
    """What of a space keeps the constants that the model adds to parameters.

    A gain that is stored as w = γ − 1 moves by w ↦ s w + (s − 1). A sign is no linear map of w,
    so that a step which pulls w to zero, or takes its length, does not commute with it; an order
    is. W + I moves as W does where both of its axes carry the same.
    """
    size = symmetry.spaces[name].size
    for tensor in tensors:
        origin, axes = symmetry.offsets.get(tensor, 0.0), symmetry.signature[tensor]
        if isinstance(origin, Diagonal):
            group = group if axes[0].T == axes[1] else Trivial(size)
        elif origin and name in {space for axis in axes for space in _oddly(axis)}:
            group &= Permutation(size)
    return group


def _oddly(axis: AxisType) -> Iterator[str]:
    """The spaces of an axis whose signs or scales reach it; of others it has orders alone."""
    return (s for part in parts_of(axis) for s, power in part.factors if power % 2)


def _crosses(symmetry: ParameterSymmetry, name: str, tensors: Iterable[str]) -> bool:
    """Whether copies of a space on one axis of a matrix are told apart by the other.

    Axes before the last two count matrices, each of which is treated by itself.
    """
    over = {*symmetry.spaces[name].over}

    def crosses(axes: tuple[AxisType, ...]) -> bool:
        carried = [{*spaces_of(axis)} for axis in axes]
        return any(
            name in own and over & other
            for k, own in enumerate(carried)
            for j, other in enumerate(carried) if j != k and j >= len(axes) - 2
        )  # fmt: skip

    return bool(over) and any(crosses(symmetry.signature[tensor]) for tensor in tensors)


def _translations(symmetry: ParameterSymmetry, updates: Iterable[Update]) -> Iterator[Shift]:
    """The shifts by constants, if nothing pulls parameters back and lengths alone are measured.

    Running statistics of what is shifted would have to be shifted as well, which no shift says.
    """
    free = all(each.kind is Kind.INNER_PRODUCTS and not each.decays for each in updates)
    if free and not symmetry.buffers:
        for shift in symmetry.shifts:
            if shift.is_constant:
                yield shift
