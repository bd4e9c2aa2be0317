#!/usr/bin/env python3
"""Records results of PyTorch for GPT-2, as golden values of the parity tests.

    python3 scripts/record-golden.py OUTDIR
        a tiny GPT-2: gpt2-tiny.safetensors, gpt2-tiny.json
    python3 scripts/record-golden.py OUTDIR --model 124M
        transformers' GPT2LMHeadModel with random weights

Needs torch and safetensors (and transformers for --model). Weights carry the names of
GPT2LMHeadModel; linear weights are stored [out, in], the transpose of transformers' Conv1D.
"""
import argparse
import json
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

TINY = {"vocabSize": 97, "maxSeq": 24, "channels": 48, "layers": 3, "heads": 4}
TINY_BATCH = 3
IGNORED = -100
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weightDecay": 0.1}
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class Attention(nn.Module):
    """Causal self-attention with the score matrix written out."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(channels, 3 * channels)
        self.c_proj = nn.Linear(channels, channels)

    def forward(self, x):
        B, T, C = x.shape
        D = C // self.heads
        q, k, v = (
            part.view(B, T, self.heads, D).transpose(1, 2) for part in self.c_attn(x).split(C, 2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(B, T, C))


class Mlp(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c_fc = nn.Linear(channels, 4 * channels)
        self.c_proj = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = Attention(channels, heads)
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = Mlp(channels)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        channels = config["channels"]
        self.wte = nn.Embedding(config["vocabSize"], channels)
        self.wpe = nn.Embedding(config["maxSeq"], channels)
        self.h = nn.ModuleList(Block(channels, config["heads"]) for _ in range(config["layers"]))
        self.ln_f = nn.LayerNorm(channels)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """The tied head keeps the embedding as its only weight."""

    def __init__(self, config):
        super().__init__()
        self.transformer = Transformer(config)

    def forward(self, tokens):
        return self.transformer(tokens) @ self.transformer.wte.weight.T


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def randomize(model, generator):
    """Weights larger than GPT-2's initialisation, so that no term of a gradient is negligible."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = ".ln_" in name and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.1 * noise)


def weights_of(model):
    return {f"weight.{name}": p.detach().clone() for name, p in model.named_parameters()}


def train(model, tokens, targets, steps):
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"], weight_decay=ADAMW["weightDecay"],
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def record_tiny(out):
    generator = torch.Generator().manual_seed(1234)
    model = Gpt2(TINY)
    randomize(model, generator)
    shape = (TINY_BATCH, TINY["maxSeq"])
    tokens = torch.randint(0, TINY["vocabSize"], shape, generator=generator)
    targets = torch.randint(0, TINY["vocabSize"], shape, generator=generator)
    targets[0, 5] = targets[2, -1] = IGNORED
    tensors = weights_of(model)
    tensors["tokens"], tensors["targets"] = tokens.int(), targets.int()

    logits = model(tokens)
    loss = cross_entropy(logits, targets)
    loss.backward()
    tensors["logits"] = logits.detach()
    tensors |= {f"gradient.{name}": p.grad.clone() for name, p in model.named_parameters()}

    narrow = Gpt2(TINY).to(torch.bfloat16)
    narrow.load_state_dict(model.state_dict())
    with torch.no_grad():
        narrow_logits = narrow(tokens)
    tensors["logits.bf16"] = narrow_logits

    description = {
        "config": TINY, "ignoreIndex": IGNORED, "adamw": ADAMW, "loss": loss.item(),
        "lossBf16": cross_entropy(narrow_logits, targets).item(),
        "adamwLosses": train(model, tokens, targets, 10), "torch": torch.__version__,
    }
    write(out, "gpt2-tiny", tensors, description)


def record_transformers(out, size):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"124M": {}, "355M": {"n_embd": 1024, "n_layer": 24, "n_head": 16}}
    torch.manual_seed(1234)
    config = GPT2Config(**sizes[size])
    model = GPT2LMHeadModel(config).float().eval()
    generator = torch.Generator().manual_seed(5678)
    tokens = torch.randint(0, config.vocab_size, (2, 64), generator=generator)
    targets = torch.randint(0, config.vocab_size, (2, 64), generator=generator)
    logits = model(tokens).logits
    loss = cross_entropy(logits, targets)
    loss.backward()

    def ours(name, tensor):
        return (tensor.T if name.endswith(CONV1D) else tensor).detach().contiguous()

    named = [(n, p) for n, p in model.named_parameters() if n != "lm_head.weight"]
    tensors = {f"weight.{n}": ours(n, p) for n, p in named}
    tensors |= {f"gradient.{n}": ours(n, p.grad) for n, p in named}
    tensors |= {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach()}
    description = {
        "config": {"vocabSize": config.vocab_size, "maxSeq": config.n_positions,
                   "channels": config.n_embd, "layers": config.n_layer, "heads": config.n_head},
        "ignoreIndex": IGNORED, "loss": loss.item(), "torch": torch.__version__,
    }
    write(out, f"gpt2-{size}", tensors, description)


def write(out, name, tensors, description):
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"{name}.safetensors")
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    with open(os.path.join(out, f"{name}.json"), "w") as file:
        json.dump(description, file, indent=2)
        file.write("\n")
    print(f"{path}: {os.path.getsize(path)} bytes, loss {description['loss']:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUTDIR")
    parser.add_argument("--model", choices=["124M", "355M"], help="record transformers' model instead")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    if args.model:
        record_transformers(args.out, args.model)
    else:
        record_tiny(args.out)


main()
