#!/usr/bin/env python3
"""Trains Llama's shapes with random weights on random tokens in PyTorch; prints one JSON line.

    python3 bench/peers/llama_torch.py 1b|8b BATCH [--mode eager|compile] [--model hf|plain]
        [--checkpoint] [--offload | --lora [RANK] | --qlora [RANK]] [--no-autocast]
        [--fused-loss ROWS] [--clip 1.0] [--seq 2048] [--layers N] [--steps 10] [--warm-up 3]
    python3 bench/peers/llama_torch.py 1b 2 --tiny --device cpu ...        # a dry run of the same

What `npm run bench -- train --model llama-1B|llama-8B` is compared with, in one call:
  neither         f32 weights, autocast to bf16, fused AdamW
  --offload       FSDP2 on one GPU: bf16 weights block by block, CPUOffloadPolicy, and fused AdamW
                  on the CPU
  --lora [RANK]   bf16 weights, frozen; adapters in f32 on all linear layers but the head: by PEFT,
                  or where there is none the same layer written out ("lora" in the result says)
  --qlora [RANK]  the written out adapters over layers in NF4, blocks of 64 with f32 scales, written
                  out as well: plain PyTorch, which reads its tables slower than bitsandbytes'
                  kernels do. A peer in memory, not in time
`--model hf`, the default, is transformers' LlamaForCausalLM with SDPA; `plain` is written out, and
torch.compile fuses more of it. --no-autocast computes f32 adapters in f32, as the bench does
without --adapters bf16. --fused-loss makes the logits of so many rows at a time, and makes them
again in the backward (plain only). Times are of steps back to back, with one synchronisation at
the end; tokens/s is of their mean.
"""

import argparse
import json
import math
import os
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

# config.json of Llama 3.2 1B and Llama 3.1 8B; tiny is bench/models.ts's llama-tiny.
NAMES = ("vocab", "layers", "channels", "heads", "kv_heads", "hidden", "tied")
SHAPES = {
    "1b": dict(zip(NAMES, (128256, 16, 2048, 32, 8, 8192, True))),
    "8b": dict(zip(NAMES, (128256, 32, 4096, 32, 8, 14336, False))),
    "tiny": dict(zip(NAMES, (1024, 2, 64, 4, 2, 160, True))),
}
THETA, EPS = 500000.0, 1e-5


def rates_of(width, device):
    """Radians a token of each pair of channels of a head."""
    return THETA ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        channels, self.heads, self.kv_heads = shape["channels"], shape["heads"], shape["kv_heads"]
        width = channels // self.heads
        self.q_proj = nn.Linear(channels, self.heads * width, bias=False)
        self.k_proj = nn.Linear(channels, self.kv_heads * width, bias=False)
        self.v_proj = nn.Linear(channels, self.kv_heads * width, bias=False)
        self.o_proj = nn.Linear(self.heads * width, channels, bias=False)

    def forward(self, x, cos, sin):
        rows, seq, _ = x.shape
        q = self.q_proj(x).view(rows, seq, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(rows, seq, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(rows, seq, self.kv_heads, -1).transpose(1, 2)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, seq, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        channels, hidden = shape["channels"], shape["hidden"]
        self.gate_proj = nn.Linear(channels, hidden, bias=False)
        self.up_proj = nn.Linear(channels, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, channels, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape["channels"], eps=EPS)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape["channels"], eps=EPS)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


def again(body, *inputs):
    """body(*inputs), computed again in the backward."""
    return checkpoint(body, *inputs, use_reentrant=False)


class Plain(nn.Module):
    """A Llama in the fewest lines; its forward gives the loss."""

    def __init__(self, shape, args):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape["vocab"], shape["channels"])
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["channels"], eps=EPS)
        self.lm_head = nn.Linear(shape["channels"], shape["vocab"], bias=False)
        if shape["tied"]:
            self.lm_head.weight = self.embed_tokens.weight
        self.again, self.loss_rows = args.checkpoint, args.fused_loss
        self.width = shape["channels"] // shape["heads"]

    def angles(self, seq, device):
        places = torch.arange(seq, device=device, dtype=torch.float32)
        turns = torch.outer(places, rates_of(self.width, device))
        return torch.cat((turns, turns), -1).cos(), torch.cat((turns, turns), -1).sin()

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        cos, sin = self.angles(tokens.shape[1], tokens.device)
        for block in self.layers:
            x = again(block, x, cos, sin) if self.again else block(x, cos, sin)
        x = self.norm(x).flatten(0, 1)
        targets = targets.flatten()
        if not self.loss_rows:
            return F.cross_entropy(self.lm_head(x).float(), targets)
        parts = zip(x.split(self.loss_rows), targets.split(self.loss_rows))
        sums = [again(self.loss_of, rows, wanted) for rows, wanted in parts]
        return torch.stack(sums).sum() / targets.numel()

    def loss_of(self, rows, wanted):
        return F.cross_entropy(self.lm_head(rows).float(), wanted, reduction="sum")


