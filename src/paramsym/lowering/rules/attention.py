"""Attention in terms of products and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.registry import rule
from paramsym.lowering.rules.linear import project
from paramsym.lowering.rules.shape import pad_with, repeat_entries
from paramsym.primitives import index as ix
from paramsym.primitives import untold
from paramsym.recording.graph import Call, Value


def attend(
    build: Builder, call: Call, q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor],
    causal: bool, dropped: bool, scale: float | None = None, keeps: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(scale·q·k + masks)·v over the last two axes; also the attention probabilities.

    A mask of booleans hides entries, those where it is not `keeps`. Whether it is data, a buffer or
    implied (`causal`), its axes count heads and positions: these are exchanged only together with
    the entries of the mask.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    if k.ndim > 2 and 1 < k.shape[-3] < q.shape[-3]:  # grouped queries: heads share keys
        repeats = q.shape[-3] // k.shape[-3]
        k, v = repeat_entries(build, k, repeats, -3), repeat_entries(build, v, repeats, -3)
    ndim = max(t.ndim for t in (q, k, v))
    batch = list(range(-ndim, -2))
    qb, kb, vb = (batch[ndim - t.ndim :] for t in (q, k, v))
    both = batch[ndim - max(q.ndim, k.ndim) :]
    scores = build.contract(q, k, [*qb, "i", "e"], [*kb, "j", "e"], [*both, "i", "j"])
    scores = build.unary(scores, linear=True, factor=factor)
    for mask in masks:
        if mask.integral:  # what it hides has no weight: counted like the scores, but no factor
            scores = _hide(build, scores, mask, keeps)
        else:
            scores = build.same([scores, mask], scores.shape)
    if causal:
        for node in scores.axes[-2:]:
            ix.freeze(node, f"it is a position under a causal mask at {build.where}")
        scores = _hide(build, scores, _causal_mask(build, scores), True)
    weights = build.softmax(scores, -1, compute=_softmax_or_zero)
    if not _leaves_a_key(build, masks, keeps):
        weights.total = None
    if dropped:  # a symmetry holds in distribution, as if nothing were dropped
        build.is_random(call)
        weights = build.alias(weights, compute=untold)
    out = build.contract(weights, v, [*both, "i", "j"], [*vb, "j", "e"], [*batch, "i", "e"])
    return out, weights


def _softmax_or_zero(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis, and zero for a query that sees nothing."""
    return torch.softmax(scores, -1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)


def _leaves_a_key(build: Builder, masks: Sequence[Tensor], keeps: bool) -> bool:
    """Whether each query sees a key, by the masks at hand; without, its weights sum to zero."""
    hidden = torch.zeros(1, dtype=torch.bool)
    for mask in masks:
        if mask.moves:
            before, filled = _before_filled(build, mask.value)
            if mask.integral or _may_hide(build, before if filled else _original(mask).value):
                return False  # whatever it is set to
            for numbers in filled:
                hidden = hidden | numbers
        elif (numbers := build.data.of(mask)) is not None:
            hidden = hidden | ((numbers != keeps) if mask.integral else numbers == -torch.inf)
    return not hidden.all(-1).any()


# What writes numbers that are finite, or none at all, where −∞ is read: masks are not made by it.
_FINITE = {
    "linear", "matmul", "bmm", "mm", "einsum", "conv1d", "conv2d", "layer_norm", "rms_norm",
    "group_norm", "batch_norm", "softmax", "sigmoid", "tanh", "gelu", "relu", "silu",
    "scaled_dot_product_attention", "multi_head_attention_forward",
}  # fmt: skip
_LOGARITHMS = {"log", "log2", "log10", "logit"}  # of zero
_QUOTIENTS = {"div", "divide", "true_divide", "reciprocal", "rsqrt", "pow"}  # by zero


def _original(mask: Tensor) -> Tensor:
    """What a mask is a copy of."""
    owner = mask.owner
    while owner.producer is not None and owner.producer.power_step() == ("copy", 1.0):
        owner = owner.producer.inputs[0].owner
    return owner


def _before_filled(build: Builder, value: Value | None) -> tuple[Value | None, list[torch.Tensor]]:
    """A mask before data filled −∞ in, last of all, and where they did, entry by entry."""
    filled: list[torch.Tensor] = []
    while value is not None and (call := _unturned(build, value).call) is not None:
        if call.name != "masked_fill" or len(call.args) != 3 or call.args[2] != -math.inf:
            break
        before, where, _ = call.args
        numbers = None if where.id in build.data.closed else build.data.number(where)
        if before.shape != value.shape or numbers is None:
            break
        filled.append(numbers)
        value = before
    return value, filled


