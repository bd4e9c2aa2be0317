#!/usr/bin/env python3
"""Records tiny Llamas with packed weights as GPTQ, AWQ and compressed-tensors store them.

    python3 scripts/record-quantized.py OUTDIR       # OUTDIR is test/golden/quantized

Writes OUTDIR/<case>/ (config.json, model.safetensors) and OUTDIR/<case>/golden.json: tokens, logits
of the same model with its weights as the format's formula gives them, in f32, and digests of the
bits of each of those weights in f32 and in f16. Codes are random: what is recorded is the layout
and the formula, not a way to choose codes. Downloads nothing. Needs numpy, torch, transformers,
safetensors.
"""

import argparse
import hashlib
import json
import os

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}

# Nibble i of an AWQ word is this output of eight.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

CASES = {
    "gptq": {"method": "gptq", "bits": 4, "group": 32},
    "gptq-act-order": {"method": "gptq", "bits": 4, "group": 16, "act_order": True},
    "gptq-8bit": {"method": "gptq", "bits": 8, "group": -1},
    "awq": {"method": "awq", "bits": 4, "group": 32},
    "pack-quantized": {"method": "compressed-tensors", "bits": 4, "group": 32},
    "pack-quantized-zeros": {
        "method": "compressed-tensors",
        "bits": 4,
        "group": 16,
        "symmetric": False,
        "act_order": True,
    },
    "pack-quantized-8bit": {"method": "compressed-tensors", "bits": 8, "group": -1},
}


def pack(codes, bits, axis, order=None):
    """Codes as int32 words along `axis`, which is filled up with zeros; the first in the low bits."""
    per = 32 // bits
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    missing = -codes.shape[-1] % per
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    codes = codes.reshape(*codes.shape[:-1], -1, per)
    words = np.zeros(codes.shape[:-1], dtype=np.uint64)
    for place in range(per):
        words |= codes[..., order[place] if order else place] << np.uint64(bits * place)
    words = words.astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)))


def layer(random, outputs, inputs, case):
    """The tensors of one layer in the files, and its weight in f32."""
    bits, method = case["bits"], case["method"]
    group = inputs if case["group"] == -1 else case["group"]
    groups = -(-inputs // group)
    index = np.arange(inputs) // group
    if case.get("act_order"):
        index = index[random.permutation(inputs)]
    codes = random.integers(0, 2**bits, (outputs, inputs))
    scales = (random.uniform(0.5, 1.5, (outputs, groups)) * 0.2 / 2**bits).astype(np.float16)
    zeros = random.integers(0, 2**bits, (outputs, groups))
    if method == "compressed-tensors" and case.get("symmetric", True):
        zeros = np.full((outputs, groups), 2 ** (bits - 1))
    # Exact in f32; f16 rounds it once.
    exact = (codes - zeros[:, index]).astype(np.float32) * scales[:, index].astype(np.float32)
    weight = torch.from_numpy(exact)
    scale = torch.from_numpy(scales)
    if method == "gptq":
        tensors = {
            "qweight": pack(codes.T, bits, 0),
            "qzeros": pack((zeros.T - 1) % 2**bits, bits, 1),
            "scales": scale.T.contiguous(),
            "g_idx": torch.from_numpy(index.astype(np.int32)),
        }
    elif method == "awq":
        tensors = {
            "qweight": pack(codes.T, bits, 1, AWQ_ORDER),
            "qzeros": pack(zeros.T, bits, 1, AWQ_ORDER),
            "scales": scale.T.contiguous(),
        }
    else:
        tensors = {
            "weight_packed": pack(codes, bits, 1),
            "weight_scale": scale,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not case.get("symmetric", True):
            tensors["weight_zero_point"] = pack(zeros, bits, 0)
        if case.get("act_order"):
            tensors["weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    return tensors, weight


def digest(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def quantization_config(case):
    bits, group = case["bits"], case["group"]
    if case["method"] == "gptq":
        return {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group,
            "desc_act": case.get("act_order", False),
            "sym": False,
            "checkpoint_format": "gptq",
        }
    if case["method"] == "awq":
        return {
            "quant_method": "awq",
            "bits": bits,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
        }
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": case.get("symmetric", True),
        "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group,
        "actorder": "group" if case.get("act_order") else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def record(out, name, case):
    torch.manual_seed(3)
    random = np.random.default_rng(7)
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.LlamaForCausalLM(config).eval()
    files, digests = {}, {}
    for path, tensor in model.state_dict().items():
        if not path.endswith("_proj.weight"):
            files[path] = tensor.half().contiguous()
            tensor.copy_(files[path])
            continue
        tensors, weight = layer(random, *tensor.shape, case)
        module = path[: -len(".weight")]
        files.update({f"{module}.{end}": value for end, value in tensors.items()})
        digests[module] = {"f32": digest(weight), "f16": digest(weight.half())}
        tensor.copy_(weight)
    tokens = torch.from_numpy(random.integers(0, SIZES["vocab_size"], (2, 12)))
    with torch.no_grad():
        logits = model(tokens).logits
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    save_file(files, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    values = config.to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float16",
        "quantization_config": quantization_config(case),
    }
    values.pop("dtype", None)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
    golden = {
        "tokens": tokens.tolist(),
        "logits": [round(value, 7) for value in logits.flatten().tolist()],
        "weights": digests,
    }
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    out = parser.parse_args().out
    for name, case in CASES.items():
        record(out, name, case)
    versions = {
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    with open(os.path.join(out, "summary.json"), "w", encoding="utf-8") as file:
        json.dump(versions, file)


if __name__ == "__main__":
    main()
