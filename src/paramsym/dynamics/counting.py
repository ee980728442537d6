"""How many independent laws gradient flow conserves, between two bounds that are found apart.

Q is conserved for every loss of the outputs if ∇Q is orthogonal to all fields ∇_θ ⟨c, f(x; θ)⟩, and
then to all their brackets: to the Lie algebra that they generate. So near a generic θ there are

    D − dim Lie{∇_θ ⟨c, f(x; θ)⟩}(θ)

independent laws. Whatever brackets are found, their rank bounds the number from above: it is valid
at every depth, and no growth at one level is no proof that none follows. From below it is bounded
by the laws that are known, the rank of the derivatives of what symmetries conserve. Where the two
meet, that is the number.

Source: Marcotte, Gribonval, Peyré, "Abide by the law and follow the flow: conservation laws for
gradient flows" (2023), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

import numpy as np
import torch

from paramsym.arguments import module_of
from paramsym.checking.find import find_symmetry
from paramsym.checking.generic_weights import Source, generic_state
from paramsym.checking.jacobian import Network, NotFinite
from paramsym.recording.record import Inputs
from paramsym.structure.orbit import DENSE_LIMIT
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.structure.tangent import as_real, real_entries

from .conserved import ConservedQuantities, conserved_quantities
from .forward import ForwardFields
from .growth import grown, not_conserved
from .layered import ACTIVATIONS, Layered
from .modular import ModularSpan, drawn, product, rank
from .span import FloatSpan

State = dict[str, torch.Tensor]

_MIXTURES = 4  # random combinations of all laws, which every field must be orthogonal to
_SAFELY = 1e3  # times the rounding of a field
_MOVED = 1e-7  # the cosine between a field and a law beyond which that is none


@dataclass(frozen=True)
class LawCount:
    """The number of independent conservation laws, or the interval that it lies in.

    Attributes:
        lower: the rank of the derivatives of what the symmetries conserve.
        upper: the parameters less the rank of gradient fields and their brackets.
        parameters: how many real numbers flow.
        ranks: of all brackets of at most 1, 2, … fields.
        certain: whether both ranks are exact, so that no rounding can have changed a bound.
        reasons: why the bounds do not meet, or why one of them is weaker than it could be.
    """

    lower: int
    upper: int
    parameters: int
    ranks: tuple[int, ...]
    certain: bool
    reasons: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """The number of laws if the bounds meet, else None."""
        return self.lower if self.lower == self.upper else None

    def __str__(self) -> str:
        laws = (
            f"{self.lower} to {self.upper} conservation laws"
            if self.count is None
            else f"{self.count} conservation law{'s' * (self.count != 1)}"
        )
        how = "exact ranks" if self.certain else "numerical ranks"
        ranks = ", ".join(map(str, self.ranks))
        first = f"{laws} of {self.parameters} parameters ({how}; brackets span {ranks})"
        return "\n".join([first, *self.reasons])


def count_conservation_laws(
    model_or_widths: torch.nn.Module | Sequence[int],
    activation: str | torch.nn.Module | None = None,
    *,
    bias: bool = False,
    example_inputs: Inputs | None = None,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
    symmetry: ParameterSymmetry | None = None,
    seed: int = 0,
    deepest: int = 6,
) -> LawCount:
    """Count the independent quantities that gradient flow conserves, whatever the loss.

    Laws are those of every loss of the outputs on any data. They are counted at generic parameters,
    for the user's may be special; near these more may hold.

    From below come the laws that symmetries give (`conserved_quantities`), from above the brackets
    of random gradient fields, of one field, two, and so on. It stops where the bounds meet, or
    after three levels in a row that add nothing. For widths with an activation from the list below
    all ranks are exact, over a prime field; for models they are numerical, in float64.

    Args:
        model_or_widths: a model, or the widths of a layered network with its input and output.
        activation: of a layered network: "linear" (or None), "relu", "leaky_relu", "absolute",
            "square", "cube", which are exact, or any elementwise module such as `nn.Tanh()`. What
            is linear on pieces is counted over all patterns of pieces, as befits laws that hold on
            all of parameter space.
        bias: whether the layers of a layered network have one.
        example_inputs: of a model, as for `find_symmetry`; others in their likeness are drawn.
        outputs: as for `find_symmetry`: which tensors the loss may read.
        training: whether the model runs in training mode.
        symmetry: what is known of the model, if it has been derived before.
        seed: of parameters, inputs and fields.
        deepest: the most fields in a bracket.

    Returns:
        Both bounds, and the number if they meet.

    Raises:
        NotConserved: a gradient field moves what the symmetry is to conserve: the symmetry is wrong
            or belongs to another model.
        NotFinite: the outputs are no numbers at random parameters.
        ValueError: arguments that do not go together, or more parameters than dense ranks allow.

    Source: Marcotte, Gribonval, Peyré (2023), section 3.
    """
    model_or_widths = module_of(model_or_widths)
    if not isinstance(model_or_widths, torch.nn.Module):
        widths = _checked_widths(model_or_widths)
        if example_inputs is not None or symmetry is not None or training or outputs is not None:
            raise ValueError(
                f"count_conservation_laws({list(widths)}, …): example_inputs, outputs, training "
                "and symmetry belong to a model, but widths came. Leave them out, or pass the "
                "model."
            )
        if not isinstance(activation, torch.nn.Module):
            return _count_layered(widths, activation or "linear", bias, seed, deepest)
        model_or_widths = _sequential(widths, activation, bias)
        example_inputs = (torch.randn(2, widths[0], generator=torch.Generator().manual_seed(seed)),)
    elif activation is not None or bias:
        raise ValueError(
            f"count_conservation_laws(model={type(model_or_widths).__name__}, "
            f"activation={activation!r}, bias={bias}): a model has its own activations and biases; "
            "these arguments go with widths. Leave them out."
        )
    if example_inputs is None:
        raise ValueError(
            f"count_conservation_laws(model={type(model_or_widths).__name__}): no example inputs "
            "came, but a model is differentiated at inputs. Pass example_inputs=(x,), as to "
            "find_symmetry."
        )
    return _count_model(model_or_widths, example_inputs, outputs, training, symmetry, seed, deepest)


def _checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(map(index, widths))
    except TypeError:
        found = ()
    if len(found) < 2 or min(found) < 1:
        raise ValueError(
            f"count_conservation_laws({widths!r}): a model or at least two positive widths were "
            "expected, of the input, of each hidden layer and of the output. For example [3, 4, 2]."
        )
    return found


def _sequential(widths: tuple[int, ...], activation: torch.nn.Module, bias: bool):
    layers: list[torch.nn.Module] = []
    for fan, width in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(fan, width, bias), activation]
    return torch.nn.Sequential(*layers[:-1])


def _count_layered(
    widths: tuple[int, ...], activation: str, bias: bool, seed: int, deepest: int
) -> LawCount:
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"count_conservation_laws({list(widths)}, activation={activation!r}): one of "
            f"{', '.join(ACTIVATIONS)} was expected, or an elementwise module. Pass nn.Tanh(), for "
            "example."
        )
    generator = np.random.default_rng(seed)
    network = Layered(widths, ACTIVATIONS[activation], bias, generator)
    _require_dense(network.count, f"{list(widths)}, {activation!r}")
    laws = network.laws()
    mixtures = product(drawn(generator, _MIXTURES, len(laws)), laws).T
    span, lower = ModularSpan(network.count), rank(laws)

    def add(level: int, count: int) -> int:
        rows = network.brackets(level, count)
        if product(rows, mixtures).any():
            raise not_conserved(f"a bracket of {level} gradient fields")
        return span.add(rows)

    ranks, reasons = grown(add, span, network.count - lower, deepest)
    return LawCount(lower, network.count - span.rank, network.count, ranks, True, reasons)


def _count_model(
    model: torch.nn.Module,
    inputs: Inputs,
    outputs: Callable[[Any], Any] | None,
    training: bool,
    symmetry: ParameterSymmetry | None,
    seed: int,
    deepest: int,
) -> LawCount:
    if symmetry is None:
        symmetry = find_symmetry(model, inputs, outputs, training)
    network = Network(model, inputs, outputs, training, torch.Generator().manual_seed(seed))
    _require_dense(network.count, f"model={type(model).__name__}")
    draw = _generic(network, symmetry)
    network.state = draw()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    sizes = {n: real_entries(network.state[n]) for n in network.names}
    trained = torch.cat([torch.full((size,), n not in frozen) for n, size in sizes.items()])
    laws = conserved_quantities(symmetry, network.state, frozen)
    lower = laws.count(network.state) - sum(sizes[n] for n in frozen & {*laws.constants})
    mixtures = _mixtures(laws, network)[:, trained]
    fields = ForwardFields(network, trained, draw)
    parameters = int(trained.sum())
    span = FloatSpan(parameters)

    def add(level: int, count: int) -> int:
        rows, noise = fields.brackets(level, count)
        along = (rows @ mixtures.T).norm(dim=1)
        if bool((along > _MOVED * rows.norm(dim=1) + _SAFELY * noise).any()):
            raise not_conserved(f"a bracket of {level} gradient fields")
        return span.add(rows, noise)

    ranks, reasons = grown(add, span, parameters - lower, deepest)
    if not span.clear:
        reasons += (
            f"the numerical rank is not clear: singular values from {span.above:.0e} count, and "
            f"the next is {span.below:.0e}, relative to the largest",
        )
    if lower + span.rank < parameters:
        inexact = [name for name, space in symmetry.spaces.items() if not space.exact]
        if inexact:
            reasons += (f"what {', '.join(inexact)} conserve but for the ε of a norm is no law",)
        if symmetry.unknown:
            reasons += (f"{len(symmetry.unknown)} operators have no rule: see symmetry.unknown",)
    return LawCount(lower, parameters - span.rank, parameters, ranks, False, reasons)


def _generic(
    network: Network, symmetry: ParameterSymmetry
) -> Callable[[], dict[str, torch.Tensor]]:
    """Draws generic parameters and buffers, positive ones if the model takes roots of them."""
    source = Source(network.generator, torch.float64, pooled=False)
    for positive in (False, True):
        draw = partial(generic_state, network.model, symmetry.offsets, source, positive)
        network.state = draw()
        values, _ = network.outputs_of_fresh_inputs()
        if bool(values.isfinite().all()):
            return draw
    raise NotFinite(
        f"count_conservation_laws(model={type(network.model).__name__}): outputs at random "
        "parameters and inputs are NaN or infinite, but derivatives need numbers. Look for a "
        "logarithm, root or division of what can be zero or negative, or choose other outputs "
        "with outputs=…."
    )


def _mixtures(laws: ConservedQuantities, network: Network) -> torch.Tensor:
    """The unit normals of a few random combinations of all laws: (mixtures, parameters)."""
    ties, operator = laws.symmetry.ties, laws.tangent(network.state)
    rows = []
    for _ in range(_MIXTURES if operator.shape[0] else 0):
        drawn = torch.randn(operator.shape[0], generator=network.generator, dtype=torch.float64)
        velocity = operator.matvec(drawn)
        parts = [
            velocity.get(ties.get(n, n), torch.zeros_like(network.state[n])) for n in network.names
        ]
        row = torch.cat([as_real(part).reshape(-1) for part in parts])
        rows.append(row / row.norm().clamp_min(1e-300))
    return torch.stack(rows) if rows else torch.zeros(0, network.count, dtype=torch.float64)


def _require_dense(parameters: int, what: str) -> None:
    if parameters**2 > DENSE_LIMIT:
        raise ValueError(
            f"count_conservation_laws({what}): {parameters:,} parameters came, but at most "
            f"{int(DENSE_LIMIT**0.5):,} were expected, for the rank of as many fields is taken "
            "densely. Count a smaller model of the same kind: the formula in its widths is the "
            "same."
        )
