"""What a number of a configuration is for, by the words in its name."""

from __future__ import annotations

import re

_LAYERS = re.compile(
    r"^(n_layers?|depth|(num_)?((hidden|encoder|decoder|feat_extract)_)?layers|num_blocks"
    r"|num_layers_per_\w+)$"
)
_ROLES = {
    name: re.compile(pattern)
    for name, pattern in {
        "layers": _LAYERS.pattern,
        "window": r"^max_window_layers$",
        "few heads": r"(key_value|kv)_heads$|^n_head_kv$|^kv_n_heads$",
        "heads": r"(^|_)n?_?heads?$",
        "rotary": r"^rotary_(dim|ndims)$",
        "head": r"head_dim$|^d_(kv|head)$|^head_size$|^kv_channels$|^attention_head_size$",
        "vocabulary": r"(?<!type_)vocab(ulary)?_size$",
        "positions": r"^(max_position_embeddings|n_positions|n_ctx|max_(sequence|seq)_len(gth)?|"
        r"max_(source|target)_positions|seq_length)$",
        "experts": r"^(num_(local_)?experts|n_routed_experts|moe_num_experts)$",
        "stages": r"^num_stages$",
        "windowed": r"^window_size$",
        "attended": r"^(attention_window|local_radius)$",
        "seen": r"^num_conv_pos_embeddings$",
        "narrow groups": r"conv_pos_embedding_groups$",
        "groups": r"_groups$|^n_group$|^num_expert_group$",
        "chosen": r"experts_per_tok(en)?$|^moe_(top_?k|k)$|^num_selected_experts$",
        "chosen groups": r"^topk_group$",
        "times": r"^(sr|mlp)_ratios$",
        "image": r"^image_size$",
        "patch": r"^(patch_size|encoder_stride)$",
        "token": r"_token_(id|index)$",
        "width": r"^(d_model|n_embd|n_inner|dim|d_ff|d_inner|mlp_dim|num_mel_bins)$|"
        r"(hidden|intermediate|embedding|projection|project|proj|embed|conv|ffn|ffn_hidden|pooler_output)"
        r"_(size|dim|sizes|dims)$|_rank$",
    }.items()
}


def role_of(name: str) -> str:
    """What a field is for; empty where its name does not say."""
    return next((role for role, words in _ROLES.items() if words.search(name)), "")
