// Computes what the scheduler has planned: one forward over ragged tokens, and the next token of
// each sequence that is complete.
import { type JointGroups, jointly } from '../comm/index.js';
import type { CausalLM } from '../models/index.js';
import * as kernels from '../runtime/kernels.generated.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';
import { type CacheSizes, onDevice, PagedCache } from './paged-cache.js';
import { Readback } from './readback.js';
import { type Sampled, type SampledToken, sampledTensors, sampledTokens } from './sampling.js';
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';
import { type StepBatch, stepBatch, wordsOf } from './step-batch.js';
import { mostPadding, StepGraphs } from './step-graphs.js';
import { Uploads } from './uploads.js';

/** Chooses the next token of sequences from their scores [S, V], and writes it to `into` [S]. */
export type Choose = (scores: Tensor, sequences: readonly Sequence[], into: Tensor) => Sampled;

/** A token for each sequence whose last one was among a step's. */
export interface NextToken {
  readonly sequence: Sequence;
  readonly sampled: SampledToken;
}

/** A step that the device computes. */
export interface Flight {
  /** Resolves when it is done, in turns of the event loop. Rejects with what has gone wrong. */
  landed(): Promise<void>;
  /** What has followed, once it is done and before the second next launch. */
  next(): NextToken[];
  /** Sequences whose next token it samples. */
  readonly sequences: readonly Sequence[];
}

/** What a runner has room for. */
export interface RunnerSizes {
  /** Blocks of the cache. */
  blocks: number;
  /** Most tokens of a step. */
  tokens: number;
  /** Most sequences of a step. */
  sequences: number;
  /** The longest text. */
  reach: number;
  /** Whether steps of single tokens are recorded. */
  records: boolean;
}

/**
 * A model with its cache. The tokens that a step samples stay on the device, where the next one
 * finds them: it may be launched before the host knows them.
 */
export class StepRunner {
  private readonly cache: PagedCache;
  private readonly uploads: Uploads;
  private readonly readback: Readback;
  private readonly graphs: StepGraphs | null;
  /** The numbers of a step, on the host and, in the order of its steps, on the device. */
  private readonly words: Int32Array;
  private readonly numbers: Tensor;
  /** What the last step has sampled, [sequences]. */
  private readonly sampled: Tensor;
  /** Milliseconds of each forward; null while nobody measures. */
  times: number[] | null = null;
  /** Is told of each batch before it is computed; null where nobody else computes it. */
  announce: ((batch: StepBatch) => void) | null = null;
  /** Those whose ranks compute each batch together. */
  together: JointGroups = {};

  /** Throws DS_OUT_OF_MEMORY. */
  constructor(
    private readonly model: CausalLM,
    private readonly sizes: CacheSizes,
    private readonly room: RunnerSizes,
  ) {
    const { device, blockSize, dtype } = sizes;
    const { blocks, tokens, sequences, reach, records } = room;
    const width = Math.ceil(reach / blockSize);
    const most = mostPadding({ sequences, width });
    const rows = Math.max(most.rows, sequences);
    this.words = new Int32Array(
      wordsOf({ tokens: Math.max(tokens, rows), sequences: rows, ends: rows, width: most.width }),
    );
    this.cache = new PagedCache(sizes, blocks);
    this.numbers = held(() => Tensor.empty([this.words.length], 'i32', device));
    this.sampled = held(() => Tensor.empty([rows], 'i32', device));
    const { vocabSize } = model;
    this.graphs = records ? new StepGraphs(device, { sequences, width, vocabSize, dtype }) : null;
    this.uploads = new Uploads(device);
    this.readback = new Readback(device);
  }

  /**
   * Enqueues a step, whose tokens `choose` samples, and waits for nothing. Sequences may be one
   * token ahead of the host, which the last step has sampled. Two steps may be under way.
   */
  launch(slices: readonly Slice[], choose: Choose): Flight {
    const { blockSize } = this.sizes;
    const padding = this.graphs?.paddingFor(slices, blockSize) ?? null;
    const { batch, ended } = stepBatch(slices, { blockSize, padding, into: this.words });
    this.announce?.(batch);
    return noGrad(() =>
      scope(() => {
        const forward = (): Tensor => this.forward(batch);
        const scores = jointly(this.together, () => {
          this.uploads.write(this.numbers.buffer, 0, batch.numbers);
          return this.timed(() =>
            padding && this.graphs ? this.graphs.run(padding, forward) : forward(),
          );
        });
        const count = ended.length;
        const into = this.sampled.narrow(0, 0, count);
        const sampled = count > 0 ? choose(scores.narrow(0, 0, count), ended, into) : null;
        const arrival = this.readback.begin(sampled ? sampledTensors(sampled) : []);
        for (const [row, sequence] of ended.entries()) sequence.expect(row);
        return {
          sequences: ended,
          landed: () => arrival.reached(),
          next: () => (sampled ? reported(ended, sampledTokens(sampled, arrival.values())) : []),
        };
      }),
    );
  }

  /** Enqueues the forward of a batch of another rank, which knows all its tokens and samples. */
  compute(batch: StepBatch): void {
    jointly(this.together, () => {
      this.uploads.write(this.numbers.buffer, 0, batch.numbers);
      noGrad(() => scope(() => void this.timed(() => this.forward(batch))));
    });
  }

  /** The scores [ends, V] of a batch whose numbers are on the device. */
  private forward(batch: StepBatch): Tensor {
    const { reach } = this.room;
    return scope(() => {
      const lists = onDevice(batch, this.numbers);
      const row = (list: Tensor): Tensor => list.reshape([1, batch.tokens]);
      const places = {
        ...{ documents: null, start: 0, reach, alike: reach },
        positions: row(lists.positions),
        caches: this.cache.layers,
      };
      const { tokens } = lists;
      const fed = Tensor.emptyLike(tokens);
      kernels.feedTokens({ tokens, previous: this.sampled, out: fed });
      return this.cache.run(lists, () => this.model.logitsAfter(row(fed), places, lists.ends));
    });
  }

  /** Runs a forward in evaluation mode; measures it after profileModelTime(). */
  timed<T>(forward: () => T): T {
    const { times } = this;
    if (!times) return this.evaluated(forward);
    const { device } = this.sizes;
    device.synchronize();
    const begin = performance.now();
    const result = this.evaluated(forward);
    device.synchronize();
    times.push(performance.now() - begin);
    return result;
  }

  /** A model that an engine trains is in training mode between the steps. */
  private evaluated<T>(forward: () => T): T {
    const { model } = this;
    if (!model.training) return forward();
    model.eval();
    try {
      return forward();
    } finally {
      model.train();
    }
  }

  /** Frees the cache and all else; waits for the device where steps are recorded. */
  dispose(): void {
    this.graphs?.dispose();
    this.readback.dispose();
    this.uploads.dispose();
    this.cache.dispose();
    this.numbers.dispose();
    this.sampled.dispose();
  }
}

function reported(sequences: readonly Sequence[], tokens: readonly SampledToken[]): NextToken[] {
  return sequences.map((sequence, i) => ({ sequence, sampled: tokens[i] as SampledToken }));
}
