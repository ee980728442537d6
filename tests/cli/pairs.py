"""Weights of one network, moved along its symmetry and disturbed."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from paramsym import act, find_symmetry

WIDE = "tests.models:Wide"
SMALL = "tests.models:Small"


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def moved(model: Any, seed: int = 3, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """A random equivalent of a model, with noise relative to each tensor's standard deviation."""
    model.eval()
    symmetry = find_symmetry(model, model.example_inputs())
    generator = torch.Generator().manual_seed(seed)
    state = act(symmetry, symmetry.sample(generator), state_of(model))
    for name, _ in model.named_parameters():
        draw = torch.randn(state[name].shape, generator=generator)
        state[name] = state[name] + noise * state[name].std() * draw
    return state


def write(path: Path, state: dict[str, torch.Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


def outputs(model: Any, state: dict[str, torch.Tensor]) -> torch.Tensor:
    x = model.example_inputs()
    with torch.no_grad():
        return torch.func.functional_call(model.eval(), state, x)


def four(text: str) -> list[str]:
    """The heads of the last three lines of an error."""
    return [line.strip().split("  ")[0] for line in text.strip().splitlines()][-3:]
