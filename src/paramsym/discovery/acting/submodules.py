"""A submodule inside of its network: what enters it, and whether the rest sees its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .commutators import Params
from .networks import Network


class Submodule:
    """One submodule of a network, which is only read.

    Args:
        model: the network.
        name: of the submodule.
        training: run the network in training mode.

    Raises:
        ValueError: no such submodule, no parameters in it, or parameters with names outside of it.
    """

    def __init__(self, model: nn.Module, name: str, training: bool) -> None:
        self.place = f"inherit(submodule={name!r})"
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"{self.place}: a {type(model).__name__} came for the network, and an nn.Module "
                "was expected, which has submodules. Wrap a function in a module."
            )
        self.model, self.name, self.network = model, name, Network(model, training)
        modules = dict(model.named_modules(remove_duplicate=False))
        if name not in modules:
            raise ValueError(
                f"{self.place}: {type(model).__name__} has no such submodule; one of "
                f"{[n for n in modules if n][:12]} was expected. Pass a name as in "
                "model.named_modules()."
            )
        self.module, self.prefix = modules[name], f"{name}." if name else ""
        self._require_own()

    def _require_own(self) -> None:
        """Parameters, none of which has a name outside."""
        every = dict(self.model.named_parameters(remove_duplicate=False))
        inside = {id(p) for p in self.module.parameters()}
        if not inside:
            raise ValueError(
                f"{self.place}: {type(self.module).__name__} has no parameters, and some were "
                "expected, since they are what an action moves. Name a submodule around it."
            )
        outside = [n for n, p in every.items() if id(p) in inside and not self._owns(n)]
        if outside:
            raise ValueError(
                f"{self.place}: its parameters are also {outside[:4]}, outside of it, and "
                "parameters of its own were expected: an action that keeps what the submodule "
                "computes would change the rest. Untie them, or name a submodule around both."
            )

    def _owns(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def own(self, params: Params) -> dict[str, Tensor]:
        """θ₂, under its names in the submodule."""
        found = {n.removeprefix(self.prefix): t for n, t in params.items() if self._owns(n)}
        missing = [n for n, _ in self.module.named_parameters() if n not in found]
        if missing:
            raise ValueError(
                f"{self.place}: params has no {self.prefix + missing[0]!r}, and all parameters of "
                "the network were expected. Pass dict(model.named_parameters()) or its state dict."
            )
        return found

    def replaced(self, params: Params, inner: Params) -> dict[str, Tensor]:
        """θ with another θ₂."""
        return {**params, **{self.prefix + name: tensor for name, tensor in inner.items()}}

    def entering(self, params: Params, inputs: Any) -> Any:
        """s = h(θ₁, X): the arguments of the submodule in one run of the network."""
        calls: list[Any] = []
        with self._hooked(calls, None):
            self.network(params, inputs)
        if len(calls) != 1:
            raise ValueError(
                f"{self.place}: it ran {len(calls)} times in one run of the network, and once was "
                "expected" + (
                    ", since what enters the second time depends on its own parameters. Name a "
                    "submodule around all of its calls." if calls else
                    ". Name a module whose forward runs; weights that another module reads, as "
                    "attention reads those of its projections, are not a call."
                )
            )  # fmt: skip
        return self._data(*calls[0])

    @contextmanager
    def _hooked(self, calls: list[Any], answer: Callable[[Any], Any] | None) -> Iterator[None]:
        """Note every call of the submodule, and answer in its place where an answer is given."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            calls.append(pytree.tree_map(_copied, (args, kwargs)))  # it may be written over

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            return None if answer is None else pytree.tree_map(_copied, answer(output))

        hooks = [
            # before the hooks of the user, which are a part of what the submodule computes
            self.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            self.module.register_forward_hook(after),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def require_separate(self, inputs: Any) -> None:
        """Refuse a network that reads θ₂ elsewhere: tried with another θ₂ and the old answer.

        What leaves the submodule is held while its parameters change. Nothing else may change
        then, neither what enters it nor what the network returns.
        """
        params = {n: p.detach() for n, p in self.model.state_dict(keep_vars=True).items()}
        kept: list[Any] = []

        def keep(output: Any) -> Any:
            kept.append(pytree.tree_map(_copied, output))
            return output

        with torch.no_grad():
            seen = self.entering(params, inputs)
            with self.network.running(params) as run:
                with self._hooked([], keep):
                    returned = run(params, inputs)
                again = run(params, inputs)  # the generators ran on meanwhile
        if not _same(returned, again):
            raise ValueError(
                f"{self.place}: two runs of the network gave two answers, and a function of its "
                "parameters and inputs was expected. Run it in evaluation mode, training=False, "
                "and draw no noise in it."
            )
        for draw in _DRAWS:
            other = {n: draw(t) for n, t in self.own(params).items()}
            calls: list[Any] = []
            with torch.no_grad(), self._hooked(calls, lambda output: kept[0]):
                moved = self.network(self.replaced(params, other), inputs)
            self._require_same(seen, self._data(*calls[0]), returned, moved)

    def _require_same(self, seen: Any, then: Any, returned: Any, moved: Any) -> None:
        if not _same(seen, then):
            raise ValueError(
                f"{self.place}: what enters it depends on its own parameters, and a function of "
                "the others was expected. Name a submodule around all that reads them."
            )
        if not _same(returned, moved):
            raise ValueError(
                f"{self.place}: the network reads its parameters elsewhere too, past what it "
                "returns, and a network that sees only its answer was expected. Name a submodule "
                "around all that reads them."
            )

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a submodule was called with, as `Network` takes it.

        With keywords all of it is named as `forward` names it, since a tuple is positional.
        """
        if not kwargs:
            return args[0] if len(args) == 1 and isinstance(args[0], Tensor) else args
        called = inspect.signature(self.module.forward).bind(*args, **kwargs)
        named: dict[str, Any] = {}
        for name, value in called.arguments.items():
            kind = called.signature.parameters[name].kind
            if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise ValueError(
                    f"{self.place}: it is called with keywords and with {name!r}, which has no "
                    "name for its caller; arguments that all have one were expected. Give its "
                    "forward named arguments, or call it without keywords."
                )
            named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return named


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _elsewhere(tensor: Tensor, size: float, sign: float) -> Tensor:
    """Other numbers, of another size and of one sign, or of their own; counts and masks stay."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(0)
    factor = 1 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    moved = size * (tensor.detach().cpu().double() * factor + 0.1)
    return (sign * moved.abs() if sign else moved).to(tensor)


# of the same size, and beyond thresholds on either side: what reads signs or norms shows itself
_DRAWS = (
    partial(_elsewhere, size=1.0, sign=0.0),
    partial(_elsewhere, size=1e3, sign=1.0),
    partial(_elsewhere, size=1e-3, sign=-1.0),
)


def _same(one: Any, other: Any) -> bool:
    """Whether two nested answers have the same bits."""
    leaves, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(leaves) == len(others) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b
        for a, b in zip(leaves, others, strict=True)
    )
