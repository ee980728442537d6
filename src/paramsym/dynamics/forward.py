"""Gradient fields of any model, with all their brackets, by nested forward mode.

    X(θ) = ∇_θ Σ_s ⟨c_s, f(x_s; θ)⟩,        [X, Y](θ) = DY·X − DX·Y

The derivatives of a bracket are forward-mode derivatives of the two reverse passes in it, nested as
deep as the bracket. Where PyTorch is known to get them wrong, operators are written out; the rest
is compared with differences before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paramsym.checking.jacobian import Arguments, Network
from paramsym.structure.tangent import as_real

from .written_out import Patterns, differentiable

Field = Callable[[Tensor], Tensor]

_PROBES = 3  # calls of the model that one field sums over; single paths stall in bottlenecks
_STEPS = (1e-4, 1e-5)  # of differences, relative to the parameters
_WRONG = 1e-4  # differences of second order are near 1e-8
_NUDGE = 1e-15  # relative to the parameters: it draws the rounding anew
_REPEATED = 2  # rows of a batch that are computed twice


class WrongDerivative(RuntimeError):
    """Forward mode and differences disagree, or there is no forward mode."""


class ForwardFields:
    """Random gradient fields of a model at the parameters of `network.state`, and their brackets.

    Args:
        network: the model as a function of its float64 parameters.
        trained: marks the entries that flow, of shape (parameters,).
        elsewhere: draws other states, from which the patterns of pieces are taken.
    """

    def __init__(
        self, network: Network, trained: Tensor, elsewhere: Callable[[], dict[str, Tensor]]
    ):
        self.network, self.trained, self.elsewhere = network, trained, elsewhere
        self.theta = self._flat(network.state)
        self.checked = 1

    def brackets(self, level: int, count: int) -> tuple[Tensor, float]:
        """Values of random brackets [X₁, [X₂, … X_level]], one a row: (count, trained entries).

        Each field has the length of the parameters, so that rows are of the order of it unless
        they vanish.

        Returns:
            The rows, and the length of what rounding does to them.

        Raises:
            WrongDerivative: the derivatives that this takes are not those of the model.
        """
        with differentiable():
            function, entries = self._function()
            covectors = self._normal(level, count, entries)

            def field(covector: Tensor) -> Field:
                gradient = torch.func.grad(lambda theta: (function(theta) * covector).sum())
                return lambda theta: torch.where(self.trained, gradient(theta), 0.0)

            def values(theta: Tensor, covectors: Tensor) -> Tensor:
                """Brackets of the fields of covectors (level, count, entries)."""
                return torch.func.vmap(
                    lambda each: bracket([field(c) for c in each])(theta), in_dims=1
                )(covectors)

            nudged = self.theta * (1 + _NUDGE * self._normal(len(self.theta)))
            try:
                lengths = values(self.theta, covectors.reshape(1, -1, entries)).norm(dim=1)
                lengths = torch.where(lengths > 0, lengths, 1.0).reshape(level, count, 1)
                covectors = covectors * (self.theta.norm() / lengths)
                if level > self.checked:
                    _check([field(c) for c in covectors[:, 0]], self.theta)
                    self.checked = level
                rows = values(self.theta, covectors)
                again = values(nudged, covectors[:, :_REPEATED])
            except (RuntimeError, NotImplementedError) as error:
                line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise WrongDerivative(line[:200]) from error
            noise = float((rows[:_REPEATED] - again).norm(dim=1).nan_to_num(torch.inf).max())
            return rows[rows.isfinite().all(1)][:, self.trained], noise

    def _normal(self, *shape: int) -> Tensor:
        noise = torch.randn(shape, generator=self.network.generator, dtype=torch.float64)
        return noise.to(self.theta)

    def _function(self) -> tuple[Callable[[Tensor], Tensor], int]:
        """θ ↦ all outputs at a few fresh inputs, and how many they are."""
        calls = [self._call() for _ in range(_PROBES)]

        def function(theta: Tensor) -> Tensor:
            return torch.cat([call(theta) for call in calls])

        return function, len(function(self.theta))

    def _call(self) -> Callable[[Tensor], Tensor]:
        """θ ↦ the outputs at one fresh input, on pieces that are taken from elsewhere."""
        arguments = self.network.fresh_inputs()
        with Patterns() as patterns:
            self._outputs(self.theta, arguments)
        if not patterns.pieces:
            return lambda theta: self._outputs(theta, arguments)
        theta, others = self._flat(self.elsewhere()), self.network.fresh_inputs()
        with Patterns() as patterns:
            self._outputs(theta, others)

        def call(theta: Tensor) -> Tensor:
            with Patterns(patterns.pieces):
                return self._outputs(theta, arguments)

        return call

    def _outputs(self, theta: Tensor, arguments: Arguments) -> Tensor:
        shapes = [as_real(self.network.state[n]).shape for n in self.network.names]
        parts = theta.split([shape.numel() for shape in shapes])
        leaves = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return self.network.outputs_of(leaves, arguments)

    def _flat(self, state: dict[str, Tensor]) -> Tensor:
        return torch.cat([as_real(state[n]).reshape(-1) for n in self.network.names])


def bracket(fields: Sequence[Field]) -> Field:
    """[X₁, [X₂, … X_n]] as a field, with [X, Y] = DY·X − DX·Y."""
    if len(fields) == 1:
        return fields[0]
    first, inner = fields[0], bracket(fields[1:])

    def value(theta: Tensor) -> Tensor:
        velocity, along = torch.func.jvp(inner, (theta,), (first(theta),))[:2]
        return along - torch.func.jvp(first, (theta,), (velocity,))[1]

    return value


def _check(fields: Sequence[Field], theta: Tensor) -> None:
    """Compare the outermost derivative of a bracket with differences.

    Raises `WrongDerivative` if they disagree.
    """
    inner, along = bracket(fields[1:]), fields[0](theta)
    given = torch.func.jvp(inner, (theta,), (along,))[1]
    errors = []
    for step in _STEPS:
        after, before = inner(theta + step * along), inner(theta - step * along)
        gap = float(((after - before) / (2 * step) - given).norm())
        rounding = 1e-12 * float(after.norm() + theta.norm()) / step
        errors.append(max(0.0, gap - rounding) / max(float(given.norm()), 1e-300))
    if not min(errors) < _WRONG:
        raise WrongDerivative(
            f"derivatives of order {len(fields)} by forward mode are off by {min(errors):.0e} "
            "from differences"
        )
