// Sums partial gradients of tensor-parallel ranks, which have different tokens, before the data
// ranks reduce them. Source: Korthikanti et al. 2022 (sequence parallelism).

import { copyFlat } from '../tensor/flat.js';
import { held, Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import type { LayoutEntry } from './layout.js';
import type { Partition } from './shard.js';
import type { GradientFlow, GradientReceiver } from './stage.js';
import type { Unit } from './unit.js';

/** Wraps another flow. */
export class PartialSums implements GradientFlow {
  private readonly partial = new Map<Unit, readonly LayoutEntry[]>();

  constructor(
    private readonly inner: GradientFlow,
    private readonly group: Collectives,
    /**
     * Whether `inner` takes the gradient of each micro-batch; else gradients add up in the unit.
     */
    private readonly takesEach: boolean,
  ) {}

  get factor(): number {
    return this.inner.factor;
  }

  reduce(partition: Partition, receiver: GradientReceiver | null): void {
    if (this.takesEach || receiver) this.sum(partition.unit);
    this.inner.reduce(partition, receiver);
  }

  conclude(partition: Partition, receiver: GradientReceiver): void {
    if (!this.takesEach) this.sum(partition.unit);
    this.inner.conclude(partition, receiver);
  }

  /** Runs one all-reduce for all parameters of the unit, in the order of the compute stream. */
  private sum(unit: Unit): void {
    const entries = this.partialOf(unit);
    if (entries.length === 0) return;
    const { compute } = unit.device;
    const grad = unit.gradient.take();
    const count = entries.reduce((sum, { numel }) => sum + numel, 0);
    const packed = held(() => Tensor.empty([count], grad.dtype, unit.device));
    const each = (copy: (entry: LayoutEntry, offset: number) => void): void => {
      let offset = 0;
      for (const entry of entries) {
        copy(entry, offset);
        offset += entry.numel;
      }
    };
    each((entry, offset) => {
      copyFlat(packed, { offset, numel: entry.numel }, grad, entry, compute);
    });
    const purpose = `parts of gradients of ${unit.name}`;
    this.group.allReduce(packed, { stream: compute, purpose }).wait(compute);
    each((entry, offset) => {
      copyFlat(grad, entry, packed, { offset, numel: entry.numel }, compute);
    });
    packed.release();
    grad.release();
  }

  private partialOf(unit: Unit): readonly LayoutEntry[] {
    const known = this.partial.get(unit);
    if (known) return known;
    const { entries } = unit.layout;
    const found = entries.filter((entry) => unit.parameterOf(entry).hasPartialGradient);
    this.partial.set(unit, found);
    return found;
  }
}
