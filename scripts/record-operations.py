"""Records f64 results and gradients of PyTorch for the operations of docs/pytorch.md.

Usage: python scripts/record-operations.py, which writes test/golden/operations.json.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def wave(shape, scale, step, start):
    """Numbers without ties, the same everywhere."""
    n = math.prod(shape)
    return (scale * torch.sin(step * torch.arange(n) + start)).round(decimals=6).reshape(shape)


# Sizes are odd. Gradients are asked of what is floating.
INPUTS = {
    "a": wave([3, 7], 1.7, 1.3, 0.5),
    "b": wave([3, 7], 1.3, 0.7, 0.2),
    "p": wave([3, 7], 0.8, 0.9, 0.1) + 1.1,  # positive
    "u": wave([3, 7], 0.4, 1.1, 0.3) + 0.5,  # within (0, 1)
    "row": wave([7], 1.1, 1.9, 0.4),
    "other": wave([7], 0.9, 1.2, 1.4),
    "m": wave([7, 5], 0.9, 1.7, 0.6),
    "s": wave([5, 5], 1.2, 1.6, 0.3),
    "t": wave([2, 3, 7], 1.4, 1.5, 0.9),
    "w": wave([2, 7, 5], 0.7, 1.2, 0.8),
    "q": wave([1, 2, 3, 5], 1.2, 1.1, 0.2),
    "k": wave([1, 2, 7, 5], 1.1, 1.3, 0.7),
    "v": wave([1, 2, 7, 5], 1.3, 0.8, 0.1),
    "image": wave([2, 4, 5, 7], 1.0, 1.4, 0.3),
}
INDICES = {
    "rows": torch.tensor([2, 0, 2, 1, 0]),
    "cells": torch.tensor([[0, 6, 3, 2, 5], [4, 1, 0, 6, 2], [3, 5, 1, 0, 6]]),
    "labels": torch.tensor([4, 0, -100]),
}

ELEMENTWISE = "abs neg sign floor ceil round trunc exp expm1 square sin cos tan tanh erf sigmoid relu"
POSITIVE = "reciprocal log log1p sqrt rsqrt"
PAIRS = "sub mul maximum minimum atan2"
COMPARISONS = "eq ne lt le gt ge"

OPERATIONS = {
    **{name: (lambda f, name=name: getattr(torch, name)(f.a)) for name in ELEMENTWISE.split()},
    **{name: (lambda f, name=name: getattr(torch, name)(f.p)) for name in POSITIVE.split()},
    **{name: (lambda f, name=name: getattr(torch, name)(f.a, f.b)) for name in PAIRS.split()},
    **{
        name: (lambda f, name=name: getattr(torch, name)(f.a, f.row.detach().mul(0).add(0.25)))
        for name in COMPARISONS.split()
    },
    "add": lambda f: torch.add(f.a, f.row),
    "div": lambda f: torch.div(f.a, f.p),
    "pow": lambda f: torch.pow(f.p, f.b),
    "clamp": lambda f: torch.clamp(f.a, -0.7, 0.9),
    "softmax": lambda f: torch.softmax(f.a, -1),
    "log_softmax": lambda f: torch.log_softmax(f.a, -1),
    "silu": lambda f: F.silu(f.a),
    "gelu": lambda f: F.gelu(f.a),
    "gelu tanh": lambda f: F.gelu(f.a, approximate="tanh"),
    "leaky_relu": lambda f: F.leaky_relu(f.a, 0.1),
    "elu": lambda f: F.elu(f.a, 0.7),
    "softplus": lambda f: F.softplus(f.a, 2.0),
    "logsigmoid": lambda f: F.logsigmoid(f.a),
    "isnan": lambda f: torch.isnan(torch.log(f.a.detach())),
    "isinf": lambda f: torch.isinf(1 / torch.relu(f.a.detach())),
    "isfinite": lambda f: torch.isfinite(1 / torch.relu(f.a.detach())),
    "logical_and": lambda f: torch.logical_and(f.a > 0, f.b > 0),
    "logical_or": lambda f: torch.logical_or(f.a > 0, f.b > 0),
    "logical_xor": lambda f: torch.logical_xor(f.a > 0, f.b > 0),
    "logical_not": lambda f: torch.logical_not(f.a > 0),
    "any": lambda f: torch.any(f.a > 1.6, 1),
    "all": lambda f: torch.all(f.a > -1.6, 1),
    "where": lambda f: torch.where(f.a > 0, f.a, f.b),
    "masked_fill": lambda f: f.a.masked_fill(f.b > 0, -2.0),
    "tril": lambda f: torch.tril(f.s, -1),
    "triu": lambda f: torch.triu(f.s, 1),
    "gather": lambda f: torch.gather(f.a, 1, f.cells),
    "take_along_dim": lambda f: torch.take_along_dim(f.a, f.cells, 1),
    "scatter": lambda f: torch.scatter(f.a, 1, f.cells, f.s[:3]),
    "scatter_add": lambda f: torch.scatter_add(f.a, 1, f.cells, f.s[:3]),
    "index_select": lambda f: torch.index_select(f.a, 0, f.rows),
    "embedding": lambda f: F.embedding(f.rows, f.a),
    "one_hot": lambda f: F.one_hot(f.rows, 3),
    "sum": lambda f: torch.sum(f.a, 1),
    "mean": lambda f: torch.mean(f.a, 0, keepdim=True),
    "prod": lambda f: torch.prod(f.a, 1),
    "amax": lambda f: torch.amax(f.a, 1),
    "amin": lambda f: torch.amin(f.a, 0),
    "var": lambda f: torch.var(f.a, 1),
    "std": lambda f: torch.std(f.a, 1),
    "norm": lambda f: torch.norm(f.a, 2, 1),
    "logsumexp": lambda f: torch.logsumexp(f.a, 1),
    "count_nonzero": lambda f: torch.count_nonzero(torch.relu(f.a.detach()), 1),
    "argmax": lambda f: torch.argmax(f.a, 1),
    "argmin": lambda f: torch.argmin(f.a, 1),
    "sort": lambda f: torch.sort(f.a, 1, descending=True).values,
    "argsort": lambda f: torch.argsort(f.a, 1),
    "topk": lambda f: torch.topk(f.a, 3, 1).values,
    "cumsum": lambda f: torch.cumsum(f.a, 1),
    "cumprod": lambda f: torch.cumprod(f.a, 1),
    "matmul": lambda f: torch.matmul(f.t, f.m),
    "mm": lambda f: torch.mm(f.a, f.m),
    "bmm": lambda f: torch.bmm(f.t, f.w),
    "dot": lambda f: torch.dot(f.row, f.other),
    "outer": lambda f: torch.outer(f.row, f.other),
    "einsum": lambda f: torch.einsum("btc,bcd->tbd", f.t, f.w),
    "linear": lambda f: F.linear(f.t, f.a),
    "baddbmm": lambda f: torch.baddbmm(f.t[:, :, :5], f.t, f.w),
    "addmm": lambda f: torch.addmm(f.a[:, :5], f.a, f.m),
    "scaled_dot_product_attention": lambda f: F.scaled_dot_product_attention(
        f.q, f.k, f.v, attn_mask=torch.tensor([[True] * n + [False] * (7 - n) for n in (5, 6, 7)])
    ),
    "reshape": lambda f: f.t.reshape(7, 6),
    "view": lambda f: f.t.view(3, 14),
    "flatten": lambda f: torch.flatten(f.t, 1),
    "unflatten": lambda f: torch.unflatten(f.m[:, :4], 1, (2, 2)),
    "transpose": lambda f: torch.transpose(f.t, 0, 2),
    "permute": lambda f: torch.permute(f.t, (2, 0, 1)),
    "movedim": lambda f: torch.movedim(f.t, 0, -1),
    "expand": lambda f: f.row.expand(3, 7),
    "squeeze": lambda f: torch.squeeze(f.q, 0),
    "unsqueeze": lambda f: torch.unsqueeze(f.a, 1),
    "narrow": lambda f: torch.narrow(f.a, 1, 2, 3),
    "select": lambda f: torch.select(f.t, 1, 2),
    "x[:, 1:5]": lambda f: f.a[:, 1:5],
    "split": lambda f: torch.split(f.a, 3, 1)[2],
    "chunk": lambda f: torch.chunk(f.a, 2, 1)[1],
    "unbind": lambda f: torch.unbind(f.a, 1)[4],
    "diagonal": lambda f: torch.diagonal(f.s, 1),
    "clone": lambda f: torch.clone(f.a),
    "contiguous": lambda f: f.a.t().contiguous(),
    "cat": lambda f: torch.cat([f.a, f.b], 1),
    "stack": lambda f: torch.stack([f.a, f.b], 1),
    "repeat": lambda f: f.a.repeat(2, 1),
    "repeat_interleave": lambda f: torch.repeat_interleave(f.a, 2, 1),
    "flip": lambda f: torch.flip(f.a, [1]),
    "roll": lambda f: torch.roll(f.a, 2, 1),
    "pad": lambda f: F.pad(f.a, (2, 1)),
    "pad reflect": lambda f: F.pad(f.t, (2, 1), mode="reflect"),
    "to": lambda f: f.a.detach().mul(10).to(torch.int32),
    "add_": lambda f: f.a.detach().clone().add_(f.b.detach()),
    "sub_": lambda f: f.a.detach().clone().sub_(f.b.detach()),
    "mul_": lambda f: f.a.detach().clone().mul_(f.b.detach()),
    "div_": lambda f: f.a.detach().clone().div_(f.p.detach()),
    "neg_": lambda f: f.a.detach().clone().neg_(),
    "exp_": lambda f: f.a.detach().clone().exp_(),
    "sqrt_": lambda f: f.p.detach().clone().sqrt_(),
    "relu_": lambda f: f.a.detach().clone().relu_(),
    "clamp_": lambda f: f.a.detach().clone().clamp_(-0.7, 0.9),
    "fill_": lambda f: f.a.detach().clone().fill_(0.5),
    "zero_": lambda f: f.a.detach().clone().zero_(),
    "copy_": lambda f: f.a.detach().clone().copy_(f.row.detach()),
    "masked_fill_": lambda f: f.a.detach().clone().masked_fill_(f.b > 0, -2.0),
    "zeros": lambda f: torch.zeros(3, 7),
    "ones": lambda f: torch.ones(3, 7),
    "full": lambda f: torch.full((3, 7), 0.3),
    "zeros_like": lambda f: torch.zeros_like(f.a),
    "ones_like": lambda f: torch.ones_like(f.a),
    "full_like": lambda f: torch.full_like(f.a, 0.3),
    "arange": lambda f: torch.arange(3, 17, 2),
    "linspace": lambda f: torch.linspace(-1, 2, 7),
    "eye": lambda f: torch.eye(3, 5),
    "layer_norm": lambda f: F.layer_norm(f.a, (7,), f.row, f.other),
    "rms_norm": lambda f: F.rms_norm(f.a, (7,), f.row, 1e-6),
    "unfold": lambda f: F.unfold(f.image, 3, padding=1, stride=2),
    "cross_entropy": lambda f: F.cross_entropy(f.a, f.labels, label_smoothing=0.1),
    "nll_loss": lambda f: F.nll_loss(torch.log_softmax(f.a, 1), f.labels),
    "mse_loss": lambda f: F.mse_loss(f.a, f.b),
    "l1_loss": lambda f: F.l1_loss(f.a, f.b, reduction="sum"),
    "huber_loss": lambda f: F.huber_loss(f.a, f.b, delta=0.7),
    "smooth_l1_loss": lambda f: F.smooth_l1_loss(f.a, f.b, beta=0.7),
    "binary_cross_entropy_with_logits": lambda f: F.binary_cross_entropy_with_logits(f.a, f.u),
    "kl_div": lambda f: F.kl_div(torch.log_softmax(f.a, 1), torch.softmax(f.b, 1), reduction="batchmean"),
    "normalize": lambda f: F.normalize(f.a, dim=1),
    "cosine_similarity": lambda f: F.cosine_similarity(f.a, f.b, dim=1),
    "lerp": lambda f: torch.lerp(f.a, f.b, 0.3),
    "addcmul": lambda f: torch.addcmul(f.a, f.b, f.p, value=0.5),
    "logaddexp": lambda f: torch.logaddexp(f.a, f.b),
    "remainder": lambda f: torch.remainder(f.a.detach(), 0.4),
    "floor_divide": lambda f: torch.floor_divide(f.a.detach(), 0.4),
    "glu": lambda f: F.glu(f.q[..., :4]),
    "log2": lambda f: torch.log2(f.p),
}


def listed(x):
    return [None if math.isnan(v) else float(f"{v:.12g}") for v in x.to(torch.float64).flatten().tolist()]


def recorded(run):
    floats = {name: x.clone().requires_grad_() for name, x in INPUTS.items()}
    out = run(SimpleNamespace(**floats, **INDICES))
    row = {"shape": list(out.shape), "values": listed(out.detach())}
    if out.requires_grad:
        n = out.numel()
        (out * torch.cos(1.7 * torch.arange(n) + 0.3).reshape(out.shape)).sum().backward()
        row["gradients"] = {name: listed(x.grad) for name, x in floats.items() if x.grad is not None}
    return row


golden = {
    "torch": torch.__version__.split("+")[0],
    "inputs": {name: {"shape": list(x.shape), "values": listed(x)} for name, x in INPUTS.items()},
    "indices": {name: {"shape": list(x.shape), "values": x.flatten().tolist()} for name, x in INDICES.items()},
    "operations": {name: recorded(run) for name, run in OPERATIONS.items()},
}
path = Path(__file__).parent.parent / "test/golden/operations.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(f"{len(OPERATIONS)} operations, {path.stat().st_size} bytes")
