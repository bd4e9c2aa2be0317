// DeviceState: optimizer state on the device, updated on the compute stream.
import type { Optimizer } from '../../../optim/optimizer.js';
import { deviceKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import * as kernels from '../../../runtime/kernels.generated.js';
import { Event, Stream } from '../../../runtime/stream.js';
import { copyAll, sliceFlat, zeroRange } from '../../../tensor/flat.js';
import { held, Tensor } from '../../../tensor/index.js';
import type { Partition } from '../../shard.js';
import { StateInMemory } from '../in-memory.js';
import {
  type Placement,
  type PlacementCosts,
  reaches,
  type ShardPart,
  type Traffic,
} from '../strategies.js';
import type { StateTile } from '../tiles.js';
import { DepartingTensors } from './host.js';

/** Gradients and weights stay on the device. Only weights of another storage are copied away. */
class DeviceTraffic implements Traffic {
  readonly order: Stream;
  readonly bytes = 0;
  private away: WeightsAway | null = null;

  constructor(private readonly device: Device) {
    this.order = device.compute;
  }

  takeControl(control: Tensor): Tensor {
    return control;
  }

  awaitGradient({ partition, tiles }: ShardPart, tile: StateTile): void {
    if (tile === tiles[0]) this.order.wait(partition.ready);
  }

  finish(): Stream {
    return this.order;
  }

  store({ partition }: ShardPart, weights: Tensor): Stream {
    this.away ??= new WeightsAway(this.device);
    return this.away.send(partition, weights);
  }

  dropGradient({ partition }: ShardPart): void {
    partition.dropGrad();
  }

  /** Called after the last update of a step, before the next forward. */
  awaitWeights(): void {
    this.away?.flush();
  }

  gradOf({ partition: { grad } }: ShardPart): Tensor | null {
    return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
  }

  toDevice(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.order);
  }

  fromDevice(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.order);
  }

  synchronize(): void {
    this.order.synchronize();
    this.away?.synchronize();
  }

  dispose(): void {
    this.away?.dispose();
  }
}

/** Copies rounded weights to host memory or a disk, during the update of the next partition. */
class WeightsAway {
  private readonly copies: Stream;
  private readonly computed: Event;
  private readonly departing: DepartingTensors;

  constructor(private readonly device: Device) {
    this.copies = Stream.create(device, 'weights to their storage');
    this.computed = new Event(device);
    this.departing = new DepartingTensors(device, this.copies);
  }

  /** Takes a reference to `weights`. */
  send({ storage }: Partition, weights: Tensor): Stream {
    const { copies } = this;
    copies.wait(this.computed.record(this.device.compute));
    const order = storage.store(weights, copies);
    copies.wait(this.computed.record(order));
    this.departing.add(weights.retain());
    return copies;
  }

  flush(): void {
    this.departing.flush();
  }

  synchronize(): void {
    this.flush();
    this.copies.synchronize();
  }

  dispose(): void {
    this.synchronize();
    this.departing.dispose();
    this.computed.dispose();
    this.copies.dispose();
  }
}

/** Larger than any range: nothing is copied, so smaller tiles gain nothing. */
const WHOLE = 2 ** 53;

/** The tiles of a partition are its ranges. */
export class DeviceState implements Placement {
  static readonly costs: PlacementCosts = {
    state: 'device',
    updates: null,
    windows: 0,
    largestTile: Infinity,
  };
  readonly storage: StateInMemory;
  readonly traffic: Traffic;
  readonly kernels = deviceKernels();
  readonly bytes = { device: 0, host: 0, disk: 0 };
  readonly updatesOnDevice = true;
  readonly receivesGradients = false;

  constructor(
    private readonly device: Device,
    optimizer: Optimizer,
  ) {
    this.traffic = new DeviceTraffic(device);
    const allocate = fillDevice.bind(null, device);
    const how = { allocate, tile: WHOLE, order: device.compute };
    this.storage = new StateInMemory(device, optimizer, how);
  }

  allocate(numel: number, dtype: DType): Tensor {
    const out = held(() => Tensor.empty([numel], dtype, this.device));
    zeroRange(out, { offset: 0, numel });
    return out;
  }

  /** The partition's own weights if they are f32 on the device. */
  masterMemory({ storage: { memory }, numel }: Partition): Tensor {
    if (memory?.dtype === 'f32' && reaches(this, memory)) return memory.retain();
    return fillDevice(this.device, [numel], 'f32', 0);
  }

  synchronize(): void {
    this.traffic.synchronize();
  }

  dispose(): void {
    this.traffic.dispose();
  }
}

function fillDevice(device: Device, shape: readonly number[], dtype: DType, value: number): Tensor {
  const out = held(() => Tensor.empty(shape, dtype, device));
  kernels.fill({ out, value });
  return out;
}
