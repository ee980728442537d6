"""`paramsym equivariant`: count the components, find the best one, draw it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from paramsym.cli.options import AsJson, Force
from paramsym.terminal import Progress

SMALL = 6  # digits beyond which a degree is printed by its length


def _number(value: float) -> float:
    """NaN passes every comparison with a bound."""
    if math.isnan(value):
        raise typer.BadParameter("nan is no number.")
    return value


def equivariant(
    shift: Annotated[str, typer.Option(help="Image size, height x width, as 28x28.")] = "28x28",
    rank: Annotated[int, typer.Option(help="Width of the bottleneck.")] = 99,
    axis: Annotated[str, typer.Option(help="horizontal, vertical or both.")] = "horizontal",
    data: Annotated[
        Path | None, typer.Option(help=".npz file with x_train and x_test (samples, h, w).")
    ] = None,
    augment: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            callback=_number,
            help="Shift each image at random by up to this part of its width.",
        ),
    ] = 0.2,
    seed: Annotated[
        int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed of the random shifts.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the pictures; none are drawn without it.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Count the components of shift-equivariant linear autoencoders, and find the best for data."""
    import numpy as np

    from paramsym.equivariant.components import components
    from paramsym.equivariant.decomposition import decompose
    from paramsym.equivariant.errors import EquivariantError
    from paramsym.equivariant.image_groups import image_shift
    from paramsym.equivariant.images import load_images, randomly_shifted, second_moment

    if output is not None and not force:
        _refuse_existing(output)
    height, width = _size(shift)
    with Progress(not as_json) as progress:
        progress("decomposing the shifts and counting components")
        decomposition = decompose(image_shift(height, width, axis))
        family = components(decomposition, rank)
    result: dict[str, Any] = {
        "images": [height, width],
        "axis": axis,
        "rank": rank,
        "blocks": [_block(v) for v in decomposition.isotypics],
        "components": family.count,
        "components_of_lower_rank": family.smaller.count,
        "dense_parameters": 2 * rank * height * width,
    }
    images = None
    if data is not None:
        images = load_images(data)
        if images.train.shape[1:] != (height, width):
            raise EquivariantError(
                f"--data {data}: its images are {images.train.shape[1:]}, but --shift says "
                f"{(height, width)}. Pass --shift {images.train.shape[1]}x"
                f"{images.train.shape[2]}."
            )
        generator = np.random.default_rng(seed)
        if augment:
            images = type(images)(*(randomly_shifted(part, augment, generator) for part in images))
        with Progress(not as_json) as progress:
            progress("finding the best component for the data")
            _study(result, decomposition, second_moment(images.train), second_moment(images.test))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        optimum = result.get("_best")
        shown = optimum.component if optimum is not None else _middle(family)
        if shown is not None:
            with Progress(not as_json) as progress:
                progress("drawing")
                result["pictures"] = _draw(output, shown, optimum, images, result.get("_dense"))
    public = {key: value for key, value in result.items() if not key.startswith("_")}
    if as_json:
        typer.echo(json.dumps(public, indent=2))
    else:
        _print(public)


PICTURES = ("weight_sharing.png", "spectrum.png", "reconstructions.png")


def _refuse_existing(folder: Path) -> None:
    found = [name for name in PICTURES if (folder / name).exists() or (folder / name).is_symlink()]
    if found:
        from paramsym.equivariant.errors import EquivariantError

        raise EquivariantError(
            f"--output {folder}: {', '.join(found)} exist there already; a folder without these "
            "pictures was expected. Choose another folder, or give --force to replace them."
        )


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        from paramsym.equivariant.errors import EquivariantError

        raise EquivariantError(
            f"--shift {text!r} is not an image size; expected height x width. Write --shift 28x28."
        )
    return int(parts[0]), int(parts[1])


def _block(v: Any) -> dict[str, Any]:
    return {"name": v.name, "type": v.type, "dimension": v.dimension, "multiplicity": v.source}


