// DeviceState: optimizer state on the device. The compute stream updates it.
import type { Optimizer } from '../../../optim/optimizer.js';
import { deviceKernels } from '../../../optim/update-kernels.js';
import type { Device } from '../../../runtime/device.js';
import type { DType } from '../../../runtime/dtype.js';
import * as kernels from '../../../runtime/kernels.generated.js';
import { Event, Stream } from '../../../runtime/stream.js';
import { copyAll, sliceFlat, zeroRange } from '../../../tensor/flat.js';
import { held, Tensor } from '../../../tensor/index.js';
import type { Partition } from '../../partition.js';
import { StateInMemory } from '../in-memory.js';
import {
  canAccess,
  type Placement,
  type PlacementCosts,
  type ShardPart,
  type Traffic,
} from '../strategies.js';
import type { StateTile } from '../tiles.js';
import { DepartingTensors } from './host.js';

/**
 * Gradients and weights stay on the device, so nothing is copied, except weights with storage in
 * another memory.
 */
class DeviceTraffic implements Traffic {
  readonly order: Stream;
  readonly bytes = 0;
  private weightCopies: WeightCopies | null = null;

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
    this.weightCopies ??= new WeightCopies(this.device);
    return this.weightCopies.send(partition, weights);
  }

  dropGradient({ partition }: ShardPart): void {
    partition.dropGrad();
  }

  /** Frees the copied weights after the last update of a step. */
  awaitWeights(): void {
    this.weightCopies?.flush();
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
    this.weightCopies?.synchronize();
  }

  dispose(): void {
    this.weightCopies?.dispose();
  }
}

/** Copies rounded weights to host memory or a disk while the next partition is updated. */
class WeightCopies {
  private readonly copies: Stream;
  private readonly computed: Event;
  private readonly departing: DepartingTensors;

  constructor(private readonly device: Device) {
    this.copies = Stream.create(device, 'weights to their storage');
    this.computed = new Event(device);
    this.departing = new DepartingTensors(device, this.copies);
  }

  /** Copies `weights` to their storage. Holds a reference to `weights` until the copy ends. */
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

/**
 * A tile size larger than any range. Updates copy nothing here, so smaller tiles would gain
 * nothing.
 */
const WHOLE_RANGE = 2 ** 53;

/** The device placement. Each range of a partition is one tile. */
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
    const options = { allocate, tile: WHOLE_RANGE, order: device.compute };
    this.storage = new StateInMemory(device, optimizer, options);
  }

  allocate(numel: number, dtype: DType): Tensor {
    const out = held(() => Tensor.empty([numel], dtype, this.device));
    zeroRange(out, { offset: 0, numel });
    return out;
  }

  /**
   * Returns the partition's weights if they are f32 on the device, else new memory. The caller
   * releases it.
   */
  masterMemory({ storage: { memory }, numel }: Partition): Tensor {
    if (memory?.dtype === 'f32' && canAccess(this, memory)) return memory.retain();
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
