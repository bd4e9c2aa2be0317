// What all ranks count in an update: each loss is divided by it before the first backward.
import type { ProcessGroup } from '../comm/index.js';
import { Buffer } from '../runtime/buffer.js';
import type { Device } from '../runtime/device.js';
import { Event, Stream } from '../runtime/stream.js';
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
  private pending = false;
  private readonly device: Device;
  private readonly onHost: Buffer;
  private readonly fetched: Event;
  /** Of its own, so that reading waits for `fetched` alone. */
  private readonly reading: Stream;

  constructor(private readonly group: ProcessGroup) {
    this.device = group.device;
    this.onHost = Buffer.allocatePinned(this.device, 4);
    this.fetched = new Event(this.device);
    this.reading = Stream.create(this.device, 'numbers to the host');
  }

  divisor(micros: readonly MicroBatch<unknown>[], { ranks, parts }: Averaging): Tensor {
    this.take();
    return noGrad(() =>
      scope(() => {
        const sums = Float32Array.of(sumOf(micros, 'counted'), sumOf(micros, 'tokens'));
        const all = Tensor.from(sums, { device: this.device });
        this.group.allReduce(all, { purpose: 'counted targets' }).wait();
        this.fetchTokens(all);
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
    this.take();
    this.fetched.dispose();
    this.reading.dispose();
    this.onHost.release();
  }

  private fetchTokens({ buffer, offset }: Tensor): void {
    const { compute } = this.device;
    this.onHost.copyFrom(buffer, { bytes: 4, from: 4 * (offset + 1) }, compute);
    this.fetched.record(compute);
    this.pending = true;
  }

  private take(): void {
    if (!this.pending) return;
    this.pending = false;
    this.fetched.synchronize();
    const values = new Float32Array(1);
    this.onHost.read(0, values, this.reading);
    this.read += values[0] as number;
  }
}
