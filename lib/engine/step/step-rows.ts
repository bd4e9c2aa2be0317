// StepRows: the row of numbers that each rank sends to all others in every step.

import { AXIS } from '../../comm/mesh-shape.js';
import type { Pipeline } from '../../pipe/pipeline.js';
import type { Device } from '../../runtime/device.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { required } from '../../runtime/required.js';
import { sliceFlat } from '../../tensor/flat.js';
import { held, noGrad, scope, Tensor, zeros } from '../../tensor/index.js';
import type { Range } from '../../zero/layout.js';
import type { Partition } from '../../zero/partition.js';
import { normRanksAt, type Ranks } from '../ranks.js';

/** Columns of a row after the sums of squares. */
const LOSS = 0;
const STOP = 1;
const MICROS = 2;
const BUSY = 3;
const DIGESTS = 4;

/** Batches with a digest in the row, for training and evaluation. */
export const BATCHES = ['inputs', 'labels', 'evaluated inputs', 'evaluated labels'] as const;
export type BatchUse = (typeof BATCHES)[number];

/** Elements of each digest: see DigestOutputs. */
const BITS = 0;
const OUTLINE = 1;
const DIGEST = 2;
const EXTRA_COLUMNS = DIGESTS + DIGEST * BATCHES.length;

/** A digest on the host. `outline` is 0 if the batch has no tensor. */
interface ReportedDigest {
  bits: number;
  outline: number;
}

type RowRanks = Pick<Ranks, 'world' | 'lossRanks' | 'normRanks'>;

/**
 * Owns one row per rank of the job. A rank writes its own row, and gather() collects all rows. A
 * row contains:
 *
 * - A sum of squares for each partition of the model.
 * - The sum of losses, and the number of micro-batches.
 * - The stop request.
 * - The busy milliseconds of an earlier step; 0 if the rank does not measure them.
 * - Digests of the batches.
 */
export class StepRows {
  /** [ranks, columns + EXTRA_COLUMNS] f32. */
  readonly all: Tensor;
  /** [1] f32 each, elements of this rank's row: the sums of squares of its partitions, in order. */
  readonly squares: readonly Tensor[];
  /** [1] f32, an element of this rank's row. */
  readonly lossSum: Tensor;
  /** [1] f32, an element of this rank's row. A nonzero value requests a stop. */
  readonly stop: Tensor;
  /** By batch: the elements of its digest in this rank's row. */
  readonly digests: Readonly<Record<BatchUse, DigestOutputs>>;
  /** [1] f32, an element of this rank's row: micro-batches of its step. */
  readonly micros: Tensor;
  /** [1] f32, an element of this rank's row: busy milliseconds. */
  readonly busy: Tensor;
  /** [norm ranks, columns] f32: the sums of squares of all ranks that contribute to the norm. */
  readonly partials: Tensor;

  constructor(
    device: Device,
    private readonly ranks: RowRanks,
    private readonly columns: Columns,
  ) {
    const { width } = this;
    this.all = held(() => zeros([ranks.world.size, width], { device }));
    this.partials = held(() => this.partialsOfAll());
    const ownOffset = ranks.world.rank * width;
    const element = (column: number) =>
      sliceFlat(this.all, { offset: ownOffset + column, numel: 1 });
    this.squares = columns.ownColumns.map(element);
    this.lossSum = element(columns.count + LOSS);
    this.stop = element(columns.count + STOP);
    this.micros = element(columns.count + MICROS);
    this.busy = element(columns.count + BUSY);
    const outputs = BATCHES.map((given, i): [BatchUse, DigestOutputs] => {
      const at = columns.count + DIGESTS + i * DIGEST;
      return [given, { bits: element(at + BITS), outline: element(at + OUTLINE) }];
    });
    this.digests = Object.fromEntries(outputs) as Record<BatchUse, DigestOutputs>;
  }

  /** Collects all rows and `partials`, for later work on the compute stream. */
  gather(): void {
    this.gatherRows();
    this.gatherPartials();
  }

  /**
   * Returns the mean of all ranks' losses over `micros` micro-batches and the data ranks: a scalar
   * f32. The current scope owns it.
   */
  meanLoss(micros: number): Tensor {
    const { all } = this;
    const { lossRanks } = this.ranks;
    const from = all.offset + (lossRanks[0] ?? 0) * this.width + this.columns.count + LOSS;
    const stride = strideOf(lossRanks) * this.width;
    return noGrad(() =>
      scope(() =>
        all
          .alias([lossRanks.length], [stride], from)
          .sum()
          .div(micros * lossRanks.length),
      ),
    );
  }

