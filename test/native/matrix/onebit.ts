// 1-bit optimizers' own ops: payloads, updates by a frozen second moment, agreement, and 1-bit
// LAMB's trust ratios.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  output,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { max, min, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

interface Step {
  n: number;
  dtype: DType;
  weight: DType | null;
  apply: boolean;
}

const plain: Step = { n: 700, dtype: 'f32', weight: null, apply: true };

const titleOf = ({ n, weight, apply }: Step): string =>
  `[${n}]${weight ? ` weight ${weight}` : ''}${apply ? '' : ' skipped'}`;

const layoutOf = ({ n }: Step) => (n % 2 ? unaligned : aligned);
const controlOf = ({ apply }: Step): Operand => input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]);

const vector = (step: Step, values: ArrayLike<number>, dtype: DType = 'f32'): Operand =>
  input(dtype, [step.n], values, layoutOf(step));

const checkOf = ({ apply }: Step, dtype: DType) =>
  apply ? closeSameBits(dtype, 1, 'tensor') : exact;

/** A second moment that is 0 where there never was a gradient. */
const secondMoment = (random: Random, n: number): Float64Array =>
  Float64Array.from(random.uniform(n, 0.01, 0.1)).map((x, i) => (i % 5 === 2 ? 0 : x));

function momentPayload(step: Step, withMoment: boolean): MatrixCase {
  const beta1 = 0.9;
  return opCase({
    op: 'MomentPayload',
    dtype: step.dtype,
    title: `${titleOf(step)}${withMoment ? '' : ' of a gradient'}`,
    build(random) {
      return {
        operands: {
          m: withMoment ? vector(step, random.normal(step.n)) : null,
          grad: vector(step, random.normal(step.n), step.dtype),
          payload: output(
            'f32',
            [step.n],
            step.apply ? closeSameBits('f32', 1, 'tensor') : exact,
            layoutOf(step),
          ),
          control: controlOf(step),
        },
        args: { beta1 },
        reference({ m, grad }) {
          const payload = grad!.map((g, i) => {
            if (!step.apply) return 0;
            return m ? beta1 * m[i]! + (1 - beta1) * g * 0.5 : g * 0.5;
          });
          return { payload };
        },
      };
    },
  });
}

function driftPayload(step: Step): MatrixCase {
  const eps = 1e-3;
  return opCase({
    op: 'DriftPayload',
    dtype: 'f32',
    title: titleOf(step),
    build(random) {
      return {
        operands: {
          master: vector(step, random.normal(step.n)),
          anchor: vector(step, random.normal(step.n)),
          v: vector(step, secondMoment(random, step.n)),
          payload: output(
            'f32',
            [step.n],
            step.apply ? closeSameBits('f32', 1, 'tensor') : exact,
            layoutOf(step),
          ),
          control: controlOf(step),
        },
        args: { eps },
        reference({ master, anchor, v }) {
          const payload = master!.map((p, i) =>
            step.apply ? (p - anchor![i]!) * (sqrt(v![i]!) + eps) : 0,
          );
          return { payload };
        },
      };
    },
  });
}

function frozenAdam(step: Step, beta1: number): MatrixCase {
  const rule = { lr: 1e-2, beta1, eps: 1e-3, weightDecay: 0.1 };
  return opCase({
    op: 'FrozenAdam',
    dtype: step.dtype,
    title: `${titleOf(step)} beta ${beta1}`,
    build(random) {
      const state = (values: ArrayLike<number>) =>
        inPlaceOperand(vector(step, values), checkOf(step, 'f32'));
      return {
        operands: {
          master: state(random.normal(step.n)),
          m: state(random.normal(step.n)),
          v: inPlaceOperand(vector(step, secondMoment(random, step.n)), exact),
          grad: vector(step, random.normal(step.n), step.dtype),
          weight: step.weight && output(step.weight, [step.n], checkOf(step, step.weight)),
          control: controlOf(step),
        },
        args: rule,
        reference({ master, m, v, grad }) {
          const out = { master: master!.slice(), m: m!.slice() };
          for (let i = 0; step.apply && i < step.n; ++i) {
            const g = v![i] === 0 ? 0 : grad![i]! * 0.5;
            out.m[i] = beta1 * m![i]! + (1 - beta1) * g;
            out.master[i]! -= rule.lr * rule.weightDecay * out.master[i]!;
            out.master[i]! -= (rule.lr * out.m[i]!) / (sqrt(v![i]!) + rule.eps);
          }
          return { ...out, v, weight: out.master };
        },
      };
    },
  });
}

