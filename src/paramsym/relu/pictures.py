"""Pictures of what a ReLU network shows of its hyperplanes, and of the fiber it lies on.

Matplotlib is imported inside the functions; each returns a figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paramsym.relu import moves
from paramsym.relu.errors import ReLUError
from paramsym.relu.network import FloatLayer, Network
from paramsym.relu.reading import as_network
from paramsym.relu.three_layer import ThreeLayerFiber

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN, HIDDEN, BENT = "#1f4e79", "#c0392b", "#2b2b2b"


def _figure(columns: int, width: float = 4.6, height: float = 4.4, **options: Any):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    return figure, axes


def _planar(network: Any, where: str) -> Network:
    net = as_network(network, where)
    if net.input_dim != 2 or net.depth != 2:
        raise ReLUError(
            f"a network {'-'.join(map(str, net.widths))}", "two inputs and two hidden layers",
            where, "Pictures are drawn in the plane of the inputs.",
        )  # fmt: skip
    return net


def draw_complex(axes: Axes, network: Any, half_width: float = 4.0, points: int = 500) -> None:
    """Draw one network in the plane: its values in grey and what bends it as lines.

    First-layer hyperplanes that show are blue, a hidden one is red and dashed: the function is
    smooth across it, because it runs inside the dotted region where no second-layer unit fires.
    Bent zero sets of the second layer are black.
    """
    net = _planar(network, "relu.pictures.draw_complex(network)")
    side = np.linspace(-half_width, half_width, points)
    x, y = np.meshgrid(side, side)
    grid = np.stack([x.ravel(), y.ravel()], axis=1)
    (w1, b1), (w2, b2) = net.floats[0], net.floats[1]
    z = grid @ w1.T + b1
    p = np.maximum(z, 0) @ w2.T + b2
    value = net.batch(grid)[:, 0].reshape(points, points)
    extent = (-half_width, half_width, -half_width, half_width)
    axes.imshow(value, cmap="Greys", alpha=0.5, origin="lower", extent=extent)
    fiber = ThreeLayerFiber(net)
    silent = (p[:, fiber.live] <= 0).all(axis=1).reshape(points, points)
    if silent.any():
        dots = axes.contourf(
            x, y, silent.astype(float), levels=[0.5, 1.5], colors=["none"], hatches=["."]
        )
        dots.set_edgecolor("#777777")
        dots.set_linewidth(0.0)
    for i in fiber.live:
        axes.contour(x, y, p[:, i].reshape(points, points), levels=[0], colors=BENT, linewidths=1.4)
    for j, shows in enumerate(fiber.visible):
        axes.contour(
            x, y, z[:, j].reshape(points, points), levels=[0],
            colors=SHOWN if shows else HIDDEN, linestyles="solid" if shows else "dashed",
            linewidths=2.2,
        )  # fmt: skip
    axes.set_aspect("equal")
    axes.set_xlabel("$x_1$")
    axes.set_ylabel("$x_2$")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Line2D([], [], color=SHOWN, lw=1.8, label="first layer, shows"),
            Line2D([], [], color=HIDDEN, lw=1.8, ls="--", label="first layer, hidden"),
            Line2D([], [], color=BENT, lw=1.4, label="second layer (bent)"),
            Patch(facecolor="none", edgecolor="#777777", hatch="..", lw=0.0,
                  label="no second-layer unit fires: $f$ constant"),  # fmt: skip
        ],
        loc="outside lower center", ncols=4, frameon=False,
    )  # fmt: skip


def before_and_after(network: Any, moved: Any, half_width: float = 4.0) -> Figure:
    """The breakpoint complex of a planar network and of another one of its fiber, side by side.

    The grey values and the black lines stay where they are; a hidden first-layer line moves, and
    after a reflection the line it turns about keeps its place.
    """
    figure, axes = _figure(2, sharex=True, sharey=True)
    for ax, net, title in zip(axes, (network, moved), ("before", "after"), strict=True):
        draw_complex(ax, net, half_width)
        ax.set_title(title)
    a, b = as_network(network), as_network(moved)
    side = np.linspace(-half_width, half_width, 60)
    grid = np.stack([v.ravel() for v in np.meshgrid(side, side)], axis=1)
    gap = float(np.abs(a.batch(grid) - b.batch(grid)).max())
    figure.suptitle(f"the same function (largest difference on the picture {gap:.1e})", fontsize=11)
    _legend(figure)
    return figure


def half_lines(network: Any, reach: float = 3.0, half_width: float = 4.0) -> Figure:
    """The fiber of a type-B network: one closed half-line t >= t_min per set of reflections.

    Above, the half-lines, with the network's own place marked; below, what the first layer looks
    like at t_min, at 0 and further out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    net = _planar(network, "relu.pictures.half_lines(network)")
    fiber = ThreeLayerFiber(net)
    if fiber.type != "B" or fiber.hidden is None or fiber.t_min is None:
        raise ReLUError(
            f"a network of type {fiber.type}", "type B: one hidden first-layer hyperplane",
            "relu.pictures.half_lines(network)", "Only type B has half-lines.",
        )  # fmt: skip
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 2.1])
    top = parts[0].subplots()
    sets: list[tuple[int, ...]] = [()]
    for k in fiber.reflections:
        sets += [(*s, k) for s in sets]
    end = float(fiber.t_min)
    stops = [end, 0.0, reach * 0.7] if end < 0 else [0.0, reach * 0.35, reach * 0.7]
    for row, chosen in enumerate(sets):
        label = "no reflection" if not chosen else "reflected: " + ", ".join(map(str, chosen))
        top.plot([end, end + reach], [row, row], color=HIDDEN, lw=2.4, solid_capstyle="butt")
        top.annotate("", (end + reach * 1.06, row), (end + reach, row),
                     arrowprops={"arrowstyle": "->", "color": HIDDEN, "lw": 2.4})  # fmt: skip
        top.plot([end], [row], "o", color=HIDDEN, ms=8)
        top.text(end + reach * 1.08, row, label, va="center")
    for stop in stops:
        top.plot([stop], [0], "|", color=BENT, ms=22, mew=1.4)
    top.plot([0], [0], "*", color=SHOWN, ms=15, label="the given network")
    top.axvspan(end - reach * 0.25, end, color="#eeeeee")
    top.text(end - reach * 0.125, (len(sets) - 1) / 2, "another\nfunction", ha="center",
             va="center", fontsize=9, color="#666666")  # fmt: skip
    top.set_xlim(end - reach * 0.25, end + reach * 1.4)
    top.set_ylim(-0.7, len(sets) - 0.3)
    top.set_yticks([])
    top.set_xlabel("translation $t$ of the hidden unit's bias")
    top.legend(loc="upper left", bbox_to_anchor=(0.2, 1.02), frameon=False)
    for side in ("left", "right", "top"):
        top.spines[side].set_visible(False)
    shown = [(stop, ()) for stop in stops] + [(stops[1], sets[-1])]
    panels = parts[1].subplots(1, len(shown), sharey=True)
    for ax, (stop, chosen) in zip(panels, shown, strict=True):
        moved = net
        for k in chosen:
            moved = moves.reflect(moved, 1, fiber.hidden, k)
        moved = moves.translate(moved, 1, fiber.hidden, max(fiber.t_min, _near(stop)))
        draw_complex(ax, moved, half_width, 300)
        ax.set_title(f"t = {stop:.2g}" + (", reflected" if chosen else ""), fontsize=10)
        ax.label_outer()
    _legend(parts[1])
    return figure


