// Gradient checks: finite differences in f64 on the CPU, the CPU's f32 results on any other device.
import assert from 'node:assert/strict';
import { cpu, type Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import { numel } from '../../lib/runtime/view.js';
import {
  backward,
  getRandomState,
  liveTensors,
  scope,
  seed,
  setRandomState,
  Tensor,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

/** A differentiable input: uniform in [low, high); `strided` passes it as a transposed view. */
export interface Input {
  shape: readonly number[];
  low?: number;
  high?: number;
  strided?: boolean;
  /** False: the input requires no gradient. */
  grad?: boolean;
}

export interface GradientCheck {
  /** Which op function this is about. */
  op: string;
  title?: string;
  inputs: readonly Input[];
  run(...inputs: Tensor[]): Tensor | Tensor[];
  /** Outputs without a seed: their gradient is missing. */
  dropped?: readonly number[];
  /** `run` passes a function that reads an input again in backward, which has to be there then. */
  rereads?: boolean;
}

/** Numbers in [0, 1) from a string, the same on every run. */
export function generator(text: string): () => number {
  let state = 0x9e3779b9;
  for (const char of text) state = Math.imul(state ^ char.charCodeAt(0), 0x01000193) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const titleOf = ({ op, title }: GradientCheck): string =>
  `gradient of ${op}${title ? `: ${title}` : ''}`;

/** The shape that the leaf is stored in: last two dims swapped where the input is to be strided. */
function storedShape({ shape, strided }: Input): number[] {
  const out = [...shape];
  if (strided) out.push(...out.splice(-2).reverse());
  return out;
}

function drawInputs(check: GradientCheck): number[][] {
  const random = generator(titleOf(check));
  return check.inputs.map(({ shape, low = -1, high = 1 }) =>
    Array.from({ length: numel(shape) }, () => low + random() * (high - low)),
  );
}

interface Setting {
  device: Device;
  dtype: DType;
  values: readonly (readonly number[])[];
}

/**
 * leaf: plain; twice: gradients are added to; shared: every input has a second use behind the op.
 */
type Mode = 'leaf' | 'twice' | 'shared';

interface Outcome {
  outputs: number[][];
  gradients: (number[] | null)[];
}

function leavesOf(check: GradientCheck, { device, dtype, values }: Setting): Tensor[] {
  return check.inputs.map((input, i) => {
    const shape = storedShape(input);
    const leaf = Tensor.from(Float64Array.from(values[i] as number[]), {
      shape,
      device,
      dtype: 'f64',
    });
    const cast =
      dtype === 'f64' ? leaf : Tensor.from(values[i] as number[], { shape, device, dtype });
    return cast.requireGrad(input.grad ?? true);
  });
}

function seedOf(output: Tensor, index: number): Tensor {
  const random = generator(`seed ${index}`);
  const values = Array.from({ length: output.numel }, () => random() * 2 - 1);
  const { shape, dtype, device } = output;
  if (dtype === 'f64') return Tensor.from(Float64Array.from(values), { shape, dtype, device });
  return Tensor.from(values, { shape, dtype, device });
}

function outputsOf(check: GradientCheck, inputs: Tensor[]): Tensor[] {
  seed(7);
  const result = check.run(...inputs);
  return Array.isArray(result) ? result : [result];
}

const asPassed = (check: GradientCheck, leaves: Tensor[]): Tensor[] =>
  leaves.map((leaf, i) => (check.inputs[i]?.strided ? leaf.transpose() : leaf));

function evaluate(check: GradientCheck, setting: Setting, mode: Mode): Outcome {
  return scope(() => {
    const leaves = leavesOf(check, setting);
    const once = (): Tensor[] => {
      const passed = asPassed(check, leaves);
      const inputs =
        mode === 'shared' ? passed.map((x) => (x.requiresGrad ? x.mul(1) : x)) : passed;
      const outputs = outputsOf(check, inputs);
      const expected = outputs.filter((out, i) => out.gradFn && !check.dropped?.includes(i));
      const seeds = outputs.map(seedOf).filter((_, i) => expected.includes(outputs[i] as Tensor));
      const extra = inputs
        .filter((x) => mode === 'shared' && x.requiresGrad)
        .map((x) => x.square().sum());
      backward([...expected, ...extra], seeds);
      return outputs;
    };
    const outputs = once().map((out) => out.toArray());
    if (mode === 'twice') once();
    const gradients = leaves.map((leaf) => {
      const values = leaf.grad
        ? leaf.grad.toArray()
        : leaf.requiresGrad
          ? new Array(leaf.numel).fill(0)
          : null;
      leaf.grad?.release();
      leaf.grad = null;
      return values;
    });
    return { outputs, gradients };
  });
}

/** sum(outputs * seeds), in f64. */
function objective(check: GradientCheck, setting: Setting): number {
  return scope(() => {
    const outputs = outputsOf(check, asPassed(check, leavesOf(check, setting)));
    let total = 0;
    outputs.forEach((out, i) => {
      if (!out.gradFn || check.dropped?.includes(i)) return;
      const weights = seedOf(out, i).toArray();
      for (const [k, value] of out.toArray().entries()) total += value * (weights[k] as number);
    });
    return total;
  });
}

function finiteDifferences(check: GradientCheck, values: number[][]): (number[] | null)[] {
  const step = 1e-5;
  return check.inputs.map((input, i) => {
    if (input.grad === false) return null;
    const column = values[i] as number[];
    return column.map((value, k) => {
      const at = (x: number): number => {
        column[k] = x;
        const result = objective(check, { device: cpu(), dtype: 'f64', values });
        column[k] = value;
        return result;
      };
      return (at(value + step) - at(value - step)) / (2 * step);
    });
  });
}

export function assertClose(
  actual: readonly number[],
  expected: readonly number[],
  tolerance: number,
  label: string,
): void {
  assert.equal(actual.length, expected.length, `${label}: length`);
  const largest = expected.reduce((max, x) => Math.max(max, Math.abs(x)), 1e-3);
  expected.forEach((value, i) => {
    const error = Math.abs((actual[i] as number) - value) / largest;
    assert.ok(error <= tolerance, `${label}: element ${i} is ${actual[i]}, expected ${value}`);
  });
}

/** Gradient of input `only`. No other input requires one, and only the tape holds the inputs. */
function gradientAlone(check: GradientCheck, setting: Setting, only: number): number[] {
  return scope(() => {
    const leaves = leavesOf(check, setting);
    for (const [i, leaf] of leaves.entries()) leaf.requireGrad(i === only);
    const outputs = scope(() => {
      const passed = asPassed(check, leaves);
      return outputsOf(check, check.rereads ? passed : passed.map((x) => x.mul(1)));
    });
    const expected = outputs.filter((out, i) => out.gradFn && !check.dropped?.includes(i));
    const seeds = outputs.map(seedOf).filter((_, i) => expected.includes(outputs[i] as Tensor));
    backward(expected, seeds);
    const leaf = leaves[only] as Tensor;
    const values = leaf.grad?.toArray() ?? new Array<number>(leaf.numel).fill(0);
    leaf.grad?.release();
    leaf.grad = null;
    return values;
  });
}

function compareModes(
  check: GradientCheck,
  setting: Setting,
  expected: (number[] | null)[],
  tolerance: number,
): void {
  const stored = setting.values;
  for (const mode of ['leaf', 'twice', 'shared'] as const) {
    const { gradients } = evaluate(check, setting, mode);
    gradients.forEach((gradient, i) => {
      const base = expected[i];
      assert.equal(gradient === null, base === null || base === undefined);
      if (!gradient || !base) return;
      const expectedValues = base.map((g, k) => {
        if (mode === 'twice') return 2 * g;
        return mode === 'shared' ? g + 2 * (stored[i]?.[k] as number) : g;
      });
      assertClose(gradient, expectedValues, tolerance, `input ${i}, ${mode}`);
    });
  }
  expected.forEach((expected, i) => {
    if (!expected) return;
    assertClose(gradientAlone(check, setting, i), expected, tolerance, `input ${i}, alone`);
  });
}

function runCheck(check: GradientCheck, device: Device): void {
  const random = getRandomState();
  const tensors = liveTensors();
  const { liveBuffers } = device.memory;
  const values = drawInputs(check);
  if (device.kind === 'cpu') {
    const setting = { device, dtype: 'f64', values } as const;
    compareModes(check, setting, finiteDifferences(check, values), 1e-6);
  } else {
    const oracle = evaluate(check, { device: cpu(), dtype: 'f32', values }, 'leaf');
    const setting = { device, dtype: 'f32', values } as const;
    const { outputs } = evaluate(check, setting, 'leaf');
    for (const [i, out] of outputs.entries()) {
      assertClose(out, oracle.outputs[i] as number[], 1e-5, `output ${i}`);
    }
    compareModes(check, setting, oracle.gradients, 1e-4);
  }
  setRandomState(random);
  assert.equal(liveTensors(), tensors, 'live tensors');
  assert.equal(device.memory.liveBuffers, liveBuffers, 'live buffers');
}

export function gradientCases(checks: readonly GradientCheck[]): Case[] {
  return checks.map((check) => ({
    name: titleOf(check),
    run: (device) => runCheck(check, device),
  }));
}

/** An index tensor on the device of `like`. */
export function indices(values: number[], shape: readonly number[], like: Tensor): Tensor {
  return Tensor.from(Int32Array.from(values), { shape, device: like.device });
}
