// Shapes of real training, only on a GPU and against the CPU: inputs are drawn by the native
// generator.
import assert from 'node:assert/strict';
import { Buffer } from '../../../lib/runtime/buffer.js';
import { cpu, type Device } from '../../../lib/runtime/device.js';
import { type DType, dtypeSize, type NumericArray, rawArray } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides, numel, type View } from '../../../lib/runtime/view.js';
import { inOrder } from '../../../lib/tensor/index.js';
import type { Case } from '../../support/case.js';
import { allSeen } from './attention-reference.js';
import { decode } from './numbers.js';

/** Memory of one case on a device; the same calls make the same inputs on every device. */
export class Arena {
  private readonly buffers: Buffer[] = [];
  private seed = 1;

  constructor(readonly device: Device) {}

  /** Memory of 0xFF bytes. */
  empty(shape: readonly number[], dtype: DType, strides = contiguousStrides(shape)): View {
    const elements = shape.reduce((last, size, d) => last + (size - 1) * strides[d]!, 1);
    const bytes = elements * dtypeSize(dtype);
    const buffer = Buffer.allocate(this.device, bytes);
    this.buffers.push(buffer);
    const bits: View = { buffer, dtype: 'u8', offset: 0, shape: [bytes], strides: [1] };
    kernels.fill({ out: bits, value: 255 });
    return { buffer, dtype, offset: 0, shape, strides };
  }

  /** N(mean, stddev^2) in every element, gaps included. */
  normal(
    shape: readonly number[],
    dtype: DType,
    { mean = 0, stddev = 1, strides = contiguousStrides(shape) } = {},
  ): View {
    const view = this.empty(shape, dtype, strides);
    const n = view.buffer.bytes / dtypeSize(dtype);
    const out: View = { ...view, shape: [n], strides: [1] };
    kernels.randomNormal({ out, mean, stddev, seed: this.seed++, offset: 0, ...inOrder });
    return view;
  }

  from(shape: readonly number[], dtype: DType, raw: NumericArray): View {
    const view = this.empty(shape, dtype);
    view.buffer.write(0, raw);
    return view;
  }

  release(): void {
    for (const buffer of this.buffers) buffer.release();
  }
}

interface Result {
  view: View;
  /** Relative to the largest value; absent if the contract promises the CPU's bits. */
  tolerance?: number;
}

type Body = (arena: Arena) => Record<string, Result>;

function read({ view }: Result): NumericArray {
  const raw = rawArray(view.dtype, view.buffer.bytes / dtypeSize(view.dtype));
  view.buffer.read(0, raw);
  return raw;
}

function compare(name: string, expected: NumericArray, got: NumericArray, result: Result): void {
  const { dtype } = result.view;
  let scale = 0;
  if (result.tolerance !== undefined) {
    for (let i = 0; i < expected.length; ++i) {
      const x = Math.abs(decode(expected, i, dtype));
      if (x > scale && x < Number.POSITIVE_INFINITY) scale = x;
    }
  }
  const limit = (result.tolerance ?? 0) * scale;
  for (let i = 0; i < expected.length; ++i) {
    if (expected[i] === got[i]) continue;
    const [want, have] = [decode(expected, i, dtype), decode(got, i, dtype)];
    const close = result.tolerance !== undefined && Math.abs(want - have) <= limit;
    if (close || (Number.isNaN(want) && Number.isNaN(have))) continue;
    assert.fail(`${name}[${i}]: expected ${want}, got ${have} (limit ${limit})`);
  }
}

/** Runs twice on the device and once on the CPU. */
function bigCase(name: string, body: Body): Case {
  return {
    name: `big ${name}`,
    skip: (device) => (device.kind === 'cpu' ? 'compares a GPU with the CPU' : null),
    run(device) {
      const [first, second, host] = [device, device, cpu()].map((on) => {
        const arena = new Arena(on);
        const results = body(arena);
        const raw = Object.entries(results).map(([key, result]) => ({
          key,
          result,
          raw: read(result),
        }));
        arena.release();
        return raw;
      });
      host!.forEach(({ key, result, raw }, i) => {
        compare(`${key} in a second run`, first![i]!.raw, second![i]!.raw, { view: result.view });
        compare(key, raw, first![i]!.raw, result);
      });
    },
  };
}

