"""Random networks whose parameters are shared through views of other shapes.

One parameter is read as 6 × 3 here, as 3 × 6 there, transposed, or from its fifth entry on; hidden
layers are joined, cut, folded and transposed in between. Nothing else makes readings of one axis
contradict each other as often.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SharedViews(nn.Module):
    """The network of a seed; `text` lists its steps, `inputs` is what it is run on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.normal = torch.Generator().manual_seed(seed)
        self.steps: list[Callable[[Tensor], Tensor]] = []
        self.text: list[str] = []
        self.width = self.draw.choice([2, 3, 4])
        self.inputs = torch.randn(5, self.width, generator=self.normal, dtype=torch.float64)
        self.weights = nn.ParameterList()
        for _ in range(self.draw.randrange(2, 6)):
            getattr(self, self.draw.choice(_STEPS))()
        self.linear(3)

    def weight(self, *shape: int) -> Callable[[], Tensor]:
        """A new parameter, or a view of an earlier one with at least as many entries."""
        size = math.prod(shape)
        larger = [k for k, w in enumerate(self.weights) if w.numel() >= size]
        if larger and self.draw.random() < 0.65:
            k = self.draw.choice(larger)
            start = self.draw.randrange(self.weights[k].numel() - size + 1)
            turned = self.weights[k].ndim == 2 and self.draw.random() < 0.3
            self.text.append(f"  weights.{k}{'.T' if turned else ''} from {start} as {shape}")

            def view() -> Tensor:
                whole = self.weights[k].T if turned else self.weights[k]
                return whole.reshape(-1)[start : start + size].reshape(shape)

            return view
        made = torch.randn(shape, generator=self.normal, dtype=torch.float64)
        self.weights.append(nn.Parameter(made))
        k = len(self.weights) - 1
        self.text.append(f"  weights.{k} new {shape}")
        return lambda: self.weights[k]

    def add(self, text: str, step: Callable[[Tensor], Tensor]) -> None:
        self.text.append(text)
        self.steps.append(step)

    def linear(self, out: int = 0) -> None:
        out = out or self.draw.choice([4, 6, 8, 12])
        w = self.weight(out, self.width)
        self.add(f"linear {out}", lambda h: F.linear(h, w()))
        self.width = out

    def activation(self) -> None:
        f = self.draw.choice([torch.relu, torch.tanh, torch.abs, F.silu])
        self.add(f.__name__, f)

    def join(self) -> None:
        out = self.draw.choice([2, 3, 4])
        w = self.weight(out, self.width)
        self.add(f"join {out}", lambda h: torch.cat([h, F.linear(h, w())], -1))
        self.width += out

    def cut(self) -> None:
        at = self.draw.randrange(1, self.width)
        self.add(f"cut at {at}", lambda h: torch.cat([h[:, :at].relu(), h[:, at:]], -1))

    def fold(self) -> None:
        n, width = self._divisor(), self.width

        def turn(h: Tensor) -> Tensor:
            return h.view(-1, n, width // n).transpose(1, 2).reshape(-1, width)

        self.add(f"transpose {n}", turn)

    def gain(self) -> None:
        w = self.weight(self.width)
        self.add("gain", lambda h: h * w())

    def heads(self) -> None:
        n, width, out = self._divisor(), self.width, self.draw.choice([2, 3])
        w = self.weight(out, width // n)

        def each(h: Tensor) -> Tensor:
            return F.linear(h.view(-1, n, width // n), w()).reshape(-1, n * out)

        self.add(f"{n} heads", each)
        self.width = n * out

    def _divisor(self) -> int:
        return self.draw.choice([d for d in range(1, self.width + 1) if self.width % d == 0])

    def forward(self, h: Tensor) -> Tensor:
        for step in self.steps:
            h = step(h)
        return h


_STEPS = ("linear", "linear", "linear", "activation", "join", "cut", "fold", "gain", "heads")
