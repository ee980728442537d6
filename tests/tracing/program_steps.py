# ruff: noqa: E501
"""The grammar of random tensor programs: what is done to data."""

from __future__ import annotations

import math

from tests.tracing.program_drawing import Drawing, Misfit, step
from tests.tracing.program_weights import as_large, larger, stacked, weight, write_into

# -- linear maps, biases, gains ------------------------------------------------------------------


def _linear(g: Drawing, h: str, out: int) -> str:
    """A contraction of the last axis in one of many spellings."""
    n = g.shape(h)[-1]
    if g.chance(0.5):
        w = weight(g, out, n)
        bias = f", {weight(g, out)}" if g.chance(0.5) else ""
        forms = [f"F.linear({h}, {w}{bias})", f"{h} @ {w}.T", f"torch.einsum('...i,oi->...o', {h}, {w})",
                 f"({w} @ {h}.unsqueeze(-1)).squeeze(-1)", f"F.linear({h}, {w}{bias})"]  # fmt: skip
    else:
        w = weight(g, n, out)
        forms = [f"{h} @ {w}", f"torch.matmul({h}, {w})", f"torch.einsum('...i,io->...o', {h}, {w})",
                 f"({h}.unsqueeze(-1) * {w}).sum(-2)", f"torch.tensordot({h}, {w}, dims=1)",
                 lambda: f"{h} @ {w} + {weight(g, out)}", f"{h} @ {w}"]  # fmt: skip
    return g.emit(g.pick(forms))


@step(20)
def linear(g: Drawing) -> None:
    _linear(g, g.data(), g.size())


@step(30)
def dense(g: Drawing) -> None:
    """A linear map, an activation and often a reader."""
    h = _linear(g, g.data(), g.choose(2, 3, 4, 5, 6))
    _activate(g, h, common=0.7)
    if g.chance(0.5):
        _linear(g, g.data(), g.size())


def hidden(g: Drawing) -> None:
    """How most programs begin: units that something later reads."""
    h = g.data()
    w = g.parameter(g.shape(h)[-1], g.choose(2, 3, 4, 5, 6))
    h = g.emit(f"{h} @ {w}" + (f" + {weight(g, g.shape(w)[1])}" if g.chance(0.4) else ""))
    if g.chance(0.7):
        _activate(g, h, common=0.7)


def reader(g: Drawing) -> None:
    """How most programs end: a weight of its own reads what there is."""
    h = g.data()
    g.allowed += 1
    w = g.parameter(g.shape(h)[-1], g.choose(1, 2, 3, 4))
    g.emit(f"{h} @ {w}")


@step(9)
def chain(g: Drawing) -> None:
    h, k, m = g.data(), g.size(), g.size()
    u, v = weight(g, g.shape(h)[-1], k), weight(g, k, m)
    g.emit(
        g.choose(
            f"{h} @ {u} @ {v}",
            f"{h} @ ({u} @ {v})",
            f"torch.einsum('...i,ij,jk->...k', {h}, {u}, {v})",
        )
    )


@step(5)
def other_axis(g: Drawing) -> None:
    """A linear map along an axis that is not the last."""
    h = g.data(3, 4)
    own = g.shape(h)
    axis = g.random.randrange(1, len(own) - 1)
    out = g.size()
    w = weight(g, own[axis], out)
    letters = "bcde"[: len(own)]
    result = letters.replace(letters[axis], "z")
    forms = [f"torch.einsum('{letters},{letters[axis]}z->{result}', {h}, {w})",
             f"({h}.transpose({axis}, -1) @ {w}).transpose({axis}, -1)"]  # fmt: skip
    if axis == len(own) - 2:
        forms += [f"{w}.T @ {h}", f"({h}.mT @ {w}).mT", f"torch.matmul({w}.transpose(0, 1), {h})"]
    g.emit(g.pick(forms))


@step(6)
def random_einsum(g: Drawing) -> None:
    """Random subscripts of data and a weight: contracted, shared, new and repeated letters."""
    h = g.data(2, 3, 4)
    own = g.shape(h)
    letters = "bcde"[: len(own)]
    sizes = dict(zip(letters, own, strict=True))
    read = [x for x in letters[1:] if g.chance(0.6)] or [letters[-1]]
    new = [x for x in "zy" if g.chance(0.5)]
    sizes |= {x: g.size() for x in new}
    subscripts = read + new
    g.random.shuffle(subscripts)
    kept = [x for x in letters[1:] + "".join(new) if x not in read or g.chance(0.3)]
    g.random.shuffle(kept)
    w = weight(g, *(sizes[x] for x in subscripts))
    g.emit(f"torch.einsum('{letters},{''.join(subscripts)}->b{''.join(kept)}', {h}, {w})")


