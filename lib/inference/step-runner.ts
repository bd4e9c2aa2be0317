// Computes a planned step: one forward over packed tokens, then sampling.

import { type JointGroups, jointly } from '../comm/index.js';
import type { CausalLM, Places } from '../models/index.js';
import { Buffer } from '../runtime/buffer.js';
import * as kernels from '../runtime/kernels.generated.js';
import { required } from '../runtime/required.js';
import { held, indexSelect, noGrad, runBatchInvariant, scope, Tensor } from '../tensor/index.js';
import type { Adapters } from './adapters/adapters.js';
import { maxTiles } from './adapters/rows.js';
import { HostBlocks } from './host-blocks.js';
import { blockBytes, type CacheSizes, PagedCache, splitLists } from './paged-cache.js';
import { Readback } from './readback.js';
import {
  type SampledToken,
  type SamplingResult,
  sampledTensors,
  sampledTokens,
} from './sampling.js';
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';
import type { RunnerHooks } from './speculation/features.js';
import { buildBatch, countWords, type StepBatch } from './step-batch.js';
import { maxPadding, type RecordedSteps, StepGraphs } from './step-graphs.js';
import { Uploads } from './uploads.js';

/** A row of scores. */
export interface ScoreRow {
  readonly sequence: Sequence;
  /** Number of proposals of the sequence before the sampled token. */
  readonly ahead: number;
}

/** Samples the tokens of rows from scores [R, V] and writes them to `into` [R]. */
type SampleRows = (scores: Tensor, rows: readonly ScoreRow[], into: Tensor) => SamplingResult;

/** The next tokens of a sequence. */
export interface NextTokens {
  readonly sequence: Sequence;
  /** The accepted proposals and the token after them. Without proposals: one token. */
  readonly sampled: readonly SampledToken[];
  /** Number of verified proposals. */
  readonly proposed: number;
}

/** A step after its forward, before its sampling. */
export interface ForwardedStep {
  /** Scores of the next tokens, [R, V]; sample() frees them. */
  readonly scores: Tensor;
  /** The sequences of the rows, in order; each has a row, and a row per proposal. */
  readonly sequences: readonly Sequence[];
}

/** A step in flight on the device. */
export interface StepInFlight {
  /** Resolves when the step is done, in turns of the event loop. Rejects with its error. */
  landed(): Promise<void>;
  /** Returns the sampled tokens. Call it after landed() and before the second next launch. */
  next(): NextTokens[];
  /** Sequences that get sampled tokens from the step. */
  readonly sequences: readonly Sequence[];
  /** Whether the step verifies proposals. If so, only the host can tell which tokens are next. */
  readonly isSpeculative: boolean;
}

/** Largest sizes of a runner. */
export interface RunnerSizes {
  /** Blocks of the cache. */
  blocks: number;
  /** Maximum number of tokens of a step. */
  tokens: number;
  /** Maximum number of sequences of a step. */
  sequences: number;
  /** Length of the longest sequence. */
  reach: number;
  /** Maximum number of proposals of a sequence. Default: 0. */
  proposals?: number;
  /** Records steps as graphs. */
  records: boolean;
  /** The steps to record. Default: 'decoding'. */
  recorded?: RecordedSteps;
  /** Adapters of the model. Default: none. */
  adapters?: Adapters | null;
  /** Work around each forward. Default: none. */
  hooks?: RunnerHooks | null;
}

/** Fewest positions of a step's tables. */
const LEAST_REACH = 4096;

/** The module that a runner calls: a language model, or an EAGLE-3 head. */
interface StepModel extends Pick<CausalLM, 'vocabSize' | 'training' | 'logitsAfter'> {
  eval(): unknown;
  train(): unknown;
}

/**
 * A model with its key-value cache. Sampled tokens stay on the device, where the next step reads
 * them. So the host can launch a step before it has the tokens of the last one.
 */
export class StepRunner {
  private readonly cache: PagedCache;
  /** Evicted blocks of the prefix cache. */
  private host: Buffer | null = null;
  private readonly uploads: Uploads;
  private readonly readback: Readback;
  private readonly graphs: StepGraphs | null;
  /** Inputs of a step on the host. On the device they change in stream order. */
  private readonly words: Int32Array;
  private readonly numbers: Tensor;
  /** Tokens of the last step, [sequences]. */
  private readonly sampled: Tensor;
  /** Reaches of the steps so far. The model has tables of positions for them. */
  private readonly reaches = new Set<number>();
  /** Milliseconds of each forward; null unless profiling is on. */
  times: number[] | null = null;
  /** Called with each batch before its computation. Null without sharing. */
  announce: ((batch: StepBatch) => void) | null = null;
  /** Groups of ranks that compute each batch together. */
  together: JointGroups = {};

