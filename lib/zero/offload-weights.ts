// Offload placement whose updated weights stay in host memory, where stage 3 keeps their shards (offload_param).

import * as kernels from '../runtime/kernels.generated.js';
import type { Stream } from '../runtime/stream.js';
import type { Tensor } from '../tensor/index.js';
import { type HostPart, OffloadPlacement } from './offload.js';
import type { Partition } from './partition.js';

/** The update writes the weights where they live: nothing is uploaded before somebody gathers them. */
export class OffloadWeightsPlacement extends OffloadPlacement {
  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  protected override deliver(): void {}

  protected override delivered({ uploaded }: HostPart): Stream {
    uploaded.record(this.host);
    return this.host;
  }

  override refresh(partition: Partition): void {
    const { master } = this.hostOf(partition);
    kernels.copyOnHost({ in: master, out: partition.weights }, this.host);
    this.host.synchronize();
  }
}
