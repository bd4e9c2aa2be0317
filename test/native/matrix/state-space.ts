// Cases of StateSpace, its gradients and its steps: odd sizes, groups of heads, documents, gaps,
// sequences that continue. The reference is the sum over all pairs of tokens.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { stateSpace, type Tensor, Tensor as Tensors } from '../../../lib/tensor/index.js';
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

const { exp, floor, sqrt } = Math;

interface Sizes {
  b: number;
  t: number;
  g: number;
  h: number;
  n: number;
  p: number;
}

const sizes: readonly Sizes[] = [
  { b: 1, t: 1, g: 1, h: 1, n: 1, p: 1 },
  { b: 2, t: 7, g: 2, h: 4, n: 5, p: 3 },
  { b: 1, t: 70, g: 1, h: 3, n: 34, p: 17 },
  { b: 2, t: 33, g: 2, h: 2, n: 16, p: 40 },
  { b: 1, t: 19, g: 1, h: 2, n: 130, p: 65 },
  { b: 1, t: 18, g: 1, h: 1, n: 65, p: 131 },
  { b: 1, t: 0, g: 1, h: 2, n: 4, p: 4 },
  { b: 2, t: 3, g: 1, h: 1, n: 4, p: 0 },
  { b: 2, t: 3, g: 1, h: 2, n: 0, p: 4 },
];

/** A document begins at every seventh token, counted over the batch. */
const documentsOf = ({ b, t }: Sizes): Float64Array =>
  Float64Array.from({ length: b * t }, (_, i) => floor(i / 7) % 3);

const dot = (count: number, x: Float64Array, at: number, y: Float64Array, from: number): number => {
  let sum = 0;
  for (let i = 0; i < count; ++i) sum += x[at + i]! * y[from + i]!;
  return sum;
};

/** Adds factor y to the `count` numbers of x from `at` on. */
const add = (
  [x, at]: readonly [Float64Array, number],
  [y, from]: readonly [Float64Array, number],
  factor: number,
  count: number,
): void => {
  for (let i = 0; i < count; ++i) x[at + i]! += factor * y[from + i]!;
};

/** Where token t of a row and a head is in tensors [B, T, H] and [B, T, G]. */
interface Place {
  head: number;
  group: number;
}

/**
 * Calls `each` with all pairs of a token and an earlier one or itself that has an effect on it, and
 * with the factor of the state between them.
 */
function pairs(
  { b, t, g, h }: Sizes,
  v: Values,
  each: (late: Place, early: Place, factor: number) => void,
): void {
  for (let row = 0; row < b; ++row) {
    for (let head = 0; head < h; ++head) {
      const place = (at: number): Place => ({
        head: (row * t + at) * h + head,
        group: (row * t + at) * g + floor(head / (h / g)),
      });
      for (let late = 0; late < t; ++late) {
        let sum = 0;
        for (let early = late; early >= 0; --early) {
          if (v.documents && v.documents[row * t + early] !== v.documents[row * t + late]) break;
          each(place(late), place(early), exp(sum));
          sum += v.decay![place(early).head]!;
        }
      }
    }
  }
}

function forward(z: Sizes, v: Values): Float64Array {
  const { b, t, h, n, p } = z;
  const out = new Float64Array(b * t * h * p);
  pairs(z, v, (late, early, factor) => {
    const score = dot(n, v.c!, late.group * n, v.b!, early.group * n);
    const weight = factor * v.step![early.head]! * score;
    add([out, late.head * p], [v.x!, early.head * p], weight, p);
  });
  return out;
}

function gradients(z: Sizes, v: Values) {
  const { b, t, g, h, n, p } = z;
  const [dc, db] = [new Float64Array(b * t * g * n), new Float64Array(b * t * g * n)];
  const dx = new Float64Array(b * t * h * p);
  const [ddecay, dstep] = [new Float64Array(b * t * h), new Float64Array(b * t * h)];
  pairs(z, v, (late, early, factor) => {
    const score = dot(n, v.c!, late.group * n, v.b!, early.group * n);
    const reward = dot(p, v.dout!, late.head * p, v.x!, early.head * p);
    const weight = factor * v.step![early.head]!;
    add([dx, early.head * p], [v.dout!, late.head * p], weight * score, p);
    add([dc, late.group * n], [v.b!, early.group * n], weight * reward, n);
    add([db, early.group * n], [v.c!, late.group * n], weight * reward, n);
    dstep[early.head]! += factor * score * reward;
    for (let at = late.head; at > early.head; at -= h) ddecay[at]! += weight * score * reward;
  });
  return { dc, db, dx, ddecay, dstep };
}

type Draw = {
  normal(n: number): Float64Array;
  uniform(n: number, low: number, high: number): Float64Array;
};

