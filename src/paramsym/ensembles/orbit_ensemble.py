"""Ensembles along the data-dependent orbit of a trained network.

A member moves what a hidden layer gets by g = I + εM, and what the next one reads by a correction:

    V → gV,   b → gb,   U → U π.

Exact symmetries give members that all compute one function, and hence no ensemble. The action of
GL_h is exact on the batch its correction was computed on, and on nothing else: members agree there
and differ elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.checking.find import find_symmetry
from paramsym.checking.pointwise import PointwiseSite, pointwise_site
from paramsym.structure.symmetry import ParameterSymmetry

from . import fitting, refusals
from .correction import Correction, batch_correction
from .held_site import HeldSite
from .members import MemberEnsemble, own_state
from .methods import METHODS, Draw

_SAMPLES = 13  # to trace the network with: a prime, so that it is taken for no other size


@dataclass(frozen=True)
class MemberFit:
    """How well the correction of one member was determined.

    Attributes:
        condition: largest over smallest singular value of σ(gH); inf where its rank is below h.
        residual: ‖π σ(gH) − σ(H)‖ / ‖σ(H)‖ on the fitting batch.
        rank: of σ(gH).
    """

    condition: float
    residual: float
    rank: int


class OrbitEnsemble(MemberEnsemble):
    r"""Members (U π_i, g_i V), g_i = I + ε M_i, of one trained network.

        ensemble = OrbitEnsemble(model, (images,), "mlp", members=20, strength=0.1,
                                 generator=torch.Generator().manual_seed(0))
        ensemble.vote(x)

    Methods, with M_i of independent normal entries of variance 1/h:

    * `group`: π = σ(H) σ(gH)⁺ from the fitting batch H, the data-dependent action;
    * `inverse`: π = g⁻¹, as if σ were linear;
    * `random`: π = I + εD, D diagonal with standard normal entries;
    * `shuffle`: the entries of the π of `group` in random order;
    * `interpolated-permutation`: g = (I + ε/2 (I + S))/(1 + ε), S a permutation, π = g⁻¹.

    The correction is computed once, on the fitting batch, and held: the answer to a sample then
    depends on that sample only. `correction="batch"` is the published wrapper, which puts
    σ'(H) = σ(H) σ(gH)⁺ σ(gH) in the place of σ with H of the batch under test. For batches of at
    most h samples σ'(H) = σ(H) and all members are the network itself; for larger ones the answer
    to a sample depends on its batch mates. It is there to be measured, and for nothing else: its
    gradient takes π as a constant, so that an attack through it is no adaptive one.

    Attributes:
        fits: for each member how well π was determined; empty for methods that fit nothing.

    Args:
        model: a network that `find_symmetry` can trace.
        inputs: the fitting batch, as the model takes it: at least h different samples (with
            positions, for spaces that have several), better ten times as many. Samples from
            training, since the correction is part of what is fitted.
        space: the hidden layer, a name in `symmetry.spaces`.
        members: how many.
        strength: ε ≥ 0.
        method: how members are made.
        generator: for all that is random.
        symmetry: what `find_symmetry` derived; by default it is derived from the inputs.
        elements: g_i instead of random ones, (members, h, h), for every method but
            `interpolated-permutation`.
        correction: "fitted", or "batch" for the published wrapper.
        outputs: from what the model returns to its logits.
        chunk: how many members are evaluated at a time; by default all.

    Warns:
        UserWarning: σ(H) has a lower rank on the fitting batch than units that are not zero, as
            for samples that are nearly the same; or σ(gH) a lower one than σ(H).

    Raises:
        KeyError: no such space.
        NotPointwise: the units of the space do not pass one pointwise function between linear maps.
        ValueError: fewer than h different samples, numbers that are not finite, a singular g, no
            generator, or arguments outside their range.
        TraceError: as `find_symmetry`.

    Source: Zhao et al., "Symmetries, flat minima, and the conserved quantities of gradient flow",
    [arXiv 2210.17216](https://arxiv.org/abs/2210.17216), appendix I.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor | tuple[Any, ...], space: str, members: int = 20,
        strength: float = 0.1, method: str = "group", *, generator: torch.Generator,
        symmetry: ParameterSymmetry | None = None, elements: Tensor | None = None,
        correction: str = "fitted", outputs: Callable[[Any], Tensor] | None = None,
        chunk: int | None = None,
    ):  # fmt: skip
        nn.Module.__init__(self)
        refusals.require_options(members, strength, method, generator, correction)
        refusals.require_positional(inputs)
        batch = inputs if isinstance(inputs, tuple) else (inputs,)
        refusals.require_finite_inputs(batch)
        refusals.require_finite_weights(own_state(model))
        self._hold(model, outputs, chunk)
        if symmetry is None:
            symmetry = find_symmetry(self.model, _few(batch), outputs=outputs)
        site = pointwise_site(self.model, symmetry, _few(batch), space, outputs=outputs)
        self._held = HeldSite(site, correction == "batch")
        self.method, self.strength = method, strength
        self.correction = correction
        draw = Draw(_hidden(site, batch), site.function, float(strength), generator)
        drawn = _elements(elements, members, method, draw)
        self.fits: tuple[MemberFit, ...] = ()
        if correction == "batch":
            self.register_buffer("elements", drawn)
            self._stack((site.carried(own_state(self.model), g, None) for g in drawn), members)
            return
        if not METHODS[method].fits:
            self._stack(self._moved(drawn, draw), members)
            return
        refusals.require_samples(draw.hidden, site)
        rank = fitting.told_rank(draw.function(draw.hidden), _precision(self.model), site)
        self._stack(self._moved(drawn, draw), members)
        fitting.tell_lost([fit.rank for fit in self.fits], rank)

    @property
    def site(self) -> PointwiseSite:
        """The hidden layer, with σ, V, b and U; an unpickled ensemble has none."""
        return self._held.get()

    def _moved(self, drawn: Tensor, draw: Draw) -> Iterator[dict[str, Tensor]]:
        """Members one after the other, so that no two of them are in memory besides the stack."""
        state = own_state(self.model)
        for g in drawn:
            pi = METHODS[self.method].after(g, draw)
            if isinstance(pi, Correction):
                self.fits += (MemberFit(pi.condition, pi.residual, pi.rank),)
                pi = pi.matrix
            yield self.site.carried(state, g, pi)

    def logits(self, *inputs: Any) -> Tensor:
        """What each member answers: (members, batch, …, classes).

        Args:
            inputs: as the model takes them.
        """
        if self.correction == "fitted":
            return super().logits(*inputs)
        return self._published(inputs)

    def _published(self, inputs: tuple[Any, ...]) -> Tensor:
        """Members whose correction is computed on the batch that is to be judged."""
        hidden = _hidden(self.site, inputs)
        elements = self.get_buffer("elements").to(hidden)
        pi = batch_correction(self.site.function(hidden), self.site.function(elements @ hidden))
        state = own_state(self.model)
        stacked = dict(self.stacked())
        readers = {carrier.parameter for carrier in self.site.readers}
        moved = [self.site.carried(state, None, matrix) for matrix in pi]  # no grad reaches π
        stacked |= {name: torch.stack([m[name] for m in moved]) for name in readers}
        return self._mapped(stacked, inputs)


def _precision(model: nn.Module) -> torch.dtype:
    """The coarsest in which the network computes."""
    dtypes = [t.dtype for t in own_state(model).values() if t.is_floating_point()]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _few(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Some samples of a batch, which are enough to find the hidden layer."""
    alone = len(batch) == 1 and isinstance(batch[0], Tensor) and batch[0].ndim > 1
    return (batch[0][:_SAMPLES],) if alone else batch


def _hidden(site: PointwiseSite, batch: tuple[Any, ...]) -> Tensor:
    """H, (units, samples): in the precision of the model, and then in double precision."""
    hidden = site.before(None, batch).double()
    refusals.require_hidden(hidden, site)
    return hidden


def _elements(given: Tensor | None, members: int, method: str, draw: Draw) -> Tensor:
    """g_i, (members, h, h), all of them invertible."""
    if given is None:
        elements = torch.stack([METHODS[method].element(draw) for _ in range(members)])
    else:
        refusals.require_elements(given, members, draw.units, method)
        elements = given.detach().to(draw.hidden)
    refusals.require_invertible(elements)
    return elements
