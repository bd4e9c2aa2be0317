"""Records the FP8 codes of PyTorch in test/golden/fp8.json: code values and casts of floats."""

import json
import math
import sys

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def shown(value):
    return value if math.isfinite(value) else str(value)


def record(dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    largest = torch.finfo(dtype).max
    generator = torch.Generator().manual_seed(1)
    sizes = torch.rand(160, generator=generator) * 44 - 26
    random = torch.randn(160, generator=generator) * 2**sizes
    finite = codes[codes.isfinite()].sort().values
    ties = (finite[1:] + finite[:-1]) / 2
    inputs = torch.cat([random, ties]).clamp(-largest, largest)
    return {
        "values": [shown(x) for x in codes.tolist()],
        "inputs": inputs.tolist(),
        "codes": inputs.to(dtype).view(torch.uint8).tolist(),
    }


def main():
    result = {"torch": torch.__version__, **{name: record(dtype) for name, dtype in FORMATS.items()}}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(result, out)
        out.write("\n")


main()
