// AdamW: both forms of decay, every dtype of gradient and weight, skipped steps and denormals.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  sameAs,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const { abs, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

interface Update {
  n: number;
  grad: DType;
  weight: DType | null;
  decoupled: boolean;
  apply: boolean;
  /** Moments and gradients below the normal range, which are flushed. */
  tiny: boolean;
  step: number;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

const settings = { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.1 };

function update(u: Update): MatrixCase {
  const { lr, beta1, beta2, eps, weightDecay } = settings;
  const correction1 = 1 - beta1 ** u.step;
  const correction2 = 1 - beta2 ** u.step;
  const flags = [
    u.decoupled ? 'decoupled' : 'coupled',
    u.apply ? '' : 'skipped',
    u.tiny ? 'tiny' : '',
    u.inPlace ? 'in place' : '',
  ]
    .filter(Boolean)
    .join(' ');
  return opCase({
    op: 'AdamW',
    dtype: u.grad,
    title: `[${u.n}] weight ${u.weight} step ${u.step} ${flags}`,
    build(random: Random) {
      const layout = u.n % 2 ? unaligned : aligned;
      const size = u.tiny ? 1e-39 : 1;
      const check = u.apply ? closeSameBits('f32', 1, 'tensor') : exact;
      const vector = (values: ArrayLike<number>) =>
        inPlaceOperand(input('f32', [u.n], values, layout), check);
      const weightCheck = u.weight && u.apply ? closeSameBits(u.weight, 1, 'tensor') : exact;
      const grad = input(
        u.grad,
        [u.n],
        random.normal(u.n).map((x) => x * size),
        layout,
      );
      const weight = u.weight
        ? inPlaceOperand(input(u.weight, [u.n], random.normal(u.n), layout), weightCheck)
        : null;
      return {
        operands: {
          master: vector(random.normal(u.n)),
          m: vector(random.normal(u.n).map((x) => x * 0.1 * size)),
          v: vector(random.uniform(u.n, 0, 0.1).map((x) => x * size)),
          grad: u.inPlace ? inPlaceOperand(grad, weightCheck) : grad,
          weight: u.inPlace ? sameAs(grad, 'grad') : weight,
          control: input('f32', [4], [0.5, u.apply ? 1 : 0, 1, 1]),
        },
        args: { ...settings, correction1, correction2, decoupled: u.decoupled },
        reference(all) {
          const { master, m, v, grad } = all as {
            master: Float64Array;
            m: Float64Array;
            v: Float64Array;
            grad: Float64Array;
          };
          if (!u.apply) return { master, m, v, weight: master, grad: master };
          const out = { master: master.slice(), m: m.slice(), v: v.slice() };
          const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);
          for (let i = 0; i < u.n; ++i) {
            let g = flush(flush(grad[i]!) * 0.5);
            let p = master[i]!;
            if (u.decoupled) p -= lr * weightDecay * p;
            else g += weightDecay * p;
            out.m[i] = flush(beta1 * flush(m[i]!) + (1 - beta1) * g);
            out.v[i] = flush(beta2 * flush(v[i]!) + (1 - beta2) * g * g);
            const root = sqrt(out.v[i]!) / sqrt(correction2);
            out.master[i] = p - ((lr / correction1) * out.m[i]!) / (root + eps);
          }
          return { ...out, weight: out.master, grad: out.master };
        },
      };
    },
  });
}

function updates(): Update[] {
  const plain: Update = {
    n: 257,
    grad: 'f32',
    weight: null,
    decoupled: true,
    apply: true,
    tiny: false,
    step: 3,
  };
  const list: Update[] = [];
  for (const grad of narrow) {
    for (const weight of [null, ...narrow]) {
      for (const decoupled of [true, false]) list.push({ ...plain, grad, weight, decoupled });
    }
    for (const n of [...oddSizes, 40_009]) list.push({ ...plain, n, grad, weight: grad });
    list.push({ ...plain, grad, weight: grad, inPlace: true });
    list.push({ ...plain, grad, weight: grad, inPlace: true, apply: false });
    list.push(
      { ...plain, grad, weight: 'bf16', apply: false },
      { ...plain, grad, weight: 'bf16', step: 1, n: 1029 },
    );
  }
  list.push({ ...plain, tiny: true, n: 1029 }, { ...plain, tiny: true, decoupled: false, n: 33 });
  return list;
}

export const cases: MatrixCase[] = updates().map(update);
