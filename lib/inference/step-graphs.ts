// Records decode steps as graphs: pads a step to a recorded size and launches it as one graph.

import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { Graph } from '../runtime/graph.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { held, scope, Tensor } from '../tensor/index.js';
import { maxTiles, tileCapacity } from './adapters/rows.js';
import type { Slice } from './scheduler.js';
import type { Padding } from './step-batch.js';

/** Recorded numbers of sequences. Larger steps run without a graph. */
const ROWS = [
  1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024,
];
/** Smallest recorded table width, in blocks. */
const MIN_WIDTH = 8;
/**
 * Maximum number of cached graphs: the sizes up to 512 for contexts of 2048 tokens in blocks of 64.
 */
const MAX_GRAPHS = 52;

/** A recorded step. */
type StepRecording = Pick<Graph, 'launch' | 'dispose'>;

/** Records a step; see Graph.record(). */
export type Recorder = (device: Device, body: () => void, onRun: () => void) => StepRecording;

/**
 * The steps to record. All include the next token of one sequence.
 *
 * - decoding: of several sequences, and the proposals of one.
 * - drafting: of several sequences, and any few tokens of one.
 * - alone: any few tokens of one sequence.
 */
export type RecordedSteps = 'decoding' | 'drafting' | 'alone';

/** Largest sizes of an engine's steps. */
interface GraphSizes {
  /** Sequences of a step. */
  readonly sequences: number;
  /** Blocks of a sequence. */
  readonly width: number;
  /** Vocabulary size, and dtype of the scores. */
  readonly vocabSize: number;
  readonly dtype: DType;
  /** Slots of adapters. Default: 0. */
  readonly adapters?: number;
  /** Sampled tokens of a sequence in a step: 1, and its proposals. Default: 1. */
  readonly lanes?: number;
  /** Default: 'decoding'. */
  readonly recorded?: RecordedSteps;
}

/** Returns the largest padded size. */
export function maxPadding({
  sequences,
  width,
  adapters = 0,
}: Pick<GraphSizes, 'sequences' | 'width' | 'adapters'>): Padding {
  const rows = paddedRows(sequences) ?? required(ROWS.at(-1));
  return { rows, width: paddedWidth(width), tiles: maxTiles(rows, adapters) };
}

/** Maximum number of tokens of a recorded step with one sequence. */
const MAX_ALONE = 32;

const paddedRows = (count: number): number | null => ROWS.find((rows) => rows >= count) ?? null;
const paddedWidth = (blocks: number): number =>
  Math.max(MIN_WIDTH, 2 ** Math.ceil(Math.log2(blocks)));

/**
 * Caches graphs by row count, table width and tiles of adapters. The first step of a size records
 * its graph and computes the step. All graphs read the step's inputs from one buffer and write
 * scores to one buffer.
 */
export class StepGraphs {
  /** In order of use: the least recently used graph comes first. */
  private readonly graphs = new Map<string, StepRecording>();
  /** [rows, vocabSize]. */
  private readonly scores: Tensor;
  /** Maximum number of cached graphs from now on; 0 disables recording. */
  private max = MAX_GRAPHS;
  private readonly adapters: number;
  private readonly recorded: RecordedSteps;

  constructor(
    private readonly device: Device,
    sizes: GraphSizes,
    private readonly record: Recorder = (...of) => Graph.record(...of),
  ) {
    const rows = Math.max(maxPadding(sizes).rows, sizes.lanes ?? 1);
    this.adapters = sizes.adapters ?? 0;
    this.recorded = sizes.recorded ?? 'decoding';
    this.scores = held(() => Tensor.empty([rows, sizes.vocabSize], sizes.dtype, device));
  }

  /** Number of cached graphs. */
  get count(): number {
    return this.graphs.size;
  }