type Mode = 'plain' | 'gaps' | 'documents';
const modes: readonly Mode[] = ['plain', 'gaps', 'documents'];

const statisticOf = (dtype: DType): DType => (dtype === 'f64' ? 'f64' : 'f32');

function operandsOf(random: Draw, dtype: DType, z: Sizes, mode: Mode) {
  const { b, t, g, h, n, p } = z;
  const statistic = statisticOf(dtype);
  const [shared, values] = [
    [b, t, g, n],
    [b, t, h, p],
  ];
  const layout = (shape: number[]) =>
    mode === 'gaps' && p > 0 && n > 0 ? paddedLayout(shape) : {};
  const directions = () => random.normal(b * t * g * n).map((value) => value / sqrt(n || 1));
  return {
    c: input(dtype, shared, directions(), layout(shared)),
    b: input(dtype, shared, directions(), layout(shared)),
    x: input(dtype, values, random.normal(b * t * h * p), layout(values)),
    decay: input(statistic, [b, t, h], random.uniform(b * t * h, -2, 0), { lead: 3 }),
    step: input(statistic, [b, t, h], random.uniform(b * t * h, 0, 2)),
    documents: mode === 'documents' ? input('i32', [b, t], documentsOf(z), { lead: 1 }) : null,
  };
}

