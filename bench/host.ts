// Host cost of an eager op: JavaScript, tape, memory and boundary, over the bare launch below the
// boundary.
import { addon } from '../lib/runtime/addon.js';
import { type Device, device as findDevice } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import { add, layerNorm, matmul, noGrad, Scope, Tensor, within } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

const rounds = 200;
const perRound = 200;

/** Median microseconds per call of `op`, every round in a scope of its own on a drained device. */
function cost(op: () => unknown, drain: () => void): number {
  const samples: number[] = [];
  const scope = new Scope();
  for (let round = 0; round < rounds; ++round) {
    drain();
    const start = process.hrtime.bigint();
    within(scope, () => {
      for (let i = 0; i < perRound; ++i) op();
    });
    samples.push(Number(process.hrtime.bigint() - start) / 1000 / perRound);
    scope.release();
  }
  return median(samples.slice(rounds / 4));
}

/**
 * What one launch of the op costs in a native loop; `prepare` leaves its arguments in the block.
 */
function launchCost(device: Device, op: string, prepare: () => void): number {
  const names: readonly string[] = kernels.opNames;
  const samples: number[] = [];
  for (let round = 0; round < rounds; ++round) {
    prepare();
    device.synchronize();
    samples.push(addon.timeOp(names.indexOf(op), device.compute.handle, perRound));
  }
  return median(samples.slice(rounds / 4));
}

/**
 * Prints the eager and the bare cost of add with a gradient and without, and of a small layer norm
 * and matmul.
 */
export function hostBench(options: Options): object {
  const device = findDevice(options.device ?? 'auto');
  const drain = (): void => device.synchronize();
  const a = Tensor.from([1], { device }).keep();
  const b = Tensor.from([2], { device }).keep().requireGrad();
  const out = Tensor.from([0], { device }).keep();
  const x = Tensor.from(new Float32Array(64), { shape: [8, 8], device })
    .keep()
    .requireGrad();
  const w = Tensor.from(new Float32Array(8), { device }).keep().requireGrad();
  const launch = launchCost(device, 'Binary', () =>
    kernels.binary({ a, b, out, op: 'add', accumulate: false }),
  );
  const eager = cost(() => add(a, b), drain);
  return {
    device: device.name,
    unit: 'microseconds per op, median',
    add_bare_launch: launch,
    add_kernel_call: cost(() => kernels.binary({ a, b, out, op: 'add', accumulate: false }), drain),
    add_no_grad: cost(() => noGrad(() => add(a, b)), drain),
    add_recorded: eager,
    layer_norm_recorded: cost(() => layerNorm(x, w, w), drain),
    matmul_recorded: cost(() => matmul(x, x), drain),
    host_cost_on_top_of_launch: eager - launch,
  };
}
