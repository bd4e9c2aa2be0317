"""Families with gated delta nets."""

from families.sizes import TINY

# Gated delta nets: two value heads share a key head; one layer has attention.
DELTA = {
    **TINY,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "rope": (10000.0, {"partial_rotary_factor": 0.5}),
}
FAMILIES = {
    "qwen3-next": (
        1041,
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {
            **DELTA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 7,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-5": (1042, "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", DELTA),
    "qwen3-5-moe": (
        1043,
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {
            **{key: value for key, value in DELTA.items() if key != "intermediate_size"},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 7,
            "tie_word_embeddings": True,
        },
    ),
}
