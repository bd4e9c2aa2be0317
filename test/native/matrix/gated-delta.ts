// Cases of GatedDelta, its gradients and its steps against the formula token by token: odd sizes,
// shared key heads, documents, gaps, sequences that continue.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { gatedDelta, type Tensor, Tensor as Tensors } from '../../../lib/tensor/index.js';
import type { GradientCheck } from '../../autograd/check.js';
import {
  close,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  type Values,
} from './harness.js';
import { floating, paddedLayout } from './layouts.js';
import type { Mistake } from './mistake.js';

const { exp, floor } = Math;

interface Sizes {
  b: number;
  t: number;
  hk: number;
  h: number;
  d: number;
  e: number;
}

const sizes: readonly Sizes[] = [
  { b: 1, t: 1, hk: 1, h: 1, d: 1, e: 1 },
  { b: 2, t: 7, hk: 2, h: 4, d: 5, e: 3 },
  { b: 1, t: 70, hk: 1, h: 3, d: 34, e: 17 },
  { b: 2, t: 33, hk: 2, h: 2, d: 16, e: 40 },
  { b: 1, t: 19, hk: 1, h: 2, d: 130, e: 65 },
  { b: 1, t: 0, hk: 1, h: 2, d: 4, e: 4 },
  { b: 2, t: 3, hk: 1, h: 1, d: 4, e: 0 },
];

type State = Float64Array;

/** Runs one head from `state` [D, E]; `each` gets what the state lacked, and the result. */
function recur(
  z: { d: number; e: number; count: number },
  of: {
    q(t: number, i: number): number;
    k(t: number, i: number): number;
    v(t: number, j: number): number;
    decay(t: number): number;
    beta(t: number): number;
    starts(t: number): boolean;
  },
  state: State,
  each: (t: number, out: Float64Array) => void,
): void {
  const { d, e, count } = z;
  for (let t = 0; t < count; ++t) {
    const factor = of.starts(t) ? 0 : exp(of.decay(t));
    for (let i = 0; i < d * e; ++i) state[i] = factor === 0 ? 0 : state[i]! * factor;
    const out = new Float64Array(e);
    for (let j = 0; j < e; ++j) {
      let read = 0;
      for (let i = 0; i < d; ++i) read += state[i * e + j]! * of.k(t, i);
      const u = of.beta(t) * (of.v(t, j) - read);
      for (let i = 0; i < d; ++i) state[i * e + j]! += of.k(t, i) * u;
      for (let i = 0; i < d; ++i) out[j]! += state[i * e + j]! * of.q(t, i);
    }
    each(t, out);
  }
}

/** A document begins at every seventh token, counted over the batch. */
const documentsOf = ({ b, t }: Sizes): Float64Array =>
  Float64Array.from({ length: b * t }, (_, i) => floor(i / 7) % 3);

function forward(z: Sizes, v: Values): Float64Array {
  const { b, t, hk, h, d, e } = z;
  const out = new Float64Array(b * t * h * e);
  for (let row = 0; row < b; ++row) {
    for (let head = 0; head < h; ++head) {
      const key = floor(head / (h / hk));
      const at = (n: number, heads: number, localValue: number) =>
        (row * t + n) * heads + localValue;
      const documents = v.documents;
      recur(
        { d, e, count: t },
        {
          q: (n, i) => v.q![at(n, hk, key) * d + i]!,
          k: (n, i) => v.k![at(n, hk, key) * d + i]!,
          v: (n, j) => v.v![at(n, h, head) * e + j]!,
          decay: (n) => v.decay![at(n, h, head)]!,
          beta: (n) => v.beta![at(n, h, head)]!,
          starts: (n) =>
            n === 0 ||
            (documents !== undefined && documents[row * t + n] !== documents[row * t + n - 1]),
        },
        new Float64Array(d * e),
        (n, result) => out.set(result, at(n, h, head) * e),
      );
    }
  }
  return out;
}

type Draw = {
  normal(n: number): Float64Array;
  uniform(n: number, low: number, high: number): Float64Array;
};

