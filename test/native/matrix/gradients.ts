// Finite differences in f64: every derivative op against its forward op, along random directions.
import assert from 'node:assert/strict';
import { Buffer } from '../../../lib/runtime/buffer.js';
import { cpu, type Device } from '../../../lib/runtime/device.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides, numel, type View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';
import { allSeen, type Seen } from './attention-reference.js';
import { unary, unaryOps } from './functions.js';
import { Random } from './numbers.js';

const STEP = 1e-5;
const TOLERANCE = 1e-6;

type Inputs = Record<string, { shape: readonly number[]; values: Float64Array }>;
type Views = Record<string, View>;

/** Views of f64 and i64 memory on the CPU, released together. */
class Memory {
  private readonly buffers: Buffer[] = [];

  view(
    shape: readonly number[],
    values?: Float64Array,
    dtype: 'f64' | 'i64' | 'i32' = 'f64',
  ): View {
    const buffer = Buffer.allocate(cpu(), numel(shape) * 8);
    this.buffers.push(buffer);
    const integers = {
      i64: () => BigInt64Array.from(values ?? [], BigInt),
      i32: () => Int32Array.from(values ?? []),
    };
    const raw = dtype === 'f64' ? values : integers[dtype]();
    if (raw && raw.length > 0) buffer.write(0, raw);
    return { buffer, dtype, shape, offset: 0, strides: contiguousStrides(shape) };
  }

  read(view: View): Float64Array {
    const out = new Float64Array(numel(view.shape));
    view.buffer.read(0, out);
    return out;
  }

  release(): void {
    for (const buffer of this.buffers) buffer.release();
  }
}

interface Derivative {
  name: string;
  inputs(random: Random): Inputs;
  out: readonly number[];
  /** Runs the forward op. */
  forward(inputs: Views, out: View, memory: Memory): void;
  /** Runs forward and backward with the gradient `dout`, and returns the gradients by input. */
  backward(inputs: Views, dout: View, memory: Memory): Views;
}

const dot = (a: Float64Array, b: Float64Array): number =>
  a.reduce((sum, x, i) => sum + x * b[i]!, 0);

/** d/de of projection . forward(inputs + e direction) must be gradient . direction. */
function check(derivative: Derivative, name: string): void {
  const random = new Random(name);
  const inputs = derivative.inputs(random);
  const projection = random.normal(numel(derivative.out));
  const project = (values: Record<string, Float64Array>): number => {
    const memory = new Memory();
    const views: Views = {};
    for (const [key, { shape }] of Object.entries(inputs))
      views[key] = memory.view(shape, values[key]);
    const out = memory.view(derivative.out);
    derivative.forward(views, out, memory);
    const result = dot(memory.read(out), projection);
    memory.release();
    return result;
  };
  const memory = new Memory();
  const views: Views = {};
  for (const [key, { shape, values }] of Object.entries(inputs))
    views[key] = memory.view(shape, values);
  const gradients = derivative.backward(views, memory.view(derivative.out, projection), memory);
  const base = Object.fromEntries(Object.entries(inputs).map(([key, { values }]) => [key, values]));
  for (const [key, gradient] of Object.entries(gradients)) {
    const direction = random.normal(base[key]!.length);
    const moveBy = (step: number) => ({
      ...base,
      [key]: base[key]!.map((x, i) => x + step * direction[i]!),
    });
    const difference = (project(moveBy(STEP)) - project(moveBy(-STEP))) / (2 * STEP);
    const expected = dot(memory.read(gradient), direction);
    const error = Math.abs(difference - expected) / Math.max(1, Math.abs(expected));
    assert.ok(error < TOLERANCE, `${key}: finite difference ${difference}, gradient ${expected}`);
  }
  memory.release();
}

const tensor = (random: Random, ...shape: number[]) => ({
  shape,
  values: random.normal(numel(shape)),
});

const unaryDerivatives: Derivative[] = unaryOps.map((op) => ({
  name: `UnaryBackward ${op}`,
  inputs: (random) => {
    const { low, high } = unary[op];
    // Steps must not cross the kinks of abs and relu, nor the steps of floor and its kin.
    const near = (x: number) => Math.abs(2 * x - Math.round(2 * x)) < 0.01;
    const values = random.uniform(65, low, high).map((x) => (near(x) ? 0.7 : x));
    return { in: { shape: [65], values } };
  },
  out: [65],
  forward: (v, out) => kernels.unary({ in: v.in!, out, op }),
  backward(v, dout, memory) {
    const dx = memory.view([65]);
    kernels.unaryBackward({ in: v.in!, dout, dx, op, accumulate: false });
    return { in: dx };
  },
}));

