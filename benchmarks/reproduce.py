"""Every number that docs/mathematics.md and docs/findings.md quote: `make reproduce`.

python benchmarks/reproduce.py [table squares seeds epsilon padding upcast low_rank unexplained]
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paramsym import audit, find_symmetry, verify
from paramsym.recording.precision import converted, lifted
from paramsym.structure.orbit import orbit_dimension
from tests.tracing.networks import TABLE, build, randomise
from tests.tracing.zoo import _GROUPED as GROUPED
from tests.tracing.zoo import _causal as causal
from tests.tracing.zoo import build as zoo

WIDE = torch.float64
console = Console(width=120)


def _print(title: str, columns: list[str], rows: list[list]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{x:.2g}" if isinstance(x, float) else str(x) for x in row))
    console.print(table)


def _row(name: str):
    return next(row for row in TABLE if row.name == name)


def table() -> None:
    """The measured totals."""
    rows = []
    for row in TABLE:
        model, inputs = build(row)
        symmetry = find_symmetry(model, inputs, outputs=row.outputs)
        found = audit(model, inputs, symmetry=symmetry, outputs=row.outputs)
        orbit = orbit_dimension(symmetry, model.state_dict())
        rows.append(
            [
                row.name,
                found.parameters,
                found.nullity,
                orbit,
                found.unexplained,
                found.dead,
                str(found.gap),
            ]
        )
    _print(
        "Nullity and orbit dimension",
        ["network", "parameters", "nullity", "orbit", "unexplained", "dead", "gap"],
        rows,
    )


def squares() -> None:
    """(a) k quadratic forms in n variables, written with m squares each."""
    generator = torch.Generator().manual_seed(0)
    n, k, rows = 4, 3, []
    for m in range(1, 9):
        jacobian = _form_jacobian(*_weights(m, n, k, generator))
        values = torch.linalg.svdvals(jacobian)
        rank = int((values > 1e-9 * values[0]).sum())
        count = m * (n + k)
        rows.append(
            [m, count, rank, count - rank, m, count - rank - m, float(values[rank - 1] / values[0])]
        )
    _print(
        "Two layers with squares, 4 inputs and 3 outputs",
        ["width", "parameters", "rank", "nullity", "scalings", "rest", "smallest value kept"],
        rows,
    )
    # Affine vector fields θ ↦ Aθ + a with dF(Aθ + a) = 0 for all θ, at width 6.
    equations = []
    for _ in range(66):
        w, v = _weights(6, n, k, generator)
        point = torch.cat([w.reshape(-1), v.reshape(-1), torch.ones(1, dtype=WIDE)])
        jacobian = _form_jacobian(w, v)
        equations.append(torch.einsum("ip,q->ipq", jacobian, point).reshape(len(jacobian), -1))
    values = torch.linalg.svdvals(torch.cat(equations)).flip(0)
    zero = int((values < 1e-9 * values[-1]).sum())
    console.print(
        f"affine vector fields that never change the function: {zero} of {len(values)} "
        f"(singular values {values[zero - 1] / values[-1]:.0e} and {values[zero] / values[-1]:.0e})"
    )


def _weights(m: int, n: int, k: int, generator: torch.Generator):
    draw = {"generator": generator, "dtype": WIDE}
    return torch.randn(m, n, **draw), torch.randn(k, m, **draw)


def _form_jacobian(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The derivative of the coefficients of x ↦ V (W x)² by W and V."""
    upper = torch.triu_indices(w.shape[1], w.shape[1])

    def forms(w, v):
        return torch.einsum("km,mi,mj->kij", v, w, w)[:, upper[0], upper[1]].reshape(-1)

    parts = torch.func.jacrev(forms, (0, 1))(w, v)
    return torch.cat([part.reshape(part.shape[0], -1) for part in parts], dim=1)


