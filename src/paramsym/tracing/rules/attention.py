"""Attention in terms of products and softmax."""

from __future__ import annotations

from typing import Any

from paramsym.tracing.builder import Builder, Tensor, rule
from paramsym.tracing.graph import Call
from paramsym.tracing.rules.linear import with_bias
from paramsym.tracing.rules.shape import repeat_entries


def attend(build: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
    """softmax(q·k + mask)·v over the last two axes; also the attention probabilities."""
    if k.ndim > 2 and 1 < k.shape[-3] < q.shape[-3]:  # grouped queries: heads share keys
        repeats = q.shape[-3] // k.shape[-3]
        k, v = repeat_entries(build, k, repeats, -3), repeat_entries(build, v, repeats, -3)
    batch = list(range(-q.ndim, -2))
    kb, vb = batch[-(k.ndim - 2) :] if k.ndim > 2 else [], batch[-(v.ndim - 2) :]
    scores = build.contract(q, k, [*batch, "i", "e"], [*kb, "j", "e"], [*batch, "i", "j"])
    if mask is not None:
        if mask.value is None or mask.value.dtype.is_floating_point:
            scores = build.same([scores, mask], scores.shape)
    weights = build.softmax(scores, -1)
    out = build.contract(
        weights, v, [*batch, "i", "j"], [*vb, "j", "e"], [*batch, "i", "e"]
    )  # fmt: skip
    return out, weights


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(build: Builder, call: Call) -> Tensor:
    q, k, v, mask = build.arguments(call, "query", "key", "value", "attn_mask?")
    return attend(build, q, k, v, mask)[0]


@rule("multi_head_attention_forward")
def multi_head_attention_forward(build: Builder, call: Call) -> Any:
    """`F.multi_head_attention_forward`: inputs are (time, batch, width)."""
    names = (
        "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight?",
        "in_proj_bias?", "bias_k?", "bias_v?", "add_zero_attn?", "dropout_p?", "out_proj_weight?",
        "out_proj_bias?",
    )  # fmt: skip
    q, k, v, width, heads, weight, bias, bias_k, bias_v, zero, _, w_out, b_out = build.arguments(
        call, *names
    )
    keywords = {name: build.lift(item) for name, item in call.kwargs.items()}
    if bias_k is not None or bias_v is not None or zero or keywords.get("static_k") is not None:
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
    mask = keywords.get("attn_mask")
    if mask is not None and mask.ndim == 3:
        mask = build.reshape(mask, (q.shape[1], heads, *mask.shape[1:]))
    mixed, weights_out = attend(build, projected[0], projected[1], projected[2], mask)
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
