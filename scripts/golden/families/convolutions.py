"""Families with short convolutions in place of attention."""

from families.sizes import TINY

CONV = {
    **TINY,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "pad_token_id": None,
    "rope": (10000.0, None),
}
FAMILIES = {
    "lfm2": (
        1085,
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {
            **CONV,
            "tie_word_embeddings": True,
            "block_multiple_of": 6,
            "block_ffn_dim_multiplier": 1.3,
        },
    ),
    "lfm2-moe": (
        1086,
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {
            **CONV,
            "num_dense_layers": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "routed_scaling_factor": 1.5,
        },
    ),
}
