"""Complex parameters are compared as well: a run that parts there must not be called retraced."""

import pytest
import torch
from torch import nn

from paramsym import find_symmetry
from paramsym.privacy import Key, retrace


class Complex(nn.Module):
    """Absolute values of a product of complex matrices, without any real parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 6, dtype=torch.complex128))
        self.last = nn.Parameter(torch.randn(4, 8, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.last @ (self.first @ x.T.to(torch.complex128))).abs().T


STEPS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
}


@pytest.mark.parametrize("made", STEPS)
@pytest.mark.parametrize("trained", STEPS)
def test_a_key_retraces_the_training_it_was_made_for(made, trained):
    torch.manual_seed(0)
    model = Complex().train()
    x, labels = torch.randn(16, 6, dtype=torch.float64), torch.randint(0, 4, (16,))
    symmetry = find_symmetry(model, (x,), training=True)
    optimizer = STEPS[made](model.parameters())
    key = Key.generate(symmetry, torch.Generator().manual_seed(1), optimizer, "cross-entropy")
    found = retrace(model, (x, labels), key, STEPS[trained], 10, loss=nn.CrossEntropyLoss())
    assert {*found.differences} == {"first", "last"} and found.travelled > 0.01
    if (made, trained) == ("sgd", "adam"):
        assert found.largest > 0.01
    else:
        assert found.largest < 1e-12
