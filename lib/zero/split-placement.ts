// Part of the optimizer on the device, the rest in host memory: both update at the same time (partial offload).
// Source: DeepSpeed's offload_optimizer.ratio (ZeRO-Offload++, "Twin-Flow").
import type { Tensor } from '../tensor/index.js';
import type { Piece } from './layout.js';
import type { Partition } from './partition.js';
import type { Placement, Published, UpdatePlan } from './placement.js';

/**
 * The partitions whose state stays on the device: the first ones in forward order, as many as fit into `share` of all
 * elements. Their gradients are complete last and their weights are needed first, so that an update on the host
 * would have nothing to hide behind.
 */
export function firstInForward(
  partitions: readonly Partition[],
  share: number,
): ReadonlySet<Partition> {
  const total = partitions.reduce((sum, { numel }) => sum + numel, 0);
  const chosen = new Set<Partition>();
  let taken = 0;
  for (const partition of partitions) {
    taken += partition.numel;
    if (taken > share * total) break;
    chosen.add(partition);
  }
  return chosen;
}

/** A placement and the partitions that it keeps. */
export interface Side {
  placement: Placement;
  partitions: readonly Partition[];
}

/** Owns both placements. Exact: every placement gives the same bits. */
export class SplitPlacement implements Placement {
  constructor(
    private readonly device: Placement,
    private readonly host: Placement,
    /** Those of `device`; the others are the host's. They come first in forward order. */
    private readonly onDevice: ReadonlySet<Partition>,
  ) {}

  adopt(partition: Partition): void {
    this.of(partition).adopt(partition);
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    this.of(partition).writeMaster(partition, piece, values);
  }

  prepare(plan: UpdatePlan): void {
    this.device.prepare(plan);
    this.host.prepare(plan);
  }

  gradReady(partition: Partition): void {
    this.of(partition).gradReady(partition);
  }

  /** The device's work is enqueued before the host's placement waits for a verdict. */
  update(control: Tensor, plan: UpdatePlan, published: Published): void {
    this.device.update(control, plan, published);
    this.host.update(control, plan, published);
  }

  /** Which of `partitions` each placement keeps, in the order of updates. */
  sides(partitions: readonly Partition[]): Side[] {
    return [this.device, this.host].map((placement) => ({
      placement,
      partitions: partitions.filter((partition) => this.of(partition) === placement),
    }));
  }

  awaitWeights(partition: Partition): void {
    this.of(partition).awaitWeights(partition);
  }

  stateOf(partition: Partition, piece: Piece, name: string): Tensor {
    return this.of(partition).stateOf(partition, piece, name);
  }

  gradOf(partition: Partition): Tensor | null {
    return this.of(partition).gradOf(partition);
  }

  changed(partition: Partition): void {
    this.of(partition).changed(partition);
  }

  refresh(partition: Partition): void {
    this.of(partition).refresh(partition);
  }

  synchronize(): void {
    this.host.synchronize();
    this.device.synchronize();
  }

  get bytes(): { device: number; host: number } {
    const [a, b] = [this.device.bytes, this.host.bytes];
    return { device: a.device + b.device, host: a.host + b.host };
  }

  dispose(): void {
    this.host.dispose();
    this.device.dispose();
  }

  private of(partition: Partition): Placement {
    return this.onDevice.has(partition) ? this.device : this.host;
  }
}
