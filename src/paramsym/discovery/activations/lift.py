r"""From a relation of σ to other parameters of a layer with the same function.

Let u = U σ(z) + o + W x with z = Vx + v, and σ(αz + β) = a σ(z) + b z + c. For a chosen unit,

    V → αV,   v → αv + β,   U → U/a,   o → o − (c/a) U − (b/a) U v,   W → W − (b/a) U V,

with the rows and columns of that unit, and the old ones on the right: σ becomes aσ + bz + c, and U,
o and W take back what is too much. Without a bias where one is needed, and without a linear path
W where b ≠ 0, there is no such move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paramsym.checking.pointwise import PointwiseSite, pointwise_site
from paramsym.recording.record import Inputs
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.pointwise import Carrier

from .certificate import Certificate
from .function import scalar_function
from .lifted import State, generic_sites, generic_states, require_same
from .relation import Relation
from .units import chosen_units, require_finite, state_of


def lift(
    relation: Relation,
    model: nn.Module,
    symmetry: ParameterSymmetry,
    inputs: Inputs,
    space: str,
    *,
    units: int | Sequence[int] | None = None,
    reader_bias: str | None = None,
    skip: str | None = None,
    params: Mapping[str, Tensor] | None = None,
    outputs: Callable[[Any], Any] | None = None,
    tolerance: float | None = None,
) -> State:
    """Move the parameters around some units by a relation of their activation.

    The function is computed with the old and the new parameters and must be the same: on the given
    inputs, on generic ones (two samples where one was given), and at generic weights; whatever else
    reads the units is noticed by this. The relation is judged by its certificate, at all magnitudes
    of what σ may get.

    Args:
        relation: of the activation; an element of a family is `family.at(t)`.
        model: it is only read.
        symmetry: what `find_symmetry` derived of it.
        inputs: a tuple of positional inputs, or a dict of keyword arguments.
        space: a name in `symmetry.spaces`, whose units pass one entrywise function.
        units: numbers of the units to move, or a mask with a truth value for each; all by default.
        reader_bias: the name of o; by default the bias of the `nn.Linear` that has U.
        skip: the name of W, a matrix on what V reads whose product is added to what U gives.
        params: all parameters and buffers; by default the model's.
        outputs: which tensors count as the function, as for `find_symmetry`.
        tolerance: of the difference of functions relative to the largest output: by default 1e-11
            in float64, and 1e-4 below.

    Returns:
        All parameters; those that do not move are the same tensors.

    Raises:
        KeyError: no such space.
        NotPointwise: its units pass no single entrywise function between linear maps.
        TypeError: the relation is none, such as a whole family; units are no whole numbers.
        ValueError: the relation is none of this function, or needs a bias or a linear path that is
            missing; a unit that does not exist, parameters that are missing; the function changed.

    Source: the equivariance of activations, Zhao et al., "Symmetries, flat minima, and the
    conserved quantities of gradient flow", section 3.3; biases and linear paths are ours.
    """
    require_finite(relation, space)
    site = pointwise_site(model, symmetry, inputs, space, outputs)
    given = state_of(model, params, space)
    layer = _Layer(relation, site, given, reader_bias, skip)
    chosen = chosen_units(units, site.units, f"lift({relation}, space={space!r})")
    layer.require_relation(tolerance)
    moved = layer.moved(chosen)
    require_same(site, given, moved, relation, tolerance)
    for generic in generic_sites(site):
        require_same(generic, given, moved, relation, tolerance, "on generic inputs")
        for state in generic_states(model):
            other = replace(layer, given=state).moved(chosen)
            require_same(generic, state, other, relation, tolerance, "at generic weights")
    return moved


@dataclass(frozen=True)
class _Layer:
    """One site with the tensors that a relation moves."""

    relation: Relation
    site: PointwiseSite
    given: State
    reader_bias: str | None
    skip: str | None

    def refused(self, came: str, expected: str, instead: str) -> ValueError:
        return ValueError(
            f"lift({self.relation}, space={self.site.space!r}): {came}, and {expected} was "
            f"expected, at {self.site.where}. {instead}"
        )

    def moved(self, chosen: Tensor) -> State:
        """The parameters with the chosen units moved; `chosen` is one for them, else zero."""
        relation = self.relation
        factors = (chosen.new_tensor(x) for x in (relation.alpha, 1 / relation.a))
        scale, back = (torch.where(chosen > 0, x, chosen.new_ones(())) for x in factors)
        moved = self.site.carried(self.given, scale.diag(), back.diag())
        if relation.beta:
            self.add(moved, self.writer_bias(), relation.beta * chosen)
        if relation.c or relation.b:
            self.correct(moved, chosen / relation.a)
        return moved

    def require_relation(self, tolerance: float | None) -> None:
        """The relation has to hold for this function, at all magnitudes."""
        generator = torch.Generator().manual_seed(0)
        f = scalar_function(self.site.function, generator)
        wide = self.dtype == torch.float64 and f.epsilon < 1e-12
        limit = max(1e-8 if wide else 1e-5, min(8 * f.epsilon, 1e-3), tolerance or 0.0)
        certificate = Certificate(f, generator, limit)
        residual = certificate.residual(self.relation.times(1 / f.unit))
        if abs(self.relation.a) < 1e-9 or not residual <= limit:
            raise self.refused(
                f"{self.site.name} differs from it by {residual:.1e} of the numbers that enter it",
                "a relation of that function",
                "intertwiners(function).relations lists those that hold.",
            )

    @property
    def dtype(self) -> torch.dtype:
        return self.given[self.site.writers[0].parameter].dtype

    def writer_bias(self) -> str:
        """The parameter that is added to what σ gets, tried by adding one to it."""
        before = self.site.before(self.given)
        for carrier in self.site.writers:
            tensor = self.given[carrier.parameter]
            if tensor.numel() != self.site.units:
                continue
            moved = dict(self.given)
            self.add(moved, carrier.parameter, torch.ones(self.site.units))
            change = self.site.before(moved) - before
            if torch.allclose(change, torch.ones_like(change), atol=1e-5):
                return carrier.parameter
        raise self.refused(
            f"the writers {[c.parameter for c in self.site.writers]} have no bias",
            f"one to take β = {self.relation.beta:g}",
            "Give the layer a bias (bias=True, zeros at first), or take a relation without β.",
        )

    def add(self, params: State, name: str, change: Tensor) -> None:
        """Add to a parameter under all of its names."""
        found = params[name] + change.to(params[name]).view_as(params[name])
        same = self.site.aliases.get(name, (name,))
        params |= {n: found for n in same if n in params}

    def correct(self, moved: State, factor: Tensor) -> None:
        """Take b·z + c back behind every reader; `factor` is 1/a for units that move."""
        r, v = self.relation, self.bias_of_writers()
        constant = (r.c + r.b * v) * factor.to(v)
        for reader in self.site.readers:
            weight = self.given[reader.parameter].movedim(reader.axis, -1)  # (outputs, units)
            if bool(constant.any()):
                name = self.bias_of(reader)
                self.add(moved, name, -(weight @ constant.to(weight)))
        if r.b:
            self.correct_skip(moved, factor)

    def bias_of_writers(self) -> Tensor:
        """v, or zero where there is none."""
        names = [c.parameter for c in self.site.writers if self.given[c.parameter].ndim == 1]
        total = torch.zeros(self.site.units, dtype=torch.float64)
        for name in names:
            total = total + self.given[name].detach().double()
        return total

    def bias_of(self, reader: Carrier) -> str:
        """o: what was named, or the bias beside a weight of `nn.Linear`."""
        if self.reader_bias is not None and len(self.site.readers) == 1:
            found = self.reader_bias
        else:
            parent, _, own = reader.parameter.rpartition(".")
            module = self.site.model.get_submodule(parent) if own == "weight" else None
            linear = isinstance(module, nn.Linear) and module.bias is not None
            found = f"{parent}.bias".lstrip(".") if linear else ""
        outputs = self.given[reader.parameter].movedim(reader.axis, -1).shape[:-1]
        if found not in self.given or self.given[found].numel() != outputs.numel():
            raise self.refused(
                f"{reader.parameter!r}, which reads the units, has no bias of {outputs.numel()} "
                "numbers beside it",
                f"one to take back c = {self.relation.c:g}",
                "Make it nn.Linear with a bias (zeros at first), or name it by reader_bias=….",
            )
        return found

    def correct_skip(self, moved: State, factor: Tensor) -> None:
        """W → W − (b/a) U V."""
        writers = [c for c in self.site.writers if self.given[c.parameter].ndim == 2]
        single = len(self.site.readers) == len(writers) == 1
        if self.skip is None or not single:
            raise self.refused(
                "no linear path from what the units read to what they write was named" if single
                else f"{len(writers)} matrices write the units and {len(self.site.readers)} read",
                f"a path to take back b·z with b = {self.relation.b:g}",
                "Where the model adds W·x to the output of the layer, pass skip='the name of W'; "
                "without one the relation does not lift.",
            )  # fmt: skip
        reader, writer = self.site.readers[0], writers[0]
        u = self.given[reader.parameter].movedim(reader.axis, -1)
        v = self.given[writer.parameter].movedim(writer.axis, 0)
        product = -(u * (self.relation.b * factor).to(u)) @ v  # (outputs, inputs)
        if self.skip not in self.given or self.given[self.skip].shape != product.shape:
            came = tuple(self.given[self.skip].shape) if self.skip in self.given else "no parameter"
            raise self.refused(
                f"skip={self.skip!r} is {came}", f"a matrix of shape {tuple(product.shape)}",
                "Name the weight of the linear path beside this layer.",
            )  # fmt: skip
        self.add(moved, self.skip, product)
