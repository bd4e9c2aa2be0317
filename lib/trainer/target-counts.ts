// Counts the targets of an update over all ranks, before its first backward. Losses are divided by
// this count.
import type { ProcessGroup } from '../comm/index.js';
import { NumberReadback } from '../runtime/number-readback.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Divisor, MicroBatch } from './micro-batch.js';

/** Averaging of the engine, which the Trainer's sums must undo. */
interface Averaging {
  /** Ranks in the mean of gradients. */
  ranks: number;
  /** The engine's divisor of each loss. */
  parts: number;
}

/** Divisors of both losses of a micro-batch. */
interface Divisors {
  /** Divisor of the loss of counted targets. */
  readonly counted: Divisor;
  /** Divisor of the second loss, by tokens: see MicroBatch.further. */
  readonly further: Divisor;
}

/** Counts over the ranks that share a batch, without the host waiting for any of them. */
export interface TargetCounts {
  /**
   * Divisors of the loss sums of an update's micro-batches. After the engine's averaging, each
   * target of all ranks has the same weight. The caller owns returned tensors.
   */
  divisors(micros: readonly MicroBatch<unknown>[], averaging: Averaging): Divisors;
  /** Tokens of all ranks in the updates counted by divisors(). */
  tokens(): number;
  /** Frees its tensors. */
  dispose(): void;
}

/** Counts over the ranks of `group`. */
export function targetCounts(group: ProcessGroup): TargetCounts {
  return group.size === 1 ? new OwnCounts() : new SharedCounts(group);
}

/** The counts, in the order of the ranks' sums. */
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

/** Reads sums one update later, when they have arrived. */
class SharedCounts implements TargetCounts {
  private read = 0;
  /** Tokens of the last update. */
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