/** Keys of length at most 1, as models have them: states stay bounded. */
const keysOf = (random: Draw, n: number, d: number): Float64Array => {
  const all = random.normal(n * d);
  return all.map((x, i) => {
    const row = floor(i / d) * d;
    const length = all.subarray(row, row + d).reduce((sum, value) => sum + value * value, 0);
    return x / Math.sqrt(length + 1e-6);
  });
};

function operandsOf(random: Draw, dtype: DType, z: Sizes, mode: Mode) {
  const { b, t, hk, h, d, e } = z;
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const [keys, values] = [
    [b, t, hk, d],
    [b, t, h, e],
  ];
  const layout = (shape: number[]) => (mode === 'gaps' && e > 0 ? paddedLayout(shape) : {});
  return {
    q: input(dtype, keys, keysOf(random, b * t * hk, d), layout(keys)),
    k: input(dtype, keys, keysOf(random, b * t * hk, d), layout(keys)),
    v: input(dtype, values, random.normal(b * t * h * e), layout(values)),
    decay: input(statistic, [b, t, h], random.uniform(b * t * h, -2, 0), { lead: 3 }),
    beta: input(statistic, [b, t, h], random.uniform(b * t * h, 0, 1)),
    documents: mode === 'documents' ? input('i32', [b, t], documentsOf(z), { lead: 1 }) : null,
  };
}

type Mode = 'plain' | 'gaps' | 'documents';
const modes: readonly Mode[] = ['plain', 'gaps', 'documents'];

const forwards = floating.flatMap((dtype) =>
  sizes.flatMap((z) =>
    modes.map((mode) =>
      opCase({
        op: 'GatedDelta',
        dtype,
        title: `${Object.values(z).join(' ')} ${mode}`,
        build: (random) => ({
          operands: {
            ...operandsOf(random, dtype, z, mode),
            out: output(dtype, [z.b, z.t, z.h, z.e], close(dtype, 2, 'tensor')),
          },
          reference: (v) => ({ out: forward(z, v) }),
        }),
      }),
    ),
  ),
);

/** Central differences of sum(dout out), in f64, of small sizes. */
function differences(z: Sizes, v: Values, name: string): Float64Array {
  const step = 1e-5;
  const score = (values: Values): number =>
    forward(z, values).reduce((sum, x, i) => sum + x * v.dout![i]!, 0);
  return v[name]!.map((x, i) => {
    const scoreMoved = (by: number): number => {
      const changed = Float64Array.from(v[name]!);
      changed[i] = x + by;
      return score({ ...v, [name]: changed });
    };
    return (scoreMoved(step) - scoreMoved(-step)) / (2 * step);
  });
}

const small: readonly Sizes[] = [
  { b: 1, t: 1, hk: 1, h: 1, d: 2, e: 1 },
  { b: 2, t: 9, hk: 1, h: 2, d: 3, e: 4 },
  { b: 1, t: 37, hk: 1, h: 1, d: 4, e: 2 },
  { b: 1, t: 0, hk: 1, h: 2, d: 4, e: 4 },
];

const backwards = floating.flatMap((dtype) =>
  small.flatMap((z) =>
    modes.map((mode) =>
      opCase({
        op: 'GatedDeltaBackward',
        dtype,
        title: `${Object.values(z).join(' ')} ${mode}`,
        build(random) {
          const { b, t, hk, h, d, e } = z;
          const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
          const [keys, values] = [
            [b, t, hk, d],
            [b, t, h, e],
          ];
          const check = { ...close(dtype, 4, 'tensor'), absolute: 1e-6 };
          const wide = dtype === 'f64' ? check : { ...close('f32', 4, 'tensor'), absolute: 1e-5 };
          const layout = mode === 'gaps' ? paddedLayout(values) : {};
          return {
            operands: {
              ...operandsOf(random, dtype, z, mode),
              dout: input(dtype, values, random.normal(b * t * h * e), layout),
              dq: output(dtype, keys, dtype === 'f64' ? { ...check, tolerance: 1e-8 } : check),
              dk: output(dtype, keys, dtype === 'f64' ? { ...check, tolerance: 1e-8 } : check),
              dv: output(dtype, values, dtype === 'f64' ? { ...check, tolerance: 1e-8 } : check),
              ddecay: output(statistic, [b, t, h], wide),
              dbeta: output(statistic, [b, t, h], wide),
            },
            reference: (v) => ({
              dq: differences(z, v, 'q'),
              dk: differences(z, v, 'k'),
              dv: differences(z, v, 'v'),
              ddecay: differences(z, v, 'decay'),
              dbeta: differences(z, v, 'beta'),
            }),
          };
        },
      }),
    ),
  ),
);

