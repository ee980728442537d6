"""What a key does to a model, its data and what comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from paramsym.privacy.checks import (
    Given,
    require_checkpoint,
    require_equivariant,
    require_inputs,
    require_loss,
    require_model,
    require_one_output,
    require_order,
)
from paramsym.privacy.keys.key import Key
from paramsym.privacy.keys.losses import moved_labels, moved_loss
from paramsym.structure.action import act
from paramsym.structure.interfaces import act_inputs, act_outputs
from paramsym.structure.state import State, act_state

Data = Given | tuple[Given, torch.Tensor | None]
Tensors = TypeVar("Tensors", bound=Given)


@dataclass(frozen=True, eq=False)
class Encoded:
    """What is sent away: g·θ, g·x and the targets that go along.

    Attributes:
        state_dict: g·θ, of the names and shapes of the model.
        inputs: g·x, a tensor or tensors by name, as they were given.
        targets: moved targets or new labels; None if there were none.
        loss: the loss that compares them, weights of classes moved; None if none was given.
        fingerprint: of the key, by which what comes back can be told from another key's.
    """

    state_dict: dict[str, torch.Tensor]
    inputs: Given
    targets: torch.Tensor | None
    loss: nn.Module | None
    fingerprint: str

    def load_into(self, model: nn.Module) -> nn.Module:
        """A copy of a model with the encoded parameters; the model is not touched."""
        made = copy.deepcopy(model)
        made.load_state_dict(self.state_dict)
        return made


def encode(
    model: nn.Module,
    data: Data,
    key: Key,
    loss: nn.Module | None = None,
    *,
    outputs: Callable[[Any], Any] | None = None,
    check: bool = True,
) -> Encoded:
    """Move a model and its data by a key: f(g·x; g·θ) = g·f(x; θ).

    The function is kept, and training retraces what it would have done, up to the key and to
    rounding. What that hides from the trainer, and from whom not, is what `audit` measures.

    Args:
        model: is not touched.
        data: inputs alone, a tensor or tensors by the names of `forward`, or a pair of inputs and
            targets: labels of the shape (samples, …), or tensors of the shape of the outputs.
        key: made for the model and for what trains it.
        loss: a loss of `torch.nn` whose weights of classes are to go along.
        outputs: from what the model returns to what counts, as for `find_symmetry`.
        check: try the equation above on the first samples, in the mode in which the model is, and
            in training mode if the key is made for training.

    Raises:
        ValueError: parameters or inputs do not fit the key, integers came where the key takes
            linear combinations, the loss is another one than the key was made for, or the model
            does not keep its function (it is not that of the key, or batch statistics in training
            mode do not go along).
    """
    inputs, targets = data if isinstance(data, tuple) else (data, None)
    if loss is not None:
        require_loss(key, loss)
    params = model.state_dict()
    require_model(key, params)
    moved_inputs = encode_inputs(inputs, key, params)
    moved = act(key.acting, key.element, params)
    encoded = Encoded(
        moved,
        moved_inputs,
        None if targets is None else encode_targets(targets, key, params),
        None if loss is None else _moved_loss(loss, targets, key),
        key.fingerprint,
    )
    if check:
        require_equivariant(model, inputs, moved_inputs, moved, key, outputs)
    return encoded


def decode(
    state_dict: Mapping[str, torch.Tensor], key: Key, *, fingerprint: str | None = None
) -> dict[str, torch.Tensor]:
    """Undo a key on parameters that come back: g⁻¹·θ̃.

    Args:
        state_dict: of the names and shapes of the model, buffers included.
        key: that it was encoded with.
        fingerprint: that of the key which the parameters say that they were encoded with, where
            they say it.

    Returns:
        The parameters of the plain model; nothing is modified.

    Raises:
        ValueError: the parameters were encoded with another key (both fingerprints are named), a
            name is missing, a shape is another one, or tied tensors have come apart.
    """
    require_checkpoint(key, state_dict, fingerprint)
    return act(key.acting, key.inverse, state_dict)


def encode_state(
    optimizer_state: State, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> dict[str, dict[str, Any]]:
    """Move the state of an optimiser, so that a run that was begun plainly goes on encoded.

    Args:
        optimizer_state: by name of the parameter, moments as PyTorch names them; see `act_state`.
        key: of the parameters.
        params: the plain parameters, where the key needs them; see `act_state`.

    Raises:
        ValueError: as `act_state`.
    """
    return act_state(key.acting, key.element, optimizer_state, params)


def decode_state(
    optimizer_state: State, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> dict[str, dict[str, Any]]:
    """Undo a key on the state of an optimiser; `params` are the encoded parameters."""
    return act_state(key.acting, key.inverse, optimizer_state, params)


def encode_inputs(
    inputs: Tensors, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> Tensors:
    """Move inputs by a key: x ↦ g·x; tensors that are not freed stay.

    Args:
        inputs: the one freed input, or tensors by the names of `forward`.
        key: of the model.
        params: the plain parameters, where inputs are moved in the frame of a gain.

    Raises:
        ValueError: a freed input is missing, does not fit, or holds integers.
    """
    require_inputs(key, inputs)
    if not key.acting.inputs:
        return inputs
    return act_inputs(key.acting, key.element, inputs, params)


def encode_outputs(
    outputs: Tensors, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> Tensors:
    """Move outputs, or targets of their shape, by a key: y ↦ g·y."""
    return act_outputs(key.acting, key.element, outputs, params) if key.acting.outputs else outputs


def decode_outputs(
    outputs: Tensors, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> Tensors:
    """Undo a key on outputs; `params` are the encoded parameters, where gains serve as frames."""
    return act_outputs(key.acting, key.inverse, outputs, params) if key.acting.outputs else outputs


def encode_targets(
    targets: torch.Tensor, key: Key, params: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """Move targets as the outputs move: labels by the order of classes, others like outputs.

    Raises:
        ValueError: labels came, and the key mixes classes or changes their signs.
    """
    if targets.is_floating_point():
        return encode_outputs(targets, key, params)
    return moved_labels(targets, labels_of(key))


def _moved_loss(loss: nn.Module, targets: torch.Tensor | None, key: Key) -> nn.Module:
    """The loss at the moved outputs, whose axis of classes is that of the freed output."""
    axis = next((feature.axis for feature in key.acting.outputs.values()), -1)
    return moved_loss(loss, lambda: labels_of(key), axis, None if targets is None else targets.ndim)


def labels_of(key: Key) -> torch.Tensor:
    """The new label of each class, of shape (classes,); empty where outputs stay.

    Raises:
        ValueError: the key mixes classes or changes their signs.
    """
    carried = [f for f in key.acting.outputs.values() if f.spaces]
    if not carried:
        return torch.arange(0)
    require_one_output(key)
    count = carried[0].type.size(key.acting.sizes)
    name, feature = next(iter(key.acting.outputs.items()))
    last = replace(key.acting, outputs={name: replace(feature, axis=-1)})
    order = act_outputs(last, key.element, torch.arange(1, count + 1, dtype=torch.float64))
    require_order(key, order)
    return (order.round().long() - 1).argsort()
