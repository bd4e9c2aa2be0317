// The step's verdict: gradient norm, clipping factor and overflow flag, computed on the device,
// read one step later.
import type { Axis } from '../../comm/index.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { LateNumbers } from '../../runtime/late-numbers.js';
import type { Stream } from '../../runtime/stream.js';
import { held, noGrad, scope, Tensor, zeros } from '../../tensor/index.js';
import { sliceFlat } from '../../zero/flat.js';
import type { GradientReceiver } from '../../zero/gradient-flow.js';
import type { Range } from '../../zero/layout.js';
import type { OptimizerState } from '../../zero/optimizer-state.js';
import type { Partition } from '../../zero/partition.js';
import type { Ranks } from '../ranks.js';
import type { Columns } from './columns.js';
import { type Apart, copiesApart, LOSS_TOLERANCE, SQUARES_TOLERANCE } from './copies-apart.js';
import { countedRanges } from './counted-ranges.js';
import { InputDigest } from './input-digest.js';

/** What is known of a step once the device has finished its backward. */
export interface Verdict {
  /** Global L2 norm of the unscaled gradients, before clipping. */
  norm: number;
  finite: boolean;
  /** False when the update was skipped because of a non-finite gradient. */
  applied: boolean;
  /** Mean over the step's micro-batches and data ranks; null when the engine was told of none. */
  loss: number | null;
  /** Some rank of the job wished to stop when it handed over its gradients. */
  stop: boolean;
  /** Two ranks of the job that should do the same, and have not in the engine's first step. */
  apart: Apart | null;
}

export interface ControlOptions {
  /** Takes each gradient over once it is counted. */
  state: Pick<OptimizerState, 'gradReady'>;
  /** 0 disables clipping. */
  maxNorm: number;
  /** A non-finite gradient skips the update. */
  skipNonfinite: boolean;
  /** Whether this rank wishes to stop. */
  wishesToStop(): boolean;
  /** Where the sums of partitions lie in the rows of ranks. */
  columns: Columns;
}

type StepRanks = Pick<
  Ranks,
  'world' | 'data' | 'mesh' | 'copies' | 'tellers' | 'counting' | 'layers' | 'tokens' | 'answersFor'
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

/** What a rank tells beside its partitions' sums of squares, behind them in its row. */
const LOSS = 0;
const STOP = 1;
const INPUTS = 2;
const TOLD = 3;

/**
 * Owns a row per rank of the job (a sum of squares per partition, the sum of the micro-batches'
 * losses, the wish to stop, the first step's inputs), the [4] control of the update kernels and the
 * copy of both on the host.
 */
export class StepControl implements GradientReceiver {
  /** [4] f32 on the device, see GradientControl in csrc/ops/gradient_control.h. */
  readonly control: Tensor;
  /** [ranks, partitions + 3] f32, every rank's row once they are shared */
  private readonly rows: Tensor;
  /** [counting ranks, partitions] f32, the sums of squares in their rows */
  private readonly partials: Tensor;
  /** [1] f32 each, of this rank's row */
  private readonly lossSum: Tensor;
  private readonly stop: Tensor;
  private readonly inputs: Tensor;
  private readonly digest = new InputDigest();
  /** The control, and all rows behind it. */
  private readonly told: LateNumbers;
  private readonly slots = new Map<Partition, Slot>();
  private microBatches = 0;
  private isStopTold = false;
  /** Later on, copies may be apart by what rounding has made of them. */
  private isFirst = true;

  constructor(
    device: Device,
    partitions: readonly Partition[],
    private readonly ranks: StepRanks,
    private readonly options: ControlOptions,
  ) {
    this.control = held(() => Tensor.empty([4], 'f32', device));
    const { world } = ranks;
    const { width } = this;
    const { columns } = options;
    this.rows = held(() => zeros([world.size, width], { device }));
    this.partials = held(() => this.partialsOfAll());
    const slot = (i: number) => sliceFlat(this.rows, { offset: world.rank * width + i, numel: 1 });
    this.lossSum = slot(columns.count + LOSS);
    this.stop = slot(columns.count + STOP);
    this.inputs = slot(columns.count + INPUTS);
    this.told = new LateNumbers(device, 4 + this.rows.numel, 'first');
    partitions.forEach((partition, i) => {
      const ranges = countedRanges(partition, (one) => ranks.answersFor(one));
      const more = ranges.length > 1 ? held(() => zeros([1], { device })) : null;
      this.slots.set(partition, { sum: slot(columns.own[i] as number), ranges, more });
    });
  }

