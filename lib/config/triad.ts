// Completes the batch sizes: train_batch_size = micro-batch x accumulation steps x world size.
// Source: DeepSpeed runtime/config.py, _set_batch_related_parameters.

import { DsError } from '../errors.js';
import { required } from '../runtime/required.js';
import type { Section } from './schema.js';

export interface Triad {
  train_batch_size: number;
  train_micro_batch_size_per_gpu: number;
  gradient_accumulation_steps: number;
}

/** The keys in the order of the formula. */
export const triadKeys = [
  'train_batch_size',
  'train_micro_batch_size_per_gpu',
  'gradient_accumulation_steps',
] as const;

/** Removes batch sizes that are null: DeepSpeed and Hugging Face treat them as not given. */
export function dropNullSizes(value: Section): void {
  for (const key of triadKeys) if (value[key] === null) delete value[key];
}

/**
 * Completes the given batch sizes for `worldSize` data ranks by DeepSpeed's rules and floor
 * divisions. Throws DS_CONFIG for sizes that do not divide, with the three values, the derived one,
 * and values that fit.
 */
export function resolveTriad(sizes: Partial<Triad>, worldSize: number): Triad {
  const { train_batch_size: total, train_micro_batch_size_per_gpu: micro } = sizes;
  if (total === undefined && micro === undefined) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'train_batch_size',
      expected: 'train_batch_size or train_micro_batch_size_per_gpu',
      got:
        sizes.gradient_accumulation_steps === undefined
          ? 'neither'
          : 'gradient_accumulation_steps alone',
      hint: 'Set train_micro_batch_size_per_gpu to the samples of one forward on one device.',
    });
  }
  const triad = complete(sizes, worldSize);
  const product =
    triad.train_micro_batch_size_per_gpu * triad.gradient_accumulation_steps * worldSize;
  if (product !== triad.train_batch_size || product <= 0)
    throw mismatchError(sizes, triad, worldSize);
  return triad;
}

function complete(sizes: Partial<Triad>, worldSize: number): Triad {
  const total = sizes.train_batch_size;
  let micro = sizes.train_micro_batch_size_per_gpu;
  let steps = sizes.gradient_accumulation_steps;
  if (total !== undefined && micro !== undefined) {
    steps ??= Math.floor(Math.floor(total / micro) / worldSize);
  } else if (total !== undefined) {
    steps ??= 1;
    micro = Math.floor(Math.floor(total / worldSize) / steps);
  }
  steps ??= 1;
  const known = required(micro);
  return {
    train_batch_size: total ?? known * steps * worldSize,
    train_micro_batch_size_per_gpu: known,
    gradient_accumulation_steps: steps,
  };
}

function mismatchError(sizes: Partial<Triad>, triad: Triad, worldSize: number): DsError {
  const [total, micro, steps] = triadKeys.map(
    (name) => `${triad[name]}${sizes[name] === undefined ? ' (derived)' : ''}`,
  );
  const { train_micro_batch_size_per_gpu: perDevice, gradient_accumulation_steps: times } = sizes;
  const unit = (perDevice ?? 1) * (times ?? 1) * worldSize;
  const nearest = Math.max(1, Math.round(triad.train_batch_size / unit)) * unit;
  const determined = perDevice !== undefined && times !== undefined;
  return new DsError({
    code: 'DS_CONFIG',
    op: 'train_batch_size',
    expected: 'train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size',
    got: `${total} != ${micro} x ${steps} x ${worldSize}`,
    hint: determined
      ? `With these two it is ${unit}: set it to this value, or remove one of the three keys.`
      : `It must be a multiple of ${unit}: ${nearest} would fit.`,
  });
}
