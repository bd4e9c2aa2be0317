// Decoding with weights of 16, 8 and 4 bits on a GPU: each layer's product alone, and tokens of a
// whole model of Llama's shapes and random weights.
import { nn, noGrad, scope, seed, zeros } from '../lib/index.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Event } from '../lib/runtime/stream.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';

/** [outputs, inputs] of Llama 8B: q and o, k and v, gate and up, down, head. */
const SHAPES = [
  ...([
    [4096, 4096],
    [1024, 4096],
  ] as const),
  ...([
    [14_336, 4096],
    [4096, 14_336],
    [128_256, 4096],
  ] as const),
];

const ROWS = [1, 4, 8, 16, 32, 64];

/** Bits, and inputs that share a step; 0 for one step per output. */
const KINDS = [
  [16, 0],
  [8, 0],
  [4, 128],
  [4, 32],
] as const;

/** Median microseconds of one launch, of 50 back to back over weights too many for the caches. */
function microseconds(device: Device, run: (turn: number) => void): number {
  const [start, end] = [new Event(device, true), new Event(device, true)];
  const samples = Array.from({ length: 9 }, () => {
    start.record(device.compute);
    for (let turn = 0; turn < 50; ++turn) run(turn);
    end.record(device.compute).synchronize();
    return (end.since(start) / 50) * 1000;
  });
  start.dispose();
  end.dispose();
  return median(samples.slice(2));
}

function product(
  device: Device,
  [outputs, inputs]: readonly [number, number],
  [bits, group]: readonly [number, number],
): object[] {
  const groups = group === 0 ? 1 : inputs / group;
  const bytes = (outputs * inputs * bits) / 8 + (bits === 16 ? 0 : outputs * groups * 2);
  const copies = Math.max(1, Math.ceil(2e8 / bytes));
  const weights = Array.from({ length: copies }, () => ({
    whole: bits === 16 ? zeros([outputs, inputs], { dtype: 'bf16', device }) : null,
    packed: zeros([outputs, (inputs * (bits === 16 ? 8 : bits)) / 32], { dtype: 'i32', device }),
    scale: zeros([outputs, groups], { dtype: 'bf16', device }),
  }));
  return ROWS.map((rows) => {
    const x = zeros([rows, inputs], { dtype: 'bf16', device });
    const out = zeros([rows, outputs], { dtype: 'bf16', device });
    const us = microseconds(device, (turn) => {
      const { whole, packed, scale } = weights[turn % copies] as (typeof weights)[number];
      if (whole) {
        const plain = { bias: null, aux: null, transA: false, transB: true } as const;
        kernels.matmul({ a: x, b: whole, out, ...plain, epilogue: 'none', accumulate: false });
        return;
      }
      const size = { bits, group: group || inputs };
      kernels.quantizedLinear({ x, packed, scale, zero: null, bias: null, out, ...size });
    });
    return { outputs, inputs, bits, group, rows, us, tb_per_s: bytes / us / 1e6 };
  });
}

/** Greedy tokens per second after a prompt, all rows alike; the host launches every op. */
function decode(device: Device, options: Options): object {
  const [batch, prompt, count] = ['batch', 'prompt', 'new'].map((name, i) =>
    Number(options[name] ?? [1, 128, 128][i]),
  ) as [number, number, number];
  seed(1);
  const model = benchModel(options, prompt + count)
    .to(device, 'bf16')
    .eval();
  const bits = Number(options.bits ?? 16);
  const head = options.head === undefined ? null : (Number(options.head) as 8 | 4);
  if (bits !== 16) {
    const groupSize = options.group === undefined ? undefined : Number(options.group);
    nn.quantizeModel(model, { bits: bits as 8 | 4, head, ...(groupSize && { groupSize }) });
  }
  const once = (): number =>
    noGrad(() =>
      scope(() => {
        const caches = model.caches(batch, prompt + count);
        let tokens = zeros([batch, prompt], { dtype: 'i32', device });
        let begin = 0;
        for (let i = 0; i < count; ++i) {
          tokens = scope(() => model.next(tokens, caches).argmax(-1).to('i32').reshape([batch, 1]));
          if (i > 0) continue;
          device.synchronize();
          begin = performance.now();
        }
        device.synchronize();
        return (batch * (count - 1)) / ((performance.now() - begin) / 1000);
      }),
    );
  once();
  return {
    batch,
    prompt,
    new: count,
    tokens_per_s: median([once(), once(), once(), once(), once()]),
  };
}

/**
 * --part products: each layer's product. --part decode: --model llama-8B --bits 16|8|4 --group 128
 * --head 8 --batch 1 --prompt 128 --new 128. --device cuda.
 */
export function quantizedDecodeBench(options: Options): object {
  const device = findDevice(options.device ?? 'cuda');
  if (options.part === 'decode') return decode(device, { model: 'llama-8B', ...options });
  return {
    device: device.info.name,
    rows: SHAPES.flatMap((shape) =>
      KINDS.flatMap((kind) => scope(() => product(device, shape, kind))),
    ),
  };
}
