"""Records the greedy continuations of prompts in transformers."""

import os

import torch
import transformers
from renamed_families import PATCHES

NEW_TOKENS = 64
PROMPTS = 3
# A token must lead the next one by this much, so that f32 sums in any order choose the same.
LEAST_LEAD = 2e-3
# Prompts that are tried for one text.
ATTEMPTS = 40


def continue_prompt(model, prompt, most):
    """The tokens, and the smallest lead of a choice; an end token is a token as any other."""
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
        do_sample=False,
        max_new_tokens=most,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    leads = [logits[0].topk(2).values for logits in result.logits]
    return result.sequences[0, len(prompt) :].tolist(), min(float(a - b) for a, b in leads)


def texts_of(folder):
    """Prompts of three lengths and what follows them, by the model of a folder."""
    plain = os.path.join(folder, "plain")
    source = plain if os.path.exists(plain) else folder
    # Some classes have no place in AutoModelForCausalLM.
    (architecture,) = transformers.AutoConfig.from_pretrained(source).architectures
    model = getattr(transformers, architecture).from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    PATCHES.get(os.path.basename(folder), lambda model: None)(model)
    model.eval()
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(7)
    limit = getattr(model.config, "max_position_embeddings", 128)
    texts, failed = [], 0
    while len(texts) < PROMPTS:
        length = [1, 9, 37][len(texts)]
        prompt = torch.randint(3, model.config.vocab_size, (length,), generator=generator)
        most = min(NEW_TOKENS, limit - length)
        tokens, lead = continue_prompt(model, prompt.tolist(), most)
        if lead < LEAST_LEAD:
            failed += 1
            if failed > ATTEMPTS:
                raise RuntimeError(f"{folder}: a choice leads by {lead} only")
            continue
        assert len(tokens) == most, (folder, len(tokens), most)
        texts.append({"prompt": prompt.tolist(), "tokens": tokens})
    return texts
