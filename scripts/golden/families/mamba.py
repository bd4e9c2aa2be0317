"""Families with state space layers (Mamba-2)."""

from families.sizes import TINY

# Two heads share B and C; heads, groups and states have sizes of their own.
MAMBA = {
    **TINY,
    "intermediate_size": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
    "mamba_expand": 1.5,
}
# Narrower, without experts.
NARROW_MAMBA = {
    **{key: value for key, value in MAMBA.items() if key != "mamba_expand"},
    "hidden_size": 12,
    "head_dim": 4,
    "mamba_d_state": 4,
}
# Each multiplier has a value of its own.
FALCON_H1 = {
    "embedding_multiplier": 1.7,
    "lm_head_multiplier": 0.8,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.85, 1.1],
    "ssm_multipliers": [1.4, 0.75, 1.25, 0.65, 1.15],
    "mamba_chunk_size": 16,
    "rope": (10000.0, None),
}
FAMILIES = {
    "granite-4-h": (
        1101,
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **{key: MAMBA[key] for key in MAMBA if key != "mamba_expand"},
            "mamba_d_head": 8,
            "shared_intermediate_size": 12,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.25,
            "logits_scaling": 1.3,
            "tie_word_embeddings": True,
            "rope": (None, None),
        },
    ),
    "bamba": (
        1102,
        "BambaConfig",
        "BambaForCausalLM",
        {**NARROW_MAMBA, "attn_layer_indices": [1], "mlp_bias": True, "rope": (10000.0, None)},
    ),
    "nemotron-h": (
        1103,
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            **{key: TINY[key] for key in TINY if key not in ("num_hidden_layers", "hidden_size")},
            "hidden_size": 12,
            "head_dim": 4,
            "intermediate_size": 10,
            "layers_block_type": ["linear_attention", "mlp", "full_attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 4,
            "n_groups": 2,
            "ssm_state_size": 5,
            "rope": (None, None),
        },
    ),
    "falcon-h1": (
        1107,
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            **NARROW_MAMBA,
            **FALCON_H1,
            "mamba_d_head": 5,
            "mamba_d_ssm": 20,
            "mlp_bias": True,
        },
    ),
    "falcon-h1-norm": (
        1106,
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            **NARROW_MAMBA,
            **FALCON_H1,
            "num_hidden_layers": 1,
            "mamba_d_ssm": 24,
            "mamba_rms_norm": True,
        },
    ),
    "mamba2": (
        1104,
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            "vocab_size": 41,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 6,
            "n_groups": 2,
            "state_size": 5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "rope": (None, None),
        },
    ),
}