  /** Interprets the host copy of `all`. */
  read(values: Float32Array): ReportedRows {
    return new ReportedRows(values, this.columns.count);
  }

  dispose(): void {
    for (const square of this.squares) square.release();
    for (const element of [this.lossSum, this.stop, this.micros, this.busy]) element.release();
    for (const { bits, outline } of Object.values(this.digests)) {
      bits.release();
      outline.release();
    }
    this.partials.release();
    this.all.release();
  }

  /** Elements per row. */
  private get width(): number {
    return this.columns.count + EXTRA_COLUMNS;
  }

  /**
   * Returns the memory of `partials`. If the rows of the norm ranks contain all sums with equal
   * strides, it is a view of the rows. Otherwise it is a tensor that gatherPartials() fills.
   */
  private partialsOfAll(): Tensor {
    const { columns } = this;
    const { normRanks } = this.ranks;
    // In a pipeline, the norm ranks of the sums may belong to another stage.
    const ranks = columns.runs[0]?.ranks ?? normRanks;
    if (this.isScattered) {
      return zeros([normRanks.length, columns.count], { device: this.all.device });
    }
    return this.sumsOf(ranks, { offset: 0, numel: columns.count });
  }

  /** Whether sums are in the rows of several stages, or in rows with unequal strides. */
  private get isScattered(): boolean {
    const { runs } = this.columns;
    const ranks = runs[0]?.ranks ?? this.ranks.normRanks;
    return runs.length > 1 || divideIntoRuns(ranks).length > 1;
  }

  /** Returns the columns `range` in the rows of `ranks`. The ranks have equal distances. */
  private sumsOf(ranks: readonly number[], { offset, numel }: Range): Tensor {
    const { width, all } = this;
    const shape = [ranks.length, numel];
    const from = all.offset + (ranks[0] ?? 0) * width + offset;
    return all.alias(shape, [strideOf(ranks) * width, 1], from);
  }

  /** All-gathers the rows in place, in the order of the compute stream. */
  private gatherRows(): void {
    const { width, all } = this;
    const { world } = this.ranks;
    const { compute } = all.device;
    const flat = all.alias([all.numel], undefined, all.offset);
    const ownRow = all.alias([width], undefined, all.offset + world.rank * width);
    world.allGather(flat, ownRow, { stream: compute, purpose: 'gradient norms' }).wait(compute);
    ownRow.dispose();
    flat.dispose();
  }

  /**
   * Copies the sums of all stages into `partials`, in one order of columns. Each stage has only the
   * sums of its own partitions.
   */
  private gatherPartials(): void {
    const { columns } = this;
    if (!this.isScattered) return;
    const { partials } = this;
    for (const { ranks, ...range } of columns.runs) {
      let row = 0;
      for (const run of divideIntoRuns(ranks)) {
        const sums = held(() => this.sumsOf(run, range));
        const shape = [run.length, range.numel];
        const from = partials.offset + row * columns.count + range.offset;
        const out = held(() => partials.alias(shape, [columns.count, 1], from));
        kernels.copy({ in: sums, out });
        sums.release();
        out.release();
        row += run.length;
      }
    }
  }
}

/** The rows of all ranks, on the host. */
export class ReportedRows {
  /** `values` as integers. The bits of a digest may form a NaN, which f32 code could change. */
  private readonly bits: Int32Array;

  constructor(
    private readonly values: Float32Array,
    private readonly columns: number,
  ) {
    this.bits = new Int32Array(values.buffer, values.byteOffset, values.length);
  }

  /** Returns the sums of squares that a rank has written. Other columns are 0. */
  squaresOf(rank: number): Float32Array {
    const start = this.startOf(rank);
    return this.values.subarray(start, start + this.columns);
  }

  /** Returns the sum of a rank's losses over its micro-batches. */
  lossOf(rank: number): number {
    return this.extraValue(rank, LOSS);
  }

  requestsStop(rank: number): boolean {
    return this.extraValue(rank, STOP) !== 0;
  }

  digestOf(rank: number, batch: BatchUse): ReportedDigest {
    const at = DIGESTS + DIGEST * BATCHES.indexOf(batch);
    const bits = required(this.bits[this.startOf(rank) + this.columns + at + BITS]);
    return { bits, outline: this.extraValue(rank, at + OUTLINE) };
  }

  /** Returns the number of micro-batches in the step of a rank. */
  microsOf(rank: number): number {
    return this.extraValue(rank, MICROS);
  }

  /** Returns the busy milliseconds of a rank in an earlier step; 0 if unknown. */
  busyOf(rank: number): number {
    return this.extraValue(rank, BUSY);
  }

  private extraValue(rank: number, what: number): number {
    return required(this.values[this.startOf(rank) + this.columns + what]);
  }

