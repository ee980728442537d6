"""The model owner against the data owner: who knows θ and is sent g·θ has the key of the inputs.

Section IV lets Alice move the first layer by W₁ ↦ h W₁ A⁻¹, with a secret A on the inputs and h on
the hidden units, and argues that A is "only identifiable up to a large invariance group". It is
not: h acts on the other side of W₁. The output is fixed, so that orders, scales, signs and bases of
hidden spaces follow layer by layer from the tensors that no input touches; with h undone

    W₁ A⁻¹ = W₁″        A⁻¹ = W₁⁺ W₁″

wherever W₁ has full column rank. Where it has not, W₁⁺ W₁″ is A⁻¹ on what the first layer sees, the
span of its rows, and of A nothing else stands in the parameters. The other side sees x̃ = A x, and
so has P x = W₁⁺ W₁″ x̃ with the projector P = W₁⁺ W₁: all of x that the network sees.

Products of keys are a key. Polarity masks are signs of hidden units and follow with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import process_time

import torch
from torch import Tensor

from paramsym.algebra import AbstractMonomial
from paramsym.geometry.alignment import align
from paramsym.privacy.attacks.attempt import Attempt, NotApplicable
from paramsym.privacy.attacks.polarity import with_signs
from paramsym.privacy.attacks.strangers import shuffled
from paramsym.privacy.attacks.told_units import told_units
from paramsym.privacy.attacks.untouched import Untouched, input_spaces, untouched
from paramsym.privacy.job import Job
from paramsym.structure.action import act
from paramsym.structure.element import GroupElement
from paramsym.structure.pairing import rows
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.walk import Block, Leg

Params = Mapping[str, Tensor]
_FITS = {torch.float64: 1e-6, torch.float32: 1e-2}  # what is left where own parameters fit
_FITS_HALF = 0.1
_ALIGNED = 3  # matchings, each from where the last one led: rounding of balance cancels
_EXACT = 1e-13  # a distance that is nothing but rounding
_RANK = 1e-9  # of the largest singular value


@dataclass(frozen=True, eq=False)
class InputKey:
    """What parameters and their moved copy tell of a key on the inputs.

    Attributes:
        inverses: by space of a freed input B = W₁⁺ W₁″, of shape (n, n): A⁻¹ on what is seen.
        seen: by space the projector P = B A on the span of what the first layers read, (n, n).
        residual: what is left of the moved parameters when all that was found is taken away,
            relative to their size: rounding if the parameters are those that were moved, and about
            one if they are others.
        tolerance: the residual up to which they fit.
        is_checked: whether there are more equations than unknowns, so that the residual can tell.
        held: what could not be determined, with the reason.
    """

    inverses: dict[str, Tensor]
    seen: dict[str, Tensor]
    residual: float
    tolerance: float
    is_checked: bool
    held: dict[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the parameters are seen to be those that were moved; that takes no key."""
        return self.is_checked and self.residual <= self.tolerance

    def rank(self, space: str) -> int:
        """In how many dimensions the key of a space is known."""
        return round(float(self.seen[space].diagonal(dim1=-2, dim2=-1).sum()))

    def matrix(self, space: str) -> Tensor | None:
        """A itself, if all of it is known."""
        inverse = self.inverses[space]
        known = self.rank(space) == inverse[..., 0].numel()
        return torch.linalg.inv(inverse) if known else None


def recover_input_key(
    symmetry: ParameterSymmetry, own: Params, sent: Params, signs: bool = False
) -> InputKey:
    """The key on freed inputs, from parameters θ and g·θ.

    Hidden spaces are matched by `align` on the tensors that no input touches, and undone; then each
    input is solved for by least squares over all tensors that read it. Units that these tensors do
    not tell apart (equal ones, dead ones) are left out of that. An input that orders and scales
    move, or that is part of a residual stream, is matched with the hidden spaces.

    Args:
        symmetry: with freed inputs; outputs are fixed, or move as well and are matched, too.
        own: θ, the complete state dict that the attacker has.
        sent: g·θ, as it came.
        signs: whether hidden units may have polarity masks that are not known.

    Returns:
        An `InputKey`; it tells by its residual whether θ was the right one.

    Raises:
        ValueError: as `align`, or no input is freed.
    """
    if not input_spaces(symmetry):
        raise ValueError(
            "recover_input_key(symmetry, …): the symmetry moves no input, and one that does was "
            "expected. Find it with find_symmetry(model, x, free_inputs=True)."
        )
    symmetry = with_signs(symmetry) if signs else symmetry
    kinds = [p.dtype for p in sent.values() if p.is_floating_point()]
    tolerance = max((_FITS.get(kind, _FITS_HALF) for kind in kinds), default=_FITS_HALF)
    own, sent = _doubled(own), _doubled(sent)
    left = untouched(symmetry)
    found = _recovered(left, own, sent, tolerance)
    if left.through and not found.fits:  # what acts through projectors rests where all is balanced
        other = _recovered(untouched(symmetry, nothing=True), own, sent, tolerance)
        found = other if other.fits else found
    return found