  /** Throws DS_OUT_OF_MEMORY if cache and buffers do not fit. */
  constructor(
    private readonly model: StepModel,
    private readonly sizes: CacheSizes,
    private readonly limits: RunnerSizes,
  ) {
    const { device, blockSize, dtype } = sizes;
    const { blocks, tokens, sequences, reach, records, proposals = 0 } = limits;
    const adapters = limits.adapters?.count ?? 0;
    const width = Math.ceil(Math.min(reach, blocks * blockSize) / blockSize);
    const max = maxPadding({ sequences, width });
    const rows = Math.max(max.rows, sequences);
    const ends = Math.max(rows, Math.min(tokens, sequences * (1 + proposals)));
    const largest = Math.max(tokens, rows);
    const tiles = maxTiles(largest, adapters);
    this.words = new Int32Array(
      countWords({ tokens: largest, sequences: rows, ends, width: max.width, tiles }),
    );
    this.cache = new PagedCache(sizes, blocks, sequences);
    this.numbers = held(() => Tensor.empty([this.words.length], 'i32', device));
    this.sampled = held(() => Tensor.empty([ends], 'i32', device));
    const { vocabSize } = model;
    const { recorded = 'decoding' } = limits;
    const lanes = 1 + proposals;
    const graphSizes = { sequences, width, vocabSize, dtype, adapters, lanes, recorded };
    this.graphs = records ? new StepGraphs(device, graphSizes) : null;
    this.uploads = new Uploads(device);
    this.readback = new Readback(device);
  }

  /**
   * Enqueues a step without waiting. `choose` samples its tokens. Sequences may include one token
   * of the last step that the host does not have. At most two steps are in flight.
   */
  launch(slices: readonly Slice[], choose: SampleRows): StepInFlight {
    return this.sample(this.begin(slices), choose);
  }

  /** Enqueues the forward of a step. Exactly one sample() follows, before the next begin(). */
  begin(slices: readonly Slice[]): ForwardedStep {
    const { blockSize } = this.sizes;
    const padding = this.graphs?.paddingFor(slices, blockSize) ?? null;
    const { batch, ended } = buildBatch(slices, { blockSize, padding, into: this.words });
    this.announce?.(batch);
    const scores = scope(() =>
      noGrad(() => {
        const forward = (into: Tensor | null): Tensor => this.forward(batch, into);
        const scores = jointly(this.together, () => {
          this.uploads.write(this.numbers.buffer, 0, batch.numbers);
          // A forward that makes tables of positions leaves them behind; a recorded one must not.
          const reach = this.reachOf(batch);
          const graphs = this.reaches.has(reach) ? this.graphs : null;
          const scores = this.timeForward(() =>
            padding && graphs ? graphs.run(padding, forward) : forward(null),
          );
          this.reaches.add(reach);
          return scores;
        });
        return scores.narrow(0, 0, countRows(ended));
      }),
    );
    return { scores, sequences: ended };
  }

  /** Enqueues the sampling of a step, without sequences that have ended since begin(). */
  sample(
    { scores, sequences: ended }: ForwardedStep,
    choose: SampleRows,
    isLive: (sequence: Sequence) => boolean = () => true,
  ): StepInFlight {
    try {
      return noGrad(() =>
        scope(() => {
          const all = listRows(ended);
          const liveRows = all.flatMap(({ sequence }, row) => (isLive(sequence) ? [row] : []));
          const rows = liveRows.map((row) => required(all[row]));
          const count = rows.length;
          const into = this.sampled.narrow(0, 0, count);
          const rowScores = count === all.length ? scores : selectScores(scores, liveRows);
          const sampled = count > 0 ? choose(rowScores, rows, into) : null;
          const arrival = this.readback.begin(sampled ? sampledTensors(sampled) : []);
          const sequences = ended.filter(isLive);
          const isSpeculative = count > sequences.length;
          if (!isSpeculative)
            for (const [row, { sequence }] of rows.entries()) sequence.expect(row);
          return {
            sequences,
            isSpeculative,
            landed: () => arrival.done(),
            next: () =>
              sampled ? verifyProposals(sequences, sampledTokens(sampled, arrival.values())) : [],
          };
        }),
      );
    } finally {
      scores.dispose();
    }
  }

  /**
   * Enqueues the forward of a batch from rank 0, which samples. The batch contains all its tokens.
   */
  compute(batch: StepBatch): void {
    jointly(this.together, () => {
      this.uploads.write(this.numbers.buffer, 0, batch.numbers);
      noGrad(() => scope(() => void this.timeForward(() => this.forward(batch))));
    });
  }

