"""Sizes that several tiny models have."""

VOCAB = 300
# Grouped heads, and heads that are wider than hidden / heads.
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Smaller: every expert has three matrices.
MOE_SIZES = {**SIZES, "vocab_size": 80, "hidden_size": 16, "intermediate_size": 24}
# For families by declaration: one folder takes about 250 KB.
SMALL = {
    **SIZES,
    "vocab_size": 71,
    "intermediate_size": 44,
    "tie_word_embeddings": False,
}
# For later families: one folder takes less than 100 KB.
TINY = {
    **SMALL,
    "vocab_size": 41,
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
}
# Heads of four channels that are wider than hidden / heads: one folder takes about 55 KB.
NARROW = {**TINY, "hidden_size": 12, "intermediate_size": 16, "head_dim": 4}
SLIDING = ["sliding_attention", "full_attention"]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
