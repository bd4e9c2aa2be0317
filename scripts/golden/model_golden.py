"""Tiny random models of every family, and what transformers computes with them.

Logits with masks and positions, losses, gradients, and ten updates of AdamW.
"""

import inspect
import json
import os

import torch
import transformers
from safetensors.torch import load_file, save_file

IGNORED = -100
VOCAB = 300
SHAPE = (3, 24)
# Of families with the sizes TINY.
TINY_SHAPE = (3, 12)
STEPS = 10
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weightDecay": 0.1, "clip": 1.0}
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
SLIDING = ["sliding_attention", "full_attention"]
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
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Phi-4-mini's kind: three quarters of a head's 8 channels are turned, so there are 3 factors.
PHI_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.0, 2.5, 6.0],
    "partial_rotary_factor": 0.75,
}
FAMILIES = {
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            **SIZES,
            "head_dim": 16,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "rope": (500000.0, LLAMA3_ROPE),
        },
    ),
    "llama-tied": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            **TINY,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "mistral": (
        "MistralConfig",
        "MistralForCausalLM",
        {
            **TINY,
            "head_dim": 16,
            "sliding_window": 7,
            "tie_word_embeddings": False,
            "rope": (1000000.0, None),
        },
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            **SIZES,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "rope": (1000000.0, None),
        },
    ),
    "qwen2-window": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            **TINY,
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "rope": (1000000.0, None),
        },
    ),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**SIZES, "head_dim": 16, "tie_word_embeddings": True, "rope": (1000000.0, None)},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_positions": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {
            **MOE_SIZES,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.02,
            "rope": (1000000.0, None),
        },
    ),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {
            **MOE_SIZES,
            "num_hidden_layers": 3,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 20,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "tie_word_embeddings": False,
            "rope": (1000000.0, None),
        },
    ),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **MOE_SIZES,
            "head_dim": 8,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
            "rope": (1000000.0, None),
        },
    ),
    "qwen3-moe-plain": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **MOE_SIZES,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.05,
            "tie_word_embeddings": False,
            "rope": (10000.0, None),
        },
    ),
    "phi3": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **SIZES,
            "sliding_window": 7,
            "tie_word_embeddings": False,
            "rope": (10000.0, None),
        },
    ),
    "phi3-longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **SIZES,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 16,
            "rope": (10000.0, PHI_ROPE),
        },
    ),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "tie_word_embeddings": True,
            "rope": (2000000.0, None),
        },
    ),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        {
            **SMALL,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.45,
            "attention_multiplier": 0.2,
            "logits_scaling": 1.7,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "granite-moe": (
        "GraniteMoeConfig",
        "GraniteMoeForCausalLM",
        {
            **SMALL,
            "intermediate_size": 20,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.25,
            "logits_scaling": 1.3,
            "output_router_logits": False,
            "rope": (10000.0, None),
        },
    ),
    "olmo2": (
        "Olmo2Config",
        "Olmo2ForCausalLM",
        {**SMALL, "rms_norm_eps": 1e-5, "rope": (500000.0, None)},
    ),
    "olmo3": (
        "Olmo3Config",
        "Olmo3ForCausalLM",
        {**SMALL, "sliding_window": 7, "layer_types": SLIDING},
    ),
    "stablelm": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {
            **SMALL,
            "use_qkv_bias": True,
            "hidden_dropout": 0.0,
            "rope": (10000.0, {"partial_rotary_factor": 0.25}),
        },
    ),
    "stablelm-parallel": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {
            **SMALL,
            "use_parallel_residual": True,
            "hidden_dropout": 0.0,
            "rope": (10000.0, {"partial_rotary_factor": 0.5}),
        },
    ),
    "glm": (
        "GlmConfig",
        "GlmForCausalLM",
        {
            **SMALL,
            "head_dim": 12,
            "attention_bias": True,
            "rope": (10000.0, {"partial_rotary_factor": 0.5}),
        },
    ),
    "glm4": (
        "Glm4Config",
        "Glm4ForCausalLM",
        {
            **SMALL,
            "head_dim": 12,
            "attention_bias": True,
            "rope": (10000.0, {"partial_rotary_factor": 0.5}),
        },
    ),
    "gemma": (
        "GemmaConfig",
        "GemmaForCausalLM",
        {**SMALL, "head_dim": 12, "tie_word_embeddings": True, "rope": (10000.0, None)},
    ),
    "gemma2": (
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
    "cohere": (
        "CohereConfig",
        "CohereForCausalLM",
        {**SMALL, "logit_scale": 0.7, "tie_word_embeddings": True, "rope": (10000.0, None)},
    ),
    "cohere2": (
        "Cohere2Config",
        "Cohere2ForCausalLM",
        {
            **SMALL,
            "logit_scale": 0.7,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "phi": (
        "PhiConfig",
        "PhiForCausalLM",
        {
            **SMALL,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "rope": (10000.0, {"partial_rotary_factor": 0.5}),
        },
    ),
    "starcoder2": (
        "Starcoder2Config",
        "Starcoder2ForCausalLM",
        {
            **SMALL,
            "use_bias": True,
            "sliding_window": 7,
            "tie_word_embeddings": True,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "rope": (100000.0, None),
        },
    ),
    "gpt-neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {
            **{key: SMALL[key] for key in SMALL if key != "num_key_value_heads"},
            "use_parallel_residual": True,
            "hidden_dropout": 0.0,
            "rope": (10000.0, {"partial_rotary_factor": 0.25}),
        },
    ),
    "exaone4": (
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {
            **SMALL,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "rope": (1000000.0, None),
        },
    ),
    "ernie": (
        "Ernie4_5Config",
        "Ernie4_5ForCausalLM",
        {
            **SMALL,
            "head_dim": 12,
            "use_bias": True,
            "tie_word_embeddings": True,
            "rope": (500000.0, None),
        },
    ),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **TINY,
            "head_dim": 6,
            "intermediate_size": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "layer_types": SLIDING,
            "rope": (
                150000.0,
                {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                    "original_max_position_embeddings": 32,
                },
            ),
        },
    ),
    "deepseek-v2": (
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
    "deepseek-v3": (
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
    "glm4-moe": (
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        {
            **TINY,
            "head_dim": 8,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 4,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.3,
            "num_nextn_predict_layers": 0,
            "rope": (10000.0, {"partial_rotary_factor": 0.5}),
        },
    ),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", {**TINY, "rope": (10000.0, None)}),
    "gptj": (
        "GPTJConfig",
        "GPTJForCausalLM",
        {
            "vocab_size": TINY["vocab_size"],
            "n_positions": 128,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_inner": 24,
            "rotary_dim": 4,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {
            **TINY,
            "num_kv_heads": 2,
            "ffn_hidden_size": 40,
            "new_decoder_architecture": True,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "falcon-sequential": (
        "FalconConfig",
        "FalconForCausalLM",
        {
            **TINY,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "ffn_hidden_size": 40,
            "tie_word_embeddings": True,
            "rope": (10000.0, None),
        },
    ),
    "internlm2": ("LlamaConfig", "LlamaForCausalLM", {**TINY, "rope": (10000.0, None)}),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            **{key: TINY[key] for key in TINY if key not in ("intermediate_size", "pad_token_id")},
            "ffn_dim": 24,
            "pad_token_id": 0,
            "dropout": 0.0,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        },
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {
            "vocab_size": TINY["vocab_size"],
            "hidden_size": 24,
            "n_layer": 2,
            "n_head": 6,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "baichuan": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**TINY, "num_key_value_heads": 4, "rope": (10000.0, None)},
    ),
    "baichuan-alibi": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**TINY, "num_key_value_heads": 4, "rope": (10000.0, None)},
    ),
    "qwen3-next": (
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
    "qwen3-5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", DELTA),
    "qwen3-5-moe": (
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
    "gemma4": (
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
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4-moe": (
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
    "olmoe": (
        "OlmoeConfig",
        "OlmoeForCausalLM",
        {
            **TINY,
            "intermediate_size": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "rope": (10000.0, None),
        },
    ),
    "seed-oss": (
        "SeedOssConfig",
        "SeedOssForCausalLM",
        {
            **TINY,
            "head_dim": 10,
            "mlp_bias": True,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "rope": (10000.0, None),
        },
    ),
    "dots1": (
        "Dots1Config",
        "Dots1ForCausalLM",
        {
            **TINY,
            "head_dim": 6,
            "num_hidden_layers": 2,
            "sliding_window": 7,
            "layer_types": SLIDING,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 8,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "rope": (10000.0, None),
        },
    ),
    "opt-narrow": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            **{key: TINY[key] for key in TINY if key not in ("intermediate_size", "pad_token_id")},
            "ffn_dim": 24,
            "pad_token_id": 0,
            "dropout": 0.0,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 10,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        },
    ),
}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
    },
    "llama3": LLAMA3_ROPE,
}


