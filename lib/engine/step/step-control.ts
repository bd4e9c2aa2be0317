// Computes the step decision (gradient norm, clip factor, overflow flag) on the device; the host
// reads it one step later.

import type { Parameter } from '../../nn/parameter.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { LateNumbers } from '../../runtime/late-numbers.js';
import { required } from '../../runtime/required.js';
import type { Stream } from '../../runtime/stream.js';
import { sliceFlat } from '../../tensor/flat.js';
import { held, Tensor, zeros } from '../../tensor/index.js';
import type { GradientReceiver } from '../../zero/gradients.js';
import { overlap, type Range } from '../../zero/layout.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import { MODEL, type Ranks } from '../ranks.js';
import type { EmptyBatches } from '../watch/empty-batches.js';
import type { StepWatch } from '../watch/step-watch.js';
import type { BatchSizes } from './batch-sizes.js';
import {
  type CopyMismatch,
  DigestWeights,
  findDifferentResults,
  findOtherBatch,
  InputDigest,
} from './copy-check.js';
import { BATCHES, type BatchUse, type Columns, type ReportedRows, StepRows } from './step-rows.js';

/**
 * Returns the ranges of `partition.counted` in parameters that this rank counts: `answersFor`.
 * Padding between parameters is zero, so adjacent ranges are merged. Empty if this rank counts no
 * parameter.
 */
export function countedRanges(
  { unit, fragments, counted }: Pick<Partition, 'unit' | 'fragments' | 'counted'>,
  answersFor: (parameter: Parameter) => boolean,
): Range[] {
  const isOwn = fragments.map(({ entry }) => answersFor(unit.parameterOf(entry)));
  if (isOwn.every(Boolean)) return [counted];
  const ranges: Range[] = [];
  let startsRange = true;
  for (const [i, fragment] of fragments.entries()) {
    const { offset, numel } = overlap(fragment, counted);
    const last = ranges.at(-1);
    if (!isOwn[i]) startsRange = true;
    if (!isOwn[i] || numel === 0) continue;
    if (last && !startsRange) last.numel = offset + numel - last.offset;
    else ranges.push({ offset, numel });
    startsRange = false;
  }
  return ranges;
}

/** The result of a step after its backward. */
export interface StepDecision {
  /** Global L2 norm of the unscaled gradients, before clipping. */
  norm: number;
  isFinite: boolean;
  /** False if the update was skipped because of a non-finite gradient. */
  isApplied: boolean;
  /** Mean over the step's micro-batches and data ranks; null without a recorded loss. */
  loss: number | null;
  /** A rank of the job requested a stop before it handed over its gradients. */
  stop: boolean;
  /** Two ranks of the job that should be equal, but differ; null if there are none. */
  mismatch: CopyMismatch | null;
  /** Two ranks of the job with different numbers of micro-batches; null if there are none. */
  uneven: UnevenBatches | null;
  /** Busy milliseconds by rank; null if no rank measures them. */
  busy: readonly number[] | null;
  /** Micro-batches of this rank so far without a counted label. */
  emptyBatches: number;
}

/** The first rank of the job, and a rank with another number of micro-batches. */
export interface UnevenBatches {
  first: { rank: number; micros: number };
  other: { rank: number; micros: number };
}

interface ControlOptions {
  /** Receives each gradient after it is counted. */
  state: Pick<OptimizerState, 'gradReady'>;
  /** 0 disables clipping. */
  maxNorm: number;
  /** A non-finite gradient skips the update. */
  skipNonfinite: boolean;
  /** Whether this rank requests a stop. */
  stop: { readonly isRequested: boolean };
  /** `busy`: milliseconds of this rank in an earlier step; null if they are not shared. */
  watch: Pick<StepWatch, 'busy'>;
  batch: Pick<BatchSizes, 'accumulationSteps'>;
  emptyBatches: Pick<EmptyBatches, 'count'>;
  /** The columns of the partitions' sums. */
  columns: Columns;
}

type StepRanks = Pick<
  Ranks,
  | 'world'
  | 'dataGroup'
  | 'mesh'
  | 'replicaAxes'
  | 'lossRanks'
  | 'normRanks'
  | 'tensorGroup'
  | 'sequenceGroup'
  | 'isPrimary'
>;

