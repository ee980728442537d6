"""Which weights a file belongs to: random projections, equal up to rounding and for nothing else.

Each tensor W is cut into eight interleaved parts w₁ … w₈, and projected on one Gaussian vector r
that its name seeds. The sketch are the eight numbers

    Σ √8 ⟨w_k, r⟩ / ‖W‖ / √N    over N tensors,

each about normal for unrelated weights, and alike for the same ones (Johnson and Lindenstrauss,
"Extensions of Lipschitz mappings into a Hilbert space", 1984). Weights that moved along their
symmetry have another sketch. It says nothing of the element that moved them.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import torch

_PARTS = 8
# Rounding to bfloat16 changes a number by some 0.002; one moved tensor of hundreds by some 0.1.
_ALIKE = 0.02

Sketch = tuple[float, ...]


def sketch_of(state: Mapping[str, torch.Tensor]) -> Sketch:
    """The sketch of weights by name; integers and booleans are left out."""
    total, count = torch.zeros(_PARTS, dtype=torch.float64), 0
    for name in sorted(state):
        tensor = state[name]
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        seed = int.from_bytes(sha256(name.encode()).digest()[:7], "big")
        flat = tensor.detach().cpu().float().reshape(-1)
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % _PARTS)).view(-1, _PARTS)
        r = torch.randn(len(parts), generator=torch.Generator().manual_seed(seed))
        size = float(flat.norm()) or 1.0
        total += (r @ parts).double() * (_PARTS**0.5 / size)
        count += 1
    return tuple((total / max(1, count) ** 0.5).tolist())


def are_alike(a: Sketch, b: Sketch) -> bool:
    """Whether two sketches may be those of the same weights, up to rounding."""
    return len(a) == len(b) and all(abs(x - y) <= _ALIKE for x, y in zip(a, b, strict=True))


def written(sketch: Sketch) -> str:
    """A sketch as text, four digits after the point, which is enough to compare it."""
    return " ".join(f"{x:.4f}" for x in sketch)


def parsed(text: str) -> Sketch | None:
    """The sketch that was written so; None where the text is none."""
    try:
        return tuple(float(part) for part in text.split())
    except ValueError:
        return None
