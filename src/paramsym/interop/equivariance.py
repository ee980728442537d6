"""Does a step commute with a symmetry? Two copies are trained, one of them moved, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor, nn

from paramsym.geometry.commuting import orthogonal_part
from paramsym.structure.action import act, act_dual
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry

Params = Mapping[str, Tensor]
Optimizer = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
Gradient = Callable[[dict[str, Tensor]], Params]
_FLAT = 1e-10  # of the largest gradient: what has less is moved by rounding
_TRIES = 20  # elements of a space until one moves something


def assert_equivariant(
    optimizer: Optimizer,
    symmetry: ParameterSymmetry,
    params: Params | None = None,
    gradient: Gradient | None = None,
    *,
    steps: int = 200,
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> float:
    """Show that the step of an optimiser commutes with a symmetry: step(g·θ) = g·step(θ).

    Two copies are trained for some steps, one from θ and one from g·θ, with gradients that belong
    together, and g·θ_t is compared with θ'_t at the end. Drawn are elements g that act by
    orthogonal matrices; no step of gradients commutes with a change of scale.

    Args:
        optimizer: makes one from names and parameters, such as a class of `torch.optim` or
            `lambda named: SGD(named, lr=0.1)`; it is called once for each copy.
        symmetry: of the model, or a restriction of it that is asked about.
        params: θ, in float64; by default random numbers in the shapes of the signature.
        gradient: of the loss at given parameters and buffers, by name, for a pair of real models;
            by default gradients are drawn, and moved as those of a loss that is constant along
            orbits.
        steps: how many.
        tolerance: the largest difference of a parameter, relative to how far it was moved.
        generator: of parameters, gradients and elements.

    Returns:
        The largest difference of a parameter, relative to how far training has moved it. Buffers
        and dead parameters are moved with the copy, and not compared.

    Raises:
        AssertionError: the step does not commute; with the parameter, and the spaces that alone
            make a difference.
        ValueError: no element of the symmetry acts by an orthogonal matrix other than the identity,
            nothing moved, or a parameter so little that a difference would be rounding.

    Source: Bernstein and Newhouse, Old Optimizer, New Norm (2024), for steps of steepest descent in
    a norm, which commute with what keeps the norm.
    """
    if steps < 1 or not 0 < tolerance < 1:
        raise ValueError(
            f"assert_equivariant(steps={steps}, tolerance={tolerance}): expected at least one step "
            "and a tolerance between 0 and 1. Take 200 and 1e-8."
        )
    generator = generator or torch.Generator().manual_seed(0)
    kept = orthogonal_part(symmetry)
    theta = dict(params) if params is not None else _drawn(kept, generator)
    moves = _moves(kept, theta, generator)
    element = reduce(lambda g, h: h @ g, moves.values(), kept.identity())
    trial = _Trial(optimizer, kept, theta, gradient, steps, tolerance, generator.get_state())
    error, name = trial.error(element)
    if error <= tolerance:
        return error
    alone = ((space, trial.error(own)[0]) for space, own in moves.items())
    blamed = [space for space, error in alone if not error <= tolerance]
    said = ", ".join(f"{s} ({kept.spaces[s].group})" for s in blamed[:4]) or "several together"
    raise AssertionError(
        f"assert_equivariant: after {steps} steps {name} differs by {error:.1e} of its way from "
        f"what the moved copy has, and at most {tolerance:.0e} was expected. Guilty: {said}. Give "
        "such parameters a step that treats them as matrices, in the blocks of optimizer_groups."
    )


class _Trial:
    """A training run from θ, and one from g·θ for each g that is asked about."""

    def __init__(
        self, optimizer: Optimizer, symmetry: ParameterSymmetry, theta: Params,
        gradient: Gradient | None, steps: int, tolerance: float, seed: Tensor,
    ) -> None:  # fmt: skip
        self.optimizer, self.symmetry, self.steps = optimizer, symmetry, steps
        self.theta, self.gradient, self.seed = theta, gradient, seed
        self.plain, slopes = self._trained(None)
        self.ways = self._ways(slopes, tolerance)

    def error(self, element: GroupElement) -> tuple[float, str]:
        """The largest difference of g·θ_t and θ'_t for the way θ has gone, and who has it."""
        expected = act(self.symmetry, element, {**self.theta, **self.plain})
        found, _ = self._trained(element)
        apart = {
            name: float((found[name] - expected[name]).norm()) / way
            for name, way in self.ways.items()
        }
        worst = max(apart, key=lambda name: (apart[name] != apart[name], apart[name]))
        return apart[worst], worst

    def _ways(self, slopes: Mapping[str, float], tolerance: float) -> dict[str, float]:
        """How far each parameter went, at least so far that rounding is below the tolerance."""
        ways: dict[str, float] = {}
        largest = max(slopes.values(), default=0.0)
        for name in (n for n in self.plain if n not in self.symmetry.dead):
            size = float(self.theta[name].norm())
            way = float((self.plain[name] - self.theta[name]).norm())
            least = torch.finfo(self.theta[name].dtype).eps * self.steps * size / tolerance
            if 0 < way < least and slopes[name] > _FLAT * largest:
                raise ValueError(
                    f"assert_equivariant: {self.steps} steps moved {name} by {way / size:.1e} of "
                    f"its size, and differences below {tolerance:.0e} of that would be rounding. "
                    f"Expected at least {least / size:.1e}. Take larger steps, or a tolerance that "
                    "can be seen."
                )
            ways[name] = max(way, least, torch.finfo(torch.float64).tiny)
        if all(torch.equal(x, self.theta[name]) for name, x in self.plain.items()):
            raise ValueError(
                f"assert_equivariant: {self.steps} steps moved no parameter. Expected an optimiser "
                "that was given the parameters, with a rate above 0 and gradients that are not all "
                "zero. Check what the optimiser is made from."
            )
        return ways

    def _trained(self, element: GroupElement | None) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The parameters at the end, and the largest norm of the gradient of each."""
        start = self.theta if element is None else act(self.symmetry, element, self.theta)
        kept = {name: start[name] for name in self.symmetry.buffers if name in start}
        trained = [n for n in self.symmetry.signature if n not in self.symmetry.buffers]
        copy = {name: nn.Parameter(start[name].detach().clone()) for name in trained}
        optimizer = self.optimizer(list(copy.items()))
        slopes = dict.fromkeys(copy, 0.0)
        generator = torch.Generator()
        generator.set_state(self.seed)
        for _ in range(self.steps):
            gradients = self._gradients(copy, kept, element, generator)
            for name, parameter in copy.items():
                slope = gradients.get(name)  # none for what is frozen
                parameter.grad = None if slope is None else slope.detach().clone()
                slopes[name] = max(slopes[name], 0.0 if slope is None else float(slope.norm()))
            optimizer.step()
        return {name: parameter.detach() for name, parameter in copy.items()}, slopes

    def _gradients(
        self, at: dict[str, nn.Parameter], kept: Params, element: GroupElement | None,
        generator: torch.Generator,
    ) -> Params:  # fmt: skip
        if self.gradient is not None:
            return self.gradient({**kept, **{name: p.detach() for name, p in at.items()}})
        drawn = {n: _normal(p.shape, generator).to(p.dtype) for n, p in {**at, **kept}.items()}
        return drawn if element is None else act_dual(self.symmetry, element, self.theta, drawn)


def _drawn(symmetry: ParameterSymmetry, generator: torch.Generator) -> dict[str, Tensor]:
    return {name: _normal(symmetry.shape(name), generator) for name in symmetry.signature}


def _normal(shape: Iterable[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def _moves(
    symmetry: ParameterSymmetry, theta: Params, generator: torch.Generator
) -> dict[str, GroupElement]:
    """An element for each space that moves it; of two orders of two units one is the identity."""
    found: dict[str, GroupElement] = {}
    for space in symmetry.spaces:
        for _ in range(_TRIES):
            element = symmetry.sample(generator, only=[space])
            moved = act(symmetry, element, theta)
            if any(not torch.equal(moved[n], theta[n]) for n in symmetry.parameters_of(space)):
                found[space] = element
                break
    if not found:
        raise ValueError(
            "assert_equivariant: no element of this symmetry but the identity acts by orthogonal "
            f"matrices, or none moves these parameters ({len(symmetry.spaces)} spaces). Expected "
            "orders, signs or rotations, for with scales no step of gradients commutes, and "
            "parameters that are not all alike. Ask about a network that has some."
        )
    return found
