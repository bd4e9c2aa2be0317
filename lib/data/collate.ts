// From a list of samples to a batch: stacks what is inside them, keeping their structure.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { NumericArray } from '../runtime/dtype.js';
import { noGrad, scope, stack, Tensor } from '../tensor/index.js';

/** Samples of one structure, with a tensor of shape [B, ...] in the place of every leaf. */
export type Batched<Sample> = unknown extends Sample
  ? unknown
  : Sample extends number | NumericArray | Tensor
    ? Tensor
    : { [K in keyof Sample]: Batched<Sample[K]> };

/**
 * Stacks along a new first dim: numbers (f32), typed arrays (their own dtype) and tensors; arrays
 * and plain objects of these, at any depth, are batched part by part. The caller owns the tensors,
 * which are on `device`. Throws DS_DATA when samples differ in structure or length.
 */
export function collate<Sample>(samples: readonly Sample[], device: Device): Batched<Sample> {
  return batch(samples, device, 'sample') as Batched<Sample>;
}

function batch(samples: readonly unknown[], device: Device, place: string): unknown {
  const first = samples[0];
  if (typeof first === 'number') {
    requireAll(samples, place, 'a number', (x) => typeof x === 'number');
    return Tensor.from(Float32Array.from(samples as number[]), { device });
  }
  if (ArrayBuffer.isView(first)) return stackArrays(samples as NumericArray[], device, place);
  if (first instanceof Tensor) {
    requireAll(samples, place, 'a tensor', (x) => x instanceof Tensor);
    return stackTensors(samples as Tensor[], device);
  }
  if (typeof first !== 'object' || first === null) throw mixed(place, 'numbers or arrays', first);
  const keys = Object.keys(first);
  const sameKeys = (x: unknown): boolean =>
    typeof x === 'object' && x !== null && Object.keys(x).join() === keys.join();
  requireAll(samples, place, `an object with ${keys.join(', ')}`, sameKeys);
  const parts = keys.map((key) => {
    const inner = samples.map((sample) => (sample as Record<string, unknown>)[key]);
    return [key, batch(inner, device, `${place}.${key}`)] as const;
  });
  return Array.isArray(first) ? parts.map(([, part]) => part) : Object.fromEntries(parts);
}

function stackArrays(samples: readonly NumericArray[], device: Device, place: string): Tensor {
  const first = samples[0] as NumericArray;
  const { length } = first;
  requireAll(samples, place, `${length} values of one type`, (x) => {
    return x?.constructor === first.constructor && (x as NumericArray).length === length;
  });
  const Type = first.constructor as new (length: number) => Int32Array;
  const all = new Type(samples.length * length);
  samples.forEach((sample, i) => {
    all.set(sample as Int32Array, i * length);
  });
  return Tensor.from(all, { shape: [samples.length, length], device });
}

function stackTensors(samples: readonly Tensor[], device: Device): Tensor {
  return noGrad(() => scope(() => stack(samples).to(device)));
}

function requireAll(
  samples: readonly unknown[],
  place: string,
  expected: string,
  test: (sample: unknown) => boolean,
): void {
  const odd = samples.findIndex((sample) => !test(sample));
  if (odd >= 0) throw mixed(`${place}[${odd}]`, expected, samples[odd]);
}

function mixed(op: string, expected: string, value: unknown): DsError {
  const length = ArrayBuffer.isView(value) ? ` of ${(value as NumericArray).length}` : '';
  return new DsError({
    code: 'DS_DATA',
    op,
    expected,
    got: `${value?.constructor?.name ?? String(value)}${length}`,
    hint: 'Samples of a batch have one structure; pass `collate` to combine others.',
  });
}
