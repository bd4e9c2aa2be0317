// Memory-bound kernels of a GPT-2 step, one at a time below the boundary: microseconds and bytes
// moved per second.
import { DsError } from '../lib/errors.js';
import { addon } from '../lib/runtime/addon.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import { type DType, dtypeSize } from '../lib/runtime/dtype.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import { Tensor } from '../lib/tensor/index.js';
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

const groups: Readonly<Record<string, Readonly<Record<string, Kernel>>>> = {
  norm: { norm: norm(false), 'add and norm': norm(true), 'norm backward': normBackward },
  bias: { 'column sum': columnSum },
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
      kernels.randomUniform({ out, low: 0.5, high: 1.5, seed: 1, offset: kept.push(out) });
      return out;
    };
  const swept = make('f32')([1, 2 ** 26]);
  const least = make('f32')([1, 1]);
  const flush = (): void => kernels.reduce({ in: swept, out: least, op: 'max', accumulate: false });
  const rows: object[] = [];
  for (const group of chosen) {
    for (const [name, kernel] of Object.entries(groups[group] ?? {})) {
      for (const dtype of dtypes) {
        for (const [rowCount, columns] of group === 'norm' ? widths : outputs) {
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
 * --only norm,bias (default both); --dtypes bf16,f32 (default); --count 200 launches back to back;
 * --device cuda.
 */
export function kernelsBench(options: Options): object {
  const device = findDevice(options.device ?? 'cuda');
  const count = Number(options.count ?? 200);
  const chosen = (options.only ?? Object.keys(groups).join(',')).split(',');
  const unknown = chosen.find((name) => !(name in groups));
  if (unknown !== undefined) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'bench kernels --only',
      expected: Object.keys(groups).join(', '),
      got: unknown,
    });
  }
  const dtypes = (options.dtypes ?? 'bf16,f32').split(',') as DType[];
  return { device: device.info.name, rows: table(device, chosen, dtypes, count) };
}
