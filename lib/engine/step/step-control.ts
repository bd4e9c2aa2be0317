// StepControl: computes the step decision (gradient norm, clip factor, overflow flag) on the
// device. The host reads it one step later.

import type { Parameter } from '../../nn/parameter.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { NumberReadback } from '../../runtime/number-readback.js';
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
 * Returns the ranges of `partition.counted` with parameters that this rank counts. Adjacent ranges
 * are merged, because the padding between parameters is zero. Empty if this rank counts no
 * parameter.
 */
export function countedRanges(
  { unit, fragments, counted }: Pick<Partition, 'unit' | 'fragments' | 'counted'>,
  isCounted: (parameter: Parameter) => boolean,
): Range[] {
  const isOwn = fragments.map(({ entry }) => isCounted(unit.parameterOf(entry)));
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

/** The decision and results of a step. */
export interface StepDecision {
  /** Global L2 norm of the unscaled gradients, before clipping. */
  norm: number;
  isFinite: boolean;
  /** False if the update was skipped for a non-finite gradient. */
  isApplied: boolean;
  /** Mean loss over the step's micro-batches and data ranks. Null if no loss was recorded. */
  loss: number | null;
  /** Whether a rank requested a stop before it handed over its gradients. */
  stop: boolean;
  /** Two ranks that should be equal but are not, or null. */
  mismatch: CopyMismatch | null;
  /** Two ranks with different numbers of micro-batches, or null. */
  uneven: UnevenBatches | null;
  /** Busy milliseconds by rank. Null if no rank measures them. */
  busy: readonly number[] | null;
  /** Number of this rank's micro-batches so far without a label that counts. */
  emptyBatches: number;
}

/** Rank 0 of the job, and a rank with another number of micro-batches. */
export interface UnevenBatches {
  first: { rank: number; micros: number };
  other: { rank: number; micros: number };
}

interface ControlOptions {
  /** Gets each gradient after it was added to the norm. */
  state: Pick<OptimizerState, 'gradReady'>;
  /** Largest gradient norm; larger ones are clipped. 0 disables clipping. */
  maxNorm: number;
  /** Whether a non-finite gradient skips the update. */
  skipNonfinite: boolean;
  /** Whether this rank requests a stop. */
  stop: { readonly isRequested: boolean };
  /** `busy`: milliseconds of this rank in an earlier step. Null if ranks do not exchange them. */
  watch: Pick<StepWatch, 'busy'>;
  batch: Pick<BatchSizes, 'accumulationSteps'>;
  emptyBatches: Pick<EmptyBatches, 'count'>;
  /** The columns of the rows that hold sums of squares. */
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

/** The sum of squares of one partition. */
interface SquareSum {
  /** [1] f32, an element of this rank's row. */
  sum: Tensor;
  /** The ranges that this rank counts. */
  ranges: readonly Range[];
  /** [1] f32: sum of one further range. Null if there is only one range. */
  partialSum: Tensor | null;
}

/**
 * Owns the rows that ranks exchange in each step, the `control` tensor that update kernels read,
 * and the host copies of both.
 */
export class StepControl implements GradientReceiver {
  /** [4] f32 on the device: see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  private readonly rows: StepRows;
  /** Digests of this rank's batches. Empty if no other rank must have equal batches. */
  private readonly digests = new Map<BatchUse, InputDigest>();
  private readonly weights: DigestWeights;
  /** Host copy of the control, then all rows, then the count of empty batches. */
  private readonly reported: NumberReadback;
  private readonly squareSums = new Map<Partition, SquareSum>();
  /**
   * The batches that must be equal on all ranks of a model. Copies of a model may evaluate
   * different batches; parts of a model may not.
   */
  private readonly compared: readonly BatchUse[];
  private microBatches = 0;
  private isStopReported = false;
  private reportedMicros = 0;
  /** Whether no decision was read yet. Later, rounding may make copies of a model differ. */
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
    this.reported = new NumberReadback(device, 4 + this.rows.all.numel + 1, 'first');
    partitions.forEach((partition, i) => {
      const ranges = countedRanges(partition, (parameter) => ranks.isPrimary(parameter));
      const partialSum = ranges.length > 1 ? held(() => zeros([1], { device })) : null;
      this.squareSums.set(partition, { sum: required(this.rows.squares[i]), ranges, partialSum });
    });
  }

  /** Adds a complete gradient to the norm, and passes it to the optimizer state. */
  receiveReduced(partition: Partition, stream: Stream): void {
    this.add(partition, stream);
    // The owner of the gradient's memory frees it only after this event.
    partition.ready.record(stream);
    this.options.state.gradReady(partition);
  }

  /**
   * Adds the complete gradient of a partition to the norm, in the order of `stream`. If each rank
   * uses its own gradients, the squared norm is the mean of the ranks' squared norms. This value is
   * equal on every rank, and at least the squared norm of the mean gradient.
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

  /** Adds the loss of a micro-batch, one f32 element, to the loss of the step. */
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

  /** Counts a micro-batch with a loss that another pipeline stage computes. */
  addUnknownLoss(): void {
    this.microBatches++;
  }

  /**
   * Returns the mean loss of the last decide(), over `micros` micro-batches and the data ranks: a
   * scalar f32. The current scope owns it.
   */
  meanLoss(micros: number): Tensor {
    return this.rows.meanLoss(micros);
  }

  /** Drops the losses since the last decide(). */
  dropLosses(): void {
    this.microBatches = 0;
  }

  /**
   * Exchanges the rows, and computes the control from the sums of all partitions. `gradientScale`
   * is the factor of the gradients.
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
   * Returns the decision of the last decide() once, then null. Blocks until the backward of the
   * step has ended.
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

  /** Sends this rank's stop request to the other ranks, from this step on. */
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

  /**
   * Returns two ranks that should be equal but are not. Returns null if all are equal, or if
   * nothing is compared.
   */
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
