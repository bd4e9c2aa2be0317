// The policy of activation checkpointing, set by configure() and used by checkpoint().
import { DsError } from '../../errors.js';
import type { Device } from '../../runtime/device.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { AttentionResults, type KeptResults, noKeptResults } from '../kept-results.js';
import { PinnedStore } from './pinned-store.js';
import { type ActivationStore, onDevice } from './store.js';
import {
  ProfilingWatch,
  type SegmentObserver,
  type SegmentTimes,
  type SegmentWatch,
  SynchronizedWatch,
  unwatched,
} from './watch.js';

/** Options of configure(), with DeepSpeed's defaults. */
export interface CheckpointingOptions {
  /** Not supported: each rank keeps the inputs of its own segments. */
  partitionActivations?: boolean;
  /** Not supported: each activation keeps its own memory, from a pool. */
  contiguousCheckpointing?: boolean;
  /** Number of segments of a model; null (default): one per layer. */
  numberCheckpoints?: number | null;
  /** Keep the inputs of segments in pinned host memory. Default: false. */
  cpuCheckpointing?: boolean;
  /**
   * Keep the output and statistics of attention instead of recomputing them. They are kept where
   * the inputs of the segment are. Default: null: with cpuCheckpointing, if a query sees at least
   * 4,096 keys on average, as in causal attention over 8,192 tokens.
   */
  keepAttention?: boolean | null;
  /**
   * With each kept attention, also keep the result of its output projection. In blocks with rotary
   * positions, keep the rotated queries and keys, and the values, too. A number: only in so many of
   * the last segments of checkpointSequential(), not counting the segment of keepLastSegment. The
   * backward frees their memory before most gradients exist. Default: false.
   */
  keepProjections?: boolean | number;
  /**
   * Keep all tensors of the last segment of checkpointSequential(), because the backward begins
   * with it. Default: false, as in DeepSpeed; PyTorch's checkpoint_sequential keeps them.
   */
  keepLastSegment?: boolean;
  /**
   * Compute the gradient of a model's head in the forward, so that the backward need not compute
   * the logits again. The gradient takes V C elements until the backward. Gradients that are
   * accumulated in 16 bits may differ in the last bit. Default: false.
   */
  earlyHead?: boolean;
  /** Wait for the device before and after every segment. Default: false. */
  synchronize?: boolean;
  /** Time every segment for times(), and report every run to an observer. Default: false. */
  profile?: boolean | SegmentObserver;
}

interface CheckpointPolicy {
  readonly store: ActivationStore;
  readonly watch: SegmentWatch;
  /**
   * Creates the store of kept results for a new segment. `later`: the number of later segments in
   * its sequence.
   */
  readonly openKeptResults: (device: Device | null, later: number) => KeptResults;
  readonly numberCheckpoints: number | null;
  readonly keepsLast: boolean;
  readonly isHeadEarly: boolean;
}

const openNothing = (): KeptResults => noKeptResults;

const defaultPolicy: CheckpointPolicy = {
  store: onDevice,
  watch: unwatched,
  openKeptResults: openNothing,
  numberCheckpoints: null,
  keepsLast: false,
  isHeadEarly: false,
};

let policy = defaultPolicy;

/**
 * The fewest keys for a copy to host memory: by default, attention over fewer keys is computed
 * again. A copy over PCIe takes 2 C / 55e9 s per token. Computing the forward again takes 4 K C /
 * 500e12 s for K keys. At 4,096 keys both take about as long, and the copy runs during other
 * computation.
 */
const MANY_KEYS = 4096;

/** Returns the fewest keys of a query for which attention is kept; infinite if it never is. */
export function fewestKeptKeys({
  keepAttention,
  cpuCheckpointing,
}: Pick<CheckpointingOptions, 'keepAttention' | 'cpuCheckpointing'>): number {
  if (keepAttention) return 0;
  return cpuCheckpointing && keepAttention !== false ? MANY_KEYS : Number.POSITIVE_INFINITY;
}

