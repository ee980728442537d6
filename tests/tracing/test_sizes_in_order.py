"""Scales of wholes are told apart one after the other: what led one may be gone behind another."""

import torch
from torch import Tensor, nn

from paramsym import verify
from paramsym.primitives import defects
from paramsym.recording.record import record
from paramsym.tracing.infer import infer

READ = (32, 16, 16, 16)  # entries that each product reads


class Written(nn.Module):
    """A parameter that is read in four ways, one of them after a number was written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.number = nn.Parameter(torch.randn(4, 2, 4)), nn.Parameter(torch.randn(()))
        self.enter = nn.ParameterList(nn.Parameter(torch.randn(4, n)) for n in READ)
        self.leave = nn.ParameterList(nn.Parameter(torch.randn(n, 3)) for n in READ)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.whole * 1
        part = whole[:, 0::2]
        whole[:1, :, 2:3].mul_(self.number)
        gains = whole, part, part.transpose(1, 0), part
        made = [x @ w * g.reshape(-1) for w, g in zip(self.enter, gains, strict=True)]
        made[1] = made[1].tanh()
        return torch.stack([h @ w for h, w in zip(made, self.leave, strict=True)]).sum(0)


def test_the_order_of_what_was_found_first_decides(monkeypatch) -> None:
    monkeypatch.setattr(defects, "raising", True)
    torch.manual_seed(0)
    model, x = Written().double(), (torch.randn(2, 4, dtype=torch.float64),)
    found = [infer(record(model, x)) for _ in range(12)]  # with other numbers for what is met
    assert len({tuple(shift.name for shift in each.shifts) for each in found}) == 1
    assert verify(model, found[0], x, limit=100).error < 1e-9
