// The step's decision: gradient norm, clipping factor and overflow flag, computed on the device,
// read one step later.
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { LateNumbers } from '../../runtime/late-numbers.js';
import type { Stream } from '../../runtime/stream.js';
import { held, Tensor, zeros } from '../../tensor/index.js';
import { sliceFlat } from '../../zero/flat.js';
import type { GradientReceiver } from '../../zero/gradient-flow.js';
import type { Range } from '../../zero/layout.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import { MODEL, type Ranks } from '../ranks.js';
import type { Columns } from './columns.js';
import { type Apart, findCopiesApart, findOtherBatch } from './copies-apart.js';
import { countedRanges } from './counted-ranges.js';
import { DigestWeights, InputDigest } from './input-digest.js';
import { GIVEN, type Given, type ReportedRows, StepRows } from './step-rows.js';

/** What is known of a step once the device has finished its backward. */
export interface StepDecision {
  /** Global L2 norm of the unscaled gradients, before clipping. */
  norm: number;
  finite: boolean;
  /** False when the update was skipped because of a non-finite gradient. */
  applied: boolean;
  /** Mean over the step's micro-batches and data ranks; null when the engine was told of none. */
  loss: number | null;
  /** Some rank of the job wished to stop when it handed over its gradients. */
  stop: boolean;
  /** Two ranks of the job that should do the same, and have not. */
  apart: Apart | null;
  /** Two ranks of the job whose steps have other numbers of micro-batches. */
  uneven: Uneven | null;
}

/** The first rank of the job, and one whose step has more micro-batches or less. */
export interface Uneven {
  first: { rank: number; micros: number };
  other: { rank: number; micros: number };
}

export interface ControlOptions {
  /** Takes each gradient over once it is counted. */
  state: Pick<OptimizerState, 'gradReady'>;
  /** 0 disables clipping. */
  maxNorm: number;
  /** A non-finite gradient skips the update. */
  skipNonfinite: boolean;
  /** Whether this rank wishes to stop. */
  requestsStop(): boolean;
  /** Micro-batches of a step on this rank. */
  accumulationSteps(): number;
  /** Where the sums of partitions lie in the rows of ranks. */
  columns: Columns;
}

type StepRanks = Pick<
  Ranks,
  | 'world'
  | 'data'
  | 'mesh'
  | 'copies'
  | 'reporters'
  | 'counting'
  | 'layers'
  | 'tokens'
  | 'answersFor'
>;

/** Where a partition's squares are summed. */
interface Slot {
  /** [1] f32 in this rank's row */
  sum: Tensor;
  /** What this rank counts of the partition. */
  ranges: readonly Range[];
  /** [1] f32, where the sum of one more range waits to be added; null where there is none. */
  more: Tensor | null;
}

/**
 * Owns the rows in which ranks tell each other of a step, the [4] control of the update kernels and
 * the copy of both on the host.
 */
