// AdamWSpeculate: commit, speculation, both and neither, against plain f64 and against AdamW run
// twice.
import assert from 'node:assert/strict';
import { Buffer } from '../../../lib/runtime/buffer.js';
import type { Device } from '../../../lib/runtime/device.js';
import { type DType, rawArray } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides, type View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';
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
import { encode, Random } from './numbers.js';

const { abs, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

/** The gradient is missing, or its step is skipped or applied. */
type Fate = 'absent' | 'skipped' | 'applied';

function rule(step: number, lr: number, decoupled: boolean): kernels.AdamWScalars {
  const [beta1, beta2] = [0.9 - step * 0.01, 0.999];
  const [correction1, correction2] = [1 - beta1 ** step, 1 - beta2 ** step];
  const rest = { eps: 1e-8, weightDecay: 0.1, decoupled };
  return { lr, beta1, beta2, correction1, correction2, ...rest };
}

interface Parameter {
  p: number;
  m: number;
  v: number;
}

const flush = (x: number): number => (abs(x) < 2 ** -126 ? 0 : x);

/** One step of the formula in f64. */
function stepParameter({ p, m, v }: Parameter, grad: number, r: kernels.AdamWScalars): Parameter {
  let g = flush(flush(grad) * 0.5);
  let decayed = p;
  if (r.decoupled) decayed -= r.lr * r.weightDecay * p;
  else g += r.weightDecay * p;
  const m2 = flush(r.beta1 * flush(m) + (1 - r.beta1) * g);
  const v2 = flush(r.beta2 * flush(v) + (1 - r.beta2) * g * g);
  const root = sqrt(v2) / sqrt(r.correction2);
  return { p: decayed - ((r.lr / r.correction1) * m2) / (root + r.eps), m: m2, v: v2 };
}

interface Pass {
  n: number;
  grad: DType;
  weight: DType | null;
  previous: Fate;
  next: Fate;
  decoupled: boolean;
  /** The weight overwrites the previous gradient. */
  inPlace: boolean;
}

function pass(u: Pass): MatrixCase {
  const rules = [rule(3, 1e-2, u.decoupled), rule(4, 2e-2, u.decoupled)] as const;
  const flags = [u.decoupled ? '' : 'coupled', u.inPlace ? 'in place' : ''].join(' ');
  return opCase({
    op: 'AdamWSpeculate',
    dtype: u.grad,
    title: `[${u.n}] weight ${u.weight} previous ${u.previous} next ${u.next} ${flags}`,
    build(random) {
      const layout = u.n % 2 ? unaligned : aligned;
      const state = u.previous === 'applied' ? closeSameBits('f32', 1, 'tensor') : exact;
      const moved = u.previous === 'applied' || u.next === 'applied';
      const weightCheck = u.weight && moved ? closeSameBits(u.weight, 1, 'tensor') : exact;
      const vector = (values: ArrayLike<number>) =>
        inPlaceOperand(input('f32', [u.n], values, layout), state);
      const gradient = (fate: Fate) =>
        fate === 'absent' ? null : input(u.grad, [u.n], random.normal(u.n), layout);
      const control = (fate: Fate) =>
        fate === 'absent' ? null : input('f32', [4], [0.5, fate === 'applied' ? 1 : 0, 1, 1]);
      const previous = gradient(u.previous);
      const weight =
        u.weight && inPlaceOperand(input(u.weight, [u.n], random.normal(u.n), layout), weightCheck);
      return {
        operands: {
          master: vector(random.normal(u.n)),
          m: vector(random.normal(u.n).map((x) => x * 0.1)),
          v: vector(random.uniform(u.n, 0, 0.1)),
          previous: previous && u.inPlace ? inPlaceOperand(previous, weightCheck) : previous,
          previousControl: control(u.previous),
          next: gradient(u.next),
          nextControl: control(u.next),
          weight: previous && u.inPlace ? sameAs(previous, 'previous') : weight,
        },
        args: { previousRule: rules[0], nextRule: rules[1] },
        reference(all) {
          const zeros = new Float64Array(u.n);
          const { master = zeros, m = zeros, v = zeros, previous: g1, next: g2 } = all;
          const out = { master: master.slice(), m: m.slice(), v: v.slice() };
          const result = new Float64Array(u.n);
          for (let i = 0; i < u.n; ++i) {
            let at: Parameter = { p: master[i]!, m: m[i]!, v: v[i]! };
            if (g1 && u.previous === 'applied') at = stepParameter(at, g1[i]!, rules[0]);
            [out.master[i], out.m[i], out.v[i]] = [at.p, at.m, at.v];
            if (g2 && u.next === 'applied') at = stepParameter(at, g2[i]!, rules[1]);
            result[i] = at.p;
          }
          return { ...out, weight: result, previous: result };
        },
      };
    },
  });
}

function passes(): Pass[] {
  const plain: Pass = {
    n: 257,
    grad: 'bf16',
    weight: 'bf16',
    previous: 'applied',
    next: 'applied',
    decoupled: true,
    inPlace: false,
  };
  const list: Pass[] = [];
  const fates: Fate[] = ['absent', 'skipped', 'applied'];
  for (const grad of narrow) {
    for (const previous of fates) {
      for (const next of fates) list.push({ ...plain, grad, weight: grad, previous, next });
    }
    for (const n of [...oddSizes, 40_009])
      list.push({ ...plain, n, grad, weight: grad, inPlace: true });
    for (const weight of narrow) list.push({ ...plain, grad, weight, decoupled: false });
    list.push({ ...plain, grad, weight: null, next: 'absent' });
  }
  return list;
}

/** One pass over two steps has the bits of two calls of AdamW on a copy. */
function equalsTwoUpdates(grad: DType, scale: number): Case {
  const name = `AdamWSpeculate ${grad} equals AdamW twice, values of ${scale}`;
  const n = 3001;
  const strides = contiguousStrides([n]);
  const run = (device: Device): void => {
    const random = new Random(name);
    const buffers: Buffer[] = [];
    const view = (dtype: DType, values: ArrayLike<number>): View => {
      const raw = rawArray(dtype, values.length);
      for (let i = 0; i < values.length; ++i) encode(raw, i, values[i]!, dtype);
      const buffer = Buffer.allocate(device, raw.byteLength);
      buffer.write(0, raw);
      buffers.push(buffer);
      const shape = [values.length];
      return { buffer, dtype, shape, offset: 0, strides: values.length === n ? strides : [1] };
    };
    const bits = ({ buffer, dtype }: View) => {
      const raw = rawArray(dtype, n);
      buffer.read(0, raw);
      return raw;
    };
    const values = {
      master: random.normal(n),
      m: random.normal(n).map((x) => x * scale),
      v: random.uniform(n, 0, 1).map((x) => x * scale),
      first: random.normal(n).map((x) => x * scale),
      second: random.normal(n).map((x) => x * scale),
    };
    const [previousRule, nextRule] = [rule(7, 1e-2, true), rule(8, 3e-3, true)];
    const control = view('f32', [0.25, 1, 1, 1]);
    const state = () => ({
      master: view('f32', values.master),
      m: view('f32', values.m),
      v: view('f32', values.v),
    });
    const [twice, once] = [state(), state()];
    const [first, second] = [view(grad, values.first), view(grad, values.second)];
    const weight = view(grad, values.first);
    kernels.adamWSpeculate({
      ...once,
      previous: weight,
      previousControl: control,
      next: second,
      nextControl: control,
      weight,
      previousRule,
      nextRule,
    });
    kernels.adamW({ ...twice, grad: first, weight: null, control, ...previousRule });
    const committed = [twice.master, twice.m, twice.v].map(bits);
    kernels.adamW({ ...twice, grad: second, weight: first, control, ...nextRule });
    assert.deepEqual([once.master, once.m, once.v].map(bits), committed);
    assert.deepEqual(bits(weight), bits(first));
    for (const buffer of buffers) buffer.release();
  };
  return { name, run };
}

/** Against AdamW run twice. */
const equalities: Case[] = narrow.flatMap((grad) =>
  [1, 1e-38].map((scale) => equalsTwoUpdates(grad, scale)),
);

export const cases: (MatrixCase | Case)[] = [...passes().map(pass), ...equalities];
