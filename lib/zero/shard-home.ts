// Where the weights' shards of stage 3 live, and how a unit's flat weights are gathered from there.
import type { Device } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import { Event } from '../runtime/stream.js';
import { held, Tensor } from '../tensor/index.js';
import type { At, Collectives, Work } from './collectives.js';
import { copyFlat } from './flat.js';
import { pinned } from './home/pinned.js';

export interface ShardHome {
  /** Memory for a shard, contents undefined; the caller releases it. */
  allocate(numel: number, dtype: DType, device: Device): Tensor;
  /** Fills `flat` [size * n] on the device from every rank's `shard` [n]. */
  gather(group: Collectives, flat: Tensor, shard: Tensor, at: At): Work;
}

/** In device memory: one all-gather. */
export const onDevice: ShardHome = {
  allocate: (numel, dtype, device) => held(() => Tensor.empty([numel], dtype, device)),
  gather: (group, flat, shard, at) => group.allGather(flat, shard, at),
};

/** In pinned host memory (offload_param): uploaded into its place, and gathered there. Source: ZeRO-Infinity. */
export const onHost: ShardHome = {
  allocate: (numel, dtype, device) => pinned(device, [numel], dtype),
  gather: (group, flat, shard, at) => {
    const { numel } = shard;
    const place = { offset: group.rank * numel, numel };
    copyFlat(flat, place, shard, { offset: 0, numel }, at.stream);
    const uploaded = new Event(flat.device).record(at.stream);
    const own = flat.alias([numel], undefined, flat.offset + place.offset);
    const work = group.allGather(flat, own, at);
    own.dispose();
    return {
      wait: (stream) => {
        stream.wait(uploaded);
        uploaded.dispose();
        work.wait(stream);
      },
    };
  },
};
