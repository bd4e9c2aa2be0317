#!/usr/bin/env python3
"""Loads what the library wrote for transformers and PEFT there, and compares logits with ours.

    node build/js/test/gpu/for-transformers.js DIR 124M
        writes DIR/<case>/model, DIR/<case>/logits.safetensors and for some DIR/<case>/adapter
    python3 scripts/check-in-transformers.py DIR

Needs torch, safetensors, transformers and peft. Fails when a weight is missing, unexpected or newly
initialised, or a logit differs by more than 1e-4 of the largest.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def check(case):
    """The largest error of the logits, relative to the largest logit."""
    recorded = load_file(case / "logits.safetensors")
    model, info = AutoModelForCausalLM.from_pretrained(case / "model", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong = [key for key in info[kind] if key != "lm_head.weight"]
        assert not wrong, f"{case}: {kind} {wrong[:5]}"
    if (case / "adapter").exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, case / "adapter")
    with torch.no_grad():
        logits = model.float().eval()(recorded["tokens"].long()).logits
    expected = recorded["logits"]
    assert logits.shape == expected.shape, f"{case}: {logits.shape} != {expected.shape}"
    error = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"{case.name}: {sum(p.numel() for p in model.parameters())} parameters, error {error:.2e}")
    return error


def main(folder):
    cases = sorted(one.parent for one in folder.glob("*/logits.safetensors"))
    assert cases, f"{folder}: no case"
    sys.exit(0 if max(check(case) for case in cases) < 1e-4 else "the logits differ")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
