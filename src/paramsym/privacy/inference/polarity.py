"""Polarity masks: units whose sign is turned, in front of an activation that turns it back.

    σₛ(z) = S σ(S z),    V → S V,   b → S b,   U → U S,    S = diag(±1)

so that U S·S σ(S·S(Vx + b)) = U σ(Vx + b), for every entrywise σ. No element of the symmetry of a
ReLU network turns a sign; parameters that are turned so make another network with the plain σ.

Whoever evaluates has to know S, and who is sent S with the parameters has the network: masks hide
nothing from either. Parameters that were kept without their masks, or that are used with those of
another session, compute something else, and that is all that masks do. Signs that are not sent
follow from answers: behind one hidden layer of rectifiers, S max(S z, 0) = (z + S|z|)/2 makes the
outputs linear in them. The protocol has to send them, since they go along when the other side
orders the units anew.

Source: the source text's section IV, where the signs are to "remain hidden".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from paramsym.algebra import AbstractMonomial
from paramsym.checking.pointwise import PointwiseSite, pointwise_site
from paramsym.recording.graph import canonical_name
from paramsym.recording.record import Inputs
from paramsym.recording.running import call_at, preserved, split_inputs
from paramsym.structure.symmetry import ParameterSymmetry
from paramsym.tracing.pointwise import NotPointwise

_RECTIFIERS = (torch.relu, torch.Tensor.relu, nn.functional.relu)  # max(z, 0) in one call
Masks = Mapping[str, Tensor]  # the diagonal of S by space, ±1 of shape (units,)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the units of a space pass σ: a module that is σ, or calls within `forward`.

    `in_place` says whether that module writes what it gives over what it gets.
    """

    site: PointwiseSite
    module: str | None
    in_place: bool = False

    @property
    def axis(self) -> int:
        """The axis of the units on what σ gets, from the front."""
        return self.site.first.axis


