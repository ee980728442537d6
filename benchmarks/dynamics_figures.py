"""Figures 3 to 9 of a paper on conserved quantities, and its numbers beside ours.

python benchmarks/dynamics_figures.py [drift distributions ellipse rates radial valley sharpness
    flows]

The paper is Zhao, Ganev, Walters, Yu and Dehmamy, "Symmetries, flat minima, and the conserved
quantities of gradient flow" (2023). Figures are written to docs/figures. `make reproduce-dynamics`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.integrate import solve_ivp
from torch import nn

from paramsym import find_symmetry, moment_map
from paramsym.dynamics.elementwise import unit_quantities
from paramsym.dynamics.flow import gradient_flow

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
WIDE = torch.float64
COLOURS = ["#0b3c5d", "#328cc1", "#3aa17e", "#d98e04", "#b8336a"]
STYLE = {
    "font.size": 10, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
}  # fmt: skip
console = Console(width=140)
rows: list[tuple[str, str, str, str]] = []  # where, what, the source, here


@dataclass(frozen=True)
class Activation:
    """σ, its derivative and ∫σ/σ′, on arrays."""

    name: str
    title: str
    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    integral: Callable[[np.ndarray], np.ndarray]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = [
    Activation("identity", "linear", lambda x: x, np.ones_like, lambda x: x**2 / 2),
    Activation("relu", "ReLU", lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0,
               lambda x: np.maximum(x, 0) ** 2 / 2),
    Activation("tanh", "tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2,
               lambda x: np.sinh(x) ** 2 / 2),
    Activation("sigmoid", "sigmoid", _sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
               lambda x: x + np.expm1(x)),
]  # fmt: skip


def _draw(generator: np.random.Generator, m: int, h: int, n: int, u: float, v: float):
    """Y (m × n), U (m × h) and V (h × n), whose entries have these standard deviations."""
    y = generator.normal(size=(m, n))
    return y, u * generator.normal(size=(m, h)), v * generator.normal(size=(h, n))


def _slopes(act: Activation, y: np.ndarray, u: np.ndarray, v: np.ndarray):
    """The loss ‖Y − U σ(V)‖² and its gradients."""
    hidden = act.value(v)
    error = u @ hidden - y
    return (error**2).sum(), 2 * error @ hidden.T, 2 * (u.T @ error) * act.slope(v)


def _quantity(act: Activation, u: np.ndarray, v: np.ndarray) -> float:
    return float((u**2).sum() / 2 - act.integral(v).sum())


def _number(x: float) -> str:
    """Few digits, and a minus sign."""
    return (f"{x:,.0f}" if abs(x) >= 10 else f"{x:.2g}").replace("-", "−")


def _save(figure, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"dynamics-{name}.png", dpi=100)
    plt.close(figure)


def _four(height: float, rows: int = 1):
    return plt.subplots(rows, 4, figsize=(12, height), sharex="col", squeeze=False)


# -- E: drift --------------------------------------------------------------------------------------


def drift() -> None:
    """Figure 3, and Proposition E.1 as an equality."""
    rates, span = [0.1, 0.01, 0.001], 20.0
    figure, axes = _four(5.2, rows=2)
    moved = {}
    for column, act in enumerate(ACTIVATIONS):
        for rate, colour in zip(rates, COLOURS[::2], strict=True):
            y, u, v = _draw(np.random.default_rng(0), 5, 50, 10, 0.1, 0.1)
            y *= 0.5
            start = _quantity(act, u, v)
            size = abs((u**2).sum() / 2) + abs(act.integral(v).sum())
            losses, changes, worst, used, before = [], [], 0.0, 0.0, start
            for _ in range(int(span / rate)):
                loss, du, dv = _slopes(act, y, u, v)
                u, v = u - rate * du, v - rate * dv
                after = _quantity(act, u, v)
                losses.append(loss)
                changes.append((after - start) / size)
                if act.name == "identity":
                    squares = [(du**2).sum(), (dv**2).sum()]
                    step = 2 * (after - before)  # the source's Q is twice ours here
                    worst = max(worst, abs(step - rate**2 * (squares[0] - squares[1])))
                    used = max(used, abs(squares[0] - squares[1]) / sum(squares))
                before = after
            at = rate * (1 + np.arange(len(losses)))
            axes[0, column].loglog(at, losses, color=colour, label=f"η = {rate}")
            axes[1, column].semilogx(at, np.abs(changes), color=colour)
            moved[act.name, rate] = abs(changes[-1])
            if act.name == "identity" and rate == 0.01:
                rows.append(("E.1", "|ΔQ − η²(‖∂U‖² − ‖∂V‖²)|, 2,000 steps",
                             "an inequality", f"≤ {worst:.0e}"))  # fmt: skip
                rows.append(("E.1", "largest |ΔQ| as a share of the bound η²|dL/dt|",
                             "≤ 1", f"{used:.2f}"))  # fmt: skip
        axes[0, column].set_title(act.title)
        axes[1, column].set_yscale("log")
        axes[1, column].set_ylim(1e-7, 1e6 if act.name == "sigmoid" else 1)
        axes[1, column].set_xlabel("time ηt")
    axes[0, 0].set_ylabel("loss")
    axes[0, 0].legend()
    axes[1, 0].set_ylabel("|Q̃(t) − Q̃(0)|")
    for axis in axes[0]:
        axis.set_ylim(bottom=1e-10)
    _save(figure, "drift")
    y, u, v = _draw(np.random.default_rng(0), 5, 50, 10, 0.1, 0.1)
    limits = [2 / _eigenvalues(act, 0.5 * y, u, v)[-1] for act in ACTIVATIONS]
    rows.append(("E.2", "descent is stable below η = 2/λ at the start; four activations", "–",
                 ", ".join(f"{x:.2g}" for x in limits)))  # fmt: skip
    for act in ACTIVATIONS:
        text = ", ".join(f"{moved[act.name, r]:.1e}" for r in rates)
        rows.append(("E.2, fig. 3", f"{act.title}: change of Q̃ at η = 0.1, 0.01, 0.001",
                     "same magnitude", text))  # fmt: skip


# -- F: distributions ------------------------------------------------------------------------------


def _bell(axis, values: np.ndarray, mean: float, deviation: float, colour: str) -> None:
    axis.hist(values, bins=28, density=True, color=colour, alpha=0.45)
    x = np.linspace(mean - 4 * deviation, mean + 4 * deviation, 200)
    density = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    axis.plot(
        x, density, color=colour, label=f"mean {mean:.3g}, sd {deviation:.3g}".replace("-", "−")
    )
    axis.set_yticks([])
    axis.set_xlabel("Q")


def distributions() -> None:
    """Figures 4 and 5: Q under Xavier initialisation, and its mean and deviation in closed form."""
    generator = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.9))
    for axis, (m, h, n) in zip(axes, [(100,) * 3, (100, 200, 100), (200, 100, 100)], strict=True):
        mean, deviation = (m - h) / 2, math.sqrt(m / (2 * h) + h / (2 * n))
        values = np.array([_xavier(generator, ACTIVATIONS[0], m, h, n) for _ in range(1000)])
        _bell(axis, values, mean, deviation, COLOURS[1])
        axis.axvline(m - h, color=COLOURS[4], linestyle="--", label=f"source: {_number(m - h)}")
        axis.set_title(f"m, h, n = {m}, {h}, {n}")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
        rows.append(("F, fig. 4", f"mean of Q at m, h, n = {m}, {h}, {n}", f"{m - h}",
                     f"{values.mean():.2f} (closed: {mean:.0f})"))  # fmt: skip
        rows.append(("F, fig. 4", "   its standard deviation", "–",
                     f"{values.std():.2f} (closed: {deviation:.2f})"))  # fmt: skip
    _save(figure, "xavier-dimensions")
    size, s = 100, 0.01  # the variance of an entry
    closed = {  # means and variances of ∫σ/σ′ at one entry
        "relu": (s / 4, 5 * s**2 / 16),
        "tanh": (math.expm1(2 * s) / 4, None),
        "sigmoid": (math.expm1(s / 2),
                    s + 2 * s * math.exp(s / 2) + math.exp(s) * math.expm1(s)),
    }  # fmt: skip
    fourth = (math.exp(8 * s) + 1) / 2  # of cosh 2v: E cosh² 2v = (E cosh 4v + 1)/2
    closed["tanh"] = (closed["tanh"][0], (fourth - math.exp(4 * s)) / 16)
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.9))
    for axis, act in zip(axes, ACTIVATIONS[1:], strict=True):
        mean = size / 2 - size**2 * closed[act.name][0]
        deviation = math.sqrt(0.5 + size**2 * closed[act.name][1])
        values = np.array([_xavier(generator, act, size, size, size) for _ in range(1000)])
        _bell(axis, values, mean, deviation, COLOURS[2])
        axis.set_title(act.title)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22))
        rows.append(("F, fig. 5", f"{act.title}: mean and deviation of Q", "–",
                     f"{values.mean():.2f} ± {values.std():.2f} (closed: {mean:.2f} ± "
                     f"{deviation:.2f})"))  # fmt: skip
    _save(figure, "xavier-activations")


def _xavier(generator: np.random.Generator, act: Activation, m: int, h: int, n: int) -> float:
    _, u, v = _draw(generator, m, h, n, h**-0.5, n**-0.5)
    return _quantity(act, u, v)


# -- G: rates --------------------------------------------------------------------------------------


class _Tensors(nn.Module):
    """Parameters and a loss of them."""

    def __init__(self, loss: Callable[..., torch.Tensor], *values: np.ndarray | float) -> None:
        super().__init__()
        self.loss = loss
        self.all = nn.ParameterList([torch.as_tensor(v, dtype=WIDE).clone() for v in values])

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        return self.loss(*self.all) + 0 * one.sum()


def _flow(loss: Callable[..., torch.Tensor], values, times, tolerance: float = 1e-11):
    return gradient_flow(_Tensors(loss, *values), lambda y: y, (torch.ones(1),), times, tolerance)


def ellipse() -> None:
    """G.1: the loss w₁² + a w₂², whose rate depends on Q by (59) to (64)."""
    a, initial, at = 2.5, 1.0, 0.3

    def loss(p: torch.Tensor) -> torch.Tensor:
        return p[0] ** 2 + a * p[1] ** 2

    def start(w: float) -> list[float]:
        return [math.sqrt(initial - a * w**2), w]

    def charge(p) -> float:
        return float(p[0] ** 2) ** a / float(p[1] ** 2)

    w, width = 0.4, 1e-4
    near = [_flow(loss, [start(w + k * width)], [at]) for k in (-1, 0, 1)]
    closed = (initial - a * w**2) * math.exp(-4 * at) + a * w**2 * math.exp(-4 * a * at)
    q = [charge(flow.params[0]["all.0"]) for flow in near]
    measured = (near[2].losses[-1] - near[0].losses[-1]) / (q[2] - q[0])
    rest = initial - a * w**2
    formula = (
        2 * a * w**5 * (math.exp(-4 * a * at) - math.exp(-4 * at))
        / (2 * w * rest ** (a - 1) * (-(a**2) * w**2 - rest))
    )  # fmt: skip
    drifted = abs(charge(near[1].params[-1]["all.0"]) / q[1] - 1)
    rows.append(("G.1 (58)", "relative drift of w₁²ᵃ/w₂²", "0", f"{drifted:.0e}"))
    rows.append(("G.1 (59)", "L(0.3) at a = 2.5, w₂ = 0.4", f"{closed:.9f}",
                 f"{near[1].losses[-1]:.9f}"))  # fmt: skip
    rows.append(("G.1 (64)", "∂L(0.3)/∂Q there", f"{formula:.6g}", f"{measured:.6g}"))


def rates() -> None:
    """Figure 6: descent from initialisations of different Q."""
    figure, axes = _four(3.0)
    steps, rate = 4000, 1e-3
    at = np.unique(np.geomspace(1, steps, 200).astype(int)) - 1
    for axis, act in zip(axes[0], ACTIVATIONS, strict=True):
        found = []
        for spread, colour in zip([0.25, 0.5, 1.0, 2.0, 4.0], COLOURS, strict=True):
            y, u, v = _draw(np.random.default_rng(0), 5, 50, 10, 0.2 * spread, 0.2 / spread)
            q, losses = _quantity(act, u, v), []
            for _ in range(steps):
                loss, du, dv = _slopes(act, y, u, v)
                losses.append(loss)
                u, v = u - rate * du, v - rate * dv
            axis.loglog(1 + at, np.array(losses)[at], color=colour, label=f"Q = {_number(q)}")
            small = np.flatnonzero(np.array(losses) < 0.01 * (y**2).sum())
            found.append(f"{_number(q)}: {small[0] if len(small) else f'> {steps}'}")
        axis.set_title(act.title)
        axis.set_xlabel("step")
        axis.legend(loc="lower left")
        rows.append(("G.3, fig. 6", f"{act.title}: Q: steps to 1 % of ‖Y‖²", "correlated",
                     "; ".join(found)))  # fmt: skip
    axes[0, 0].set_ylabel("loss")
    for axis in axes[0]:
        axis.set_ylim(1e-6, 3e3)
    _save(figure, "rates")


def radial() -> None:
    """Figure 7: g(v) = v/|v|² from spectral initialisations, and Propositions G.1 to G.3."""
    generator = np.random.default_rng(0)
    target = generator.normal(size=(5, 10))
    left, values, right = np.linalg.svd(target, full_matrices=False)
    wide = torch.from_numpy(target)

    def loss(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # v: 10 × 5
        return (wide - u @ (v / v.square().sum(0)).T).square().sum() / 2

    figure, axis = plt.subplots(figsize=(6.4, 3.9))
    ratio, times, wrong, over, moved = 0.2, np.geomspace(1e-2, 30, 240), 0.0, -math.inf, 0.0
    for level, colour in zip([1.0, 3.0, 9.0, 27.0], COLOURS, strict=False):
        v = np.full(5, math.sqrt(level / (1 + ratio**2)))  # u = ratio · v
        flow = _flow(loss, [left * (ratio * v), right.T * v], [*times])
        norms = [float(sum(p.square().sum() for p in s.values())) for s in flow.params]
        moved = max(moved, max(abs(x / norms[0] - 1) for x in norms))
        system = solve_ivp(
            lambda t, x, lam=level: (values - x) * (x**2 + 1) ** 2 / lam, (0, times[-1]),
            np.full(5, ratio), method="DOP853", t_eval=times, rtol=1e-11, atol=1e-12,
        )  # fmt: skip
        gaps = ((values[:, None] - system.y) ** 2).sum(0) / 2
        wrong = max(wrong, max(abs(gaps - np.array(flow.losses[1:])) / flow.losses[0]))
        bounds = np.abs(values - ratio)[:, None] * np.exp(-times / level)
        over = max(over, (np.abs(system.y - values[:, None]) - bounds).max())
        axis.loglog(times, flow.losses[1:], color=colour, label=f"Q = {norms[0]:.0f}")
        axis.loglog(times, (bounds**2).sum(0) / 2, color=colour, linestyle=":", linewidth=1.2)
    axis.plot([], [], color="grey", linestyle=":", label="bound (102)")
    axis.set_ylim(1e-8, 60)
    axis.set_xlabel("time")
    axis.set_ylabel("loss")
    axis.legend()
    _save(figure, "radial")
    plain = _flow(loss, [0.7 * generator.normal(size=(5, 5)), generator.normal(size=(10, 5))], [5])
    units = plain.drift(
        lambda p: {"units": p["all.0"].square().sum(0) + p["all.1"].square().sum(0)}
    )
    rows.append(("G.1, fig. 7", "relative drift of Tr[UᵀU + VᵀV]", "0", f"{moved:.0e}"))
    rows.append(("G.1", "drift of ‖U_k‖² + ‖V_k‖² of each unit, any start", "spectral starts only",
                 f"{units['units']:.0e}"))  # fmt: skip
    rows.append(("G.2 (84)", "loss of the scalar system beside the network's", "equal",
                 f"{wrong:.0e}"))  # fmt: skip
    rows.append(("G.3 (102)", "largest excess over the bound", "≤ 0", f"{over:.0e}"))


# -- H: sharpness ----------------------------------------------------------------------------------


def valley() -> None:
    """Figure 8: the flow of ½(Y − UV)² with Y = 2, and λ₂ at the end for Y = 1."""
    figure, axis = plt.subplots(figsize=(5.4, 5.4))
    grid = np.linspace(-0.2, 4.2, 400)
    height = np.log10((2 - np.outer(grid, grid)) ** 2 / 2 + 1e-2)
    axis.imshow(height, extent=(-0.2, 4.2, -0.2, 4.2), origin="lower", cmap="Blues", alpha=0.55)
    curve = np.linspace(2 / 4.2, 4.2, 200)
    axis.plot(curve, 2 / curve, color="black", linewidth=1.0, linestyle="--", label="UV = 2")
    worst = 0.0
    for q, colour in zip([-6.0, -2.0, 0.0, 2.0, 6.0], COLOURS, strict=True):
        starts = [0.05, 4.1]
        for low in starts:  # from near the origin, and from far out
            small = low if low < 1 else math.sqrt(max(4.1**2 - abs(q), 0))
            large = math.sqrt(small**2 + abs(q))
            u, v = (large, small) if q >= 0 else (small, large)
            times = np.concatenate([np.geomspace(1e-3, 10, 80), [40]])
            flow = _flow(lambda u, v: (2 - u * v) ** 2 / 2, [u, v], times)
            path = np.array([[float(p["all.0"]), float(p["all.1"])] for p in flow.params])
            axis.plot(
                *path.T, color=colour, label=f"Q = {_number(q)}" if low == starts[0] else None
            )
            axis.plot(*path[-1], "o", color=colour, markeredgecolor="white", markersize=6)
            end = math.sqrt((q + math.sqrt(q**2 + 16)) / 2)
            worst = max(worst, abs(path[-1, 0] - end))
    axis.set(xlim=(-0.2, 4.2), ylim=(-0.2, 4.2), xlabel="U", ylabel="V", aspect="equal")
    axis.grid(False)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    _save(figure, "valley")
    rows.append(("H.1, fig. 8", "end of the flow beside √(½(Q + √(Q² + 4Y²)))", "equal",
                 f"{worst:.0e}"))  # fmt: skip
    for q in (0.0, 3.0):
        start = torch.tensor([math.sqrt(0.3**2 + q), 0.3], dtype=WIDE)
        flow = _flow(lambda p: (1 - p.prod()) ** 2 / 2, [start.numpy()], [60])
        hessian = torch.func.hessian(lambda p: (1 - p.prod()) ** 2 / 2)(flow.params[-1]["all.0"])
        found = torch.linalg.eigvalsh(hessian)
        rows.append(("H.1 (111)", f"λ₁, λ₂ at Q = {q:.0f}", f"0, {2 * math.hypot(q, 2):.4f}",
                     f"{abs(float(found[0])):.0e}, {float(found[1]):.4f} "
                     f"(√(Q² + 4) = {math.hypot(q, 2):.4f})"))  # fmt: skip


def sharpness() -> None:
    """Figure 9: eigenvalues of Hessians after training from different Q."""
    figure, axes = _four(3.0)
    for axis, act in zip(axes[0], ACTIVATIONS, strict=True):
        zeros, centres, labels, wrong = [], [], [], 0.0
        spreads = [0.15, 0.4, 1.0, 2.5, 6.0]
        for place, spread in enumerate(spreads):
            y, u, v = _draw(np.random.default_rng(1), 10, 50, 5, 0.2 * spread, 0.2 / spread)
            q = _quantity(act, u, v)
            u, v, loss = _trained(act, y, u, v)
            found = _eigenvalues(act, y, u, v)
            kept = found[np.abs(found) > 1e-3]
            zeros.append(len(found) - len(kept))
            labels.append(_number(q))
            centres.append(f"{labels[-1]}: {np.median(kept):.3g}")
            if act.name == "identity":
                one, other = np.linalg.eigvalsh(u @ u.T), np.linalg.eigvalsh(v.T @ v)
                closed = np.sort(2 * (one[:, None] + other).ravel())
                wrong = max(wrong, np.abs(found[-50:] / closed - 1).max())
            level = np.random.default_rng(2).uniform(-0.3, 0.3, len(kept))
            axis.plot(kept, place + level, ".", color=COLOURS[place], markersize=4, alpha=0.6)
            axis.plot([np.median(kept)] * 2, [place - 0.4, place + 0.4], color=COLOURS[place])
        axis.set_xscale("log")
        axis.set_yticks(range(len(spreads)), labels)
        for label, colour in zip(axis.get_yticklabels(), COLOURS, strict=True):
            label.set_color(colour)
        axis.grid(axis="y", visible=False)
        axis.set_title(act.title)
        axis.set_xlabel("eigenvalue")
        rows.append(("H.2", f"{act.title}: eigenvalues ≤ 1e-3 of 750, by Q",
                     "700" if act.name == "identity" else "–", f"{zeros}"))  # fmt: skip
        rows.append(("H.2, fig. 9", f"{act.title}: Q: median of the others", "correlated",
                     "; ".join(centres)))  # fmt: skip
        if act.name == "identity":
            rows.append(("H.2", "eigenvalues beside 2(λᵢ(UUᵀ) + μⱼ(VᵀV)), relative", "–",
                         f"{wrong:.0e}"))  # fmt: skip
    axes[0, 0].set_ylabel("Q")
    _save(figure, "sharpness")


def _trained(act: Activation, y: np.ndarray, u: np.ndarray, v: np.ndarray):
    """Descent at half the rate that the largest curvature allows, to a loss of 1e-16."""
    loss = math.inf
    for step in range(40000):
        if step % 100 == 0:
            hidden, steep = act.value(v), act.slope(v)
            top = np.linalg.norm(hidden, 2) ** 2 + np.linalg.norm(u, 2) ** 2 * (steep**2).max()
            rate = 0.5 / top
        loss, du, dv = _slopes(act, y, u, v)
        if loss < 1e-16:
            break
        u, v = u - rate * du, v - rate * dv
    return u, v, loss


def _eigenvalues(act: Activation, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Of the Hessian of ‖Y − U σ(V)‖², increasing."""
    functions = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
    function = functions.get(act.name, lambda x: x)
    target = torch.from_numpy(y)

    def loss(p: torch.Tensor) -> torch.Tensor:
        one, other = p[: u.size].view(u.shape), p[u.size :].view(v.shape)
        return (target - one @ function(other)).square().sum()

    point = torch.from_numpy(np.concatenate([u.ravel(), v.ravel()]))
    return torch.linalg.eigvalsh(torch.func.hessian(loss)(point)).numpy()


