#!/usr/bin/env python3
"""Loads saved models of this library in transformers and PEFT, and compares the logits.

    node build/js/test/gpu/for-transformers.js DIR 124M
        writes DIR/<case>/model, DIR/<case>/logits.safetensors and for some DIR/<case>/adapter
    node scripts/save-models.mjs DIR
        writes the same for all families and heads of the tests
    python3 scripts/check-in-transformers.py DIR

Needs torch, safetensors, transformers and peft. Fails when a weight is missing, unexpected or newly
initialised, or a logit differs by more than 1e-5 of the largest. Names families that transformers
does not have.
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file


def class_of(folder):
    """The class that config.json names; None if transformers does not have it."""
    with open(folder / "config.json") as file:
        [name] = json.load(file)["architectures"]
    return getattr(transformers, name, None)


def outputs_of(output):
    """The values that the library calls logits."""
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits if "logits" in output else output.last_hidden_state


def check(case):
    """The largest error of the logits, relative to the largest logit."""
    recorded = load_file(case / "logits.safetensors")
    kind = class_of(case / "model")
    if kind is None:
        print(f"{case.name}: transformers has no class for it")
        return 0
    model, info = kind.from_pretrained(
        case / "model", output_loading_info=True, attn_implementation="eager"
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        # A body for embeddings has no pooler, which its hidden states do not need.
        wrong = [key for key in info[kind] if key != "lm_head.weight" and "pooler" not in key]
        assert not wrong, f"{case}: {kind} {wrong[:5]}"
    if (case / "adapter").exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, case / "adapter")
    given = {"input_ids": recorded["tokens"].long()}
    if "mask" in recorded:
        given["attention_mask"] = recorded["mask"].long()
    if "types" in recorded:
        given["token_type_ids"] = recorded["types"].long()
    with torch.no_grad():
        logits = outputs_of(model.float().eval()(**given))
    expected = recorded["logits"]
    if "mask" in recorded and logits.ndim == 3:
        seen = recorded["mask"].bool()
        logits, expected = logits[seen], expected[seen]
    assert logits.shape == expected.shape, f"{case}: {logits.shape} != {expected.shape}"
    error = ((logits - expected).abs().max() / expected.abs().max()).item()
    print(f"{case.name}: {sum(p.numel() for p in model.parameters())} parameters, error {error:.2e}")
    return error


def main(folder):
    cases = sorted(one.parent for one in folder.glob("*/logits.safetensors"))
    assert cases, f"{folder}: no case"
    errors, failures = {}, []
    for case in cases:
        try:
            errors[case.name] = check(case)
        except Exception as error:  # noqa: BLE001: the others are checked
            failures.append(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    failures += [f"{name}: {error:.2e}" for name, error in errors.items() if not error < 1e-5]
    print(f"{len(cases)} cases, {len(failures)} failures")
    sys.exit("\n".join(failures) if failures else 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