function anchorAdam(step: Step): MatrixCase {
  const rule = { rate: 0.03, eps: 1e-3 };
  return opCase({
    op: 'AnchorAdam',
    dtype: 'f32',
    title: titleOf(step),
    build(random) {
      const state = (values: ArrayLike<number>) =>
        inPlaceOperand(vector(step, values), checkOf(step, 'f32'));
      return {
        operands: {
          master: state(random.normal(step.n)),
          m: state(random.normal(step.n)),
          v: inPlaceOperand(vector(step, secondMoment(random, step.n)), exact),
          anchor: inPlaceOperand(vector(step, random.normal(step.n)), exact),
          grad: vector(step, random.normal(step.n)),
          weight: step.weight && output(step.weight, [step.n], checkOf(step, step.weight)),
          control: controlOf(step),
        },
        args: rule,
        reference({ master, m, v, anchor, grad }) {
          const out = { master: master!.slice(), m: m!.slice() };
          for (let i = 0; step.apply && i < step.n; ++i) {
            const u = grad![i]! * 0.5;
            out.m[i] = v![i] === 0 ? 0 : -u / rule.rate;
            if (v![i] !== 0) out.master[i] = anchor![i]! + u / (sqrt(v![i]!) + rule.eps);
          }
          return { ...out, v, anchor, weight: out.master };
        },
      };
    },
  });
}

