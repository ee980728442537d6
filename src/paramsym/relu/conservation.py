"""Which symmetries of a ReLU network are conserved along gradient flow, and which are not.

Along θ' = -∇L, with L any function of the network's values on data, a generator ξ of a symmetry
always gives ⟨∇L, ξ⟩ = 0. A conserved quantity needs more: some combination of such fields must be
a gradient.

    positive scaling      ξ = ∇½(|w_in|² + b² - |w_out|²)              conserved, globally
    GL_r, linear units    symmetric X: V Vᵀ + ββᵀ - UᵀU                conserved while the units
                                                                       stay linear on the data
                          antisymmetric X                              not conserved
    translation T_j       ∂b1_j - Σ W2_ij ∂b2_i                        not conserved: the 1-form
                          db1_j - Σ W2_ij db2_i has no integrating factor (ω ∧ dω != 0); only the
                          velocities are tied, ḃ1_j = Σ W2_ij ḃ2_i
    bias shift            ∂β_i - Σ U_oi ∂e_o                           not conserved, same reason
    dead units            every coordinate                             constant while dead
    permutations, reflections, flips                                   discrete: no generator

Source: section 5 of the specification; the criterion is that of Marcotte, Gribonval and Peyré.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paramsym.relu.errors import ReLUError
from paramsym.relu.moves.hidden import live_readers, translation_bound
from paramsym.relu.network import FloatLayer, Network
from paramsym.relu.reading import as_network

Tables = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Law:
    """What one kind of move means for gradient flow.

    Attributes:
        move: its name in `moves`.
        conserved: whether it yields a conserved quantity.
        scope: "global", "local" (while the named condition lasts) or "none".
        quantity: the quantity or what holds instead.
    """

    move: str
    conserved: bool
    scope: str
    quantity: str


LAWS: tuple[Law, ...] = (
    Law("scale", True, "global", "½(|w_in|² + b² - |w_out|²) of each hidden unit"),
    Law("change_basis", True, "local",
        "V Vᵀ + ββᵀ - UᵀU of units that stay linear on the data (symmetric part only)"),
    Law("translate", False, "none", "only the velocities are tied: ḃ1_j = Σ W2_ij ḃ2_i"),
    Law("shift_bias", False, "none", "only the velocities are tied: β̇_i = Σ U_oi ė_o"),
    Law("insert_dead", True, "local", "every parameter of a unit that is dead on the data"),
    Law("insert_silent", False, "none", "a unit that is not read starts to be read"),
    Law("insert_cancelling", False, "none", "discrete: changes the architecture"),
    Law("split", False, "none", "discrete: changes the architecture"),
    Law("merge", False, "none", "discrete: changes the architecture"),
    Law("permute", False, "none", "discrete: no generator"),
    Law("reflect", False, "none", "discrete: no generator"),
    Law("flip", False, "none", "discrete between orientation sets; within one see change_basis"),
)  # fmt: skip


@dataclass(frozen=True)
class ConservedQuantity:
    """A function of the parameters that gradient flow leaves constant.

    Attributes:
        name: for example "scaling, layer 1, unit 3".
        scope: "global" or "local".
        value: network ↦ number.
        valid: network ↦ whether the condition of a local law still holds.
    """

    name: str
    scope: str
    value: Callable[[Network], float]
    valid: Callable[[Network], bool]


def conserved_quantities(network: Any, data: np.ndarray | None = None) -> list[ConservedQuantity]:
    """All conserved quantities that the symmetries of a network give.

    Args:
        network: anything `as_network` reads.
        data: the inputs (N, d) that the loss looks at; with them, units of one layer that are
            positive on all data give the off-diagonal laws, and dead ones constant parameters.

    Returns one scaling law per hidden unit, then r(r-1)/2 local laws per group of r jointly linear
    units, then one law per dead unit (the norm of its parameters, as a representative).
    """
    net = as_network(network, "relu.conserved_quantities(network)")
    found = []
    for layer in range(1, net.depth + 1):
        for unit in range(net.widths[layer]):
            found.append(
                ConservedQuantity(
                    f"scaling, layer {layer}, unit {unit}", "global",
                    _pairing(layer, unit, unit, 0.5), lambda _: True,
                )
            )  # fmt: skip
    if data is None:
        return found
    points = np.atleast_2d(np.asarray(data, dtype=float))
    if points.shape[1] != net.input_dim:
        raise ReLUError(
            f"data of shape {points.shape}", f"(N, {net.input_dim})",
            "relu.conserved_quantities(data)", "Pass one input per row.",
        )  # fmt: skip
    for layer in range(1, net.depth + 1):
        signs = activity(net, points, layer)
        linear = [i for i in range(net.widths[layer]) if signs[i] > 0]
        for at, i in enumerate(linear):
            for j in linear[at + 1 :]:
                found.append(
                    ConservedQuantity(
                        f"linear pair, layer {layer}, units {i} and {j}", "local",
                        _pairing(layer, i, j, 1.0), _stays(points, layer, (i, j), 1),
                    )
                )  # fmt: skip
        for i in range(net.widths[layer]):
            if signs[i] < 0:
                found.append(
                    ConservedQuantity(
                        f"dead unit, layer {layer}, unit {i}", "local",
                        _norm_of(layer, i), _stays(points, layer, (i,), -1),
                    )
                )  # fmt: skip
    return found


def activity(net: Network, points: np.ndarray, layer: int) -> np.ndarray:
    """Per unit of a hidden layer: 1 if positive on all points, -1 if negative on all, else 0."""
    value = points
    for weight, bias in net.floats[: layer - 1]:
        value = np.maximum(value @ weight.T + bias, 0.0)
    weight, bias = net.floats[layer - 1]
    z = value @ weight.T + bias
    return np.where((z > 0).all(axis=0), 1, np.where((z < 0).all(axis=0), -1, 0))


def _pairing(layer: int, i: int, j: int, factor: float) -> Callable[[Network], float]:
    def value(net: Network) -> float:
        (w, b), (v, _) = net.floats[layer - 1], net.floats[layer]
        return factor * float(w[i] @ w[j] + b[i] * b[j] - v[:, i] @ v[:, j])

    return value


def _norm_of(layer: int, i: int) -> Callable[[Network], float]:
    def value(net: Network) -> float:
        (w, b), (v, _) = net.floats[layer - 1], net.floats[layer]
        return float(w[i] @ w[i] + b[i] ** 2 + v[:, i] @ v[:, i])

    return value


def _stays(points: np.ndarray, layer: int, units: tuple[int, ...], sign: int):
    def valid(net: Network) -> bool:
        signs = activity(net, points, layer)
        return all(signs[i] == sign for i in units)

    return valid


# ------------------------------------------------------------------ gradient flow


def gradient(net: Network, inputs: np.ndarray, targets: np.ndarray) -> Tables:
    """∇L of L = ½ mean |f(x) - y|², one (dW, db) per layer."""
    values, masks = [inputs], []
    for index, (weight, bias) in enumerate(net.floats):
        z = values[-1] @ weight.T + bias
        if index < net.depth:
            masks.append(z > 0)
            z = np.maximum(z, 0.0)
        values.append(z)
    delta = (values[-1] - targets) / len(inputs)
    found: Tables = []
    for index in range(len(net) - 1, -1, -1):
        found.append((delta.T @ values[index], delta.sum(axis=0)))
        if index:
            delta = (delta @ net.floats[index].weight) * masks[index - 1]
    return found[::-1]


def moved(net: Network, direction: Tables, step: float) -> Network:
    """The network plus step·direction."""
    return Network(
        floats=[
            FloatLayer(w + step * dw, b + step * db)
            for (w, b), (dw, db) in zip(net.floats, direction, strict=True)
        ],
        name=net.name,
    )


def gradient_flow(
    network: Any, inputs: np.ndarray, targets: np.ndarray, time: float = 1.0, steps: int = 400
) -> list[Network]:
    """The flow θ' = -∇L integrated with the classical Runge–Kutta method, `steps` + 1 networks."""
    net = as_network(network, "relu.gradient_flow(network)")
    path, h = [net], time / steps
    for _ in range(steps):
        k1 = gradient(net, inputs, targets)
        k2 = gradient(moved(net, k1, -h / 2), inputs, targets)
        k3 = gradient(moved(net, k2, -h / 2), inputs, targets)
        k4 = gradient(moved(net, k3, -h), inputs, targets)
        total = [
            (a[0] + 2 * b[0] + 2 * c[0] + d[0], a[1] + 2 * b[1] + 2 * c[1] + d[1])
            for a, b, c, d in zip(k1, k2, k3, k4, strict=True)
        ]
        net = moved(net, total, -h / 6)
        path.append(net)
    return path


