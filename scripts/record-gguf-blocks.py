#!/usr/bin/env python3
"""Records hashes of the values of GGUF blocks, computed by the package gguf (numpy).

    record-gguf-blocks.py > test/golden/gguf-blocks.json

Bytes come from a linear congruential generator that the test repeats.
"""

import hashlib
import json

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

BLOCKS = 24
NAMES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0".split()


def random_bytes(count):
    """Returns bits 16 to 23 of each state, from the state 1 on."""
    out, state = bytearray(), 1
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(state >> 16 & 255)
    return bytes(out)


def record(name):
    kind = GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    blocks = np.frombuffer(random_bytes(BLOCKS * size), np.uint8).reshape(BLOCKS, size)
    values = quants.dequantize(blocks, kind).astype("<f4").reshape(-1)
    # Random scales may be NaN, whose bits are not defined; and 0 has two signs.
    values = np.where(np.isnan(values), np.float32(0), values) + np.float32(0)
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


print(json.dumps({name: record(name) for name in NAMES}, indent=1))
