"""Counts of BERT-base and GPT-2 small at full size, on the meta device, beside the published one.

    python benchmarks/atlas_counts.py [--audit]

The literature counts GL(64)² for each head: 12 layers · 12 heads · 2 · 64². What more there is
stands here by the kind of space and by the parameters that a translation moves. With `--audit` a
tiny twin of each is certified by its Jacobian.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Mapping

import torch

LITERATURE = 12 * 12 * 2 * 64**2


def itemised(name: str) -> tuple[Mapping[str, int], int, int]:
    """Dimensions of a model by the kind of what moves, those of its spaces alone, and of all."""
    import transformers

    from paramsym import find_symmetry
    from paramsym.structure.counting import generic_dimension

    kind, config = (
        (transformers.BertModel, transformers.BertConfig())
        if name == "BERT-base"
        else (transformers.GPT2LMHeadModel, transformers.GPT2Config())
    )
    with torch.device("meta"):
        model = kind._from_config(config).eval()
    symmetry = find_symmetry(model, {"input_ids": torch.randint(5, 90, (2, 7))})
    found: Counter[str] = Counter()
    for space in symmetry.spaces.values():
        if dimension := symmetry.dimension(space.name):
            found[f"{space.group} × {symmetry.copies(space.name)}"] += dimension
    spaces = sum(found.values())
    whole = generic_dimension(symmetry, model.state_dict()).value
    for shift in symmetry.shifts:
        found[f"translation of {_ending(shift.terms[0].target.parameter)}"] += shift.dimension
    return found, spaces, whole


def _ending(parameter: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in parameter.split("."))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--audit", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in ("BERT-base", "GPT-2"):
        found, spaces, whole = itemised(name)
        print(
            f"{name}: {whole:,} in all, {spaces:,} without translations, {spaces - LITERATURE:+,}"
        )
        for text, dimension in found.most_common():
            print(f"  {dimension:>10,}  {text}")
        if options.audit:
            print(f"  {certified(name)}")


def certified(name: str) -> str:
    """What the Jacobian says of a tiny model of the same class."""
    import transformers

    from paramsym import audit, find_symmetry, twin
    from paramsym.checking.twin import at_generic_weights

    config = transformers.BertConfig() if name == "BERT-base" else transformers.GPT2Config()
    model, inputs = twin(config, kind="BertModel" if name == "BERT-base" else "GPT2LMHeadModel")
    symmetry, generator = find_symmetry(model, inputs), torch.Generator().manual_seed(0)
    model = at_generic_weights(model, symmetry, generator)
    found = audit(model, inputs, symmetry=symmetry, generator=generator)
    return f"twin of {found.parameters:,}: {found.explained} + {found.unexplained} unexplained"


if __name__ == "__main__":
    main()
