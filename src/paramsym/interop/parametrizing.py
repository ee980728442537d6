"""A move as parametrizations of torch: modules read g·θ, optimisers keep and train θ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize as torch_parametrize

from paramsym.arguments import module_of
from paramsym.recording.running import places_of
from paramsym.structure.action import act_tensor
from paramsym.structure.element import GroupElement
from paramsym.structure.symmetry import ParameterSymmetry


class MovedParameter(nn.Module):
    """The parametrization of one tensor: forwards θ ↦ (g·θ)_name, and back."""

    def __init__(
        self, symmetry: ParameterSymmetry, element: GroupElement, inverse: GroupElement, name: str
    ):
        super().__init__()
        self.symmetry, self.element, self.inverse = symmetry, element, inverse
        self.name = name

    def forward(self, tensor: Tensor) -> Tensor:
        """What the module reads."""
        return act_tensor(self.symmetry, self.element, self.name, {self.name: tensor})

    def right_inverse(self, tensor: Tensor) -> Tensor:
        """What is kept where somebody assigns to the module."""
        return act_tensor(self.symmetry, self.inverse, self.name, {self.name: tensor})

    def extra_repr(self) -> str:
        """The name of the tensor in the model."""
        return self.name


def parametrize(
    model: nn.Module, symmetry: ParameterSymmetry, element: GroupElement
) -> tuple[str, ...]:
    """Let a model compute with g·θ while it keeps and trains θ, by `torch.nn.utils.parametrize`.

    A loss L(g·θ) = L(θ) has the same gradient in θ, so that training goes on as it would have gone,
    to rounding. What changes is what is read: an observer of a quantiser, a pruner or a log sees a
    balanced `layer.weight`. `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")`
    leaves g·θ in the place of θ; not of tied parameters, of which torch would move the one tensor
    once for each place.

    Args:
        model: is changed in place: each parameter that g moves becomes a property, and its numbers
            stay in `parametrizations.<name>.original`, which is what `state_dict` names. Tied
            parameters stay tied. The element is not part of the state dict; save it beside.
        symmetry: of this model.
        element: g, for instance of `balance(symmetry, state, shifts=False)`.

    Returns:
        The names of the parameters that are moved, as they were.

    Raises:
        ValueError: the model has such parametrizations already; g moves a buffer, which a forward
            pass may write to; a tensor by the numbers of others (shifts, frames of gains), which
            no parametrization of one tensor can read; or the weights of a recurrent layer, which
            torch hands to its kernels past all properties.
    """
    model = module_of(model)
    _require_plain(model)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    drawn = {name: _random(tensor) for name, tensor in state.items()}  # a zero bias will not stay
    moved = tuple(name for name in symmetry.signature if _is_moved(symmetry, element, name, drawn))
    places = places_of(model, moved)
    _require_readable(model, symmetry, element, places)
    kept = {name: state[name].clone() for name in moved}
    inverse = ~element
    for place, name in places.items():
        path, _, attribute = place.rpartition(".")
        module = model.get_submodule(path)
        if torch_parametrize.is_parametrized(module, attribute):
            continue  # a module with two names
        torch_parametrize.register_parametrization(
            module, attribute, MovedParameter(symmetry, element, inverse, name)
        )
        # torch keeps g⁻¹·θ, so that the weights that are read stay; here it is the function
        with torch.no_grad():
            module.get_parameter(f"parametrizations.{attribute}.original").copy_(kept[name])
    return moved


def _random(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(tensor.shape, generator=generator).to(tensor) + 1


def _is_moved(
    symmetry: ParameterSymmetry, element: GroupElement, name: str, state: Mapping[str, Tensor]
) -> bool:
    """Whether g changes the numbers of a tensor."""
    needed = {n: state[n] for n in symmetry.needs(name, element)}
    return not torch.equal(act_tensor(symmetry, element, name, needed), state[name])


def _require_plain(model: nn.Module) -> None:
    """Raise a `ValueError` for a model whose parameters are moved already."""
    for path, module in model.named_modules():
        if isinstance(module, MovedParameter):
            place = path.partition("parametrizations.")[0].rstrip(".") or "the model"
            raise ValueError(
                f"parametrize(model={type(model).__name__}): {module.name!r} is read at {place!r} "
                "through a move already, but a model whose names are those of the symmetry was "
                "expected. Compose the elements, parametrize(model, symmetry, second @ first), or "
                "take the first one out by torch.nn.utils.parametrize.remove_parametrizations."
            )


def _require_readable(
    model: nn.Module, symmetry: ParameterSymmetry, element: GroupElement, places: Mapping[str, str]
) -> None:
    """Raise a `ValueError` where a property of one tensor is not what a forward pass reads."""
    called = f"parametrize(model={type(model).__name__}, element=…)"
    for place, name in places.items():
        module = model.get_submodule(place.rpartition(".")[0])
        needed = [n for n in symmetry.needs(name, element) if n != name]
        if name in symmetry.buffers:
            reason = "is a buffer, and what a forward pass writes to it would be lost"
            instead = "Move the model itself, load_state_dict(act(symmetry, element, state_dict))."
        elif needed:
            reason = f"is moved by the numbers of {', '.join(map(repr, needed[:3]))} as well"
            instead = (
                "Take an element without shifts and framed bases: balance(…, shifts=False), or one "
                "of symmetry.restrict(translations=False)."
            )
        elif isinstance(module, nn.RNNBase):
            reason = "belongs to a recurrent layer, which hands its weights to a kernel itself"
            instead = "Hold its spaces: balance(…, hold=[…])."
        else:
            continue
        raise ValueError(
            f"{called}: {name!r} {reason}, but parameters that one parametrization can move were "
            f"expected. {instead}"
        )