def _recovered(left: Untouched, own: Params, sent: Params, tolerance: float) -> InputKey:
    """The key from the part of a network that inputs do not touch."""
    symmetry = left.whole
    own, sent = left.at_rest(own), left.at_rest(sent)
    element, distance, held = _matched(left.symmetry, left.part(own), left.part(sent))
    held |= {s.name: f"it acts through a projector ({s.family})" for s in left.through}
    own = act(symmetry, GroupElement(symmetry, element.parts), own)
    told = told_units(left.symmetry, left.part(sent))
    inverses, seen, checks = {}, {}, [(bool(left.symmetry.signature), distance)]
    for name in input_spaces(symmetry):
        if name in left.spaces:
            inverses[name], seen[name], *check = _least_squares(symmetry, name, own, sent, told)
            checks.append((bool(check[0]), check[1]))
        else:
            inverses[name], seen[name] = _as_matched(symmetry, name, element, told, held)
    checked = any(tells for tells, _ in checks)
    return InputKey(inverses, seen, max(size for _, size in checks), tolerance, checked, held)


def _doubled(params: Params) -> dict[str, Tensor]:
    """Numbers in double precision, so that what is lost is what was sent rounded."""
    return {n: p.detach().double() if p.is_floating_point() else p for n, p in params.items()}


def _matched(
    hidden: ParameterSymmetry, own: Params, sent: Params
) -> tuple[GroupElement, float, dict[str, str]]:
    """The element that carries own tensors to those that were sent, and how far apart they stay."""
    found = align(hidden, sent, own)
    element, distance, held = found.element, found.distance, found.held
    for _ in range(_ALIGNED - 1):
        if distance <= _EXACT:
            break
        found = align(hidden, sent, found.params)
        if found.distance > distance:
            break
        element, distance = found.element @ element, found.distance
    return element, distance, held


