#!/usr/bin/env python3
"""Records how transformers continues prompts with the tiny models of the tests.

    python3 scripts/record-greedy.py test/golden/transformers/models test/golden/greedy.json

The first is what record-transformers.py writes as OUTDIR/models. Needs torch and transformers;
downloads nothing and takes seconds on a CPU.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))

import greedy_golden  # noqa: E402: the line above finds it

greedy_golden.record(*sys.argv[1:3])
