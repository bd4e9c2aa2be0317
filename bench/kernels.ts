// Measures single memory-bound kernels of a step of GPT-2 or Llama: microseconds and bytes per
// second.
import { DsError } from '../lib/errors.js';
import { addon } from '../lib/runtime/addon.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import { type DType, dtypeSize } from '../lib/runtime/dtype.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import type { View } from '../lib/runtime/view.js';
import { inOrder, Tensor } from '../lib/tensor/index.js';
import { viewOf } from '../lib/tensor/ops/shapes.js';
import { fewRows } from './few-rows.js';
import type { Options } from './main.js';
import { median } from './report.js';

/** [rows, columns] of one dtype. */
interface Shape {
  rows: number;
  columns: number;
  dtype: DType;
}

/**
 * One launch of one op: its name in kernels.opNames and how many matrices of the shape it moves.
 */
interface Work {
  op: string;
  matrices: number;
  run(): void;
}

type Make = (shape: number[], dtype?: DType) => Tensor;
type Kernel = (make: Make, shape: Shape) => Work;

/** Kernels measured by the same method, and the sizes of their matrices. */
interface Group {
  kernels: Readonly<Record<string, Kernel>>;
  shapes: readonly (readonly [rows: number, columns: number])[];
}

/**
 * The widths of 1558M at B 8 and of 124M at B 16, T 1024: its stream, and for bias sums each
 * layer's output.
 */
const widths: readonly (readonly [number, number])[] = [
  [8192, 1600],
  [16_384, 768],
];
const outputs: readonly (readonly [number, number])[] = [
  ...widths,
  [8192, 4800],
  [8192, 6400],
  [16_384, 3072],
];
/** Llama's feed-forward blocks of 1B at B 4 and of 8B at B 2, T 2048. */
const gates: readonly (readonly [number, number])[] = [
  [8192, 8192],
  [4096, 14_336],
];
/** All logits of 1558M at B 8, and one chunk of Llama 3's, Qwen's and a quarter of a million. */
const vocabularies: readonly (readonly [number, number])[] = [
  [8192, 50_304],
  [1024, 128_256],
  [512, 151_936],
  [512, 250_112],
];

const norm =
  (residual: boolean): Kernel =>
  (make, { rows, columns }) => {
    const matrix = (): Tensor => make([rows, columns]);
    const args = {
      x: matrix(),
      residual: residual ? matrix() : null,
      sum: residual ? matrix() : null,
      out: matrix(),
      weight: make([columns]),
      bias: make([columns]),
      mean: make([rows], 'f32'),
      rstd: make([rows], 'f32'),
      eps: 1e-5,
    };
    const run = (): void => kernels.layerNorm(args);
    return { op: 'LayerNorm', matrices: residual ? 4 : 2, run };
  };

const normBackward: Kernel = (make, { rows, columns }) => {
  const matrix = (): Tensor => make([rows, columns]);
  const args = {
    s: matrix(),
    dout: matrix(),
    dsum: matrix(),
    dx: matrix(),
    weight: make([columns]),
    mean: make([rows], 'f32'),
    rstd: make([rows], 'f32'),
    dweight: make([columns]),
    dbias: make([columns]),
    accumulate: false,
  };
  return { op: 'LayerNormBackward', matrices: 4, run: () => kernels.layerNormBackward(args) };
};

const columnSum: Kernel = (make, { rows, columns }) => {
  const args = {
    in: make([rows, columns]),
    out: make([1, columns]),
    op: 'sum',
    accumulate: false,
  } as const;
  return { op: 'Reduce', matrices: 1, run: () => kernels.reduce(args) };
};

const swiglu: Kernel = (make, { rows, columns }) => {
  const matrix = (): Tensor => make([rows, columns]);
  const args = { gate: matrix(), up: matrix(), out: matrix() };
  return { op: 'Swiglu', matrices: 3, run: () => kernels.swiglu(args) };
};

/** Gate and up as the halves of one product's rows. */
const swigluOfHalves: Kernel = (make, { rows, columns }) => {
  const both = make([rows, 2 * columns]);
  const half = (at: number): View => viewOf(both, [rows, columns], both.strides, at);
  const args = { gate: half(0), up: half(columns), out: make([rows, columns]) };
  return { op: 'Swiglu', matrices: 3, run: () => kernels.swiglu(args) };
};

const swigluBackward: Kernel = (make, { rows, columns }) => {
  const matrix = (): Tensor => make([rows, columns]);
  const args = {
    gate: matrix(),
    up: matrix(),
    dout: matrix(),
    dgate: matrix(),
    dup: matrix(),
    accumulateGate: false,
    accumulateUp: false,
  };
  return { op: 'SwigluBackward', matrices: 5, run: () => kernels.swigluBackward(args) };
};

const crossEntropy =
  (smoothing: number, counts: boolean): Kernel =>
  (make, { rows, columns }) => {
    const args = {
      logits: make([rows, columns]),
      target: make([rows], 'i32'),
      losses: make([rows], 'f32'),
      lse: make([rows], 'f32'),
      correct: counts ? make([rows], 'i64') : null,
      smoothing,
      ignoreIndex: -100,
      first: 0,
      classes: 0,
    };
    return { op: 'CrossEntropy', matrices: 1, run: () => kernels.crossEntropy(args) };
  };

