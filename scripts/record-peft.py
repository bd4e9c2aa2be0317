#!/usr/bin/env python3
"""Records outputs of PEFT for tiny models with adapters, as golden values of the tests.

    python3 scripts/record-peft.py OUTDIR [--only CASE ...]     # OUTDIR is test/golden/peft

Writes OUTDIR/<case>/base (config.json, model.safetensors) but where another case has the same
weights, OUTDIR/<case>/adapter (PEFT's files),
OUTDIR/<case>/golden.safetensors (tokens, logits, loss, the gradient of each trained parameter, the
logits of the merged model) and OUTDIR/summary.json.
Downloads nothing. Needs torch, transformers, peft, safetensors.
"""

import argparse
import json
import os
import sys
import traceback

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def llama():
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=64, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


EXPERTS = {"num_hidden_layers": 1, "num_experts_per_tok": 2, "head_dim": 8}


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(
        **{**SIZES, **EXPERTS}, num_experts=4, moe_intermediate_size=16, tie_word_embeddings=False
    )
    return transformers.Qwen3MoeForCausalLM(config)


def gpt_oss():
    sizes = {**SIZES, **EXPERTS, "intermediate_size": 24, "num_local_experts": 3}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes))


CASES = {
    "llama": (llama, {"target_modules": "all-linear", "r": 4, "lora_alpha": 16}),
    "llama-rslora": (
        llama,
        {
            "r": 6,
            "lora_alpha": 3,
            "use_rslora": True,
            "target_modules": ["q_proj", "v_proj", "embed_tokens"],
            "rank_pattern": {"layers.1.*v_proj": 2},
            "alpha_pattern": {"q_proj": 5},
            "layers_to_transform": None,
            "modules_to_save": ["lm_head"],
        },
    ),
    "gpt2": (gpt2, {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True, "bias": "all"}),
    "llama-dora": (
        llama,
        {
            "r": 4,
            "lora_alpha": 16,
            "use_dora": True,
            "target_modules": ["q_proj", "down_proj", "embed_tokens"],
            "modules_to_save": ["norm"],
        },
    ),
    "qwen3-moe": (
        qwen3_moe,
        {
            "r": 4,
            "lora_alpha": 16,
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            "rank_pattern": {"down_proj": 2},
        },
    ),
    "gpt-oss": (
        gpt_oss,
        {
            "r": 4,
            "lora_alpha": 8,
            "use_rslora": True,
            "target_modules": [],
            "target_parameters": ["experts.gate_up_proj"],
        },
    ),
    "gpt2-dora": (
        gpt2,
        {
            "r": 4,
            "lora_alpha": 8,
            "use_dora": True,
            "fan_in_fan_out": True,
            "bias": "lora_only",
            "target_modules": ["c_attn", "c_fc"],
        },
    ),
}

# Their bases are those of the case named.
SAME_BASE = {"llama-dora": "llama", "gpt2-dora": "gpt2"}


def tokens_of(vocabulary):
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, vocabulary, (2, 10), generator=generator)


def stir(model):
    """B begins with zeros: everything that is trained moves away from where it starts."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def record(out, name):
    make, options = CASES[name]
    torch.manual_seed(3)
    base = make().eval()
    if name not in SAME_BASE:
        base.save_pretrained(os.path.join(out, name, "base"))
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    stir(model)
    model.save_pretrained(os.path.join(out, name, "adapter"))
    tokens = tokens_of(base.config.vocab_size)
    result = model(input_ids=tokens, labels=tokens)
    result.loss.backward()
    golden = {"tokens": tokens.int(), "logits": result.logits, "loss": result.loss}
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            golden[f"grad.{key}"] = parameter.grad
    merged = model.merge_and_unload()
    golden["merged"] = merged(input_ids=tokens).logits
    save_file(
        {key: value.detach().contiguous() for key, value in golden.items()},
        os.path.join(out, name, "golden.safetensors"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUTDIR")
    parser.add_argument("--only", nargs="+", metavar="CASE")
    args = parser.parse_args()
    failures = []
    parts = {name: lambda name=name: record(args.out, name) for name in CASES}
    for name, body in parts.items():
        if args.only and name not in args.only:
            continue
        try:
            body()
        except Exception as error:  # noqa: BLE001: whatever is missing is reported, not fatal
            traceback.print_exc()
            failures.append(f"{name}: {type(error).__name__}: {error}")
    if args.only:
        sys.exit("; ".join(failures))
    versions = {name: __import__(name).__version__ for name in ("torch", "transformers", "peft")}
    with open(os.path.join(args.out, "summary.json"), "w") as file:
        json.dump({"versions": versions, "failures": failures}, file, indent=2)
        file.write("\n")
    for failure in failures:
        print(f"NOT RECORDED: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