def configure(name, settings):
    """A config with the rope keys of the installed version."""
    settings = dict(settings)
    theta, scaling = settings.pop("rope", (None, None))
    kind = getattr(transformers, name)
    if theta is None:
        return kind(**settings)
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
        return kind(**settings, rope_parameters=rope)
    return kind(**settings, rope_theta=theta, rope_scaling=scaling)


def randomize(model, generator):
    """Weights larger than an initialisation, so that no term of a gradient is negligible.

    A norm that multiplies by 1 + weight starts at 0.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
            first = parameter.mean().round() if is_norm else 0
            parameter.copy_(first + 0.1 * noise if is_norm else 0.15 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))


def build(config_name, model_name, settings, seed, family=None):
    config = configure(config_name, settings)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_name)(config).float().eval()
    if family in PATCHES:
        PATCHES[family](model)
    randomize(model, torch.Generator().manual_seed(seed))
    return model


def padded(shape):
    """Masks of rows padded on either side: all, 17 of 24 and 1 of the tokens are real."""
    right = torch.zeros(shape, dtype=torch.long)
    for row, length in enumerate((shape[1], shape[1] * 17 // 24, 1)):
        right[row, :length] = 1
    return right, right.flip(1)


def record_logits(model, ids, tensors):
    """Of masked rows only the real tokens, of moved rows only the first."""
    right, left = padded(ids.shape)
    positions = (left.cumsum(1) - 1).clamp(min=0)
    shifted = (torch.arange(ids.shape[1]) + 5).expand(ids.shape)
    ones = torch.ones_like(ids)
    of_left = {"attention_mask": left}
    of_moved = {"attention_mask": ones}
    if "position_ids" in inspect.signature(model.forward).parameters:
        of_left["position_ids"] = positions
        of_moved["position_ids"] = shifted
    with torch.no_grad():
        tensors["logits"] = model(ids).logits
        tensors["logits.right"] = model(ids, attention_mask=right).logits[right.bool()]
        tensors["logits.left"] = model(ids, **of_left).logits[left.bool()]
        tensors["logits.shifted"] = model(ids, **of_moved).logits[:1]
    tensors |= {
        "mask.right": right.int(),
        "mask.left": left.int(),
        "positions.left": positions.int(),
    }


def record_documents(model, generator, description):
    """Documents apart: sums and counts of their losses, which a packed row has to add up to."""
    documents = []
    for length in (7, 1, 12, 4):
        ids = torch.randint(3, model.config.vocab_size, (1, length), generator=generator)
        labels = ids.clone()
        labels[0, : length // 3] = IGNORED
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].float()
        nll = torch.nn.functional.cross_entropy(
            logits, labels[0, 1:], ignore_index=IGNORED, reduction="sum"
        )
        documents.append(
            {
                "ids": ids[0].tolist(),
                "labels": labels[0].tolist(),
                "sum": nll.item() if length > 1 else 0.0,
                "count": int((labels[0, 1:] != IGNORED).sum()),
            }
        )
    description["documents"] = documents


def record_training(model, generator, description, shape):
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weightDecay"],
    )
    size = (STEPS, *shape)
    batches = torch.randint(3, model.config.vocab_size, size, generator=generator)
    losses, norms = [], []
    for ids in batches:
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    description |= {"adamw": ADAMW, "batches": batches.tolist(), "losses": losses, "norms": norms}


def record(out, family):
    folder = os.path.join(out, family)
    seed = 1000 + list(FAMILIES).index(family)
    model = build(*FAMILIES[family], seed, family)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    shape = TINY_SHAPE if FAMILIES[family][2]["vocab_size"] == TINY["vocab_size"] else SHAPE
    ids = torch.randint(3, model.config.vocab_size, shape, generator=generator)
    labels = ids.clone()
    labels[0, 5] = labels[2, -1] = IGNORED
    labels[1, :9] = IGNORED
    tensors, description = {}, {
        "ids": ids.tolist(),
        "labels": labels.tolist(),
        "ignoreIndex": IGNORED,
    }
    record_logits(model, ids, tensors)
    record_documents(model, generator, description)
    loss = model(ids, labels=labels).loss
    loss.backward()
    description["loss"] = loss.item()
    tensors |= {f"gradient.{name}": p.grad.clone() for name, p in model.named_parameters()}
    record_training(model, generator, description, shape)
    if family in RENAMED:
        rename(folder, family, tensors)
    description["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(folder, tensors, description)


def record_ropes(out):
    """Every rope scaling on one set of weights, at lengths below and above the original one."""
    settings = {
        **SIZES,
        "num_hidden_layers": 1,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "max_position_embeddings": 64,
    }
    folder = os.path.join(out, "ropes")
    weights, tensors, cases, failures = None, {}, {}, []
    for name, scaling in ROPES.items():
        if name == "dynamic":  # its length limit is max_position_embeddings
            changed = {**settings, "max_position_embeddings": 16}
        else:
            changed = settings
        try:
            model = build(
                "LlamaConfig", "LlamaForCausalLM", {**changed, "rope": (10000.0, scaling)}, 77
            )
            weights = weights or model.save_pretrained(folder) or True
            short = torch.randint(3, VOCAB, (1, 12), generator=torch.Generator().manual_seed(5))
            long = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(6))
            with torch.no_grad():
                tensors[f"{name}.short"] = model(short).logits
                tensors[f"{name}.long"] = model(long).logits
            cases[name] = {
                "config": model.config.to_dict(),
                "theta": 10000.0,
                "scaling": scaling,
                "max_position_embeddings": changed["max_position_embeddings"],
            }
        except Exception as error:  # noqa: BLE001: a scaling that this version refuses
            failures.append(f"{name}: {error}")
    write(folder, tensors, {"short": short.tolist(), "long": long.tolist(), "cases": cases})
    if failures:
        raise RuntimeError("; ".join(failures))


def fuse_internlm2(tensors):
    """Llama's tensors under the names of InternLM2: each key head has its queries beside it."""
    names = {
        "embed_tokens": "tok_embeddings",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "lm_head": "output",
    }
    groups = SIZES["num_key_value_heads"]
    fused = {}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{one}_proj")] for one in "qkv"]
            rows = [part.reshape(groups, -1, part.shape[-1]) for part in parts]
            name = name.replace("self_attn.q_proj", "attention.wqkv")
            tensor = torch.cat(rows, dim=1).reshape(-1, tensor.shape[-1])
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        fused[name] = tensor
    return fused


