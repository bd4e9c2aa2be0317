// Steps of single tokens, recorded once for each size and run again with one call: a step is made
// to look like the next larger one that was recorded.
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
  private readonly graphs = new Map<string, Graph>();
  /** [rows, vocabSize]. */
  private readonly scores: Tensor;
  private failed = false;

  /** Throws DS_OUT_OF_MEMORY. */
  constructor(
    private readonly device: Device,
    sizes: GraphSizes,
  ) {
    const { rows } = mostPadding(sizes);
    this.scores = held(() => Tensor.empty([rows, sizes.vocabSize], sizes.dtype, device));
  }

  /** How a step with these slices is to look; null for one that no graph computes. */
  paddingFor(slices: readonly Slice[], blockSize: number): Padding | null {
    if (this.failed) return null;
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
   * a warning says, steps are computed as they come from then on.
   */
  run({ rows, width }: Padding, forward: () => Tensor): Tensor {
    const scores = this.scores.narrow(0, 0, rows);
    const key = `${rows}x${width}`;
    const found = this.graphs.get(key);
    if (found) found.launch();
    else this.record(key, () => scope(() => kernels.copy({ in: forward(), out: scores })));
    return scores;
  }

  private record(key: string, body: () => void): void {
    let hasRun = false;
    const onRun = (): void => {
      hasRun = true;
    };
    try {
      this.graphs.set(key, Graph.record(this.device, body, onRun));
    } catch (error) {
      if (!hasRun) throw error;
      this.failed = true;
      const why = error instanceof DsError ? error.message : String(error);
      const notice = `enable_cuda_graph: the steps of this model cannot be recorded, so that their kernels are launched one by one: ${why}`;
      process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CUDA' });
    }
  }

  /** Waits for the device and frees everything. */
  dispose(): void {
    for (const graph of this.graphs.values()) graph.dispose();
    this.graphs.clear();
    this.scores.dispose();
  }
}