@step(8)
def bias(g: Drawing) -> None:
    h = g.data()
    own = g.shape(h)
    axis = g.random.randrange(1, len(own)) if len(own) > 1 and g.chance(0.3) else len(own) - 1
    v = weight(g, own[axis])
    v = (
        v
        if axis == len(own) - 1
        else f"{v}.view({', '.join(['-1'] + ['1'] * (len(own) - 1 - axis))})"
    )
    g.emit(
        g.choose(
            f"{h} + {v}",
            f"{h} - {v}",
            f"{v} + {h}",
            f"torch.add({h}, {v}, alpha=2)",
            f"{h} + {v} * {v}",
        )
    )


@step(7)
def gain(g: Drawing) -> None:
    h = g.data()
    own = g.shape(h)
    axis = g.random.randrange(1, len(own)) if len(own) > 1 and g.chance(0.3) else len(own) - 1
    v = weight(g, own[axis])
    v = (
        v
        if axis == len(own) - 1
        else f"{v}.view({', '.join(['-1'] + ['1'] * (len(own) - 1 - axis))})"
    )
    g.emit(g.choose(f"{h} * {v}", f"{h} * (1 + {v})", f"{h} / (0.5 + {v}.abs())", f"{h} * torch.exp({v})",
                    f"{v} * {h}", f"torch.addcmul({h}, {h}, {v})", f"{h} * {v}.sigmoid()", f"{h} * {v} + {v}"))  # fmt: skip


# -- functions of one tensor ---------------------------------------------------------------------

FUNCTIONS = [
    "F.relu($)", "F.relu($)", "F.relu($)", "F.relu($)", "F.leaky_relu($, 0.2)", "$.abs()", "$.square()", "torch.tanh($)", "torch.tanh($)",
    "F.gelu($)", "torch.sigmoid($)", "($ * $ + 0.1).sqrt()", "torch.sin($)", "torch.cos($)",
    "torch.maximum($, 0.3 * $)", "torch.where($ > 0, $, 0.1 * $)", "torch.where($ > 0, $, 0.0)",
    "$.clamp(min=0)", "$.clamp(-1, 1)", "$ * ($ > 0)", "F.softplus($)", "F.silu($)", "$ ** 3",
    "$ * $.abs()", "$ * 2", "-$", "1 - $", "$ / 3", "$ + 0.5", "torch.exp(-$.square())", "F.elu($)",
    "F.relu($) - F.relu(-$)", "F.relu($).square()", "torch.log1p($.abs())", "$.max(torch.zeros_like($))",
    "torch.stack([$, -$]).amax(0)", "$ / (1 + $.abs())", "torch.minimum($, 2 * $)", "$.clone()",
    "torch.where($ > 0.5, $, torch.zeros_like($))", "torch.cat([F.relu($), F.relu(-$)], -1)",
    "$ - $", "$ * $.detach()", "torch.erf($)", "F.hardtanh($)", "$.masked_fill($ < 0, 0.0)", "F.relu($ - 0.2)",
    "$.double()", "$.contiguous()", "torch.relu($ + $)", "0.5 * ($ + $.abs())", "F.prelu($, torch.tensor([0.3], dtype=torch.float64))",
]  # fmt: skip


COMMON = ["F.relu($)", "F.relu($)", "F.relu($)", "F.leaky_relu($, 0.1)", "$ * 1", "$.abs()", "$.square()", "torch.tanh($)"]  # fmt: skip


def _activate(g: Drawing, h: str, common: float = 0.0) -> str:
    if g.chance(common):
        return g.emit(g.random.choice(COMMON).replace("$", h))
    return g.emit(g.random.choice(FUNCTIONS).replace("$", h))


@step(8)
def function(g: Drawing) -> None:
    _activate(g, g.data())