class Hf(nn.Module):
    """transformers' model behind the same forward: targets are shifted already."""

    def __init__(self, shape, args):
        super().__init__()
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["channels"],
            intermediate_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            max_position_embeddings=max(args.seq, 64),
            rms_norm_eps=EPS,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
            tie_word_embeddings=shape["tied"],
            use_cache=False,
            attn_implementation="sdpa",
        )
        self.llama = transformers.LlamaForCausalLM(config)
        if args.checkpoint:
            self.llama.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, tokens, targets):
        logits = self.llama(input_ids=tokens).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    @property
    def layers(self):
        return self.llama.model.layers


class PlainLora(nn.Module):
    """PEFT's lora.Linear in the fewest lines: adapters in f32 beside a frozen layer."""

    def __init__(self, base, rank):
        super().__init__()
        self.base_layer, self.scaling = base, 2.0
        where = dict(device=base.weight.device, dtype=torch.float32)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, **where)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, **where)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        result = self.base_layer(x)
        beside = self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))) * self.scaling
        return (result + beside).to(result.dtype)


NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
]


class InNf4(torch.autograd.Function):
    """x W^T, where W is made of its 4 bits for the product and once more for the gradient."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return F.linear(x, layer.values(x.dtype))

    @staticmethod
    def backward(ctx, grad):
        return grad @ ctx.layer.values(grad.dtype), None


class Nf4Linear(nn.Module):
    def __init__(self, shape, device):
        super().__init__()
        self.out_features, self.in_features = shape
        count = math.prod(shape)
        self.register_buffer("weight", torch.empty(count // 2, dtype=torch.uint8, device=device))
        self.register_buffer("absmax", torch.empty(count // 64, dtype=torch.float32, device=device))
        self.register_buffer("code", torch.tensor(NF4, device=device))
        between = (self.code[1:] + self.code[:-1]) / 2
        for start in range(0, count, 1 << 22):
            values = drawn((min(1 << 22, count - start),), torch.float32, device).view(-1, 64)
            scales = values.abs().amax(1)
            codes = torch.bucketize(values / scales[:, None], between).to(torch.uint8).flatten()
            self.weight[start // 2 : (start + codes.numel()) // 2] = codes[::2] * 16 + codes[1::2]
            self.absmax[start // 64 : (start + codes.numel()) // 64] = scales

    def values(self, dtype):
        pairs = torch.cartesian_prod(self.code, self.code).to(dtype)
        values = F.embedding(self.weight.int(), pairs).view(-1, 64)
        return (values * self.absmax.to(dtype)[:, None]).view(self.out_features, self.in_features)

    def forward(self, x):
        return InNf4.apply(x.to(torch.bfloat16), self)


def linears(model):
    named = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    return [(name, one) for name, one in named if not name.endswith("lm_head")]


def replace(model, name, module):
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def with_lora(model, rank):
    """The model with adapters, and who made them."""
    model.requires_grad_(False)
    try:
        import peft
    except ImportError:
        for name, layer in linears(model):
            replace(model, name, PlainLora(layer, rank))
        return model, "written out: peft is not installed"
    names = sorted({name.rpartition(".")[2] for name, _ in linears(model)})
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)
    return peft.inject_adapter_in_model(config, model), f"peft {peft.__version__}"


def in_four_bits(model, device, rank):
    """All linear layers but the head in NF4, made one by one on the device, beside adapters."""
    model.requires_grad_(False)
    for name, layer in linears(model):
        replace(model, name, PlainLora(Nf4Linear(layer.weight.shape, device), rank))
    for name, parameter in list(model.named_parameters()):
        if parameter.device.type != "meta":
            continue
        owner, _, last = name.rpartition(".")
        value = drawn(parameter.shape, parameter.dtype, device)
        if "norm" in name:
            value.fill_(1)
        setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    return model, "written out, over NF4 written out"


def drawn(shape, dtype, device):
    """N(0, 0.02^2), of one tile again and again: drawing 8e9 numbers on a CPU takes minutes."""
    count, tile = math.prod(shape), 1 << 20
    values = (0.02 * torch.randn(min(count, tile), device=device)).to(dtype)
    return values.repeat(-(-count // values.numel()))[:count].view(shape).clone()


def fill(model):
    """First values for what has memory but none: norms are ones, all else is normal."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if "norm" in name:
                local.fill_(1)
            else:
                local.copy_(drawn(local.shape, local.dtype, local.device))


