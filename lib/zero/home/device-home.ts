// DeviceHome: state on the device, updated on the compute stream.
import type { Optimizer } from '../../optim/optimizer.js';
import { deviceKernels } from '../../optim/update-kernels.js';
import type { Device } from '../../runtime/device.js';
import type { DType } from '../../runtime/dtype.js';
import * as kernels from '../../runtime/kernels.generated.js';
import { Event, Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { copyAll, sliceFlat, zeroRange } from '../flat.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import { DepartingTensors } from './departing-tensors.js';
import type { Home, TileTensors } from './home.js';
import { type Bytes, LentState } from './lent-state.js';
import { allocateState, namedFragment, type RangeState, stateTensors } from './range-state.js';

interface Kept {
  /** The partition's own weights if they are f32. */
  master: Tensor;
  /**
   * The rounded output of an update: the partition's weights. Null if finish() writes them, or if
   * `master` is the weights.
   */
  weight: Tensor | null;
  ranges: readonly RangeState[];
}

/** The tiles of a partition are its ranges. Nothing is copied, so smaller tiles gain nothing. */
export class DeviceHome implements Home {
  readonly kernels = deviceKernels();
  readonly lendsCopies = false;
  private readonly kept = new Map<Partition, Kept>();

  constructor(
    protected readonly device: Device,
    private readonly optimizer: Optimizer,
  ) {}

  adopt(partition: Partition): void {
    const allocate = filled.bind(null, partition.device);
    const { numel } = partition;
    const own = this.updatesInPlace ? partition.weights : null;
    const master = own?.dtype === 'f32' ? own.retain() : allocate([numel], 'f32', 0);
    const weight = own === master ? null : own;
    const ranges = allocateState(partition, this.optimizer, allocate);
    this.kept.set(partition, { master, weight, ranges });
  }

  /** Whether updates write the partition's weights on the device. */
  protected get updatesInPlace(): boolean {
    return true;
  }

  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    const place = sliceFlat(this.of(partition).master, fragment);
    kernels.copy({ in: values, out: place });
    place.release();
  }

  receive(): void {}

  takeControl(control: Tensor): Tensor {
    return control;
  }

  tilesOf(partition: Partition): readonly RangeState[] {
    return this.of(partition).ranges;
  }

  acquire(partition: Partition, tile: RangeState): TileTensors {
    const { master, weight, ranges } = this.of(partition);
    if (tile === ranges[0]) this.device.compute.wait(partition.ready);
    const { range, ...kept } = tile;
    const { group, places } = range;
    return {
      ...{ group, places },
      ...kept,
      master: sliceFlat(master, range),
      grad: sliceFlat(partition.grad as Tensor, range),
      weight: weight && sliceFlat(weight, range),
    };
  }

  release({ master, grad, weight }: TileTensors): void {
    for (const slice of [master, grad, weight]) slice?.release();
  }

  deliver(): void {}

  finish(partition: Partition): Stream {
    partition.dropGrad();
    return this.device.compute;
  }

  awaitWeights(): void {}

  gradOf({ grad }: Partition): Tensor | null {
    return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
  }

  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { optimizer } = this;
    const kept = namedFragment({ optimizer, ...this.of(partition) }, fragment, name);
    return new LentState(kept, this.device.compute);
  }

  refresh(partition: Partition): void {
    const { master } = this.of(partition);
    if (master !== partition.weights) kernels.copy({ in: master, out: partition.weights });
  }

  allocate(numel: number, dtype: DType): Tensor {
    const out = held(() => Tensor.empty([numel], dtype, this.device));
    zeroRange(out, { offset: 0, numel });
    return out;
  }

  toDevice(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.device.compute);
  }

  toHome(to: Tensor, from: Tensor): void {
    copyAll(to, from, this.device.compute);
  }

  synchronize(): void {
    if (this.kept.size > 0) this.device.compute.synchronize();
  }

  get bytes(): Bytes {
    let device = 0;
    for (const [{ place }, { master, ranges }] of this.kept) {
      if (master !== place.memory) device += master.bytes;
      for (const tensor of stateTensors(ranges)) device += tensor.bytes;
    }
    return { device, host: 0, disk: 0 };
  }

  dispose(): void {
    for (const { master, ranges } of this.kept.values()) {
      master.release();
      for (const tensor of stateTensors(ranges)) tensor.release();
    }
    this.kept.clear();
  }

  protected of(partition: Partition): Kept {
    return this.kept.get(partition) as Kept;
  }
}

/**
 * State on the device for offloaded weights (offload_param without offload_optimizer). An update
 * changes only the masters. A finished partition is rounded to a temporary tensor, and a stream
 * copies it away during the update of the next partition. Source: DeepSpeed's stage 3, where
 * offload_param and offload_optimizer are independent.
 */
export class DeviceHomeOfOffloadedWeights extends DeviceHome {
  private readonly copies: Stream;
  private readonly computed: Event;
  private readonly departing: DepartingTensors;

  constructor(device: Device, optimizer: Optimizer) {
    super(device, optimizer);
    this.copies = Stream.create(device, 'weights to their place');
    this.computed = new Event(device);
    this.departing = new DepartingTensors(device, this.copies);
  }

  protected override get updatesInPlace(): boolean {
    return false;
  }

  override finish(partition: Partition): Stream {
    super.finish(partition);
    this.send(partition);
    return this.copies;
  }

  /** Called after the last update of a step, before the next forward. */
  override awaitWeights(): void {
    this.departing.flush();
  }

  override refresh(partition: Partition): void {
    this.send(partition);
    this.synchronize();
  }

  override synchronize(): void {
    super.synchronize();
    this.departing.flush();
    this.copies.synchronize();
  }

  override dispose(): void {
    this.synchronize();
    super.dispose();
    this.departing.dispose();
    this.computed.dispose();
    this.copies.dispose();
  }

  private send(partition: Partition): void {
    const { place, numel, unit } = partition;
    const { master } = this.of(partition);
    const rounded = held(() => Tensor.empty([numel], unit.dtype, this.device));
    kernels.copy({ in: master, out: rounded });
    this.copies.wait(this.computed.record(this.device.compute));
    const order = place.store(rounded, this.copies);
    this.copies.wait(this.computed.record(order));
    this.departing.add(rounded);
  }
}

function filled(device: Device, shape: readonly number[], dtype: DType, value: number): Tensor {
  const out = held(() => Tensor.empty(shape, dtype, device));
  kernels.fill({ out, value });
  return out;
}
