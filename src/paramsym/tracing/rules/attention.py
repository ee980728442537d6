"""Attention in terms of products and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramsym.recording.graph import Call
from paramsym.tracing import index as ix
from paramsym.tracing.builder import Builder, Tensor
from paramsym.tracing.primitives import untold
from paramsym.tracing.registry import rule
from paramsym.tracing.rules.linear import with_bias
from paramsym.tracing.rules.shape import repeat_entries


def attend(
    build: Builder, q: Tensor, k: Tensor, v: Tensor, masks: Sequence[Tensor], causal: bool,
    scale: float | None = None, keeps: bool = True, dropped: bool = False,
) -> Any:  # fmt: skip
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
    weights = build.softmax(scores, -1)
    if dropped:  # a symmetry holds in distribution, as if nothing were dropped
        weights = build.alias(weights, compute=untold)
    out = build.contract(weights, v, [*both, "i", "j"], [*vb, "j", "e"], [*batch, "i", "e"])
    return out, weights


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
    q, k, v, mask, dropped, causal = build.arguments(
        call, "query", "key", "value", "attn_mask?", "dropout_p", "is_causal", dropout_p=0.0,
        is_causal=False,
    )  # fmt: skip
    if dropped:
        build.is_random(call)
    scale = call.kwargs.get("scale", call.args[6] if len(call.args) > 6 else None)
    masks = [] if mask is None else [mask]
    return attend(build, q, k, v, masks, causal, scale, dropped=bool(dropped))[0]


_STATIC = ("static_k", "static_v")


def _masks(build: Builder, keywords: dict[str, Any], batch: int, heads: int) -> list[Tensor]:
    """The masks of an attention module, shaped like its scores."""
    masks = []
    if (mask := keywords.get("attn_mask")) is not None:
        if mask.ndim == 3:
            mask = build.reshape(mask, (batch, heads, *mask.shape[1:]))
        masks.append(mask)
    if (padding := keywords.get("key_padding_mask")) is not None:
        masks.append(build.reshape(padding, (batch, 1, 1, padding.shape[-1])))
    return masks


@rule("multi_head_attention_forward")
def multi_head_attention_forward(build: Builder, call: Call) -> Any:
    """`F.multi_head_attention_forward`: inputs are (time, batch, width)."""
    names = (
        "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight?",
        "in_proj_bias?", "bias_k?", "bias_v?", "add_zero_attn?", "dropout_p?", "out_proj_weight?",
        "out_proj_bias?",
    )  # fmt: skip
    q, k, v, width, heads, weight, bias, bias_k, bias_v, zero, dropped, w_out, b_out = (
        build.arguments(call, *names)
    )
    keywords = {name: build.lift(item) for name, item in call.kwargs.items()}
    if any(item is not None for item in (bias_k, bias_v, *map(keywords.get, _STATIC))) or zero:
        return None
    batched = q.ndim == 3
    if not batched:
        q, k, v = (build.reshape(t, (t.shape[0], 1, t.shape[1])) for t in (q, k, v))
    if keywords.get("use_separate_proj_weight"):
        weights = [keywords[f"{n}_proj_weight"] for n in "qkv"]
    else:
        weights = [build.narrow(weight, 0, n * width, width) for n in range(3)]
    projected = []
    for n, (x, w) in enumerate(zip((q, k, v), weights, strict=True)):
        out = build.contract(x, w, ["t", "b", "i"], ["o", "i"], ["t", "b", "o"])
        out = with_bias(build, out, None if bias is None else build.narrow(bias, 0, n * width,
                                                                           width))  # fmt: skip
        split = build.reshape(out, (out.shape[0], out.shape[1], heads, width // heads))
        projected.append(build.permute(split, [1, 2, 0, 3]))  # (batch, head, time, coordinate)
    dropped = bool(dropped and keywords.get("training", True))
    if dropped:
        build.is_random(call)
    masks = _masks(build, keywords, q.shape[1], heads)
    mixed, weights_out = attend(
        build, *projected, masks=masks, causal=bool(keywords.get("is_causal")) and not masks,
        keeps=False, dropped=dropped,
    )  # fmt: skip
    merged = build.reshape(build.permute(mixed, [2, 0, 1, 3]), (*q.shape[:2], width))
    out = build.contract(merged, w_out, ["t", "b", "i"], ["o", "i"], ["t", "b", "o"])
    out = with_bias(build, out, b_out)
    if not batched:
        out = build.reshape(out, (out.shape[0], out.shape[2]))
    if not isinstance(call.result, (tuple, list)) or call.result[1] is None:
        return [out]
    if keywords.get("average_attn_weights", True):
        weights_out = build.reduce(weights_out, [1], False, "mean")
    if not batched:
        weights_out = build.reshape(weights_out, weights_out.shape[1:])
    return [out, weights_out]