const layerNormBackward =
  (n: number, c: number): Body =>
  (arena) => {
    const s = arena.normal([n, c], 'bf16', { mean: 1 });
    const weight = arena.normal([c], 'bf16', { mean: 1, stddev: 0.1 });
    const dout = arena.normal([n, c], 'bf16');
    const dx = arena.normal([n, c], 'bf16');
    const [mean, rstd] = [arena.empty([n], 'f32'), arena.empty([n], 'f32')];
    const out = arena.empty([n, c], 'bf16');
    kernels.layerNorm({
      x: s,
      residual: null,
      weight,
      bias: null,
      sum: null,
      out,
      mean,
      rstd,
      eps: 1e-5,
    });
    const [dweight, dbias] = [arena.normal([c], 'bf16'), arena.normal([c], 'bf16')];
    kernels.layerNormBackward({
      s,
      weight,
      mean,
      rstd,
      dout,
      dsum: dx,
      dx,
      dweight,
      dbias,
      accumulate: true,
    });
    const tolerance = 1.6e-2;
    return {
      out: { view: out, tolerance },
      dx: { view: dx, tolerance },
      dweight: { view: dweight, tolerance },
      dbias: { view: dbias, tolerance },
    };
  };

const embeddingBackward =
  (repeated: boolean): Body =>
  (arena) => {
    const [n, v, c] = [16384, 50257, 256];
    const indices = Int32Array.from({ length: n }, (_, i) => (repeated ? 7 : (i * 7919) % v));
    const dout = arena.normal([n, c], 'bf16');
    const dweight = arena.normal([v, c], 'bf16');
    kernels.embeddingBackward({
      dout,
      index: arena.from([n], 'i32', indices),
      dweight,
      accumulate: true,
    });
    return { dweight: { view: dweight, tolerance: 1.6e-2 } };
  };

const crossEntropy: Body = (arena) => {
  const [n, v] = [64, 50257];
  const logits = arena.normal([n, v], 'bf16', { stddev: 3, strides: [50304, 1] });
  const target = arena.from(
    [n],
    'i64',
    BigInt64Array.from({ length: n }, (_, i) => BigInt(i === 5 ? -100 : (i * 7919) % v)),
  );
  const [losses, lse] = [arena.empty([n], 'f32'), arena.empty([n], 'f32')];
  const options = { smoothing: 0, ignoreIndex: -100, first: 0, classes: 0 };
  kernels.crossEntropy({ logits, target, losses, lse, correct: null, ...options });
  const scale = arena.from([1], 'f32', Float32Array.of(1));
  kernels.crossEntropyBackward({ logits, target, lse, scale, dlogits: logits, ...options });
  return {
    losses: { view: losses, tolerance: 1e-5 },
    lse: { view: lse, tolerance: 1e-5 },
    dlogits: { view: logits, tolerance: 8e-3 },
  };
};

const transpose =
  (dtype: DType): Body =>
  (arena) => {
    const [rows, columns] = [4099, 1027];
    const bytes = arena.normal([rows * columns * dtypeSize(dtype)], 'f32');
    const source: View = { ...bytes, dtype, shape: [columns, rows], strides: [1, columns] };
    const out = arena.empty([columns, rows], dtype);
    kernels.copy({ in: source, out });
    return { out: { view: out } };
  };

const columnSum: Body = (arena) => {
  const x = arena.normal([16384, 768], 'bf16');
  const out = arena.normal([1, 768], 'bf16');
  kernels.reduce({ in: x, out, op: 'sum', accumulate: true });
  return { out: { view: out, tolerance: 8e-3 } };
};