const softmaxDerivatives: Derivative[] = [false, true].map((log) => ({
  name: `SoftmaxBackward${log ? ' log' : ''}`,
  inputs: (random) => ({ in: tensor(random, 5, 33) }),
  out: [5, 33],
  forward: (v, out) => kernels.softmax({ in: v.in!, out, log }),
  backward(v, dout, memory) {
    const [out, dx] = [memory.view([5, 33]), memory.view([5, 33])];
    kernels.softmax({ in: v.in!, out, log });
    kernels.softmaxBackward({ out, dout, dx, log, accumulate: false });
    return { in: dx };
  },
}));

function layerNorm(v: Views, out: View, memory: Memory): { mean: View; rstd: View } {
  const [mean, rstd] = [memory.view([5]), memory.view([5])];
  kernels.layerNorm({
    x: v.s!,
    residual: null,
    weight: v.weight!,
    bias: v.bias!,
    sum: null,
    out,
    mean,
    rstd,
    eps: 1e-5,
  });
  return { mean, rstd };
}

function rmsNorm(v: Views, out: View, memory: Memory): View {
  const rstd = memory.view([5]);
  kernels.rmsNorm({ x: v.s!, residual: null, weight: v.weight!, sum: null, out, rstd, eps: 1e-5 });
  return rstd;
}

const normDerivatives: Derivative[] = [
  {
    name: 'LayerNormBackward',
    inputs: (random) => ({
      s: tensor(random, 5, 33),
      weight: tensor(random, 33),
      bias: tensor(random, 33),
    }),
    out: [5, 33],
    forward: (v, out, memory) => void layerNorm(v, out, memory),
    backward(v, dout, memory) {
      const { mean, rstd } = layerNorm(v, memory.view([5, 33]), memory);
      const [dx, dweight, dbias] = [memory.view([5, 33]), memory.view([33]), memory.view([33])];
      kernels.layerNormBackward({
        s: v.s!,
        weight: v.weight!,
        mean,
        rstd,
        dout,
        dsum: null,
        dx,
        dweight,
        dbias,
        accumulate: false,
      });
      return { s: dx, weight: dweight, bias: dbias };
    },
  },
  {
    name: 'RmsNormBackward',
    inputs: (random) => ({ s: tensor(random, 5, 33), weight: tensor(random, 33) }),
    out: [5, 33],
    forward: (v, out, memory) => void rmsNorm(v, out, memory),
    backward(v, dout, memory) {
      const rstd = rmsNorm(v, memory.view([5, 33]), memory);
      const [dx, dweight] = [memory.view([5, 33]), memory.view([33])];
      kernels.rmsNormBackward({
        s: v.s!,
        weight: v.weight!,
        rstd,
        dout,
        dsum: null,
        dx,
        dweight,
        accumulate: false,
      });
      return { s: dx, weight: dweight };
    },
  },
];

/** Two documents in the first row, padding before one in the second, and four keys to each side. */
function within(memory: Memory, t: number, s: number): Seen {
  const documents = (n: number): View => {
    const ids = Float64Array.from({ length: 2 * n }, (_, i) => {
      const fromEnd = n - (i % n);
      return i < n ? Number(fromEnd < 4) : fromEnd > 6 ? -1 : 5;
    });
    return memory.view([2, n], ids, 'i32');
  };
  const [queryDocuments, keyDocuments] = [documents(t), documents(s)];
  return { ...allSeen, queryDocuments, keyDocuments, window: 5 };
}