def fuse_baichuan(tensors):
    """Llama's tensors under the names of Baichuan: queries, keys and values in one matrix."""
    fused = {}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{one}_proj")] for one in "qkv"]
            name, tensor = name.replace("q_proj", "W_pack"), torch.cat(parts)
        fused[name] = tensor
    return fused


def normalize_head(model):
    """Baichuan 2's head: its rows have length 1."""
    head = model.lm_head
    head.forward = lambda x: torch.nn.functional.linear(
        x, torch.nn.functional.normalize(head.weight)
    )


def bias_scores(model):
    """ALiBi in place of rotation, as in Baichuan 13B."""
    heads = model.config.num_attention_heads
    slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
    rotary = model.model.rotary_emb
    plain = rotary.forward

    def unturned(*args, **kwargs):
        cos, sin = plain(*args, **kwargs)
        return torch.ones_like(cos), torch.zeros_like(sin)

    def attend(module, q, k, v, mask, scaling, **_):
        bias = slopes.view(1, -1, 1, 1) * torch.arange(k.shape[2])
        scores = q @ k.transpose(2, 3) * scaling + bias
        if mask is not None:
            scores = scores + mask[:, :, :, : k.shape[2]]
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    rotary.forward = unturned
    transformers.AttentionInterface.register("biased", attend)
    transformers.AttentionMaskInterface.register(
        "biased", transformers.masking_utils.eager_mask
    )
    model.config._attn_implementation = "biased"


