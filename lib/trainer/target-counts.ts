// Counts the targets of an update over all ranks, before its first backward. Losses are divided by
// this count.
import type { ProcessGroup } from '../comm/index.js';
import { LateNumbers } from '../runtime/late-numbers.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Divisor, MicroBatch } from './micro-batch.js';

/** Averaging of the engine, which the Trainer's sums must undo. */
interface Averaging {
  /** Ranks in the mean of gradients. */
  ranks: number;
  /** The engine's divisor of each loss. */
  parts: number;
}

/** Counts over the ranks that share a batch, without the host waiting for any of them. */
export interface TargetCounts {
  /**
   * Divisor of the loss sums of an update's micro-batches. After the engine's averaging, each
   * target of all ranks has the same weight. The caller owns a returned tensor.
   */
  divisor(micros: readonly MicroBatch<unknown>[], averaging: Averaging): Divisor;
  /** Tokens of all ranks in the updates counted by divisor(). */
  tokens(): number;
  /** Frees its tensors. */
  dispose(): void;
}

/** Counts over the ranks of `group`. */
export function targetCounts(group: ProcessGroup): TargetCounts {
  return group.size === 1 ? new OwnCounts() : new SharedCounts(group);
}

const sumOf = (micros: readonly MicroBatch<unknown>[], what: 'counted' | 'tokens'): number =>
  micros.reduce((sum, micro) => sum + micro[what], 0);

class OwnCounts implements TargetCounts {
  private read = 0;

  divisor(micros: readonly MicroBatch<unknown>[], { ranks, parts }: Averaging): number {
    this.read += sumOf(micros, 'tokens');
    return Math.max(1, sumOf(micros, 'counted')) / (ranks * parts);
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
  private readonly coming: LateNumbers;

  constructor(private readonly group: ProcessGroup) {
    this.coming = new LateNumbers(group.device, 1);
  }

  divisor(micros: readonly MicroBatch<unknown>[], { ranks, parts }: Averaging): Tensor {
    this.take();
    return noGrad(() =>
      scope(() => {
        const sums = Float32Array.of(sumOf(micros, 'counted'), sumOf(micros, 'tokens'));
        const all = Tensor.from(sums, { device: this.group.device });
        this.group.allReduce(all, { purpose: 'counted targets' }).wait();
        this.coming.fetch(all.narrow(0, 1, 1));
        const counted = all.narrow(0, 0, 1).reshape([]);
        return counted.clamp(1).div(ranks * parts);
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