const rows = floating.flatMap((dtype) =>
  sizes.flatMap((z) =>
    modes.flatMap((mode) => {
      const { b, t, g, h, n, p } = z;
      const title = `${Object.values(z).join(' ')} ${mode}`;
      const statistic = statisticOf(dtype);
      const values = [b, t, h, p];
      const near = { ...close(dtype, 4, 'tensor'), absolute: 1e-6 };
      const wide = { ...close(statistic, 8, 'tensor'), absolute: 1e-5 };
      return [
        opCase({
          op: 'StateSpace',
          dtype,
          title,
          build: (random) => ({
            operands: {
              ...operandsOf(random, dtype, z, mode),
              out: output(dtype, values, close(dtype, 2, 'tensor')),
            },
            reference: (v) => ({ out: forward(z, v) }),
          }),
        }),
        opCase({
          op: 'StateSpaceBackward',
          dtype,
          title,
          build: (random) => ({
            operands: {
              ...operandsOf(random, dtype, z, mode),
              dout: input(
                dtype,
                values,
                random.normal(b * t * h * p),
                mode === 'gaps' && p > 0 ? paddedLayout(values) : {},
              ),
              dc: output(dtype, [b, t, g, n], near),
              db: output(dtype, [b, t, g, n], near),
              dx: output(dtype, values, near),
              ddecay: output(statistic, [b, t, h], wide),
              dstep: output(statistic, [b, t, h], wide),
            },
            reference: (v) => gradients(z, v),
          }),
        }),
      ];
    }),
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

/** Runs the recurrence of packed sequences token by token. */
function runSteps(v: Values, [h, g, n, p]: readonly [number, number, number, number]) {
  const out = new Float64Array(ROWS * h * p);
  const pool = Float64Array.from(v.pool!);
  for (const [s, [count, all, slot]] of SEQUENCES.entries()) {
    const first = STARTS[s]! - 2;
    for (let head = 0; head < h; ++head) {
      const state = new Float64Array(n * p);
      const from = (slot * h + head) * n * p;
      if (slot >= 0 && all > count) state.set(pool.subarray(from, from + n * p));
      for (let t = first; t < first + count; ++t) {
        const [own, shared] = [t * h + head, t * g + floor(head / (h / g))];
        for (let i = 0; i < n; ++i) {
          const written = v.step![own]! * v.b![shared * n + i]!;
          for (let j = 0; j < p; ++j) {
            const kept = exp(v.decay![own]!) * state[i * p + j]!;
            state[i * p + j] = kept + written * v.x![own * p + j]!;
          }
          add([out, own * p], [state, i * p], v.c![shared * n + i]!, p);
        }
      }
      if (slot >= 0) pool.set(state, from);
    }
  }
  return { out, pool };
}

function steps(dtype: DType, isGapped: boolean, h: number, n: number, p: number): MatrixCase {
  const g = h / 2;
  const statistic = statisticOf(dtype);
  const shared = [ROWS, g, n];
  return opCase({
    op: 'StateSpaceStep',
    dtype,
    title: `${h} heads ${n} ${p}${isGapped ? ' gaps' : ''}`,
    build(random) {
      const layout = isGapped ? paddedLayout(shared) : {};
      const directions = () => random.normal(ROWS * g * n).map((value) => value / sqrt(n));
      return {
        operands: {
          c: input(dtype, shared, directions(), layout),
          b: input(dtype, shared, directions(), layout),
          x: input(dtype, [ROWS, h, p], random.normal(ROWS * h * p)),
          decay: input(statistic, [ROWS, h], random.uniform(ROWS * h, -2, 0)),
          step: input(statistic, [ROWS, h], random.uniform(ROWS * h, 0, 2)),
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
          out: output(dtype, [ROWS, h, p], close(dtype, 2, 'tensor')),
          pool: inPlaceOperand(
            input(statistic, [SLOTS, h, n, p], random.normal(SLOTS * h * n * p)),
            close(statistic, 2, 'tensor'),
          ),
        },
        reference: (v) => runSteps(v, [h, g, n, p]),
      };
    },
  });
}

export const cases: MatrixCase[] = [
  ...rows,
  ...floating.flatMap((dtype) => [
    steps(dtype, false, 2, 5, 3),
    steps(dtype, true, 4, 128, 64),
    steps(dtype, false, 2, 130, 20),
  ]),
];

const inputsOf = (m: Parameters<Mistake['run']>[0]) => ({
  c: m([1, 3, 1, 4]),
  b: m([1, 3, 1, 4]),
  x: m([1, 3, 2, 5]),
  decay: m([1, 3, 2]),
  step: m([1, 3, 2]),
  out: m([1, 3, 2, 5]),
  documents: null,
});

const stepInputs = (m: Parameters<Mistake['run']>[0]) => ({
  c: m([3, 1, 4]),
  b: m([3, 1, 4]),
  x: m([3, 2, 5]),
  decay: m([3, 2]),
  step: m([3, 2]),
  starts: m([2], 'i32'),
  lengths: m([1], 'i32'),
  slots: m([1], 'i32'),
  out: m([3, 2, 5]),
  pool: m([2, 2, 4, 5]),
});

export const mistakes: readonly Mistake[] = [
  {
    op: 'state_space',
    what: 'heads',
    code: 'DS_SHAPE',
    message: '2 heads, 3 groups',
    run: (m) => kernels.stateSpace({ ...inputsOf(m), c: m([1, 3, 3, 4]), b: m([1, 3, 3, 4]) }),
  },
  {
    op: 'state_space',
    what: 'dtypes of step',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => kernels.stateSpace({ ...inputsOf(m), step: m([1, 3, 2], 'bf16') }),
  },
  {
    op: 'state_space',
    what: 'documents',
    code: 'DS_SHAPE',
    message: 'documents [1, 3]',
    run: (m) => kernels.stateSpace({ ...inputsOf(m), documents: m([1, 4], 'i32') }),
  },
  {
    op: 'state_space_backward',
    what: 'gradients',
    code: 'DS_SHAPE',
    message: '[1, 3, 2, 4]',
    run: (m) => {
      const { out: _, ...read } = inputsOf(m);
      const { b, x, decay, step } = read;
      const grads = { db: b, dx: x, ddecay: decay, dstep: step };
      kernels.stateSpaceBackward({ ...read, dout: x, dc: m([1, 3, 2, 4]), ...grads });
    },
  },
  {
    op: 'state_space_step',
    what: 'pools',
    code: 'DS_SHAPE',
    message: 'a pool [slots, 2, 4, 5]',
    run: (m) => kernels.stateSpaceStep({ ...stepInputs(m), pool: m([2, 2, 5, 4]) }),
  },
  {
    op: 'state_space_step',
    what: 'starts',
    code: 'DS_INDEX',
    message: 'the tokens',
    cpuOnly: 'the GPU computes no token of such a sequence',
    run: (m) => {
      const starts = m([2], 'i32');
      starts.buffer.write(0, Int32Array.of(0, 4));
      kernels.stateSpaceStep({ ...stepInputs(m), starts });
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

type Checked = Record<'c' | 'b' | 'x' | 'decay' | 'step', Tensor>;

const check = (title: string, more: Partial<GradientCheck>, isStrided = false): GradientCheck => ({
  op: 'stateSpace',
  title,
  inputs: shapes.map((shape, i) => ({
    shape,
    ...(i >= 3
      ? { low: i === 3 ? -2 : 0.1, high: i === 3 ? -0.1 : 0.9 }
      : { low: -0.6, high: 0.6 }),
    ...(isStrided && i < 3 && { strided: true }),
  })),
  run: (c, b, x, decay, step) => stateSpace({ c, b, x, decay, step } as Checked),
  ...more,
});

export const checks: readonly GradientCheck[] = [
  check('groups of heads', {}),
  check('strided', {}, true),
  check('documents', {
    run: (c, b, x, decay, step) => {
      const documents = Tensors.from([0, 0, 0, 1, 1, 2, 2, 2], {
        dtype: 'i32',
        shape: [1, 8],
        device: (c as Tensor).device,
      });
      return stateSpace({ ...({ c, b, x, decay, step } as Checked), documents });
    },
  }),
];
