"""The field −∇L between kinks, and how it goes on at one.

At a kink z = 0 the field f jumps. With the rate ż = ⟨∂z, f⟩ on either side, the flow

    crosses   where both rates have one sign,
    slides    along z = 0 where either side leads back to it,

and leaves again once one of the sides leads away. While it slides on the kinks S, −∇L loses the
part along their normals, P f with P onto the null space of Z = ∂z_S. That is the element of
least norm of Clarke's subdifferential, and P f is the same for every choice of sides in S. With
f − P f = Zᵀμ, the flow stays as long as μ ≥ 0 with all of S below and μ ≤ 0 with all of S above.

A generator of a symmetry is tangent to z = 0, so that what is conserved on both sides is conserved
while the flow slides.

Source: Filippov, "Differential equations with discontinuous righthand sides" (1988); Davis,
Drusvyatskiy, Kakade and Lee, "Stochastic subgradient method converges on tame functions" (2020),
Theorem 5.8 and its corollaries, for the least norm.
"""

from __future__ import annotations

import numpy as np
import torch

from paramsym.dynamics.kinks import Sides
from paramsym.dynamics.landscape import Landscape

_BAND = 1e-12  # how far past its kink a pre-activation counts as on it, relative to the largest
_LEVEL = 1e-10  # rates below it, relative to the norms of their factors, lead nowhere


class GradientField:
    """−∇L with every kink on its side. `margins` fall below −`band` where a side no longer fits.

    Attributes:
        sides: for each kink whether it is above zero.
        sliding: the kinks along which the flow slides, whose sides are false.
        evaluations: the number of gradients taken.
        loss: the last loss that was met.
    """

    def __init__(self, loss: Landscape) -> None:
        self._loss = loss
        with Sides() as seen:
            loss(loss.start.clone().requires_grad_())
        self.shapes = [z.shape for z in seen.found]
        self.sides = seen.values() > 0
        self.sliding: list[int] = []
        self.evaluations, self.loss = 0, float("nan")

    def velocity(self, t: float, y: np.ndarray) -> np.ndarray:
        """θ̇ at a vector of parameters."""
        if not self.sliding:
            return -self._slopes(y, self.sides, [])[0]
        force, normals, pull = self._parts(y, self.sides)
        return force - pull @ normals

    def margins(self, y: np.ndarray, sliding: bool = True) -> np.ndarray:
        """By how much each kink keeps its side, or the flow its sliding, of shape (kinks,).

        Those of S take two gradients; without `sliding` they are not looked at, and zero.
        """
        with Sides(self.sides) as seen:
            self._loss(torch.from_numpy(y).requires_grad_())
        z = seen.margins()
        if self.sliding:
            below, above = self._pulls(y) if sliding else np.zeros((2, len(self.sliding)))
            z[self.sliding] = torch.from_numpy(np.minimum(below, -above))
        return z.numpy()

    @property
    def band(self) -> float:
        """How far below zero a margin is rounding."""
        return _BAND

    def switch(self, k: int, y: np.ndarray) -> str:
        """Bring the kink k, whose margin has come to zero, to where it goes on, and say how."""
        if k in self.sliding:
            place = self.sliding.index(k)
            below, above = self._pulls(y)
            self.sides[k] = bool(-above[place] < below[place])
            self.sliding.remove(k)
            return "leaves"
        before = bool(self.sides[k])
        self.sides[k] = not before
        force, normals, pull = self._parts(y, self.sides, (k,))
        own = normals[-1]
        rate = own @ (force - pull @ normals[:-1])
        least = _LEVEL * np.linalg.norm(own) * np.linalg.norm(force)
        if (rate if before else -rate) <= least:
            return "crosses"
        self.sliding.append(k)
        self.sides[k] = False
        return "slides"

    def place(self, k: int) -> tuple[int, tuple[int, ...]]:
        """The call of an activation and the entry of it that a kink belongs to."""
        for call, shape in enumerate(self.shapes):
            if k < shape.numel():
                return call, tuple(int(i) for i in np.unravel_index(k, shape))
            k -= shape.numel()
        raise IndexError(k)

    # -- first derivatives ---------------------------------------------------------------------

    def _slopes(
        self, y: np.ndarray, sides: torch.Tensor, kinks: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """∇L and, row by row, the derivatives of some pre-activations."""
        self.evaluations += 1
        theta = torch.from_numpy(y).requires_grad_()
        if not len(sides):
            loss, z = self._loss(theta), sides
        else:
            with Sides(sides) as seen:
                loss = self._loss(theta)
            z = seen.values() if kinks else sides
        normals = np.zeros((len(kinks), len(y)))
        for row, k in zip(normals, kinks, strict=True):
            found = torch.autograd.grad(z[k], theta, retain_graph=True, allow_unused=True)[0]
            row[:] = 0.0 if found is None else found.numpy()
        self.loss = float(loss.detach())
        return torch.autograd.grad(loss, theta)[0].numpy(), normals

    def _parts(
        self, y: np.ndarray, sides: torch.Tensor, others: tuple[int, ...] = ()
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """f, the normals of S and of other kinks, and μ with f − Zᵀμ tangent to all of S."""
        slope, normals = self._slopes(y, sides, [*self.sliding, *others])
        own = normals[: len(self.sliding)]
        return -slope, normals, np.linalg.lstsq(own.T, -slope, rcond=_LEVEL)[0]

    def _pulls(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """μ with all of S below and above, relative to the larger of the two."""
        upper = self.sides.clone()
        upper[self.sliding] = True
        below, above = self._parts(y, self.sides)[2], self._parts(y, upper)[2]
        size = np.maximum(np.maximum(abs(below), abs(above)), _BAND)
        return below / size, above / size
