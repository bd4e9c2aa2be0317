// Sums partial gradients of tensor-parallel ranks, which have different tokens, before the data
// ranks reduce them. Source: Korthikanti et al. 2022 (sequence parallelism).
import { held, Tensor } from '../tensor/index.js';
import type { Collectives } from './collectives.js';
import { copyFlat } from './flat.js';
import type { GradientFlow, GradientReceiver } from './gradient-flow.js';
import type { Slot } from './layout.js';
import type { Partition } from './partition.js';
import type { Unit } from './unit.js';

/** Wraps another flow. */
export class PartialSums implements GradientFlow {
  private readonly partial = new Map<Unit, readonly Slot[]>();

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

  flush(): void {
    this.inner.flush();
  }

  dispose(): void {
    this.inner.dispose();
  }

  /** Runs one all-reduce for all parameters of the unit, in the order of the compute stream. */
  private sum(unit: Unit): void {
    const slots = this.partialOf(unit);
    if (slots.length === 0) return;
    const { compute } = unit.device;
    const grad = unit.gradient.take();
    const count = slots.reduce((sum, { numel }) => sum + numel, 0);
    const packed = held(() => Tensor.empty([count], grad.dtype, unit.device));
    const each = (copy: (slot: Slot, offset: number) => void): void => {
      let offset = 0;
      for (const slot of slots) {
        copy(slot, offset);
        offset += slot.numel;
      }
    };
    each((slot, offset) => {
      copyFlat(packed, { offset, numel: slot.numel }, grad, slot, compute);
    });
    const purpose = `parts of gradients of ${unit.name}`;
    this.group.allReduce(packed, { stream: compute, purpose }).wait(compute);
    each((slot, offset) => {
      copyFlat(grad, slot, packed, { offset, numel: slot.numel }, compute);
    });
    packed.release();
    grad.release();
  }

  private partialOf(unit: Unit): readonly Slot[] {
    const known = this.partial.get(unit);
    if (known) return known;
    const { slots } = unit.layout;
    const found = slots.filter((slot) => unit.parameterOf(slot).hasPartialGradient);
    this.partial.set(unit, found);
    return found;
  }
}
