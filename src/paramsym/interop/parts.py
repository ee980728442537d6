"""Linear layers as tools see them: most are modules, and experts are slices of one tensor.

transformers keeps the experts of a mixture in tensors (expert, rows, columns); llm-compressor takes
them apart into linear layers `experts.0.gate_proj` … before it does anything, and recipes name
these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from paramsym.recording.experts import is_stack, stacked_weights
from paramsym.structure.symmetry import ParameterSymmetry

NONE = -1
BY_COLUMNS = "Conv1D"  # of transformers: a linear layer whose weight is stored input by output


@dataclass(frozen=True)
class Part:
    """A parameter, or the rows of one expert of it.

    Sides count as in `nn.Linear`: 0 for rows, 1 for columns; of an expert 2 is the expert itself.
    """

    parameter: str
    expert: int = NONE
    rows: tuple[int | None, int | None, int | None] = (None, None, None)
    transposed: bool = False

    def axis(self, side: int) -> int:
        """The axis of the parameter that a side stands on."""
        if self.expert == NONE:
            return side
        return 0 if side == 2 else 2 - side if self.transposed else 1 + side

    def of(self, tensor: Tensor) -> Tensor:
        """The part of the parameter's tensor: a view, of shape (rows, columns) or (rows,)."""
        if self.expert == NONE:
            return tensor
        own = tensor[self.expert]
        return (own.T if self.transposed else own)[slice(*self.rows)]


@dataclass(frozen=True)
class Layer:
    """A module with a weight: the parts that are its weight and its bias, and the class of it."""

    weight: Part
    bias: Part | None
    kind: str
    is_table: bool = False


def layers_of(model: nn.Module, symmetry: ParameterSymmetry) -> dict[str, Layer]:
    """Every module with a weight, by name; the names of parameters are those of the signature."""
    found: dict[str, Layer] = {}
    for name, module in model.named_modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(weight, Tensor):
            parts = [
                Part(symmetry.ties.get(f"{name}.{leaf}", f"{name}.{leaf}"))
                for leaf in ("weight", "bias")
            ]
            found[name] = Layer(
                parts[0], parts[1] if isinstance(bias, Tensor) else None, type(module).__name__,
                isinstance(module, nn.Embedding),
            )  # fmt: skip
        found.update(_experts(name, module))
    return found


def module_names(model: nn.Module) -> tuple[str, ...]:
    """The names of all modules in order, experts taken apart."""
    found: dict[str, None] = {}
    for name, module in model.named_modules():
        found[name] = None
        for layer, _ in _experts(name, module):
            found[layer.rpartition(".")[0]] = found[layer] = None
    return tuple(found)


def _experts(name: str, module: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The layers of each expert of a module that holds them in tensors, as transformers says so."""
    if not is_stack(module):
        return
    first, down = stacked_weights(module)
    transposed = bool(module.is_transposed)
    for expert in range(len(down)):
        for layer, leaf, rows in _pieces(module, first.shape[2 if transposed else 1]):
            weight = Part(f"{name}.{leaf}", expert, rows, transposed)
            bias = Part(f"{name}.{leaf}_bias", expert, rows) if module.has_bias else None
            yield f"{name}.{expert}.{layer}", Layer(weight, bias, "Linear")


def _pieces(
    module: nn.Module, rows: int
) -> Iterator[tuple[str, str, tuple[int | None, int | None, int | None]]]:
    """(layer, name of the tensor, rows of it) of one expert."""
    whole = (None, None, None)
    if not module.has_gate:
        yield "up_proj", "up_proj", whole
    elif module.is_concatenated:
        yield "up_proj", "gate_up_proj", (rows // 2, None, None)
        yield "gate_proj", "gate_up_proj", (None, rows // 2, None)
    else:
        yield "up_proj", "gate_up_proj", (1, None, 2)
        yield "gate_proj", "gate_up_proj", (0, None, 2)
    yield "down_proj", "down_proj", whole