  /** Returns the padded size of a step; null if it runs without a graph. */
  paddingFor(slices: readonly Slice[], blockSize: number): Padding | null {
    if (this.max === 0) return null;
    const [first] = slices;
    if (first && slices.length === 1) return this.paddingAlone(first, blockSize);
    if (this.recorded === 'alone') return null;
    let longest = 1;
    for (const { sequence, first, count } of slices) {
      if (count !== 1 || first + 1 !== sequence.extent) return null;
      longest = Math.max(longest, first + 1);
    }
    const rows = paddedRows(slices.length);
    if (rows === null) return null;
    const width = paddedWidth(Math.ceil(longest / blockSize));
    const slots = slices.map(({ sequence }) => sequence.adapter);
    return { rows, width, tiles: tileCapacity(slots, rows, this.adapters) };
  }

  /**
   * Returns the padded size of a step with one sequence: its next token, optionally with proposals.
   */
  private paddingAlone({ sequence, first, count }: Slice, blockSize: number): Padding | null {
    const ends = 1 + sequence.proposals.length;
    const isRecorded = this.recorded !== 'decoding' || count === ends;
    if (!isRecorded || count > MAX_ALONE || first + count !== sequence.extent) return null;
    const slots = Array<number>(count).fill(sequence.adapter);
    const tiles = tileCapacity(slots, count, this.adapters);
    const width = paddedWidth(Math.ceil((first + count) / blockSize));
    return { rows: count, width, tiles, ...(count > 1 && { ends }) };
  }

  /**
   * Returns the scores [rows, vocabSize] of a step; the next step overwrites them. `forward`
   * computes them from the step's inputs, in the memory of `into` if it can. Throws the errors of
   * `forward`. If recording fails, it warns and stops recording. If memory is short, it warns,
   * frees all graphs and halves their limit.
   */
  run({ rows, width, tiles, ends }: Padding, forward: (into: Tensor) => Tensor): Tensor {
    const scores = (): Tensor => this.scores.narrow(0, 0, ends ?? rows);
    const key = `${rows}x${width}x${tiles}x${ends ?? ''}`;
    const compute = () =>
      scope(() => {
        const into = scores();
        const computed = forward(into);
        if (!isSameView(computed, into)) kernels.copy({ in: computed, out: into });
      });
    const recording = this.graphs.get(key) ?? null;
    if (recording) {
      this.graphs.delete(key);
      this.graphs.set(key, recording);
      recording.launch();
    } else this.addGraph(key, compute);
    return scores();
  }

  private addGraph(key: string, compute: () => void): void {
    let hasRun = false;
    const onRun = (): void => {
      hasRun = true;
    };
    this.keepLast(this.max - 1);
    try {
      this.graphs.set(key, this.record(this.device, compute, onRun));
    } catch (error) {
      if (isOutOfMemory(error)) this.shrink();
      else if (!hasRun) throw error;
      else this.max = 0;
      this.warn(error);
      if (!hasRun) compute();
    }
  }

  /** Warns about a failed recording. */
  private warn(error: unknown): void {
    const why = error instanceof DsError ? error.message : String(error);
    const what =
      this.max === 0
        ? 'the steps of this model cannot be recorded, so that their kernels are launched one by one'
        : `at most ${this.max} recorded steps are kept from now on`;
    const notice = `enable_cuda_graph: ${what}: ${why}`;
    process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CUDA' });
  }

  /** Frees all graphs and halves their limit. */
  private shrink(): void {
    this.max = Math.floor((this.graphs.size + 1) / 2);
    this.keepLast(0);
  }

  /** Frees all but the `count` most recently used graphs. */
  private keepLast(count: number): void {
    for (const [key, graph] of this.graphs) {
      if (this.graphs.size <= count) return;
      this.graphs.delete(key);
      graph.dispose();
    }
  }

  /** Frees all graphs. Later steps record new graphs. */
  forget(): void {
    this.keepLast(0);
  }

  /** Waits for the device and frees all graphs. */
  dispose(): void {
    this.keepLast(0);
    this.scores.dispose();
  }
}

/** Returns whether two contiguous tensors of one size have the same memory. */
const isSameView = (a: Tensor, b: Tensor): boolean =>
  a.buffer === b.buffer && a.offset === b.offset && a.isContiguous;

const isOutOfMemory = (error: unknown): boolean =>
  error instanceof DsError && error.code === 'DS_OUT_OF_MEMORY';