# -- flows -----------------------------------------------------------------------------------------


def flows() -> None:
    """Drift of conserved quantities over time 2,000, and the kinks that a ReLU network meets."""
    modules = [nn.Identity(), nn.ReLU(), nn.Tanh(), nn.Sigmoid()]
    for module, act in zip(modules, ACTIVATIONS, strict=True):
        generator = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4, bias=False), module, nn.Linear(4, 2, bias=False))
        target = _filled(model, generator, 3)
        flow = gradient_flow(model, lambda o, y=target: (o - y).square().mean(), (torch.eye(3),),
                             [1, 10, 100, 1000, 2000])  # fmt: skip
        drifted = flow.drift(
            lambda p, n=act.name: {"q": unit_quantities(p["2.weight"], p["0.weight"], n)}
        )
        rows.append(("flow", f"{act.title}: drift over time 2,000, gradients, kinks", "–",
                     f"{drifted['q']:.0e}, {flow.evaluations:,}, {len(flow.events)}"))  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(8, 3, generator=generator)
    target = _filled(model, generator, 8)
    flow = gradient_flow(model, lambda o: (o - target).square().mean(), (x,), [10, 100, 300])
    symmetry = find_symmetry(model, (x,))
    kinds = [e.kind for e in flow.events]
    counts = ", ".join(str(kinds.count(k)) for k in ("crosses", "slides", "leaves"))
    rows.append(("flow", "ReLU 3-4-2 on 8 inputs, time 300: drift, gradients", "–",
                 f"{flow.drift(lambda p: moment_map(symmetry, p))['mlp']:.0e}, "
                 f"{flow.evaluations:,}"))  # fmt: skip
    rows.append(("flow", "   of its kinks: crossed, slid along, left again", "–", counts))


def _filled(model: nn.Module, generator: torch.Generator, examples: int) -> torch.Tensor:
    """Normal weights, and targets for them."""
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=generator).mul_(0.7)
    return torch.randn(examples, 2, generator=generator, dtype=WIDE)


PARTS = [drift, distributions, ellipse, rates, radial, valley, sharpness, flows]

if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [part.__name__ for part in PARTS]
    began = time.perf_counter()
    with plt.rc_context(STYLE), console.status("drawing"):
        for part in (p for p in PARTS if p.__name__ in wanted):
            started = time.process_time()
            part()
            done = f"{part.__name__}: {time.process_time() - started:.1f} CPU-seconds"
            console.print(done, style="dim")
    table = Table(
        "where", "what", "source", "here", title="Beside the source", title_justify="left"
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"{time.perf_counter() - began:.0f} seconds; figures in docs/figures")
