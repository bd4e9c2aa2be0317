// Updates of 1-bit optimizers: the ranks exchange compressed vectors of one bit per element instead
// of gradients. Sources: Tang et al. 2021, arXiv:2102.02888; DeepSpeed's OneBitAdam, ZeroOneAdam
// and OneBitLamb.

import {
  CompressedExchange,
  CompressedLayout,
  type ExchangeGroup,
  type Segment,
} from '../../comm/index.js';
import type { ExchangingOptimizer, PayloadPass } from '../../optim/exchange.js';
import type { UpdateTensors } from '../../optim/optimizer.js';
import { required } from '../../runtime/required.js';
import { copyAll, sliceFlat } from '../../tensor/flat.js';
import { held, Tensor } from '../../tensor/index.js';
import { overlap } from '../layout.js';
import { DeferredUpdates } from '../optimizer-state.js';
import type { Partition } from '../partition.js';
import type {
  Publisher,
  RankError,
  Schedule,
  UpdatedPartition,
  UpdatePlan,
} from '../state/strategies.js';
import type { SharedUpdateParts } from './summed-updates.js';

/** The inputs of the schedule. Every rank updates whole units. */
interface ExchangeParts extends Omit<SharedUpdateParts, 'group'> {
  group: ExchangeGroup;
  /** Minimum elements per exchange. Smaller units share one exchange. */
  bucketElements: number;
}

interface BucketMember {
  readonly partition: Partition;
  /** Offset of the partition in the vector of its bucket. */
  readonly offset: number;
}

interface Bucket {
  readonly members: readonly BucketMember[];
  readonly exchange: CompressedExchange;
  /** [numel] f32. Exists from send() to receive(). */
  vector: Tensor | null;
}

/**
 * The schedule of 1-bit optimizers. In a step with an exchange, each bucket takes three stages.
 * First its ranges write one vector. Then the ranks average the vectors with two collectives. Last
 * the ranges are updated by the average. While the collectives of a bucket run, the next bucket
 * writes its vector. In a step without an exchange, each rank updates by its own gradients.
 *
 * Memory in addition to the state, in bytes per element: 4 and 4 / ranks for compression errors,
 * 1/4 for messages. During an update, the vectors of three buckets.
 */
export class ExchangedUpdates implements Schedule {
  private readonly localUpdates: DeferredUpdates;
  private readonly buckets: readonly Bucket[];
  /**
   * [4] f32: the step decision with multiplier 1. The average of vectors needs no gradient factor.
   */
  private readonly unscaled: Tensor;

  constructor(
    private readonly optimizer: ExchangingOptimizer,
    private readonly parts: ExchangeParts,
  ) {
    const { state, partitions } = parts;
    this.localUpdates = new DeferredUpdates(state, optimizer, partitions);
    this.buckets = divideIntoBuckets(partitions, parts.bucketElements).map((members) => {
      return { members, exchange: createExchange(optimizer, parts.group, members), vector: null };
    });
    this.unscaled = state.placement.allocate(4, 'f32');
  }

  *update(deviceControl: Tensor, plan: UpdatePlan): Generator<UpdatedPartition, void> {
    const { state, partitions } = this.parts;
    const pass = this.optimizer.passOf(plan.settings);
    if (!pass) {
      yield* this.localUpdates.update(deviceControl, plan);
      return;
    }
    this.exchange(pass, state.placement.traffic.takeControl(deviceControl));
    for (const partition of partitions) yield [partition, state.finish(partition)];
  }

  get needsResync(): boolean {
    return this.optimizer.needsResync;
  }

  /** Makes the weights of all ranks equal. Gradients that wait for their step stay unchanged. */
  resync(applied: number, publisher: Publisher): void {
    const pass = this.optimizer.resync(applied, this.optimizer.groups);
    if (!pass) return;
    const { partitions, state } = this.parts;
    const idle = partitions.filter(({ grad }) => grad === null);
    const unconditional = state.placement.allocate(4, 'f32');
    state.placement.kernels.fill({ out: unconditional, value: 1 });
    for (const partition of idle) partition.grad = emptyGradient(partition);
    this.exchange(pass, unconditional);
    for (const partition of idle) {
      partition.grad?.release();
      partition.grad = null;
    }
    unconditional.release();
    for (const partition of partitions) publisher.publish(partition, partition.device.compute);
  }

  *rankErrors(): Generator<RankError> {
    const { rank } = this.parts.group;
    for (const { members, exchange } of this.buckets) {
      const { ownError, ownerError } = exchange;
      const owned = { offset: rank * ownerError.numel, numel: ownerError.numel };
      for (const { partition, offset } of members) {
        for (const entry of partition.unit.layout.entries) {
          const range = { offset: offset + entry.offset, numel: entry.numel };
          const ownTensor = sliceFlat(ownError, range);
          yield { entry, name: 'worker_error', from: 0, tensor: ownTensor };
          const ownedPart = overlap(range, owned);
          if (ownedPart.numel === 0) continue;
          const from = ownedPart.offset - range.offset;
          const inOwned = { offset: ownedPart.offset - owned.offset, numel: ownedPart.numel };
          yield { entry, name: 'server_error', from, tensor: sliceFlat(ownerError, inOwned) };
        }
      }
    }
  }

