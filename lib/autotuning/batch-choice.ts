// Which micro-batches are tried, and how many of them make a step.
import type { ResolvedConfig } from '../../types/config.js';
import { coerced } from '../config/coerce.js';
import { configSchema, type Section } from '../config/schema.js';
import { DsError } from '../errors.js';
import { flagOf, type Mappings, numberOf } from './program-arguments.js';

export const MICRO = 'train_micro_batch_size_per_gpu';
export const STEPS = 'gradient_accumulation_steps';
export const TOTAL = 'train_batch_size';

/** What the user says of batches. */
export interface BatchWishes {
  /** The only micro-batches to try; null where they are searched. */
  only: readonly number[] | null;
  /** The smallest of those that are searched. */
  least: number;
  steps: number;
  /** Samples of a step on all ranks; null where it is open. */
  total: number | null;
}

const isSize = (one: unknown): one is number => Number.isSafeInteger(one) && Number(one) > 0;

/**
 * Throws DS_CONFIG for what are no numbers of samples and steps, DS_ARGUMENT for an argument of 0.
 */
export function batchWishes(
  file: Section,
  settings: ResolvedConfig['autotuning'],
  args: readonly string[],
  mappings: Mappings,
): BatchWishes {
  const micro = file[MICRO];
  if (Array.isArray(micro) && (micro.length === 0 || !micro.every(isSize))) {
    throw refused(MICRO, 'positive whole numbers', micro);
  }
  const only = Array.isArray(micro) ? [...new Set(micro as number[])].sort((a, b) => b - a) : null;
  const said = (key: string): number | null => {
    const flag = flagOf(mappings, key);
    return saidOf(file, key) ?? (flag === null ? null : numberOf(args, flag));
  };
  return {
    only,
    least: only?.at(-1) ?? said(MICRO) ?? settings.min_train_micro_batch_size_per_gpu,
    steps: said(STEPS) ?? 1,
    total: saidOf(file, TOTAL),
  };
}

/** Null where `file` leaves the key open. */
function saidOf(file: Section, key: string): number | null {
  const given = file[key];
  const value = coerced(given, configSchema.properties?.[key] ?? {});
  if (isSize(value)) return value;
  if (value === undefined || value === null || value === 'auto') return null;
  throw refused(key, 'a positive whole number, or "auto"', given);
}

function refused(key: string, expected: string, got: unknown): DsError {
  return new DsError({ code: 'DS_CONFIG', op: key, expected, got: JSON.stringify(got) });
}

/** Micro-batches from the largest to the smallest: the least one, doubled as long as it may be. */
export function microBatches(
  wishes: BatchWishes,
  settings: ResolvedConfig['autotuning'],
  ranks: number,
): number[] {
  const { only, least, total } = wishes;
  const { max_train_batch_size: most, max_train_micro_batch_size_per_gpu: limit } = settings;
  const perRank = total === null ? null : total / ranks;
  const batchOf = (size: number): number =>
    size * ranks * accumulationOf(wishes, settings, { size, ranks });
  const mayBe = (size: number): boolean =>
    (perRank === null || perRank % size === 0) && (most === null || batchOf(size) <= most);
  if (only) return only.filter(mayBe);
  const sizes: number[] = [];
  for (let size = least; size <= limit; size *= 2) sizes.push(size);
  return sizes.filter(mayBe).reverse();
}

/**
 * Micro-batches of a step: what makes up the batch that the file names, or the largest that it
 * allows, or as many as it says. Source: DeepSpeed, which leaves train_batch_size out of account.
 */
export function accumulationOf(
  { steps, total }: BatchWishes,
  { max_train_batch_size: most, min_train_batch_size: least }: ResolvedConfig['autotuning'],
  { size, ranks }: { size: number; ranks: number },
): number {
  const samples = size * ranks;
  if (total !== null) return total / samples;
  const wanted = most === null ? steps : Math.floor(most / samples);
  return Math.max(wanted, Math.ceil(least / samples));
}