def _unturned(build: Builder, value: Value) -> Value:
    """The tensor of which a value is a window that shows all of it as it is; else itself."""
    owner = build.graph.values[value.storage]
    layout = (value.shape, value.strides, value.offset)
    return owner if layout == (owner.shape, owner.strides, owner.offset) else value


def _may_hide(build: Builder, value: Value | None) -> bool:
    """Whether a mask that moves may hold −∞: by a buffer, a number, data or a logarithm in what it
    was made of, through any operator but those that write no −∞."""
    if value is None:
        return True
    queue, met = [value], set[int]()
    while queue:
        owner = build.graph.values[queue.pop().storage]
        if owner.id in met:
            continue
        met.add(owner.id)
        call = owner.call
        if owner.id not in build.data.closed:
            hides = not _holds(build, owner, torch.isfinite)
        elif call is None:
            hides = owner.kind == "buffer" and owner.dtype.is_floating_point
        elif call.name in _FINITE:
            continue
        else:
            read = [x for x in call.operands if x.dtype.is_floating_point]  # integers are finite
            hides = _writes_infinity(build, call, read)
            queue += read
        if hides:
            return True
    return False


def _writes_infinity(build: Builder, call: Call, read: Sequence[Value]) -> bool:
    """Whether a call may write ±∞ of what is finite; `read` are its operands that float."""
    if call.name in _LOGARITHMS or any(map(_is_infinite, (*call.args, *call.kwargs.values()))):
        return True
    divides = call.name in _QUOTIENTS
    return divides and not all(
        x in read and _holds(build, x, torch.Tensor.bool) for x in call.operands
    )


