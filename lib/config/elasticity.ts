// Elasticity: selects a batch size that many numbers of ranks divide evenly, and the micro-batch
// size for the present number. Source: DeepSpeed elasticity/elasticity.py, versions 0.1 and 0.2.

import type { ResolvedValues } from '../../types/config.js';
import { required } from '../runtime/required.js';
import { coerceValue } from './coerce.js';
import { formatConfigValue } from './config-error.js';
import type { Draft } from './draft.js';
import type { Violation } from './rule.js';
import { isSection, propertyOf } from './schema.js';
import { type Triad, triadKeys } from './triad.js';

export type Elasticity = ResolvedValues['elasticity'];

/** A batch size, and the numbers of data ranks that divide it evenly, ascending. */
interface ElasticBatch {
  batch: number;
  ranks: readonly number[];
}

/** Highly composite numbers up to 720720, as listed by DeepSpeed. */
const HIGHLY_COMPOSITE = [
  1, 2, 4, 6, 12, 24, 36, 48, 60, 120, 180, 240, 360, 720, 840, 1260, 1680, 2520, 5040, 7560, 10080,
  15120, 20160, 25200, 27720, 45360, 50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640,
  498960, 554400, 665280, 720720,
];

/**
 * Removes batch sizes from `draft` if elasticity is enabled, because it selects them. Refuses them
 * too, unless ignore_non_elastic_batch_info is true. Source: DeepSpeed, which raises
 * ElasticityConfigError or warns.
 */
export function yieldToElasticity(draft: Draft): void {
  const { elasticity } = draft.value;
  if (!isSection(elasticity) || !isTrue(draft, 'enabled')) return;
  const isOverridden = isTrue(draft, 'ignore_non_elastic_batch_info');
  for (const key of triadKeys.filter((key) => draft.value[key] !== undefined)) {
    if (isOverridden) {
      draft.note('no-effect', [key], 'has no effect: elasticity chooses batch sizes.');
    } else {
      draft.refuse([key], {
        expected: 'no value, because elasticity selects batch sizes',
        got: formatConfigValue(draft.value[key]),
        hint: 'Leave it out, or set elasticity.ignore_non_elastic_batch_info to true.',
      });
    }
    delete draft.value[key];
  }
}

/** Returns whether `key` of the section is true, before its values are coerced. */
function isTrue({ value: { elasticity }, schema }: Draft, key: string): boolean {
  const property = propertyOf(propertyOf(schema, 'elasticity') ?? {}, key);
  const value = isSection(elasticity) ? elasticity[key] : undefined;
  return property !== undefined && coerceValue(value, property) === true;
}

/** Returns the batch for the ranks that the section expects. */
export function elasticBatch(section: Elasticity): ElasticBatch | Violation {
  const violation = checks.map((find) => find(section)).find((found) => found !== null);
  if (violation) return violation;
  const [node, perNode] = [nodeOf(section), dataRanksOfNode(section)];
  const nodes = {
    min: Math.max(1, Math.floor(section.min_gpus / node)),
    max: Math.floor(section.max_gpus / node),
  };
  const batch = chooseSharedBatch(section, Math.floor(largestBatch(section) / perNode), nodes);
  if (batch.ranks.length === 0) {
    return {
      path: ['elasticity', 'min_gpus'],
      expected: 'a range with a number of GPUs that divides a batch',
      got: `${section.min_gpus} to ${section.max_gpus}`,
      hint: `Raise max_gpus, lower min_gpus, or allow more than ${largestBatch(section)} samples.`,
    };
  }
  return { batch: batch.batch * perNode, ranks: batch.ranks.map((count) => count * perNode) };
}