const adamW =
  (stddev: number): Body =>
  (arena) => {
    const n = 2 ** 22 + 3;
    const [master, m, v] = [
      arena.normal([n], 'f32'),
      arena.normal([n], 'f32', { stddev }),
      arena.empty([n], 'f32'),
    ];
    kernels.randomUniform({ out: v, low: 0, high: stddev, seed: 99, offset: 0, ...inOrder });
    const grad = arena.normal([n], 'bf16', { stddev });
    const weight = arena.empty([n], 'bf16');
    const control = arena.from([4], 'f32', Float32Array.of(0.7, 1, 1, 1));
    for (let step = 1; step <= 3; ++step) {
      kernels.adamW({
        master,
        m,
        v,
        grad,
        weight,
        control,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weightDecay: 0.1,
        correction1: 1 - 0.9 ** step,
        correction2: 1 - 0.999 ** step,
        decoupled: true,
      });
    }
    return { master: { view: master }, m: { view: m }, v: { view: v }, weight: { view: weight } };
  };

const randomBits: Body = (arena) => {
  const normal = arena.normal([1_000_003], 'f32', { mean: 0.5, stddev: 2 });
  const dropped = arena.empty([1_000_003], 'f32');
  kernels.dropout({
    in: normal,
    out: dropped,
    p: 0.1,
    seed: 2 ** 41 + 1,
    offset: 3,
    sample: 1_000_003,
    rank: 0,
    ranks: 1,
    ...inOrder,
    accumulate: false,
  });
  return { normal: { view: normal }, dropped: { view: dropped } };
};

const attention =
  (
    t: number,
    d: number,
    [b, h]: readonly [number, number] = [2, 5],
    window = 0,
    { isFull = false, keyHeads = h } = {},
  ): Body =>
  (arena) => {
    const all = h + 2 * keyHeads;
    const packed = arena.normal([b, t, all, d], 'bf16');
    const gradients = arena.empty([b, t, all, d], 'bf16');
    const part = (of: View, which: number): View => ({
      ...of,
      offset: which === 0 ? 0 : (h + (which - 1) * keyHeads) * d,
      shape: [b, which === 0 ? h : keyHeads, t, d],
      strides: [t * all * d, d, all * d, 1],
    });
    const heads = { shape: [b, h, t, d], strides: [t * h * d, d, h * d, 1] };
    const out = { ...arena.empty([b, t, h, d], 'bf16'), ...heads };
    const dout = { ...arena.normal([b, t, h, d], 'bf16'), ...heads };
    const lse = arena.empty([b, h, t], 'f32');
    const common = {
      q: part(packed, 0),
      k: part(packed, 1),
      v: part(packed, 2),
      out,
      lse,
      ...allSeen,
      window,
      scale: d ** -0.5,
      causal: true,
    };
    kernels.attention(common);
    if (isFull) {
      arena.device.trim();
      arena.device.setMemoryCap(arena.device.memory.reserved);
    }
    try {
      kernels.attentionBackward({
        ...common,
        dout,
        dq: part(gradients, 0),
        dk: part(gradients, 1),
        dv: part(gradients, 2),
      });
    } finally {
      if (isFull) arena.device.setMemoryCap(0);
    }
    return {
      out: { view: out, tolerance: 1.6e-2 },
      lse: { view: lse, tolerance: 1e-4 },
      gradients: { view: gradients, tolerance: 1.6e-2 },
    };
  };

const matmul =
  (epilogue: 'none' | 'gelu' | 'gelu_grad', dtype: DType): Body =>
  (arena) => {
    const [m, k, n] = [512, 1600, 6400];
    const a = arena.normal([m, k], dtype);
    const b = arena.normal([n, k], dtype, { stddev: 0.025 });
    const bias = epilogue === 'gelu_grad' ? null : arena.normal([n], dtype);
    const aux = epilogue === 'none' ? null : arena.normal([m, n], dtype);
    const out = arena.empty([m, n], dtype);
    kernels.matmul({
      a,
      b,
      bias,
      aux,
      out,
      transA: false,
      transB: true,
      epilogue,
      accumulate: false,
    });
    const tolerance = dtype === 'f32' ? 2e-5 : 1.6e-2;
    return { out: { view: out, tolerance }, ...(aux ? { aux: { view: aux, tolerance } } : {}) };
  };

const rows = (n: number, c: number, dtype: DType, places: number, descending: boolean): Body => {
  return (arena) => {
    const x = arena.normal([n, c], dtype);
    const [values, index] = [arena.empty([n, places], dtype), arena.empty([n, places], 'i64')];
    kernels.sort({ in: x, values, index, descending });
    return { values: { view: values }, index: { view: index } };
  };
};

