// AdamW with 8-bit moments: every dtype, short blocks, blocks of zeros, skipped steps; codes are
// the nearest ones.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  type Check,
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  sameAs,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';

const { abs, ceil, floor, fround, max, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const BLOCK = 256;

/**
 * bitsandbytes' create_dynamic_map: each of 7 decades has the midpoints of equal parts, twice as
 * many as the decade below.
 */
function dynamicMap(signed: boolean): number[] {
  const found = [0, 1];
  for (let i = 0; i < 7; ++i) {
    const parts = signed ? 2 ** i : 2 ** (i + 1);
    for (let k = 0; k < parts; ++k) {
      const value = 10 ** (i - 6) * (0.1 + (0.9 * (k + 0.5)) / parts);
      found.push(value, ...(signed ? [-value] : []));
    }
  }
  return found.map(fround).sort((a, b) => a - b);
}

const codes = { m: dynamicMap(true), v: dynamicMap(false) };

/**
 * The nearest code of x in [-1, 1]. Negative values keep their sign; an unsigned code of a positive
 * value is above 0.
 */
function nearest(code: readonly number[], x: number): number {
  let best = 0;
  code.forEach((value, i) => {
    if (abs(value - x) < abs(code[best]! - x)) best = i;
  });
  if (code[best] !== 0) return best;
  return best === 0 ? Number(x > 0) : best - Number(x < 0);
}

interface Step {
  n: number;
  dtype: DType;
  weight: DType | null;
  apply: boolean;
  decoupled: boolean;
  /** Gradients and moments are zero. */
  zero?: boolean;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

const plain: Step = { n: 700, dtype: 'f32', weight: null, apply: true, decoupled: true };

const rule = {
  lr: 1e-2,
  beta1: 0.9,
  beta2: 0.999,
  eps: 1e-8,
  weightDecay: 0.1,
  correction1: 1 - 0.9 ** 3,
  correction2: 1 - 0.999 ** 3,
};

/** A value in the middle of two codes may round to either. */
const oneCode: Check = { tolerance: 0, scope: 'element', absolute: 1, sameBits: true };

function step(item: Step): MatrixCase {
  const { n, dtype, weight, apply, decoupled, zero = false, inPlace = false } = item;
  const blocks = ceil(n / BLOCK);
  const flags = [apply ? '' : 'skipped', decoupled ? '' : 'L2', zero ? 'zero' : ''];
  return opCase({
    op: 'AdamW8bit',
    dtype,
    title: `[${n}] weight ${weight} ${flags.filter(Boolean)}${inPlace ? ' in place' : ''}`,
    build(random) {
      const layout = n % 2 ? unaligned : aligned;
      const check = (of: DType) => (apply ? closeSameBits(of, 1, 'tensor') : exact);
      const code = (size: number) => random.uniform(n, 0, size).map((x) => floor(x));
      const scale = () =>
        inPlaceOperand(
          input(
            'f32',
            [blocks],
            random.uniform(blocks, 1e-3, 1).map((x) => (zero ? 0 : x)),
          ),
          check('f32'),
        );
      const grad = input(
        dtype,
        [n],
        random.normal(n).map((x) => (zero ? 0 : x)),
        layout,
      );
      return {
        operands: {
          master: inPlaceOperand(input('f32', [n], random.normal(n), layout), check('f32')),
          m: inPlaceOperand(input('u8', [n], code(256), layout), apply ? oneCode : exact),
          v: inPlaceOperand(input('u8', [n], code(256), layout), apply ? oneCode : exact),
          mScale: scale(),
          vScale: scale(),
          grad: inPlace ? inPlaceOperand(grad, check(dtype)) : grad,
          weight: inPlace
            ? sameAs(grad, 'grad')
            : weight && output(weight, [n], check(weight), layout),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: { ...rule, decoupled },
        reference({ master, m, v, mScale, vScale, grad: g }) {
          const out = { master: master!.slice(), m: m!.slice(), v: v!.slice() };
          const scales = { mScale: mScale!.slice(), vScale: vScale!.slice() };
          for (let b = 0; apply && b < blocks; ++b) {
            const count = Math.min(BLOCK, n - b * BLOCK);
            const wide = { m: new Float64Array(count), v: new Float64Array(count) };
            for (let j = 0; j < count; ++j) {
              const i = b * BLOCK + j;
              const p = out.master[i]!;
              const d = g![i]! * 0.5 + (decoupled ? 0 : rule.weightDecay * p);
              const old = { m: codes.m[m![i]!]! * mScale![b]!, v: codes.v[v![i]!]! * vScale![b]! };
              wide.m[j] = rule.beta1 * old.m + (1 - rule.beta1) * d;
              wide.v[j] = rule.beta2 * old.v + (1 - rule.beta2) * d * d;
              const root = sqrt(wide.v[j]!) / sqrt(rule.correction2) + rule.eps;
              const decayed = decoupled ? p - rule.lr * rule.weightDecay * p : p;
              out.master[i] = decayed - ((rule.lr / rule.correction1) * wide.m[j]!) / root;
            }
            for (const key of ['m', 'v'] as const) {
              const largest = wide[key].reduce((largestSoFar, x) => max(largestSoFar, abs(x)), 0);
              scales[`${key}Scale`][b] = largest;
              wide[key].forEach((x, j) => {
                const value =
                  largest === 0 ? codes[key].indexOf(0) : nearest(codes[key], x / largest);
                out[key][b * BLOCK + j] = value;
              });
            }
          }
          const weights = inPlace ? { grad: out.master } : { weight: out.master };
          return { ...out, ...scales, ...weights };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = [
  ...oddSizes.map((n) => step({ ...plain, n, weight: 'bf16' })),
  ...[256, 512, 33_000].map((n) => step({ ...plain, n })),
  ...narrow.flatMap((dtype) => [
    step({ ...plain, dtype, weight: dtype }),
    step({ ...plain, dtype, weight: dtype, inPlace: true }),
    step({ ...plain, dtype, weight: dtype, apply: false }),
  ]),
  step({ ...plain, decoupled: false }),
  step({ ...plain, zero: true }),
  step({ ...plain, apply: false }),
];
