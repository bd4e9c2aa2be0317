// Compares a rank with split layers against whole layers: equal bits, or numbers within a
// tolerance.
import type { ProcessGroup } from '../../lib/comm/index.js';
import { cpu, type Device, type nn, noGrad, scope, Tensor } from '../../lib/index.js';

/** The device of the rank. */
let home: Device = cpu();

/** Creates all tensors on the device from now on. */
export function computeOn(device: Device): void {
  home = device;
}

/** Failed checks as text, and the number of compared values. */
export class Checks {
  readonly failures: string[] = [];
  count = 0;

  /** Equal bits, except for the sign of 0. */
  same(label: string, got: readonly number[], expected: readonly number[]): void {
    this.count++;
    const at = expected.findIndex((value, i) => got[i] !== value);
    if (got.length === expected.length && at < 0) return;
    this.failures.push(
      `${label}: element ${at} of ${expected.length}: ${got[at]}, not ${expected[at]}`,
    );
  }

  /**
   * Within rtol 1e-5 and 1e-6 of the largest of `all` (default: `expected`); 10 times that on a
   * GPU.
   */
  near(
    label: string,
    got: readonly number[],
    expected: readonly number[],
    all: readonly number[] = expected,
  ): void {
    this.count++;
    const largest = all.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    const wide = home.kind === 'cpu' ? 1 : 10;
    const isNear = (value: number, i: number): boolean =>
      Math.abs((got[i] ?? Number.NaN) - value) <= wide * (1e-5 * Math.abs(value) + 1e-6 * largest);
    const at = expected.findIndex((value, i) => !isNear(value, i));
    if (got.length === expected.length && at < 0) return;
    const text = `${got[at]}, not ${expected[at]} (of ${expected.length}, largest ${largest})`;
    this.failures.push(`${label}: element ${at} of ${got.length}: ${text}`);
  }

  /** The call throws a message that contains all of these words. */
  throws(label: string, body: () => unknown, ...words: readonly string[]): void {
    this.count++;
    try {
      body();
    } catch (error) {
      const text = `${(error as { code?: string }).code}: ${(error as Error).message}`;
      const missing = words.find((word) => !text.includes(word));
      if (missing !== undefined) this.failures.push(`${label}: "${text}" without ${missing}`);
      return;
    }
    this.failures.push(`${label}: nothing thrown`);
  }
}

const boxOf = (fullTensor: Tensor, { offset, shape }: nn.Box): Tensor =>
  shape.reduce<Tensor>((from, size, d) => from.narrow(d, offset[d] as number, size), fullTensor);

/** The elements of a whole tensor that belong to `parameter`. */
export function partOf(fullTensor: Tensor, { region }: nn.Parameter): number[] {
  return noGrad(() =>
    scope(() =>
      region.boxes.flatMap((box) => boxOf(fullTensor.detach(), box).contiguous().toArray()),
    ),
  );
}

/** Numbers of a fixed sequence in [-1.5, 1.5), equal on every rank. */
export function numbers(shape: readonly number[], from = 0): Tensor {
  const count = shape.reduce((a, b) => a * b, 1);
  const values = Array.from({ length: count }, (_, i) => {
    const x = Math.sin((i + 1) * 12.9898 + from * 78.233) * 43758.5453;
    return 3 * (x - Math.floor(x)) - 1.5;
  });
  return Tensor.from(values, { shape, device: home });
}

/** Tokens below `classes`, equal on every rank. */
export function tokens(shape: readonly number[], classes: number, from = 0): Tensor {
  const count = shape.reduce((a, b) => a * b, 1);
  const values = Array.from({ length: count }, (_, i) => ((i + from) * 7919 + 13 * from) % classes);
  return Tensor.from(Int32Array.from(values), { shape, device: home });
}

/** Compares gradients of the whole model by name with their parts in the split one. */
export function compareGradients(
  checks: Checks,
  name: string,
  fullModel: nn.Module,
  part: nn.Module,
): void {
  const expected = new Map(fullModel.namedParameters());
  checks.same(`${name} names`, [[...part.namedParameters()].length], [expected.size]);
  for (const [path, parameter] of part.namedParameters()) {
    const of = expected.get(path);
    if (!of?.grad || !parameter.grad) {
      checks.failures.push(`${name}: ${path} without a gradient`);
      continue;
    }
    const expectedValues = partOf(of.grad, parameter);
    checks.near(
      `${name} gradient of ${path}`,
      parameter.grad.toArray(),
      expectedValues,
      of.grad.toArray(),
    );
  }
}

/** Compares initial values of the whole model with the parts of the split one, bit for bit. */
export function compareWeights(
  checks: Checks,
  name: string,
  fullModel: nn.Module,
  part: nn.Module,
): void {
  const expected = new Map(fullModel.namedParameters());
  for (const [path, parameter] of part.namedParameters()) {
    const of = expected.get(path) as nn.Parameter;
    checks.same(`${name} ${path}`, parameter.toArray(), partOf(of, parameter));
  }
}

/** Exactly one rank owns each element of every parameter. */
export function compareOwners(
  checks: Checks,
  name: string,
  part: nn.Module,
  group: ProcessGroup,
): void {
  for (const [path, parameter] of part.namedParameters()) {
    const { whole, boxes } = parameter.region;
    const size = whole.reduce((a, b) => a * b, 1);
    const owned = Tensor.from(new Float32Array(size), { shape: whole, device: home });
    for (const box of parameter.isReplica ? [] : boxes) boxOf(owned, box).fill_(1);
    group.allReduce(owned).wait();
    checks.same(`${name} owners of ${path}`, owned.toArray(), new Array(size).fill(1));
    owned.dispose();
  }
}
