#!/usr/bin/env python3
"""Runs the cases of `npm run bench -- cpu --peer python3` in PyTorch on the CPU.

A line of input is a case in JSON: op, dtype, shape, backward, and the seconds to repeat it for. Its
answer is a line with the milliseconds of one call: `wall`, and `cpu` of all threads.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = dict(f32=torch.float32, bf16=torch.bfloat16)


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attn, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x, mask):
        b, t, c = x.shape
        qkv = self.attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads)
        y = causal(*qkv.permute(2, 0, 3, 1, 4), mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, channels, vocab, seq):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, channels), nn.Embedding(seq, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)
        self.register_buffer("mask", upper(seq))
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x, self.mask)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Rotary(nn.Module):
    """A block of Llama, whose keys and values are appended to a cache [2, B, heads, tokens, D]."""

    def __init__(self, channels, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, channels // heads
        plain = dict(bias=False)
        self.norm_1, self.norm_2 = (nn.Parameter(torch.ones(channels)) for _ in range(2))
        self.qkv = nn.Linear(channels, (heads + 2 * kv_heads) * self.width, **plain)
        self.o = nn.Linear(channels, channels, **plain)
        self.gate_up = nn.Linear(channels, 2 * hidden, **plain)
        self.down = nn.Linear(hidden, channels, **plain)

    def forward(self, x, cache, at, turn):
        b, t, c = x.shape
        heads = self.qkv(rms(x, self.norm_1)).view(b, t, -1, self.width).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        cache[0, :, :, at : at + t], cache[1, :, :, at : at + t] = turned(k, *turn), v
        group = self.heads // self.kv_heads
        q = turned(q, *turn).reshape(b, self.kv_heads, group * t, self.width)
        mask = upper(at + t)[at:].repeat(group, 1) if t > 1 else None
        y = causal(q, *cache[:, :, :, : at + t], mask).view(b, self.heads, t, self.width)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(rms(x, self.norm_2)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, channels, heads, kvHeads, hidden, vocab):
        super().__init__()
        self.sizes = layers, kvHeads, channels // heads
        self.embed, self.norm = nn.Embedding(vocab, channels), nn.Parameter(torch.ones(channels))
        self.blocks = nn.ModuleList(Rotary(channels, heads, kvHeads, hidden) for _ in range(layers))

    def generate(self, batch, prompt, new):
        layers, heads, width = self.sizes
        dtype = self.norm.dtype
        cache = torch.zeros(layers, 2, batch, heads, prompt + new, width, dtype=dtype)
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
        tokens, at = torch.randint(1000, (batch, prompt)), 0
        for _ in range(new):
            angles = torch.arange(at, at + tokens.shape[1])[:, None] * rates.repeat(2)
            turn = angles.cos().to(dtype), angles.sin().to(dtype)
            x = self.embed(tokens)
            for block, own in zip(self.blocks, cache):
                x = block(x, own, at, turn)
            at += tokens.shape[1]
            logits = F.linear(rms(x[:, -1], self.norm), self.embed.weight)
            tokens = logits.argmax(-1, keepdim=True)


def upper(size):
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def causal(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return (scores if mask is None else scores.masked_fill(mask, -torch.inf)).softmax(-1) @ v


def rms(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def trained(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, foreach=True)


def training(batch, **shape):
    model = Gpt2(**shape)
    optimizer = trained(model.parameters())
    tokens, targets = (torch.randint(shape["vocab"], (batch, shape["seq"])) for _ in range(2))

    def step():
        model(tokens, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def adamw(n):
    weight = nn.Parameter(torch.randn(n))
    weight.grad = torch.randn(n)
    return trained([weight]).step


def functional(op, shape, make):
    """What is computed, and of which tensors."""
    if op == "attention":
        mask = upper(shape[2])
        return lambda q, k, v: causal(q, k, v, mask), [make(*shape) for _ in range(3)]
    if op == "embedding":
        vocabulary, channels, count = shape
        tokens = torch.arange(count) * 7919 % vocabulary
        return lambda weight: F.embedding(tokens, weight), [make(vocabulary, channels)]
    if op in ("matmul", "linear"):
        m, n, k = shape
        right = make(k, n) if op == "matmul" else make(n, k)
        return (torch.matmul if op == "matmul" else F.linear), [make(m, k), right]
    if op == "layerNorm":
        width = shape[-1:]
        norm = lambda x, weight, bias: F.layer_norm(x, width, weight, bias)
        return norm, [make(*shape), make(*width), make(*width)]
    if op == "softmax":
        return lambda x: x.softmax(-1), [make(*shape)]
    return lambda x: F.gelu(x, approximate="tanh"), [make(*shape)]


def prepared(op, dtype, shape, backward):
    if op == "train":
        return training(**shape)
    if op == "adamw":
        return adamw(*shape)
    if op == "decode":
        sizes = dict(shape)
        asked = [sizes.pop(name) for name in ("batch", "prompt", "new")]
        model = Llama(**sizes).to(DTYPES[dtype])
        return lambda: model.generate(*asked)
    make = lambda *sizes: torch.rand(*sizes).to(DTYPES[dtype]).requires_grad_(backward)
    compute, inputs = functional(op, shape, make)
    if not backward:
        return lambda: compute(*inputs)
    out = torch.rand_like(compute(*inputs))
    return lambda: torch.autograd.grad(compute(*inputs), inputs, out)


def measured(call, seconds):
    call()
    wall, cpu, calls = time.perf_counter(), time.process_time(), 0
    while calls == 0 or time.perf_counter() - wall < seconds:
        call()
        calls += 1
    spent = time.perf_counter() - wall, time.process_time() - cpu
    return dict(zip(("wall", "cpu"), (1000 * one / calls for one in spent)))


def main():
    print(json.dumps(dict(peer=f"torch {torch.__version__}")), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        seconds = case.pop("seconds")
        with torch.set_grad_enabled(case["backward"] or case["op"] == "train"):
            print(json.dumps(measured(prepared(**case), seconds)), flush=True)


main()
