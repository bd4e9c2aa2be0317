// Updates with a compressed exchange of one bit per element instead of gradients, such as 1-bit
// Adam. Sources: Tang et al. 2021, arXiv:2102.02888; DeepSpeed's OneBitAdam, ZeroOneAdam and
// OneBitLamb.

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

/** Parts of an update over several ranks with whole units. */
interface ExchangeParts extends Omit<SharedUpdateParts, 'group'> {
  group: ExchangeGroup;
  /** Minimum elements per exchange; smaller units are combined. */
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
  /** [numel] f32, from the first half of an update to the second. */
  vector: Tensor | null;
}

/**
 * In steps with an exchange, the ranges of each bucket write its vector, ranks exchange it with two
 * collectives, and the ranges are updated by the average. Meanwhile the next bucket is written.
 * Memory in addition to the state: 4 bytes per element and 4 / ranks for errors, a quarter of a
 * byte for messages, and the vectors of three buckets during an update.
 */
export class ExchangedUpdates implements Schedule {
  private readonly localUpdates: DeferredUpdates;
  private readonly buckets: readonly Bucket[];
  /** [4] f32: the step's control without a gradient factor, for averages. */
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

  get isAdrift(): boolean {
    return this.optimizer.isAdrift;
  }

  /** Makes the weights of all ranks equal; pending gradients stay unchanged. */
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

  /** Computes other buckets while the collective of one is running. */
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
    if (pass.startsAfresh) exchange.reset();
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

/** Returns an uninitialized gradient for ranges that do not read it. */
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

/** Returns the segments of a unit's parameters in the vector of its bucket. */
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