@dataclass(frozen=True)
class Drift:
    """How far a quantity moved along a flow, and whether its condition held throughout."""

    name: str
    scope: str
    drift: float
    valid: bool


def check_conservation(
    network: Any, inputs: np.ndarray, targets: np.ndarray, time: float = 1.0, steps: int = 400
) -> list[Drift]:
    """Integrate the flow and measure the drift of every conserved quantity."""
    path = gradient_flow(network, inputs, targets, time, steps)
    found = []
    for law in conserved_quantities(path[0], inputs):
        start = law.value(path[0])
        drift = max(abs(law.value(net) - start) for net in path)
        found.append(Drift(law.name, law.scope, drift, all(law.valid(net) for net in path)))
    return found


def translation_generator(network: Any, layer: int, unit: int) -> Tables:
    """ξ_T = ∂b1_j - Σ_i W2_ij ∂b2_i of a hidden unit, as one (dW, db) per layer.

    ⟨∇L, ξ_T⟩ = 0 for every loss, but no function of the parameters is conserved on account of it.
    """
    net = as_network(network, "relu.translation_generator(network)")
    if translation_bound(net, layer, unit) is None:
        raise ReLUError(
            f"unit {unit} of layer {layer}", "a hidden unit", "relu.translation_generator",
            "See moves.translation_bound.",
        )  # fmt: skip
    field = [(np.zeros_like(w), np.zeros_like(b)) for w, b in net.floats]
    field[layer - 1][1][unit] = 1.0
    for i in live_readers(net, layer):
        field[layer][1][i] = -net.floats[layer].weight[i, unit]
    return field


def pairing(left: Tables, right: Tables) -> float:
    """⟨left, right⟩."""
    return float(
        sum(np.sum(a * c) + np.sum(b * d) for (a, b), (c, d) in zip(left, right, strict=True))
    )
