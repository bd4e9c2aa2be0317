// Measures the update of an optimizer on the device and on host threads, in bytes per second.
import { DsError } from '../lib/errors.js';
import { Buffer } from '../lib/runtime/buffer.js';
import { type Device, device as findDevice, setThreads, threads } from '../lib/runtime/device.js';
import { type DType, dtypeSize } from '../lib/runtime/dtype.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { Stream } from '../lib/runtime/stream.js';
import { inOrder, Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

/** A fused update: the names of its f32 states, its settings and its two entries. */
interface Rule {
  states: readonly string[];
  /** The master is split into two halves; the first half is the weight. */
  split?: true;
  settings: object;
  run(args: never): void;
  runOnHost(args: never, stream: Stream): void;
}

const lr = 1e-4;
const decay = { lr, weightDecay: 0.1 };
const sgd = { momentum: 0.9, dampening: 0, nesterov: false, first: false, ...decay };
const sgdEntries = { run: kernels.sgd, runOnHost: kernels.sgdOnHost };

const adam = {
  states: ['m', 'v'],
  settings: {
    ...decay,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    correction1: 0.5,
    correction2: 0.5,
    decoupled: true,
  },
};

const rules: Readonly<Record<string, Rule>> = {
  'adamw-halves': {
    ...adam,
    split: true,
    run: kernels.adamWHalves,
    runOnHost: kernels.adamWHalvesOnHost,
  },
  adamw: {
    ...adam,
    run: kernels.adamW,
    runOnHost: kernels.adamWOnHost,
  },
  lion: {
    states: ['m'],
    settings: { ...decay, beta1: 0.9, beta2: 0.99 },
    run: kernels.lion,
    runOnHost: kernels.lionOnHost,
  },
  adagrad: {
    states: ['sum'],
    settings: { ...decay, eps: 1e-10 },
    run: kernels.adagrad,
    runOnHost: kernels.adagradOnHost,
  },
  momentum: { states: ['momentumBuffer'], settings: sgd, ...sgdEntries },
  sgd: { states: [], settings: { ...sgd, momentumBuffer: null }, ...sgdEntries },
};

/**
 * The update reads and writes the f32 master and states, reads a bf16 gradient and writes a bf16
 * weight. Two halves hold one bit more than the master and replace the weight.
 */
const bytesPerParameter = ({ states, split }: Rule): number =>
  8 * (1 + states.length) + (split ? 2.25 : 4);

type Make = (dtype: DType, n: number) => Tensor;

interface Operands {
  /** The master weights and the states. */
  values: Tensor[];
  grad: Tensor;
  /** Arguments of the rule's entry points. */
  args: never;
}

function operandsOf({ states, settings, split }: Rule, make: Make, n: number): Operands {
  const control = make('f32', 4);
  control.buffer.write(0, new Float32Array([1, 1, 1, 1]));
  const names = split ? states : ['master', ...states];
  const values = Object.fromEntries(names.map((name) => [name, make('f32', n)]));
  const grad = make('bf16', n);
  const weight = make('bf16', n);
  const master = split
    ? { high: weight, low: make('bf16', n), ties: make('u8', Math.ceil(n / 8)) }
    : { weight };
  const args = { ...settings, ...values, ...master, grad, control };
  return { values: Object.values(values), grad, args: args as never };
}

function time(run: () => void, repeats = 7): number {
  const samples: number[] = [];
  for (let i = 0; i < repeats; ++i) {
    const start = process.hrtime.bigint();
    run();
    samples.push(Number(process.hrtime.bigint() - start) / 1e6);
  }
  return median(samples.slice(1));
}

function onHost(rule: Rule, device: Device, n: number, counts: readonly number[]): object[] {
  const make: Make = (dtype, size) =>
    new Tensor(Buffer.allocatePinned(device, size * dtypeSize(dtype)), dtype, [size]);
  const { values, grad, args } = operandsOf(rule, make, n);
  for (const tensor of [...values, grad]) {
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
    const ms = time(() => {
      rule.runOnHost(args, stream);
      stream.synchronize();
    });
    return { threads: count, ms, gb_per_s: (bytesPerParameter(rule) * n) / ms / 1e6 };
  });
  setThreads(restore);
  return rows;
}

/**
 * --rule adamw (default), adamw-halves, lion, adagrad, momentum or sgd; --n elements (default 2^24
 * on the CPU, 2^28 with a GPU); --threads 1,2,...
 */
export function adamBench(options: Options): object {
  const rule = ruleOf(options.rule ?? 'adamw');
  const device = findDevice(options.device ?? 'auto');
  const n = Number(options.n ?? (device.kind === 'cpu' ? 2 ** 24 : 2 ** 28));
  const counts = (options.threads ?? String(threads())).split(',').map(Number);
  const host = onHost(rule, device, n, counts);
  if (device.kind === 'cpu') return { n, host };
  const make: Make = (dtype, size) => Tensor.empty([size], dtype, device);
  const { values, grad, args } = operandsOf(rule, make, n);
  for (const out of values) {
    kernels.randomUniform({ out, low: 1e-6, high: 0.01, seed: 1, offset: 1, ...inOrder });
  }
  kernels.randomNormal({ out: grad, mean: 0, stddev: 1, seed: 2, offset: 1, ...inOrder });
  const ms = time(() => {
    rule.run(args);
    device.synchronize();
  }, 20);
  return { n, host, device: { ms, tb_per_s: (bytesPerParameter(rule) * n) / ms / 1e9 } };
}

function ruleOf(name: string): Rule {
  const rule = rules[name];
  if (rule) return rule;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'bench adam --rule',
    expected: Object.keys(rules).join(', '),
    got: name,
  });
}