  get bytes(): { device: number; host: number } {
    return { device: this.buckets.reduce((sum, { exchange }) => sum + exchange.bytes, 0), host: 0 };
  }

  dispose(): void {
    for (const { exchange, vector } of this.buckets) {
      exchange.dispose();
      vector?.release();
    }
    this.unscaled.release();
  }

  /**
   * Runs all buckets as a pipeline: one bucket sends, the previous one averages, and the one before
   * receives.
   */
  private exchange(pass: PayloadPass, control: Tensor): void {
    const { buckets, unscaled } = this;
    const { kernels } = this.parts.state.placement;
    copyAll(unscaled, control, unscaled.device.compute);
    const multiplier = sliceFlat(unscaled, { offset: 0, numel: 1 });
    kernels.scale({ in: multiplier, out: multiplier, scale: 0, shift: 1, accumulate: false });
    multiplier.release();
    for (let i = 0; i < buckets.length + 2; i++) {
      const [sent, averaged, received] = [buckets[i], buckets[i - 1], buckets[i - 2]];
      if (sent) this.send(sent, pass, control);
      averaged?.exchange.average(control);
      if (received) this.receive(received, pass);
    }
  }

  private send(bucket: Bucket, pass: PayloadPass, control: Tensor): void {
    const { exchange } = bucket;
    const { device } = exchange.ownError;
    const vector = held(() => Tensor.empty([exchange.ownError.numel], 'f32', device));
    bucket.vector = vector;
    if (pass.resetsErrors) exchange.reset();
    this.forEachRange(bucket, control, (tensors, payload) => {
      pass.write(tensors, payload, this.parts.state.placement.kernels);
    });
    exchange.send(vector, control);
  }

  private receive(bucket: Bucket, pass: PayloadPass): void {
    bucket.exchange.receive(required(bucket.vector));
    this.forEachRange(bucket, this.unscaled, (tensors, payload) => {
      pass.apply(tensors, payload, this.parts.state.placement.kernels);
    });
    bucket.vector?.release();
    bucket.vector = null;
  }

  private forEachRange(
    { members, vector }: Bucket,
    control: Tensor,
    body: (tensors: UpdateTensors, payload: Tensor) => void,
  ): void {
    const { state } = this.parts;
    for (const { partition, offset } of members) {
      state.update(partition, control, (tensors, { range: { offset: from, numel } }) => {
        const payload = sliceFlat(required(vector), { offset: offset + from, numel });
        body(tensors, payload);
        payload.release();
      });
    }
  }
}

/** Returns an uninitialized gradient. Passes of resync() require a tensor, but do not read it. */
function emptyGradient({ unit, numel }: Partition): Tensor {
  return held(() => Tensor.empty([numel], unit.gradient.dtype, unit.device));
}

function divideIntoBuckets(partitions: readonly Partition[], elements: number): BucketMember[][] {
  const buckets: BucketMember[][] = [];
  let filled = Number.POSITIVE_INFINITY;
  for (const partition of partitions) {
    if (filled >= elements) {
      buckets.push([]);
      filled = 0;
    }
    buckets.at(-1)?.push({ partition, offset: filled });
    filled += partition.numel;
  }
  return buckets;
}

function createExchange(
  optimizer: ExchangingOptimizer,
  group: ExchangeGroup,
  members: readonly BucketMember[],
): CompressedExchange {
  const { device, unit } = required(members[0]).partition;
  const numel = members.reduce((sum, { partition }) => sum + partition.numel, 0);
  const segments = members.flatMap((member) => segmentsOf(optimizer, member));
  return new CompressedExchange(group, device, {
    layout: new CompressedLayout(numel, group.size, segments),
    levels: optimizer.levels,
    purpose: `1-bit update from ${unit.name} on`,
  });
}

/**
 * Returns the segments of a unit's parameters in the vector of its bucket. Each segment has its own
 * scale.
 */
function segmentsOf(
  optimizer: ExchangingOptimizer,
  { partition, offset }: BucketMember,
): Segment[] {
  const parameters = partition.groups.flatMap((range) =>
    range.places.map(({ shape, numel, offset: from }) => {
      return { shape, numel, start: offset + range.offset + from };
    }),
  );
  return parameters.flatMap(({ shape, numel, start }) => {
    const size = optimizer.segmentSize(shape);
    return Array.from({ length: Math.ceil(numel / size) }, (_, i) => ({
      start: start + i * size,
      numel: Math.min(size, numel - i * size),
    }));
  });
}
