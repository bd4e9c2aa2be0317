// Nf4Quantize, BytesQuantize and Nf4Dequantize: odd sizes, last blocks that are not full, scales in
// f32 and in bytes.
import { DYNAMIC_CODE, NF4_CODE } from '../../../lib/peft/nf4-linear.js';
import type { DType } from '../../../lib/runtime/dtype.js';
import { exact, input, type MatrixCase, opCase, output } from './harness.js';
import { oddSizes, unaligned } from './layouts.js';

const { fround } = Math;
const narrow: readonly DType[] = ['f32', 'bf16', 'f16'];
const sizes = [...oddSizes, 64, 333, 4096];
const BLOCK = 32;
const NESTED = 4;

const blocksOf = (n: number, block: number): number => Math.ceil(n / block);

/**
 * The largest magnitude of each block, and the number of the code nearest to each value over it.
 */
function inBlocks(x: Float64Array, code: readonly number[], block: number) {
  const scales = Float64Array.from({ length: blocksOf(x.length, block) }, (_, b) =>
    x
      .subarray(b * block, (b + 1) * block)
      .reduce((largest, value) => Math.max(largest, Math.abs(value)), 0),
  );
  const codes = x.map((value, i) => {
    const scaled = fround(value * fround(1 / (scales[Math.floor(i / block)] as number)));
    let best = 0;
    for (let k = 1; k < code.length; ++k) {
      if (Math.abs(scaled - code[k]!) < Math.abs(scaled - code[best]!)) best = k;
    }
    return best;
  });
  return { scales, codes };
}

const packCodes = (codes: Float64Array): Float64Array =>
  Float64Array.from(
    { length: blocksOf(codes.length, 2) },
    (_, i) => codes[2 * i]! * 16 + (codes[2 * i + 1] ?? 7),
  );

const quantize = narrow.flatMap((dtype) =>
  sizes.map((n) =>
    opCase({
      op: 'Nf4Quantize',
      dtype,
      title: `${n}`,
      build: (random) => ({
        operands: {
          in: input(dtype, [n], random.normal(n), unaligned),
          code: input('f32', [16], NF4_CODE),
          packed: output('u8', [blocksOf(n, 2), 1], exact),
          absmax: output('f32', [blocksOf(n, BLOCK)], exact),
        },
        args: { block: BLOCK },
        reference: (v) => {
          const { scales, codes } = inBlocks(v.in!, NF4_CODE, BLOCK);
          return { packed: packCodes(codes), absmax: scales };
        },
      }),
    }),
  ),
);

const bytes = sizes.map((n) =>
  opCase({
    op: 'BytesQuantize',
    dtype: 'f32',
    title: `${n}`,
    build: (random) => ({
      operands: {
        in: input('f32', [n], random.normal(n), unaligned),
        code: input('f32', [256], DYNAMIC_CODE),
        out: output('u8', [n], exact),
        absmax: output('f32', [blocksOf(n, BLOCK)], exact),
      },
      args: { block: BLOCK },
      reference: (v) => {
        const { scales, codes } = inBlocks(v.in!, DYNAMIC_CODE, BLOCK);
        return { out: codes, absmax: scales };
      },
    }),
  }),
);

const dequantize = narrow.flatMap((dtype) =>
  sizes.flatMap((n) =>
    [false, true].map((nested) =>
      opCase({
        op: 'Nf4Dequantize',
        dtype,
        title: `${n}${nested ? ', scales in bytes' : ''}`,
        build(random) {
          const blocks = blocksOf(n, BLOCK);
          const outer = blocksOf(blocks, NESTED);
          return {
            operands: {
              packed: input('u8', [blocksOf(n, 2)], random.integers(blocksOf(n, 2), 0, 256)),
              code: input('f32', [16], NF4_CODE),
              absmax: nested
                ? input('u8', [blocks], random.integers(blocks, 0, 256))
                : input('f32', [blocks], random.uniform(blocks, 0.1, 2)),
              nestedCode: nested ? input('f32', [256], DYNAMIC_CODE) : null,
              nestedAbsmax: nested ? input('f32', [outer], random.uniform(outer, 0.1, 2)) : null,
              offset: nested ? input('f32', [1], [0.3]) : null,
              out: output(dtype, [n], exact, unaligned),
            },
            args: { block: BLOCK, nestedBlock: NESTED },
            reference: (v) => ({
              out: Float64Array.from({ length: n }, (_, i) => {
                const pair = v.packed![Math.floor(i / 2)]!;
                const b = Math.floor(i / BLOCK);
                const product = nested
                  ? fround(v.nestedCode![v.absmax![b]!]! * v.nestedAbsmax![Math.floor(b / NESTED)]!)
                  : 0;
                const scale = nested ? fround(product + v.offset![0]!) : v.absmax![b]!;
                return fround(v.code![i % 2 ? pair % 16 : Math.floor(pair / 16)]! * scale);
              }),
            }),
          };
        },
      }),
    ),
  ),
);

export const cases: MatrixCase[] = [...quantize, ...bytes, ...dequantize];