  private startOf(rank: number): number {
    return rank * (this.columns + EXTRA_COLUMNS);
  }
}

/** Returns the distance between consecutive ranks of a list. */
const strideOf = ([first = 0, second = first + 1]: readonly number[]): number => second - first;

/** Divides an ascending list of ranks into runs with equal distances. */
function divideIntoRuns(ranks: readonly number[]): number[][] {
  const runs: number[][] = [];
  for (const rank of ranks) {
    const last = runs.at(-1);
    if (!last || (last.length > 1 && rank - required(last.at(-1)) !== strideOf(last))) {
      runs.push([rank]);
    } else {
      last.push(rank);
    }
  }
  return runs;
}

/** Which columns of a row hold sums of squares. Each rank fills its own columns. */
export interface Columns {
  /** Number of columns, over all stages. */
  readonly count: number;
  /** The columns of this rank's partitions, in order. */
  readonly ownColumns: readonly number[];
  /** For each range of columns: the ranks that fill it, which are the norm ranks of one stage. */
  readonly runs: readonly (Range & { readonly ranks: readonly number[] })[];
}

/** Returns the columns if all ranks have the same partitions. */
function allColumns(partitions: number, ranks: readonly number[]): Columns {
  const ownColumns = Array.from({ length: partitions }, (_, i) => i);
  return { count: partitions, ownColumns, runs: [{ offset: 0, numel: partitions, ranks }] };
}

/**
 * Returns the columns of a pipeline. `owners`: for each column, its stage. `ranks`: for each stage,
 * its norm ranks. `rank`: this stage.
 */
export function assignStageColumns(
  owners: readonly number[],
  ranks: readonly (readonly number[])[],
  rank: number,
): Columns {
  const runs: { offset: number; numel: number; owner: number }[] = [];
  owners.forEach((owner, offset) => {
    const last = runs.at(-1);
    if (last?.owner === owner) last.numel++;
    else runs.push({ offset, numel: 1, owner });
  });
  return {
    count: owners.length,
    ownColumns: owners.flatMap((owner, column) => (owner === rank ? [column] : [])),
    runs: runs.map(({ owner, ...range }) => ({ ...range, ranks: ranks[owner] ?? [] })),
  };
}

/**
 * Returns the columns of the partitions' sums in a row, in the order of layers. In a pipeline, all
 * ranks must call it.
 */
export function assignColumns(
  pipeline: Pipeline | null,
  partitions: readonly Partition[],
  { world, normRanks, tensorGroup, mesh }: Ranks,
): Columns {
  if (!pipeline || pipeline.place.ranks === 1) return allColumns(partitions.length, normRanks);
  const { layers, place } = pipeline;
  const counts = held(() => zeros([world.size, layers.length], { device: world.device }));
  const ownCounts = new Array<number>(layers.length).fill(0);
  const own = partitions.map((partition) => firstLayer(pipeline, partition));
  for (const layer of own) ownCounts[layer] = (ownCounts[layer] ?? 0) + 1;
  const row = held(() => Tensor.from(ownCounts, { device: world.device }));
  world.allGather(counts, row, { purpose: 'units of stages' }).wait();
  const all = counts.toArray();
  counts.release();
  row.release();
  const ofStage = mesh.shape.ranksAlong(world.rank, AXIS.pipeline);
  const owners = layers.flatMap((_, layer) =>
    ofStage.flatMap((rank, stage) =>
      new Array<number>(all[rank * layers.length + layer] ?? 0).fill(stage),
    ),
  );
  const countingRanks = ofStage.map((rank) =>
    normRanksAt(mesh, rank, { layers: tensorGroup !== null }),
  );
  return assignStageColumns(owners, countingRanks, place.rank);
}

/** Returns the first layer on this rank that reads the parameters of the partition. */
function firstLayer({ layers, starts, ownStages }: Pipeline, { unit }: Partition): number {
  const [first] = unit.parameters;
  const own = ownStages.flatMap((stage) => {
    const [from = 0, to = 0] = starts.slice(stage, stage + 2);
    return Array.from({ length: to - from }, (_, i) => from + i);
  });
  const reads = (layer: number): boolean =>
    layers[layer]?.modules.some((module) =>
      module.parameters().some((parameter) => parameter === first?.parameter),
    ) ?? false;
  return own.find(reads) ?? own[0] ?? 0;
}

/** The elements of this rank's row that hold a digest. */
export interface DigestOutputs {
  /** Holds the bits of an i32. */
  bits: Tensor;
  /** Holds an integer below 2^24. It is 0 if the batch has no tensor. */
  outline: Tensor;
}
