"""The pictures of the glossary: small SVG files, readable on light and on dark pages.

python benchmarks/glossary_figures.py

Each function draws one word, and has the name of its file in docs/figures/glossary. Nothing is
random, so that the files come out the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "figures" / "glossary"
WIDTH = 360
STYLE = """<style>
  text { font: 13px sans-serif; fill: #212121; }
  .small { font-size: 11px; }
  .line { stroke: #212121; fill: none; stroke-width: 1.5; }
  .thin { stroke: #757575; fill: none; stroke-width: 1; }
  .a { fill: #3949ab; } .b { fill: #c25700; } .none { fill: #e0e0e0; }
  .aline { stroke: #3949ab; fill: none; stroke-width: 2; }
  .bline { stroke: #c25700; fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #eeeeee; } .line { stroke: #eeeeee; } .thin { stroke: #9e9e9e; }
    .a { fill: #9fa8da; } .b { fill: #ffb74d; } .none { fill: #424242; }
    .aline { stroke: #9fa8da; } .bline { stroke: #ffb74d; }
  }
</style>"""

Matrix = Sequence[Sequence[float]]


def text(x: float, y: float, words: str, anchor: str = "middle", small: bool = False) -> str:
    kind = ' class="small"' if small else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{words}</text>'


def path(points: Sequence[tuple[float, float]], kind: str = "line") -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{joined}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> str:
    angle = math.atan2(to_y - y, to_x - x)
    wings = [
        (to_x - 8 * math.cos(angle + turn), to_y - 8 * math.sin(angle + turn))
        for turn in (0.45, -0.45)
    ]
    return path([(x, y), (to_x, to_y)], kind) + path([wings[0], (to_x, to_y), wings[1]], kind)


def dot(x: float, y: float, kind: str = "a") -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5"/>'


def box(x: float, y: float, width: float, height: float, kind: str = "line") -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'
    )


def grid(x: float, y: float, matrix: Matrix, cell: float = 16) -> str:
    """Entries as squares: above zero in one colour, below in the other, their size as opacity."""
    drawn = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            kind = "none" if value == 0 else "a" if value > 0 else "b"
            opacity = 1.0 if value == 0 else min(1.0, 0.2 + 0.8 * abs(value))
            drawn.append(
                f'<rect class="{kind}" fill-opacity="{opacity:.2f}" x="{x + j * cell:g}" '
                f'y="{y + i * cell:g}" width="{cell - 2:g}" height="{cell - 2:g}"/>'
            )
    return "".join(drawn)


def dense(rows: int, columns: int) -> list[list[float]]:
    """Numbers that look like weights, and are the same each time."""
    return [[math.sin(1 + 2.3 * i + 4.1 * j) for j in range(columns)] for i in range(rows)]


def scaled(matrix: Matrix, row: int, factor: float) -> list[list[float]]:
    return [[v * (factor if i == row else 1) for v in values] for i, values in enumerate(matrix)]


def transposed(matrix: Matrix) -> list[list[float]]:
    return [list(column) for column in zip(*matrix, strict=True)]


def symmetry() -> str:
    one, order = dense(4, 4), [2, 0, 3, 1]
    wave = [(235 + i, 60 - 18 * math.sin(i / 14)) for i in range(0, 110, 4)]
    return (
        grid(20, 4, one, 14)
        + grid(20, 78, [one[i] for i in order], 14)
        + text(48, 73, "g", small=True)
        + arrow(90, 35, 220, 55)
        + arrow(90, 105, 220, 70)
        + path(wave, "aline")
        + text(290, 108, "one function")
    )


def orbit() -> str:
    def level(c: float) -> list[tuple[float, float]]:
        return [(x, 140 - c / (x - 20)) for x in range(50, 340, 6) if 140 - c / (x - 20) > 8]

    return (
        path(level(1800), "thin")
        + path(level(4200), "aline")
        + path(level(8000), "thin")
        + dot(80, 70)
        + dot(220, 119)
        + text(92, 62, "θ", "start")
        + text(226, 112, "gθ", "start")
        + text(330, 100, "one orbit", "end", small=True)
    )


def element() -> str:
    return (
        text(60, 24, "mlp")
        + grid(32, 34, [[0, 0.9, 0], [0.4, 0, 0], [0, 0, 0.6]])
        + text(180, 24, "attn.vo")
        + grid(152, 34, dense(3, 3))
        + text(300, 24, "mlp.2")
        + grid(268, 34, [[0, 0, 0.5, 0], [1, 0, 0, 0], [0, 0.3, 0, 0], [0, 0, 0, 0.8]])
        + text(180, 122, "g: one value for each space")
    )


def space() -> str:
    units = "".join(dot(180, 22 + 24 * i) for i in range(4))
    return (
        grid(50, 30, dense(4, 3), 18)
        + units
        + grid(252, 38, dense(3, 4), 18)
        + arrow(112, 64, 166, 64)
        + arrow(194, 64, 246, 64)
        + text(76, 122, "writes", small=True)
        + text(180, 122, "the space mlp")
        + text(288, 122, "reads", small=True)
    )


def axis() -> str:
    return (
        grid(150, 20, dense(4, 5), 18)
        + text(140, 60, "mlp.2", "end")
        + text(194, 110, "mlp*")
        + text(20, 30, "2.weight", "start", small=True)
        + text(256, 44, "rows: covariant", "start", small=True)
        + text(256, 76, "columns: dual", "start", small=True)
    )


def dual() -> str:
    first, second = dense(3, 3), dense(3, 3)
    return (
        grid(60, 24, scaled(first, 1, 1.6), 20)
        + grid(240, 24, transposed(scaled(second, 1, 0.25)), 20)
        + text(90, 16, "mlp", small=True)
        + text(270, 16, "mlp*", small=True)
        + text(90, 110, "row × 2")
        + text(270, 110, "column × ½")
        + arrow(140, 54, 226, 54)
    )


def groups() -> str:
    cos, sin = 0.8, 0.6
    shown: list[tuple[str, Matrix]] = [
        ("Permutation", [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
        ("SignedPermutation", [[0, -1, 0], [0, 0, 1], [1, 0, 0]]),
        ("PositiveScaling", [[0.3, 0, 0], [0, 1, 0], [0, 0, 0.6]]),
        ("Monomial", [[0, 0.4, 0], [0, 0, 1], [0.7, 0, 0]]),
        ("ComplexScaling", [[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]),
        ("Orthogonal", [[0.67, -0.33, 0.67], [0.67, 0.67, -0.33], [-0.33, 0.67, 0.67]]),
        ("GeneralLinear", dense(3, 3)),
    ]
    drawn = ""
    for place, (name, matrix) in enumerate(shown):
        x, y = 120 * (place % 3), 8 + 88 * (place // 3)
        drawn += grid(x + 34, y, matrix, 18) + text(x + 60, y + 70, name, small=True)
    return drawn


def frame() -> str:
    rotated: Matrix = [[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]]
    gains: Matrix = [[1, 0, 0], [0, 0.3, 0], [0, 0, 0.6]]
    return (
        grid(24, 26, gains, 20)
        + grid(150, 26, rotated, 20)
        + grid(276, 26, gains, 20)
        + arrow(92, 56, 140, 56)
        + arrow(218, 56, 266, 56)
        + text(54, 110, "fold the gain")
        + text(180, 110, "turn")
        + text(306, 110, "unfold it")
    )


def translation() -> str:
    return (
        arrow(20, 60, 340, 60, "thin")
        + dot(110, 60)
        + dot(190, 60, "b")
        + arrow(110, 44, 188, 44, "bline")
        + text(150, 34, "the bias slides by δ")
        + text(110, 84, "b", small=True)
        + text(190, 84, "b + δ", small=True)
        + text(180, 112, "the next bias takes back W δ")
    )


def unread() -> str:
    return (
        arrow(30, 100, 150, 100, "thin")
        + arrow(30, 100, 30, 10, "thin")
        + arrow(60, 80, 120, 35, "bline")
        + text(95, 118, "no reader sees this way", small=True)
        + arrow(215, 100, 340, 100, "thin")
        + arrow(215, 100, 215, 10, "thin")
        + "".join(dot(225 + 11 * i, 94 - 7 * i) for i in range(9))
        + arrow(262, 54, 245, 28, "bline")
        + text(285, 118, "no datum goes this way", small=True)
    )


def over() -> str:
    drawn = ""
    for i, name in enumerate(("head 0", "head 1", "head 2")):
        x = 24 + 112 * i
        drawn += box(x, 26, 88, 66) + grid(x + 23, 36, dense(3, 3)[i:] + dense(3, 3)[:i], 15)
        drawn += text(x + 44, 108, name, small=True)
    return drawn + text(180, 16, "the order moves boxes, each with a basis inside", small=True)


def family() -> str:
    drawn = ""
    for i in range(3):
        drawn += box(20, 10 + 34 * i, 90, 26) + text(65, 28 + 34 * i, f"h.{i}.mlp", small=True)
        drawn += path([(110, 23 + 34 * i), (160, 57)], "thin")
    return drawn + box(160, 42, 176, 30, "aline") + text(248, 62, "h.{0..2}.mlp")


def moment() -> str:
    return (
        path([(60, 76), (300, 44)], "line")
        + path([(170, 110), (180, 60), (190, 110), (170, 110)], "line")
        + grid(36, 34, dense(2, 3), 16)
        + grid(276, 4, dense(2, 3), 16)
        + text(60, 104, "‖incoming‖²", small=True)
        + text(300, 72, "‖outgoing‖²", small=True)
        + text(180, 130, "moment: the difference")
    )


def control() -> str:
    return (
        arrow(60, 100, 345, 100, "thin")
        + box(60, 14, 8, 16, "a")
        + box(60, 48, 260, 16, "b")
        + text(80, 27, "a random element: 1e-16", "start")
        + text(60, 80, "a wrong move of the same size: 1", "start")
        + text(200, 120, "change of the function", small=True)
    )


def nullity() -> str:
    return (
        box(20, 26, 320, 26, "none")
        + box(20, 26, 120, 26, "a")
        + box(140, 26, 26, 26, "b")
        + text(80, 72, "explained", small=True)
        + text(154, 90, "unexplained", small=True)
        + text(260, 72, "the function changes", small=True)
        + path([(20, 100), (20, 106), (166, 106), (166, 100)], "line")
        + text(93, 124, "nullity")
    )


def fiber() -> str:
    wave = [(30 + i, 70 + 22 * math.sin(i / 40)) for i in range(0, 300, 6)]
    upper, lower = [(x, y - 30) for x, y in wave], [(x, y + 30) for x, y in wave]
    return (
        path(upper, "thin")
        + path(lower, "thin")
        + path(wave, "aline")
        + dot(*wave[16])
        + text(wave[16][0] + 8, wave[16][1] - 8, "θ", "start")
        + text(340, 100, "orbit", "end", small=True)
        + text(130, 132, "fiber: all that compute it", small=True)
    )


def meet() -> str:
    return (
        '<ellipse class="aline" cx="140" cy="62" rx="110" ry="48"/>'
        '<ellipse class="bline" cx="225" cy="62" rx="110" ry="48"/>'
        + text(80, 66, "Orthogonal")
        + text(286, 66, "Monomial")
        + text(183, 58, "signed", small=True)
        + text(183, 74, "orders", small=True)
    )


def conserved() -> str:
    def place(u: float, v: float) -> tuple[float, float]:
        return 60 + 90 * u, 122 - 48 * v

    minima = [place(u / 20, 20 / u) for u in range(9, 62)]
    drawn = path(minima, "bline")
    for q in (-3.0, 0.0, 3.0):
        least, flow = max(0.02, math.sqrt(max(0.0, -q)) + 0.01), []
        for step in range(200):
            u = least + step / 80
            v = math.sqrt(u * u + q)
            flow.append(place(v, u))
            if u * v > 1:
                break
        drawn += path(flow, "aline") + dot(*flow[-1])
        drawn += text(flow[-1][0] + 10, flow[-1][1] - 8, f"Q = {q:g}", "start", small=True)
    return drawn + text(352, 92, "minima", "end", small=True)


DRAWN: tuple[Callable[[], str], ...] = (
    symmetry, orbit, element, space, axis, dual, groups, frame, translation, unread, over, family,
    moment, control, nullity, fiber, meet, conserved,
)  # fmt: skip


def picture(draw: Callable[[], str]) -> str:
    height = 272 if draw is groups else 136
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">\n{STYLE}\n{draw()}\n</svg>\n'
    )


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in DRAWN:
        (FOLDER / f"{draw.__name__}.svg").write_text(picture(draw), encoding="utf-8")


if __name__ == "__main__":
    main()
