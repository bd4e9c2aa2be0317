// Computes what the scheduler has planned: one forward over ragged tokens, and the next token of
// each sequence that is complete.
import type { CausalLM } from '../models/index.js';
import { noGrad, scope, type Tensor } from '../tensor/index.js';
import { type CacheSizes, onDevice, PagedCache } from './paged-cache.js';
import type { SampledToken } from './sampling.js';
import type { Slice } from './scheduler.js';
import type { Sequence } from './sequence.js';
import { type StepBatch, stepBatch } from './step-batch.js';

/** Chooses the next token of sequences from their scores [S, V]. */
export type Choose = (scores: Tensor, sequences: readonly Sequence[]) => readonly SampledToken[];

/** A token for each sequence whose last one was among a step's. */
export interface NextToken {
  readonly sequence: Sequence;
  readonly sampled: SampledToken;
}

/** A model with its cache. */
export class StepRunner {
  private readonly cache: PagedCache;
  /** Milliseconds of each forward; null while nobody measures. */
  times: number[] | null = null;
  /** Is told of each batch before it is computed; null where nobody else computes it. */
  announce: ((batch: StepBatch) => void) | null = null;

  /** Throws DS_OUT_OF_MEMORY. */
  constructor(
    private readonly model: CausalLM,
    private readonly sizes: CacheSizes,
    blocks: number,
    /** The longest text. */
    private readonly reach: number,
  ) {
    this.cache = new PagedCache(sizes, blocks);
  }

  /** The tokens that follow complete sequences, chosen by `choose`; waits for the device. */
  run(slices: readonly Slice[], choose: Choose): NextToken[] {
    const { batch, ended } = stepBatch(slices, this.sizes.blockSize);
    this.announce?.(batch);
    const tokens = this.compute(batch, (scores) => choose(scores, ended));
    return ended.map((sequence, i) => ({ sequence, sampled: tokens[i] as SampledToken }));
  }

  /** A batch of one's own, or of another rank, whose tokens are chosen there (null). */
  compute(
    batch: StepBatch,
    choose: ((scores: Tensor) => readonly SampledToken[]) | null,
  ): readonly SampledToken[] {
    const { device } = this.sizes;
    return noGrad(() =>
      scope(() => {
        const lists = onDevice(batch, device);
        const row = (list: Tensor): Tensor => list.reshape([1, batch.tokens]);
        const places = {
          ...{ documents: null, start: 0, reach: this.reach },
          positions: row(lists.positions),
          caches: this.cache.layers,
        };
        const scores = this.timed(() =>
          this.cache.run(lists, () =>
            this.model.logitsAfter(row(lists.tokens), places, lists.ends),
          ),
        );
        return choose && batch.ends > 0 ? choose(scores) : [];
      }),
    );
  }

  /** Measures a forward where somebody has asked for it. */
  timed<T>(forward: () => T): T {
    const { times } = this;
    if (!times) return forward();
    const { device } = this.sizes;
    device.synchronize();
    const begin = performance.now();
    const result = forward();
    device.synchronize();
    times.push(performance.now() - begin);
    return result;
  }

  /** Frees the cache. */
  dispose(): void {
    this.cache.dispose();
  }
}