export class StepControl implements GradientReceiver {
  /** [4] f32 on the device, see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  private readonly rows: StepRows;
  /** Of the batches that this rank is given; none where no other rank is to get the same. */
  private readonly digests = new Map<Given, InputDigest>();
  private readonly weights: DigestWeights;
  /** The control, and all rows behind it. */
  private readonly reported: LateNumbers;
  private readonly slots = new Map<Partition, Slot>();
  private microBatches = 0;
  private isStopReported = false;
  private reportedMicros = 0;
  /** Later on, copies may be apart by what rounding has made of them. */
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
    for (const given of this.compared) {
      this.digests.set(given, new InputDigest(this.rows.digests[given], this.weights));
    }
    this.reported = new LateNumbers(device, 4 + this.rows.all.numel, 'first');
    partitions.forEach((partition, i) => {
      const ranges = countedRanges(partition, (one) => ranks.answersFor(one));
      const more = ranges.length > 1 ? held(() => zeros([1], { device })) : null;
      this.slots.set(partition, { sum: this.rows.squares[i] as Tensor, ranges, more });
    });
  }

  /** Counts a step's gradient in the norm, and hands it to who updates with it. */
  reduced(partition: Partition, stream: Stream): void {
    this.add(partition, stream);
    // Whoever gives the gradient's memory back waits for this: the norm has been read.
    partition.ready.record(stream);
    this.options.state.gradReady(partition);
  }

  /**
   * Adds a partition's complete gradient to the norm, in the order of `stream`. Where ranks keep
   * their own, the square of the norm is the mean of theirs: it is the same on every rank, and no
   * less than that of the mean gradient.
   */
  add(partition: Partition, stream: Stream): void {
    const { sum, ranges, more } = this.slots.get(partition) as Slot;
    const { isOwnGrad, numel } = partition;
    for (const [i, range] of (isOwnGrad ? [{ offset: 0, numel }] : ranges).entries()) {
      const x = sliceFlat(partition.grad as Tensor, range);
      const out = i === 0 ? sum : (more as Tensor);
      kernels.sumOfSquares({ x, out }, stream);
      if (i > 0) kernels.binary({ a: sum, b: out, out: sum, op: 'add', accumulate: false }, stream);
      x.release();
    }
    if (!isOwnGrad) return;
    const scale = 1 / this.ranks.data.size;
    kernels.scale({ in: sum, out: sum, scale, shift: 0, accumulate: false }, stream);
  }

  /** Adds a micro-batch's loss, one f32 element, to the step's. */
  addLoss(loss: Tensor): void {
    const sum = sliceFlat(this.rows.lossSum, { offset: 0, numel: 1 }, loss.shape);
    if (this.microBatches++ === 0) kernels.copy({ in: loss, out: sum });
    else kernels.binary({ a: sum, b: loss, out: sum, op: 'add', accumulate: false });
    sum.release();
  }

  /** Takes note of what this rank is given in this step. */
  addInputs(given: Given, values: unknown): void {
    this.digests.get(given)?.add(values);
  }

  /** The step has failed: what its batches were is not compared. */
  dropInputs(): void {
    for (const digest of this.digests.values()) digest.drop();
  }

  /** A micro-batch whose loss another stage of the pipeline knows. */
  addUnknownLoss(): void {
    this.microBatches++;
  }

  /**
   * The mean of the losses that the last decide() shared, over `micros` micro-batches and the data
   * ranks: a scalar f32 of the current scope.
   */
  meanLoss(micros: number): Tensor {
    return this.rows.meanLoss(micros);
  }

  /** Forgets the losses added since the last decide(). */
  dropLosses(): void {
    this.microBatches = 0;
  }

  /**
   * Computes the control from all partitions' sums; the gradients carry the factor `gradientScale`.
   */
  decide(gradientScale: number): void {
    const { maxNorm, skipNonfinite } = this.options;
    this.reportStop();
    this.reportMicros();
    for (const digest of this.digests.values()) digest.report();
    this.rows.share();
    kernels.gradientControl({
      partials: this.rows.partials,
      control: this.control,
      lossScale: gradientScale,
      maxNorm,
      skipNonfinite,
    });
    this.reported.fetch(this.control, this.rows.all);
  }

  /**
   * The decision of the last decide(), once; null when it was taken before. Blocks until the
   * backward has ended.
   */
  take(): StepDecision | null {
    const reported = this.reported.take();
    if (!reported) return null;
    const [, applied, norm, finite] = reported as unknown as [number, number, number, number];
    const rows = this.rows.read(reported.subarray(4));
    const { world, data, reporters } = this.ranks;
    const apart = this.findApart(rows);
    this.isFirst = false;
    const losses = reporters.reduce((total, rank) => total + rows.lossOf(rank), 0);
    const loss = this.microBatches > 0 ? losses / (this.microBatches * data.size) : null;
    this.microBatches = 0;
    const stop = world.ranks.some((rank) => rows.requestsStop(rank));
    const uneven = findUneven(rows, world.ranks);
    return { applied: applied !== 0, norm, finite: finite !== 0, loss, stop, apart, uneven };
  }

  /** Lets the other ranks know, from this step on, that this one wishes to stop. */
  private reportStop(): void {
    if (this.isStopReported || !this.options.requestsStop()) return;
    this.isStopReported = true;
    kernels.fill({ out: this.rows.stop, value: 1 });
  }

  private reportMicros(): void {
    const micros = this.options.accumulationSteps();
    if (micros === this.reportedMicros) return;
    this.reportedMicros = micros;
    kernels.fill({ out: this.rows.micros, value: micros });
  }

  private findApart(rows: ReportedRows): Apart | null {
    const { copies, mesh } = this.ranks;
    const among = { shape: mesh.shape, copies, compared: this.compared };
    const found = findOtherBatch(rows, among);
    return found ?? (this.isFirst ? findCopiesApart(rows, among) : null);
  }

  /**
   * Batches that are the same on all ranks of a model. Of copies of a model each may be evaluated
   * without the others; parts of a model are not.
   */
  private get compared(): readonly Given[] {
    const { mesh, copies } = this.ranks;
    const axes = MODEL.filter((axis) => mesh.shape.sizes[axis] > 1);
    if (axes.length === 0) return [];
    return axes.some((axis) => copies.includes(axis)) ? GIVEN.slice(0, 2) : GIVEN;
  }

  dispose(): void {
    this.weights.dispose();
    for (const { more } of this.slots.values()) more?.release();
    this.control.release();
    this.rows.dispose();
    this.reported.dispose();
  }
}

function findUneven(rows: ReportedRows, [first = 0, ...others]: readonly number[]): Uneven | null {
  const reported = (rank: number) => ({ rank, micros: rows.microsOf(rank) });
  const other = others.find((rank) => rows.microsOf(rank) !== rows.microsOf(first));
  return other === undefined ? null : { first: reported(first), other: reported(other) };
}