/** Sums of positive numbers, and products that neither vanish nor overflow. */
const scans =
  (shape: readonly [number, number], dim: number): Body =>
  (arena) => {
    const x = arena.normal(shape, 'f32', { mean: 1, stddev: 1e-3 });
    const dout = arena.normal(shape, 'f32', { mean: 1 });
    const [sums, products, dx] = [0, 1, 2].map(() => arena.empty(shape, 'f32')) as [
      View,
      View,
      View,
    ];
    const common = { in: x, dim, reverse: false, accumulate: false };
    kernels.scan({ ...common, out: sums, op: 'sum' });
    kernels.scan({ ...common, out: products, op: 'prod' });
    kernels.cumprodBackward({ in: x, dout, dx, dim, accumulate: false });
    return {
      sums: { view: sums, tolerance: 1e-5 },
      products: { view: products, tolerance: 1e-3 },
      dx: { view: dx, tolerance: 1e-3 },
    };
  };

/** `places` destinations for many sources; a few destinations receive very many. */
const scatterAdd =
  (n: number, places: number, dtype: DType): Body =>
  (arena) => {
    const src = arena.normal([3, n], dtype, { mean: 1 });
    const index = Int32Array.from({ length: 3 * n }, (_, i) =>
      i % 5 === 0 ? 0 : (i * 7919) % places,
    );
    const out = arena.empty([3, places], dtype);
    const at = arena.from([3, n], 'i32', index);
    kernels.scatterAdd({ src, index: at, out, dim: 1, accumulate: false });
    const last = arena.normal([3, places], dtype);
    kernels.scatter({ src, index: at, out: last, dim: 1 });
    return { out: { view: out, tolerance: dtype === 'f32' ? 1e-5 : 1e-2 }, last: { view: last } };
  };

/** Draws with f32 and bf16, with and without replacement. */
const draws: Body = (arena) => {
  const x = arena.empty([8, 150_001], 'f32');
  kernels.randomUniform({ out: x, low: 0, high: 1, seed: 3, offset: 1, ...inOrder });
  kernels.binary({ a: x, b: x, out: x, op: 'mul', accumulate: false });
  const narrow = arena.empty([8, 150_001], 'bf16');
  kernels.copy({ in: x, out: narrow });
  const index = [x, narrow].flatMap((p) =>
    [true, false].map((replacement, i) => {
      const out = arena.empty([8, 300], 'i64');
      kernels.multinomial({ in: p, index: out, replacement, seed: 11, offset: i });
      return out;
    }),
  );
  return Object.fromEntries(index.map((view, i) => [`draws ${i}`, { view }]));
};

/** More than 2^31 elements: the test checks both ends and the middle. */
const huge: Case = {
  name: 'big Fill, Copy and Unary of more than 2^31 elements',
  skip(device) {
    if (device.kind === 'cpu') return 'needs the memory of a GPU';
    return device.info.totalBytes < 24 * 2 ** 30 ? 'needs 24 GiB of device memory' : null;
  },
  run(device) {
    const n = 2 ** 31 + 4097;
    const arena = new Arena(device);
    const [bytes, copied] = [arena.empty([n], 'u8'), arena.empty([n], 'u8')];
    kernels.fill({ out: bytes, value: 7 });
    kernels.fill({ out: { ...bytes, offset: n - 5, shape: [5] }, value: 9 });
    kernels.copy({ in: bytes, out: copied });
    const wide = arena.empty([n], 'bf16');
    kernels.copy({ in: copied, out: wide });
    kernels.unary({ in: wide, out: wide, op: 'neg' });
    const probe = (at: number): number => {
      const raw = new Uint16Array(1);
      wide.buffer.read(2 * at, raw);
      return decode(raw, 0, 'bf16');
    };
    for (const at of [0, 1, 2 ** 30, 2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, n - 6])
      assert.equal(probe(at), -7, `element ${at}`);
    for (const at of [n - 5, n - 1]) assert.equal(probe(at), -9, `element ${at}`);
    assert.equal(numel(wide.shape), n);
    arena.release();
  },
};