  /** Counts a step's gradient in the norm, and hands it to who updates with it. */
  reduced(partition: Partition, stream: Stream): void {
    this.add(partition, stream);
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
    const sum = sliceFlat(this.lossSum, { offset: 0, numel: 1 }, loss.shape);
    if (this.microBatches++ === 0) kernels.copy({ in: loss, out: sum });
    else kernels.binary({ a: sum, b: loss, out: sum, op: 'add', accumulate: false });
    sum.release();
  }

  /**
   * Of the first step: what this rank is given, where others that are to get the same share its
   * layers or tokens out.
   */
  addInputs(values: unknown): void {
    if (!this.isFirst || this.sharing.length === 0) return;
    this.digest.add(values);
    kernels.fill({ out: this.inputs, value: this.digest.value });
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
    const { rows } = this;
    const { tellers } = this.ranks;
    const from = rows.offset + (tellers[0] ?? 0) * this.width + this.options.columns.count + LOSS;
    const stride = strideOf(tellers) * this.width;
    return noGrad(() =>
      scope(() =>
        rows
          .alias([tellers.length], [stride], from)
          .sum()
          .div(micros * tellers.length),
      ),
    );
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
    this.tellStop();
    this.shareRows();
    this.gatherPartials();
    kernels.gradientControl({
      partials: this.partials,
      control: this.control,
      lossScale: gradientScale,
      maxNorm,
      skipNonfinite,
    });
    this.told.fetch(this.control, this.rows);
  }

  /**
   * The verdict of the last decide(), once; null when it was taken before. Blocks until the
   * backward has ended.
   */
  take(): Verdict | null {
    const told = this.told.take();
    if (!told) return null;
    const [, applied, norm, finite] = told as unknown as [number, number, number, number];
    const rows = told.subarray(4);
    const { losses, stop } = this.ofRanks(rows);
    const apart = this.isFirst ? this.apart(rows) : null;
    this.isFirst = false;
    const loss = this.microBatches > 0 ? losses / (this.microBatches * this.ranks.data.size) : null;
    this.microBatches = 0;
    return { applied: applied !== 0, norm, finite: finite !== 0, loss, stop, apart };
  }

  /** Lets the other ranks know, from this step on, that this one wishes to stop. */
  private tellStop(): void {
    if (this.isStopTold || !this.options.wishesToStop()) return;
    this.isStopTold = true;
    kernels.fill({ out: this.stop, value: 1 });
  }

  /** The sum of the data ranks' losses, and whether any rank wishes to stop. */
  private ofRanks(rows: Float32Array): { losses: number; stop: boolean } {
    const { world, tellers } = this.ranks;
    const of = (rank: number, what: number): number =>
      rows[rank * this.width + this.options.columns.count + what] as number;
    const losses = tellers.reduce((total, rank) => total + of(rank, LOSS), 0);
    const stop = world.ranks.some((rank) => of(rank, STOP) !== 0);
    return { losses, stop };
  }

  /**
   * By inputs, where ranks share layers or tokens out; of copies by losses, which are a rank's own,
   * then by squares of gradients, to which all its data ranks add.
   */
  private apart(rows: Float32Array): Apart | null {
    const { mesh, copies } = this.ranks;
    const { shape } = mesh;
    const among = { shape, copies };
    const { width } = this;
    const { count } = this.options.columns;
    const inputsOf = (rank: number): Float32Array =>
      rows.subarray(rank * width + count + INPUTS, rank * width + count + INPUTS + 1);
    const { sharing: axes } = this;
    const sharing = axes.length > 0 && copiesApart({ shape, copies: axes }, inputsOf, 0);
    if (sharing) return { ranks: sharing, axes, what: 'inputs' };
    const lossOf = (rank: number): Float32Array =>
      rows.subarray(rank * width + count + LOSS, rank * width + count + LOSS + 1);
    const squaresOf = (rank: number): Float32Array =>
      rows.subarray(rank * width, rank * width + count);
    const found =
      copiesApart(among, lossOf, LOSS_TOLERANCE) ??
      copiesApart(among, squaresOf, SQUARES_TOLERANCE);
    return found && { ranks: found, axes: copies, what: 'losses or gradients' };
  }

