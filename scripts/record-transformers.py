#!/usr/bin/env python3
"""Records outputs of transformers for tiny models and tokenizers, as golden values of the tests.

    python3 scripts/record-transformers.py OUTDIR [--only tokenizers|models|encoders]
        [--families NAME,NAME]

Writes OUTDIR/tokenizers/<kind>/ (trained on this repository's own text: tokenizer.json,
tokenizer_config.json, golden.json), OUTDIR/tokenizers/strings.json, OUTDIR/models/<family>/
(config.json and model.safetensors as save_pretrained writes them, golden.json, golden.safetensors),
OUTDIR/encoders/<family>/<task>/ (the same) and OUTDIR/summary.json. Downloads nothing and takes
seconds on a CPU. What a missing library or class keeps it from is named at the end and in the
summary; the rest is written.

The texts need tokenizers, jinja2 and transformers; the models torch, transformers and safetensors.
"""

import argparse
import json
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))

MAX_BYTES = 2_000_000


def attempt(failures, name, body):
    """Runs one recording; the others go on when it fails."""
    start = time.monotonic()
    try:
        body()
        print(f"{name}: {time.monotonic() - start:.1f} s")
    except Exception as error:  # noqa: BLE001: whatever is missing is reported, not fatal
        traceback.print_exc()
        failures.append(f"{name}: {type(error).__name__}: {error}")


def versions():
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "safetensors", "jinja2"):
        try:
            found[name] = __import__(name).__version__
        except Exception as error:  # noqa: BLE001
            found[name] = f"missing: {error}"
    return found


def record_tokenizers(out, failures):
    import tokenizer_golden

    attempt(failures, "strings", lambda: tokenizer_golden.write_strings(out))
    for kind in tokenizer_golden.KINDS:
        attempt(failures, f"tokenizer {kind}", lambda kind=kind: tokenizer_golden.record(out, kind))


def record_models(out, failures, families):
    import model_families
    import model_golden

    for family in families or model_families.FAMILIES:
        attempt(failures, f"model {family}", lambda family=family: model_golden.record(out, family))
    if not families:
        attempt(failures, "rope scalings", lambda: model_golden.record_ropes(out))


def record_encoders(out, failures, families):
    import encoder_golden

    for family, (_, _, tasks) in encoder_golden.FAMILIES.items():
        if families and family not in families:
            continue
        for task in tasks:
            attempt(
                failures,
                f"encoder {family} {task}",
                lambda family=family, task=task: encoder_golden.record(out, family, task),
            )
    if not families:
        attempt(failures, "pairs of texts", lambda: encoder_golden.record_tokenizers(out))


def sizes_of(out):
    sizes = {}
    for folder, _, files in sorted(os.walk(out)):
        for file in sorted(files):
            path = os.path.join(folder, file)
            sizes[os.path.relpath(path, out)] = os.path.getsize(path)
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUTDIR")
    parser.add_argument("--only", choices=["tokenizers", "models", "encoders"])
    parser.add_argument("--families", default="", help="only these models, without rope scalings")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    failures = []
    families = [name for name in args.families.split(",") if name]
    parts = (
        ("tokenizers", record_tokenizers),
        ("models", lambda out, failures: record_models(out, failures, families)),
        ("encoders", lambda out, failures: record_encoders(out, failures, families)),
    )
    for part, body in parts:
        if args.only in (None, part):
            attempt(
                failures,
                part,
                lambda part=part, body=body: body(os.path.join(args.out, part), failures),
            )
    sizes = sizes_of(args.out)
    failures += [
        f"{path}: {size} bytes are too many" for path, size in sizes.items() if size > MAX_BYTES
    ]
    with open(os.path.join(args.out, "summary.json"), "w") as file:
        json.dump({"versions": versions(), "failures": failures}, file, indent=2)
        file.write("\n")
    print(f"{len(sizes)} files, {sum(sizes.values())} bytes")
    for failure in failures:
        print(f"NOT RECORDED: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