@step(7)
def reduction(g: Drawing) -> None:
    h = g.data()
    d = g.axis(h)
    keep = g.choose("", "", ", keepdim=True")
    g.emit(g.choose(f"{h}.sum({d}{keep})", f"{h}.mean({d}{keep})", f"{h}.amax({d}{keep})", f"{h}.amin({d}{keep})",
                    f"{h}.var({d}{keep}, unbiased=False)", f"({h} + 0.1).norm(dim={d}{keep})",
                    f"{h}.logsumexp({d}{keep})", f"{h}.max({d}{keep}).values", f"{h}.square().sum({d}{keep})",
                    f"{h}.sum({d}{keep})", f"{h}.mean({d}{keep})"))  # fmt: skip


@step(7)
def norm(g: Drawing) -> None:
    h = g.data()
    own = g.shape(h)
    d = g.axis(h)
    n = own[-1]
    forms = [
        f"{h}.softmax({d})", f"{h}.log_softmax({d})", f"F.layer_norm({h}, ({n},), eps=0.1)",
        lambda: f"F.layer_norm({h}, ({n},), {weight(g, n)}, {weight(g, n)}, eps=0.1)",
        lambda: f"{h} * torch.rsqrt({h}.square().mean({d}, keepdim=True) + 0.1) * {weight(g, own[d]) if d == len(own) - 1 else 2}",
        f"({h} - {h}.mean({d}, keepdim=True)) / ({h}.var({d}, keepdim=True, unbiased=False) + 0.1).sqrt()",
        f"{h} / ({h}.norm(dim={d}, keepdim=True) + 0.1)", f"{h} - {h}.mean({d}, keepdim=True)",
        f"{h} / (1 + {h}.abs().sum({d}, keepdim=True))", lambda: f"F.rms_norm({h}, ({n},), {weight(g, n)}, eps=0.1)",
        f"{h} - {h}.amax({d}, keepdim=True)", f"{h} / ({h}.abs().amax({d}, keepdim=True) + 0.1)",
    ]  # fmt: skip
    if len(own) > 1:
        forms += [
            f"F.group_norm({h}, 1, eps=0.1)",
            lambda: (
                f"F.batch_norm({h}, {g.buffer(f'torch.randn({own[1]}, dtype=torch.float64)', 'constant')}, {weight(g, own[1])}.detach().square() + 0.1)"
            ),
        ]
    if len(own) > 1 and own[1] % 2 == 0:
        forms.append(
            lambda: f"F.group_norm({h}, 2, {weight(g, own[1])}, {weight(g, own[1])}, eps=0.1)"
        )
    g.emit(g.pick(forms))


# -- views ---------------------------------------------------------------------------------------


@step(11)
def view(g: Drawing) -> None:
    h = g.data()
    own = g.shape(h)
    d, e = g.axis(h), g.axis(h)
    n, b = own[d], own[0]
    forms = [
        f"{h}.transpose({d}, {e})", f"{h}.flip({d})", f"{h}.roll(1, {d})", f"{h}.unsqueeze({d})",
        f"{h}.reshape({b}, -1)", f"{h}.flatten({min(1, len(own) - 1)})", f"{h}.movedim({d}, {e})",
        f"{h}.repeat_interleave(2, {d})", f"{h}.repeat({', '.join(['1'] * (len(own) - 1) + ['2'])})",
        f"{h}.narrow({d}, {n - max(1, n // 2)}, {max(1, n // 2)})", f"{h}.select({d}, {g.random.randrange(n)})",
        f"{h}.unbind({d})[{g.random.randrange(n)}]", f"{h}.expand(2, *{own})[{g.random.randrange(2)}]",
        f"{h}[..., ::2]", f"{h}[..., 1:]", f"{h}[:, :{max(1, n - 1)}]", f"{h}[:, 1::2]", f"{h}.squeeze()",
        f"{h}.chunk(2, {d})[-1]", f"{h}.split({max(1, n // 2)}, {d})[0]", f"{h}.cumsum({d})", f"{h}.mT",
        f"{h}.unsqueeze(1).expand(-1, 3, {', '.join(['-1'] * (len(own) - 1))})", f"{h}.diagonal(dim1=-2, dim2=-1)",
        f"{h}.tile(2)", f"{h}[:, -1]", f"{h}[:, None]", f"F.pad({h}, ({g.choose(0, 1)}, {g.choose(0, 1, 2)}))",
        f"{h}.unfold({d}, {min(2, n)}, 1)", f"torch.diff({h}, dim={d})", f"{h}.sort({d}).values",
    ]  # fmt: skip
    for a in (2, 3, 4):
        if n % a == 0:
            forms += [
                f"{h}.unflatten({d}, ({a}, {n // a}))",
                f"{h}.unflatten({d}, ({a}, {n // a})).transpose({d}, {d + 1}).flatten({d}, {d + 1})",
            ]
    if len(own) > 2:
        order = [0, *g.random.sample(range(1, len(own)), len(own) - 1)]
        forms += [f"{h}.permute({order})"] * 2
        forms += [
            f"{h}.flatten(1, 2)",
            f"{h}.reshape({b}, {own[-1]}, -1)",
            f"{h}.reshape({b * own[1]}, -1)",
            f"{h}.transpose(1, 2).reshape({b}, -1)",
        ]
    g.emit(g.pick(forms))


