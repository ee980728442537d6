"""Draw the figures of the tutorial into docs/figures."""

from pathlib import Path

from paramsym.relu import moves, pictures

NET = [
    ([["1", "3/10"], ["-2/5", "1"]], ["1/5", "1/2"]),
    ([["1", "-4/5"], ["1", "-4/5"]], ["-3/5", "-8/5"]),
    ([["1", "-2"]], ["0"]),
]

if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "docs" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    moved = moves.translate(moves.reflect(NET, 1, 0, 1), 1, 0, "6/5")
    pictures.before_and_after(NET, moved).savefig(folder / "relu-before-after.png", dpi=110)
    pictures.half_lines(NET).savefig(folder / "relu-half-lines.png", dpi=110)
    pictures.fiber_slice(NET, points=241).savefig(folder / "relu-slice.png", dpi=110)
