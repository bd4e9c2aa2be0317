// Steps of single tokens, recorded once for each size and run again with one call: a step is made
// to look like the next larger one that was recorded, and what was not run for longest goes.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { Graph } from '../runtime/graph.js';
import * as kernels from '../runtime/kernels.generated.js';
import { held, scope, Tensor } from '../tensor/index.js';
import type { Slice } from './scheduler.js';
import type { Padding } from './step-batch.js';

/** Sequences of a recorded step; more run as they are. */
const ROWS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/** Blocks of the narrowest recorded tables. */
const LEAST_WIDTH = 8;
/** Recorded steps at a time: all of a context of 2048 tokens, in blocks of 64. */
const MOST_GRAPHS = 48;

/** A step that runs again with one call. */
export type Recording = Pick<Graph, 'launch' | 'dispose'>;

/** Who records: see Graph.record(). */
export type Recorder = (device: Device, body: () => void, onRun: () => void) => Recording;

/** What the steps of an engine are at most. */
export interface GraphSizes {
  /** Sequences of a step. */
  readonly sequences: number;
  /** Blocks of a sequence. */
  readonly width: number;
  /** Tokens that there are, and the dtype of their scores. */
  readonly vocabSize: number;
  readonly dtype: DType;
}

/** The most that steps are padded to. */
export function mostPadding({
  sequences,
  width,
}: Pick<GraphSizes, 'sequences' | 'width'>): Padding {
  return { rows: rowsFor(sequences) ?? (ROWS.at(-1) as number), width: widthFor(width) };
}

const rowsFor = (count: number): number | null => ROWS.find((rows) => rows >= count) ?? null;
const widthFor = (blocks: number): number =>
  Math.max(LEAST_WIDTH, 2 ** Math.ceil(Math.log2(blocks)));

/**
 * Graphs by the rows and the width of steps, each recorded when such a step comes for the first
 * time, which it computes as well. They read a step's numbers where all steps have them, and leave
 * scores in memory that all share.
 */
export class StepGraphs {
  /** The one that was run last is the last one. */
  private readonly graphs = new Map<string, Recording>();
  /** [rows, vocabSize]. */
  private readonly scores: Tensor;
  /** Recorded steps at a time from now on; with 0, steps are computed as they come. */
  private most = MOST_GRAPHS;

  /** Throws DS_OUT_OF_MEMORY. */
  constructor(
    private readonly device: Device,
    sizes: GraphSizes,
    private readonly record: Recorder = (...of) => Graph.record(...of),
  ) {
    const { rows } = mostPadding(sizes);
    this.scores = held(() => Tensor.empty([rows, sizes.vocabSize], sizes.dtype, device));
  }

  /** Recorded steps that there are. */
  get count(): number {
    return this.graphs.size;
  }

  /** How a step with these slices is to look; null for one that no graph computes. */
  paddingFor(slices: readonly Slice[], blockSize: number): Padding | null {
    if (this.most === 0) return null;
    let longest = 1;
    for (const { sequence, first, count } of slices) {
      if (count !== 1 || first + 1 !== sequence.length) return null;
      longest = Math.max(longest, first + 1);
    }
    const rows = rowsFor(slices.length);
    return rows === null ? null : { rows, width: widthFor(Math.ceil(longest / blockSize)) };
  }

  /**
   * The scores [rows, vocabSize] of a step of this form, which `forward` computes from its numbers;
   * the next step overwrites them. Throws what `forward` throws. Where it cannot be recorded, which
   * a warning says, steps are computed as they come from then on; where memory is too short for it,
   * all recorded ones go, and half as many are kept from then on.
   */
  run({ rows, width }: Padding, forward: () => Tensor): Tensor {
    const scores = (): Tensor => this.scores.narrow(0, 0, rows);
    const key = `${rows}x${width}`;
    const compute = () => scope(() => kernels.copy({ in: forward(), out: scores() }));
    const found = this.graphs.get(key) ?? null;
    if (found) {
      this.graphs.delete(key);
      this.graphs.set(key, found);
      found.launch();
    } else this.add(key, compute);
    return scores();
  }

  private add(key: string, compute: () => void): void {
    let hasRun = false;
    const onRun = (): void => {
      hasRun = true;
    };
    this.keepLast(this.most - 1);
    try {
      this.graphs.set(key, this.record(this.device, compute, onRun));
    } catch (error) {
      if (isShort(error)) this.shrink();
      else if (!hasRun) throw error;
      else this.most = 0;
      this.warn(error);
      if (!hasRun) compute();
    }
  }

  /** Says what becomes of recorded steps after `error`. */
  private warn(error: unknown): void {
    const why = error instanceof DsError ? error.message : String(error);
    const what =
      this.most === 0
        ? 'the steps of this model cannot be recorded, so that their kernels are launched one by one'
        : `at most ${this.most} recorded steps are kept from now on`;
    const notice = `enable_cuda_graph: ${what}: ${why}`;
    process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CUDA' });
  }

  /** Half as many as there would have been, and none of those that there are. */
  private shrink(): void {
    this.most = Math.floor((this.graphs.size + 1) / 2);
    this.keepLast(0);
  }

  /** Lets go of all but the `count` that were run last. */
  private keepLast(count: number): void {
    for (const [key, graph] of this.graphs) {
      if (this.graphs.size <= count) return;
      this.graphs.delete(key);
      graph.dispose();
    }
  }

  /** Waits for the device and frees everything. */
  dispose(): void {
    this.keepLast(0);
    this.scores.dispose();
  }
}

const isShort = (error: unknown): boolean =>
  error instanceof DsError && error.code === 'DS_OUT_OF_MEMORY';
