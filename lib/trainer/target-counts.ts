// What all ranks count in an update: each loss is divided by it before the first backward.
import type { ProcessGroup } from '../comm/index.js';
import { LateNumbers } from '../runtime/late-numbers.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Divisor, MicroBatch } from './objective.js';

/** How the engine averages what the Trainer sums. */
export interface Averaging {
  /** Ranks over whose gradients it takes the mean. */
  ranks: number;
  /** What it divides each micro-batch's loss by. */
  parts: number;
}

/** Counts over the ranks that share a batch, without the host waiting for any of them. */
export interface TargetCounts {
  /**
   * What to divide the loss sums of an update's micro-batches by, so that after the engine's own
   * averaging each target of all ranks has the same weight. The tensor is the caller's.
   */
  divisor(micros: readonly MicroBatch<unknown>[], averaging: Averaging): Divisor;
  /** Tokens that all ranks have read in the updates whose divisor was asked for. */
  tokens(): number;
  /** Frees what it holds. */
  dispose(): void;
}

/** Those of the ranks of `group`. */
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

/** The sums come back one update later, by which time they are there. */
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
