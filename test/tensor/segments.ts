// Helpers of the checkpointing cases: configurations, both stores, gradients against a plain run.
import assert from 'node:assert/strict';
import * as checkpointing from '../../lib/checkpointing.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  checkpoint,
  liveTensors,
  randn,
  scope,
  seed,
  type Tensor,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

export type Options = checkpointing.CheckpointingOptions;

/** Runs `body` under a configuration and restores the defaults. */
export function under<T>(options: Options, body: () => T): T {
  checkpointing.configure(options);
  try {
    return body();
  } finally {
    checkpointing.reset();
  }
}

/** A case that must give the same result with inputs on the device and in host memory. */
export function bothStores(name: string, run: (device: Device) => void): Case[] {
  return [false, true].map((cpuCheckpointing) => ({
    name: `${name}, inputs ${cpuCheckpointing ? 'in host memory' : 'on the device'}`,
    run: (device: Device) => under({ cpuCheckpointing }, () => run(device)),
  }));
}

export const leaf = (shape: readonly number[], device: Device): Tensor =>
  randn(shape, { device }).keep().requireGrad();

/** One per leaf; null without a gradient. */
export type Gradients = readonly (number[] | null)[];

/** The gradients of `leaves` after `loss().backward()`, as numbers; everything made is freed. */
export function gradients(leaves: readonly Tensor[], loss: () => Tensor): Gradients {
  scope(() => loss().backward());
  return leaves.map((each) => {
    const values = each.grad?.toArray() ?? null;
    each.grad?.release();
    each.grad = null;
    return values;
  });
}

/** checkpoint(fn, ...) and fn(...) give the same gradients; no memory is left. */
export function equalsPlain(
  leaves: readonly Tensor[],
  loss: (run: typeof checkpoint) => Tensor,
  device: Device,
  compare: (got: Gradients, expected: Gradients) => void = assert.deepEqual,
): void {
  const plain = ((fn: (...inputs: unknown[]) => unknown, ...inputs: unknown[]) =>
    fn(...inputs)) as unknown as typeof checkpoint;
  seed(5);
  const expected = gradients(leaves, () => loss(plain));
  const tensors = liveTensors();
  const once = (): Gradients => {
    seed(5);
    return gradients(leaves, () => loss(checkpoint));
  };
  compare(once(), expected);
  const memory = device.memory.inUse;
  compare(once(), expected);
  assert.equal(device.memory.inUse, memory, 'the second run leaves as much memory as the first');
  assert.equal(liveTensors(), tensors);
  for (const each of leaves) each.dispose();
}
