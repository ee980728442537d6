"""An operator that nobody knows: each block of its inputs is shown once, and not every choice."""

from __future__ import annotations

import torch
from torch import nn

from paramsym.lowering.lower import lower
from paramsym.primitives import Opaque
from paramsym.primitives.blocks import Layout, tensor_blocks
from paramsym.recording.record import record
from paramsym.tracing.circuit import Circuit


class Rows(nn.Module):
    """Two parameters whose rows are told apart, as one operator without a rule reads them whole."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(5, 4, 4)), nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in self.w:
            x = torch.tanh(x @ row)
        for row in self.v:
            x = x + torch.tanh(row)
        return torch.func.vmap(lambda w: torch.tanh(w @ self.v.T))(self.w).sum() * x


def test_an_unknown_operator_has_joints_for_its_blocks_and_not_for_their_choices() -> None:
    build = lower(record(Rows(), (torch.randn(3, 4),)))
    joints = [joint for joint in Circuit(build, Layout()).joints if isinstance(joint.op, Opaque)]
    met = {block.key for joint in joints for block in joint.inputs}
    read = [build.tensor(build.graph.parameters[name]) for name in ("w", "v")]
    blocks = [{block.key for block in tensor_blocks(tensor, Layout())} for tensor in read]
    assert [*map(len, blocks)] == [5, 6]
    assert blocks[0] | blocks[1] <= met
    assert len(joints) <= len(met)
