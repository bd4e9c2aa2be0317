// Updates by rules that need sums over whole parameters, such as LAMB's trust ratios, where ranks hold parts.
import type { SummedOptimizer } from '../../optim/optimizer.js';
import type { Tensor } from '../../tensor/index.js';
import { AfterVerdict } from './deferred.js';
import type { Publisher, UpdatePlan } from './schedule.js';
import { deliver, type SharedUpdateParts, TensorSums } from './tensor-sums.js';

/** All ranges are measured, the sums shared, then all ranges updated. */
export class SummedUpdates extends AfterVerdict {
  private readonly sums: TensorSums;

  constructor(
    private readonly optimizer: SummedOptimizer,
    private readonly parts: SharedUpdateParts,
  ) {
    super(parts.home);
    this.sums = new TensorSums(optimizer, parts);
  }

  update(control: Tensor, { settings }: UpdatePlan, publisher: Publisher): void {
    const { home, partitions } = this.parts;
    const taken = home.takeControl(control);
    this.sums.measure(taken, settings);
    for (const partition of partitions) {
      this.sums.eachMeasured(partition, taken, (tensors) =>
        this.optimizer.applySums(tensors, settings, home.kernels),
      );
      deliver(home, partition, publisher);
    }
  }

  override dispose(): void {
    this.sums.dispose();
  }
}