def _near(value: float):
    from fractions import Fraction

    return Fraction(value).limit_denominator(1000)


def fiber_slice(
    network: Any,
    layer: int = 1,
    unit: int | None = None,
    half_width: float = 2.0,
    points: int = 121,
) -> Figure:
    """A slice of parameter space through a type-B network: b1_j against the common shift of b2.

    Colour is the largest change of the function on a sample of inputs; the fiber is the dark line,
    straight because T_j is affine, ending at t_min because there a second-layer bias reaches 0.
    """
    net = as_network(network, "relu.pictures.fiber_slice(network)")
    fiber = ThreeLayerFiber(net)
    hidden = fiber.hidden
    if fiber.type != "B" or hidden is None or fiber.t_min is None:
        raise ReLUError(
            f"a network of type {fiber.type}", "type B", "relu.pictures.fiber_slice(network)",
            "The slice is drawn along the translation of a hidden unit.",
        )  # fmt: skip
    (w1, b1), (w2, b2), last = net.floats
    rng = np.random.default_rng(0)
    z = rng.uniform(-4, 4, (600, len(b1)))
    z[:200] = -np.abs(z[:200])
    z[:200, hidden] *= -1
    inputs = (z - b1) @ np.linalg.pinv(w1).T
    start = net.batch(inputs)
    shifts = np.linspace(-half_width, half_width, points)
    change = np.zeros((points, points))
    for i, s in enumerate(shifts):  # b2 -= s·W2_:j
        for k, t in enumerate(shifts):  # b1_j += t
            bias = b1.copy()
            bias[hidden] += t
            moved = Network(
                floats=[FloatLayer(w1, bias), FloatLayer(w2, b2 - s * w2[:, hidden]), last]
            )
            change[i, k] = np.abs(moved.batch(inputs) - start).max()
    figure, axes = _figure(1, 6.4, 4.8)
    ax = axes[0]
    shown = np.log10(change + 1e-6)
    mesh = ax.pcolormesh(shifts, shifts, shown, cmap="YlGnBu_r", shading="auto", vmin=-3)
    figure.colorbar(mesh, ax=ax, label=r"$\log_{10}$ largest change of $f$")
    end = float(fiber.t_min)
    ax.plot([max(end, -half_width), half_width], [max(end, -half_width), half_width],
            color=HIDDEN, lw=2, label="fiber: $s = t \\geq t_{min}$")  # fmt: skip
    if end > -half_width:
        ax.plot([end], [end], "o", color=HIDDEN, ms=8)
        ax.annotate(
            "$t_{min}$: a bias $\\beta_i$\nreaches 0", (end, end), (12, -30),
            textcoords="offset points", color="black",
        )  # fmt: skip
    ax.plot([0], [0], "*", color="white", ms=14, mec="black", label="the given network")
    ax.set_xlabel("$t$: hidden first-layer bias $b_{1,j} + t$")
    ax.set_ylabel("$s$: second-layer biases $b_2 - s\\,W_{2,:j}$")
    ax.legend(loc="upper left")
    return figure
