"""Records losses and gradient norms of on-policy distillation with TRL: record-gkd.py INPUTS OUTPUT.

INPUTS is a folder that test/trainer/gkd-sampled.test.ts writes: student, teacher, prompts.json.
Each case takes three updates; completions are greedy, so that no random numbers differ.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from trl.experimental.gkd import GKDTrainer

torch.set_num_threads(1)
inputs, output = sys.argv[1:]
prompts = json.load(open(f"{inputs}/prompts.json"))
BATCH, NEW = 4, 6


def load(name):
    return AutoModelForCausalLM.from_pretrained(f"{inputs}/{name}", dtype=torch.float32)


def run(by_teacher, beta):
    student, teacher = load("student"), load("teacher")
    sampler = teacher if by_teacher else student
    config = GenerationConfig(
        max_new_tokens=NEW, do_sample=False, pad_token_id=0,
        eos_token_id=sampler.generation_config.eos_token_id,
    )
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.0)
    steps = []
    for step in range(3):
        rows = torch.tensor(prompts[step * BATCH : (step + 1) * BATCH])
        given = dict(prompts=rows, prompt_attention_mask=torch.ones_like(rows))
        with torch.no_grad():
            ids, mask, labels = GKDTrainer.generate_on_policy_outputs(sampler, given, config)
        logits = student(input_ids=ids, attention_mask=mask).logits[:, :-1]
        with torch.no_grad():
            wanted = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1]
        loss = GKDTrainer.generalized_jsd_loss(logits, wanted, labels[:, 1:], beta)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(dict(loss=float(f"{loss.item():.7g}"), grad_norm=float(f"{norm.item():.7g}")))
    return steps


cases = {"student": (False, 0.5), "student, reverse": (False, 1), "teacher": (True, 0.5)}
json.dump({name: run(*case) for name, case in cases.items()}, open(output, "w"), indent=1)
