#!/usr/bin/env python3
"""Loads what `ds consolidate` wrote with transformers and compares its logits with ours.

    node build/js/test/gpu/consolidated.js DIR 124M
        writes DIR/whole, DIR/sharded and DIR/logits.safetensors
    python3 scripts/check-consolidated.py DIR

Needs torch, safetensors and transformers. Fails when a weight is missing, unexpected or newly
initialised, or a logit differs by more than 1e-4 of the largest.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel


def check(folder, tokens, expected):
    """The largest error of the logits, relative to the largest logit."""
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong = [key for key in info[kind] if key != "lm_head.weight"]
        assert not wrong, f"{folder}: {kind} {wrong[:5]}"
    with torch.no_grad():
        logits = model.eval()(tokens.long()).logits
    assert logits.shape == expected.shape, f"{folder}: {logits.shape} != {expected.shape}"
    error = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"{folder}: {sum(p.numel() for p in model.parameters())} parameters, error {error:.2e}")
    return error


def main(folder):
    recorded = load_file(folder / "logits.safetensors")
    errors = [check(folder / name, recorded["tokens"], recorded["logits"]) for name in ("whole", "sharded")]
    sys.exit(0 if max(errors) < 1e-4 else "the logits differ")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
