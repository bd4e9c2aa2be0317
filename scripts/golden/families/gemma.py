"""Gemma's families."""

from families.sizes import NARROW, SLIDING, SMALL, TINY

# Layers without a window have wider heads; three of their seven pairs of channels turn.
GEMMA4 = {
    **TINY,
    "head_dim": 8,
    "global_head_dim": 14,
    "sliding_window": 7,
    "layer_types": SLIDING,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.5,
            "rope_theta": 1000000.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
FAMILIES = {
    "gemma": (
        1022,
        "GemmaConfig",
        "GemmaForCausalLM",
        {**SMALL, "head_dim": 12, "tie_word_embeddings": True, "rope": (10000.0, None)},
    ),
    "gemma2": (
        1023,
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            **SMALL,
            "head_dim": 12,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "gemma3": (
        1024,
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **SMALL,
            "head_dim": 12,
            "query_pre_attn_scalar": 20,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "linear",
                    "factor": 4.0,
                    "rope_theta": 1000000.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "gemma4": (
        1048,
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **GEMMA4,
            "num_hidden_layers": 5,
            "layer_types": [*SLIDING, *SLIDING[:1], *SLIDING],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 41,
            "final_logit_softcapping": 2.5,
        },
    ),
    "gemma4-dense": (
        1049,
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4-moe": (
        1050,
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 8,
        },
    ),
    "gemma3n": (
        1120,
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {
            **NARROW,
            "head_dim": 6,
            "num_hidden_layers": 4,
            "layer_types": [*SLIDING, *SLIDING],
            "sliding_window": 7,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 41,
            "hidden_size_per_layer_input": 5,
            "altup_num_inputs": 3,
            "laurel_rank": 3,
            "activation_sparsity_pattern": [0.6, 0.0, 0.3, 0.0],
            "final_logit_softcapping": 2.5,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "vaultgemma": (
        1074,
        "VaultGemmaConfig",
        "VaultGemmaForCausalLM",
        {
            **NARROW,
            "head_dim": 6,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "gemma4-unified": (
        1077,
        "Gemma4UnifiedTextConfig",
        "Gemma4UnifiedForCausalLM",
        {
            **{key: GEMMA4[key] for key in GEMMA4 if key != "hidden_size_per_layer_input"},
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 2.5,
        },
    ),
}
