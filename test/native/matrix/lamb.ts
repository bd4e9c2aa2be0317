// LAMB: both halves over several parameters with gaps, every dtype, skipped steps, zero sums and
// clamped ratios.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { LambScalars } from '../../../lib/runtime/kernels.generated.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  output,
  type Values,
} from './harness.js';
import { aligned, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { abs, sqrt, min, max } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

interface Step {
  /** Lengths of the parameters; `gap` elements of zeros follow each. */
  sizes: readonly number[];
  gap: number;
  dtype: DType;
  weight: DType | null;
  apply: boolean;
  epsInsideSqrt: boolean;
  weightDecay: number;
  /** Moments and gradients below the normal range, which are flushed. */
  tiny: boolean;
}

const plain: Step = {
  sizes: [257, 4096, 5, 4097],
  gap: 3,
  dtype: 'f32',
  weight: null,
  apply: true,
  epsInsideSqrt: false,
  weightDecay: 0.1,
  tiny: false,
};

const titleOf = (s: Step): string =>
  [
    `[${s.sizes}] + ${s.gap}`,
    `weight ${s.weight}`,
    `decay ${s.weightDecay}`,
    s.apply ? '' : 'skipped',
    s.epsInsideSqrt ? 'eps inside' : '',
    s.tiny ? 'tiny' : '',
  ]
    .filter(Boolean)
    .join(' ');

function ruleOf({ epsInsideSqrt, weightDecay }: Step): LambScalars {
  const [beta1, beta2] = [0.9, 0.999];
  const corrections = { correction1: 1 - beta1 ** 3, correction2: 1 - beta2 ** 3 };
  return { lr: 1e-2, beta1, beta2, eps: 1e-6, ...corrections, epsInsideSqrt, weightDecay };
}

function startsOf({ sizes, gap }: Step): number[] {
  const starts = [0];
  for (const size of sizes) starts.push(starts.at(-1)! + size + gap);
  return starts;
}

/** Values of `draw` in the parameters, zeros in the gaps. */
function spreadValues(s: Step, draw: (n: number) => ArrayLike<number>): Float64Array {
  const starts = startsOf(s);
  const out = new Float64Array(starts.at(-1)!);
  s.sizes.forEach((size, i) => {
    out.set(Array.from(draw(size)), starts[i]!);
  });
  return out;
}

const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);

function direction(r: LambScalars, p: number, m: number, v: number): number {
  const inside = v / r.correction2;
  const root = r.epsInsideSqrt ? sqrt(inside + r.eps) : sqrt(inside) + r.eps;
  return (m === 0 ? 0 : m / r.correction1 / root) + r.weightDecay * p;
}

function momentsReference(s: Step, r: LambScalars, all: Values): Record<string, Float64Array> {
  const { master, grad, m, v } = all as Record<string, Float64Array>;
  const out = { m: m!.slice(), v: v!.slice(), sums: new Float64Array(2 * s.sizes.length) };
  if (!s.apply) return out;
  const starts = startsOf(s);
  for (let k = 0; k < s.sizes.length; ++k) {
    for (let i = starts[k]!; i < starts[k + 1]!; ++i) {
      const g = flush(flush(grad![i]!) * 0.5);
      out.m[i] = flush(r.beta1 * flush(m![i]!) + (1 - r.beta1) * g);
      out.v[i] = flush(r.beta2 * flush(v![i]!) + (1 - r.beta2) * g * g);
      out.sums[2 * k]! += master![i]! ** 2;
      out.sums[2 * k + 1]! += direction(r, master![i]!, out.m[i]!, out.v[i]!) ** 2;
    }
  }
  return out;
}

/** The operands that both halves have. */
function stateOf(s: Step, random: Random): Record<'master' | 'm' | 'v' | 'starts', Operand> {
  const layout = s.gap % 2 ? unaligned : aligned;
  const size = s.tiny ? 1e-39 : 1;
  const n = startsOf(s).at(-1)!;
  const vector = (draw: (count: number) => ArrayLike<number>) =>
    input('f32', [n], spreadValues(s, draw), layout);
  return {
    master: vector((count) => random.normal(count)),
    m: vector((count) => random.normal(count).map((x) => x * 0.1 * size)),
    v: vector((count) => random.uniform(count, 0.01, 0.1).map((x) => x * size)),
    starts: input('i64', [s.sizes.length + 1], startsOf(s)),
  };
}

const controlOf = (s: Step): Operand => input('f32', [4], [0.5, s.apply ? 1 : 0, 1, 1]);

