// AdamW over a flat range, on the device and on host threads: bytes moved per second (28 B per parameter).
import { Buffer } from '../lib/runtime/buffer.js';
import { type Device, device as findDevice, setThreads, threads } from '../lib/runtime/device.js';
import type { DType } from '../lib/runtime/dtype.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Stream } from '../lib/runtime/stream.js';
import { Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

const bytesPerParameter = 28; // f32 master, m and v read and written, bf16 gradient in, bf16 weight out

type Make = (dtype: DType, n: number) => Tensor;

function argumentsFor(make: Make, n: number): kernels.AdamWArgs {
  const control = make('f32', 4);
  control.buffer.write(0, new Float32Array([1, 1, 1, 1]));
  return {
    master: make('f32', n),
    m: make('f32', n),
    v: make('f32', n),
    grad: make('bf16', n),
    weight: make('bf16', n),
    control,
    lr: 1e-4,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weightDecay: 0.1,
    correction1: 0.5,
    correction2: 0.5,
    decoupled: true,
  };
}

function timed(run: () => void, repeats = 7): number {
  const samples: number[] = [];
  for (let i = 0; i < repeats; ++i) {
    const start = process.hrtime.bigint();
    run();
    samples.push(Number(process.hrtime.bigint() - start) / 1e6);
  }
  return median(samples.slice(1));
}

function onHost(device: Device, n: number, counts: readonly number[]): object[] {
  const make: Make = (dtype, size) =>
    new Tensor(Buffer.allocatePinned(device, size * (dtype === 'f32' ? 4 : 2)), dtype, [size]);
  const args = argumentsFor(make, n);
  for (const tensor of [args.master, args.m, args.v, args.grad]) {
    const noise = tensor.dtype === 'f32' ? new Float32Array(1 << 20) : new Uint16Array(1 << 20);
    for (let i = 0; i < noise.length; ++i) {
      noise[i] = tensor.dtype === 'f32' ? Math.random() * 0.01 + 1e-6 : 0x3c00 + (i % 255);
    }
    for (let at = 0; at + noise.length <= n; at += noise.length) {
      tensor.buffer.write(at * noise.BYTES_PER_ELEMENT, noise);
    }
  }
  const stream = Stream.create(device);
  const restore = threads();
  const rows = counts.map((count) => {
    setThreads(count);
    const ms = timed(() => {
      kernels.adamWOnHost(args, stream);
      stream.synchronize();
    });
    return { threads: count, ms, gb_per_s: (bytesPerParameter * n) / ms / 1e6 };
  });
  setThreads(restore);
  return rows;
}

/** --n elements (default 2^24 on the CPU, 2^28 beside a GPU), --threads 1,2,... */
export function adamBench(options: Options): object {
  const device = findDevice(options.device ?? 'auto');
  const n = Number(options.n ?? (device.kind === 'cpu' ? 2 ** 24 : 2 ** 28));
  const counts = (options.threads ?? String(threads())).split(',').map(Number);
  const host = onHost(device, n, counts);
  if (device.kind === 'cpu') return { n, host };
  const args = argumentsFor((dtype, size) => Tensor.empty([size], dtype, device), n);
  for (const tensor of [args.master, args.m, args.v]) {
    kernels.randomUniform({ out: tensor, low: 1e-6, high: 0.01, seed: 1, offset: 1 });
  }
  kernels.randomNormal({ out: args.grad, mean: 0, stddev: 1, seed: 2, offset: 1 });
  const ms = timed(() => {
    kernels.adamW(args);
    device.synchronize();
  }, 20);
  return { n, host, device: { ms, tb_per_s: (bytesPerParameter * n) / ms / 1e9 } };
}
