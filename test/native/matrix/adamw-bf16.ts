// Cases of AdamW with bf16 moments: the formula in f64, AdamW on f32 moments rounded in plain
// integers, and the mean of stochastic rounding.
import assert from 'node:assert/strict';
import { Buffer } from '../../../lib/runtime/buffer.js';
import type { Device } from '../../../lib/runtime/device.js';
import { type DType, type NumericArray, rawArray } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';
import {
  type Check,
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  sameAs,
} from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Mistake } from './mistake.js';
import { encode, Random } from './numbers.js';

const { abs, imul, sqrt } = Math;

const narrow = ['f32', 'f16', 'bf16'] as const;

const rule = {
  lr: 1e-2,
  beta1: 0.9,
  beta2: 0.999,
  eps: 1e-8,
  weightDecay: 0.1,
  correction1: 1 - 0.9 ** 3,
  correction2: 1 - 0.999 ** 3,
};

interface Update {
  n: number;
  grad: DType;
  weight: DType | null;
  apply: boolean;
  decoupled: boolean;
  /** The weight overwrites the gradient. */
  inPlace?: boolean;
}

const plain: Update = { n: 257, grad: 'bf16', weight: 'bf16', apply: true, decoupled: true };

/** Rounded to the nearest value of 8 bits, and to one of its neighbours. */
const nearest: Check = { tolerance: 2 ** -8, scope: 'element', absolute: 1e-7, sameBits: true };
const either: Check = { tolerance: 2 ** -7, scope: 'element', absolute: 1e-12, sameBits: true };

function update(u: Update): MatrixCase {
  const flags = [u.apply ? '' : 'skipped', u.decoupled ? '' : 'L2', u.inPlace ? 'in place' : ''];
  return opCase({
    op: 'AdamW',
    dtype: u.grad,
    title: `[${u.n}] moments bf16 weight ${u.weight} ${flags.filter(Boolean)}`,
    build(random) {
      const layout = u.n % 2 ? unaligned : aligned;
      const of = (check: Check) => (u.apply ? check : exact);
      const grad = input(u.grad, [u.n], random.normal(u.n), layout);
      const weightCheck = of(closeSameBits(u.weight ?? 'f32', 1, 'tensor'));
      const weight =
        u.weight && inPlaceOperand(input(u.weight, [u.n], random.normal(u.n), layout), weightCheck);
      const moment = (values: Float64Array) => input('bf16', [u.n], values, layout);
      return {
        operands: {
          master: inPlaceOperand(
            input('f32', [u.n], random.normal(u.n), layout),
            of(closeSameBits('f32', 1, 'tensor')),
          ),
          m: inPlaceOperand(moment(random.normal(u.n).map((x) => x * 0.1)), of(nearest)),
          v: inPlaceOperand(moment(random.uniform(u.n, 0, 0.1)), of(either)),
          grad: u.inPlace ? inPlaceOperand(grad, weightCheck) : grad,
          weight: u.inPlace ? sameAs(grad, 'grad') : weight,
          control: input('f32', [4], [0.5, u.apply ? 1 : 0, 1, 1]),
        },
        args: { ...rule, decoupled: u.decoupled },
        reference({ master, m, v, grad: g }) {
          const out = { master: master!.slice(), m: m!.slice(), v: v!.slice() };
          for (let i = 0; u.apply && i < u.n; ++i) {
            const p = master![i]!;
            const d = g![i]! * 0.5 + (u.decoupled ? 0 : rule.weightDecay * p);
            out.m[i] = rule.beta1 * m![i]! + (1 - rule.beta1) * d;
            out.v[i] = rule.beta2 * v![i]! + (1 - rule.beta2) * d * d;
            const root = sqrt(out.v[i]!) / sqrt(rule.correction2) + rule.eps;
            const decayed = u.decoupled ? p - rule.lr * rule.weightDecay * p : p;
            out.master[i] = decayed - ((rule.lr / rule.correction1) * out.m[i]!) / root;
          }
          return { ...out, ...(u.inPlace ? { grad: out.master } : { weight: out.master }) };
        },
      };
    },
  });
}

/** Flat views with their own memory. */
class Memory {
  private readonly buffers: Buffer[] = [];

  constructor(
    private readonly device: Device,
    private readonly lead = 0,
  ) {}

  raw(dtype: DType, values: NumericArray): View {
    const all = rawArray(dtype, values.length + this.lead);
    all.set(values as never, this.lead);
    const buffer = Buffer.allocate(this.device, Math.max(8, all.byteLength));
    buffer.write(0, all);
    this.buffers.push(buffer);
    return { buffer, dtype, shape: [values.length], offset: this.lead, strides: [1] };
  }

  view(dtype: DType, values: ArrayLike<number>): View {
    const raw = rawArray(dtype, values.length);
    for (let i = 0; i < values.length; ++i) encode(raw, i, values[i] as number, dtype);
    return this.raw(dtype, raw);
  }

  bits({ buffer, dtype, shape }: View): NumericArray {
    const all = rawArray(dtype, (shape[0] as number) + this.lead);
    buffer.read(0, all);
    return all.slice(this.lead) as NumericArray;
  }