def _study(result: dict[str, Any], decomposition: Any, train: Any, test: Any) -> None:
    """Adds the best component and the table of losses."""
    import numpy as np

    from paramsym.equivariant.optimum import best_component
    from paramsym.equivariant.study import closed_form_table

    rank, pixels = result["rank"], decomposition.shape[1]
    optimum = best_component(train, decomposition, rank)
    leading = np.linalg.eigh(train)[1][:, ::-1][:, :rank]
    result["_best"], result["_dense"] = optimum, leading @ leading.T
    component = optimum.component
    result["best"] = {
        "ranks": list(component.ranks),
        "dimension": component.dimension,
        "degree": _digits(component.degree),
        "ed_degree": _digits(component.ed_degree),
        "parameters": component.parameter_count,
        "loss_per_pixel": optimum.loss_per_pixel,
        "certified_lower_bound": optimum.lower_bound / pixels,
    }
    result["losses"] = [
        {
            "name": row.name,
            "ranks": None if row.component is None else list(row.component.ranks),
            "train": row.train,
            "test": row.test,
        }
        for row in closed_form_table(train, test, decomposition, rank)
    ]


def _digits(number: int) -> str:
    """A big integer in decimals; its size where Python refuses to print it."""
    decimals = int(number.bit_length() * 0.30103)
    return str(number) if decimals < 4000 else f"about 1e{decimals}"


def _middle(family: Any) -> Any:
    """Some component with blocks of every type in it, if there is one."""
    return family[family.count // 2] if family.count else None


def _draw(folder: Path, component: Any, optimum: Any, images: Any, dense: Any) -> list[str]:
    from paramsym.equivariant.figures import (
        LARGEST_GRAPH,
        draw_reconstructions,
        draw_sharing_pattern,
        draw_spectrum,
        draw_weight_sharing,
    )

    small = max(component.decomposition.shape) <= LARGEST_GRAPH
    graph = draw_weight_sharing if small else draw_sharing_pattern
    graphs, spectrum, reconstructions = PICTURES
    figures = {graphs: graph(component)}
    if optimum is not None:
        figures[spectrum] = draw_spectrum(optimum)
        figures[reconstructions] = draw_reconstructions(
            images.test[:9], {"equivariant": optimum.matrix, "dense": dense}
        )
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=130)
    return [str(folder / name) for name in figures]


def _print(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    height, width = result["images"]
    rank = result["rank"]
    console.print(f"{height} x {width} images, {result['axis']} shift, rank {rank}")
    blocks = result["blocks"]
    shown = ", ".join(f"{b['multiplicity']} x {b['name']}" for b in blocks[:16])
    console.print(f"blocks: {shown}{', …' if len(blocks) > 16 else ''}", highlight=False)
    console.print(f"components of rank {rank}: {result['components']:,}", highlight=False)
    if result["components_of_lower_rank"]:
        console.print(
            f"further components, of lower rank: {result['components_of_lower_rank']:,}",
            highlight=False,
        )
    best = result.get("best")
    if best is None:
        console.print("Pass --data images.npz for the best component and its losses.")
    else:
        console.print(f"best component: {tuple(best['ranks'])}", highlight=False)
        console.print(
            f"  parameters {best['parameters']:,} (dense {result['dense_parameters']:,}), "
            f"dimension {best['dimension']:,}, degree {_long(best['degree'])}, "
            f"ED degree {_long(best['ed_degree'])}",
            highlight=False,
        )
        console.print(
            f"  loss per pixel {best['loss_per_pixel']:.5f}, no component is below "
            f"{best['certified_lower_bound']:.5f}",
            highlight=False,
        )
        table = Table("autoencoder", "train", "test", box=box.SIMPLE)
        for row in result["losses"]:
            table.add_row(row["name"], f"{row['train']:.5f}", f"{row['test']:.5f}")
        console.print(table)
    for picture in result.get("pictures", []):
        console.print(f"wrote {picture}", highlight=False, soft_wrap=True)


def _long(number: str) -> str:
    if len(number) <= 3 * SMALL or not number.isdigit():
        return number
    return f"about {number[0]}.{number[1:3]}e{len(number) - 1}"