function moments(s: Step): MatrixCase {
  const rule = ruleOf(s);
  return opCase({
    op: 'LambMoments',
    dtype: s.dtype,
    title: titleOf(s),
    build(random) {
      const state = stateOf(s, random);
      const check = s.apply ? closeSameBits('f32', 1, 'tensor') : exact;
      const layout = s.gap % 2 ? unaligned : aligned;
      const grad = spreadValues(s, (n) => random.normal(n).map((x) => x * (s.tiny ? 1e-39 : 1)));
      const places = s.sizes.length;
      return {
        operands: {
          ...state,
          m: inPlaceOperand(state.m, check),
          v: inPlaceOperand(state.v, check),
          grad: input(s.dtype, [grad.length], grad, layout),
          sums: output('f64', [places, 2], s.apply ? closeSameBits('f32', 1, 'element') : exact),
          control: controlOf(s),
        },
        args: { rule },
        reference: (all) => momentsReference(s, rule, all),
      };
    },
  });
}

function applyCase(s: Step): MatrixCase {
  const rule = ruleOf(s);
  return opCase({
    op: 'LambApply',
    dtype: s.weight ?? 'f32',
    title: titleOf(s),
    build(random) {
      const state = stateOf(s, random);
      const places = s.sizes.length;
      const check = (dtype: DType) => (s.apply ? closeSameBits(dtype, 1, 'tensor') : exact);
      const layout = s.gap % 2 ? unaligned : aligned;
      return {
        operands: {
          ...state,
          master: inPlaceOperand(state.master, check('f32')),
          weight: s.weight && output(s.weight, state.master.shape, check(s.weight), layout),
          coefficients: input('f32', [places], random.uniform(places, 0.1, 2)),
          control: controlOf(s),
        },
        args: { rule },
        reference(all) {
          const { master, m, v, coefficients } = all as Record<string, Float64Array>;
          if (!s.apply) return { master, weight: master };
          const starts = startsOf(s);
          const out = master!.slice();
          for (let k = 0; k < places; ++k) {
            const step = rule.lr * coefficients![k]!;
            for (let i = starts[k]!; i < starts[k + 1]!; ++i)
              out[i]! -= step * direction(rule, out[i]!, flush(m![i]!), flush(v![i]!));
          }
          return { master: out, weight: out };
        },
      };
    },
  });
}

function steps(): Step[] {
  const list: Step[] = [];
  for (const dtype of narrow) {
    list.push(
      { ...plain, dtype, weight: dtype },
      { ...plain, dtype, weight: dtype, gap: 0, sizes: [40_009, 1, 0, 8192, 129] },
      { ...plain, dtype, weight: dtype, apply: false },
    );
  }
  for (const sizes of [[], [0], [1], [3], [0, 0, 5], [4095], [4096], [1024, 4096, 12_288]])
    list.push({ ...plain, sizes, gap: 0 }, { ...plain, sizes, gap: 64, weight: 'bf16' });
  // More chunks than lanes in one parameter.
  list.push({ ...plain, sizes: [4096 * 257 + 5, 33] });
  list.push(
    { ...plain, epsInsideSqrt: true, weight: 'f16' },
    { ...plain, weightDecay: 0 },
    { ...plain, tiny: true },
    { ...plain, apply: false },
  );
  return list;
}

/** `squares` of parameters and directions in turn. */
function coefficients(squares: readonly number[], title: string, apply = true): MatrixCase {
  const [minCoefficient, maxCoefficient] = [0.01, 10];
  const places = squares.length / 2;
  return opCase({
    op: 'LambCoefficients',
    dtype: 'f32',
    title,
    build(random) {
      return {
        operands: {
          sums: input('f64', [places, 2], squares),
          coefficients: apply
            ? output('f32', [places], closeSameBits('f32', 1, 'element'))
            : inPlaceOperand(input('f32', [places], random.uniform(places, 1, 2)), exact),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: { minCoefficient, maxCoefficient },
        reference({ sums, coefficients: old }) {
          if (!apply) return { coefficients: old };
          const ratios = Array.from({ length: places }, (_, k) => {
            const [parameter, update] = [sums![2 * k]!, sums![2 * k + 1]!];
            if (parameter === 0 || update === 0) return 1;
            return max(minCoefficient, min(maxCoefficient, sqrt(parameter) / sqrt(update)));
          });
          return { coefficients: ratios };
        },
      };
    },
  });
}

const several = [4, 16, 0, 3, 3, 0, 0, 0, 1e-9, 1, 1, 1e-9, 1e200, 1e199, 2, 3];

export const cases: MatrixCase[] = [
  ...steps().map(moments),
  ...steps().map(applyCase),
  coefficients(several, 'ratios, zeros and both bounds'),
  coefficients(several, 'skipped', false),
  coefficients([], 'none'),
  coefficients(
    Array.from({ length: 2 * 1001 }, (_, i) => ((i * 37) % 101) + 1),
    'more than a block',
  ),
];