# -- several tensors -----------------------------------------------------------------------------


def _partner(g: Drawing, h: str) -> str:
    """Another value with the shape of `h`, or a linear image of one."""
    own = g.shape(h)
    same = [n for n in g.of_kind("data") if g.shape(n) == own and n != h]
    if same and g.chance(0.6):
        return g.random.choice(same)
    near = [n for n in g.of_kind("data") if g.shape(n)[:-1] == own[:-1]]
    return _linear(g, g.random.choice(near), own[-1])


@step(12)
def pair(g: Drawing) -> None:
    """Data with data: skips, gates, products, choices."""
    h = g.data()
    o = _partner(g, h)
    g.emit(g.choose(
        f"{h} + {o}", f"{h} + {o}", f"{h} - {o}", f"{h} * {o}", f"{h} * torch.sigmoid({o})", f"F.silu({h}) * {o}",
        f"torch.maximum({h}, {o})", f"torch.where({h} > 0, {h}, {o})", f"torch.where({h} > {o}, {h}, {o})",
        f"torch.cat([{h}, {o}], -1)", f"torch.cat([{h}, {o}], -1)", f"torch.stack([{h}, {o}], 1)", f"({h} * {o}).sum(-1)",
        f"{h} @ {o}.mT", f"torch.lerp({h}, {o}, 0.3)", f"{h} / (1 + {o}.abs())", f"torch.stack([{h}, {o}]).sum(0)",
        f"{h} * {o}.mean(-1, keepdim=True)", f"torch.einsum('...i,...j->...ij', {h}, {o})", f"{h} + 0 * {o}",
        f"F.cosine_similarity({h} + 0.1, {o}, dim=-1)", f"torch.cat([{h}, {o}, {h}], -1)", f"torch.hypot({h}, {o} + 0.1)",
        f"{h} * torch.tanh({o}) + {o}", f"torch.sigmoid({h}) * {o} + (1 - torch.sigmoid({h})) * {h}",
    ))  # fmt: skip


@step(4)
def bilinear(g: Drawing) -> None:
    h = g.data(2, 3)
    o = _partner(g, h)
    n, m, k = g.shape(h)[-1], g.shape(o)[-1], g.size()
    w = weight(g, k, n, m)
    g.emit(g.choose(f"torch.einsum('...i,kij,...j->...k', {h}, {w}, {o})", f"F.bilinear({h}, {o}, {w})",
                    f"torch.einsum('...i,...j,kij->...k', {h}, {h}, {w})"))  # fmt: skip


@step(6)
def attention(g: Drawing) -> None:
    h = g.data(3)
    e = g.choose(1, 2, 3, 4)
    q = _linear(g, h, e)
    k = _linear(g, h, e) if g.chance(0.8) else q
    v = _linear(g, h, g.size()) if g.chance(0.8) else h
    scores = g.emit(
        g.choose(
            f"{q} @ {k}.mT",
            f"{q} @ {k}.transpose(-1, -2) / {e}**0.5",
            f"torch.einsum('bte,bse->bts', {q}, {k})",
        )
    )
    t = g.shape(h)[1]
    spread = g.pick([f"{scores}.softmax(-1)", f"torch.sigmoid({scores})", f"F.relu({scores})", f"{scores} / {t}",
                      f"({scores} + torch.full(({t}, {t}), -1e4, dtype=torch.float64).triu(1)).softmax(-1)",
                      lambda: f"({scores} + {weight(g, t, t)}).softmax(-1)"])  # fmt: skip
    g.emit(f"{spread} @ {v}")


