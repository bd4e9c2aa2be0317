#!/usr/bin/env python3
"""Renders small templates with Python's jinja2, as the texts and refusals that a test compares with.

    python3 scripts/record-templates.py OUTDIR       writes OUTDIR/templates.json

Needs jinja2 3.1 (Debian: python3-jinja2). The environment is the one that transformers makes for
chat templates. A case is a template; all cases share the variables GIVEN. A refusal is recorded
by the name of Python's exception. Left out is what jinja2 3.1.2 and 3.1.6 do not agree on, and what
prints an address or the time.
"""
import argparse
import json
import os

import jinja2
from golden.template_cases import CASES, GIVEN
from golden.template_environment import environment, refusal


def outcome(made, template):
    try:
        return {"text": made.from_string(template).render(**GIVEN)}
    except Exception as error:  # Each kind of refusal is a result.
        return {"error": refusal(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    out = parser.parse_args().out
    made = environment()
    lines = []
    for group, templates in CASES.items():
        for template in templates:
            case = {"group": group, "template": template, **outcome(made, template)}
            lines.append(json.dumps(case, ensure_ascii=False))
    with open(os.path.join(out, "templates.json"), "w", encoding="utf-8") as file:
        given = json.dumps(GIVEN, ensure_ascii=False)
        file.write(f'{{"jinja2": "{jinja2.__version__}", "given": {given}, "cases": [\n')
        file.write(",\n".join(lines))
        file.write("\n]}\n")
    print(f"{len(lines)} templates")


main()
