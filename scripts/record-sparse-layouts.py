#!/usr/bin/env python3
"""Records what DeepSpeed's own sparsity configurations make of many options, as the layouts that a
test compares with.

    python3 scripts/record-sparse-layouts.py SPARSITY_CONFIG OUTDIR    writes OUTDIR/sparse-layouts.json

SPARSITY_CONFIG is the path of deepspeed/ops/sparse_attention/sparsity_config.py of an installed
DeepSpeed, which needs torch alone. A layout is a list of heads, each a list of rows, each the
hexadecimal number whose bit j is that of block j. Nothing here is drawn by chance: rows of random
blocks are not comparable, and the test checks their counts.
"""
import importlib.util
import itertools
import json
import os
import sys

HEADS = 5
CLASSES = {
    "dense": "DenseSparsityConfig",
    "fixed": "FixedSparsityConfig",
    "variable": "VariableSparsityConfig",
    "bigbird": "BigBirdSparsityConfig",
    "bslongformer": "BSLongformerSparsityConfig",
    "local_sliding_window": "LocalSlidingWindowSparsityConfig",
}
DIRECTIONS = ["bidirectional", "unidirectional"]


def every(**lists):
    """All combinations of the options' values."""
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values))


def requests():
    """(mode, blocks, options)."""
    yield "dense", 5, {}
    for options in every(
        num_local_blocks=[1, 4, 6],
        num_global_blocks=[1, 2],
        attention=DIRECTIONS,
        horizontal_global_attention=[False, True],
        num_different_global_patterns=[1, 3],
    ):
        for blocks in [1, 4, 11, 40]:
            different = options["num_different_global_patterns"] > 1
            yield "fixed", blocks, {**options, "different_layout_per_head": different}
    for options in every(
        local_window_blocks=[[4], [1, 3], [2, 5, 1]],
        ranges=[([0], None), ([2, 9], None), ([0, 7], [2, 20])],
        attention=DIRECTIONS,
        horizontal_global_attention=[False, True],
    ):
        indices, ends = options.pop("ranges")
        for blocks in [3, 17]:
            yield "variable", blocks, {
                **options,
                "num_random_blocks": 0,
                "global_block_indices": indices,
                "global_block_end_indices": ends,
            }
    for options in every(
        num_sliding_window_blocks=[1, 3, 4], num_global_blocks=[0, 1, 2], attention=DIRECTIONS
    ):
        yield "bigbird", 13, {**options, "num_random_blocks": 0}
    for options in every(
        num_sliding_window_blocks=[1, 3, 4],
        ranges=[([0], None), ([1, 6], None), ([0, 5], [1, 30])],
        attention=DIRECTIONS,
    ):
        indices, ends = options.pop("ranges")
        yield "bslongformer", 13, {
            **options,
            "global_block_indices": indices,
            "global_block_end_indices": ends,
        }
    for options in every(num_sliding_window_blocks=[1, 3, 6], attention=DIRECTIONS):
        yield "local_sliding_window", 9, options


def packed(row):
    """The row's bits as a hexadecimal number."""
    return format(sum(int(seen) << j for j, seen in enumerate(row)), "x")


def main():
    source, out = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("sparsity_config", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases = []
    for mode, blocks, options in requests():
        try:
            config = getattr(module, CLASSES[mode])(num_heads=HEADS, block=16, **options)
            layout = config.make_layout(16 * blocks)
        except ValueError:
            cases.append({"mode": mode, "blocks": blocks, "options": options, "refused": True})
            continue
        heads = HEADS if options.get("different_layout_per_head") else 1
        rows = [[packed(row) for row in layout[head].tolist()] for head in range(heads)]
        cases.append({"mode": mode, "blocks": blocks, "options": options, "layout": rows})
    with open(os.path.join(out, "sparse-layouts.json"), "w", encoding="utf8") as file:
        rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        file.write(f'{{"heads":{HEADS},"cases":[\n{rows}\n]}}\n')
    print(len(cases), "cases")


main()