# Changes of a model for families that transformers does not have.
PATCHES = {"baichuan": normalize_head, "baichuan-alibi": bias_scores}
BAICHUAN = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]}
# Families that transformers does not have: Llama with other names, and the keys of config.json.
RENAMED = {
    "baichuan": (fuse_baichuan, {**BAICHUAN, "z_loss_weight": 0}),
    "baichuan-alibi": (
        fuse_baichuan,
        {**BAICHUAN, "model_max_length": 128, "max_position_embeddings": None},
    ),
    "internlm2": (
        fuse_internlm2,
        {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
    ),
}


def rename(folder, family, tensors):
    """Rewrites the folder; the subfolder "plain" keeps what transformers can read."""
    fuse, keys = RENAMED[family]
    plain = os.path.join(folder, "plain")
    os.makedirs(plain)
    for file in ("config.json", "model.safetensors"):
        os.rename(os.path.join(folder, file), os.path.join(plain, file))
    with open(os.path.join(plain, "config.json")) as file:
        config = json.load(file) | keys
    del config["attention_bias"], config["mlp_bias"]
    config = {key: value for key, value in config.items() if keys.get(key, value) is not None}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")
    weights = fuse(load_file(os.path.join(plain, "model.safetensors")))
    path = os.path.join(folder, "model.safetensors")
    save_file({name: one.contiguous() for name, one in weights.items()}, path)
    prefix = "gradient."
    gradients = {name: one for name, one in tensors.items() if name.startswith(prefix)}
    for name in gradients:
        del tensors[name]
    named = {name.removeprefix(prefix): one for name, one in gradients.items()}
    tensors |= {prefix + name: one for name, one in fuse(named).items()}


def write(folder, tensors, description):
    path = os.path.join(folder, "golden.safetensors")
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump(description, file, default=str, separators=(",", ":"))
        file.write("\n")
