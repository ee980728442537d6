"""Pictures: weight sharing, spectra with the chosen ranks, reconstructions.

Every function returns a matplotlib figure; save it with `figure.savefig`. matplotlib is imported
only here, and only when a picture is drawn.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .component import Component
from .errors import EquivariantError
from .images import Images
from .optimum import Optimum
from .sharing import weight_sharing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_GRAPH = 40  # nodes in one column that can still be told apart


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_weight_sharing(component: Component) -> "Figure":
    """The encoder and the decoder as a graph: equal colours share a weight, dashes change its sign.

    Drawn in adapted coordinates: n inputs at the left, the code in the middle, m outputs at the
    right.

    Args:
        component: a component with at most 40 coordinates on either side.

    Raises:
        EquivariantError: there are more coordinates than can be told apart.
    """
    m, n = component.decomposition.shape
    if max(m, n) > LARGEST_GRAPH:
        raise EquivariantError(
            f"draw_weight_sharing: {max(m, n)} coordinates came; expected at most {LARGEST_GRAPH} "
            "in a readable graph. Use draw_sharing_pattern for larger ones."
        )
    import matplotlib

    encoder, decoder = weight_sharing(component)
    colours = matplotlib.colormaps["turbo"]
    figure = _figure(7, 0.7 + 0.32 * max(m, n))
    axes = figure.add_subplot()
    rows = {0: n, 1: component.rank, 2: m}
    height = {c: np.linspace(1, 0, k) if k > 1 else np.array([0.5]) for c, k in rows.items()}
    numbers = max(component.parameter_count - 1, 1)
    # Neighbouring weights get colours far apart: multiply by a number coprime to most counts.
    for x, pattern, source, target in ((0, encoder, 0, 1), (1, decoder, 1, 2)):
        for i, j in np.argwhere(pattern):
            label = int(pattern[i, j])
            colour = colours((abs(label) - 1) * 0.618034 % 1 if numbers > 8 else abs(label) / 9)
            axes.plot(
                [x, x + 1],
                [height[source][j], height[target][i]],
                color=colour,
                linestyle="--" if label < 0 else "-",
                linewidth=1.4,
            )
    for c in rows:
        axes.plot([c] * rows[c], height[c], "o", color="black", markersize=5, zorder=3)
    for x, text in ((0, f"input ({n})"), (1, f"code ({component.rank})"), (2, f"output ({m})")):
        axes.text(x, 1.06, text, ha="center", fontsize=10)
    axes.set_title(
        f"ranks {component.ranks}: {component.parameter_count} free weights, "
        f"{np.count_nonzero(encoder) + np.count_nonzero(decoder)} edges",
        fontsize=10,
        pad=18,
    )
    axes.set_axis_off()
    return figure


def draw_sharing_pattern(component: Component) -> "Figure":
    """The encoder's weight sharing (rank × n) as an image: one colour for each weight, by sign."""
    encoder, _ = weight_sharing(component)
    largest = max(int(np.abs(encoder).max(initial=1)), 1)
    shown = np.where(encoder == 0, np.nan, np.sign(encoder) * (0.15 + np.abs(encoder) / largest))
    figure = _figure(9, 0.9 + 9 * max(encoder.shape[0], 8) / max(encoder.shape[1], 1) * 0.9)
    axes = figure.add_subplot()
    axes.imshow(shown, cmap="RdBu", vmin=-1.15, vmax=1.15, interpolation="nearest", aspect="auto")
    starts, column = [], 0
    for v in component.decomposition.isotypics:
        starts.append(column + v.source * v.dimension / 2 - 0.5)
        column += v.source * v.dimension
        axes.axvline(column - 0.5, color="grey", linewidth=0.4)
    if len(starts) <= 40:
        names = [v.name for v in component.decomposition.isotypics]
        axes.set_xticks(starts, names, fontsize=7, rotation=45)
    axes.set_xlabel("adapted coordinates, by isotypic block")
    axes.set_ylabel("code")
    axes.set_title(f"encoder: {int(np.abs(encoder).max(initial=0))} weights (blue +, red −)")
    return figure


def draw_spectrum(optimum: Optimum) -> "Figure":
    """The eigenvalues of each isotypic block of the covariance, the chosen ones filled.

    Args:
        optimum: from `best_component` or `best_on_component`.
    """
    isotypics = optimum.component.decomposition.isotypics
    figure = _figure(max(6.0, min(0.55 * len(isotypics), 16.0)), 4.2)
    axes = figure.add_subplot()
    top = max((float(s[0]) for s in optimum.spectrum if len(s)), default=1.0)
    floor = top * 1e-9
    kinds = {1: "tab:blue", 2: "tab:orange", 4: "tab:green"}
    for i, (v, s, r) in enumerate(
        zip(isotypics, optimum.spectrum, optimum.component.ranks, strict=True)
    ):
        # Spread the eigenvalues of a block sideways: many of them are close.
        x = i + np.linspace(-0.3, 0.3, len(s)) if len(s) > 1 else np.full(len(s), float(i))
        y = np.maximum(s, floor)
        colour = kinds[v.size]
        axes.plot(x[r:], y[r:], "o", mfc="none", color=colour, markersize=3, alpha=0.6)
        axes.plot(x[:r], y[:r], "o", color=colour, markersize=4)
    axes.set_yscale("log")
    axes.axhline(max(optimum.next_value, floor), color="grey", linestyle=":", linewidth=1)
    axes.text(
        len(isotypics) - 0.5, max(optimum.next_value, floor) * 1.2, "cut", ha="right", fontsize=8
    )
    if len(isotypics) <= 40:
        names = [
            f"{v.name}\nr={r}" for v, r in zip(isotypics, optimum.component.ranks, strict=True)
        ]
        axes.set_xticks(range(len(isotypics)), names, fontsize=7)
    else:
        axes.set_xlabel("isotypic block")
    for size, name in ((1, "real"), (2, "complex"), (4, "quaternionic")):
        if any(v.size == size for v in isotypics):
            axes.plot([], [], "o", color=kinds[size], label=name)
    axes.legend(fontsize=8)
    axes.set_ylabel("eigenvalue of the averaged second moment")
    axes.set_title(
        f"rank {optimum.component.rank}: filled = kept; loss {optimum.loss:.4g}", fontsize=10
    )
    return figure


def draw_reconstructions(images: Images, autoencoders: Mapping[str, Any]) -> "Figure":
    """Images in the top row, their reconstructions below, one row for each autoencoder.

    Args:
        images: samples × height × width, a handful.
        autoencoders: matrices (n × n) by name.
    """
    flat = images.reshape(len(images), -1)
    rows = {"input": flat} | {name: flat @ np.asarray(m).T for name, m in autoencoders.items()}
    figure = _figure(1.3 + 0.9 * len(images), 0.95 * len(rows))
    grid = figure.subplots(len(rows), len(images), squeeze=False)
    for line, (name, pictures) in zip(grid, rows.items(), strict=True):
        for axes, picture in zip(line, pictures, strict=True):
            axes.imshow(picture.reshape(images.shape[1:]), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return figure
