#!/usr/bin/env python3
"""Records the texts that transformers' beam search finds with the tiny models of the tests.

    python3 scripts/record-beams.py test/golden/transformers/models test/golden/beams.json

The first is what record-transformers.py writes as OUTDIR/models. Needs torch and transformers;
downloads nothing and takes seconds on a CPU. A search is recorded only if weights that differ by a
millionth, and f64, find the same texts: else the order of f32 sums might decide.
"""

import copy
import json
import os
import sys

import torch
import transformers

FAMILIES = ["gpt2", "llama", "qwen2-window"]
NEW_TOKENS = 14
# By the library's names.
SEARCHES = [
    {"numBeams": 2},
    {"numBeams": 4, "n": 4},
    {"numBeams": 3, "n": 2, "earlyStopping": True},
    {"numBeams": 3, "n": 3, "earlyStopping": "never", "lengthPenalty": 2.0},
    {"numBeams": 3, "n": 3, "earlyStopping": "never", "lengthPenalty": 0.0},
    {"numBeams": 3, "n": 3, "lengthPenalty": -1.0},
    {"numBeams": 4, "n": 2, "repetitionPenalty": 1.3, "minTokens": 6},
    {"numBeams": 2, "n": 1, "badWords": True, "logitBias": True},
]


def search(model, prompt, ends, given):
    """The texts without the prompt, up to the token that ended them, and their scores."""
    bias = {(int(token),): value for token, value in given.get("logitBias", {}).items()}
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        num_beams=given["numBeams"],
        num_return_sequences=given.get("n", 1),
        length_penalty=given.get("lengthPenalty", 1.0),
        early_stopping=given.get("earlyStopping", False),
        repetition_penalty=given.get("repetitionPenalty", 1.0),
        min_new_tokens=given.get("minTokens"),
        bad_words_ids=given.get("badWords"),
        sequence_bias=bias or None,
        eos_token_id=ends or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    texts = []
    for text, score in zip(result.sequences.tolist(), result.sequences_scores.tolist()):
        new = text[len(prompt):]
        stop = [place for place, token in enumerate(new) if token in ends]
        texts.append({"tokens": new[: stop[0] + 1] if stop else new, "score": round(score, 5)})
    return texts


def nudged(model, generator):
    """The model with weights that differ by about a millionth."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + 1e-6 * torch.randn(weight.shape, generator=generator))
    return other


def completed(given, free):
    """The search with tokens in it that matter: those that the free search finds."""
    out = dict(given)
    if given.get("badWords"):
        out["badWords"] = [[free[0]], [free[1], free[2]], free[2:5]]
    if given.get("logitBias"):
        out["logitBias"] = {str(free[3]): -0.5, str(free[4]): 0.75}
    return out


def record(models, out):
    torch.set_num_threads(1)
    found = []
    for family in FAMILIES:
        folder = os.path.join(models, family)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval()
        model.generation_config = transformers.GenerationConfig()
        generator = torch.Generator().manual_seed(11)
        others = [copy.deepcopy(model).double()]
        others += [nudged(model, generator) for _ in range(2)]
        for given in SEARCHES:
            for _ in range(60):
                length = int(torch.randint(1, 9, (1,), generator=generator))
                ids = torch.randint(3, model.config.vocab_size, (length,), generator=generator)
                prompt = ids.tolist()
                free = search(model, prompt, [], {"numBeams": given["numBeams"]})[0]["tokens"]
                ends = sorted({free[5], free[8]})
                # transformers leaves out bad words that are tokens of an end.
                if given.get("badWords") and (free[0] in ends or len(set(free[:4])) < 2):
                    continue
                asked = completed(given, free)
                texts = search(model, prompt, ends, asked)
                tokens = [text["tokens"] for text in texts]
                again = [[one["tokens"] for one in search(o, prompt, ends, asked)] for o in others]
                if all(other == tokens for other in again):
                    found.append({"family": family, "prompt": prompt, "stopTokens": ends,
                                  "options": asked, "texts": texts})
                    break
            else:
                raise SystemExit(f"{family}: no search with {given} is clear")
    golden = {"newTokens": NEW_TOKENS, "transformers": transformers.__version__, "searches": found}
    with open(out, "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


record(*sys.argv[1:3])