  /**
   * Returns scores [ends, V], in the memory of `into` if possible. The inputs of the batch are
   * already on the device.
   */
  private forward(batch: StepBatch, into: Tensor | null = null): Tensor {
    const reach = this.reachOf(batch);
    return scope(() => {
      const lists = splitLists(batch, this.numbers);
      const row = (list: Tensor): Tensor => list.reshape([1, batch.tokens]);
      const places = {
        documents: null,
        start: 0,
        reach,
        angleLength: this.limits.reach,
        positions: row(lists.positions),
        caches: this.cache.layers,
      };
      const { tokens } = lists;
      const fed = Tensor.emptyLike(tokens);
      kernels.feedTokens({ tokens, previous: this.sampled, out: fed });
      const forwardAt = (positions: Places): Tensor =>
        this.model.logitsAfter(row(fed), positions, lists.ends, into);
      const { hooks } = this.limits;
      const model = (): Tensor =>
        hooks?.around(lists.slots, places, forwardAt) ?? forwardAt(places);
      const logits = (): Tensor => runBatchInvariant(model, this.sizes.isInvariant ?? false);
      const { adapters } = this.limits;
      const adapted = adapters && batch.tiles > 0 ? () => adapters.run(lists, logits) : logits;
      return this.cache.run(lists, adapted);
    });
  }

  /** The longest sequence that the block tables of a batch can hold. */
  private reachOf({ width }: StepBatch): number {
    return Math.min(this.limits.reach, Math.max(width * this.sizes.blockSize, LEAST_REACH));
  }

  /** Runs a forward in evaluation mode. Measures it after profileModelTime(). */
  timeForward<T>(forward: () => T): T {
    const { times } = this;
    if (!times) return this.runInEval(forward);
    const { device } = this.sizes;
    device.synchronize();
    const begin = performance.now();
    const result = this.runInEval(forward);
    device.synchronize();
    times.push(performance.now() - begin);
    return result;
  }

  /** Between training steps, a model of a training engine is in training mode. */
  private runInEval<T>(forward: () => T): T {
    const { model } = this;
    if (!model.training) return forward();
    model.eval();
    try {
      return forward();
    } finally {
      model.train();
    }
  }

  /** Frees the pools of the cache and the recorded steps, which hold their addresses. */
  sleep(): void {
    this.graphs?.forget();
    this.cache.sleep();
  }

  /**
   * Allocates host memory for `count` evicted blocks. Throws DS_OUT_OF_MEMORY if it does not fit.
   */
  hostBlocks(count: number): HostBlocks {
    const { device } = this.sizes;
    const bytes = blockBytes(this.sizes);
    const isCpu = device.kind === 'cpu';
    const host = isCpu
      ? Buffer.allocate(device, count * bytes)
      : Buffer.allocatePinned(device, count * bytes);
    this.host = host;
    return new HostBlocks(count, {
      save: (block, slot) => this.cache.copyBlock(block, host, slot * bytes, true),
      load: (slot, block) => this.cache.copyBlock(block, host, slot * bytes, false),
    });
  }

  /** Allocates the pools again. Throws DS_OUT_OF_MEMORY if they no longer fit. */
  wake(): void {
    this.cache.wake();
  }

  /** Frees the cache and all buffers. Waits for the device if steps are recorded. */
  dispose(): void {
    this.graphs?.dispose();
    this.readback.dispose();
    this.uploads.dispose();
    this.cache.dispose();
    this.host?.release();
    this.numbers.dispose();
    this.sampled.dispose();
  }
}

/** Returns the selected rows of scores, [rows, V]. */
function selectScores(scores: Tensor, rows: readonly number[]): Tensor {
  const index = Tensor.from([...rows], { dtype: 'i64', device: scores.device });
  return indexSelect(scores, 0, index);
}

const countRows = (sequences: readonly Sequence[]): number =>
  sequences.reduce((sum, { proposals }) => sum + 1 + proposals.length, 0);

function listRows(sequences: readonly Sequence[]): ScoreRow[] {
  return sequences.flatMap((sequence) =>
    Array.from({ length: 1 + sequence.proposals.length }, (_, ahead) => ({ sequence, ahead })),
  );
}

/**
 * Compares the sampled tokens of each sequence with its proposals. A token counts if all proposals
 * before it equal the tokens that were sampled at their positions.
 */
function verifyProposals(
  sequences: readonly Sequence[],
  tokens: readonly SampledToken[],
): NextTokens[] {
  let row = 0;
  return sequences.map((sequence) => {
    const { proposals } = sequence;
    const sampled = tokens.slice(row, row + 1 + proposals.length);
    row += sampled.length;
    const wrong = proposals.findIndex((token, i) => token !== sampled[i]?.token);
    const valid = wrong < 0 ? sampled : sampled.slice(0, wrong + 1);
    return { sequence, sampled: valid, proposed: proposals.length };
  });
}