def rope_again(model, device):
    """Buffers that a model on the meta device could not compute."""
    for module in model.modules():
        if module.__class__.__name__ == "LlamaRotaryEmbedding":
            config = module.config
            rates = rates_of(config.hidden_size // config.num_attention_heads, device)
            for name in ("inv_freq", "original_inv_freq"):
                if hasattr(module, name):
                    delattr(module, name)
                    module.register_buffer(name, rates.clone(), persistent=False)


def offloaded(make, device):
    """FSDP2 of one rank: f32 weights, gradients and state on the host, blocks come and go."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    for key, value in alone.items():
        os.environ.setdefault(key, value)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    model = make("meta")
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    how = dict(mp_policy=narrow)
    if device.type == "cuda":
        how["offload_policy"] = CPUOffloadPolicy()
    else:
        how["mesh"] = dist.device_mesh.init_device_mesh("cpu", (1,))
    for block in model.layers:
        fully_shard(block, **how)
    fully_shard(model, **how)
    model.to_empty(device="cpu")
    fill(model)
    rope_again(model, device)
    return model


def build(args, shape, device):
    """The model, and what is said of its adapters."""

    def make(where):
        with torch.device(where):
            return (Hf if args.model == "hf" else Plain)(shape, args)

    if args.offload:
        return offloaded(make, device), None
    rank = args.qlora or args.lora
    dtype = torch.bfloat16 if rank else torch.float32
    model = make("meta").to(dtype)
    lora = None
    if args.qlora:
        model, lora = in_four_bits(model, device, rank)
    else:
        model.to_empty(device=device)
        fill(model)
    if shape["tied"]:
        own = model.llama if args.model == "hf" else model
        own.lm_head.weight = (own.model if args.model == "hf" else own).embed_tokens.weight
    rope_again(model, device)
    return with_lora(model, rank) if args.lora else (model, lora)


def measured(step, device, args):
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for _ in range(args.warm_up):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(args.steps):
        loss = step()
    wait()
    return (time.perf_counter() - begin) / args.steps, float(loss.detach())


def peaks(device):
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if device.type != "cuda":
        return dict(peak_host_rss_gib=round(host, 2))
    return dict(
        peak_device_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        peak_device_reserved_gib=round(torch.cuda.max_memory_reserved() / 2**30, 2),
        peak_host_rss_gib=round(host, 2),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=["1b", "8b"])
    parser.add_argument("batch", type=int)
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--model", choices=["hf", "plain"], default="hf")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--offload", action="store_true")
    kind.add_argument("--lora", type=int, nargs="?", const=16)
    kind.add_argument("--qlora", type=int, nargs="?", const=16)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--no-autocast", action="store_true")
    parser.add_argument("--fused-loss", type=int, metavar="ROWS")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.fused_loss and args.model != "plain":
        parser.error("--fused-loss is of --model plain")
    shape = dict(SHAPES["tiny" if args.tiny else args.size])
    shape["layers"] = args.layers or shape["layers"]
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model, lora = build(args, shape, device)
    model.train()
    count = sum(parameter.numel() for parameter in model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    run = torch.compile(model) if args.mode == "compile" else model
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.1, fused=True)
    autocast = not (args.offload or args.no_autocast)
    shape_of = (args.batch, args.seq)
    tokens, targets = (torch.randint(shape["vocab"], shape_of, device=device) for _ in range(2))

    def step():
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = run(tokens, targets)
        loss.backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(trained, args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    seconds, loss = measured(step, device, args)
    ways = {"fsdp2-offload": args.offload, "qlora": args.qlora, "lora": args.lora}
    result = dict(
        peer=f"torch {torch.__version__}",
        way=next((name for name, chosen in ways.items() if chosen), "resident"),
        lora=lora,
        size="tiny" if args.tiny else args.size,
        **{key: getattr(args, key) for key in ("mode", "model", "batch", "seq", "checkpoint")},
        **{key: getattr(args, key) for key in ("fused_loss", "clip")},
        autocast=autocast,
        layers=shape["layers"],
        params=count,
        trained=sum(parameter.numel() for parameter in trained),
        ms_per_step=round(seconds * 1e3, 2),
        tokens_per_second=round(args.batch * args.seq / seconds),
        **peaks(device),
        loss=round(loss, 4),
    )
    print(json.dumps(result), flush=True)
    if args.offload:
        torch.distributed.destroy_process_group()


main()
