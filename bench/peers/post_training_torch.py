#!/usr/bin/env python3
"""Measures updates of DPO and GRPO in PyTorch; prints one JSON line.

    python3 bench/peers/post_training_torch.py dpo [--batch 8] [--seq 1024] [--prompt 256]
    python3 bench/peers/post_training_torch.py grpo [--prompts 64,8] [--generations 8] [--new 256]
    ... --mode eager,compile                                           # one line for each mode
    ... --tiny --device cpu                                            # a dry run of the same

`npm run bench -- dpo` and `-- grpo` are compared with these loops, in one call. Both use
transformers' LlamaForCausalLM with SDPA and random weights of Llama 3.2 1B:
  dpo    f32 weights, autocast to bf16, fused AdamW; a bf16 reference; logits of answers only
  grpo   bf16 weights and bf16 moments, so that generate() reads bf16; generate() with a dynamic
         cache; one update for each number of prompts
Mode "compile" compiles blocks and losses, those of grpo in training only. Progress is on stderr.
The bench trains grpo with f32 master weights and moments, which cost more than bf16.
"""

import argparse
import json
import sys
import time

STARTED = time.perf_counter()

import torch
import torch.nn.functional as F

SHAPE = dict(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
)
TINY = dict(
    vocab_size=1024,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def model_of(args, dtype):
    import transformers

    config = transformers.LlamaConfig(
        **(TINY if args.tiny else SHAPE),
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(args.device):
        model = transformers.LlamaForCausalLM(config)
    return model.to(dtype)


def progress(what):
    print(f"{time.perf_counter() - STARTED:6.1f} s: {what}", file=sys.stderr, flush=True)


def token_logps(head, hidden, targets):
    """Log-probabilities of targets [B, T], of hidden states [B, T, C]."""
    logits = F.linear(hidden, head).float()
    chosen = logits.gather(-1, targets[..., None]).squeeze(-1)
    return chosen - torch.logsumexp(logits, -1)


def logps_of(model, ids, first, score):
    """Log-probabilities of the tokens from `first` on."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    weight = model.lm_head.weight.to(hidden.dtype)
    return score(weight, hidden[:, first - 1 : -1], ids[:, first:])


def rows_of(count, length, vocabulary, device):
    rows = torch.arange(count, device=device)[:, None]
    places = torch.arange(length, device=device)[None]
    return ((rows + 1) * 7919 + places * 31 + (places % 7) * rows + 1) % vocabulary


def wait(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def peaks(args):
    if args.device != "cuda":
        return {}
    return dict(
        peak_device_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        peak_device_reserved_gib=round(torch.cuda.max_memory_reserved() / 2**30, 2),
    )


def dpo(args, show):
    policy, reference = model_of(args, torch.float32), model_of(args, torch.bfloat16)
    reference.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)
    vocabulary = policy.config.vocab_size
    ids = rows_of(2 * args.batch, args.seq, vocabulary, args.device)
    ids[args.batch :, : args.prompt] = ids[: args.batch, : args.prompt]
    wait(args)
    progress("models")

    def update(score):
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                base = logps_of(reference, ids, args.prompt, score).sum(1)
            own = logps_of(policy, ids, args.prompt, score).sum(1)
        chosen, rejected = (own - base).chunk(2)
        loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for mode in args.mode.split(","):
        score = token_logps
        if mode == "compile":
            score = torch.compile(token_logps)
            for block in (*policy.model.layers, *reference.model.layers):
                block.compile()
        for _ in range(args.warm_up):
            update(score)
            wait(args)
            progress(f"{mode}: warm-up")
        begin = time.perf_counter()
        for _ in range(args.steps):
            loss = update(score)
        wait(args)
        seconds = (time.perf_counter() - begin) / args.steps
        show(
            mode=mode,
            pairs=args.batch,
            seq=args.seq,
            prompt=args.prompt,
            step_ms=round(1e3 * seconds, 2),
            tokens_per_second=round(2 * args.batch * args.seq / seconds),
            loss=round(float(loss.detach()), 4),
        )


def grpo(args, show):
    policy = model_of(args, torch.bfloat16)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)
    length, vocabulary = args.prompt, policy.config.vocab_size
    wait(args)
    progress("model")

    def generate(prompts, fresh):
        with torch.no_grad():
            return policy.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=args.generations,
                min_new_tokens=fresh,
                max_new_tokens=fresh,
            )

    def train(ids, score):
        completions = ids[:, length:]
        rewards = (completions % 2 == 0).float().mean(1).view(-1, args.generations)
        spread = rewards.std(1, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
        for micro, gains in zip(ids.split(args.micro), advantages.split(args.micro)):
            logp = logps_of(policy, micro, length, score)
            ratio = (logp - logp.detach()).exp()
            gains = gains[:, None]
            losses = -torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
            (losses.sum() / completions.numel()).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    blocks = policy.model.layers
    plain = [block.forward for block in blocks]
    for mode in args.mode.split(","):
        score, forwards = token_logps, plain
        if mode == "compile":
            # generate() calls the blocks too; compiling them there would time recompilations.
            score = torch.compile(token_logps)
            forwards = [torch.compile(block.forward) for block in blocks]

        def trained(ids):
            for block, forward in zip(blocks, forwards):
                block.forward = forward
            train(ids, score)
            for block, forward in zip(blocks, plain):
                block.forward = forward

        for count in map(int, args.prompts.split(",")):
            prompts = rows_of(count, length, vocabulary, args.device)
            generate(prompts, 4)
            trained(rows_of(args.micro, length + args.new, vocabulary, args.device))
            wait(args)
            progress(f"{mode}, {count} prompts: warm-up")
            begin = time.perf_counter()
            ids = generate(prompts, args.new)
            wait(args)
            generated = time.perf_counter() - begin
            trained(ids)
            wait(args)
            seconds = time.perf_counter() - begin
            fresh = count * args.generations * args.new
            assert ids.shape == (count * args.generations, length + args.new)
            show(
                mode=mode,
                prompts=count,
                generations=args.generations,
                prompt=length,
                new=args.new,
                micro_batch=args.micro,
                step_ms=round(1e3 * seconds, 2),
                generate_ms=round(1e3 * generated, 2),
                share_of_generation=round(generated / seconds, 4),
                generated_tokens_per_second=round(fresh / generated),
                tokens_per_second=round(fresh / seconds),
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=["dpo", "grpo"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--prompt", type=int)
    parser.add_argument("--prompts", default="64")
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--micro", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    is_dpo = args.method == "dpo"
    args.prompt = args.prompt or (args.seq // 4 if is_dpo else 128)
    torch.set_float32_matmul_precision("high")
    progress("imports")

    def show(**result):
        peer = dict(peer=f"torch {torch.__version__}", method=args.method)
        print(json.dumps(dict(**peer, **result, **peaks(args))), flush=True)

    (dpo if is_dpo else grpo)(args, show)


main()