export const cases: Case[] = [
  ...[768, 1600, 4096].map((c) =>
    bigCase(`LayerNorm and its backward [4096, ${c}] bf16 in place`, layerNormBackward(4096, c)),
  ),
  bigCase('EmbeddingBackward of one index 16384 times', embeddingBackward(true)),
  bigCase('EmbeddingBackward of 16384 indices', embeddingBackward(false)),
  bigCase('CrossEntropy [64, 50257] bf16 with row stride 50304, in place', crossEntropy),
  ...(['u8', 'bf16', 'f32', 'i64'] as const).map((dtype) =>
    bigCase(`transposing Copy [4099, 1027] ${dtype}`, transpose(dtype)),
  ),
  bigCase('column sum [16384, 768] bf16 accumulates', columnSum),
  bigCase('AdamW of 2^22 + 3 parameters', adamW(1)),
  bigCase('AdamW of 2^22 + 3 parameters with denormal moments', adamW(1e-38)),
  bigCase('RandomNormal and Dropout of a million elements', randomBits),
  bigCase('Attention T1000 D64 packed', attention(1000, 64)),
  bigCase('Attention T1000 D128 packed', attention(1000, 128)),
  // Lengths around the tiles of 64, 128 and 192 rows.
  ...[64, 128].flatMap((d) => [
    ...[1, 63, 65, 777, 1025].map((t) =>
      bigCase(`Attention T${t} D${d} packed`, attention(t, d, [1, 7])),
    ),
    bigCase(`Attention T777 D${d} packed, window 150`, attention(777, d, [1, 3], 150)),
  ]),
  ...[80, 96, 256].flatMap((d) => [
    bigCase(`Attention T777 D${d} packed`, attention(777, d, [1, 3])),
    bigCase(`Attention T300 D${d} packed, window 70`, attention(300, d, [1, 3], 70)),
  ]),
  // From 2,048 rows on, dq is a product of dS, which the kernel of dk and dv has kept.
  ...[64, 128].flatMap((d) =>
    [2048, 2113].map((t) => bigCase(`Attention T${t} D${d} packed`, attention(t, d, [2, 2]))),
  ),
  bigCase('Attention T2113 D64 of 8 heads on 2', attention(2113, 64, [1, 8], 0, { keyHeads: 2 })),
  bigCase(
    'Attention T2048 D64 packed, without memory for dS',
    attention(2048, 64, [2, 2], 0, { isFull: true }),
  ),
  bigCase('Attention T129 D64 of 200 heads', attention(129, 64, [1, 200])),
  // The kernels take 1048 heads of this size at a time: two launches of 550.
  bigCase('Attention T250 D16 of 1100 heads', attention(250, 16, [11, 100])),
  ...(['bf16', 'f32'] as const).flatMap((dtype) =>
    (['none', 'gelu', 'gelu_grad'] as const).map((epilogue) =>
      bigCase(`Matmul [512, 1600, 6400] ${dtype} ${epilogue}`, matmul(epilogue, dtype)),
    ),
  ),
  ...(['f32', 'bf16', 'f16'] as const).flatMap((dtype) => [
    bigCase(`topk 50 of [8, 150001] ${dtype}`, rows(8, 150_001, dtype, 50, true)),
    bigCase(`sort [3, 150001] ${dtype}`, rows(3, 150_001, dtype, 150_001, false)),
    bigCase(`sort [4099, 1000] ${dtype}, descending`, rows(4099, 1000, dtype, 1000, true)),
  ]),
  bigCase('Scan and CumprodBackward [3, 300001]', scans([3, 300_001], 1)),
  bigCase('Scan and CumprodBackward [1000, 3001]', scans([1000, 3001], 1)),
  bigCase('Scan and CumprodBackward [30001, 65] across', scans([30_001, 65], 0)),
  ...(['f32', 'bf16'] as const).flatMap((dtype) => [
    bigCase(`ScatterAdd [3, 400000] into 97 ${dtype}`, scatterAdd(400_000, 97, dtype)),
    bigCase(`ScatterAdd [3, 400000] into 300000 ${dtype}`, scatterAdd(400_000, 300_000, dtype)),
  ]),
  bigCase('Multinomial [8, 150001]', draws),
  huge,
];
