"""Whether two sets of parameters of a network have one function, on given and on generic inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paramsym.checking.generic import generic_inputs
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.pointwise import PointwiseSite
from paramsym.recording.outputs import floating_outputs
from paramsym.recording.precision import converted_inputs, lifted
from paramsym.recording.running import call_at, exclusive, preserved, seeded

from .relation import Relation
from .units import state_of

State = dict[str, Any]
_STRUCTURE = 1e-6  # a tensor that was moved wrongly, or not at all, changes outputs by more


def generic_sites(site: PointwiseSite) -> Iterator[PointwiseSite]:
    """The site on generic inputs, and on two samples where all inputs are of one.

    The second only where the model takes two: the first axis need not count samples.
    """
    generator = torch.Generator().manual_seed(0)
    yield _with_inputs(site, generator)
    leaves = [x for x in pytree.tree_leaves(site.inputs) if isinstance(x, Tensor) and x.ndim]
    if not leaves or any(len(x) != 1 for x in leaves):
        return
    double = pytree.tree_map(
        lambda x: torch.cat([x, x]) if isinstance(x, Tensor) and x.ndim else x, site.inputs
    )
    pair = _with_inputs(replace(site, inputs=double), generator)
    try:
        _outputs(pair, state_of(site.model, None, site.space))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return
    yield pair


def _with_inputs(site: PointwiseSite, generator: torch.Generator) -> PointwiseSite:
    """Generic inputs, drawn as for a verification; constant ones too where no input varies."""
    floats = [
        x
        for x in pytree.tree_leaves(site.inputs)
        if isinstance(x, Tensor) and x.is_floating_point()
    ]
    inputs: Any = site.inputs
    if not any(len(x.unique()) > 2 for x in floats):  # no masks beside a sample: examples
        inputs = pytree.tree_map(
            lambda x: (
                torch.randn(x.shape, generator=generator, dtype=torch.float64)
                if isinstance(x, Tensor) and x.is_floating_point()
                else x
            ),
            inputs,
        )
    args, kwargs = generic_inputs(inputs, {}, generator)
    return replace(site, inputs=kwargs if kwargs else args)


def generic_states(model: nn.Module) -> Iterator[State]:
    """Generic weights in float64, as a derivation is tried at."""
    entries = sum(t.numel() for t in (*model.parameters(), *model.buffers()))
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        yield generic_state(model, {}, Source(generator, torch.float64, pooled=entries > 1 << 20))


def require_same(
    site: PointwiseSite,
    given: State,
    moved: State,
    relation: Relation,
    tolerance: float | None,
    where: str = "",
) -> None:
    """Both parameters have to give the same outputs.

    What is drawn may lie where f overflows, or where it is another function by a few roundings, so
    that elsewhere than on the given inputs only finite outputs are compared, to `_STRUCTURE`.
    """
    wide = given[site.writers[0].parameter].dtype == torch.float64
    limit = (1e-11 if wide else 1e-4) if tolerance is None else tolerance
    before = _outputs(site, given)
    if where:
        limit = max(limit, _STRUCTURE if wide else 1e-3)
        if not all(bool(x.isfinite().all()) for x in before):
            return
        where = " " + where
    after = _outputs(site, moved)
    error = 0.0
    for one, other in zip(before, after, strict=True):
        size = float(one.abs().max()) if one.numel() else 0.0
        difference = float((one - other).abs().max()) if one.numel() else 0.0
        error = max(error, difference / max(size, 1e-300) if difference == difference else 1e300)
    if not error <= limit:
        raise ValueError(
            f"lift({relation}, space={site.space!r}): the function changes by {error:.1e} of its "
            f"largest output{where}, and at most {limit:.1e} was expected, at {site.where}. The "
            "relation holds, so that what was named as a bias or a linear path is none, or "
            "something else reads it; name reader_bias and skip of this layer."
        )


def _outputs(site: PointwiseSite, state: State) -> list[Tensor]:
    """The outputs of the model at these parameters."""
    dtype = state[site.writers[0].parameter].dtype
    args, kwargs = pytree.tree_map(
        lambda x: x.clone() if isinstance(x, Tensor) else x, converted_inputs(site.inputs, dtype)
    )
    trained = {name for name, _ in site.model.named_parameters()}
    held = {n: t if n in trained else t.clone() for n, t in state.items()}
    with exclusive, lifted() if dtype == torch.float64 else nullcontext():
        with preserved(site.model, site.training), torch.no_grad():
            seeded(0)
            returned = call_at(site.model, held, args, kwargs)
            if site.outputs is not None:
                returned = site.outputs(returned)
    return floating_outputs(returned)