def _holds(build: Builder, value: Value, of: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether something holds of all numbers of a value, as far as they are known."""
    numbers = build.data.number(value)
    return numbers is None or bool(of(numbers).all())


def _is_infinite(item: Any) -> bool:
    return isinstance(item, float) and math.isinf(item)


def _hide(build: Builder, scores: Tensor, mask: Tensor, keeps: bool) -> Tensor:
    inside, covered = (list(range(scores.ndim - t.ndim, scores.ndim)) for t in (scores, mask))
    return build.contract(scores, mask, inside, covered, inside,
                          mask=True, hides=True, keeps=keeps, fill=-torch.inf)  # fmt: skip


def _causal_mask(build: Builder, scores: Tensor) -> Tensor:
    """A query sees the keys up to its own position."""
    shape = scores.shape[-2:]
    mask = build.new(shape, scores.axes[-2:], moves=False)
    mask.recipe = (lambda: torch.ones(shape, dtype=torch.bool).tril()), ()
    return mask


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(build: Builder, call: Call) -> Tensor:
    q, k, v, mask, dropped, causal, scale = build.arguments(
        call, "query", "key", "value", "attn_mask?", "dropout_p", "is_causal", "scale?",
        dropout_p=0.0, is_causal=False,
    )  # fmt: skip
    masks = [] if mask is None else [mask]
    return attend(build, call, q, k, v, masks, causal, bool(dropped), scale)[0]


_STATIC = ("static_k", "static_v")  # keys and values in place of those of the input


@rule("multi_head_attention_forward")
def multi_head_attention_forward(build: Builder, call: Call) -> list[Tensor] | None:
    """`F.multi_head_attention_forward`: inputs are (time, batch, width), or have no batch."""
    bound = signature(F.multi_head_attention_forward).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    given = {name: build.lift(item) for name, item in bound.arguments.items()}
    added = (given["bias_k"] is not None) + bool(given["add_zero_attn"])
    if any(given[name] is not None for name in _STATIC):
        return None
    q, k, v = _heads(build, given)
    masks = _masks(build, given, q)
    if added:
        if any(mask.moves for mask in masks):
            return None
        k, v = (_more(build, t, given, n) for n, t in ((1, k), (2, v)))
        masks = [_seen_besides(build, mask, added) for mask in masks]
    mixed, weights = attend(
        build, call, q, k, v, masks, causal=given["is_causal"] and not masks,
        dropped=bool(given["dropout_p"] and given["training"]), keeps=False,
    )  # fmt: skip
    made = [_merged(build, mixed, given)]
    if len(call.outputs) > 1:
        averaged = given["average_attn_weights"]
        made.append(build.reduce(weights, [1], False, "mean") if averaged else weights)
    return [build.reshape(t, v.shape) for t, v in zip(made, call.outputs, strict=True)]


def _merged(build: Builder, mixed: Tensor, given: dict[str, Any]) -> Tensor:
    """What the heads give, side by side, and the map that follows."""
    batch, heads, time, width = mixed.shape
    merged = build.reshape(build.permute(mixed, [2, 0, 1, 3]), (time, batch, heads * width))
    return project(build, merged, given["out_proj_weight"], given["out_proj_bias"])


def _heads(build: Builder, given: dict[str, Any]) -> list[Tensor]:
    """Queries, keys and values of an attention module as (batch, head, time, coordinate)."""
    width, heads = given["embed_dim_to_check"], given["num_heads"]
    made = []
    for n, name in enumerate(("query", "key", "value")):
        weight, bias = given[f"{name[0]}_proj_weight"], given["in_proj_bias"]
        if not given["use_separate_proj_weight"]:
            weight = build.narrow(given["in_proj_weight"], 0, n * width, width)
        bias = None if _follows(given, n) else bias and build.narrow(bias, 0, n * width, width)
        x = build.reshape(given[name], (given[name].shape[0], -1, given[name].shape[-1]))
        out = project(build, x, weight, bias)
        split = build.reshape(out, (*out.shape[:2], heads, width // heads))
        made.append(build.permute(split, [1, 2, 0, 3]))
    return made


def _follows(given: dict[str, Any], n: int) -> bool:
    """Whether the bias of keys (1) or values (2) is added after a learned one has been joined."""
    learned = given["bias_k" if n == 1 else "bias_v"] if n else None
    return learned is not None and given["in_proj_bias"] is not None and not given["add_zero_attn"]


def _more(build: Builder, x: Tensor, given: dict[str, Any], n: int) -> Tensor:
    """Keys or values of the input, a learned one if there is any, and zeros if they are wanted.

    [x + b, l] = [x, l − b] + b: what moves b and l alike moves all of the keys alike.
    """
    batch, heads, _, width = x.shape
    if (learned := given["bias_k" if n == 1 else "bias_v"]) is not None:
        learned = build.reshape(learned, (heads, 1, width))
        bias = None
        if _follows(given, n):
            every = heads * width
            bias = build.narrow(given["in_proj_bias"], 0, n * every, every)
            bias = build.reshape(bias, (heads, 1, width))
            learned = build.same([learned, bias], signs=(1, -1))
        row = build.expand(learned, 0, batch)
        x = build.concatenate([x, build.alias(row)], 2)
        x = x if bias is None else build.same([x, bias], x.shape)
    return pad_with(build, x, [0, 0, 0, 1]) if given["add_zero_attn"] else x


def _seen_besides(build: Builder, mask: Tensor, added: int) -> Tensor:
    """A mask that hides none of the keys that were added last."""
    if not added:
        return mask
    shape = (*mask.shape[:-1], mask.shape[-1] + added)

    def seen(numbers: torch.Tensor) -> torch.Tensor:
        hidden = numbers.dtype == torch.bool
        scores = torch.zeros(numbers.shape).masked_fill(numbers, -torch.inf) if hidden else numbers
        return F.pad(scores, (0, added))

    nodes = [*mask.axes[:-1], ix.leaf(shape[-1], frozen="it is a position under a mask")]
    return build.new(shape, nodes, moves=False, recipe=(seen, (mask,)))


def _masks(build: Builder, given: dict[str, Any], q: Tensor) -> list[Tensor]:
    """The masks of an attention module, shaped like its scores."""
    masks = []
    added = given["bias_k"] is not None or given["add_zero_attn"]
    implied = given["is_causal"] and given["key_padding_mask"] is None and not given["need_weights"]
    if added and implied:  # what is causal hides the keys that were added
        return masks
    if (mask := given["attn_mask"]) is not None:
        masks.append(
            build.reshape(mask, (*q.shape[:2], *mask.shape[1:])) if mask.ndim == 3 else mask
        )
    if (padding := given["key_padding_mask"]) is not None:
        masks.append(build.reshape(padding, (q.shape[0], 1, 1, padding.shape[-1])))
    return masks
