// Tests that every operation of docs/pytorch.md has PyTorch's f64 values and gradients: in f64 on
// the CPU, in f32 on every device.
import assert from 'node:assert/strict';
import { cpu, type Device } from '../../lib/runtime/device.js';
import {
  backward,
  getRandomState,
  liveTensors,
  scope,
  seed,
  setRandomState,
  Tensor,
} from '../../lib/tensor/index.js';
import golden from '../golden/operations.json';
import type { Case } from '../support/case.js';
import { type Draw, draws, type Inputs, operations } from './pytorch-operations.js';

interface Recorded {
  shape: number[];
  values: (number | null)[];
  gradients?: Record<string, number[]>;
}

type FloatDType = 'f32' | 'f64';
const recorded = golden.operations as Record<string, Recorded>;
/** Relative to the larger of 1 and the number. */
const TOLERANCE = { f64: 1e-10, f32: 2e-5 };
const OF_GRADIENTS = { f64: 1e-10, f32: 1e-4 };

function inputsOn(device: Device, dtype: FloatDType): Inputs {
  const floats = Object.entries(golden.inputs).map(([name, { shape, values }]) => {
    const numbers = dtype === 'f64' ? Float64Array.from(values) : Float32Array.from(values);
    return [name, Tensor.from(numbers, { shape, device, dtype }).requireGrad()];
  });
  const indices = Object.entries(golden.indices).map(([name, { shape, values }]) => [
    name,
    Tensor.from(Int32Array.from(values), { shape, device }),
  ]);
  return Object.fromEntries([...floats, ...indices]) as Inputs;
}

function requireNear(
  label: string,
  found: readonly number[],
  there: readonly (number | null)[],
  by: number,
): void {
  assert.equal(found.length, there.length, label);
  for (const [i, value] of found.entries()) {
    const expected = there[i] ?? Number.NaN;
    const isClose = Math.abs(value - expected) <= by * (1 + Math.abs(expected));
    assert.ok(isClose, `${label}, element ${i}: ${value} is not ${expected}`);
  }
}

function compare(name: string, device: Device, dtype: FloatDType): void {
  const run = operations[name];
  const there = recorded[name] as Recorded;
  assert.ok(run, name);
  scope(() => {
    const inputs = inputsOn(device, dtype);
    const out = run(inputs);
    const by = TOLERANCE[dtype];
    assert.deepEqual([...out.shape], there.shape);
    requireNear(`${dtype} value`, out.toArray(), there.values, by);
    assert.equal(
      Boolean(out.gradFn) && Boolean(there.gradients),
      Boolean(there.gradients),
      'gradient',
    );
    if (!there.gradients) return;
    const seeds = Array.from({ length: out.numel }, (_, i) => Math.cos(1.7 * i + 0.3));
    const numbers = dtype === 'f64' ? Float64Array.from(seeds) : Float32Array.from(seeds);
    backward([out], [Tensor.from(numbers, { shape: out.shape, device, dtype })]);
    for (const [input, values] of Object.entries(there.gradients)) {
      const { grad } = inputs[input as keyof Inputs];
      assert.ok(grad, `a gradient of ${input}`);
      requireNear(`${dtype} gradient of ${input}`, grad.toArray(), values, OF_GRADIENTS[dtype]);
    }
    for (const { grad } of Object.values(inputs)) grad?.release();
  });
}

/** Within its bounds, with its mean (the seed is fixed), and equal to the CPU. */
function checkDrawn(name: string, device: Device): void {
  const { run, low, high, mean } = draws[name] as Draw;
  const numbers = [device, cpu()].map((place) =>
    scope(() => {
      seed(5);
      return run(place).toArray();
    }),
  );
  const [found = [], there = []] = numbers;
  assert.ok(found.every((x) => x >= low && x <= high));
  const off = found.reduce((sum, x) => sum + x, 0) / found.length - mean;
  assert.ok(Math.abs(off) < (high - low) / 25, `the mean is off by ${off}`);
  requireNear(name, found, there, TOLERANCE.f32);
}

const recordedCase = (name: string, body: (device: Device) => void): Case => ({
  name: `as PyTorch: ${name}`,
  run(device) {
    const [before, state] = [liveTensors(), getRandomState()];
    body(device);
    setRandomState(state);
    assert.equal(liveTensors(), before, 'live tensors');
  },
});

export const cases: Case[] = [
  ...Object.keys(recorded).map((name) =>
    recordedCase(name, (device) => {
      if (device.kind === 'cpu') compare(name, device, 'f64');
      compare(name, device, 'f32');
    }),
  ),
  ...Object.keys(draws).map((name) => recordedCase(name, (device) => checkDrawn(name, device))),
];
