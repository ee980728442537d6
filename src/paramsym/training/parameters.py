"""The tensors that a symmetry moves, by name: of a model, or as an optimiser knows them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from paramsym.structure.action import check_parameters
from paramsym.structure.symmetry import ParameterSymmetry

_PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
Tensors = dict[str, Tensor]


class Parameters:
    """The tensors of a model as they are now; buffers may be replaced by others.

    Args:
        symmetry: what moves them.
        optimizer: what trains them.
        model: what holds them; without it the optimiser has to know their names.

    Raises:
        ValueError: no names, a tensor that is missing, of another shape or of too few digits, tied
            names of different tensors, or an optimiser that trains none of them.
    """

    def __init__(
        self, symmetry: ParameterSymmetry, optimizer: torch.optim.Optimizer, model: nn.Module | None
    ) -> None:
        self.symmetry = symmetry
        given = _of_model(model) if model is not None else _of_optimizer(optimizer)
        self.readers = {n: given[n] for n in symmetry.signature if n in given}
        where = type(model).__name__ if model is not None else "the optimiser"
        missing = next((n for n in symmetry.signature if n not in given), None)
        if missing is not None:
            _refuse(
                f"{where} has no {missing!r}, which the symmetry knows",
                "the module that find_symmetry was given",
                "Pass model=model",
            )
        for alias, name in symmetry.ties.items():
            if alias in given and given[alias]() is not given[name]():
                _refuse(
                    f"{alias!r} and {name!r} are two tensors, and tied in the symmetry", "one",
                    "Derive the symmetry from this model: find_symmetry(model, inputs)",
                )  # fmt: skip
        self._require(optimizer)
        self.kinds = {n: (p.dtype, p.shape) for n, p in self.now().items()}

    def current(self) -> Tensors:
        """The tensors of the signature as they are now, which are of the kind that they were.

        Raises:
            ValueError: one has another dtype or shape than when they were first looked at.
        """
        found = self.now()
        for name, tensor in found.items():
            dtype, shape = self.kinds[name]
            if tensor.dtype != dtype or tensor.shape != shape:
                _refuse(
                    f"{name!r} is {tuple(tensor.shape)} of {tensor.dtype} now",
                    f"{tuple(shape)} of {dtype}, as it was when this was made,",
                    "Make a new Rebalance after the model is changed",
                )  # fmt: skip
        return found

    def require_together(self, optimizer: torch.optim.Optimizer, held: Collection[str]) -> None:
        """Refuse parameters that move, are trained, and are not trained by this optimiser.

        Raises:
            ValueError: another optimiser may keep something of them that would not follow.
        """
        own = {p for group in optimizer.param_groups for p in group["params"]}
        for name, tensor in self.now().items():
            if (
                tensor.requires_grad
                and tensor not in own
                and {*self.symmetry.movers[name]} - {*held}
            ):
                _refuse(
                    f"{name!r} moves and has a gradient, and the optimiser does not train it; what "
                    "another one keeps of it would not follow",
                    "one optimiser of all that moves", "Put all into one with several groups, "
                    "freeze it with requires_grad_(False), or hold the spaces that move it",
                )  # fmt: skip

    def warn_of_buffers(self, moving: Collection[str], model: nn.Module) -> None:
        """Say that buffers move whose module trains: it computes them anew, and reads no others.

        Warns:
            UserWarning: the symmetry is that of evaluation, and the model is in training.
        """
        for name in self.symmetry.buffers:
            owner = model.get_submodule(name.rpartition(".")[0])
            if owner.training and {*self.symmetry.movers[name]} & {*moving}:
                warnings.warn(
                    f"Rebalance(symmetry, …): the buffer {name!r} moves, and its module is in "
                    "training, where it reads the batch and not the buffer: what is kept is the "
                    "function in evaluation. Pass find_symmetry(model, inputs, training=True).",
                    stacklevel=3,
                )
                return

    def _require(self, optimizer: torch.optim.Optimizer) -> None:
        found = self.now()
        check_parameters(self.symmetry, found)
        for name, tensor in found.items():
            floats = tensor.is_floating_point() or tensor.is_complex()
            if self.symmetry.movers[name] and floats and tensor.dtype not in _PRECISE:
                _refuse(
                    f"{name!r} has dtype {tensor.dtype}, in which a scale rounds the function",
                    "float32 or float64", "Train with autocast, which keeps the weights in float32",
                )  # fmt: skip
            if self.symmetry.movers[name] and 0 in tensor.stride() and tensor.numel() > 1:
                _refuse(
                    f"{name!r} has strides {tensor.stride()}, so that entries share a place",
                    "a tensor that can be written", "Pass one that is whole: tensor.contiguous()",
                )  # fmt: skip
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        if not any(tensor in trained for tensor in found.values()):
            _refuse(
                f"none of the {len(trained)} parameters of the optimiser is in the model",
                "an optimiser that trains it",
                "Build it after the model has its parameters: SGD(model.parameters(), …)",
            )

    def now(self) -> Tensors:
        """The tensors of the signature, as they are trained, by name."""
        return {name: read() for name, read in self.readers.items()}


def _of_model(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """How to read each parameter and buffer of a model, under all of its names."""
    found: dict[str, Callable[[], Tensor]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for key in (*module._parameters, *module._buffers):
            if getattr(module, key) is not None:
                found[f"{path}.{key}" if path else key] = partial(getattr, module, key)
    return found


def _of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Callable[[], Tensor]]:
    """How to read each parameter of an optimiser that was built from `named_parameters`."""
    found: dict[str, Callable[[], Tensor]] = {}
    for group in optimizer.param_groups:
        if "param_names" not in group:
            _refuse(
                "no model came, and the optimiser does not know the names of its parameters",
                "one of both", "Pass model=model, or build SGD(model.named_parameters(), …)",
            )  # fmt: skip
        pairs = zip(group["param_names"], group["params"], strict=True)
        found |= {name: partial(_itself, p) for name, p in pairs}
    return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _refuse(what: str, expected: str, instead: str) -> NoReturn:
    raise ValueError(
        f"Rebalance(symmetry, optimizer, model=…): {what}; {expected} was expected. {instead}."
    )
