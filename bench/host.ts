// Measures the host time of an eager op beyond the kernel launch (JavaScript, tape, memory, addon),
// and the host time of a layer.
import { initialize } from '../lib/index.js';
import { GPT2 } from '../lib/models/index.js';
import { addon } from '../lib/runtime/addon.js';
import { ownCalls, runOpsBy } from '../lib/runtime/call.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { add, layerNorm, matmul, noGrad, Scope, Tensor, within } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

const rounds = 200;
const perRound = 200;

/** Microseconds per call, in each round. */
type Samples = readonly number[];

/** Measures a round of `op` in its own scope. */
function eagerly(op: () => unknown): () => number {
  const scope = new Scope();
  return () => {
    const start = process.hrtime.bigint();
    within(scope, () => {
      for (let i = 0; i < perRound; ++i) op();
    });
    const spent = Number(process.hrtime.bigint() - start);
    scope.release();
    return spent / 1000 / perRound;
  };
}

/**
 * Measures a round of launches of the op in a native loop; `prepare` writes its arguments into the
 * block.
 */
function natively(device: Device, op: string, prepare: () => void): () => number {
  const number = (kernels.opNames as readonly string[]).indexOf(op);
  return () => {
    prepare();
    device.synchronize();
    return addon.timeOp(number, device.compute.handle, perRound);
  };
}

/**
 * Samples of each case, on a drained device. A round takes one sample of every case, so a change of
 * the processor's speed affects all cases. The first quarter warms up.
 */
function measure<Case extends string>(
  device: Device,
  cases: Readonly<Record<Case, () => number>>,
): Record<Case, Samples> {
  const names = Object.keys(cases) as Case[];
  const samples = Object.fromEntries(names.map((name) => [name, [] as number[]]));
  for (let round = 0; round < rounds; ++round) {
    for (const name of names) {
      device.synchronize();
      samples[name]?.push(cases[name]());
    }
  }
  const warm = (name: Case): [Case, Samples] => [name, samples[name]?.slice(rounds / 4) ?? []];
  return Object.fromEntries(names.map(warm)) as Record<Case, Samples>;
}

const layers = 24;
/** Micro-batches per training step; many of them hide the work done once per step. */
const micros = 16;
const steps = 12;

/**
 * Host microseconds of forward and backward of a GPT-2 block with ops that do nothing: the cost of
 * JavaScript and of memory allocation.
 */
async function layerWithoutOps(device: Device): Promise<number> {
  const model = new GPT2({ vocabSize: 512, maxSeq: 8, layers, heads: 4, channels: 128 });
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: 1,
      gradient_accumulation_steps: micros,
      optimizer: { type: 'AdamW' },
      bf16: { enabled: true },
    },
  });
  const tokens = Tensor.from(new Int32Array(8), { shape: [1, 8], device }).keep();
  const step = (): void => {
    for (let micro = 0; micro < micros; ++micro) {
      engine.backward(engine.forward<Tensor>(tokens, tokens));
      engine.step();
    }
  };
  step();
  const times: number[] = [];
  runOpsBy({ run() {}, runOnHost() {} });
  try {
    for (let i = 0; i < steps; ++i) {
      const start = performance.now();
      step();
      times.push((1000 * (performance.now() - start)) / (micros * layers));
    }
  } finally {
    runOpsBy(ownCalls);
  }
  engine.destroy();
  tokens.dispose();
  return median(times.slice(steps / 4));
}

/**
 * Prints the eager and the native cost of add, a small layer norm and a small matmul, and the cost
 * of a layer without its ops.
 */
export async function hostBench(options: Options): Promise<object> {
  const device = findDevice(options.device ?? 'auto');
  const a = Tensor.from([1], { device }).keep();
  const b = Tensor.from([2], { device }).keep().requireGrad();
  const out = Tensor.from([0], { device }).keep();
  const x = Tensor.from(new Float32Array(64), { shape: [8, 8], device })
    .keep()
    .requireGrad();
  const w = Tensor.from(new Float32Array(8), { device }).keep().requireGrad();
  const kernelCall = (): void => kernels.binary({ a, b, out, op: 'add', accumulate: false });
  const samples = measure(device, {
    add_bare_launch: natively(device, 'Binary', kernelCall),
    add_kernel_call: eagerly(kernelCall),
    add_no_grad: eagerly(() => noGrad(() => add(a, b))),
    add_recorded: eagerly(() => add(a, b)),
    layer_norm_recorded: eagerly(() => layerNorm(x, w, w)),
    matmul_recorded: eagerly(() => matmul(x, x)),
  });
  const medians = Object.entries(samples).map(([name, each]) => [name, median(each)]);
  const { add_bare_launch: bare, add_recorded: recorded } = samples;
  return {
    device: device.name,
    unit: 'microseconds per op, median of rounds that have one sample of each; and per layer',
    ...Object.fromEntries(medians),
    host_cost_on_top_of_launch: median(recorded.map((cost, i) => cost - (bare[i] as number))),
    layer_without_ops: await layerWithoutOps(device),
  };
}
