// Outlines: what a rank tells the next one of the values that it sends, through the job's store,
// before they travel.
import { type Distributed, type ProcessGroup, reportOf } from '../comm/index.js';
import { DsError } from '../errors.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { poll } from '../runtime/poll.js';
import { describe } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';
import type { Transfer } from './action.js';
import { listOf, type Values } from './layers.js';

/** What a batch is for. Shapes of one kind say nothing of the other's. */
export type BatchKind = 'train' | 'eval';

/** What travels along one link, as its sender tells the receiver. */
export interface Outline {
  /** Whether a layer takes it as several values, even where it is one. */
  several: boolean;
  tensors: readonly { dtype: DType; shape: readonly number[]; wantsGrad: boolean }[];
}

/** An outline, and what it is of. */
interface Report extends Outline {
  rank: number;
  kind: BatchKind;
}

/** What the sender tells in place of an outline that it does not come to. */
interface Absence {
  rank: number;
  error: string;
}

const KINDS: readonly BatchKind[] = ['train', 'eval'];
/** For people. */
export const inWords: Readonly<Record<BatchKind, string>> = {
  ...{ train: 'in training', eval: 'in evaluation' },
};

/** In evaluation nothing wants a gradient. */
export function outlineOf(values: Values, kind: BatchKind): Outline {
  const tensors = listOf(values).map(({ dtype, shape, requiresGrad }) => ({
    ...{ dtype, shape, wantsGrad: kind === 'train' && requiresGrad && isFloating(dtype) },
  }));
  return { several: !(values instanceof Tensor), tensors };
}

/**
 * Told once for each stage and kind of batch, or with each micro-batch where shapes change. Both
 * kinds have one order, so that ranks which begin with another one are told apart.
 */
export class Outlines {
  private readonly reported = new Map<string, Outline>();
  private readonly known = new Map<string, Outline>();
  /** By the stage that sends. */
  private readonly counts = new Map<number, number>();
  /** Batches that have failed on this rank: what was told of one is not another's. */
  private failures = 0;

  constructor(
    private readonly job: Distributed,
    private readonly options: {
      /** What keys in the store begin with, the same on all ranks of the pipeline. */
      name: string;
      dynamicShape: boolean;
      /** Stages of this rank whose outputs leave it. */
      departures: readonly number[];
    },
  ) {}

  /** Of what `transfer` sends. Throws DS_SHAPE where shapes have changed and may not. */
  async report(transfer: Transfer, outline: Outline, kind: BatchKind): Promise<void> {
    const place = placeOf(transfer.stage, kind);
    const before = this.reported.get(place);
    if (before && !this.options.dynamicShape) {
      if (JSON.stringify(before) !== JSON.stringify(outline)) {
        throw changed(transfer, before, outline);
      }
      return;
    }
    this.reported.set(place, outline);
    const { rank, store } = this.job;
    await store?.set(
      this.nextKey(transfer.stage),
      JSON.stringify({ rank, kind, ...outline } satisfies Report),
    );
  }

  /**
   * Of what `transfer` receives through `group`. Rejects with DS_COMM where its sender has failed
   * or runs a batch of the other kind, or the job has failed.
   */
  async hear(transfer: Transfer, group: ProcessGroup, kind: BatchKind): Promise<Outline> {
    const sender = transfer.stage - 1;
    const place = placeOf(sender, kind);
    const known = this.known.get(place);
    if (known && !this.options.dynamicShape) return known;
    const key = this.nextKey(sender);
    const { store, timeout } = this.job;
    const reported = await unlessOver(group, store?.get(key, timeout) ?? Promise.resolve(''));
    const outline = JSON.parse(reported) as Report | Absence;
    await store?.delete(key);
    if ('error' in outline) throw absent(transfer, outline);
    if (outline.kind !== kind) throw ofOtherKind(transfer, kind, outline);
    this.known.set(place, outline);
    return outline;
  }

  /**
   * Those that wait for an outline of this rank get `error` in its place, and all that was told is
   * forgotten. Never rejects: why the batch has failed says more than that the store is gone.
   */
  async reportFailure(error: unknown): Promise<void> {
    const { rank, store } = this.job;
    const text = JSON.stringify({ rank, error: reportOf(error) } satisfies Absence);
    for (const stage of this.options.departures) {
      const isReportedToAll = KINDS.every((kind) => this.reported.has(placeOf(stage, kind)));
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

/** Of outputs of `stage`. */
const placeOf = (stage: number, kind: BatchKind): string => `${kind}, stage ${stage}`;

/** What `told` resolves with; rejects with DS_COMM once the job has failed. */
async function unlessOver<Report>(group: ProcessGroup, reported: Promise<Report>): Promise<Report> {
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

function absent({ stage }: Transfer, { rank, error }: Absence): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: `pipeline, input of stage ${stage}`,
    expected: 'all stages to run the batch',
    got: `rank ${rank} met with an error: ${error}`,
    hint: `Look at the output of rank ${rank}.`,
  });
}

function ofOtherKind({ stage }: Transfer, kind: BatchKind, { rank, kind: other }: Report): DsError {
  return new DsError({
    code: 'DS_COMM',
    op: `pipeline, input of stage ${stage}`,
    expected: `a batch ${inWords[kind]}, as here`,
    got: `one ${inWords[other]} on rank ${rank}`,
    hint: 'All ranks call trainBatch() and evalBatch() in the same order.',
  });
}

const phraseOf = ({ tensors }: Outline): string => tensors.map(describe).join(', ');

function changed({ stage }: Transfer, before: Outline, now: Outline): DsError {
  return new DsError({
    code: 'DS_SHAPE',
    op: `pipeline, output of stage ${stage}`,
    expected: `${phraseOf(before)}, as in the first micro-batch`,
    got: phraseOf(now),
    hint: 'Give all micro-batches one shape, or the PipelineModule dynamicShape: true.',
  });
}