/** The sum of squares of a partition. */
interface SquareSum {
  /** [1] f32 in this rank's row. */
  sum: Tensor;
  /** The ranges that this rank counts. */
  ranges: readonly Range[];
  /** [1] f32: temporary sum of a further range; null if there is only one range. */
  partialSum: Tensor | null;
}

/**
 * Owns the rows that ranks exchange in each step, the control of the update kernels ([4]), and the
 * host copy of both.
 */
export class StepControl implements GradientReceiver {
  /** [4] f32 on the device: see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  private readonly rows: StepRows;
  /** Digests of this rank's batches; empty if no other rank must have equal batches. */
  private readonly digests = new Map<BatchUse, InputDigest>();
  private readonly weights: DigestWeights;
  /** The control, followed by all rows and the count of empty batches. */
  private readonly reported: LateNumbers;
  private readonly squareSums = new Map<Partition, SquareSum>();
  /**
   * Batches that must be equal on all ranks of a model. Copies of a model may evaluate
   * independently; parts of a model may not.
   */
  private readonly compared: readonly BatchUse[];
  private microBatches = 0;
  private isStopReported = false;
  private reportedMicros = 0;
  /** After the first step, rounding may make copies differ. */
  private isFirst = true;

  constructor(
    device: Device,
    partitions: readonly Partition[],
    private readonly ranks: StepRanks,
    private readonly options: ControlOptions,
  ) {
    this.control = held(() => Tensor.empty([4], 'f32', device));
    this.rows = new StepRows(device, ranks, options.columns);
    this.weights = new DigestWeights(device);
    const { mesh, replicaAxes } = ranks;
    const axes = MODEL.filter((axis) => mesh.shape.sizes[axis] > 1);
    const isCopied = axes.some((axis) => replicaAxes.includes(axis));
    this.compared = axes.length === 0 ? [] : isCopied ? BATCHES.slice(0, 2) : BATCHES;
    for (const batch of this.compared) {
      this.digests.set(batch, new InputDigest(this.rows.digests[batch], this.weights));
    }
    this.reported = new LateNumbers(device, 4 + this.rows.all.numel + 1, 'first');
    partitions.forEach((partition, i) => {
      const ranges = countedRanges(partition, (parameter) => ranks.isPrimary(parameter));
      const partialSum = ranges.length > 1 ? held(() => zeros([1], { device })) : null;
      this.squareSums.set(partition, { sum: required(this.rows.squares[i]), ranges, partialSum });
    });
  }

  /** Counts a complete gradient in the norm, and hands it to its updater. */
  receiveReduced(partition: Partition, stream: Stream): void {
    this.add(partition, stream);
    // The owner of the gradient's memory waits for this event before it frees the memory.
    partition.ready.record(stream);
    this.options.state.gradReady(partition);
  }

  /**
   * Adds a partition's complete gradient to the norm, in the order of `stream`. If ranks keep local
   * gradients, the squared norm is the mean of their squared norms. It is equal on every rank, and
   * not smaller than the squared norm of the mean gradient.
   */
  add(partition: Partition, stream: Stream): void {
    const { sum, ranges, partialSum } = required(this.squareSums.get(partition));
    const { isOwnGrad, numel } = partition;
    for (const [i, range] of (isOwnGrad ? [{ offset: 0, numel }] : ranges).entries()) {
      const x = sliceFlat(required(partition.grad), range);
      const out = i === 0 ? sum : required(partialSum);
      kernels.sumOfSquares({ x, out }, stream);
      if (i > 0) kernels.binary({ a: sum, b: out, out: sum, op: 'add', accumulate: false }, stream);
      x.release();
    }
    if (!isOwnGrad) return;
    const scale = 1 / this.ranks.dataGroup.size;
    kernels.scale({ in: sum, out: sum, scale, shift: 0, accumulate: false }, stream);
  }

  /** Adds a micro-batch's loss, one f32 element, to the loss of the step. */
  addLoss(loss: Tensor): void {
    const sum = sliceFlat(this.rows.lossSum, { offset: 0, numel: 1 }, loss.shape);
    if (this.microBatches++ === 0) kernels.copy({ in: loss, out: sum });
    else kernels.binary({ a: sum, b: loss, out: sum, op: 'add', accumulate: false });
    sum.release();
  }

  /** Adds a batch of this rank to its digest. */
  addInputs(batch: BatchUse, values: unknown): void {
    this.digests.get(batch)?.add(values);
  }

