"""Families with latent attention."""

from families.sizes import TINY

# Latent attention: heads of 6 + 4 channels, and values of 8.
MLA = {
    **TINY,
    "num_key_value_heads": 4,
    "intermediate_size": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
}
FAMILIES = {
    "deepseek-v2": (
        1033,
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {
            **MLA,
            "q_lora_rank": None,
            "n_routed_experts": 6,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "rope": (10000.0, None),
        },
    ),
    "mistral4": (
        1104,
        "Mistral4Config",
        "Mistral4ForCausalLM",
        {
            **MLA,
            "hidden_size": 12,
            "q_lora_rank": 8,
            "n_routed_experts": 4,
            "rope": (
                10000.0,
                {
                    "rope_type": "yarn",
                    "factor": 16.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 8,
                    "llama_4_scaling_beta": 0.3,
                },
            ),
        },
    ),
    # Sparse attention that chooses all tokens.
    "deepseek-v32": (
        1102,
        "DeepseekV32Config",
        "DeepseekV32ForCausalLM",
        {
            **MLA,
            "hidden_size": 12,
            "q_lora_rank": 8,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "index_topk": 128,
            "index_n_heads": 2,
            "index_head_dim": 8,
            "rope": (
                10000.0,
                {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.8,
                    "original_max_position_embeddings": 32,
                },
            ),
        },
    ),
    "deepseek-v3": (
        1034,
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **MLA,
            "q_lora_rank": 8,
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "num_nextn_predict_layers": 0,
            "rope": (
                10000.0,
                {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.8,
                    "original_max_position_embeddings": 32,
                },
            ),
        },
    ),
    "glm4-moe-lite": (
        1058,
        "Glm4MoeLiteConfig",
        "Glm4MoeLiteForCausalLM",
        {
            **{key: MLA[key] for key in MLA if key != "first_k_dense_replace"},
            "q_lora_rank": 8,
            "v_head_dim": 10,
            "n_routed_experts": 4,
            "mlp_layer_types": ["dense", "sparse"],
            "routed_scaling_factor": 1.5,
            "rope": (10000.0, None),
        },
    ),
    "youtu": (
        1070,
        "YoutuConfig",
        "YoutuForCausalLM",
        {
            **{key: MLA[key] for key in MLA if key.endswith("rank") or key in TINY},
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "q_lora_rank": 8,
            # transformers zeroes the row of a padding token when it opens a tied folder.
            "pad_token_id": None,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "minicpm3": (
        1079,
        "MiniCPM3Config",
        "MiniCPM3ForCausalLM",
        {
            **{key: MLA[key] for key in MLA if key.endswith("rank") or key in TINY},
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "q_lora_rank": 8,
            "scale_emb": 3.0,
            "scale_depth": 1.4,
            "dim_model_base": 8,
            "pad_token_id": None,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
}