def seeds() -> None:
    """(b) A small CNN: 200 normal inputs, against the audit."""
    rows = []
    for seed in range(6):
        torch.manual_seed(seed)
        model, inputs = _row("CNN flatten").build()
        randomise(model, seed)
        found = audit(model, inputs)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(200, 1, 6, 6, generator=generator, dtype=WIDE)
        plain, dead = _nullity(model, x)
        with torch.no_grad():
            wide = model.double()
            opened = [f"{share:.1%}" for share in (wide[:5](x) > 0).double().mean(0).tolist()]
        rows.append(
            [seed, plain, dead, found.nullity, found.explained, found.undeclared, " ".join(opened)]
        )
    _print(
        "conv 1→3 – ReLU – max pool – flatten – linear 12→5 – ReLU – linear 5→2",
        [
            "seed",
            "on 200 inputs",
            "dead",
            "audit",
            "explained",
            "dead at θ",
            "units open on the 200",
        ],
        rows,
    )


def _nullity(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    state = converted(model, WIDE)

    def one(state, x):
        return torch.func.functional_call(model, state, (x[None],))[0]

    parts = torch.func.vmap(torch.func.jacrev(one), (None, 0))(state, x)
    jacobian = torch.cat([p.reshape(2 * len(x), -1) for p in parts.values()], dim=1)
    norms = jacobian.norm(dim=0)
    dead = int((norms < 1e-12 * norms.max()).sum())
    values = torch.linalg.svdvals(jacobian / norms.clamp_min(1e-300))
    return jacobian.shape[1] - int((values > 1e-9 * values[0]).sum()), dead


def epsilon() -> None:
    """(c) Scales that pass a norm with a tiny ε."""
    rows = []
    for name in ("BERT", "ViT"):
        row = _row(name)
        model, inputs = build(row)
        symmetry = find_symmetry(model, inputs, outputs=row.outputs)
        proof = verify(model, symmetry, inputs, outputs=row.outputs)
        inexact = [r for r in proof.rows if not r.exact]
        rows.append(
            [
                name,
                row.nullity,
                len(inexact),
                row.nullity - len(inexact),
                max(r.error for r in inexact),
                proof.error,
            ]
        )
    _print(
        "Layer norms with ε = 1e-12",
        ["network", "nullity", "inexact", "exact", "error inexact", "error exact"],
        rows,
    )


def padding() -> None:
    """(d) The padding row of an embedding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Tanh(), nn.Linear(3, 2)).double()
    tokens = torch.tensor([[0, 1, 4]])
    nn.init.normal_(model[0].weight)
    before = model(tokens)
    before.sum().backward()
    reported = float(model[0].weight.grad[1].abs().max())
    with torch.no_grad():
        model[0].weight[1] += 1e-6
    change = float((model(tokens) - before).abs().max()) / 1e-6
    found = audit(model, (tokens,))
    console.print(
        f"padding row: autograd says {reported:g}, a finite difference says {change:.2f}; "
        f"the audit finds {found.dead} dead parameters"
    )


def upcast() -> None:
    """(e) float32 inside a float64 model."""
    row = _row("Llama grouped untied")
    model, _ = build(row)
    state = converted(model, WIDE)
    names = [name for name, _ in model.named_parameters()]
    tokens = torch.randint(0, 11, (100, 5), generator=torch.Generator().manual_seed(0))
    rows = []
    for lift in (True, False):
        parts = []
        with lifted() if lift else contextlib.nullcontext():
            leaves = [state[n].clone().requires_grad_() for n in names]
            whole = {**state, **dict(zip(names, leaves, strict=True))}
            for k in range(0, len(tokens), 4):
                inputs = {"input_ids": tokens[k : k + 4]}
                out = torch.func.functional_call(model, whole, (), inputs).logits.reshape(-1)
                generator = torch.Generator().manual_seed(k)
                mix = torch.randn(80, len(out), dtype=out.dtype, generator=generator)
                grads = torch.autograd.grad(out, leaves, mix, is_grads_batched=True)
                parts.append(torch.cat([g.reshape(80, -1) for g in grads], 1).double())
        jacobian = torch.cat(parts)
        values = torch.linalg.svdvals(jacobian / jacobian.norm(dim=0))
        values = values / values[0]
        counts = [int((values < t).sum()) for t in (1e-5, 1e-7, 1e-9, 1e-11)]
        rows.append(["lifted to float64" if lift else "as written", *counts])
    _print(
        "Singular values of the Jacobian of a small Llama below …",
        ["upcasts", "1e-5", "1e-7", "1e-9", "1e-11"],
        rows,
    )


class _Written(nn.Module):
    """A function of an input and of parameters of given shapes."""

    def __init__(self, function: Callable[..., torch.Tensor], shapes: dict[str, tuple[int, ...]]):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=WIDE)))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


def low_rank() -> None:
    """(f) Streams that span fewer dimensions than they are wide."""
    rows = []
    for vocabulary in (11, 16, 17):
        model, inputs = causal("Llama", **{**GROUPED, "vocab_size": vocabulary})()
        model = randomise(model.double())
        symmetry = find_symmetry(model, inputs)
        found = audit(model, inputs, symmetry=symmetry)
        orbit = orbit_dimension(symmetry, model.state_dict())
        error = verify(model, symmetry, inputs).error
        rows.append([vocabulary, found.nullity, orbit, found.unexplained, error])
    columns = ["vocabulary", "nullity", "orbit", "unexplained", "error"]
    _print("A Llama of width 16", columns, rows)
    model, inputs = zoo("MLP, radial")
    found = audit(model, inputs)
    console.print(f"radial 5-7-6-3: nullity {found.nullity}, explained {found.explained}")


def _skipped(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.a.T
    return torch.tanh((h + h @ m.w.T) @ m.u.T)


def _both_heads(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.a.T
    return torch.cat([torch.tanh(h @ m.u.T), torch.tanh(h.mean(-1, keepdim=True))], -1)


UNEXPLAINED: dict[str, tuple[Callable, dict[str, tuple[int, ...]], list[tuple[int, ...]]]] = {
    "linear skip around a linear map": (
        _skipped,
        {"a": (5, 4), "w": (5, 5), "u": (7, 5)},
        [(9, 4)],
    ),
    "two adapters, BA + DC": (
        lambda m, x: torch.tanh(x @ (m.b @ m.a + m.d @ m.c).T) @ m.u.T,
        {"b": (6, 2), "a": (2, 7), "d": (6, 2), "c": (2, 7), "u": (3, 6)},
        [(9, 7)],
    ),
    "two biases, two readers": (
        lambda m, x, y: torch.tanh((x + m.b) @ m.f + (y + m.c) @ m.g) @ m.u.T,
        {"b": (4,), "c": (3,), "f": (4, 5), "g": (3, 5), "u": (7, 5)},
        [(9, 4), (9, 3)],
    ),
    "a mean alone": (_both_heads, {"a": (4, 6), "u": (5, 4)}, [(9, 6)]),
    "mean after a token mixer": (
        lambda m, x: torch.tanh((m.t @ x).mean(1) @ m.u.T),
        {"t": (5, 7), "u": (3, 4)},
        [(9, 7, 4)],
    ),
    "(p + q)² - (p - q)²": (
        lambda m, x: torch.tanh(
            ((x @ m.a.T + x @ m.b.T) ** 2 - (x @ m.a.T - x @ m.b.T) ** 2) @ m.u.T
        ),
        {"a": (4, 4), "b": (4, 4), "u": (7, 4)},
        [(9, 4)],
    ),
    "b + c²": (
        lambda m, x: torch.relu(x @ m.a.T + m.b + m.c * m.c) @ m.u.T,
        {"a": (5, 4), "b": (5,), "c": (5,), "u": (3, 5)},
        [(9, 4)],
    ),
}


def unexplained() -> None:
    """(g) Small networks of which not every direction is found."""
    rows = []
    for name, (function, shapes, sizes) in UNEXPLAINED.items():
        torch.manual_seed(0)
        model = _Written(function, shapes)
        inputs = tuple(torch.randn(size, dtype=WIDE) for size in sizes)
        symmetry = find_symmetry(model, inputs)
        found = audit(model, inputs, symmetry=symmetry)
        error = verify(model, symmetry, inputs).error
        rows.append(
            [name, found.parameters, found.nullity, found.explained, found.unexplained, error]
        )
    columns = ["network", "parameters", "nullity", "explained", "unexplained", "error"]
    _print("What stays unexplained", columns, rows)


PARTS = {
    f.__name__: f for f in (table, squares, seeds, epsilon, padding, upcast, low_rank, unexplained)
}


def main() -> None:
    """The parts that are named, or all."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