function attentionDerivative(
  causal: boolean,
  lengths: readonly [number, number],
  { masked = false, reached = false, cap = 0 } = {},
): Derivative {
  const [t, s] = lengths;
  const shape = [2, 4, t, 8];
  /** Numbers by query and key, and minus infinity: the third query sees nothing. */
  const hows = (memory: Memory) => {
    const values = Float64Array.from({ length: t * s }, (_, i) =>
      i % 4 === 0 || Math.floor(i / s) === 2 ? -Infinity : Math.sin(i),
    );
    const mask = { ...memory.view([t, s], values), shape: [2, 4, t, s], strides: [0, 0, s, 1] };
    const seen = reached ? within(memory, t, s) : { ...allSeen, mask: masked ? mask : null };
    return { ...seen, scale: 0.3, cap, causal };
  };
  const run = (v: Views, out: View, memory: Memory): View => {
    const lse = memory.view([2, 4, t]);
    kernels.attention({ q: v.q!, k: v.k!, v: v.v!, out, lse, ...hows(memory) });
    return lse;
  };
  return {
    name: `AttentionBackward T${t} S${s}${causal ? ' causal' : ''}${masked ? ' masked' : ''}${reached ? ' within documents and a window' : ''}${cap ? ` cap ${cap}` : ''}`,
    inputs: (random) => ({
      q: tensor(random, ...shape),
      k: tensor(random, 2, 2, s, 8),
      v: tensor(random, 2, 2, s, 8),
    }),
    out: shape,
    forward: (v, out, memory) => void run(v, out, memory),
    backward(v, dout, memory) {
      const out = memory.view(shape);
      const lse = run(v, out, memory);
      const [dq, dk, dv] = [v.q!, v.k!, v.v!].map((x) => memory.view(x.shape)) as [
        View,
        View,
        View,
      ];
      kernels.attentionBackward({
        q: v.q!,
        k: v.k!,
        v: v.v!,
        out,
        dout,
        lse,
        dq,
        dk,
        dv,
        ...hows(memory),
      });
      return { q: dq, k: dk, v: dv };
    },
  };
}

const targets = Float64Array.of(3, -1, 0, 32, 7);

/** Of the plain sum of losses: one scale serves all rows. */
const crossEntropyDerivatives: Derivative[] = [0, 0.3].map((smoothing) => {
  const options = { smoothing, ignoreIndex: -1, first: 0, classes: 0 };
  const measure = (v: Views, losses: View, memory: Memory): View => {
    const lse = memory.view([5]);
    const target = memory.view([5], targets, 'i64');
    kernels.crossEntropy({ logits: v.logits!, target, losses, lse, correct: null, ...options });
    return lse;
  };
  return {
    name: `CrossEntropyBackward smoothing ${smoothing}`,
    inputs: (random) => ({ logits: tensor(random, 5, 33) }),
    out: [1],
    forward(v, out, memory) {
      const losses = memory.view([5]);
      measure(v, losses, memory);
      kernels.reduce({ in: losses, out, op: 'sum', accumulate: false });
    },
    backward(v, dout, memory) {
      const lse = measure(v, memory.view([5]), memory);
      const dlogits = memory.view([5, 33]);
      const target = memory.view([5], targets, 'i64');
      const operands = { logits: v.logits!, target, lse, scale: dout, dlogits };
      kernels.crossEntropyBackward({ ...operands, ...options });
      return { logits: dlogits };
    },
  };
});

const swigluDerivative: Derivative = {
  name: 'SwigluBackward',
  inputs: (random) => ({ gate: tensor(random, 3, 7), up: tensor(random, 3, 7) }),
  out: [3, 7],
  forward: (v, out) => kernels.swiglu({ gate: v.gate!, up: v.up!, out }),
  backward(v, dout, memory) {
    const [dgate, dup] = [memory.view([3, 7]), memory.view([3, 7])];
    const flags = { accumulateGate: false, accumulateUp: false };
    kernels.swigluBackward({ gate: v.gate!, up: v.up!, dout, dgate, dup, ...flags });
    return { gate: dgate, up: dup };
  },
};

const rows = Float64Array.of(2, 0, 2, 4, 2, 1, 0);

const lookupDerivatives: Derivative[] = [
  {
    name: 'EmbeddingBackward',
    inputs: (random) => ({ weight: tensor(random, 5, 9) }),
    out: [7, 9],
    forward: (v, out, memory) =>
      kernels.embedding({ weight: v.weight!, index: memory.view([7], rows, 'i64'), out }),
    backward(v, dout, memory) {
      const dweight = memory.view(v.weight!.shape);
      kernels.embeddingBackward({
        dout,
        index: memory.view([7], rows, 'i64'),
        dweight,
        accumulate: false,
      });
      return { weight: dweight };
    },
  },
  {
    name: 'ScatterAdd as the gradient of Gather',
    inputs: (random) => ({ in: tensor(random, 1, 5) }),
    out: [1, 7],
    forward: (v, out, memory) =>
      kernels.gather({ in: v.in!, index: memory.view([1, 7], rows, 'i64'), out, dim: 1 }),
    backward(v, dout, memory) {
      const dx = memory.view(v.in!.shape);
      kernels.scatterAdd({
        src: dout,
        index: memory.view([1, 7], rows, 'i64'),
        out: dx,
        dim: 1,
        accumulate: false,
      });
      return { in: dx };
    },
  },
];