export function currentPolicy(): CheckpointPolicy {
  return policy;
}

/**
 * Sets how checkpoint() keeps and observes segments from now on, as
 * deepspeed.checkpointing.configure does. Segments recorded before keep their policy. Throws
 * DS_ARGUMENT for unknown or wrong options, DS_CONFIG for unsupported options.
 */
export function configure(given: CheckpointingOptions = {}): void {
  const options = readOptions(OP, given, namesOf.CheckpointingOptions);
  checkOptions(options);
  const { numberCheckpoints = null, cpuCheckpointing, synchronize, profile } = options;
  const watch = profile
    ? new ProfilingWatch(typeof profile === 'function' ? profile : null)
    : unwatched;
  reset();
  const store = cpuCheckpointing ? new PinnedStore() : onDevice;
  const minKeys = fewestKeptKeys(options);
  const { keepProjections: kept = false } = options;
  const isProjecting = (later: number): boolean => kept === true || later < Number(kept);
  policy = {
    store,
    watch: synchronize ? new SynchronizedWatch(watch) : watch,
    openKeptResults: Number.isFinite(minKeys)
      ? (device, later) => new AttentionResults(store.results(device), minKeys, isProjecting(later))
      : openNothing,
    numberCheckpoints,
    keepsLast: options.keepLastSegment ?? false,
    isHeadEarly: options.earlyHead ?? false,
  };
}

/** Returns whether segments keep their inputs on the device, not copies in host memory. */
export const areInputsOnDevice = (): boolean => policy.store === onDevice;

let laterSegments = Number.POSITIVE_INFINITY;

/** Runs `body`, which records a segment before `later` other segments of its sequence. */
export function recordBefore<T>(later: number, body: () => T): T {
  const outer = laterSegments;
  laterSegments = later;
  try {
    return body();
  } finally {
    laterSegments = outer;
  }
}

/** Returns the number of later segments (recordBefore()); infinite outside of a sequence. */
export const segmentsAfter = (): number => laterSegments;

/** Returns whether the gradient of a model's head is computed in the forward. */
export const isHeadEarly = (): boolean => policy.isHeadEarly;

/** Returns whether configure() has been called since the start or the last reset(). */
export function isConfigured(): boolean {
  return policy !== defaultPolicy;
}

/**
 * Restores the defaults: every layer a segment, inputs on the device. Frees unused pinned memory,
 * and waits for the device if there is some.
 */
export function reset(): void {
  const { store, watch } = policy;
  policy = defaultPolicy;
  store.dispose();
  watch.dispose();
}

/**
 * Returns the times of finished segments, under `profile`; excludes runs that the device has not
 * finished.
 */
export function times(): SegmentTimes[] {
  return policy.watch.times();
}

const OP = 'checkpointing.configure';

function checkOptions({
  numberCheckpoints: count = null,
  keepProjections = false,
  profile,
  ...options
}: CheckpointingOptions) {
  if (count !== null) requireInteger(`${OP} numberCheckpoints`, count, 1);
  if (typeof keepProjections === 'number') {
    requireInteger(`${OP} keepProjections`, keepProjections, 0);
  } else if (keepProjections != null) {
    requireType(`${OP} keepProjections`, keepProjections, 'boolean');
  }
  if (options.keepAttention != null) {
    requireType(`${OP} keepAttention`, options.keepAttention, 'boolean');
  }
  if (profile != null && typeof profile !== 'boolean') {
    requireType(`${OP} profile`, profile, 'function');
  }
  for (const [key, reason] of Object.entries(unsupported)) {
    if (!options[key as keyof typeof unsupported]) continue;
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${OP} ${key}`,
      expected: 'false',
      got: 'true',
      hint: `Omit it: ${reason}.`,
    });
  }
}

const unsupported = {
  partitionActivations:
    'each rank keeps the inputs of its own segments, also with tensor or sequence parallelism',
  contiguousCheckpointing: 'each activation keeps its own memory, from a pool',
} as const;
