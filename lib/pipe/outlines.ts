// Sends outlines (shapes and dtypes of values) to the next rank through the job's store, so that it
// can allocate memory before the values arrive.
import { type Distributed, type ProcessGroup, reportOf } from '../comm/index.js';
import { DsError } from '../errors.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { poll } from '../runtime/poll.js';
import { describe } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';
import type { Transfer } from './action.js';
import { toList, type Values } from './layers.js';

const KINDS = ['train', 'eval'] as const;

/** The kind of a batch. Each kind has its own shapes. */
export type BatchKind = (typeof KINDS)[number];

/** Describes the values that a stage sends to the next one. */
interface Outline {
  /** Whether the values are a list; a list may have one element. */
  several: boolean;
  tensors: readonly { dtype: DType; shape: readonly number[]; wantsGrad: boolean }[];
}

/** An outline as it is stored, with the rank and the kind of batch of its sender. */
interface OutlineReport extends Outline {
  rank: number;
  kind: BatchKind;
}

/** The error of the sender, which it stores instead of an outline. */
interface FailureReport {
  rank: number;
  error: string;
}

/** Names of the kinds in errors. */
export const KIND_NAMES: Readonly<Record<BatchKind, string>> = {
  train: 'in training',
  eval: 'in evaluation',
};

/** Returns the outline of values. In evaluation, no tensor requires a gradient. */
export function describeValues(values: Values, kind: BatchKind): Outline {
  const tensors = toList(values).map(({ dtype, shape, requiresGrad }) => ({
    dtype,
    shape,
    wantsGrad: kind === 'train' && requiresGrad && isFloating(dtype),
  }));
  return { several: !(values instanceof Tensor), tensors };
}

/**
 * Sends an outline once per stage and kind of batch; with dynamicShape, once per micro-batch. Both
 * kinds share one sequence of keys, so that ranks that run different kinds of batches are detected.
 */
export class Outlines {
  private readonly reported = new Map<string, Outline>();
  private readonly known = new Map<string, Outline>();
  /** Number of outlines so far, by the stage that sends them. */
  private readonly counts = new Map<number, number>();
  /**
   * Number of failed batches of this rank. It is part of the keys: outlines of a failed batch are
   * not read in the next batch.
   */
  private failures = 0;

  constructor(
    private readonly job: Distributed,
    private readonly options: {
      /** Prefix of the keys in the store, the same on all ranks of the pipeline. */
      name: string;
      dynamicShape: boolean;
      /** Stages of this rank with outputs for other ranks. */
      departures: readonly number[];
    },
  ) {}

  /** Sends the outline of `transfer`. Throws DS_SHAPE if shapes changed without dynamicShape. */
  async report(transfer: Transfer, outline: Outline, kind: BatchKind): Promise<void> {
    const location = locationKey(transfer.stage, kind);
    const before = this.reported.get(location);
    if (before && !this.options.dynamicShape) {
      if (JSON.stringify(before) !== JSON.stringify(outline)) {
        throw shapesChangedError(transfer, before, outline);
      }
      return;
    }
    this.reported.set(location, outline);
    const { rank, store } = this.job;
    await store?.set(
      this.nextKey(transfer.stage),
      JSON.stringify({ rank, kind, ...outline } satisfies OutlineReport),
    );
  }

  /**
   * Resolves with the outline of the values that `transfer` receives through `group`. Rejects with
   * DS_COMM if the sender failed, if it runs a batch of the other kind, or if the job failed.
   */
  async receive(transfer: Transfer, group: ProcessGroup, kind: BatchKind): Promise<Outline> {
    const sender = transfer.stage - 1;
    const location = locationKey(sender, kind);
    const known = this.known.get(location);
    if (known && !this.options.dynamicShape) return known;
    const key = this.nextKey(sender);
    const { store, timeout } = this.job;
    const reported = await rejectOnFailure(group, store?.get(key, timeout) ?? Promise.resolve(''));
    const outline = JSON.parse(reported) as OutlineReport | FailureReport;
    await store?.delete(key);
    if ('error' in outline) throw senderFailedError(transfer, outline);
    if (outline.kind !== kind) throw otherBatchKindError(transfer, kind, outline);
    this.known.set(location, outline);
    return outline;
  }

  /**
   * Sends `error` to the ranks that wait for an outline of this rank, and forgets all outlines.
   * Never rejects: the error of the batch is more useful than an error of the store.
   */
  async reportFailure(error: unknown): Promise<void> {
    const { rank, store } = this.job;
    const text = JSON.stringify({ rank, error: reportOf(error) } satisfies FailureReport);
    for (const stage of this.options.departures) {
      const isReportedToAll = KINDS.every((kind) => this.reported.has(locationKey(stage, kind)));
      if (isReportedToAll && !this.options.dynamicShape) continue;
      await store?.set(this.nextKey(stage), text).catch(() => {});
    }
    this.failures++;
    for (const known of [this.counts, this.reported, this.known]) known.clear();
  }

  private nextKey(stage: number): string {
    const count = this.counts.get(stage) ?? 0;
    this.counts.set(stage, count + 1);
    return `${this.options.name}/stage ${stage}/${this.failures}/${count}`;
  }
}

/** Returns the key of the outline of the outputs of `stage`. */
const locationKey = (stage: number, kind: BatchKind): string => `${kind}, stage ${stage}`;

/**
 * Resolves or rejects as `reported` does, but rejects with DS_COMM as soon as the job has failed.
 */
async function rejectOnFailure<Report>(
  group: ProcessGroup,
  reported: Promise<Report>,
): Promise<Report> {
  let isOver = false;
  const failure = poll(() => {
    if (!isOver) group.check();
    return isOver;
  });
  try {
    await Promise.race([reported, failure]);
    return await reported;
  } finally {
    isOver = true;
    reported.catch(() => {});
    failure.catch(() => {});
  }
}

function senderFailedError({ stage }: Transfer, { rank, error }: FailureReport): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: `pipeline, input of stage ${stage}`,
    expected: 'all stages to run the batch',
    got: `an error on rank ${rank}: ${error}`,
    hint: `Look at the output of rank ${rank}.`,
  });
}

function otherBatchKindError(
  { stage }: Transfer,
  kind: BatchKind,
  { rank, kind: other }: OutlineReport,
): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: `pipeline, input of stage ${stage}`,
    expected: `a batch ${KIND_NAMES[kind]}, as on this rank`,
    got: `a batch ${KIND_NAMES[other]} on rank ${rank}`,
    hint: 'All ranks call trainBatch() and evalBatch() in the same order.',
  });
}

const formatOutline = ({ tensors }: Outline): string => tensors.map(describe).join(', ');

function shapesChangedError({ stage }: Transfer, before: Outline, now: Outline): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: `pipeline, output of stage ${stage}`,
    expected: `${formatOutline(before)}, as in the first micro-batch`,
    got: formatOutline(now),
    hint: 'Use one shape for all micro-batches, or set dynamicShape: true in the PipelineModule.',
  });
}
