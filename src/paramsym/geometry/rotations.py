"""The norm along rotations in the frames of gains, and a descent over them.

In the frame f of its gains a rotation R acts on rows x by f R f⁻¹, and on a dual axis by f⁻¹ R f.
Read once, with N = Σ (f⁻¹x)(f⁻¹x)ᵀ over all blocks in one frame, the norm is

    F(R) = Σ_k tr(D_k R N_k Rᵀ),    D = f² (f⁻² with (f x)(f x)ᵀ on dual axes),

a sum of Brockett functions. One alone has its minimum where R sorts the eigenvalues of N against
D; a sum has many local minima. Blocks without a frame keep their norm and are left out.

Source: Brockett, "Dynamical systems that sort lists, diagonalize matrices, and solve linear
programming problems" (1991); Absil, Mahony and Sepulchre, Optimization Algorithms on Matrix
Manifolds (2008), chapter 8.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from paramsym.algebra import Tangent
from paramsym.algebra.linear import AbstractRotation
from paramsym.geometry.costs import counts
from paramsym.structure.axes import Frame
from paramsym.structure.data import SymmetryData, batch_of
from paramsym.structure.frames import frame_of, unframed
from paramsym.structure.layout import widened
from paramsym.structure.origin import added
from paramsym.structure.pairing import rows
from paramsym.structure.shift import Params

_STEPS = 50  # of one descent
_FALL = 1e-2  # of the slope, in one of many descents
_HALVINGS = 30
_WIDEST = 1.0  # radians of one step, at most


def rotates_in_frames(symmetry: SymmetryData, space: str) -> bool:
    """Whether a space rotates in the frame of a gain, on one axis of each block at most."""
    if not isinstance(symmetry.spaces[space].group, AbstractRotation):
        return False
    found: Counter[int] = Counter()
    for name in symmetry.parameters_of(space):
        for block in symmetry.blocks[name]:
            found[sum(leg.space == space and bool(leg.frame) for leg in block.legs)] += 1
    return bool(found[1]) and max(found) == 1


def gains_in(symmetry: SymmetryData, params: Params, space: str) -> dict[str, Tensor]:
    """The gains in whose frames a space turns, by name, in double precision."""
    frames = {item for leg in symmetry.legs(space) for item in leg.frame}
    return {f.parameter: widened(params[f.parameter].detach()) + f.offset for f in frames}


def standstill(symmetry: SymmetryData, params: Params, space: str) -> str:
    """Why a space cannot turn in its frames; nothing where it can."""
    gains = gains_in(symmetry, params, space)
    zero = sorted(name for name, gain in gains.items() if bool((gain == 0).any()))
    return f"the gain {zero[0]!r} has a zero, and nothing turns in its frame" if zero else ""


class RotationNorm:
    """F, for one space, of which every copy has a rotation of its own.

    Args:
        symmetry: whose space it is.
        params: the complete state dict, read once. Buffers cost nothing, and tied tensors count
            once.
        space: one for which `rotates_in_frames`.

    Raises:
        ValueError: a gain has a zero.
    """

    def __init__(self, symmetry: SymmetryData, params: Params, space: str) -> None:
        self.group, self.space = symmetry.spaces[space].group, space
        self.batch = batch_of(symmetry, symmetry.spaces[space])
        sums: dict[tuple[tuple[Frame, ...], bool], tuple[Tensor, Tensor]] = {}
        for name in symmetry.parameters_of(space):
            if name in symmetry.buffers or name in symmetry.ties:
                continue
            tensor = added(widened(params[name].detach()), symmetry.offsets.get(name, 0.0))
            for block in symmetry.blocks[name]:
                for leg in (leg for leg in block.legs if leg.space == space and leg.frame):
                    x = block.view(tensor)
                    frame = frame_of(leg, params, x, torch.float64)
                    own = rows(unframed(x, leg, frame), leg)
                    weight = frame.reshape(-1) ** (-2 if leg.is_dual else 2)
                    gram = (own @ own.mH).real if own.is_complex() else own @ own.mT
                    key = leg.frame, leg.is_dual
                    sums[key] = weight, sums[key][1] + gram if key in sums else gram
        self.weights = [weight for weight, _ in sums.values()]
        self.grams = [gram for _, gram in sums.values()]

    def turned(self, rotation: Tensor) -> list[Tensor]:
        """R N Rᵀ in every frame."""
        return [rotation @ gram @ rotation.mT for gram in self.grams]

    def value(self, grams: list[Tensor]) -> float:
        """F."""
        pairs = zip(self.weights, grams, strict=True)
        return sum(float((weight * gram.diagonal(0, -2, -1)).sum()) for weight, gram in pairs)

    def slope(self, grams: list[Tensor]) -> Tensor:
        """The derivatives of F along the orthonormal generators, of shape (copies…, generators)."""
        pairs = zip(self.weights, grams, strict=True)
        total = sum((2 * w[:, None] * gram for w, gram in pairs), torch.zeros_like(grams[0]))
        return self.group.coordinates(Tangent(matrix=total))

    def curvature(self, grams: list[Tensor], velocity: Tensor) -> float:
        """d²/dt² F(exp(tA) R) = Σ tr(D [A, [A, R N Rᵀ]]) for the velocity A at t = 0."""
        total = 0.0
        for weight, gram in zip(self.weights, grams, strict=True):
            once = velocity @ gram - gram @ velocity
            twice = velocity @ once - once @ velocity
            total += float((weight * twice.diagonal(0, -2, -1)).sum())
        return total

    def descended(self) -> Tensor:
        """A rotation at which F is lower, of shape (copies…, n, n), by conjugate gradients.

        A step is R ↦ exp(tA) R, where the slope at the new point is again a slope at the identity,
        so that nothing has to be transported. No step raises F.
        """
        first = self.group.identity(self.batch, torch.float64).matrix
        assert first is not None
        rotation, grams = first, self.turned(first)
        slope = self.slope(grams)
        search, start = -slope, float(slope.square().sum())
        for _ in range(_STEPS):
            step = self._step(grams, slope, search)
            if step is None:
                break
            rotation = _orthonormal(step @ rotation)
            grams, before = self.turned(rotation), slope
            slope = self.slope(grams)
            size = float(slope.square().sum())
            if size <= _FALL**2 * start:
                break
            turn = float((slope * (slope - before)).sum()) / float(before.square().sum())
            search = max(turn, 0.0) * search - slope  # Polak and Ribière
            if float((search * slope).sum()) >= 0:
                search = -slope
        return rotation

    def _step(self, grams: list[Tensor], slope: Tensor, search: Tensor) -> Tensor | None:
        """exp(tA) along a search direction, t halved until F falls as it should."""
        velocity = self.group.tangent(search).matrix
        fall = float((slope * search).sum())
        if velocity is None or fall >= 0:
            return None
        curvature = self.curvature(grams, velocity)
        widest = _WIDEST / float(torch.linalg.matrix_norm(velocity, 2).max())
        length = min(widest, -fall / curvature) if curvature > 0 else widest
        here = self.value(grams)
        for _ in range(_HALVINGS):
            step = torch.linalg.matrix_exp(length * velocity)
            there = self.value([step @ gram @ step.mT for gram in grams])
            if there <= here + 1e-4 * length * fall:
                return step if there < here else None
            length /= 2
        return None


def _orthonormal(rotation: Tensor) -> Tensor:
    """A rotation up to rounding without that rounding; the vectors that it fixes stay fixed."""
    return 1.5 * rotation - 0.5 * rotation @ (rotation.mT @ rotation)


def rotation_moments(symmetry: SymmetryData, params: Params) -> dict[str, float]:
    """How fast the squared norm changes along rotations in the frames of gains.

    Returns:
        By space the largest derivative along an orthonormal generator, relative to Σ θ² over all
        parameters, buffers left out. Spaces that stand still have none.
    """
    spaces = [name for name in symmetry.spaces if rotates_in_frames(symmetry, name)]
    found = {}
    for space in (name for name in spaces if not standstill(symmetry, params, name)):
        found[space] = steepest(symmetry, params, space) / _squares(symmetry, params)
    return found


def steepest(symmetry: SymmetryData, params: Params, space: str) -> float:
    """The largest derivative of Σ θ² along an orthonormal generator of one space."""
    norm = RotationNorm(symmetry, params, space)
    return float(norm.slope(norm.grams).abs().max())


def _squares(symmetry: SymmetryData, params: Params) -> float:
    total = 0.0
    for name in symmetry.signature:
        tensor = params[name]
        if name not in symmetry.buffers and name not in symmetry.ties and counts(tensor):
            wide = added(widened(tensor.detach()), symmetry.offsets.get(name, 0.0))
            total += float(wide.abs().square().sum())
    return total or 1.0