@step(3)
def heads(g: Drawing) -> None:
    h = g.data(3)
    b, t, _ = g.shape(h)
    count, e = g.choose(1, 2, 2, 3), g.choose(1, 2, 3)
    w = [weight(g, g.shape(h)[-1], count * e, depth=1) for _ in range(3)]
    q, k, v = (g.emit(f"({h} @ {x}).view({b}, {t}, {count}, {e}).transpose(1, 2)") for x in w)
    o = g.emit(
        g.choose(
            f"F.scaled_dot_product_attention({q}, {k}, {v})", f"({q} @ {k}.mT).softmax(-1) @ {v}"
        )
    )
    flat = g.emit(f"{o}.transpose(1, 2).reshape({b}, {t}, {count * e})")
    _linear(g, flat, g.size())


@step(4)
def recurrence(g: Drawing) -> None:
    """A loop that unrolls, from a constant or learned state."""
    h = g.data(3)
    b, t, n = g.shape(h)
    m = g.choose(2, 3, 4)
    w, u, c = weight(g, n, m, depth=1), weight(g, m, m, depth=1), weight(g, m, depth=1)
    start = g.pick([f"torch.zeros({b}, {m}, dtype=torch.float64)", f"torch.ones({b}, {m}, dtype=torch.float64)",
                     f"torch.full(({b}, {m}), 0.5, dtype=torch.float64)", lambda: f"{weight(g, m, depth=0)}.expand({b}, -1)"])  # fmt: skip
    inner = f"{h}[:, k] @ {w} + $ @ {u}" + g.choose("", f" + {c}", f" + {c}")
    body = g.choose(
        f"torch.tanh({inner})",
        f"F.relu({inner})",
        inner,
        f"$ + {inner}",
        f"torch.sigmoid({inner}) * $ + {c}",
    )
    g.block(f"$ = {start}\nfor k in range({min(t, 3)}):\n    $ = {body}")


@step(3)
def cell(g: Drawing) -> None:
    """Cells of torch from a constant state."""
    h = g.data(2, 3)
    own = g.shape(h)
    b, n, m = own[0], own[-1], g.choose(2, 3)
    kind = g.choose("LSTMCell", "GRUCell", "RNNCell")
    made = g.module(f"nn.{kind}({n}, {m}{g.choose('', '', ', bias=False')})")
    start = g.choose(
        "torch.zeros({}, {}, dtype=torch.float64)", "torch.ones({}, {}, dtype=torch.float64)"
    ).format(b, m)
    read = f"{h}[:, k]" if len(own) == 3 else h
    steps = min(own[1], 2) if len(own) == 3 else 2
    if kind == "LSTMCell":
        code = f"$, c$ = {start}, {start}\nfor k in range({steps}):\n    $, c$ = {made}({read}, ($, c$))"
    else:
        code = f"$ = {start}\nfor k in range({steps}):\n    $ = {made}({read}, $)"
    g.block(code)


# -- indices and masks ---------------------------------------------------------------------------


@step(6)
def lookup(g: Drawing) -> None:
    """Rows of a weight by an integer input."""
    found = [i for i in g.inputs if i.below]
    if not found:
        raise Misfit
    x = g.random.choice(found)
    w = weight(g, x.below, g.size())
    g.emit(
        g.choose(
            f"F.embedding({x.name}, {w})",
            f"{w}[{x.name}]",
            f"F.one_hot({x.name}, {x.below}).double() @ {w}",
        )
    )


