"""Defines families that transformers lacks, as variants of Llama under other names."""

import functools
import json
import os

import torch
import transformers
from families.sizes import SIZES, TINY
from safetensors.torch import load_file, save_file


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


def rename_exaone(tensors):
    """Llama's tensors under the names of EXAONE 3."""
    names = {
        "model.": "transformer.",
        "embed_tokens": "wte",
        "layers.": "h.",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
        "transformer.norm": "transformer.ln_f",
    }
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        renamed[name] = tensor
    return renamed


def join_projections(tensors, names):
    """Joins queries, keys and values under the name of the queries; replaces parts of names."""
    fused = {}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{one}_proj")] for one in "qkv"])
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        fused[name] = tensor
    return fused


def fuse_qwen(tensors):
    """Qwen2's tensors under the names of the first Qwen."""
    names = {
        "model.": "transformer.",
        "embed_tokens": "wte",
        "layers.": "h.",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.o_proj": "attn.c_proj",
        "self_attn.q_proj": "attn.c_attn",
        "mlp.gate_proj": "mlp.w2",
        "mlp.up_proj": "mlp.w1",
        "mlp.down_proj": "mlp.c_proj",
        "transformer.norm": "transformer.ln_f",
    }
    return join_projections(tensors, names)


def without_choice_bias(tensors):
    """GLM 4.5's tensors without the bias for the choice of experts."""
    return {name: one for name, one in tensors.items() if "e_score_correction" not in name}


def fuse_ling(tensors):
    """GLM 4.5's tensors under the names of Ling: queries, keys and values in one matrix."""
    names = {
        "embed_tokens": "word_embeddings",
        "self_attn.o_proj": "attention.dense",
        "self_attn.q_proj": "attention.query_key_value",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "e_score_correction_bias": "expert_bias",
    }
    return join_projections(tensors, names)


def fuse_first_ling(tensors):
    """The first version has a softmax router, without a bias for the choice."""
    return fuse_ling(without_choice_bias(tensors))


def choose_by_softmax(model):
    """DeepSeek MoE's router: the weights are those of a softmax over all experts."""

    def route(gate, x):
        logits = torch.nn.functional.linear(x.view(-1, gate.hidden_dim), gate.weight)
        weights, ids = logits.softmax(-1).topk(gate.top_k, dim=-1)
        if gate.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights, ids

    for layer in model.model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if gate is not None:
            gate.forward = functools.partial(route, gate)


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
PATCHES = {
    "baichuan": normalize_head,
    "baichuan-alibi": bias_scores,
    "deepseek": choose_by_softmax,
    "bailing-moe-first": choose_by_softmax,
}
LING = {
    "model_type": "bailing_moe",
    "num_experts": 4,
    "num_local_experts": None,
    "n_routed_experts": None,
    "num_shared_experts": 2,
    "n_shared_experts": None,
    "rope_theta": 10000.0,
    "rope_parameters": None,
    "use_bias": False,
    "use_qkv_bias": False,
    "norm_head": False,
}
BAICHUAN = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]}
# Families that transformers does not have: Llama with other names, and the keys of config.json.
RENAMED = {
    "baichuan": (fuse_baichuan, {**BAICHUAN, "z_loss_weight": 0}),
    "baichuan-alibi": (
        fuse_baichuan,
        {**BAICHUAN, "model_max_length": 128, "max_position_embeddings": None},
    ),
    "bailing-moe": (
        fuse_ling,
        {
            **LING,
            "architectures": ["BailingMoeV2ForCausalLM"],
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
        },
    ),
    "bailing-moe-first": (
        fuse_first_ling,
        {
            **LING,
            "architectures": ["BailingMoeForCausalLM"],
            "use_qk_norm": None,
            "partial_rotary_factor": None,
            "routed_scaling_factor": None,
            "n_group": None,
            "topk_group": None,
        },
    ),
    "deepseek": (
        without_choice_bias,
        {
            "model_type": "deepseek",
            "architectures": ["DeepseekForCausalLM"],
            "scoring_func": "softmax",
            "moe_layer_freq": 1,
            "rope_theta": 10000.0,
            "rope_parameters": None,
            "partial_rotary_factor": None,
            "num_nextn_predict_layers": None,
        },
    ),
    "qwen": (
        fuse_qwen,
        {
            "model_type": "qwen",
            "architectures": ["QWenLMHeadModel"],
            "intermediate_size": 2 * TINY["intermediate_size"],
            "seq_length": TINY["max_position_embeddings"],
            "kv_channels": 4,
            "layer_norm_epsilon": 1e-6,
            "rms_norm_eps": None,
            "no_bias": True,
            "rotary_emb_base": 10000,
            "use_logn_attn": True,
            "use_dynamic_ntk": True,
            "rope_parameters": None,
            "layer_types": None,
            "num_key_value_heads": None,
        },
    ),
    "internlm2": (
        fuse_internlm2,
        {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
    ),
    "internlm3": (
        dict,
        {
            "model_type": "internlm3",
            "architectures": ["InternLM3ForCausalLM"],
            "bias": False,
            "qkv_bias": False,
        },
    ),
    "exaone": (
        rename_exaone,
        {
            "model_type": "exaone",
            "architectures": ["ExaoneForCausalLM"],
            "num_layers": 2,
            "num_hidden_layers": None,
            "layer_norm_epsilon": 1e-6,
            "activation_function": "silu",
            "hidden_act": None,
        },
    ),
    # Granite has the numbers that follow from these keys.
    "minicpm": (
        dict,
        {
            "model_type": "minicpm",
            "architectures": ["MiniCPMForCausalLM"],
            "scale_emb": 3.0,
            "scale_depth": 1.4,
            "dim_model_base": 8,
            "embedding_multiplier": None,
            "residual_multiplier": None,
            "attention_multiplier": None,
            "logits_scaling": None,
        },
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
    for key in ("attention_bias", "mlp_bias"):
        config.pop(key, None)
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
