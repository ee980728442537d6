"""What gradient flow conserves for element-wise activations, where inputs are whitened.

Let the loss depend on W = U σ(V) only, as it does on whitened inputs X = I. Along gradient flow

    ⟨U_k, U̇_k⟩ = −Σ_j (Uᵀ∇_W L)_kj σ(V_kj),    V̇_kj = −(Uᵀ∇_W L)_kj σ′(V_kj),

with U_k the k-th column of U, so that with Φ′ = σ/σ′, for each hidden unit k by itself,

    Q_k = ½‖U_k‖² − Σ_j Φ(V_kj)        is conserved.

None of it comes from a symmetry: for a general σ there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.integrate import quad

Scalar = Callable[[torch.Tensor], torch.Tensor]


def _relu(v: torch.Tensor) -> torch.Tensor:
    return v.clamp_min(0).square() / 2  # below zero σ = σ′ = 0, and V rests


def _half_square(v: torch.Tensor) -> torch.Tensor:
    return v.square() / 2


def _tanh(v: torch.Tensor) -> torch.Tensor:
    return v.sinh().square() / 2


def _sigmoid(v: torch.Tensor) -> torch.Tensor:
    return v + torch.expm1(v)


# Φ with Φ(0) = 0. For leaky ReLU σ/σ′ = x on either side, whatever the slope.
_CLOSED = {
    "identity": _half_square, "relu": _relu, "leaky_relu": _half_square, "tanh": _tanh,
    "sigmoid": _sigmoid,
}  # fmt: skip


def unit_quantities(
    outgoing: torch.Tensor, incoming: torch.Tensor, activation: str | Scalar
) -> torch.Tensor:
    """The conserved quantity of each hidden unit of U σ(V) on whitened inputs,

        Q_k = ½ Σ_i U_ik² − Σ_j ∫₀^{V_kj} σ(x)/σ′(x) dx.

    A radial activation v ↦ ρ(|v|) v/|v| of whole rows conserves the same with |V_k| in the place of
    V_k and ρ in that of σ: give `incoming.norm(dim=1, keepdim=True)` and ρ.

    Args:
        outgoing: U, of shape (outputs, units).
        incoming: V, of shape (units, inputs).
        activation: "identity", "relu", "leaky_relu", "tanh" or "sigmoid", in closed form, or a
            differentiable function of one number σ, whose integral is taken numerically from 0, or
            from 1 in the direction of V where σ/σ′ has no finite value at 0.

    Returns:
        Q, of shape (units,), at the precision of the weights.

    Raises:
        KeyError: a name without a closed form.
        ValueError: shapes that do not fit, or σ′ vanishes between 0 and a weight, where the
            integral diverges and nothing is conserved from one side to the other.

    Source: Zhao et al., "Symmetries, flat minima, and the conserved quantities of gradient flow"
    (2023), eq. (53), which states their sum only.
    """
    if outgoing.ndim != 2 or incoming.ndim != 2 or outgoing.shape[1] != incoming.shape[0]:
        raise ValueError(
            f"unit_quantities(outgoing={tuple(outgoing.shape)}, incoming={tuple(incoming.shape)}): "
            "(outputs, units) and (units, inputs) were expected. Give the weights of two "
            "torch.nn.Linear, the second first."
        )
    if not (outgoing.isfinite().all() and incoming.isfinite().all()):
        raise ValueError(
            f"unit_quantities(activation={activation!r}): the weights hold numbers that are not "
            "finite, finite ones were expected. Look where training broke."
        )
    if isinstance(activation, str):
        if activation not in _CLOSED:
            raise KeyError(
                f"unit_quantities(activation={activation!r}): one of {[*_CLOSED]} was expected, or "
                "a function: pass torch.nn.functional.softplus itself, for example."
            )
        integral = _CLOSED[activation](incoming)
    else:
        values = [_integral(activation, float(v)) for v in incoming.reshape(-1)]
        integral = incoming.new_tensor(values).view_as(incoming)
    return outgoing.square().sum(0) / 2 - integral.sum(1)


def _integral(activation: Scalar, v: float) -> float:
    """∫ σ/σ′ from 0, or from ±1 where that has no value, to v."""
    start = 0.0 if math.isfinite(_ratio(activation, 0.0)[0]) else math.copysign(1.0, v)
    slopes = [_ratio(activation, start + (v - start) * k / 64)[1] for k in range(65)]
    if v and not (min(slopes) > 0 or max(slopes) < 0):
        raise ValueError(
            f"unit_quantities(activation={activation}): its derivative vanishes between "
            f"{start:g} and the weight {v:.4g}, a monotone activation was expected. A quantity is "
            "conserved only while no weight passes such a point; start the integral beyond it."
        )
    return quad(lambda x: _ratio(activation, x)[0], start, v, epsabs=1e-13, epsrel=1e-13)[0]


def _ratio(activation: Scalar, x: float) -> tuple[float, float]:
    """σ/σ′ and σ′ at a number."""
    point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = activation(point)
    slope = float(torch.autograd.grad(value, point)[0])
    return (float(value.detach()) / slope if slope else math.inf), slope
