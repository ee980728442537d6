# ruff: noqa: E501
"""Weights of random tensor programs: readings of parameters, and what is computed from them."""

from __future__ import annotations

import math

from tests.tracing.program_drawing import Drawing, Misfit


def weight(g: Drawing, *shape: int, depth: int = 2) -> str:
    """An expression for a tensor of this shape that is computed from parameters only."""
    way = g.random.random()
    if way < g.wild / 2 and (found := _readings(g, shape)):
        return g.random.choice(found)
    if way < g.wild and depth:
        return _derived(g, shape, depth - 1)
    try:
        return g.parameter(*shape)
    except Misfit:
        found = _readings(g, shape)
        if not found:
            raise
        return g.random.choice(found)


def _readings(g: Drawing, shape: tuple[int, ...]) -> list[str]:
    """Ways to read something that is there as a weight of this shape."""
    return [
        form
        for name in g.of_kind("weight")
        for way in (as_large, larger, stacked, _halved)
        for form in way(g, name, g.shape(name), shape)
    ]


def as_large(g: Drawing, name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    """All entries of a tensor, in place or rearranged."""
    found = []
    if own == shape:
        found += [name, name, f"{name}.flip(0)", f"{name}.roll(1, -1)", f"{name}.clone()"]
    elif math.prod(own) == math.prod(shape):
        found += [
            f"{name}.view({shape})",
            f"{name}.reshape({shape})",
            f"{name}.flatten().unflatten(0, {shape})",
        ]
        found += [f"{name}.T.reshape({shape})"] if len(own) == 2 else []
    if own[::-1] == shape and len(own) > 1:
        found += [f"{name}.permute({tuple(reversed(range(len(own))))})"] * 2
        found += [f"{name}.T", f"{name}.transpose(0, 1)"] if len(own) == 2 else []
    return found


def larger(g: Drawing, name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    """Some of the entries of a larger tensor."""
    found, count, total = [], math.prod(own), math.prod(shape)
    if count > total:
        found += [
            f"{name}.view(-1)[:{total}].view({shape})",
            f"{name}.reshape(-1)[{count - total}:].reshape({shape})",
        ]
    fits = len(own) == len(shape) and all(a >= b for a, b in zip(own, shape, strict=True))
    if fits and own != shape:
        found += _slices(g, name, own, shape)
    if own == shape * 2 and len(shape) == 1:
        found.append(f"{name}.diagonal()")
    return found


def stacked(g: Drawing, name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    """One of several slices, or several copies of a smaller tensor."""
    found = []
    if own[1:] == shape:
        k = g.random.randrange(own[0])
        found += [
            f"{name}[{k}]",
            f"{name}.select(0, {k})",
            f"{name}.unbind(0)[{k}]",
            f"{name}.sum(0)",
            f"{name}.mean(0)",
        ]
    if own[:1] + own[2:] == shape and len(own) > 1:
        k = g.random.randrange(own[1])
        found += [f"{name}[:, {k}]", f"{name}.unbind(1)[{k}]"]
    if own == shape[1:]:
        found += [
            f"{name}.expand{shape}",
            f"{name}.repeat({', '.join(map(str, (shape[0], *[1] * len(own))))})",
        ]
    return found


def _halved(g: Drawing, name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    """Half of a tensor along the first axis, or twice its rows."""
    if own[1:] != shape[1:]:
        return []
    if own[0] == 2 * shape[0]:
        k = g.random.randrange(2)
        return [f"{name}.chunk(2)[{k}]", f"{name}.split({shape[0]})[{k}]", f"{name}[{k}::2]"]
    if shape[0] == 2 * own[0]:
        return [
            f"{name}.repeat_interleave(2, 0)",
            f"torch.cat([{name}, {name}])",
            f"torch.cat([{name}, -{name}])",
        ]
    return []


def _slices(g: Drawing, name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> list[str]:
    parts = []
    for a, b in zip(own, shape, strict=True):
        start = g.random.randint(0, a - b)
        stepped = [f"{k}::{s}" for s in (2, 3) for k in range(s) if len(range(k, a, s)) == b]
        plain = ":" if a == b else f"{start}:{start + b}"
        parts.append(g.choose(plain, *stepped) if a != b else plain)
    at = next(k for k, (a, b) in enumerate(zip(own, shape, strict=True)) if a != b)
    found = [f"{name}[{', '.join(parts)}]"] * 2
    if sum(a != b for a, b in zip(own, shape, strict=True)) == 1:
        found.append(f"{name}.narrow({at}, 0, {shape[at]})")
    return found


def _derived(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    """A statement of its own that computes a weight from weights."""
    ways = [_entrywise, _entrywise, _combined, _combined, _written]
    ways += [_matrix] * 3 if len(shape) == 2 else [_vector] * 2 if len(shape) == 1 else []
    return g.random.choice(ways)(g, shape, depth)


def _entrywise(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    w = weight(g, *shape, depth=depth)
    forms = [
        f"{w} * {w}", f"F.softplus({w})", f"torch.exp({w})", f"{w}.abs()", f"{w}.softmax(-1)",
        f"{w}.softmax(0)", f"{w}.cumsum(0)", f"{w}.cumsum(-1)", f"2 * {w}", f"1 + {w}", f"-{w}",
        f"{w} / ({w}.norm() + 0.1)", f"{w} - {w}.mean(0)", f"torch.sigmoid({w})",
        f"torch.tanh({w})", f"{w} / ({w}.abs().sum(-1, keepdim=True) + 0.1)", f"{w}.square()",
        f"{w} - {w}.mean(-1, keepdim=True)", f"F.relu({w})", f"{w} / {w}.norm(dim=-1, keepdim=True)",
        f"F.normalize({w}, dim=0)", f"{w} * {w}.sum()", f"{w}.flip(-1) + {w}", f"{w}.clamp(min=0)",
    ]  # fmt: skip
    return g.emit(g.pick(forms), "weight")


def _combined(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    w = weight(g, *shape, depth=depth)
    way, axes = g.random.randrange(7), len(shape)
    if way == 0:
        return g.emit(f"{w} {g.choose('+', '-', '*')} {weight(g, *shape, depth=depth)}", "weight")
    if way == 1 and axes > 1:
        v = weight(g, shape[0], depth=depth)
        return g.emit(
            f"{w} {g.choose('+', '*')} {v}[:, {', '.join(['None'] * (axes - 1))}]", "weight"
        )
    if way == 2:
        v = weight(g, shape[-1], depth=depth)
        return g.emit(f"{w} {g.choose('+', '*', '+')} {v}", "weight")
    if way == 3 and shape[0] > 1:
        a = g.random.randint(1, shape[0] - 1)
        parts = [weight(g, n, *shape[1:], depth=depth) for n in (a, shape[0] - a)]
        return g.emit(f"torch.cat([{', '.join(parts)}])", "weight")
    if way == 4 and shape[0] > 1 and axes > 1:
        rows = [weight(g, *shape[1:], depth=depth) for _ in range(min(2, shape[0]))]
        listed = [g.random.choice(rows) for _ in range(shape[0])]
        return g.emit(f"torch.stack([{', '.join(listed)}])", "weight")
    if way == 5:
        return g.emit(f"{w}[{g.numbers(shape[0], shape[0])}]", "weight")
    m = g.mask(*shape)
    masks = [f"{w} * {m}", f"{w}.masked_fill({m}, 0.0)", f"{w}.tril()",
             lambda: f"torch.where({m}, {w}, {weight(g, *shape, depth=0)})"]  # fmt: skip
    return g.emit(g.pick(masks), "weight")


def _matrix(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    n, m = shape
    k = g.size()
    w = weight(g, n, m, depth=depth) if g.chance(0.6) else ""
    forms = [
        lambda: f"{weight(g, n, k, depth=depth)} @ {weight(g, k, m, depth=depth)}",
        lambda: f"({weight(g, n, k, depth=depth)} * {weight(g, k, depth=depth)}) @ {weight(g, k, m, depth=depth)}",
        lambda: f"torch.outer({weight(g, n, depth=depth)}, {weight(g, m, depth=depth)})",
        lambda: f"{weight(g, n, depth=depth)}[:, None] * {weight(g, m, depth=depth)}",
    ]  # fmt: skip
    if n == m:
        v = weight(g, n, k, depth=0)
        forms += [
            lambda: f"{v} @ {v}.T",
            lambda: f"torch.diag({weight(g, n, depth=0)})",
            lambda: f"torch.eye({n}, dtype=torch.float64)",
        ]
    for a in (2, 3):
        if n % a == 0 and m % 2 == 0:
            forms.append(
                lambda a=a: (
                    f"torch.kron({weight(g, a, 2, depth=0)}, {weight(g, n // a, m // 2, depth=0)})"
                )
            )
    code = g.pick(forms)
    return g.emit(f"{w} + {code}" if w else code, "weight")


def _vector(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    (n,) = shape
    k = g.size()
    forms = [
        lambda: f"{weight(g, k, n, depth=depth)}.{g.choose('sum(0)', 'mean(0)', 'norm(dim=0)', 'amax(0)')}",
        lambda: f"{weight(g, n, k, depth=depth)} @ {weight(g, k, depth=depth)}",
        lambda: f"{weight(g, n, n, depth=depth)}.diagonal()",
        lambda: f"{weight(g, n, k, depth=depth)}.{g.choose('sum(-1)', 'norm(dim=1)', 'logsumexp(1)')}",
    ]  # fmt: skip
    return g.emit(g.pick(forms), "weight")


def _written(g: Drawing, shape: tuple[int, ...], depth: int) -> str:
    """A clone of a weight that is written in place."""
    t = g.emit(f"{weight(g, *shape, depth=depth)}.clone()", "weight")
    write_into(g, t)
    return t


def write_into(g: Drawing, t: str) -> None:
    """Write into a value that belongs to the program alone, through a view of it as well."""
    own = g.shape(t)
    n, d = own[-1], g.axis(t)
    sizes = {"$v": n, "$a": own[d], "$m": own[-2] if len(own) > 1 else n}  # of the weights
    half = max(1, n // 2)
    forms = [
        f"{t}.mul_($v)", f"{t}.add_($v)", f"{t}.mul_(2)", f"{t}.relu_()", f"{t}.clamp_(min=0)", f"{t} += $v", f"{t} *= $v",
        f"{t}[..., 0] *= 3", f"{t}[..., 0] = 0", f"{t}[..., :{half}] *= 2", f"{t}[..., :{half}] += $v[:{half}]",
        f"{t}[..., ::2] = 1", f"{t}[..., -1] = {t}[..., 0]", f"{t}.select(-1, 0).add_($v[0])", f"{t}[..., ::2].mul_($v[::2])",
        f"{t}.transpose({d}, -1).mul_($a)", f"{t}.transpose({d}, -1).add_($a)", f"{t}.movedim({d}, -1).mul_($a)",
        f"{t}.view(-1, {n}).mul_($v)", f"{t}.view(-1).mul_(2)", f"{t}.view(-1)[::2].mul_(3)", f"{t}.copy_($v)",
        f"{t}.narrow(-1, 0, {half}).copy_($v[:{half}])", f"{t}.tanh_()", f"{t}.sub_($v)", f"{t}.fill_diagonal_(1.0)",
        f"{t}.unbind(-1)[0].mul_(2)", f"{t}.squeeze().mul_(2)", f"{t}.unsqueeze(0).mul_($v)", f"{t}.flip(-1).mul_($v)",
        f"{t}[:, -1] = 0.5", f"{t}[:1] *= 2", f"{t}[:1] = $v", f"{t}.masked_fill_({t} < 0, 0.0)", f"{t}.neg_()", f"{t}.div_(2)",
        f"{t}.chunk(2, -1)[0].mul_(2)", f"{t}.view(-1).narrow(0, 0, {n}).add_($v)", f"{t}.mT.mul_($m)",
    ]  # fmt: skip
    for _ in range(g.choose(1, 1, 2)):
        code = g.pick(forms)
        for mark, size in sizes.items():
            code = code.replace(mark, weight(g, size, depth=0)) if mark in code else code
        g.write(code)