const crossEntropyBackward: Kernel = (make, { rows, columns }) => {
  const logits = make([rows, columns]);
  const args = {
    logits,
    dlogits: logits,
    target: make([rows], 'i32'),
    lse: make([rows], 'f32'),
    scale: make([1], 'f32'),
    smoothing: 0,
    ignoreIndex: -100,
    first: 0,
    classes: 0,
  };
  const run = (): void => kernels.crossEntropyBackward(args);
  return { op: 'CrossEntropyBackward', matrices: 2, run };
};

const groups: Readonly<Record<string, Group>> = {
  norm: {
    kernels: { norm: norm(false), 'add and norm': norm(true), 'norm backward': normBackward },
    shapes: widths,
  },
  bias: { kernels: { 'column sum': columnSum }, shapes: outputs },
  gate: {
    kernels: { swiglu, 'swiglu of halves': swigluOfHalves, 'swiglu backward': swigluBackward },
    shapes: gates,
  },
  loss: {
    kernels: {
      'cross entropy': crossEntropy(0, false),
      'cross entropy, counted': crossEntropy(0, true),
      'cross entropy, smoothed and counted': crossEntropy(0.1, true),
      'cross entropy backward, in place': crossEntropyBackward,
    },
    shapes: vocabularies,
  },
};

/**
 * Microseconds of one launch: of many back to back, and of single ones that find nothing in the L2
 * cache.
 */
function measure(
  device: Device,
  work: Work,
  count: number,
  flush: () => void,
): { warm: number; cold: number } {
  const names: readonly string[] = kernels.opNames;
  const start = new Event(device, true);
  const end = new Event(device, true);
  const between = (run: () => void): number => {
    start.record(device.compute);
    run();
    end.record(device.compute).synchronize();
    return end.since(start) * 1000;
  };
  const sample = (measured: () => number): number =>
    median(Array.from({ length: 15 }, measured).slice(5));
  work.run();
  const warm = sample(
    () =>
      between(() => {
        work.run(); // leaves the arguments in the block
        addon.timeOp(names.indexOf(work.op), device.compute.handle, count);
      }) /
      (count + 1),
  );
  const cold = sample(() => {
    flush();
    flush();
    return between(work.run);
  });
  start.dispose();
  end.dispose();
  return { warm, cold };
}

function table(
  device: Device,
  chosen: readonly string[],
  dtypes: readonly DType[],
  count: number,
): object[] {
  const kept: Tensor[] = [];
  const make =
    (standard: DType): Make =>
    (shape, dtype = standard) => {
      const out = Tensor.empty(shape, dtype, device).keep();
      const offset = kept.push(out);
      if (dtype === 'i32' || dtype === 'i64') kernels.fill({ out, value: 7 });
      else kernels.randomUniform({ out, low: 0.5, high: 1.5, seed: 1, offset, ...inOrder });
      return out;
    };
  // More than the cache of a GPU.
  const swept = make('f32')([1, device.kind === 'cuda' ? 2 ** 26 : 2 ** 20]);
  const least = make('f32')([1, 1]);
  const flush = (): void => kernels.reduce({ in: swept, out: least, op: 'max', accumulate: false });
  const rows: object[] = [];
  for (const group of chosen) {
    const { kernels: measured, shapes } = groups[group] as Group;
    for (const [name, kernel] of Object.entries(measured)) {
      for (const dtype of dtypes) {
        for (const [rowCount, columns] of shapes) {
          const first = kept.length;
          const work = kernel(make(dtype), { rows: rowCount, columns, dtype });
          const { warm, cold } = measure(device, work, count, flush);
          const rate = (us: number): number =>
            Number(((work.matrices * rowCount * columns * dtypeSize(dtype)) / us / 1e6).toFixed(2));
          const us = { warm_us: Number(warm.toFixed(2)), cold_us: Number(cold.toFixed(2)) };
          const rates = { warm_tb_per_s: rate(warm), cold_tb_per_s: rate(cold) };
          rows.push({ kernel: name, shape: `[${rowCount}, ${columns}] ${dtype}`, ...us, ...rates });
          for (const tensor of kept.splice(first)) tensor.dispose();
        }
      }
    }
  }
  for (const tensor of kept) tensor.dispose();
  return rows;
}

/**
 * --only norm,bias,gate,loss (default all), or skinny, quantized, paged, layer (inference, always
 * bf16); --dtypes bf16,f32 (default); --count 200 launches back to back; --device cuda.
 */
export function kernelsBench(options: Options): object {
  const device = findDevice(options.device ?? 'cuda');
  const count = Number(options.count ?? 200);
  const chosen = (options.only ?? Object.keys(groups).join(',')).split(',');
  const known = [...Object.keys(groups), ...Object.keys(fewRows)];
  const unknown = chosen.find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'bench kernels --only',
      expected: known.join(', '),
      got: unknown,
    });
  }
  const dtypes = (options.dtypes ?? 'bf16,f32').split(',') as DType[];
  const measured = chosen.filter((name) => name in groups);
  const inferred = chosen.filter((name) => name in fewRows);
  return {
    device: device.info.name,
    ...(measured.length > 0 && { rows: table(device, measured, dtypes, count) }),
    ...Object.fromEntries(inferred.map((name) => [name, fewRows[name]?.(device)])),
  };
}
