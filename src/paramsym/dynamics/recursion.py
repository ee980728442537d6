"""What one step of gradient descent makes of a conserved quantity, exactly.

Let X θ = A (θ + o) + a be the field of a law and X₀ = A o + a its value at zero, B(x, y) = ⟨x, A y⟩
and c(x) = ⟨x, X₀⟩. With d = 2 for laws of spaces and d = 1, A = 0 for those of shifts,

    Q(θ) = B(θ, θ) + 2 c(θ)  or  c(θ),  but for a constant,     P(w) = ⟨w, Xθ⟩,

    θ ↦ θ − w:    Q ↦ Q − d P(w) + B(w, w),    P(v) ↦ P(v) − B(w, v).

An optimiser moves along w = ηu, where u is made of the gradient g, the momentum v and the decay λθ.
Of these P(g) = 0 is what an invariant loss asserts, P(v) follows from what v is made of, and
P(θ) = Q − c(θ). What is left, B(u, u) and B(u, v), is read off the optimiser's buffers; P(g) and
P(v) never are, so that a gradient with P(g) ≠ 0 shows up as a difference between Q and what the
recursion predicts.

**Rates.** Tensors with rates η r_p follow the metric ⟨x, y⟩ = Σ_p ⟨x_p, y_p⟩ / r_p: in it the
gradient is r g, its momentum r v, and the law Σ_p Q_p / r_p. Everything above stays as it is, with
η the same for all, a coupled decay of r_p λ_p and a decoupled one of η r_p ω_p. These two may
differ between tensors: the part of those that differ from most is measured by itself.

Source: Zhao, Ganev, Walters, Yu, Dehmamy (2023), Proposition 5.1 and appendix E, where the step is
plain; the rest is algebra.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paramsym.structure.layout import widened
from paramsym.structure.tangent import real_entries
from paramsym.structure.whole import whole

from .forms import Forms, Made, Make


@dataclass(frozen=True)
class Scheme:
    """One step of an optimiser: v ← βv + (1−δ)(±g + λθ), then θ ← θ − ηu.

    u is v, or ±g + λθ + βv with `nesterov`, or ±g + λθ without momentum; before it,
    θ ← (1 − ε) θ. All but the decays is the same for all parameters of the laws.

    Attributes:
        rate: η.
        momentum: β, None for none.
        dampening: δ, which PyTorch leaves out in the first step.
        nesterov: look ahead.
        sign: −1 to maximise.
        coupled: λ by parameter.
        shrinking: ε by parameter.
    """

    rate: float
    momentum: float | None = None
    dampening: float = 0.0
    nesterov: bool = False
    sign: float = 1.0
    coupled: Mapping[str, float] = field(default_factory=dict)
    shrinking: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unequal:
    """A number for each tensor: that of most entries, and by how much some differ from it."""

    most: float
    others: Mapping[str, float]


def unequal(numbers: Mapping[str, float], sizes: Mapping[str, int]) -> Unequal:
    """The number that most entries share, and the differences of the others."""
    votes: dict[float, int] = {}
    for name, number in numbers.items():
        votes[number] = votes.get(number, 0) + sizes[name]
    most = max(votes, key=lambda number: votes[number], default=0.0)
    return Unequal(most, {n: x - most for n, x in numbers.items() if x != most})


class Recursion:
    """Q and P(v) of all laws as they must be if every gradient had P(g) = 0.

    Args:
        forms: of the laws.
        params: the parameters themselves, by name.
        ratios: r, by name.
        momentum: the momentum that there is already, by name.

    Attributes:
        predicted: Q.
        paired: P(v).
        epsilon: the relative rounding of gradients, if it is to be followed.
        blur: the sum of squares of what it may make of Q in each step.
    """

    def __init__(
        self, forms: Forms, params: Mapping[str, Tensor], ratios: Mapping[str, float],
        momentum: Mapping[str, Tensor],
    ):  # fmt: skip
        self.forms, self.params, self.ratios = forms, params, ratios
        self.sizes = {n: real_entries(params[n]) for n in forms.names}
        self.equal = all(r == 1.0 for r in ratios.values())
        self.offset = forms.at_zero if self.equal else torch.zeros_like(forms.twice)
        self.predicted = self.measured()
        self.paired = torch.zeros_like(self.predicted)  # P(v), with v in its own metric
        if momentum:
            wide = Made(tuple(momentum), lambda n: momentum[n].double())
            at = Made(tuple(momentum), lambda n: params[n].detach().double())
            self.paired = forms.bilinear(at, wide) + forms.constant(wide)
        self.epsilon = self.blur = 0.0
        self.drift: Tensor | None = None  # P(g + λθ), of the step that is under way

    # -- what is read off tensors -----------------------------------------------------------

    def measured(self) -> Tensor:
        """Q at the parameters as they are now, in float64."""
        wide = self._wide(self.forms.names)
        whole = self._over_ratios(wide)
        found = self.forms.bilinear(wide, whole)
        return found + (1.0 + self.forms.twice) * self.forms.constant(whole) + self.offset

    def size(self) -> float:
        """The largest number that a quantity would be if nothing cancelled."""
        return self._size(self._wide(self.forms.names))

    def _size(self, given: Made) -> float:
        found = self.forms.size(given)
        return float(found.abs().max()) if len(found) else 0.0

    def _wide(self, names: tuple[str, ...]) -> Made:
        return Made(names, lambda n: widened(whole(self.params[n].detach())))

    def _scaled(self, factors: Mapping[str, float]) -> Mapping[str, Tensor]:
        """The parameters times numbers, of those that have one."""
        wide = self._wide(tuple(factors))
        if all(f == 1.0 for f in factors.values()):
            return wide
        return Made(tuple(factors), lambda n: factors[n] * wide[n])

    def _over_ratios(self, given: Made) -> Made:
        if self.equal:
            return given
        return Made(given.names, lambda n: given[n] / self.ratios[n])

    def _affine(self, y: Mapping[str, Tensor]) -> Tensor:
        """c(y) for the laws of spaces."""
        if not self.forms.is_affine:
            return torch.zeros_like(self.predicted)
        return self.forms.twice * self.forms.constant(y)

    def _along(self, factors: Mapping[str, float]) -> Tensor:
        """P(w) for the w with these multiples of some of the parameters."""
        if not factors:
            return torch.zeros_like(self.predicted)
        part = self._scaled({n: f / self.ratios[n] for n, f in factors.items()})
        return self.forms.bilinear(self._wide(tuple(factors)), part) + self.forms.constant(part)

    # -- a step ------------------------------------------------------------------------------

    def before(
        self, scheme: Scheme, grad: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:  # fmt: skip
        """What is known before the step: decoupled decay, and P(g + λθ).

        Args:
            scheme: the step.
            grad: g, or nothing where it is computed within the step.
            buffers: v.
        """
        forms = self.forms
        zero = torch.zeros_like(self.predicted)
        shrinking = unequal(scheme.shrinking, self.sizes)
        drift = zero
        if shrinking.most or shrinking.others:
            drift = scheme.sign * self._shrunk(scheme, shrinking, grad, buffers)
        coupled = unequal({n: self.ratios[n] * x for n, x in scheme.coupled.items()}, self.sizes)
        if coupled.most:
            whole = self._over_ratios(self._wide(forms.names))
            along = self.predicted - self.offset - self._affine(whole)  # P(θ)
            drift = drift + coupled.most * along
        self.drift = drift + self._along(coupled.others)

    def _shrunk(
        self, scheme: Scheme, shrinking: Unequal,
        grad: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
    ) -> Tensor:  # fmt: skip
        """θ ↦ (1 − ε) θ, which the parameters have behind them; returns P(g) afterwards."""
        forms, rate, zero = self.forms, shrinking.most, torch.zeros_like(self.predicted)
        # θ as it was, of the tensors that shrink otherwise, times the difference
        back = {n: x / (1.0 - rate - x) for n, x in shrinking.others.items()}
        other = self._scaled(back)
        weighted = self._scaled({n: x / self.ratios[n] for n, x in back.items()})
        was = Made(tuple(back), lambda n: other[n] / shrinking.others[n])
        cross = forms.bilinear(was, weighted) if back else zero
        affine = zero
        if forms.is_affine:
            before = {
                n: 1.0 / (self.ratios[n] * (1.0 - rate - shrinking.others.get(n, 0.0)))
                for n in forms.names
            }
            affine = self._affine(self._scaled(before))
        value = self.predicted - self.offset
        along = rate * (value - affine)
        square = rate**2 * (forms.twice * value - 2.0 * affine)
        if back:
            along = along + cross + forms.constant(weighted)
            square = square + 2.0 * rate * cross + forms.bilinear(other, weighted)
        self.predicted = self.predicted - (1.0 + forms.twice) * along + square

        def change(given: Mapping[str, Tensor], pairing: Tensor) -> Tensor:
            """B(εθ, w) for a w with P(w) known."""
            if not given:
                return zero
            found = rate * (forms.twice * pairing - self._affine(given))
            some = Made(tuple(back), lambda n: widened(given[n]))
            return found + forms.bilinear(other, some) if back else found

        self.paired = self.paired - change(buffers, self.paired)
        return -change(grad, zero)

    def after(
        self, scheme: Scheme, grad: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
        first: bool, ahead: Collection[str] = (),
    ) -> None:  # fmt: skip
        """The step itself, from what the optimiser has left.

        Args:
            scheme: as before.
            grad: g, for steps that are not along v alone.
            buffers: v after the step.
            first: whether v began with this step.
            ahead: names of which g holds what Nesterov's step goes along, ±g + λθ + βv.
        """
        if self.drift is None:
            raise AssertionError("before() comes first")
        drift, self.drift, rate = self.drift, None, scheme.rate
        along = drift
        if scheme.momentum is not None:
            fresh = drift if first else (1.0 - scheme.dampening) * drift
            self.paired = fresh if first else scheme.momentum * self.paired + fresh
            along = drift + scheme.momentum * self.paired if scheme.nesterov else self.paired
        update = Made(self.forms.names, self._update(scheme, grad, buffers, ahead))
        square = self.forms.bilinear(update, self._stretched(update))
        degree = 1.0 + self.forms.twice
        self.predicted = self.predicted - degree * rate * along + rate**2 * square
        if self.epsilon:  # |P(u)| ≤ |θ| |u|, tensor by tensor
            self.blur += (2.0 * rate * self.epsilon) ** 2 * self.size() * self._size(update)
        if scheme.momentum is None:
            return
        if scheme.nesterov:
            velocity = Made(self.forms.names, lambda n: narrow(buffers[n]))
            square = self.forms.bilinear(update, self._stretched(velocity))
        self.paired = self.paired - rate * square

    def _stretched(self, given: Made) -> Made:
        """r w, of a momentum w."""
        if self.equal:
            return given
        return Made(given.names, lambda n: self.ratios[n] * given[n])

    def _update(
        self, scheme: Scheme, grad: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
        ahead: Collection[str],
    ) -> Make:  # fmt: skip
        """u, tensor by tensor; λθ is from before the step, θ is from after it."""
        along_momentum = scheme.momentum is not None and not scheme.nesterov

        def make(name: str) -> Tensor:
            if along_momentum:
                return narrow(buffers[name])
            found = narrow(grad[name])
            if name in ahead:
                return found
            found = -found if scheme.sign < 0 else found
            if scheme.momentum is not None:
                found = found + scheme.momentum * narrow(buffers[name])
            decay = scheme.coupled.get(name, 0.0)
            if decay:
                found = found + decay * narrow(self.params[name].detach())
                found = found / (1.0 - scheme.rate * self.ratios[name] * decay)
            return found

        return make


def narrow(tensor: Tensor) -> Tensor:
    """At least single precision: what a step squares is small, and halves have too few digits."""
    single = torch.complex64 if tensor.is_complex() else torch.float32
    return tensor.to(torch.promote_types(tensor.dtype, single))
