#!/usr/bin/env python3
"""Records outputs of transformers' logits processors for random scores with ties.

Usage: record-sampling.py [OUT]. Default OUT: test/golden/sampling.json."""

import json
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

VOCABULARY = 24
OUT = Path(__file__).parent.parent / "test" / "golden" / "sampling.json"

# By the library's names; the scores of a case come from its number.
DRAWN = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"topK": 1},
    {"topK": 3},
    {"topK": 7},
    {"topP": 0.0},
    {"topP": 0.3},
    {"topP": 0.75},
    {"topP": 0.97},
    {"topP": 0.5, "temperature": 3.0},
    {"topP": 0.62, "temperature": 3.0},
    {"topP": 0.85, "temperature": 4.0},
    {"topK": 5, "temperature": 3.0},
    {"minP": 0.05},
    {"minP": 0.5},
    {"temperature": 1.7, "topK": 9, "topP": 0.8, "minP": 0.1},
    {"repetitionPenalty": 1.6, "topK": 12},
    {"logitBias": {"3": 2.0, "7": -4.0}, "repetitionPenalty": 0.7, "temperature": 0.8},
]
GREEDY = [
    {"repetitionPenalty": 1.4},
    {"repetitionPenalty": 0.6},
    {"logitBias": {"1": 1.5, "2": -1.5, "23": 0.5}},
    {"badWords": [[5], [9], [2, 4], [1, 2, 6], [3, 2, 7]]},
    {"minTokens": 3},
    {"logitBias": {"0": 1.0, "9": -0.5}, "repetitionPenalty": 1.3, "badWords": [[0], [2, 11]]},
]
# Ends with 1, 2, so that bad words of two and three tokens apply; 0 is the token that ends.
PROMPT = [8, 4, 4, 15, 1, 2]
ROWS = 24


def scores_of(seed, rows):
    """[rows, VOCABULARY] with ties: multiples of a half."""
    generator = torch.Generator().manual_seed(seed)
    return torch.round(torch.randn(rows, VOCABULARY, generator=generator) * 4) / 2


def config_of(options, sampled):
    """transformers' configuration of the same meaning."""
    bias = {(int(token),): value for token, value in options.get("logitBias", {}).items()}
    return GenerationConfig(
        do_sample=sampled,
        temperature=options.get("temperature", 1.0) if sampled else None,
        top_k=options.get("topK", 0) if sampled else None,
        top_p=options.get("topP", 1.0) if sampled else None,
        min_p=options.get("minP") if sampled else None,
        repetition_penalty=options.get("repetitionPenalty", 1.0),
        sequence_bias=bias or None,
        bad_words_ids=options.get("badWords"),
        min_new_tokens=options.get("minTokens"),
        eos_token_id=0 if "minTokens" in options else 99,
        pad_token_id=0,
        max_new_tokens=9,
    )


def processed(model, options, scores, sampled):
    """The scores after transformers' processors, in its order."""
    config = config_of(options, sampled)
    model._prepare_special_tokens(config, device=scores.device)
    ids = torch.tensor([PROMPT] * len(scores))
    processors = model._get_logits_processor(
        generation_config=config, input_ids_seq_length=len(PROMPT), encoder_input_ids=ids,
        prefix_allowed_tokens_fn=None, logits_processor=[], device="cpu",
    )
    return processors(ids, scores.clone())


def main(path):
    sizes = dict(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1, n_positions=16,
                 bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    drawn, greedy = [], []
    for number, options in enumerate(DRAWN):
        scores = scores_of(number, 1)
        chances = torch.softmax(processed(model, options, scores, True).double(), -1)[0]
        rounded = [round(chance, 9) for chance in chances.tolist()]
        drawn.append({"options": options, "scores": scores[0].tolist(), "chances": rounded})
    for number, options in enumerate(GREEDY):
        scores = scores_of(1000 + number, ROWS)
        tokens = processed(model, options, scores, False).argmax(-1).tolist()
        greedy.append({"options": options, "scores": scores.tolist(), "tokens": tokens})
    golden = {"vocabulary": VOCABULARY, "prompt": PROMPT, "end": 0, "drawn": drawn, "greedy": greedy}
    Path(path).write_text(json.dumps(golden, separators=(",", ":")) + "\n")


main(sys.argv[1] if len(sys.argv) > 1 else OUT)
