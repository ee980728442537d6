"""One matrix at one place of a traced model: V ↦ gV, b ↦ gb, and U ↦ U c(g, Z)⁻¹ behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from paramsym.checking.pointwise import PointwiseSite
from paramsym.recording.record import Inputs, split_inputs

from .arguments import require_finite
from .cocycle import AbstractChange, change_between
from .degenerate import require_invertible, require_square
from .frames import AbstractFrame

State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Place:
    """Where matrices act, on which batch, and by which form of c.

    c is computed in float64, whatever the model's precision is.

    Attributes:
        site: the entrywise function, with what writes and reads its units.
        batch: inputs of the model; k samples at the function.
        form: "cocycle" or "least-change".
        frame: of the cocycle.
        limit: the largest condition number of features.
    """

    site: PointwiseSite
    batch: Inputs
    form: str
    frame: AbstractFrame | None
    limit: float

    def on(self, batch: Inputs) -> Place:
        """The same place for another batch; one of other shapes is another network."""
        site = self.site if _shapes(batch) == _shapes(self.batch) else self.site.on(batch)
        return replace(self, site=site, batch=batch)

    @property
    def title(self) -> str:
        """For messages."""
        return f"action(g, params), space {self.site.space!r}"

    def require_fitting(self, params: State) -> None:
        """Refuse parameters that the model of this place could not have.

        Raises:
            ValueError: no table of tensors, one that is missing, or of another shape than the
                model's, or complex; or one that moves and is not finite.
        """
        if not isinstance(params, Mapping):
            raise ValueError(
                f"{self.title}: params came as a {type(params).__name__}, and a table of tensors "
                "by name was expected. Pass dict(model.state_dict())."
            )
        model = self.site.model
        shapes = {
            n: t.shape
            for n, t in (
                *model.named_parameters(remove_duplicate=False),
                *model.named_buffers(remove_duplicate=False),
            )
        }
        for carrier in (*self.site.writers, *self.site.readers):
            name = self.site.held(carrier.parameter, params)
            require_finite(self.title, **{f"params[{name!r}]": params[name]})
            if params[name].shape != shapes[name]:
                raise ValueError(
                    f"{self.title}: params[{name!r}] of shape {tuple(params[name].shape)} came, "
                    f"and {tuple(shapes[name])} was expected, as the model has it. Pass parameters "
                    "of that model."
                )

    def change(self, g: Tensor, params: State) -> AbstractChange:
        """c(g, Z), at the Z of these parameters."""
        before = self.site.before(params, self.batch).double()
        return self._between(before, g.to(before) @ before)

    def _between(self, before: Tensor, moved: Tensor) -> AbstractChange:
        return change_between(
            before, moved, self.site.function, self.frame, form=self.form, where=self.title,
            limit=self.limit,
        )  # fmt: skip

    def written(self, params: State, g: Tensor, check: bool = False) -> dict[str, Tensor]:
        """gV and gb, with a singular g refused if it is to be checked."""
        require_square(g, self.site.units, self.title)
        for carrier in (*self.site.writers, *self.site.readers):
            self.site.held(carrier.parameter, params)
        carried = self.site.carried(params, g, None)
        if check:
            acted_on, product = self._written(params), self._written(carried)
            require_invertible(g.detach().to(product), acted_on, product, self.title)
        return carried

    def undone(self, params: State, change: AbstractChange) -> dict[str, Tensor]:
        """U c⁻¹."""
        return self._behind(params, change.undone)

    def _written(self, params: State) -> Tensor:
        """All that g acts on, a row for each unit, in float64."""
        own = [(params[self.site.held(c.parameter, params)].detach(), c) for c in self.site.writers]
        rows = [t.movedim(c.axis, 0).reshape(self.site.units, -1).double() for t, c in own]
        return torch.cat(rows, 1)

    def moved_back(self, params: State, g: Tensor) -> dict[str, Tensor]:
        """What g and c(g, Z) have made these parameters from, differentiably in them."""
        after = self.site.before(params, self.batch, differentiable=True).double()
        inverse = torch.linalg.inv(g.to(after))
        change = self._between(inverse @ after, after)
        return self._behind(self.site.carried(params, inverse, None), change.redone)

    def distance(self, g: Tensor, params: State) -> float:
        """How far σ(gZ) is from where the frame jumps."""
        if self.frame is None:
            return 2.0
        before = self.site.before(params, self.batch).double()
        return self.frame.distance(self.site.function(g.to(before) @ before))

    def _behind(self, params: State, by: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """With rows of the readers changed, in float64."""
        return self.site.along(params, self.site.readers, lambda rows: by(rows.double()))

    def parameters(self) -> set[str]:
        """The names of all parameters that move."""
        carriers = (*self.site.writers, *self.site.readers)
        return {name for c in carriers for name in self.site.aliases[c.parameter]}


def _shapes(inputs: Inputs) -> tuple[object, list[object]]:
    """Structure, shapes and dtypes: what the trace of a network depends on."""
    leaves, structure = pytree.tree_flatten(split_inputs(inputs))
    return structure, [(x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves]
