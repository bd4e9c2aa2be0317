// Chooses the micro-batch sizes to try, and the number of micro-batches per step.
import type { ResolvedConfig } from '../../types/config.js';
import { coerceValue } from '../config/coerce.js';
import { configSchema, type Section } from '../config/schema.js';
import { DsError } from '../errors.js';
import { findMappedFlag, type Mappings, numberOf } from './program-arguments.js';

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
  /** Samples per step on all ranks, or null if not set. */
  total: number | null;
}

const isSize = (value: unknown): value is number =>
  Number.isSafeInteger(value) && Number(value) > 0;

/**
 * Returns the batch sizes that the file and the program's arguments set. Throws DS_CONFIG if a size
 * is not a positive integer, DS_ARGUMENT if an argument is 0.
 */
export function readBatchRequest(
  file: Section,
  settings: ResolvedConfig['autotuning'],
  args: readonly string[],
  mappings: Mappings,
): BatchRequest {
  const micro = file[MICRO];
  if (Array.isArray(micro) && (micro.length === 0 || !micro.every(isSize))) {
    throw batchSizeError(MICRO, 'positive whole numbers', micro);
  }
  const only = Array.isArray(micro) ? [...new Set(micro as number[])].sort((a, b) => b - a) : null;
  const readNumber = (key: string): number | null => {
    const flag = findMappedFlag(mappings, key);
    return readSize(file, key) ?? (flag === null ? null : numberOf(args, flag));
  };
  return {
    only,
    min: only?.at(-1) ?? readNumber(MICRO) ?? settings.min_train_micro_batch_size_per_gpu,
    steps: readNumber(STEPS) ?? 1,
    total: readSize(file, TOTAL),
  };
}

/** Returns a batch size of `file`, or null if the file does not set it. */
function readSize(file: Section, key: string): number | null {
  const configured = file[key];
  const value = coerceValue(configured, configSchema.properties?.[key] ?? {});
  if (isSize(value)) return value;
  if (value === undefined || value === null || value === 'auto') return null;
  throw batchSizeError(key, 'a positive whole number, or "auto"', configured);
}

function batchSizeError(key: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_CONFIG', op: key, expected, got: JSON.stringify(got) });
}

/** Returns micro-batches from the largest to the smallest: the minimum, doubled up to the limit. */
export function listMicroBatches(
  request: BatchRequest,
  settings: ResolvedConfig['autotuning'],
  ranks: number,
): number[] {
  const { only, min, total } = request;
  const { max_train_batch_size: max, max_train_micro_batch_size_per_gpu: limit } = settings;
  const perRank = total === null ? null : total / ranks;
  const batchOf = (size: number): number =>
    size * ranks * chooseAccumulation(request, settings, { size, ranks });
  const isAllowed = (size: number): boolean =>
    (perRank === null || perRank % size === 0) && (max === null || batchOf(size) <= max);
  if (only) return only.filter(isAllowed);
  const sizes: number[] = [];
  for (let size = min; size <= limit; size *= 2) sizes.push(size);
  return sizes.filter(isAllowed).reverse();
}

/**
 * Returns the micro-batches per step, by the first rule that applies:
 *
 * - If `train_batch_size` is set: the number that gives that batch.
 * - If `max_train_batch_size` is set: the largest number that it permits.
 * - Otherwise: the number that the user sets.
 *
 * Source: DeepSpeed, which ignores train_batch_size.
 */
export function chooseAccumulation(
  { steps, total }: BatchRequest,
  { max_train_batch_size: max, min_train_batch_size: min }: ResolvedConfig['autotuning'],
  { size, ranks }: { size: number; ranks: number },
): number {
  const samples = size * ranks;
  if (total !== null) return total / samples;
  const allowed = max === null ? steps : Math.floor(max / samples);
  return Math.max(allowed, Math.ceil(min / samples));
}