@step(6)
def index(g: Drawing) -> None:
    h = g.data(2, 3)
    own = g.shape(h)
    n, k = own[-1], g.choose(1, 2, 3, 4)
    way = g.random.randrange(9)
    if way < 3:
        i = g.numbers(g.choose(n, k), n)
        g.emit(
            g.choose(
                f"{h}[..., {i}]",
                f"{h}.index_select(-1, {i})",
                f"{h}.gather(-1, {i}.expand({', '.join(map(str, own[:-1]))}, -1))",
            )
        )
    elif way == 3:
        m = g.mask(n)
        g.emit(
            g.choose(
                f"{h} * {m}",
                f"{h}.masked_fill({m}, 0.0)",
                f"torch.where({m}, {h}, 1.0)",
                f"{h}[..., {m}]",
                f"{h} * {m}.double()",
            )
        )
    elif way == 4:
        i = g.numbers(n, 4)
        g.emit(g.choose(f"{h} * {i}", f"{h} + {i}", f"{h} * ({i} + 1)"))
    elif way == 5:
        i = g.numbers(k, k + 1)
        g.emit(f"{h}.unsqueeze(-1) * {weight(g, k + 1, depth=1)}[{i}]")
    elif way == 6:
        c = g.buffer(f"torch.randn({n}, dtype=torch.float64)", "constant")
        g.emit(g.choose(f"{h} * {c}", f"{h} + {c}", f"torch.cat([{h}, {c}.expand_as({h})], -1)"))
    elif way == 7:
        i = g.numbers(n, k)
        g.emit(f"torch.zeros({(*own[:-1], k)}, dtype=torch.float64).index_add(-1, {i}, {h})")
    else:
        c = g.buffer(f"torch.randn({n}, {k}, dtype=torch.float64)", "constant")
        g.emit(f"{h} @ {c}")


# -- convolutions and pools ----------------------------------------------------------------------


@step(6)
def convolution(g: Drawing) -> None:
    h = g.data(3, 4)
    own = g.shape(h)
    c, k, out = own[1], g.choose(1, 2, 3), g.choose(2, 3, 4)
    d = len(own) - 2
    conv = f"F.conv{d}d"
    if g.chance(0.2):
        g.emit(f"{conv}({h}, {weight(g, c, 1, *[k] * d)}, padding=1, groups={c})")
    elif g.chance(0.15):
        g.emit(f"F.conv_transpose{d}d({h}, {weight(g, c, out, *[k] * d)})")
    else:
        b = f", {weight(g, out)}" if g.chance(0.6) else ""
        g.emit(f"{conv}({h}, {weight(g, out, c, *[k] * d)}{b}, padding={g.choose(0, 1)})")
    if g.chance(0.4):
        _activate(g, g.data())


@step(2)
def pool(g: Drawing) -> None:
    h = g.data(3, 4)
    d = len(g.shape(h)) - 2
    g.emit(
        g.choose(
            f"F.max_pool{d}d({h}, 2)", f"F.avg_pool{d}d({h}, 2)", f"F.adaptive_avg_pool{d}d({h}, 1)"
        )
    )


# -- writes in place -----------------------------------------------------------------------------


@step(7)
def write(g: Drawing) -> None:
    h = g.data()
    fresh = h.startswith("t") and g.chance(0.4)
    write_into(g, h if fresh else g.emit(f"{h}.clone()"))


@step(2)
def fill(g: Drawing) -> None:
    """A new tensor that is filled slice by slice."""
    h = g.data()
    own = g.shape(h)
    n = own[-1]
    g.block(g.choose(
        f"$ = torch.zeros_like({h})\n$[..., {n // 2}:] = {h}[..., {n // 2}:]",
        f"$ = torch.empty_like({h})\n$.copy_({h})\n$[..., 0] = {h}[..., -1]",
        f"$ = torch.zeros({(*own[:-1], n + 1)}, dtype=torch.float64)\n$[..., :{n}] = {h}\n$[..., {n}] = 1",
        f"$ = {h}.new_zeros({own})\n$[:, ::2] = {h}[:, ::2]\n$[:, 1::2] = 2 * {h}[:, 1::2]",
    ))  # fmt: skip


# -- members that share storage -------------------------------------------------------------------


@step(3)
def shared_storage(g: Drawing) -> None:
    """A parameter that is a second name of another, or overlaps with it."""
    found = [d.target for d in g.of_declared("p") if math.prod(g.shape(d.target)) > 1]
    if not found or len(g.of_declared("p")) >= g.allowed:
        raise Misfit
    name = g.random.choice(found)
    made, count = f"p{len(g.of_declared('p'))}", math.prod(g.shape(name)) - 1
    overlap = f"nn.Parameter({name}.detach().view(-1)[:{count}])"
    v = g.declare(made, f"self.{made} = {g.choose(name, overlap)}", "weight")
    h = g.data()
    shape = g.choose((g.shape(h)[-1],), (g.shape(h)[-1], 2))
    readings = [f for way in (as_large, larger, stacked) for f in way(g, v, g.shape(v), shape)]
    if not readings:
        raise Misfit
    g.emit(f"{h} {'*' if len(shape) == 1 else '@'} {g.random.choice(readings)}")
