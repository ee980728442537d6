r"""The action of GL_h in closed form, on weights: V ↦ gV, U ↦ U R_{σ(Vx)} R_{σ(gVx)}⁻¹.

F(x) = Uσ(Vx) stays at the given x, and changes elsewhere. Beyond the product gV it costs
O(h(m + n)) for x of shape (n,); for k samples O(hk(m + n + k)).

In Proposition D.5 the formula for many layers runs to i = L − 1 and so leaves the last layer where
it is. That does not keep the function: the last one reads what g_{L−1} has moved, and moves too,
W_L ↦ W_L c_{L−1}⁻¹, with its bias left alone (g_L = I). Also, R_{σ_i(g_{i−1}Z_{i−1})} there is to
be read with σ_{i−1}.

Source: "Symmetries, flat minima, and the conserved quantities of gradient flow", Theorems 4.1 and
D.4, Propositions 4.2 and D.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .arguments import require_finite, require_matrix, require_real
from .cocycle import AbstractChange, Function, change_between
from .degenerate import LIMIT, features, require_invertible, require_square
from .frames import AbstractFrame
from .scales import norms


def move_two_layers(
    g: Tensor,
    outer: Tensor,
    inner: Tensor,
    inputs: Tensor,
    function: Function,
    frame: AbstractFrame | None = None,
    *,
    form: str = "cocycle",
    limit: float = LIMIT,
    check: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""g·(U, V, x) = (U c(g, Vx)⁻¹, gV), which leaves Uσ(Vx) in place.

    Args:
        g: of shape (h, h), invertible.
        outer: U, of shape (m, h).
        inner: V, of shape (h, n).
        inputs: x, of shape (n,), or a batch X of shape (n, k) with k ≤ h.
        function: σ, entrywise, with σ(z) ≠ 0 for every vector z ≠ 0.
        frame: R; by default reflections whose jump lies opposite the positive diagonal. The group
            law holds between calls with one and the same frame.
        form: "cocycle", a group action, or "least-change", which is none.
        limit: the largest condition number of σ(VX) and σ(gVX).
        check: whether to look for a singular g, which is the one step that is not O(h(m + n)).

    Returns:
        U and V at the new place.

    Raises:
        Degenerate: a singular g; σ(Vx) = 0, as where Vx = 0 for σ(0) = 0 or a ReLU layer is closed
            on a sample; samples whose features depend on each other, or more samples than units.
        NearJump: σ(Vx) or σ(gVx) is where the frame jumps.
        ValueError: an unknown form, or tensors that do not fit: of other sizes, dtypes or devices,
            with no entries, complex, or not finite.

    Source: Theorems 4.1 and D.4; Lemma D.6 for batches.
    """
    how = _How("move_two_layers(g, outer, inner, inputs, …)", form, limit, check)
    _require_two_layers(how.where, g, outer, inner, inputs)
    weights, _ = _moved([g], [inner, outer], [None, None], inputs, [function], [frame], how)
    return weights[1], weights[0]


def move_layers(
    elements: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    inputs: Tensor,
    functions: Sequence[Function],
    frames: Sequence[AbstractFrame | None] | None = None,
    *,
    form: str = "cocycle",
    limit: float = LIMIT,
    check: bool = True,
) -> tuple[list[Tensor], list[Tensor | None]]:
    r"""W_i ↦ g_i W_i c_{i−1}⁻¹ and b_i ↦ g_i b_i for i = 1, …, L, with c_0 = 1 and g_L = 1.

    All c_i = c(g_i, Z_i) are those of the Z_i before the move, since the moved network has g_i Z_i.

    Args:
        elements: g_1, …, g_{L−1}, None for the identity.
        weights: W_1, …, W_L, of shapes (n_i, n_{i−1}).
        biases: b_1, …, b_L, None where there is none.
        inputs: x of shape (n_0,), or a batch of shape (n_0, k).
        functions: σ_1, …, σ_{L−1}; what is behind the last layer plays no part.
        frames: by hidden layer, as for two layers.
        form: "cocycle" or "least-change", in all layers.
        limit: the largest condition number of features.
        check: whether to look for singular elements.

    Returns:
        The moved weights and biases.

    Raises:
        Degenerate, NearJump: as for two layers; the message names the layer.
        ValueError: lists of other lengths, or tensors that do not fit, as for two layers.

    Source: Proposition D.5, with the last layer moved and the index of σ corrected.
    """
    hidden = len(weights) - 1
    frames = [None] * hidden if frames is None else frames
    found = len(elements), len(functions), len(frames), len(biases)
    if hidden < 1 or found != (hidden, hidden, hidden, hidden + 1):
        raise ValueError(
            f"move_layers(…): {len(weights)} weights came with {found[0]} elements, {found[1]} "
            f"functions, {found[2]} frames and {found[3]} biases; one element, function and frame "
            "for each hidden layer and one bias for each weight were expected. Pass None where "
            "nothing moves, and where there is no bias."
        )
    how = _How("move_layers", form, limit, check)
    _require_layers(how.where, weights, biases, inputs, elements)
    return _moved(elements, weights, biases, inputs, functions, frames, how)


def _require_two_layers(
    where: str, g: Tensor, outer: Tensor, inner: Tensor, inputs: Tensor
) -> None:
    require_finite(where, inner=inner, outer=outer, inputs=inputs)
    require_real(where, inner=inner, g=g)
    require_matrix(where, "inner", inner, (None, None))
    require_matrix(where, "outer", outer, (None, len(inner)))
    _require_inputs(where, inputs, inner.shape[1])