const scanDerivatives: Derivative[] = [false, true].map((reverse) => ({
  name: `Scan sum${reverse ? ' reversed' : ''}`,
  inputs: (random) => ({ in: tensor(random, 5, 33) }),
  out: [5, 33],
  forward: (v, out) =>
    kernels.scan({ in: v.in!, out, dim: 1, op: 'sum', reverse, accumulate: false }),
  backward(v, dout, memory) {
    const dx = memory.view(v.in!.shape);
    kernels.scan({ in: dout, out: dx, dim: 1, op: 'sum', reverse: !reverse, accumulate: false });
    return { in: dx };
  },
}));

/** With a zero in the first row and two in the second. */
const cumprodDerivative: Derivative = {
  name: 'CumprodBackward',
  inputs: (random) => {
    const values = random.normal(3 * 17);
    for (const zero of [5, 17 + 2, 17 + 9]) values[zero] = 0;
    return { in: { shape: [3, 17], values } };
  },
  out: [3, 17],
  forward: (v, out) =>
    kernels.scan({ in: v.in!, out, dim: 1, op: 'prod', reverse: false, accumulate: false }),
  backward(v, dout, memory) {
    const dx = memory.view(v.in!.shape);
    kernels.cumprodBackward({ in: v.in!, dout, dx, dim: 1, accumulate: false });
    return { in: dx };
  },
};

const plain = {
  bias: null,
  aux: null,
  transA: false,
  transB: false,
  epilogue: 'none',
  accumulate: false,
} as const;

/** out = gelu(a b) c: the gradient of a b is dout c^T through the gelu_grad epilogue. */
const matmulDerivative: Derivative = {
  name: 'Matmul gelu and gelu_grad',
  inputs: (random) => ({
    a: tensor(random, 5, 7),
    b: tensor(random, 7, 9),
    c: tensor(random, 9, 3),
  }),
  out: [5, 3],
  forward(v, out, memory) {
    const [hidden, aux] = [memory.view([5, 9]), memory.view([5, 9])];
    kernels.matmul({ ...plain, a: v.a!, b: v.b!, aux, out: hidden, epilogue: 'gelu' });
    kernels.matmul({ ...plain, a: hidden, b: v.c!, out });
  },
  backward(v, dout, memory) {
    const [hidden, aux, dz] = [memory.view([5, 9]), memory.view([5, 9]), memory.view([5, 9])];
    const [da, db, dc] = [v.a!, v.b!, v.c!].map((x) => memory.view(x.shape)) as [View, View, View];
    kernels.matmul({ ...plain, a: v.a!, b: v.b!, aux, out: hidden, epilogue: 'gelu' });
    kernels.matmul({ ...plain, a: hidden, b: dout, out: dc, transA: true });
    kernels.matmul({
      ...plain,
      a: dout,
      b: v.c!,
      aux,
      out: dz,
      transB: true,
      epilogue: 'gelu_grad',
    });
    kernels.matmul({ ...plain, a: dz, b: v.b!, out: da, transB: true });
    kernels.matmul({ ...plain, a: v.a!, b: dz, out: db, transA: true });
    return { a: da, b: db, c: dc };
  },
};

const derivatives: readonly Derivative[] = [
  ...unaryDerivatives,
  ...softmaxDerivatives,
  ...normDerivatives,
  attentionDerivative(false, [5, 7]),
  attentionDerivative(true, [5, 5]),
  attentionDerivative(true, [3, 9]),
  attentionDerivative(false, [5, 7], { masked: true }),
  attentionDerivative(true, [9, 7], { masked: true }),
  attentionDerivative(true, [9, 9], { reached: true }),
  attentionDerivative(false, [7, 9], { reached: true }),
  attentionDerivative(true, [9, 9], { cap: 0.5 }),
  attentionDerivative(false, [7, 9], { reached: true, cap: 0.8 }),
  ...crossEntropyDerivatives,
  swigluDerivative,
  ...lookupDerivatives,
  ...scanDerivatives,
  cumprodDerivative,
  matmulDerivative,
];

const skip = (device: Device): string | null =>
  device.kind === 'cpu' ? null : 'f64 exists on the CPU only';

export const cases: Case[] = derivatives.map((derivative) => {
  const name = `finite differences of ${derivative.name}`;
  return { name, skip, run: () => check(derivative, name) };
});
