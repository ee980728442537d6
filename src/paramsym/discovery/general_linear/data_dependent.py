r"""GL_h on any two linear maps of a traced model that one entrywise function joins.

    V ↦ gV,  b ↦ gb,  U ↦ U c(g, Z)⁻¹    with Z = Vx + b on the samples of a fixed batch

leaves what U reads, and so all that follows, in place on that batch, and changes it elsewhere.
Samples are all batches, tokens and positions at which the function is applied: k of them, at most
as many as units. Moves at several places commute and may be made at once, since the moved network
has g Z at each, and what follows has not moved (Proposition D.5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.checking.find import find_symmetry
from paramsym.checking.pointwise import pointwise_site
from paramsym.recording.record import Inputs
from paramsym.structure.state import FIRST, SECOND
from paramsym.structure.symmetry import ParameterSymmetry

from ..acting.level_sets import ordinary
from .arguments import require_batch, require_limit, require_network, require_real
from .cocycle import FORMS
from .degenerate import LIMIT, Degenerate, features, require_square
from .frames import HouseholderFrame, NearJump, SphericalFrame
from .sites import Place, State

FRAMES = {"householder": HouseholderFrame, "spherical": SphericalFrame}
Moments = Mapping[str, Mapping[str, Any]]
_CALL = "data_dependent_action"
_APART = 0.1  # of the jump: what `moved` keeps, where a derivative is followed


def data_dependent_action(
    model: nn.Module,
    space: str | Sequence[str],
    batch: Inputs,
    symmetry: ParameterSymmetry | None = None,
    *,
    form: str = "cocycle",
    frame: str = "householder",
    limit: float = LIMIT,
    outputs: Callable[[Any], Any] | None = None,
    training: bool = False,
) -> DataDependentAction:
    """The action of GL_h on the parameters around an entrywise function, for one batch.

    The frame's jump is put opposite the features of the batch at the parameters that the model has
    now. It stays there: the group law holds between all calls of one action.

    Args:
        model: it is only read; `action(g, params)` moves parameters that it is given.
        space: one of the spaces of `find_symmetry`, or several of them.
        batch: inputs of the model on which its outputs stay, a tuple or a dict of keyword
            arguments.
        symmetry: of the model, for the names of its spaces; by default it is derived.
        form: "cocycle", an action of GL_h, or "least-change", which moves U least and is no action.
        frame: "householder", for batches as well, or "spherical", for one sample.
        limit: the largest condition number of features.
        outputs: which tensors count as the function, as for `find_symmetry`.
        training: the mode in which the model runs.

    Returns:
        A `DataDependentAction`. `teleport` takes it in place of a symmetry.

    Raises:
        NotPointwise: the units do anything else than to pass one entrywise function between two
            linear maps.
        Degenerate: features of the batch that vanish or depend on each other; more samples than
            units.
        KeyError: no such space.
        ValueError: an unknown form or frame, no space, a limit below 1, NaN or nothing in the
            batch, or a model without numbers.

    Source: "Symmetries, flat minima, and the conserved quantities of gradient flow", Theorem 4.1,
    Proposition D.5, Lemma D.6.
    """
    names = [space] if isinstance(space, str) else [*space]
    if form not in FORMS or frame not in FRAMES or not names:
        raise ValueError(
            f"{_CALL}(space={space!r}, form={form!r}, frame={frame!r}): a space of the model, a "
            f"form of {FORMS} and a frame of {tuple(FRAMES)} were expected. 'cocycle' is a group "
            "action and 'least-change' is not; 'spherical' belongs to a single sample."
        )
    require_limit(_CALL, limit)
    require_network(_CALL, model, batch, training)
    batch = ordinary(batch)
    with torch.inference_mode(False):  # a trace takes no tensors of that mode
        if symmetry is None:
            symmetry = find_symmetry(model, batch, outputs=outputs, training=training)
        sites = {n: pointwise_site(model, symmetry, batch, n, outputs, training) for n in names}
    places = {}
    for name, site in sites.items():
        where = f"{_CALL}(space={name!r})"
        found, _ = features(site.function, site.before().double(), where, limit)
        by = FRAMES[frame](found) if form == "cocycle" else None
        if by is not None:
            by.at(found)  # spherical coordinates refuse several samples
        places[name] = Place(site, batch, form, by, limit)
    return DataDependentAction(places)


@dataclass(frozen=True, eq=False)
class DataDependentAction:
    """a_X(g, θ) for one batch X, called as `action(g, params)`.

    Attributes:
        places: by space, where matrices act and how.
        held: spaces that coordinates do not move.
    """

    places: Mapping[str, Place]
    held: frozenset[str] = frozenset()

    def __call__(self, g: Tensor | Mapping[str, Tensor], params: State) -> dict[str, Tensor]:
        """Move parameters, with the outputs on the batch left in place.

        Args:
            g: of shape (h, h), or a table of these by space; a space left out does not move.
            params: all parameters, and buffers, by name. They are not touched, and tensors that do
                not move are the same ones.

        Raises:
            Degenerate: a singular g, features that vanish or depend on each other.
            NearJump: features where the frame jumps.
            ValueError: an unknown space, what is no real matrix of its size, or parameters that
                are missing, of other shapes, or not finite where they move.
        """
        return self._moved(self._required(g, params), params, check=True)

    def on(self, batch: Inputs) -> DataDependentAction:
        """The same action for another batch: a_X(g, θ) is `action.on(X)(g, params)`.

        Its frames are the same, so that their jump lies where it did.

        Raises:
            NotPointwise: on inputs of other shapes the network is another one at this place.
            ValueError: NaN or nothing in the batch.
        """
        require_batch("action.on(batch)", batch)
        batch = ordinary(batch)
        with torch.inference_mode(False):
            return replace(self, places={n: p.on(batch) for n, p in self.places.items()})

    def condition(self, g: Tensor | Mapping[str, Tensor], params: State) -> dict[str, float]:
        """By space the condition number of the features, before or after g: the larger one.

        The outputs on the batch stay to about as many roundings.
        """
        elements = self._required(g, params)
        return {n: self.places[n].change(m, params).condition for n, m in elements.items()}

    def slopes(self, state: State, covector: State) -> Tensor:
        """How fast a function with that derivative grows along every coordinate, at zero.

        Coordinates are the entries of C in g = exp(C), row by row, space by space; autograd
        differentiates (I + C)·θ.
        """
        device = next(iter(covector.values())).device
        with torch.enable_grad():
            starts = {
                name: torch.eye(place.site.units, dtype=torch.float64, device=device)
                for name, place in self.places.items()
            }
            free = {n: g.requires_grad_() for n, g in starts.items() if n not in self.held}
            moved = self._moved(free, state)
            pairs = [(moved[n], c) for n, c in covector.items() if moved[n] is not state[n]]
            found: dict[str, Tensor] = {}
            if pairs:
                total = torch.stack([_paired(t, c.detach()) for t, c in pairs]).sum()
                slopes = torch.autograd.grad(total, [*free.values()], materialize_grads=True)
                found = dict(zip(free, slopes, strict=True))
        zeros = {n: torch.zeros_like(g) for n, g in starts.items()}
        return torch.cat([found.get(n, zero).flatten() for n, zero in zeros.items()])

    def moved(self, state: State, coordinates: Tensor) -> dict[str, Tensor]:
        """exp(C)·θ; no numbers where that is not defined, or within 0.1 of a frame's jump.

        A bound on the norm refuses what is no number, so that no ascent is led across a jump.
        """
        elements = self._exponentials(coordinates)
        with torch.no_grad():
            try:
                if all(self.places[n].distance(g, state) >= _APART for n, g in elements.items()):
                    return self._moved(elements, state)
            except (Degenerate, NearJump):
                pass
        return {n: t * torch.nan if t.is_floating_point() else t for n, t in state.items()}

    def carried(self, state: State, coordinates: Tensor, moments: Moments) -> Moments:
        """What an optimiser holds after that move: averages of gradients move by the dual.

        The loss on the batch is the same before and after for all parameters around these, so that
        gradients move by the inverse transposed of the derivative of the move: that of U with
        respect to V, and to all that Z is computed from, is a part of it.

        Raises:
            ValueError: an entry of which that is not known, such as an average of squares.
        """
        elements = self._exponentials(coordinates)
        if not elements or not any(moments.values()):
            return moments
        keys = _first_moments(moments)
        carried = {name: dict(entries) for name, entries in moments.items()}
        with torch.no_grad():
            there = self._moved(elements, state)
        with torch.enable_grad():
            leaves = {n: there[n].detach().clone().requires_grad_() for n in moments}
            back: dict[str, Tensor] = {**there, **leaves}
            for name, g in reversed(elements.items()):
                back = self.places[name].moved_back(back, g)
            for key in keys:
                own = {n: e[key] for n, e in moments.items() if e.get(key) is not None}
                total = torch.stack([_paired(back[n], m) for n, m in own.items()]).sum()
                wanted = [leaves[n] for n in own]
                found = torch.autograd.grad(total, wanted, retain_graph=True)
                for name, slope in zip(own, found, strict=True):
                    carried[name][key] = slope.detach()
        return carried

    def holding(self, names: Collection[str], moments: Moments) -> DataDependentAction:
        """Without the spaces that move some parameters; without any, where squares are averaged."""
        held = {n for n, place in self.places.items() if place.parameters() & {*names}}
        if any(entries.get(key) is not None for entries in moments.values() for key in SECOND):
            held = {*self.places}
        return replace(self, held=self.held | held)

    def _moved(
        self, elements: Mapping[str, Tensor], params: State, check: bool = False
    ) -> dict[str, Tensor]:
        moved: dict[str, Tensor] = dict(params)
        for name, g in elements.items():
            moved = self.places[name].written(moved, g, check)
        # all at the parameters before the move: at each place the moved network has gZ
        changes = {n: self.places[n].change(g, params) for n, g in elements.items()}
        for name, change in changes.items():
            moved = self.places[name].undone(moved, change)
        return moved

    def _required(self, g: Tensor | Mapping[str, Tensor], params: State) -> dict[str, Tensor]:
        """Elements by space, with them and the parameters looked at."""
        elements = self._elements(g)
        for name, matrix in elements.items():
            place = self.places[name]
            require_real(place.title, g=matrix)
            require_square(matrix, place.site.units, place.title)
            place.require_fitting(params)
        return elements

    def _elements(self, g: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By space."""
        if not isinstance(g, Tensor | Mapping):
            raise ValueError(
                f"action(g, params): g came as a {type(g).__name__}, and a tensor was expected, or "
                "a table of tensors by space. Pass torch.as_tensor(g)."
            )
        table = (
            {next(iter(self.places)): g} if isinstance(g, Tensor) and len(self.places) == 1 else g
        )
        if isinstance(table, Tensor) or not {*table} <= {*self.places}:
            given = f"shape {tuple(g.shape)}" if isinstance(g, Tensor) else f"spaces {[*g]}"
            sizes = {n: place.site.units for n, place in self.places.items()}
            raise ValueError(
                f"action(g, params): g of {given} came; square matrices of sizes {sizes} were "
                "expected, by space. Pass one matrix for a single space, and a table for several."
            )
        return dict(table)

    def _exponentials(self, coordinates: Tensor) -> dict[str, Tensor]:
        """exp(C) by space, for those that may move."""
        found, at = {}, 0
        for name, place in self.places.items():
            h = place.site.units
            own, at = coordinates[at : at + h * h].double().reshape(h, h), at + h * h
            if name not in self.held:
                found[name] = torch.linalg.matrix_exp(own)
        return found


def _paired(one: Tensor, other: Tensor) -> Tensor:
    return (one.double() * other.double()).sum()


def _first_moments(moments: Moments) -> list[str]:
    """The averages of gradients among what an optimiser holds."""
    keys = {k for entries in moments.values() for k, v in entries.items() if v is not None}
    unknown = sorted(keys - {*FIRST, "step"})
    if unknown:
        raise ValueError(
            f"carried(moments with {unknown}): averages of gradients were expected, of {FIRST}, "
            "since no other entry has a known move here. Take SGD with or without momentum, or "
            "clear the optimiser's state."
        )
    return sorted(keys & {*FIRST})
