#!/usr/bin/env python3
"""Embeds texts with transformers' ModernBERT and random weights; prints one JSON line.

    python3 bench/peers/encoder_torch.py [--batch 64] [--seq 256] [--batches 16] [--rounds 5]
        [--compile whole|layers|none] [--attention sdpa] [--device cuda] [--tiny]

The peer of `npm run bench -- embed` with the same sizes and lengths of texts. A forward has bf16
weights, a padding mask and a mean over the tokens of each text; its vectors arrive on the host.
--compile layers compiles one layer of each kind, which takes a few seconds.
"""

import argparse
import json
import time

import torch
from transformers import ModernBertConfig, ModernBertModel


def lengths_of(batch, longest, turn):
    start = -(-longest // 2)
    others = [
        start + (turn * batch + text) * 7919 % (longest - start + 1) for text in range(1, batch)
    ]
    return [longest, *others]


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("batch", 64), ("seq", 256), ("batches", 16), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--compile", choices=("whole", "layers", "none"), default="whole")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    sizes = dict(vocab_size=50368, hidden_size=768, intermediate_size=1152, num_hidden_layers=22)
    if args.tiny:
        sizes = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=3)
    heads = 4 if args.tiny else 12
    config = ModernBertConfig(
        **sizes, num_attention_heads=heads, attn_implementation=args.attention, pad_token_id=0
    )
    model = ModernBertModel(config).to(args.device, torch.bfloat16).eval()

    begin = time.perf_counter()
    if args.compile == "layers":
        for layer in model.layers:
            layer.compile()

    def embed(ids, mask):
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(2).to(hidden.dtype)
        return ((hidden * weights).sum(1) / weights.sum(1)).float()

    if args.compile == "whole":
        embed = torch.compile(embed)

    batches = []
    tokens = 0
    for turn in range(args.batches):
        lengths = lengths_of(args.batch, args.seq, turn)
        tokens += sum(lengths)
        ids = torch.zeros(args.batch, args.seq, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for text, length in enumerate(lengths):
            own = text * 7919 + turn * 101 + torch.arange(length) * 31
            ids[text, :length] = own % config.vocab_size
            mask[text, :length] = 1
        batches.append((ids, mask))

    def run():
        start = time.perf_counter()
        for ids, mask in batches:
            embed(ids.to(args.device), mask.to(args.device)).cpu()
        return time.perf_counter() - start

    with torch.inference_mode():
        run()
        compiled = time.perf_counter() - begin
        run()
        times = sorted(run() for _ in range(args.rounds))
    seconds = times[len(times) // 2]
    print(
        json.dumps(
            {
                **{"torch": torch.__version__, "compile": args.compile},
                **{"attention": args.attention, "first_round_s": round(compiled, 1)},
                **{"batch": args.batch, "seq": args.seq, "texts": args.batch * args.batches},
                "ms_per_batch": round(seconds / args.batches * 1000, 3),
                "tokens_per_s": round(tokens / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
