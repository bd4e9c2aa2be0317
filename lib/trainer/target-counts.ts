// Counts the targets of an update over all ranks before its first backward, because losses are
// divided by this count.
import type { ProcessGroup } from '../comm/index.js';
import { NumberReadback } from '../runtime/number-readback.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Divisor, MicroBatch } from './micro-batch.js';

/** How the engine averages losses and gradients. Divisors compensate for it. */
interface Averaging {
  /** Number of ranks over which the engine averages gradients. */
  ranks: number;
  /** The engine's divisor of each loss. */
  parts: number;
}

/** The divisors of both losses of a micro-batch. */
interface Divisors {
  /** Divisor of the loss of counted targets. */
  readonly counted: Divisor;
  /** Divisor of the second loss; see MicroBatch.further. */
  readonly further: Divisor;
}

/** Counts over the ranks that have different samples. The host does not wait for them. */
export interface TargetCounts {
  /**
   * Returns the divisors for the sums of losses of an update's micro-batches. After the engine has
   * averaged, each target of all ranks has the same weight. The caller owns returned tensors.
   */
  divisors(micros: readonly MicroBatch<unknown>[], averaging: Averaging): Divisors;
  /** Returns the number of tokens of all ranks in the updates that divisors() has counted. */
  tokens(): number;
  /** Frees the tensors of this object. */
  dispose(): void;
}

/** Returns the counts over the ranks of `group`. */
export function targetCounts(group: ProcessGroup): TargetCounts {
  return group.size === 1 ? new OwnCounts() : new SharedCounts(group);
}

/** Names of the counts, in the order of the ranks' sums. */
const COUNTS = ['counted', 'further', 'tokens'] as const;
type Count = (typeof COUNTS)[number];

const sumOf = (micros: readonly MicroBatch<unknown>[], what: Count): number =>
  micros.reduce((sum, micro) => sum + (micro[what] ?? 0), 0);

class OwnCounts implements TargetCounts {
  private read = 0;

  divisors(micros: readonly MicroBatch<unknown>[], { ranks, parts }: Averaging): Divisors {
    this.read += sumOf(micros, 'tokens');
    const of = (what: Count): number => Math.max(1, sumOf(micros, what)) / (ranks * parts);
    return { counted: of('counted'), further: of('further') };
  }

  tokens(): number {
    return this.read;
  }

  dispose(): void {}
}

/** Sums counts over ranks. The host reads a sum during the next update, when it has arrived. */
class SharedCounts implements TargetCounts {
  private read = 0;
  /** Number of tokens of the last update, on its way to the host. */
  private readonly coming: NumberReadback;

  constructor(private readonly group: ProcessGroup) {
    this.coming = new NumberReadback(group.device, 1);
  }

  divisors(micros: readonly MicroBatch<unknown>[], { ranks, parts }: Averaging): Divisors {
    this.take();
    return noGrad(() =>
      scope(() => {
        const sums = Float32Array.from(COUNTS, (what) => sumOf(micros, what));
        const all = Tensor.from(sums, { device: this.group.device });
        this.group.allReduce(all, { purpose: 'counted targets' }).wait();
        this.coming.fetch(all.narrow(0, 2, 1));
        const of = (place: number): Tensor =>
          all
            .narrow(0, place, 1)
            .reshape([])
            .clamp(1)
            .div(ranks * parts);
        return { counted: of(0), further: of(1) };
      }),
    );
  }

  tokens(): number {
    this.take();
    return this.read;
  }

  dispose(): void {
    this.coming.dispose();
  }

  private take(): void {
    const [tokens = 0] = this.coming.take() ?? [];
    this.read += tokens;
  }
}