function lambAverage(apply: boolean): MatrixCase {
  const beta = 0.9;
  return opCase({
    op: 'OneBitLambAverage',
    dtype: 'f32',
    title: apply ? 'means' : 'skipped',
    build(random) {
      const n = 301;
      const coefficients = random.uniform(n, 0.1, 2).map((x, i) => (i % 4 === 0 ? 1 : x));
      return {
        operands: {
          coefficients: input('f32', [n], coefficients),
          frozen: inPlaceOperand(
            input('f32', [n], random.uniform(n, 0, 2)),
            apply ? closeSameBits('f32', 1, 'element') : exact,
          ),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: { beta },
        reference({ coefficients: all, frozen }) {
          const mean = frozen!.map((old, i) =>
            apply && all![i] !== 1 ? beta * old + (1 - beta) * all![i]! : old,
          );
          return { frozen: mean };
        },
      };
    },
  });
}

interface Moments {
  /** Elements of the parameters; `gap` elements of zeros follow each. */
  sizes: readonly number[];
  gap: number;
  apply?: boolean;
}

function lambMoments({ sizes, gap, apply = true }: Moments): MatrixCase {
  const rule = { beta1: 0.9, beta2: 0.99, eps: 1e-3, weightDecay: 0.1 };
  const starts = [0];
  for (const size of sizes) starts.push(starts.at(-1)! + size + gap);
  const n = starts.at(-1)!;
  const places = sizes.length;
  return opCase({
    op: 'OneBitLambMoments',
    dtype: 'f32',
    title: `[${sizes}] + ${gap}${apply ? '' : ' skipped'}`,
    build(random) {
      const layout = gap % 2 ? unaligned : aligned;
      const spreadValues = (draw: (count: number) => ArrayLike<number>): Float64Array => {
        const out = new Float64Array(n);
        sizes.forEach((size, k) => {
          out.set(Array.from(draw(size)), starts[k]!);
        });
        return out;
      };
      const normal = () =>
        input(
          'f32',
          [n],
          spreadValues((size) => random.normal(size)),
          layout,
        );
      const check = apply ? closeSameBits('f32', 1, 'tensor') : exact;
      const v = spreadValues((size) => secondMoment(random, size));
      return {
        operands: {
          master: normal(),
          m: inPlaceOperand(normal(), check),
          v: input('f32', [n], v, layout),
          fresh: inPlaceOperand(input('f32', [n], v, layout), check),
          payload: normal(),
          starts: input('i64', [places + 1], starts),
          sums: output('f64', [places, 3], apply ? closeSameBits('f32', 1, 'element') : exact),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: rule,
        reference(all) {
          const { master, m, v: second, fresh, payload } = all as Record<string, Float64Array>;
          const out = { m: m!.slice(), fresh: fresh!.slice(), sums: new Float64Array(3 * places) };
          for (let k = 0; apply && k < places; ++k) {
            for (let i = starts[k]!; i < starts[k + 1]!; ++i) {
              const live = second![i] !== 0;
              const x = live ? payload![i]! : 0;
              const g = (x - rule.beta1 * m![i]!) / (1 - rule.beta1);
              out.m[i] = x;
              if (live) out.fresh[i] = rule.beta2 * fresh![i]! + (1 - rule.beta2) * g * g;
              const d = sqrt(second![i]!) + rule.eps;
              const u = x / d;
              out.sums[3 * k]! += u * u;
              out.sums[3 * k + 1]! += (u + rule.weightDecay * master![i]!) ** 2;
              const ratio = live ? d / (sqrt(out.fresh[i]!) + rule.eps) : 0;
              out.sums[3 * k + 2] = max(out.sums[3 * k + 2]!, ratio);
            }
          }
          return out;
        },
      };
    },
  });
}

function lambCoefficients(decays: boolean, apply: boolean): MatrixCase {
  const bounds = { least: 0.5, most: 4, threshold: 0.1 };
  const sums = [
    ...[1, 4, 1.05, 1, 1, 3, 1, 4, 0.2, 0, 0, 0, 4, 1, 1.02],
    ...Array.from({ length: 3 * 300 }, (_, i) => ((i * 37) % 101) / 60 + 0.1),
  ];
  const places = sums.length / 3;
  return opCase({
    op: 'OneBitLambCoefficients',
    dtype: 'f32',
    title: `${decays ? 'with' : 'without'} decay${apply ? '' : ', skipped'}`,
    build(random) {
      const check = apply ? closeSameBits('f32', 1, 'element') : exact;
      const uniform = () => input('f32', [places], random.uniform(places, 0.6, 2));
      return {
        operands: {
          sums: input('f64', [places, 3], sums),
          frozen: uniform(),
          factor: inPlaceOperand(uniform(), check),
          coefficients: inPlaceOperand(uniform(), check),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: { decays, ...bounds },
        reference({ frozen, factor: last, coefficients }) {
          if (!apply) return { factor: last, coefficients };
          const factor = last!.map((old, k) => {
            const [plainSquares, squares, ratio] = sums.slice(3 * k, 3 * k + 3) as [
              number,
              number,
              number,
            ];
            let f = ratio > 0 ? ratio : 1;
            const q = squares > 0 ? min(1, sqrt(plainSquares / squares)) : 1;
            if (decays) f = f * q + 1 - q;
            f = max(bounds.least, min(bounds.most, f));
            return max(old * (1 - bounds.threshold), min(old * (1 + bounds.threshold), f));
          });
          return { factor, coefficients: factor.map((f, k) => f * frozen![k]!) };
        },
      };
    },
  });
}

const steps = [
  ...oddSizes.map((n): Step => ({ ...plain, n })),
  { ...plain, n: 33_000 },
  { ...plain, apply: false },
];

export const cases: MatrixCase[] = [
  ...steps.flatMap((step) => [
    momentPayload(step, true),
    momentPayload(step, false),
    driftPayload(step),
    frozenAdam(step, 0),
    anchorAdam(step),
  ]),
  ...narrow.flatMap((dtype) => [
    momentPayload({ ...plain, dtype }, true),
    frozenAdam({ ...plain, dtype, weight: dtype }, 0.9),
    frozenAdam({ ...plain, dtype, weight: dtype, apply: false }, 0.9),
    anchorAdam({ ...plain, weight: dtype }),
    anchorAdam({ ...plain, weight: dtype, apply: false }),
  ]),
  lambAverage(true),
  lambAverage(false),
  ...[[], [0], [1], [3], [0, 0, 5], [257, 4096, 5, 4097], [4096 * 257 + 5, 33]].flatMap((sizes) => [
    lambMoments({ sizes, gap: 0 }),
    lambMoments({ sizes, gap: 64 }),
  ]),
  lambMoments({ sizes: [257, 5], gap: 3, apply: false }),
  lambCoefficients(true, true),
  lambCoefficients(false, true),
  lambCoefficients(true, false),
];
