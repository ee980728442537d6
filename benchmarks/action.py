"""How fast `act` moves a checkpoint of 1 GB, at once and tensor by tensor, next to copying it.

    python benchmarks/action.py [--json] [--threads N]

The checkpoint lies in memory: float32 matrices of seven residual blocks, with a permutation, a
scaling, or both on every space. Copying is `torch.clone` of every tensor, the least that a new
checkpoint costs. Streaming is `act_tensor` for every tensor, from what `symmetry.needs` lists, and
nothing is kept. The times are the best of several turns, in which the three alternate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from paramsym import ParameterSymmetry, Space, act, act_tensor
from paramsym.algebra import Group, Monomial, Permutation, PositiveScaling
from paramsym.structure import blockwise
from paramsym.structure.axes import parse_axis

WIDTH, HIDDEN, BLOCKS = 2048, 8192, 7
TARGET = 0.6
GROUPS = (Permutation, PositiveScaling, Monomial)


def checkpoint(group: Callable[[int], Group]) -> tuple[ParameterSymmetry, dict[str, Any]]:
    """A signature written by hand and random weights for it."""
    generator = torch.Generator().manual_seed(0)
    spaces = {"residual": Space("residual", group(WIDTH))}
    types, params = {}, {}
    for block in range(BLOCKS):
        unit = f"h{block}"
        spaces[unit] = Space(unit, group(HIDDEN))
        for name, text in {
            f"{block}.up.weight": f"{unit}, residual*",
            f"{block}.up.bias": unit,
            f"{block}.down.weight": f"residual, {unit}*",
            f"{block}.down.bias": "residual",
        }.items():
            types[name] = tuple(parse_axis(axis) for axis in text.split(", "))
            shape = [spaces[axis.rstrip("*")].size for axis in text.split(", ")]
            params[name] = torch.randn(shape, generator=generator)
    return ParameterSymmetry(spaces, types), params


def measure(group: Callable[[int], Group], turns: int) -> dict[str, Any]:
    """The best times of a copy, of `act`, and of `act_tensor` for one tensor after the other."""
    symmetry, params = checkpoint(group)
    generator = torch.Generator().manual_seed(1)
    element = symmetry.sample(generator, dtype=torch.float32)
    size = sum(p.numel() * p.element_size() for p in params.values()) / 1e9
    copying, moving, streaming = [], [], []
    for _ in range(turns):
        start = time.perf_counter()
        made = {name: p.clone() for name, p in params.items()}
        copying.append(time.perf_counter() - start)
        del made
        start = time.perf_counter()
        made = act(symmetry, element, params)
        moving.append(time.perf_counter() - start)
        start = time.perf_counter()
        for name in params:
            stream(symmetry, element, name, params)
        streaming.append(time.perf_counter() - start)
    same = all(torch.equal(stream(symmetry, element, n, params), made[n]) for n in params)
    exact = same and agrees_with_the_general_path(symmetry, element, params, made)
    return {
        "group": group.__name__, "gb": size, "copy": min(copying), "act": min(moving),
        "ratio": min(copying) / min(moving), "gb_per_second": size / min(moving), "exact": exact,
        "stream": min(streaming), "streaming_ratio": min(copying) / min(streaming),
    }  # fmt: skip


def stream(symmetry, element, name, params) -> torch.Tensor:
    """One moved tensor, from what it needs."""
    needed = {n: params[n] for n in symmetry.needs(name, element)}
    return act_tensor(symmetry, element, name, needed)


def agrees_with_the_general_path(symmetry, element, params, made) -> bool:
    """Whether two matrices come out as on the general path, up to one rounding."""
    fast, blockwise.moved_by_axes = blockwise.moved_by_axes, lambda *_: None
    try:
        names = ["0.up.weight", f"{BLOCKS - 1}.down.weight"]
        part = ParameterSymmetry(symmetry.spaces, {n: symmetry.signature[n] for n in names})
        moved = act(part, element, {n: params[n] for n in names})
    finally:
        blockwise.moved_by_axes = fast
    close = [torch.allclose(moved[n], made[n], rtol=1e-6, atol=0) for n in names]
    return all(close)


def run(turns: int = 5) -> list[dict[str, Any]]:
    """All groups."""
    return [measure(group, turns) for group in GROUPS]


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    threads = torch.get_num_threads()
    table = Table(title=f"Moving a checkpoint in memory: seconds, {threads} thread(s)")
    for name in (
        "group",
        "GB",
        "copy",
        "act",
        "act / copy rate",
        "streamed",
        "target",
        "as general path",
    ):
        table.add_column(name, justify="left" if name == "group" else "right")
    for row in rows:
        good = "green" if row["ratio"] >= TARGET else "red"
        table.add_row(
            row["group"], f"{row['gb']:.2f}", f"{row['copy']:.2f}", f"{row['act']:.2f}",
            f"[{good}]{row['ratio']:.2f}[/]", f"{row['streaming_ratio']:.2f}",
            f"≥ {TARGET}", "yes" if row["exact"] else "[red]NO",
        )  # fmt: skip
    Console(width=110).print(table)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = run(options.turns)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
