// One rank that gathers weights and reduces gradients as quantized codes, and compares both with a
// simulation of all ranks.
import { CommsLogger, initDistributed } from '../../lib/comm/index.js';
import { Tensor } from '../../lib/index.js';
import { MemoryStore } from '../../lib/zero/partition.js';
import {
  BLOCK,
  BlockCodes,
  gatherCodes,
  QuantizedWire,
  ReplicatedWire,
} from '../../lib/zero/quantized.js';

export interface CodesJob {
  kind: 'cpu' | 'cuda';
}

export interface CodesReport {
  failures: string[];
  compared: number;
  /** Bytes of messages in the log, and by the formula. */
  logged: number[];
  formula: number[];
}

const failures: string[] = [];
let compared = 0;

/** Values of rank `rank`: magnitudes differ by block, some blocks are zero, one contains a NaN. */
function valuesOf(rank: number, count: number, salt: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => {
    const block = Math.floor(i / BLOCK);
    if (block % 5 === 3) return 0;
    if (salt === 2 && rank === 1 && i === BLOCK + 3) return Number.NaN;
    const hash = Math.imul((i + 1) * 2654435761 + rank * 40503 + salt * 977, 2246822519) >>> 8;
    return ((hash % 65536) / 32768 - 1) * 10 ** ((block % 7) - 4);
  });
}

/** Quantizes and dequantizes values with `bits` bits, block by block. */
function encode(values: Float32Array, bits: 8 | 4): Float32Array {
  const middle = 2 ** (bits - 1);
  const out = new Float32Array(values.length);
  for (let from = 0; from < values.length; from += BLOCK) {
    const block = values.subarray(from, from + BLOCK);
    const largest = block.reduce(
      (a, x) => (Number.isNaN(x) || Number.isNaN(a) ? Number.NaN : Math.max(a, Math.abs(x))),
      0,
    );
    const step = Math.fround(largest / ((2 ** bits - 1) / 2));
    block.forEach((x, i) => {
      const nearest = nearestEven(Math.fround(x / step)) + middle;
      const code = step === 0 ? middle : nearest >= 0 ? Math.min(nearest, 2 * middle - 1) : 0;
      out[from + i] = Math.fround((code - middle) * step);
    });
  }
  return out;
}

function nearestEven(x: number): number {
  const floor = Math.floor(x);
  if (x - floor !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

const BF16 = (x: number): number => {
  const bits = new Uint32Array(Float32Array.of(x).buffer)[0] as number;
  if (Number.isNaN(x)) return x;
  const rounded = (bits + 0x7fff + ((bits >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(Uint32Array.of(rounded).buffer)[0] as number;
};

function compare(label: string, got: Tensor, want: ArrayLike<number>): void {
  const values = got.to('f32').toArray() as number[];
  compared += values.length;
  const wrong = values.findIndex((x, i) => !Object.is(x + 0, (want[i] as number) + 0));
  if (wrong >= 0) failures.push(`${label}[${wrong}] is ${values[wrong]}, not ${want[wrong]}`);
}

async function main(): Promise<void> {
  const { kind } = JSON.parse(process.argv[2] as string) as CodesJob;
  const job = await initDistributed(kind === 'cpu' ? { device: kind } : {});
  const { world } = job;
  const { device, rank, size } = world;
  const { compute } = device;
  const logger = new CommsLogger();
  const numel = 11 * BLOCK;
  const at = (purpose: string) => ({ stream: compute, purpose });
  const ranks = Array.from({ length: size }, (_, i) => i);
  for (const dtype of ['f32', 'bf16'] as const) {
    const round = (values: Float32Array): Float32Array =>
      dtype === 'f32' ? values : values.map(BF16);
    const upload = (values: Float32Array): Tensor => Tensor.from(values, { device }).to(dtype);
    const place = (label: string) => `${label} in ${dtype}, rank ${rank} of ${size}`;

    world.logger = logger;
    const flat = Tensor.empty([size * numel], dtype, device).fill_(7);
    const localValues = round(valuesOf(rank, numel, 1));
    gatherCodes(new MemoryStore(upload(localValues)), flat, world, at('weights')).wait(compute);
    const all = ranks.flatMap((rank) => [...round(encode(round(valuesOf(rank, numel, 1)), 8))]);
    compare(place('weights'), flat, all);

    for (const salt of [1, 2]) {
      const output = Tensor.empty([numel], dtype, device).fill_(7);
      const wire = new QuantizedWire(world, world);
      const full = upload(round(valuesOf(rank, size * numel, salt)));
      wire.reduceScatter(output, full, at('gradients')).wait(compute);
      world.logger = null;
      const sums = new Float32Array(numel);
      for (const one of ranks) {
        const values = round(valuesOf(one, size * numel, salt));
        const part = encode(values.slice(rank * numel, (rank + 1) * numel), 4);
        part.forEach((x, i) => {
          sums[i] = one === 0 ? x : Math.fround((sums[i] as number) + x);
        });
      }
      compare(place(`gradients ${salt}`), output, round(sums));
      // Two groups with one copy each: the result is the sum of both.
      const twice = new ReplicatedWire(wire, world);
      twice.reduceScatter(output, full, at('copies')).wait(compute);
      world.logger = logger;
    }
    world.logger = null;
  }
  const bytes = (of: string): number[] =>
    logger
      .totals()
      .filter(({ kind: one }) => one === of)
      .map((total) => total.bytes);
  const words = (bits: 8 | 4): number => new BlockCodes(bits, numel).words * 4;
  const report: CodesReport = {
    failures,
    compared,
    logged: [...bytes('allGather'), ...bytes('allToAll')],
    formula: [words(8), size * words(4)],
  };
  await job.destroy();
  console.log(JSON.stringify(report));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
