// Measures microseconds per launch of products with few rows and of paged attention, in the sizes
// of Llama 8B. Weights have 16, 8 or 4 bits. Each launch reads weights or keys that are in no
// cache.
import { zeros } from '../lib/index.js';
import type { Device } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import { inOrder, scope, Tensor } from '../lib/tensor/index.js';
import { layerRows } from './decode-layer.js';
import { median } from './report.js';

/** [outputs, inputs] of Llama 8B: q and o, k and v, gate and up, down, head. */
const SHAPES = [
  [4096, 4096],
  [1024, 4096],
  [14_336, 4096],
  [4096, 14_336],
  [128_256, 4096],
] as const;

const ROWS = [1, 2, 4, 8, 16, 32];
/** Bytes of weights that no cache holds together. */
const UNCACHED = 4e8;
const LAUNCHES = 60;

/** Measures launches that lie in the stream before the first begins: the host does not count. */
class Queue {
  private readonly blocker: { a: Tensor; b: Tensor; out: Tensor };
  private readonly start: Event;
  private readonly end: Event;

  constructor(private readonly device: Device) {
    const square = (): Tensor => zeros([8192, 8192], { dtype: 'bf16', device });
    this.blocker = { a: square(), b: square(), out: square() };
    [this.start, this.end] = [new Event(device, true), new Event(device, true)];
    this.block();
  }

  /** About 1.5 ms. */
  private block(): void {
    kernels.matmul({ ...this.blocker, ...PLAIN, accumulate: false });
  }

  /** Median microseconds per launch, of LAUNCHES launches; `run` receives the launch's index. */
  microseconds(run: (turn: number) => void): number {
    const samples = Array.from({ length: 9 }, () => {
      this.block();
      this.block();
      this.start.record(this.device.compute);
      for (let turn = 0; turn < LAUNCHES; ++turn) run(turn);
      this.end.record(this.device.compute).synchronize();
      return (this.end.since(this.start) / LAUNCHES) * 1000;
    });
    return median(samples.slice(2));
  }
}

const PLAIN = { bias: null, aux: null, transA: false, transB: true, epilogue: 'none' } as const;

function drawTensor(shape: readonly number[], device: Device): Tensor {
  const out = Tensor.empty(shape, 'bf16', device);
  kernels.randomUniform({ out, low: -1, high: 1, seed: 1, offset: 0, ...inOrder });
  return out;
}

const round = (x: number, digits = 2): number => Number(x.toFixed(digits));

function skinny(device: Device, queue: Queue, [outputs, inputs]: (typeof SHAPES)[number]) {
  const bytes = outputs * inputs * 2;
  const copies = Math.ceil(UNCACHED / bytes);
  const weights = Array.from({ length: copies }, () => drawTensor([outputs, inputs], device));
  return ROWS.map((rows) => {
    const a = drawTensor([rows, inputs], device);
    const out = zeros([rows, outputs], { dtype: 'bf16', device });
    const us = queue.microseconds((turn) =>
      kernels.matmul({ a, b: weights[turn % copies] as Tensor, out, ...PLAIN, accumulate: false }),
    );
    return { outputs, inputs, rows, us: round(us), gb_per_s: round(bytes / us / 1e3, 0) };
  });
}

/** Bits, and inputs that share a step; 0 for one step per output. */
const KINDS = [
  [8, 0],
  [4, 128],
  [4, 32],
] as const;

function benchCoded(device: Device, queue: Queue, [outputs, inputs]: (typeof SHAPES)[number]) {
  return KINDS.flatMap(([bits, size]) => {
    const group = size || inputs;
    const bytes = (outputs * inputs * bits) / 8 + ((outputs * inputs) / group) * 2;
    const copies = Math.ceil(UNCACHED / bytes);
    const weights = Array.from({ length: copies }, () => ({
      packed: zeros([outputs, (inputs * bits) / 32], { dtype: 'i32', device }),
      scale: drawTensor([outputs, inputs / group], device),
    }));
    return [...ROWS, 64].map((rows) => {
      const x = drawTensor([rows, inputs], device);
      const out = zeros([rows, outputs], { dtype: 'bf16', device });
      const us = queue.microseconds((turn) =>
        kernels.quantizedLinear({
          x,
          ...(weights[turn % copies] as (typeof weights)[number]),
          zero: null,
          bias: null,
          out,
          bits,
          group,
        }),
      );
      const gb_per_s = round(bytes / us / 1e3, 0);
      return { bits, group: size, outputs, inputs, rows, us: round(us), gb_per_s };
    });
  });
}

/** Sequences, tokens of each that are new, and tokens in all. */
const TEXTS = [
  [1, 128, 128],
  [1, 2048, 2048],
  [8, 512, 512],
  [1, 512, 8192],
  [1, 1, 256],
  [1, 1, 8192],
  [32, 1, 192],
  [128, 1, 192],
  [128, 1, 1056],
] as const;

function benchPaged(
  device: Device,
  queue: Queue,
  [count, queries, tokens]: (typeof TEXTS)[number],
) {
  const [heads, keyHeads, width, block] = [32, 8, 128, 64];
  const each = Math.ceil(tokens / block);
  const bytes = count * each * 2 * keyHeads * block * width * 2;
  const copies = Math.min(32, Math.ceil(UNCACHED / bytes));
  const pools = Array.from({ length: copies }, () =>
    drawTensor([count * each, 2, keyHeads, block, width], device),
  );
  const list = (values: Int32Array, shape = [values.length]): Tensor =>
    Tensor.from(values, { shape, device });
  const q = drawTensor([count * queries, heads, width], device);
  const args = {
    q,
    out: zeros(q.shape, { dtype: 'bf16', device }),
    tables: list(
      Int32Array.from({ length: count * each }, (_, i) => i),
      [count, each],
    ),
    starts: list(Int32Array.from({ length: count + 1 }, (_, s) => s * queries)),
    lengths: list(new Int32Array(count).fill(tokens)),
    scale: width ** -0.5,
    cap: 0,
    window: 0,
    longest: queries,
    lse: null,
    sinks: null,
    invariant: false,
  };
  const us = queue.microseconds((turn) =>
    kernels.pagedAttention({ ...args, pool: pools[turn % copies] as Tensor }),
  );
  const pairs = count * queries * (tokens - (queries - 1) / 2);
  return {
    sequences: count,
    queries,
    tokens,
    us: round(us),
    tflops: round((4 * heads * width * pairs) / us / 1e6, 1),
    gb_per_s: round((count * tokens * 2 * keyHeads * width * 2) / us / 1e3, 0),
  };
}

/** Groups by their name in `bench kernels --only`. */
export const fewRows: Readonly<Record<string, (device: Device) => object[]>> = {
  skinny: (device) => overAll(device, SHAPES, skinny),
  quantized: (device) => overAll(device, SHAPES, benchCoded),
  paged: (device) => overAll(device, TEXTS, (...args) => [benchPaged(...args)]),
  layer: (device) =>
    [1, 32].flatMap((rows) =>
      ([16, 8, 4] as const).map((bits) => scope(() => layerRows(device, rows, bits))),
    ),
};

function overAll<T>(
  device: Device,
  cases: readonly T[],
  measure: (device: Device, queue: Queue, item: T) => object[],
): object[] {
  return scope(() => {
    const queue = new Queue(device);
    return cases.flatMap((item) => scope(() => measure(device, queue, item)));
  });
}
