// Updates by rules that need sums over whole parameters, such as LAMB's trust ratios, where ranks hold parts.
import type { SummedOptimizer } from '../optim/optimizer.js';
import type { Tensor } from '../tensor/index.js';
import type { Published, UpdatePlan } from './placement.js';
import { type SharedUpdateParts, TensorSums } from './tensor-sums.js';
import type { Updater } from './updater.js';

/** All ranges are measured, the sums shared, then all ranges updated. */
export class SummedUpdates implements Updater {
  private readonly sums: TensorSums;

  constructor(
    private readonly optimizer: SummedOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    this.sums = new TensorSums(optimizer, parts);
  }

  update(control: Tensor, { settings }: UpdatePlan, published: Published): void {
    const { placement, partitions } = this.parts;
    const taken = placement.takeControl(control);
    this.sums.measure(taken, settings);
    for (const partition of partitions) {
      this.sums.eachMeasured(partition, taken, (tensors) =>
        this.optimizer.applySums(tensors, settings, placement.site.kernels),
      );
      published(partition, placement.finish(partition));
    }
  }

  dispose(): void {
    this.sums.dispose();
  }
}
