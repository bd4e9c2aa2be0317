// The micro-batches to try, and the number of micro-batches per step.
import type { ResolvedConfig } from '../../types/config.js';
import { coerceValue } from '../config/coerce.js';
import { configSchema, type Section } from '../config/schema.js';
import { DsError } from '../errors.js';
import { flagOf, type Mappings, numberOf } from './program-arguments.js';

export const MICRO = 'train_micro_batch_size_per_gpu';
export const STEPS = 'gradient_accumulation_steps';
export const TOTAL = 'train_batch_size';

/** The batch sizes that the user sets. */
export interface BatchRequest {
  /** The only micro-batches to try, or null to search. */
  only: readonly number[] | null;
  /** The smallest micro-batch of the search. */
  min: number;
  steps: number;
  /** Samples per step on all ranks, or null if open. */
  total: number | null;
}

const isSize = (value: unknown): value is number =>
  Number.isSafeInteger(value) && Number(value) > 0;

/** Throws DS_CONFIG if a size is not a positive integer, DS_ARGUMENT if an argument is 0. */
export function requestedBatches(
  file: Section,
  settings: ResolvedConfig['autotuning'],
  args: readonly string[],
  mappings: Mappings,
): BatchRequest {
  const micro = file[MICRO];
  if (Array.isArray(micro) && (micro.length === 0 || !micro.every(isSize))) {
    throw refusedError(MICRO, 'positive whole numbers', micro);
  }
  const only = Array.isArray(micro) ? [...new Set(micro as number[])].sort((a, b) => b - a) : null;
  const givenNumber = (key: string): number | null => {
    const flag = flagOf(mappings, key);
    return configuredSize(file, key) ?? (flag === null ? null : numberOf(args, flag));
  };
  return {
    only,
    min: only?.at(-1) ?? givenNumber(MICRO) ?? settings.min_train_micro_batch_size_per_gpu,
    steps: givenNumber(STEPS) ?? 1,
    total: configuredSize(file, TOTAL),
  };
}

/** Null if `file` leaves the key open. */
function configuredSize(file: Section, key: string): number | null {
  const given = file[key];
  const value = coerceValue(given, configSchema.properties?.[key] ?? {});
  if (isSize(value)) return value;
  if (value === undefined || value === null || value === 'auto') return null;
  throw refusedError(key, 'a positive whole number, or "auto"', given);
}

function refusedError(key: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_CONFIG', op: key, expected, got: JSON.stringify(got) });
}

/** Returns micro-batches from the largest to the smallest: the minimum, doubled up to the limit. */
export function microBatches(
  request: BatchRequest,
  settings: ResolvedConfig['autotuning'],
  ranks: number,
): number[] {
  const { only, min, total } = request;
  const { max_train_batch_size: max, max_train_micro_batch_size_per_gpu: limit } = settings;
  const perRank = total === null ? null : total / ranks;
  const batchOf = (size: number): number =>
    size * ranks * accumulationOf(request, settings, { size, ranks });
  const mayBe = (size: number): boolean =>
    (perRank === null || perRank % size === 0) && (max === null || batchOf(size) <= max);
  if (only) return only.filter(mayBe);
  const sizes: number[] = [];
  for (let size = min; size <= limit; size *= 2) sizes.push(size);
  return sizes.filter(mayBe).reverse();
}

/**
 * Returns the micro-batches per step, by the first rule that applies:
 *
 * - `train_batch_size` is set: as many as give that batch.
 * - `max_train_batch_size` is set: as many as it allows.
 * - Otherwise: as many as the user sets.
 *
 * Source: DeepSpeed, which ignores train_batch_size.
 */
export function accumulationOf(
  { steps, total }: BatchRequest,
  { max_train_batch_size: max, min_train_batch_size: min }: ResolvedConfig['autotuning'],
  { size, ranks }: { size: number; ranks: number },
): number {
  const samples = size * ranks;
  if (total !== null) return total / samples;
  const wanted = max === null ? steps : Math.floor(max / samples);
  return Math.max(wanted, Math.ceil(min / samples));
}
