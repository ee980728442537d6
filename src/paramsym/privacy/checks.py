"""What is asked of a model, of data and of a checkpoint before a key moves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.func import functional_call

from paramsym.privacy.keys.key import Key
from paramsym.privacy.keys.losses import loss_of
from paramsym.privacy.keys.tokens import orders_units
from paramsym.recording.outputs import named_outputs
from paramsym.recording.running import preserved
from paramsym.structure.action import act_tensor
from paramsym.structure.interfaces import act_outputs

Given: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor]
SAMPLES = 8  # that the check runs on
# Some models cast to single precision inside, whatever their parameters are.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_HALF = 0.05


def require_inputs(key: Key, inputs: Given) -> None:
    """Raise a `ValueError` for what a key cannot move: integers that it would mix, or NaN."""
    if not isinstance(inputs, torch.Tensor | Mapping):
        raise ValueError(
            f"encode(model, data, key): inputs of the type {type(inputs).__name__} came. A tensor "
            "or tensors by the names of forward were expected. Several inputs go into a dict, "
            "and targets beside them into a pair: (inputs, targets)."
        )
    carried = {n: f for n, f in key.acting.inputs.items() if f.spaces}
    given = dict.fromkeys(carried, inputs) if isinstance(inputs, torch.Tensor) else inputs
    for name in carried:
        tensor = given.get(name)
        if not isinstance(tensor, torch.Tensor):
            continue
        if not (tensor.is_floating_point() or orders_units(key.acting, carried[name].type)):
            raise ValueError(
                f"encode(model, data, key): the input {name!r} holds {tensor.dtype}, and the key "
                f"moves it by {carried[name]}, which takes linear combinations. A floating-point "
                "tensor was expected. Convert it as the model is fed (x.float() / 255), or make a "
                "key that leaves it out."
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"encode(model, data, key): the input {name!r} holds numbers that are not finite, "
                "which would spread over all features of their samples. Finite ones were expected. "
                "Fill them in or leave these samples out."
            )


def require_model(key: Key, params: Mapping[str, torch.Tensor]) -> None:
    """Raise a `ValueError` for a wrapper, under which all parameters have another name."""
    name = next((name for name in key.acting.signature if name not in params), None)
    wrapped = next((other for other in params if name and other.endswith(f".{name}")), None)
    if wrapped is not None:
        raise ValueError(
            f"encode(model, data, key): the model calls {wrapped!r} what the key calls {name!r}. "
            "The names of the model that find_symmetry was told were expected. If this is a "
            "wrapper (DataParallel, torch.compile), pass the model inside, as model.module or "
            "model._orig_mod."
        )


def require_loss(key: Key, loss: nn.Module) -> None:
    """Raise a `ValueError` for another loss than the key was made for."""
    given = loss_of(loss)
    if key.updates and (key.loss is None or given is None or key.loss.name != given.name):
        raise ValueError(
            f"encode(…, loss={loss}): the key was made for the loss "
            f"{key.loss.name if key.loss else None!r}, which was expected here. Make the key with "
            "Key.generate(…, loss=…) of the loss that is trained."
        )


def require_one_output(key: Key) -> None:
    """Raise a `ValueError` unless exactly one output is freed, which targets can be those of."""
    if len(key.acting.outputs) != 1:
        raise ValueError(
            f"encode(model, (inputs, targets), key): {len(key.acting.outputs)} outputs are freed, "
            f"{[*key.acting.outputs][:8]}, and targets belong to one of them. Free the one that "
            "the loss compares: find_symmetry(…, free_outputs=…)."
        )


def require_order(key: Key, order: torch.Tensor) -> None:
    """Raise a `ValueError` unless a vector of numbers from 1 on has only changed its order."""
    expected = torch.arange(1, len(order) + 1, dtype=order.dtype)
    if not torch.allclose(order.sort().values, expected, rtol=0, atol=1e-6):
        raise ValueError(
            "encode(model, (inputs, targets), key): the targets are labels, and the key mixes or "
            "scales the outputs, so that classes have no labels any more. A key that permutes "
            'classes was expected: Key.generate(…, loss="cross-entropy").'
        )


def require_checkpoint(
    key: Key, state_dict: Mapping[str, torch.Tensor], fingerprint: str | None
) -> None:
    """Raise a `ValueError` for parameters of another key, or that are none of the model's."""
    if fingerprint is not None and fingerprint != key.fingerprint:
        raise ValueError(
            f"decode(state_dict, key): the parameters were encoded with the key "
            f"{fingerprint[:12]}…, and the key {key.fingerprint[:12]}… came. They would be turned "
            "into another network. Pass the key that they were encoded with."
        )
    missing = [name for name in key.acting.signature if name not in state_dict]
    if missing:
        raise ValueError(
            f"decode(state_dict, key): {missing[0]!r} is missing, one of {len(missing)} names of "
            f"{len(key.acting.signature)}. The complete state dict of the encoded model was "
            "expected. Send model.state_dict() back, buffers included."
        )
    for alias, name in key.acting.ties.items():
        if alias in state_dict and not torch.equal(state_dict[alias], state_dict[name]):
            raise ValueError(
                f"decode(state_dict, key): {alias!r} and {name!r} are one tensor in the model of "
                "the key, and differ in the parameters that came. Tied tensors were expected. Load "
                "the encoded parameters into the model class, which ties them, before training."
            )