/** Returns the batch sizes of `ranks` data ranks. */
export function elasticTriad(section: Elasticity, ranks: number): Triad | Violation {
  const shared = elasticBatch(section);
  if ('path' in shared) return shared;
  const batch = shared.ranks.includes(ranks) ? shared.batch : findOwnBatch(section, ranks);
  if (batch === null) {
    const isStrict = section.version === 0.1;
    return {
      path: ['elasticity'],
      expected: isStrict
        ? `a number of data ranks that divides ${shared.batch} samples: ${formatCounts(shared.ranks)}`
        : `at most ${Math.floor(largestBatch(section) / smallest(section))} data ranks, with at least one micro-batch each`,
      got: String(ranks),
      hint: isStrict
        ? 'Start that many ranks, or change micro_batch_sizes or max_train_batch_size.'
        : 'Start fewer ranks, raise max_train_batch_size, or allow a smaller micro-batch.',
    };
  }
  const perRank = batch / ranks;
  const micro = required(microsOf(section).findLast((size) => perRank % size === 0));
  return {
    train_batch_size: batch,
    train_micro_batch_size_per_gpu: micro,
    gradient_accumulation_steps: perRank / micro,
  };
}

/**
 * Returns the batch size of version 0.2 for a number of ranks that does not divide the common
 * batch: the largest (or smallest) multiple of one micro-batch size. Null if there is none.
 */
function findOwnBatch(section: Elasticity, ranks: number): number | null {
  if (section.version === 0.1) return null;
  const max = largestBatch(section);
  const batches = microsOf(section)
    .map((micro) => micro * ranks * Math.floor(max / (micro * ranks)))
    .filter((batch) => batch > 0);
  if (batches.length === 0) return null;
  return section.prefer_larger_batch ? Math.max(...batches) : Math.min(...batches);
}

/**
 * Chooses the batch size that most numbers of ranks within `range` divide. Candidates are the
 * largest batches up to `max` that are a highly composite multiple of a micro-batch size, or of
 * the least common multiple of all. On a tie, the preferred one wins.
 */
function chooseSharedBatch(
  section: Elasticity,
  max: number,
  range: { min: number; max: number },
): ElasticBatch {
  const micros = microsOf(section);
  const bases = [...micros, commonMultiple(micros, max)].filter((base) => base <= max);
  const candidates = bases.map((base) => {
    const batch = base * required(HIGHLY_COMPOSITE.findLast((factor) => factor * base <= max));
    return { batch, ranks: divisorsOf(batch, micros, range) };
  });
  const sign = section.prefer_larger_batch ? 1 : -1;
  return candidates.reduce((best, candidate) => {
    const more =
      candidate.ranks.length - best.ranks.length || sign * (candidate.batch - best.batch);
    return more > 0 ? candidate : best;
  });
}

/**
 * Returns the numbers of ranks from `min` to `max` that divide `batch` into micro-batches,
 * ascending.
 */
function divisorsOf(
  batch: number,
  micros: readonly number[],
  { min, max }: { min: number; max: number },
): number[] {
  const divisors = new Set<number>();
  for (const micro of micros.filter((size) => batch % size === 0)) {
    const times = batch / micro;
    for (let divisor = 1; divisor * divisor <= times; ++divisor) {
      if (times % divisor === 0) divisors.add(divisor).add(times / divisor);
    }
  }
  return [...divisors].filter((count) => min <= count && count <= max).sort((a, b) => a - b);
}

/**
 * Returns the least common multiple; Infinity if it exceeds `max`, where DeepSpeed would use it.
 */
function commonMultiple(sizes: readonly number[], max: number): number {
  const divisor = (a: number, b: number): number => (b === 0 ? a : divisor(b, a % b));
  return sizes.reduce((multiple, size) => {
    const next = multiple === Infinity ? multiple : (multiple / divisor(multiple, size)) * size;
    return next <= max ? next : Infinity;
  }, 1);
}

/** Returns numbers as text: "1, 2, 3, ... 96 (12 numbers)". */
function formatCounts(counts: readonly number[]): string {
  if (counts.length <= 24) return counts.join(', ');
  return `${counts.slice(0, 23).join(', ')}, ... ${counts.at(-1)} (${counts.length} numbers)`;
}