@dataclass(frozen=True, eq=False)
class Polarity:
    """The spaces of a model whose units can be masked, and how.

    Attributes:
        model: is only read.
        places: by space.
        refused: why another space cannot be masked, by space.
    """

    model: nn.Module
    places: Mapping[str, Place]
    refused: Mapping[str, str]

    @staticmethod
    def of(
        model: nn.Module,
        symmetry: ParameterSymmetry,
        inputs: Inputs,
        outputs: Callable[[Any], Any] | None = None,
    ) -> Polarity:
        """Read off where the units of a model pass one entrywise function between linear maps.

        Args:
            model: in evaluation mode or not, it is read in evaluation mode.
            symmetry: what `find_symmetry` derived of it on these inputs. Spaces whose group has
                signs need no masks, and those that are no hidden units get none.
            inputs: a tuple of positional inputs, or a dict of keyword arguments.
            outputs: as for `find_symmetry`.
        """
        sites: dict[str, PointwiseSite] = {}
        refused: dict[str, str] = {}
        for name, space in symmetry.spaces.items():
            if not isinstance(space.group, AbstractMonomial) or not space.group.permutes:
                refused[name] = f"{space.group} is no order of units"
            elif space.group.signs or space.over:
                refused[name] = "its signs move already" if space.group.signs else "it has copies"
            else:
                try:
                    sites[name] = pointwise_site(model, symmetry, inputs, name, outputs)
                except NotPointwise as error:
                    refused[name] = str(error).split(": ", 1)[-1].split(", and one entrywise")[0]
        modules = _modules(model, sites, inputs)
        places = {
            name: Place(site, *modules.get(name, (None, False))) for name, site in sites.items()
        }
        return Polarity(model, places, refused)

    def sample(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A mask for each space: independent signs, of shape (units,), as 8-bit integers."""
        return {
            name: 1 - 2 * torch.randint(2, (place.site.units,), generator=generator,
                                        dtype=torch.int8)
            for name, place in self.places.items()
        }  # fmt: skip

    def flip(self, params: Mapping[str, Tensor], masks: Masks) -> dict[str, Tensor]:
        """Turn the signs of units: V → S V, b → S b, U → U S. It is its own inverse.

        Args:
            params: parameters by name; they are not touched.
            masks: by space; others stay.

        Raises:
            ValueError: a mask of a space that has none, or of another shape or other numbers.
        """
        require_masks(masks, {name: place.site.units for name, place in self.places.items()})
        flipped = dict(params)
        for name, mask in masks.items():
            site = self.places[name].site
            flipped = site.along(
                flipped, (*site.writers, *site.readers), lambda rows, mask=mask: rows * mask
            )
        return flipped

    def evaluator(self, params: Mapping[str, Tensor], masks: Masks) -> nn.Module:
        """A copy of the model in evaluation mode, at these parameters and with masked activations.

        Args:
            params: as `flip` gives them, perhaps moved along the symmetry, the masks in the order
                in which their units are now.
            masks: by space.

        Raises:
            ValueError: as `flip`.
        """
        require_masks(masks, {name: place.site.units for name, place in self.places.items()})
        made = copy.deepcopy(self.model).eval().requires_grad_(False)
        made.load_state_dict(dict(params))
        written: dict[str, Tensor] = {}
        for name, mask in masks.items():
            place = self.places[name]
            if place.module is None:
                written[name] = mask
            else:
                turned = Turned(mask, place.axis)
                _turn(made.get_submodule(place.module), turned, place.in_place)
        return MaskedFunctions(made, self.places, written) if written else made


def require_masks(masks: Masks, units: Mapping[str, int]) -> None:
    """Raise a `ValueError` for a mask that is no sign for each unit of a space that has masks."""
    for name, mask in masks.items():
        if name not in units:
            raise ValueError(
                f"masks={{{name!r}: …}}: this space cannot be masked, and one of {[*units][:8]} "
                "was expected. Polarity.refused says why."
            )
        if tuple(mask.shape) != (units[name],) or not bool((mask.abs() == 1).all()):
            raise ValueError(
                f"masks={{{name!r}: …}}: a tensor of shape {tuple(mask.shape)} came with numbers "
                f"from {float(mask.min())} to {float(mask.max())}, and 1 or -1 for each of "
                f"{units[name]} units was expected. Draw it with Polarity.sample."
            )


# -- where σ is ----------------------------------------------------------------------------------


def _modules(
    model: nn.Module, sites: Mapping[str, PointwiseSite], inputs: Inputs
) -> dict[str, tuple[str, bool]]:
    """The names of modules that get what σ gets, give what it gives, and are called once; and
    whether the one is written over the other."""
    found: dict[str, tuple[str, bool]] = {}
    calls: dict[str, int] = {}
    seen = _Seen(sites)

    def watch(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: Any, made: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            for space in sites:
                if args and args[0] is seen.given.get(space) and made is seen.made.get(space):
                    found[space] = name, made is args[0]

        return module.register_forward_hook(hook)

    leaves = {n: m for n, m in model.named_modules() if n and not [*m.children()]}
    args, kwargs = split_inputs(inputs)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    handles = [watch(name, module) for name, module in leaves.items()]
    try:
        with preserved(model, False), torch.no_grad(), seen:
            call_at(model, {n: t.detach().clone() for n, t in state.items()}, args, kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return {space: place for space, place in found.items() if calls[place[0]] == 1}


_name = lru_cache(1024)(canonical_name)  # it is asked for every call of a network


class _Counting(TorchFunctionMode):
    """Knows which call of a running model is the first and which the last of σ."""

    def __init__(self, sites: Mapping[str, PointwiseSite]) -> None:
        super().__init__()
        self.first = {(s.first.name, s.first.count): name for name, s in sites.items()}
        self.last = {(s.last.name, s.last.count): name for name, s in sites.items()}
        self.names = {name for name, _ in (*self.first, *self.last)}
        self.counts: dict[str, int] = {}

    def met(self, func: Any) -> tuple[str | None, str | None]:
        """The spaces whose σ begins and ends with this call."""
        name = _name(func)
        if name not in self.names:
            return None, None
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return self.first.get((name, count)), self.last.get((name, count))


class _Seen(_Counting):
    """Keeps the very tensors that σ gets and gives."""

    def __init__(self, sites: Mapping[str, PointwiseSite]) -> None:
        super().__init__(sites)
        self.given: dict[str, Tensor] = {}
        self.made: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first, last = self.met(func)
        if first is not None:
            self.given[first] = operand_of(args, kwargs)
        made = func(*args, **(kwargs or {}))
        if last is not None:
            self.made[last] = made
        return made


def operand_of(args: Any, kwargs: Any) -> Tensor:
    """The first operand of a call that has the most axes: the others are numbers."""
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    return max(tensors, key=lambda x: x.ndim)


# -- σ between signs -----------------------------------------------------------------------------


class Turned:
    """S on what a module gets and on what it gives, as hooks of the module or as its `forward`."""

    def __init__(self, mask: Tensor, axis: int) -> None:
        self.mask, self.axis = mask, axis
        self.fitted: dict[tuple[int, torch.dtype], Tensor] = {}
        self.bounds: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def signs(self, like: Tensor) -> Tensor:
        """The diagonal of S along the axis of the units of a tensor, in its dtype."""
        key = like.ndim, like.dtype
        if key not in self.fitted:
            shape = (-1, *(1 for _ in range(like.ndim - self.axis - 1)))
            self.fitted[key] = self.mask.to(like).reshape(shape)
        return self.fitted[key]

    def before(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * self.signs(args[0]), *args[1:])

    def behind(self, _: nn.Module, __: Any, made: Tensor) -> Tensor:
        # what a module made by itself nobody else holds; with autograd it may have been kept
        return made * self.signs(made) if torch.is_grad_enabled() else made.mul_(self.signs(made))

    def rectified(self, input: Tensor) -> Tensor:
        """S max(S z, 0) in one pass: z between 0 and ∞ where the sign is 1, −∞ and 0 where not."""
        return torch.clamp(input, *self.between(input))

    def rectified_over(self, input: Tensor) -> Tensor:
        """The same, written over z."""
        return input.clamp_(*self.between(input))

    def between(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds between which a rectifier with signs leaves what it gets."""
        key = like.ndim, like.dtype
        if key not in self.bounds:
            signs, zero = self.signs(like), like.new_zeros(())
            self.bounds[key] = (
                torch.where(signs > 0, zero, -torch.inf), torch.where(signs > 0, torch.inf, zero)
            )  # fmt: skip
        return self.bounds[key]

    def over(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """S σ(S z) written over z, which the network may read without taking what σ gives."""

        def written(input: Tensor, *others: Any) -> Tensor:
            return input.copy_(forward(input * self.signs(input), *others) * self.signs(input))

        return written


def _turn(module: nn.Module, turned: Turned, in_place: bool) -> None:
    """Put a module that is σ between signs."""
    if type(module) is nn.ReLU:
        # of the module itself, whatever other names it is called by
        module.forward = turned.rectified_over if in_place else turned.rectified
    elif in_place:
        module.forward = turned.over(module.forward)
    else:
        module.register_forward_pre_hook(turned.before)
        module.register_forward_hook(turned.behind)


class MaskedFunctions(nn.Module):
    """A network whose masked activations are calls within its `forward`.

    They are met by counting calls, which costs every call of the network a look at its name.
    """

    def __init__(self, network: nn.Module, places: Mapping[str, Place], masks: Masks) -> None:
        super().__init__()
        self.network = network
        self.sites = {name: places[name].site for name in masks}
        self.turned = {name: Turned(mask, places[name].axis) for name, mask in masks.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        mode = _Masking(self.sites, self.turned)
        with mode:
            returned = self.network(*args, **kwargs)
        if missed := {*self.sites} - mode.done:
            raise RuntimeError(
                f"the activations of {sorted(missed)} were not met where they were on the example "
                "inputs, so that their masks were left out. A network that runs the same calls on "
                "all inputs was expected. Leave masks out, or write the activation as a module."
            )
        return returned


class _Masking(_Counting):
    """Puts S σ(S z) in the place of σ(z)."""

    def __init__(self, sites: Mapping[str, PointwiseSite], turned: Mapping[str, Turned]) -> None:
        super().__init__(sites)
        self.sites, self.turned = sites, turned
        self.given: dict[str, Tensor] = {}
        self.done: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first, last = self.met(func)
        if first is not None:
            operand = operand_of(args, kwargs)
            if first == last and func in _RECTIFIERS and not kwargs.get("inplace"):
                self.done.add(first)
                return self.turned[first].rectified(operand)
            given = self.given[first] = operand * self.turned[first].signs(operand)
            if first == last:  # σ is this one call
                args, kwargs = _with(operand, given, args, kwargs)
                made = func(*args, **kwargs)
                self.done.add(first)
                return _written(operand, made, made * self.turned[first].signs(made), given)
        made = func(*args, **kwargs)
        if last is None:
            return made
        self.done.add(last)
        found = self.sites[last].function(self.given.pop(last))
        return made.copy_(found * self.turned[last].signs(found))


def _with(old: Tensor, new: Tensor, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with another tensor in the place of one."""
    return pytree.tree_map(lambda x: new if x is old else x, (args, kwargs))


def _written(operand: Tensor, made: Tensor, answer: Tensor, given: Tensor) -> Tensor:
    """The answer of a call, written to its operand if the call wrote to what it got."""
    return operand.copy_(answer) if made is given else answer