/** Sequences: new tokens, all tokens, slot. */
const SEQUENCES = [
  [1, 5, 2],
  [1, 1, 0],
  [1, 0, -1],
  [6, 6, 4],
  [3, 9, 1],
  [2, 2, -1],
] as const;
const SLOTS = 6;
const ROWS = SEQUENCES.reduce((sum, [count]) => sum + count, 0);
const STARTS = [2];
for (const [count] of SEQUENCES) STARTS.push(STARTS.at(-1)! + count);

function steps(dtype: DType, isGapped: boolean, h: number, d: number, e: number): MatrixCase {
  const hk = h / 2;
  const statistic: DType = dtype === 'f64' ? 'f64' : 'f32';
  const keys = [ROWS, hk, d];
  return opCase({
    op: 'GatedDeltaStep',
    dtype,
    title: `${h} heads ${d} ${e}${isGapped ? ' gaps' : ''}`,
    build(random) {
      const check = close(dtype, 2, 'tensor');
      const layout = isGapped ? paddedLayout(keys) : {};
      return {
        operands: {
          q: input(dtype, keys, keysOf(random, ROWS * hk, d), layout),
          k: input(dtype, keys, keysOf(random, ROWS * hk, d), layout),
          v: input(dtype, [ROWS, h, e], random.normal(ROWS * h * e)),
          decay: input(statistic, [ROWS, h], random.uniform(ROWS * h, -2, 0)),
          beta: input(statistic, [ROWS, h], random.uniform(ROWS * h, 0, 1)),
          starts: input('i32', [STARTS.length], STARTS),
          lengths: input(
            'i32',
            [SEQUENCES.length],
            SEQUENCES.map(([, all]) => all),
          ),
          slots: input(
            'i32',
            [SEQUENCES.length],
            SEQUENCES.map(([, , slot]) => slot),
          ),
          out: output(dtype, [ROWS, h, e], check),
          pool: inPlaceOperand(
            input(statistic, [SLOTS, h, d, e], random.normal(SLOTS * h * d * e)),
            close(statistic, 2, 'tensor'),
          ),
        },
        reference(v) {
          const out = new Float64Array(ROWS * h * e);
          const pool = Float64Array.from(v.pool!);
          for (const [s, [count, all, slot]] of SEQUENCES.entries()) {
            const first = STARTS[s]! - 2;
            for (let head = 0; head < h; ++head) {
              const key = floor(head / 2);
              const state = new Float64Array(d * e);
              const from = (slot * h + head) * d * e;
              const continues = slot >= 0 && all > count;
              if (continues) state.set(pool.subarray(from, from + d * e));
              recur(
                { d, e, count },
                {
                  q: (n, i) => v.q![((first + n) * hk + key) * d + i]!,
                  k: (n, i) => v.k![((first + n) * hk + key) * d + i]!,
                  v: (n, j) => v.v![((first + n) * h + head) * e + j]!,
                  decay: (n) => v.decay![(first + n) * h + head]!,
                  beta: (n) => v.beta![(first + n) * h + head]!,
                  starts: (n) => n === 0 && !continues,
                },
                state,
                (n, result) => out.set(result, ((first + n) * h + head) * e),
              );
              if (slot >= 0) pool.set(state, from);
            }
          }
          return { out, pool };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = [
  ...forwards,
  ...backwards,
  ...floating.flatMap((dtype) => [
    steps(dtype, false, 2, 5, 3),
    steps(dtype, true, 4, 64, 128),
    steps(dtype, false, 2, 130, 20),
  ]),
];

const inputsOf = (m: Parameters<Mistake['run']>[0]) => ({
  q: m([1, 3, 1, 4]),
  k: m([1, 3, 1, 4]),
  v: m([1, 3, 2, 5]),
  decay: m([1, 3, 2]),
  beta: m([1, 3, 2]),
  out: m([1, 3, 2, 5]),
  documents: null,
});

const step = (m: Parameters<Mistake['run']>[0]) => ({
  q: m([3, 1, 4]),
  k: m([3, 1, 4]),
  v: m([3, 2, 5]),
  decay: m([3, 2]),
  beta: m([3, 2]),
  starts: m([2], 'i32'),
  lengths: m([1], 'i32'),
  slots: m([1], 'i32'),
  out: m([3, 2, 5]),
  pool: m([2, 2, 4, 5]),
});

export const mistakes: readonly Mistake[] = [
  {
    op: 'gated_delta',
    what: 'heads',
    code: 'DS_SHAPE',
    message: '2 value heads, 3 key heads',
    run: (m) => kernels.gatedDelta({ ...inputsOf(m), q: m([1, 3, 3, 4]), k: m([1, 3, 3, 4]) }),
  },
  {
    op: 'gated_delta',
    what: 'dtypes of decay',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => kernels.gatedDelta({ ...inputsOf(m), decay: m([1, 3, 2], 'bf16') }),
  },
  {
    op: 'gated_delta',
    what: 'documents',
    code: 'DS_SHAPE',
    message: 'documents [1, 3]',
    run: (m) => kernels.gatedDelta({ ...inputsOf(m), documents: m([1, 4], 'i32') }),
  },
  {
    op: 'gated_delta_backward',
    what: 'gradients',
    code: 'DS_SHAPE',
    message: '[1, 3, 2, 4]',
    run: (m) => {
      const { out: _, ...read } = inputsOf(m);
      const { q, k, v, decay, beta } = read;
      const grads = { dk: k, dv: v, ddecay: decay, dbeta: beta };
      kernels.gatedDeltaBackward({ ...read, dout: v, dq: m([1, 3, 2, 4]), ...grads });
      return q;
    },
  },
  {
    op: 'gated_delta_step',
    what: 'pools',
    code: 'DS_SHAPE',
    message: 'a pool [slots, 2, 4, 5]',
    run: (m) => kernels.gatedDeltaStep({ ...step(m), pool: m([2, 2, 5, 4]) }),
  },
  {
    op: 'gated_delta_step',
    what: 'starts',
    code: 'DS_INDEX',
    message: 'the tokens',
    cpuOnly: 'the GPU computes no token of such a sequence',
    run: (m) => {
      const starts = m([2], 'i32');
      starts.buffer.write(0, Int32Array.of(0, 4));
      kernels.gatedDeltaStep({ ...step(m), starts });
    },
  },
];

const shapes = [
  [1, 8, 1, 3],
  [1, 8, 1, 3],
  [1, 8, 2, 2],
  [1, 8, 2],
  [1, 8, 2],
] as const;

const check = (title: string, more: Partial<GradientCheck>, isStrided = false): GradientCheck => ({
  op: 'gatedDelta',
  title,
  inputs: shapes.map((shape, i) => ({
    shape,
    ...(i >= 3
      ? { low: i === 3 ? -2 : 0.1, high: i === 3 ? -0.1 : 0.9 }
      : { low: -0.6, high: 0.6 }),
    ...(isStrided && i < 3 && { strided: true }),
  })),
  run: (q, k, v, decay, beta) =>
    gatedDelta({ q, k, v, decay, beta } as Record<'q' | 'k' | 'v' | 'decay' | 'beta', Tensor>),
  ...more,
});

export const checks: readonly GradientCheck[] = [
  check('shared key heads', {}),
  check('strided', {}, true),
  check('documents', {
    run: (q, k, v, decay, beta) => {
      const documents = Tensors.from([0, 0, 0, 1, 1, 2, 2, 2], {
        dtype: 'i32',
        shape: [1, 8],
        device: (q as Tensor).device,
      });
      const inputs = { q, k, v, decay, beta } as Record<'q' | 'k' | 'v' | 'decay' | 'beta', Tensor>;
      return gatedDelta({ ...inputs, documents });
    },
  }),
];