  /** Along which ranks compute parts of one thing, of the same inputs. */
  private get sharing(): Axis[] {
    const { layers, tokens } = this.ranks;
    return [...(tokens ? (['sp'] as const) : []), ...(layers ? (['tp'] as const) : [])];
  }

  /** Elements of a row. */
  private get width(): number {
    return this.options.columns.count + TOLD;
  }

  /**
   * Where the rows of those that count have all sums they are read there; else gatherPartials()
   * brings them together.
   */
  private partialsOfAll(): Tensor {
    const { columns } = this.options;
    const { counting } = this.ranks;
    // Of a pipeline it may be another stage that trains.
    const ranks = columns.runs[0]?.ranks ?? counting;
    if (this.isScattered) {
      return zeros([counting.length, columns.count], { device: this.rows.device });
    }
    return this.sumsOf(ranks, { offset: 0, numel: columns.count });
  }

  /** Whether sums lie in the rows of several stages, or in rows that are not equally far apart. */
  private get isScattered(): boolean {
    const { runs } = this.options.columns;
    const ranks = runs[0]?.ranks ?? this.ranks.counting;
    return runs.length > 1 || evenParts(ranks).length > 1;
  }

  /** Columns `range` of the rows of `ranks`, which lie equally far apart in the job. */
  private sumsOf(ranks: readonly number[], { offset, numel }: Range): Tensor {
    const { width, rows } = this;
    const shape = [ranks.length, numel];
    const from = rows.offset + (ranks[0] ?? 0) * width + offset;
    return rows.alias(shape, [strideOf(ranks) * width, 1], from);
  }

  /**
   * Each stage of a pipeline knows the sums of its own partitions: all of them, in the order of one
   * rank's.
   */
  private gatherPartials(): void {
    const { columns } = this.options;
    if (!this.isScattered) return;
    const { partials } = this;
    for (const { ranks, ...range } of columns.runs) {
      let row = 0;
      for (const part of evenParts(ranks)) {
        const sums = held(() => this.sumsOf(part, range));
        const shape = [part.length, range.numel];
        const from = partials.offset + row * columns.count + range.offset;
        const out = held(() => partials.alias(shape, [columns.count, 1], from));
        kernels.copy({ in: sums, out });
        sums.release();
        out.release();
        row += part.length;
      }
    }
  }

  /** All-gathers the rows in place, in the order of the compute stream. */
  private shareRows(): void {
    const { width, rows } = this;
    const { world } = this.ranks;
    const { compute } = rows.device;
    const flat = rows.alias([rows.numel], undefined, rows.offset);
    const own = rows.alias([width], undefined, rows.offset + world.rank * width);
    world.allGather(flat, own, { stream: compute, purpose: 'gradient norms' }).wait(compute);
    own.dispose();
    flat.dispose();
  }

  dispose(): void {
    for (const { sum, more } of this.slots.values()) {
      sum.release();
      more?.release();
    }
    this.control.release();
    this.partials.release();
    this.lossSum.release();
    this.stop.release();
    this.inputs.release();
    this.rows.release();
    this.told.dispose();
  }
}

/** How far apart ranks of one axis are in the job. */
const strideOf = ([first = 0, second = first + 1]: readonly number[]): number => second - first;

/** Ranks in order, cut where they are no longer equally far apart. */
function evenParts(ranks: readonly number[]): number[][] {
  const parts: number[][] = [];
  for (const rank of ranks) {
    const last = parts.at(-1);
    if (!last || (last.length > 1 && rank - (last.at(-1) as number) !== strideOf(last))) {
      parts.push([rank]);
    } else {
      last.push(rank);
    }
  }
  return parts;
}