def require_equivariant(
    model: nn.Module,
    inputs: Given,
    moved_inputs: Given,
    moved: Mapping[str, torch.Tensor],
    key: Key,
    outputs: Callable[[Any], Any] | None,
) -> None:
    """Raise a `ValueError` unless f(g·x; g·θ) = g·f(x; θ), buffers that are written included.

    A key that is made for training has to hold in training, too, if the model is still evaluated.
    """
    for training in {model.training, model.training or bool(key.updates)}:
        _require_equivariant(model, inputs, moved_inputs, moved, key, outputs, training)


def _require_equivariant(
    model: nn.Module,
    inputs: Given,
    moved_inputs: Given,
    moved: Mapping[str, torch.Tensor],
    key: Key,
    outputs: Callable[[Any], Any] | None,
    training: bool,
) -> None:
    params = {n: t.detach().clone() for n, t in model.state_dict().items()}
    ahead = {n: t.detach().clone() for n, t in moved.items()}
    modes = {} if training != model.training else {m: m.training for m in model.modules()}
    with preserved(model, training), torch.no_grad():
        for module, mode in modes.items():  # some may be held in evaluation, such as batch norms
            module.training = mode
        plain = _run(model, params, inputs, outputs)
        encoded = _run(model, ahead, moved_inputs, outputs)
    freed = {n: y for n, y in plain.items() if n in key.acting.outputs}
    compared = freed or plain
    expected = act_outputs(key.acting, key.element, freed, dict(params)) if freed else plain
    for name, y in compared.items():
        _require_close(key, f"the output {name!r}", encoded[name], expected[name], y.dtype)
    for name, buffer in model.named_buffers():
        if name in params and buffer.is_floating_point():
            _require_close(
                key, f"the buffer {name!r}", ahead[name], _moved(key, name, params), buffer.dtype
            )


def _moved(key: Key, name: str, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """One tensor of g·θ; what the symmetry does not know stays."""
    known = name in key.acting.signature or name in key.acting.ties
    return act_tensor(key.acting, key.element, name, params) if known else params[name]


def _run(
    model: nn.Module, params: dict, inputs: Given, outputs: Callable[[Any], Any] | None
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # the same draws in both runs; `preserved` puts the generator back
    count = len(inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs.values())))
    few = taken(inputs, slice(SAMPLES), count)
    args, kwargs = ((few,), {}) if isinstance(few, torch.Tensor) else ((), dict(few))
    returned = functional_call(model, params, args, kwargs, tie_weights=False)
    return dict(named_outputs(returned if outputs is None else outputs(returned)))


def taken(inputs: Given, rows: torch.Tensor | slice, count: int) -> Given:
    """Some samples of inputs; tensors that do not count `count` samples stay whole."""
    if isinstance(inputs, torch.Tensor):
        return inputs[rows]
    return {n: x[rows] if x.ndim and len(x) == count else x for n, x in inputs.items()}


def _require_close(
    key: Key, what: str, found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype
) -> None:
    masked = expected.isinf() & (found == expected)  # −∞ is equal to −∞, without a difference
    found, expected = found.masked_fill(masked, 0), expected.masked_fill(masked, 0)
    size = float(expected.norm()) or 1.0
    error = float((found - expected).norm()) / size
    if not error <= _TOLERANCES.get(dtype, _HALF):
        raise ValueError(
            f"encode(model, data, key): {what} of the moved model differs from the moved one by "
            f"{error:.1e} of its size, and by no more than rounding was expected. The model is not "
            "that of the key, it draws random numbers, or it is in another mode (training or not) "
            f"than find_symmetry was told. The key moves {[*key.acting.spaces][:6]}. Find the "
            "symmetry with training=model.training, and make the key anew."
        )