/** Returns the distinct micro-batch sizes, ascending. */
function microsOf({ micro_batch_sizes: sizes }: Elasticity): number[] {
  return [...new Set(sizes)].sort((a, b) => a - b);
}

/**
 * Returns the smallest micro-batch size; NaN without the key. Comparisons with NaN are false, and
 * missingSizes reports the key.
 */
const smallest = (section: Elasticity): number => microsOf(section)[0] ?? Number.NaN;

const largestBatch = (section: Elasticity): number => section.max_train_batch_size ?? Number.NaN;

/**
 * Returns the number of GPUs that elasticity adds or removes together. Version 0.1 adds single
 * GPUs, later versions add whole nodes.
 */
const nodeOf = ({ version, num_gpus_per_node: gpus }: Elasticity): number =>
  version === 0.1 ? 1 : gpus;

const dataRanksOfNode = (section: Elasticity): number =>
  nodeOf(section) / section.model_parallel_size;

type FindViolation = (section: Elasticity) => Violation | null;

/** Requires both keys of sizes. Source: DeepSpeed, which raises ElasticityConfigError. */
const missingSizes: FindViolation = ({ max_train_batch_size: max, micro_batch_sizes: sizes }) => {
  const key = max === null ? 'max_train_batch_size' : 'micro_batch_sizes';
  if (max !== null && sizes !== null && sizes.length > 0) return null;
  return {
    path: ['elasticity', key],
    expected:
      key === 'micro_batch_sizes' ? 'a list of micro-batch sizes' : 'the largest batch size',
    got: 'none',
    hint: 'Add for example "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6].',
  };
};

const hasNoRange: FindViolation = ({ min_gpus: min, max_gpus: max }) =>
  min <= max
    ? null
    : {
        path: ['elasticity', 'min_gpus'],
        expected: `at most max_gpus, which is ${max}`,
        got: String(min),
        hint: 'Lower min_gpus or raise max_gpus.',
      };

const sharesModelsWithoutNodes: FindViolation = ({ version, model_parallel_size: ranks }) =>
  version !== 0.1 || ranks === 1
    ? null
    : {
        path: ['elasticity', 'model_parallel_size'],
        expected: '1 with "version": 0.1',
        got: String(ranks),
        hint: 'Set elasticity.version to 0.2.',
      };

const cutsModelsByNodes: FindViolation = (section) =>
  Number.isInteger(dataRanksOfNode(section))
    ? null
    : {
        path: ['elasticity', 'model_parallel_size'],
        expected: `a divisor of num_gpus_per_node, which is ${section.num_gpus_per_node}`,
        got: String(section.model_parallel_size),
        hint: 'Set it to a divisor: the ranks of one model must be on one node.',
      };

const hasNoNode: FindViolation = (section) =>
  section.max_gpus >= nodeOf(section)
    ? null
    : {
        path: ['elasticity', 'max_gpus'],
        expected: `at least num_gpus_per_node, which is ${nodeOf(section)}`,
        got: String(section.max_gpus),
        hint: 'Raise max_gpus: elasticity adds and removes whole nodes.',
      };

const overfills: FindViolation = (section) => {
  const max = Math.floor(largestBatch(section) / dataRanksOfNode(section));
  const size = microsOf(section).findLast((micro) => micro > max);
  if (size === undefined) return null;
  return {
    path: ['elasticity', 'micro_batch_sizes'],
    expected: `at most ${max}, because the largest batch is ${largestBatch(section)}${dataRanksOfNode(section) > 1 ? ` for ${dataRanksOfNode(section)} data ranks of a node` : ''}`,
    got: String(size),
    hint: 'Remove this micro-batch size, or raise max_train_batch_size.',
  };
};

const checks: readonly FindViolation[] = [
  missingSizes,
  hasNoRange,
  sharesModelsWithoutNodes,
  cutsModelsByNodes,
  hasNoNode,
  overfills,
];