def _least_squares(
    symmetry: ParameterSymmetry, space: str, own: Params, sent: Params, told: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, bool, float]:
    """B = W⁺ W″ and P = W⁺ W over all tensors that read a space; whether there are more equations
    than that takes, and the relative residual.

    Rows of W are what single units read. They are brought to one size, for scales of hidden units
    say nothing of how well a row is known.
    """
    pairs = [
        (rows(block.view(own[block.parameter]), leg), rows(block.view(sent[block.parameter]), leg),
         _known(block, leg, told))
        for block, leg in _read(symmetry, space)
    ]  # fmt: skip
    own_rows, sent_rows = (
        torch.cat([pair[side][:, pair[2]] for pair in pairs], -1).mT for side in (0, 1)
    )
    size = torch.linalg.vector_norm(own_rows, dim=-1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    own_rows, sent_rows = own_rows / size, sent_rows / size
    u, values, vh = torch.linalg.svd(own_rows, full_matrices=False)
    rank = int((values > _RANK * values.amax()).sum()) if values.numel() else 0
    u, values, vh = u[:, :rank], values[:rank], vh[:rank]
    inverse = vh.mT @ ((u.mT @ sent_rows) / values[:, None])
    left = float((own_rows @ inverse - sent_rows).norm())
    residual = left / (float(sent_rows.norm()) or 1.0)
    return inverse, vh.mT @ vh, len(own_rows) > rank, residual


def _read(symmetry: ParameterSymmetry, space: str) -> Iterator[tuple[Block, Leg]]:
    """The blocks that read a space, with the leg that does."""
    for name in symmetry.parameters_of(space):
        for block in symmetry.blocks[name]:
            yield from ((block, leg) for leg in block.legs if leg.space == space)


def _known(block: Block, leg: Leg, told: Mapping[str, Tensor]) -> Tensor:
    """Which entries beside an axis belong to units that are told, as `rows` lays them out."""
    known = torch.ones(block.shape, dtype=torch.bool)
    for other in block.legs:
        if other is leg:
            continue
        known = known & _laid(told[other.space], (*other.copies, other.axis), len(block.shape))
    return rows(known, leg)[0]


def _laid(mask: Tensor, axes: tuple[int, ...], ndim: int) -> Tensor:
    """A mask over some axes of a block, to be broadcast over the others."""
    mask = mask.permute(sorted(range(len(axes)), key=lambda k: axes[k]))
    return mask[tuple(slice(None) if axis in axes else None for axis in range(ndim))]


def _as_matched(
    symmetry: ParameterSymmetry,
    name: str,
    element: GroupElement,
    told: Mapping[str, Tensor],
    held: Mapping[str, str],
) -> tuple[Tensor, Tensor]:
    """B and P of an input that was matched with the hidden spaces."""
    space = symmetry.spaces[name]
    value = GroupElement(symmetry, element.parts)[name]
    assert not isinstance(value, Tensor)
    matrix = space.group.matrix(value, torch.float64)
    known = told[name].double()
    if name in held and not isinstance(space.group, AbstractMonomial):
        known = torch.zeros_like(known)
    inverse = torch.linalg.inv(matrix) * known[..., None, :]  # what is not told is left out
    return inverse, inverse @ matrix


# -- against a job ---------------------------------------------------------------------------------


def key_error(symmetry: ParameterSymmetry, element: GroupElement, found: InputKey) -> float:
    """‖Â − A‖ / ‖A‖, or ‖B A − P‖ / ‖P‖ where only a part of A is known; 1 where nothing is.

    The largest over all inputs; the attacker does not know it.
    """
    errors = []
    for name, inverse in found.inverses.items():
        value = element[name]
        assert not isinstance(value, Tensor)
        key = symmetry.spaces[name].group.matrix(value, torch.float64)
        recovered, seen = found.matrix(name), found.seen[name]
        if recovered is not None:
            errors.append(float((recovered - key).norm() / key.norm()))
        elif float(seen.norm()):
            errors.append(float((inverse @ key - seen).norm() / seen.norm()))
        else:
            errors.append(1.0)
    return max(errors, default=1.0)


def attempt(job: Job) -> Attempt:
    """The key of the inputs, from the parameters that the model owner has.

    It succeeds if the error is at most √ε of the precision that was sent. The control are the same
    parameters with the entries of each tensor in another order, a network that is no relative.

    Raises:
        NotApplicable: the key moves no input.
    """
    acting = job.key.acting
    if not input_spaces(acting):
        raise NotApplicable("the key leaves the inputs as they are")
    own, sent = job.model.state_dict(), job.view.state_dict
    start = process_time()
    found = recover_input_key(acting, own, sent)
    seconds = process_time() - start
    stranger = recover_input_key(acting, shuffled(own, job.seed), sent)
    error = key_error(acting, job.key.element, found)
    control = key_error(acting, job.key.element, stranger)
    names = [*found.inverses]
    rank = sum(found.rank(name) for name in names)
    size = sum(found.inverses[name][..., 0].numel() for name in names)
    whole = rank == size
    eps = max(torch.finfo(p.dtype).eps for p in sent.values() if p.is_floating_point())
    succeeded = rank > 0 and error <= eps**0.5
    return Attempt(
        attack="the key of the inputs, from one's own parameters",
        claim="data",
        needs="the parameters before the key moved them, as the owner of the model has them",
        measure="relative error of A" if whole else f"relative error of A on {rank} of {size}",
        value=error,
        control=control,
        control_is="parameters of the same shapes and entries in another order",
        succeeded=succeeded,
        control_failed=control >= 0.1 and not stranger.fits,
        seconds=seconds,
        says=_said(succeeded, rank, size),
    )


def _said(succeeded: bool, rank: int, size: int) -> str:
    if not succeeded:
        return "The parameters do not determine the key of the inputs."
    if rank == size:
        return "The owner of the model has A, and with it every input."
    return (
        f"The first layer sees {rank} of {size} dimensions of the inputs; the owner of the model "
        "has these of every input, and the parameters tell nothing of the others."
    )