def _require_inputs(where: str, inputs: Tensor, size: int) -> None:
    require_matrix(where, "inputs", inputs, (size,) if inputs.ndim == 1 else (size, None))


def _require_layers(
    where: str,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    inputs: Tensor,
    elements: Sequence[Tensor | None],
) -> None:
    named = {f"weights[{i}]": w for i, w in enumerate(weights)}
    shifts = {f"biases[{i}]": b for i, b in enumerate(biases)}
    moving = {f"elements[{i}]": g for i, g in enumerate(elements)}
    require_finite(where, **named, **shifts, inputs=inputs)
    require_real(where, inputs=inputs, **moving)
    require_matrix(where, "weights[0]", weights[0], (None, None))
    _require_inputs(where, inputs, weights[0].shape[1])
    for (name, weight), before in zip([*named.items()][1:], weights, strict=False):
        require_matrix(where, name, weight, (None, len(before)))
    for (name, bias), weight in zip(shifts.items(), weights, strict=True):
        if bias is not None:
            require_matrix(where, name, bias, (len(weight),))


@dataclass(frozen=True)
class _How:
    """Which form of c, its limits, and where we are."""

    where: str
    form: str
    limit: float
    check: bool


def _moved(
    elements: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    inputs: Tensor,
    functions: Sequence[Function],
    frames: Sequence[AbstractFrame | None],
    how: _How,
) -> tuple[list[Tensor], list[Tensor | None]]:
    signal = inputs[:, None] if inputs.ndim == 1 else inputs
    moved, shifts = list(weights), list(biases)
    change: AbstractChange | None = None
    for i, weight in enumerate(weights):
        g = elements[i] if i < len(elements) else None
        bias = biases[i]
        if g is not None:
            require_square(g, len(weight), f"{how.where}, layer {i + 1}")
            weight = g @ weight
            shifts[i] = None if bias is None else g @ bias
        moved[i] = weight if change is None else change.undone(weight)
        change = None
        if i == len(functions):
            break
        before = _affine(weights[i], bias, signal)
        if g is not None:
            where = f"{how.where}, layer {i + 1}"
            if how.check:
                require_invertible(g, _with(weights[i], bias), _with(weight, shifts[i]), where)
            # what the moved network computes, in O(hn) where g·(Vx) is O(h²)
            after = _affine(weight, shifts[i], signal)
            change = change_between(
                before, after, functions[i], frames[i], form=how.form, where=where, limit=how.limit
            )
        signal = functions[i](before)
    return moved, shifts


def _affine(weight: Tensor, bias: Tensor | None, signal: Tensor) -> Tensor:
    return weight @ signal if bias is None else weight @ signal + bias[:, None]


def _with(weight: Tensor, bias: Tensor | None) -> Tensor:
    """[V b]: all that g acts on."""
    return weight if bias is None else torch.cat([weight, bias[:, None]], 1)


def lipschitz_bound(
    g: Tensor,
    outer: Tensor,
    inner: Tensor,
    inputs: Tensor,
    function: Function,
    constant: float = 1.0,
) -> float:
    r"""η ‖U‖ ‖V‖ ‖g‖ |σ(Vx)| / |σ(gVx)|, a Lipschitz constant of the moved two-layer network.

    |F(x₁) − F(x₂)| ≤ bound · |x₁ − x₂| for F = F_{g·(U, V, x)} and all x₁, x₂. (The proof in D.5
    bounds |F(x₁ − x₂)|, which is another thing: for the sigmoid F(0) = U'σ(0) ≠ 0, and no multiple
    of |x₁ − x₂| is above it. The chain of inequalities is right with σ(gVx₁) − σ(gVx₂) in it.) It
    is one of the cocycle of a single sample, where ‖R^{±1}‖ = |z|^{±1}; frames play no part.

    Args:
        g, outer, inner: as for `move_two_layers`, before the move.
        inputs: x, of shape (n,).
        function: σ, entrywise.
        constant: η, a Lipschitz constant of σ: ¼ for the sigmoid, 1 for tanh and leaky ReLU, 1.13
            for GELU.

    Returns:
        The bound, of operator norms.

    Raises:
        Degenerate: σ(Vx) or σ(gVx) is zero.
        ValueError: several samples, a constant that is no positive number, or tensors that do not
            fit, as for `move_two_layers`.

    Source: Proposition 4.2.
    """
    where = "lipschitz_bound(g, outer, inner, inputs, …)"
    if not 0 < constant < float("inf"):
        raise ValueError(
            f"{where}, constant={constant}: a positive number was expected, a Lipschitz constant "
            "of σ. Pass the largest slope of σ."
        )
    _require_two_layers(where, g, outer, inner, inputs)
    signal = inputs[:, None] if inputs.ndim == 1 else inputs
    if signal.shape[1] != 1:
        raise ValueError(
            f"{where}: {signal.shape[1]} samples came; one was expected, since R is orthogonal up "
            "to a factor only then. Evaluate it for the sample of the move."
        )
    require_square(g, len(inner), where)
    start, _ = features(function, inner @ signal, f"{where}, before g")
    end, _ = features(function, g @ (inner @ signal), f"{where}, after g")
    sizes = [float(norms(s)) for s in (start, end)]
    operators = [float(torch.linalg.matrix_norm(m, 2)) for m in (outer, inner, g)]
    return constant * operators[0] * operators[1] * operators[2] * sizes[0] / sizes[1]