  /** Drops the digests of a failed step. */
  dropInputs(): void {
    for (const digest of this.digests.values()) digest.drop();
  }

  /** Counts a micro-batch with its loss on another pipeline stage. */
  addUnknownLoss(): void {
    this.microBatches++;
  }

  /**
   * Returns the mean of the losses of the last decide() over `micros` micro-batches and the data
   * ranks: a scalar f32 in the current scope.
   */
  meanLoss(micros: number): Tensor {
    return this.rows.meanLoss(micros);
  }

  /** Drops the losses since the last decide(). */
  dropLosses(): void {
    this.microBatches = 0;
  }

  /**
   * Computes the control from the sums of all partitions. The gradients have the factor
   * `gradientScale`.
   */
  decide(gradientScale: number): void {
    const { maxNorm, skipNonfinite } = this.options;
    this.reportStop();
    this.reportMicros();
    this.reportBusy();
    for (const digest of this.digests.values()) digest.report();
    this.rows.gather();
    kernels.gradientControl({
      partials: this.rows.partials,
      control: this.control,
      lossScale: gradientScale,
      maxNorm,
      skipNonfinite,
    });
    this.reported.fetch(this.control, this.rows.all, this.options.emptyBatches.count);
  }

  /**
   * Returns the decision of the last decide() once, then null. Blocks until the backward has ended.
   */
  take(): StepDecision | null {
    const reported = this.reported.take();
    if (!reported) return null;
    const [, applied, norm, finite] = reported as unknown as [number, number, number, number];
    const rows = this.rows.read(reported.subarray(4, -1));
    const emptyBatches = required(reported.at(-1));
    const { world, dataGroup, lossRanks } = this.ranks;
    const mismatch = this.findMismatch(rows);
    this.isFirst = false;
    const losses = lossRanks.reduce((total, rank) => total + rows.lossOf(rank), 0);
    const loss = this.microBatches > 0 ? losses / (this.microBatches * dataGroup.size) : null;
    this.microBatches = 0;
    const stop = world.ranks.some((rank) => rows.requestsStop(rank));
    const uneven = findUneven(rows, world.ranks);
    const busy = this.busyIn(rows);
    return {
      isApplied: applied !== 0,
      norm,
      isFinite: finite !== 0,
      loss,
      stop,
      mismatch,
      uneven,
      busy,
      emptyBatches,
    };
  }

  /** Sends this rank's stop request to the others, from this step on. */
  private reportStop(): void {
    if (this.isStopReported || !this.options.stop.isRequested) return;
    this.isStopReported = true;
    kernels.fill({ out: this.rows.stop, value: 1 });
  }

  private reportMicros(): void {
    const micros = this.options.batch.accumulationSteps;
    if (micros === this.reportedMicros) return;
    this.reportedMicros = micros;
    kernels.fill({ out: this.rows.micros, value: micros });
  }

  private reportBusy(): void {
    const { busy } = this.options.watch;
    if (busy !== null) kernels.fill({ out: this.rows.busy, value: busy });
  }

  private busyIn(rows: ReportedRows): number[] | null {
    if (this.options.watch.busy === null) return null;
    return this.ranks.world.ranks.map((rank) => rows.busyOf(rank));
  }

  /** Finds ranks that should be equal, but differ; null without copies or parts of a model. */
  private findMismatch(rows: ReportedRows): CopyMismatch | null {
    const { compared } = this;
    if (compared.length === 0) return null;
    const { replicaAxes, mesh } = this.ranks;
    const among = { shape: mesh.shape, copies: replicaAxes, compared };
    const mismatch = findOtherBatch(rows, among);
    return mismatch ?? (this.isFirst ? findDifferentResults(rows, among) : null);
  }

  dispose(): void {
    this.weights.dispose();
    for (const { partialSum } of this.squareSums.values()) partialSum?.release();
    this.control.release();
    this.rows.dispose();
    this.reported.dispose();
  }
}

function findUneven(
  rows: ReportedRows,
  [first = 0, ...others]: readonly number[],
): UnevenBatches | null {
  const countsOf = (rank: number) => ({ rank, micros: rows.microsOf(rank) });
  const other = others.find((rank) => rows.microsOf(rank) !== rows.microsOf(first));
  return other === undefined ? null : { first: countsOf(first), other: countsOf(other) };
}
