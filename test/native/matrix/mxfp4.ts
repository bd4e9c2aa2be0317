// Mxfp4Dequantize and Mxfp4Experts: every code and scale, gates of both kinds, odd numbers of
// choices, blocks past the last step, one and many tokens.

import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { close, exact, input, type MatrixCase, opCase, output } from './harness.js';
import { unaligned } from './layouts.js';
import type { Mistake } from './mistake.js';
import type { Random } from './numbers.js';
import { roundTo } from './numbers.js';

const { exp, fround } = Math;
const narrow: readonly DType[] = ['f32', 'bf16', 'f16'];
const VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

const codeValue = (code: number): number => (code & 8 ? -1 : 1) * VALUES[code & 7]!;

/** Weight i of codes and scales. */
const weightAt = (codes: Float64Array, scales: Float64Array, i: number): number =>
  codeValue((codes[i >> 1]! >> (4 * (i & 1))) & 15) * 2 ** (scales[i >> 5]! - 127);

const dequantize = narrow.flatMap((dtype) =>
  [32, 96, 4096].flatMap((n) =>
    [false, true].map((isOdd) =>
      opCase({
        op: 'Mxfp4Dequantize',
        dtype,
        title: `${n}${isOdd ? ', unaligned' : ''}`,
        build: (random) => ({
          operands: {
            codes: input('u8', [n / 2], random.integers(n / 2, 0, 256), isOdd ? unaligned : {}),
            scales: input('u8', [n / 32], scalesOf(random, n / 32, dtype)),
            out: output(dtype, [n], exact, isOdd ? unaligned : {}),
          },
          reference: ({ codes, scales }) => ({
            out: Float64Array.from({ length: n }, (_, i) => fround(weightAt(codes!, scales!, i))),
          }),
        }),
      }),
    ),
  ),
);

/** Scales that f16 can hold, or all; the largest are infinite. */
function scalesOf(random: Random, n: number, dtype: DType): Float64Array {
  if (dtype === 'f16') return random.integers(n, 100, 140);
  return Float64Array.from({ length: n }, (_, i) => [0, 1, 254, 128, 129, 60][i % 6]!);
}

/** Some scales need a second factor, and some are the least; f16 would overflow. */
function expertScales(random: Random, n: number, dtype: DType): Float64Array {
  const scales = random.integers(n, 119, 124);
  if (dtype === 'f16') return scales;
  return scales.map((scale, i) => (i % 37 === 5 ? 131 : i % 41 === 7 ? i % 2 : scale));
}

interface Sizes {
  tokens: number;
  experts: number;
  k: number;
  channels: number;
  hidden: number;
  limit: number;
}

const sizes: readonly Sizes[] = [
  { tokens: 1, experts: 3, k: 1, channels: 32, hidden: 32, limit: 7 },
  { tokens: 1, experts: 9, k: 4, channels: 2880, hidden: 96, limit: 7 },
  { tokens: 1, experts: 6, k: 3, channels: 448, hidden: 576, limit: 0 },
  { tokens: 1, experts: 5, k: 4, channels: 576, hidden: 448, limit: 7 },
  { tokens: 3, experts: 5, k: 2, channels: 96, hidden: 160, limit: 0 },
  { tokens: 2, experts: 4, k: 3, channels: 544, hidden: 288, limit: 0.5 },
  { tokens: 2, experts: 16, k: 8, channels: 64, hidden: 736, limit: 0 },
  { tokens: 1, experts: 12, k: 11, channels: 64, hidden: 32, limit: 7 },
  { tokens: 1, experts: 2, k: 1, channels: 12288, hidden: 32, limit: 7 },
  { tokens: 1, experts: 9, k: 8, channels: 32, hidden: 8192, limit: 0 },
  { tokens: 37, experts: 4, k: 4, channels: 64, hidden: 64, limit: 7 },
  { tokens: 0, experts: 4, k: 4, channels: 64, hidden: 64, limit: 7 },
];

function experts(dtype: DType, z: Sizes, isOdd: boolean): MatrixCase {
  const { tokens, experts: E, k, channels: C, hidden: H, limit } = z;
  const alternate = limit > 0;
  const matrix = (random: Random, rows: number, inputs: number) => {
    const blocks = (E * rows * inputs) / 32;
    return [
      input('u8', [E, rows, inputs / 32, 16], random.integers(16 * blocks, 0, 256)),
      input('u8', [E, rows, inputs / 32], expertScales(random, blocks, dtype)),
    ] as const;
  };
  const bias = (random: Random, rows: number) =>
    isOdd ? null : input(dtype, [E, rows], random.normal(E * rows), unaligned);
  return opCase({
    op: 'Mxfp4Experts',
    dtype,
    title: `${tokens} tokens, ${k} of ${E}, ${C} to ${H}, limit ${limit}${isOdd ? ', odd' : ''}`,
    build(random) {
      const [upCodes, upScales] = matrix(random, 2 * H, C);
      const [downCodes, downScales] = matrix(random, C, H);
      const x = random.normal(tokens * C);
      return {
        operands: {
          x: input(dtype, [tokens, C], x, isOdd ? unaligned : {}),
          ids: input('i32', [tokens, k], random.integers(tokens * k, 0, E)),
          weights: input('f32', [tokens, k], random.uniform(tokens * k, -1, 1)),
          upCodes,
          upScales,
          upBias: bias(random, 2 * H),
          downCodes,
          downScales,
          downBias: bias(random, C),
          out: output(dtype, [tokens, C], close(dtype, 4, 'tensor'), isOdd ? unaligned : {}),
        },
        args: { limit, alternate },
        reference: (v) => ({ out: outputs(v as Record<string, Float64Array>, z, dtype) }),
      };
    },
  });
}

