"""Torch modules and exported programs as ReLU networks.

A module is accepted if it is a chain of affine maps and ReLUs. An `nn.Sequential` is read module
by module; anything else is traced with `torch.export` and its graph is read node by node. Whatever
is not affine and not ReLU is named together with its place.
"""

from __future__ import annotations

from typing import Any

import torch

from paramsym.relu.errors import ReLUError
from paramsym.relu.network import Network
from paramsym.relu.piecewise import Piecewise

RELU = "relu"
Step = tuple[torch.Tensor, torch.Tensor | None] | str

_TODO = (
    "Only chains of linear layers and ReLU are decided; other activations have other symmetries."
)
_SILENT = {
    "aten.view.default", "aten.reshape.default", "aten.flatten.using_ints", "aten.clone.default",
    "aten.detach.default", "aten.contiguous.default", "aten._unsafe_view.default",
    "aten.alias.default",
}  # fmt: skip


def network_of_module(module: Any, name: str = "network") -> Network:
    """The ReLU network that a module (or an exported program) computes.

    Raises `ReLUError` with the module's or node's name for any other activation or operator.
    """
    if isinstance(module, torch.nn.Sequential) and _is_plain(module):
        steps = list(_sequential_steps(module, name))
    elif isinstance(module, torch.nn.Linear):
        steps = [_linear_step(module)]
    elif isinstance(module, torch.nn.Module):
        steps = _exported_steps(_export(module, name), name)
    else:
        steps = _exported_steps(module, name)
    return network_of_steps(steps, name)


def _is_plain(module: torch.nn.Sequential) -> bool:
    return type(module).forward is torch.nn.Sequential.forward


def _linear_step(module: torch.nn.Linear) -> Step:
    bias = None if module.bias is None else module.bias.detach()
    return (module.weight.detach(), bias)


def _sequential_steps(module: torch.nn.Sequential, where: str):
    for label, child in module.named_children():
        place = f"{where}[{label}]"
        if isinstance(child, torch.nn.Sequential) and _is_plain(child):
            yield from _sequential_steps(child, place)
        elif isinstance(child, torch.nn.Linear):
            yield _linear_step(child)
        elif isinstance(child, torch.nn.ReLU):
            yield RELU
        elif isinstance(child, (torch.nn.Identity, torch.nn.Flatten)):
            continue
        elif isinstance(child, torch.nn.Dropout) and (child.p == 0 or not child.training):
            continue
        elif isinstance(child, torch.nn.Dropout):
            raise ReLUError(
                "Dropout in training mode",
                "a deterministic network",
                place,
                "Call .eval() first.",
            )
        else:
            raise ReLUError(f"the module {type(child).__name__}", "Linear or ReLU", place, _TODO)


def _export(module: torch.nn.Module, name: str) -> Any:
    first = next((p for p in module.parameters() if p.ndim == 2), None)
    if first is None:
        raise ReLUError(
            f"the module {type(module).__name__} without a weight matrix",
            "a chain of linear layers and ReLU",
            name,
            _TODO,
        )
    example = torch.zeros(2, first.shape[1], dtype=first.dtype)
    was_training = module.training
    module.eval()
    try:
        return torch.export.export(module, (example,))
    except Exception as error:
        raise ReLUError(
            f"the module {type(module).__name__}, which torch.export cannot trace "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})",
            "a chain of linear layers and ReLU",
            name,
            "Pass an nn.Sequential or the list of (W, b) pairs.",
        ) from error
    finally:
        module.train(was_training)


def _exported_steps(program: Any, name: str) -> list[Step]:
    signature = program.graph_signature
    lifted = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {**program.state_dict, **getattr(program, "constants", {})}
    tensors: dict[str, torch.Tensor] = {
        node: constants[target] for node, target in lifted.items() if target in constants
    }
    current: str | None = None
    steps: list[Step] = []

    def refuse(node: Any, came: str) -> ReLUError:
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        line = f" ({trace[-2].strip()})" if len(trace) >= 2 else ""
        return ReLUError(
            came, "linear and ReLU operators", f"{name}, node {node.name!r}{line}", _TODO
        )

    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name not in tensors:
                if current is not None:
                    raise refuse(node, "a second input")
                current = node.name
            continue
        if node.op == "output":
            returned = node.args[0]
            if len(returned) != 1 or returned[0].name != current:
                raise refuse(node, "a network with several outputs or branches")
            continue
        target = str(node.target)
        arguments = [getattr(a, "name", a) for a in node.args]
        if target == "aten.linear.default" and arguments[0] == current:
            bias = tensors[arguments[2]] if len(arguments) > 2 and arguments[2] else None
            steps.append((tensors[arguments[1]].detach(), bias))
        elif target in ("aten.t.default", "aten.permute.default", "aten.transpose.int") and (
            arguments[0] in tensors
        ):
            tensors[node.name] = tensors[arguments[0]].t()
            continue
        elif target == "aten.addmm.default" and arguments[1] == current and len(node.kwargs) == 0:
            steps.append((tensors[arguments[2]].t().detach(), tensors[arguments[0]].detach()))
        elif (
            target in ("aten.mm.default", "aten.matmul.default")
            and arguments[0] == current
            and (arguments[1] in tensors)
        ):
            steps.append((tensors[arguments[1]].t().detach(), None))
        elif target in ("aten.relu.default", "aten.relu_.default") and arguments[0] == current:
            steps.append(RELU)
        elif target == "aten.dropout.default" and arguments[0] == current and not arguments[2]:
            pass
        elif target in _SILENT and arguments[0] == current:
            pass
        else:
            raise refuse(node, f"the operator {target}")
        current = node.name
    return steps


def network_of_steps(steps: list[Step], name: str) -> Network:
    """Layers from a chain of affine maps and ReLUs; two affine maps in a row are composed."""
    weights = [step[0] for step in steps if not isinstance(step, str)]
    if not weights:
        raise ReLUError("no linear layer", "at least one", name, "Pass a network with weights.")
    value = Piecewise.inputs((weights[0].shape[1],))
    for step in steps:
        value = value.relu() if isinstance(step, str) else value.linear(*step)
    return value.network(name)