  release(): void {
    for (const buffer of this.buffers) buffer.release();
  }
}

const bitsOf = (floats: NumericArray): Uint32Array =>
  new Uint32Array(floats.buffer, floats.byteOffset, floats.length);

const widenBf16 = (bf16: ArrayLike<number>): Float32Array =>
  new Float32Array(Uint32Array.from(bf16, (value) => value << 16).buffer);

const upper = (bits: number, rounded: number): number =>
  (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (rounded >>> 16) & 0xffff;

/** m is rounded to nearest even; v is rounded by 16 bits that are a hash of p and m. */
function roundedMoments(p: NumericArray, m: NumericArray, v: NumericArray) {
  const [ps, ms, vs] = [p, m, v].map(bitsOf) as [Uint32Array, Uint32Array, Uint32Array];
  const hash = (i: number): number => {
    const mixed = imul(ps[i]!, 0x9e3779b1) ^ imul(ms[i]!, 0x85ebca77);
    return imul(mixed ^ (mixed >>> 15), 0xc2b2ae3d) >>> 16;
  };
  return {
    m: Uint16Array.from(ms, (bits) => upper(bits, bits + 0x7fff + ((bits >>> 16) & 1))),
    v: Uint16Array.from(vs, (bits, i) => upper(bits, bits + hash(i))),
  };
}

interface Steps {
  n: number;
  grad: DType;
  /** Magnitude of moments and gradients. */
  scale: number;
  lead: number;
  /** Whether gradients contain infinities and NaNs. */
  wild: boolean;
}

/**
 * Three updates by each op with bf16 moments equal AdamW on f32 moments that are rounded
 * afterwards.
 */
function equalsRounded(s: Steps): Case {
  const { n, grad: dtype } = s;
  const name = `moments of bf16, gradients ${dtype} [${n}] of ${s.scale}, lead ${s.lead}${s.wild ? ', wild' : ''}: rounded`;
  const run = (device: Device): void => {
    const random = new Random(name);
    const memory = new Memory(device, s.lead);
    const masters = random.normal(n);
    const initial = {
      m: random.normal(n).map((x) => x * s.scale),
      v: random.uniform(n, 0, 1).map((x) => x * s.scale * s.scale),
    };
    const moments = () => ({
      m: memory.view('bf16', initial.m),
      v: memory.view('bf16', initial.v),
    });
    const [whole, halved, tried] = [moments(), moments(), moments()];
    const master = memory.view('f32', masters);
    const triedMaster = memory.view('f32', masters);
    const split = {
      high: memory.view('bf16', masters),
      low: memory.view('bf16', masters),
      ties: memory.raw('u8', new Uint8Array(Math.ceil(n / 8))),
    };
    kernels.splitMaster({ in: master, ...split });
    const control = memory.view('f32', [0.5, 1, 1, 1]);
    let last: { grad: View; rule: kernels.AdamWScalars } | null = null;
    for (let step = 1; step <= 3; ++step) {
      const values = random.normal(n).map((x) => x * s.scale);
      if (s.wild && n > 2) [values[0], values[1]] = [Number.NaN, Number.POSITIVE_INFINITY];
      const grad = memory.view(dtype, values);
      const scalars = {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weightDecay: 0.1,
        decoupled: true,
        correction1: 1 - 0.9 ** step,
        correction2: 1 - 0.999 ** step,
      };
      const wide = {
        master: memory.raw('f32', memory.bits(master)),
        m: memory.raw('f32', widenBf16(memory.bits(whole.m) as Uint16Array)),
        v: memory.raw('f32', widenBf16(memory.bits(whole.v) as Uint16Array)),
      };
      const weights = [0, 1, 2].map(() => memory.view('bf16', values));
      const [expectedWeight, weight, guess] = weights as [View, View, View];
      kernels.adamW({ ...wide, grad, weight: expectedWeight, control, ...scalars });
      const [p, m, v] = [wide.master, wide.m, wide.v].map((view) => memory.bits(view));
      const expected = roundedMoments(p!, m!, v!);

      kernels.adamW({ ...whole, master, grad, weight, control, ...scalars });
      same(bitsOf(memory.bits(master)), bitsOf(p!), 'master');
      same(memory.bits(weight), memory.bits(expectedWeight), 'weight');
      same(memory.bits(whole.m), expected.m, 'm');
      same(memory.bits(whole.v), expected.v, 'v');

      kernels.adamWHalves({ ...halved, ...split, grad, control, ...scalars });
      same(memory.bits(split.high), memory.bits(expectedWeight), 'upper halves');
      same(memory.bits(halved.m), expected.m, 'm of halves');
      same(memory.bits(halved.v), expected.v, 'v of halves');

      // Commits the step before, and speculates this one on the rounded moments.
      kernels.adamWSpeculate({
        ...tried,
        master: triedMaster,
        weight: guess,
        previous: last?.grad ?? null,
        previousControl: last && control,
        next: grad,
        nextControl: control,
        nextRule: scalars,
        previousRule: last?.rule ?? scalars,
      });
      same(memory.bits(guess), memory.bits(expectedWeight), 'tried weight');
      last = { grad, rule: scalars };
    }
    kernels.adamWSpeculate({
      ...tried,
      master: triedMaster,
      weight: null,
      next: null,
      nextControl: null,
      previous: last!.grad,
      previousControl: control,
      previousRule: last!.rule,
      nextRule: last!.rule,
    });
    same(memory.bits(tried.m), memory.bits(whole.m), 'committed m');
    same(memory.bits(tried.v), memory.bits(whole.v), 'committed v');
    same(bitsOf(memory.bits(triedMaster)), bitsOf(memory.bits(master)), 'committed master');
    memory.release();
  };
  return { name, run };
}

/** In f32, the payload of a NaN depends on the back end; bf16 has one NaN. */
function same(
  got: ArrayLike<number | bigint>,
  expected: ArrayLike<number | bigint>,
  label: string,
): void {
  const isNaNBits = (item: unknown): boolean =>
    got instanceof Uint32Array && (Number(item) & 0x7fffffff) > 0x7f800000;
  assert.equal(got.length, expected.length, label);
  for (let i = 0; i < got.length; ++i) {
    if (got[i] === expected[i] || (isNaNBits(got[i]) && isNaNBits(expected[i]))) continue;
    assert.fail(`${label}[${i}]: ${got[i]}, not ${expected[i]}`);
  }
}

/**
 * Constant gradients of 1 for 4000 steps. With rounding to nearest, v would stop between a fourth
 * and a half of 1, or never shrink.
 */
function followsGradients(from: number): Case {
  const [n, steps] = [512, 4000];
  const run = (device: Device): void => {
    const memory = new Memory(device);
    const random = new Random('follows');
    const state = {
      master: memory.view('f32', random.normal(n)),
      m: memory.view('bf16', new Float64Array(n)),
      v: memory.view('bf16', new Float64Array(n).fill(from)),
    };
    const grad = memory.view('f32', new Float64Array(n).fill(1));
    const control = memory.view('f32', [1, 1, 1, 1]);
    for (let step = 1; step <= steps; ++step) {
      kernels.adamW({
        ...state,
        grad,
        weight: null,
        control,
        decoupled: true,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weightDecay: 0,
        correction1: 1,
        correction2: 1,
      });
    }
    const v = widenBf16(memory.bits(state.v) as Uint16Array);
    const mean = v.reduce((sum, x) => sum + x, 0) / n;
    const expected = 1 + (from - 1) * 0.999 ** steps;
    // The mean of 512 random walks with steps of at most 2^-8 and a memory of 1000 steps.
    assert.ok(abs(mean - expected) < 0.01 * expected, `${mean}, not ${expected}`);
    const spread = sqrt(v.reduce((sum, x) => sum + (x - mean) ** 2, 0) / n);
    assert.ok(spread > 0 && spread < 0.1 * expected, `spread ${spread}`);
    memory.release();
  };
  return { name: `v of bf16 follows gradients of 1 from ${from}`, run };
}

const one: Steps = { n: 3001, grad: 'bf16', scale: 1, lead: 0, wild: false };

export const cases: (MatrixCase | Case)[] = [
  ...[...oddSizes, 40_009].map((n) => update({ ...plain, n })),
  ...narrow.flatMap((grad) => [
    ...[null, ...narrow].map((weight) => update({ ...plain, grad, weight })),
    update({ ...plain, grad, weight: grad, inPlace: true }),
    update({ ...plain, grad, weight: grad, inPlace: true, apply: false }),
    update({ ...plain, grad, apply: false }),
    update({ ...plain, grad, decoupled: false }),
  ]),
  ...[1, 7, 64, 255, 1025, 70_001].flatMap((n) =>
    [0, 3].map((lead) => equalsRounded({ ...one, n, lead })),
  ),
  ...narrow.flatMap((grad) => [
    equalsRounded({ ...one, grad }),
    equalsRounded({ ...one, grad, scale: 1e-3 }),
    equalsRounded({ ...one, grad, wild: true }),
  ]),
  equalsRounded({ ...one, grad: 'f32', scale: 1e-19 }),
  ...[0, 16].map(followsGradients),
];

export const mistakes: Mistake[] = [
  {
    op: 'adamw',
    what: 'moments of f16',
    code: 'DS_DTYPE',
    message: 'f32 or bf16',
    run: (m) =>
      kernels.adamW({
        master: m([9]),
        m: m([9], 'f16'),
        v: m([9], 'f16'),
        grad: m([9]),
        weight: null,
        ...rule,
        control: m([4]),
        decoupled: true,
      }),
  },
  {
    op: 'adamw',
    what: 'moments of two dtypes',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) =>
      kernels.adamW({
        master: m([9]),
        m: m([9], 'bf16'),
        v: m([9]),
        grad: m([9]),
        weight: null,
        ...rule,
        control: m([4]),
        decoupled: true,
      }),
  },
];