function outputs(v: Record<string, Float64Array>, z: Sizes, dtype: DType): Float64Array {
  const { tokens, k, channels: C, hidden: H, limit } = z;
  const out = new Float64Array(tokens * C);
  const product = (name: 'up' | 'down', row: number, x: Float64Array): number => {
    const [codes, scales] = [v[`${name}Codes`]!, v[`${name}Scales`]!];
    let sum = 0;
    for (let start = 0; start < x.length; start += 32) {
      const from = row * x.length + start;
      let block = 0;
      for (let i = 0; i < 32; ++i) {
        const code = codes[(from + i) >> 1]! >> (4 * (i & 1));
        block += x[start + i]! * codeValue(code & 15);
      }
      sum += block * 2 ** (scales[from >> 5]! - 127);
    }
    return sum + (v[`${name}Bias`]?.[row] ?? 0);
  };
  for (let t = 0; t < tokens; ++t) {
    const x = v.x!.subarray(t * C, (t + 1) * C);
    for (let j = 0; j < k; ++j) {
      const expert = v.ids![t * k + j]!;
      const inner = Float64Array.from({ length: H }, (_, n) => {
        const [gateRow, upRow] = limit > 0 ? [2 * n, 2 * n + 1] : [n, H + n];
        const gate = product('up', expert * 2 * H + gateRow, x);
        const up = product('up', expert * 2 * H + upRow, x);
        return limit > 0 ? boundedGate(gate, up, limit) : (gate / (1 + exp(-gate))) * up;
      });
      const hidden = inner.map((value) => roundTo(value, dtype));
      for (let n = 0; n < C; ++n) {
        out[t * C + n]! += v.weights![t * k + j]! * product('down', expert * C + n, hidden);
      }
    }
  }
  return out;
}

function boundedGate(gate: number, up: number, limit: number): number {
  const g = Math.min(gate, limit);
  const u = Math.max(-limit, Math.min(up, limit));
  return ((u + 1) * g) / (1 + exp(-1.702 * g));
}

export const cases: MatrixCase[] = [
  ...dequantize,
  ...narrow.flatMap((dtype) => sizes.map((z) => experts(dtype, z, false))),
  ...sizes.map((z) => experts('bf16', z, true)),
];

export const mistakes: readonly Mistake[] = (
  [
    ['channels', 'DS_SHAPE', 'multiple of 32', { x: [3, 40], out: [3, 40] }],
    ['ids', 'DS_SHAPE', '[3, k]', { ids: [2, 2] }],
    ['codes', 'DS_SHAPE', 'up_codes', { upCodes: [4, 128, 2] }],
    ['scales', 'DS_SHAPE', 'down', { downScales: [4, 64, 3] }],
    ['bias', 'DS_SHAPE', 'up', { upBias: [4, 64] }],
    ['out', 'DS_SHAPE', '[3, 64]', { out: [3, 32] }],
  ] as const
).map(([what, code, message, wrong]) => ({
  op: 'mxfp4_experts',
  what,
  code,
  message,
  run(m) {
    const shapes: Record<string, readonly number[]> = {
      x: [3, 64],
      ids: [3, 2],
      weights: [3, 2],
      upCodes: [4, 128, 2, 16],
      upScales: [4, 128, 2],
      downCodes: [4, 64, 2, 16],
      downScales: [4, 64, 2],
      out: [3, 64],
      upBias: [4, 128],
      ...wrong,
    };
    const of = (name: string) => {
      const isByte = name.endsWith('Codes') || name.endsWith('Scales');
      return m([...shapes[name]!], isByte ? 'u8' : name === 'ids' ? 'i32' : 'f32');
    };
    kernels.mxfp4Experts({
      x: of('x'),
      ids: of('ids'),
      weights: of('weights'),
      upCodes: of('upCodes'),
      upScales: of('upScales'),
      upBias: of('upBias'),
      downCodes: of('downCodes'),
      downScales: of('downScales'),
      downBias: null,
      out: of('out'),
      limit: 7,
      alternate: true,
    });
  },
}));
