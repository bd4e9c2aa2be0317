// HostHome: state in pinned host memory, updated by CPU threads.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyFlat, sliceFlat } from '../flat.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import type { TileTensors } from './home.js';
import { type HostBuffers, HostUpdates, memoryForWeights } from './host-updates.js';
import { type Bytes, LentState } from './lent-state.js';
import { pinned, pinnedFilled, uploadRounded } from './pinned.js';
import { allocateState, namedFragment, type RangeState, stateTensors } from './range-state.js';
import { disposeTile, makeTiles, type Tile } from './tiles.js';
import type { WeightPlace } from './weight-place.js';

/** A partition in host memory. */
export interface HostPartition extends HostBuffers {
  /**
   * [numel] f32, or bf16 upper halves: see SplitHome. `weight` may share this memory or that of the
   * gradient.
   */
  readonly master: Tensor;
  readonly ranges: readonly RangeState[];
  readonly tiles: readonly Tile[];
}

/** Master weights and state of a tile in memory that kernels access. */
export type OpenTile = Pick<TileTensors, 'master' | 'state'>;

export interface HostHomeOptions {
  /** Maximum elements per tile, a multiple of 64. */
  tile: number;
  /**
   * An update older than the last one has read the memory for gradients, so the next gradient waits
   * for its tiles.
   */
  readBefore?: boolean;
}

/**
 * Host memory per parameter: 12 bytes of state, and one gradient element, which the update replaces
 * by the weight to upload. f32 weights are uploaded from the master. 16-bit weights with f32
 * gradients need 2 bytes more.
 */
export class HostHome extends HostUpdates<HostPartition> {
  readonly lendsCopies: boolean = false;
  /** Updates read state in place, so a pass that writes less of it costs less. */
  readonly readsInPlace: boolean = true;

  constructor(
    device: Device,
    protected readonly optimizer: Optimizer,
    private readonly options: HostHomeOptions,
  ) {
    super(device, options.readBefore);
  }

  adopt(partition: Partition): void {
    const { device, optimizer } = this;
    const master = this.masterFor(partition);
    const grad = this.gradFor(partition);
    const allocate = pinnedFilled.bind(null, device);
    const ranges = allocateState(partition, optimizer, allocate);
    this.buffers.set(partition, {
      ...{ master, grad, ranges },
      weight: this.weightFor(partition, [master, grad]),
      tiles: makeTiles(ranges, optimizer, { device, size: this.options.tile, allocate }),
      uploaded: new Event(device),
      uploading: false,
    });
  }

  /** Returns memory for the partition's gradients, with a reference. */
  protected gradFor({ numel, unit }: Partition): Tensor {
    return this.allocate(numel, unit.gradDtype);
  }

  /** Returns memory for the partition's master weights, with a reference. */
  protected masterFor({ numel }: Partition): Tensor {
    return pinned(this.device, [numel], 'f32');
  }

  /** Returns the memory for updated weights, with a new reference. */
  protected weightFor(partition: Partition, memories: readonly Tensor[]): Tensor {
    return memoryForWeights(partition, memories);
  }

  writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    const { master } = this.buffersOf(partition);
    copyFlat(master, fragment, values, { offset: 0, numel: fragment.numel }, this.device.compute);
  }

  acquire(partition: Partition, tile: Tile): TileTensors {
    const { master, weight } = this.buffersOf(partition);
    const { range, sums, starts, arrived } = tile;
    const { group, places } = range;
    this.host.wait(arrived);
    return {
      ...{ group, places, sums, starts },
      ...this.open(partition, tile),
      grad: sliceFlat(this.landedIn(partition), range),
      weight: weight === master ? null : sliceFlat(weight, range),
    };
  }

  /** The gradient memory that updates read. */
  protected landedIn(partition: Partition): Tensor {
    return this.buffersOf(partition).grad;
  }

  release(tensors: TileTensors): void {
    for (const slice of [tensors.grad, tensors.weight]) slice?.release();
    this.close(tensors, true);
  }

  /** Returns the state of a tile for kernels enqueued until close(). One tile at a time. */
  open(partition: Partition, { range, state }: Tile): OpenTile {
    return { master: sliceFlat(this.buffersOf(partition).master, range), state };
  }

  /** `changed`: kernels wrote master weights and state. */
  close({ master }: OpenTile, _changed: boolean): void {
    master.release();
  }

  /**
   * From now on, `memory` receives the partition's gradients and holds its weights. It is [numel]
   * in the weights' dtype, from allocate(). Returns the previous gradient memory; the caller owns
   * it.
   */
  replaceGrad(partition: Partition, memory: Tensor): Tensor {
    const buffers = this.buffersOf(partition);
    const { grad } = buffers;
    buffers.weight.release();
    buffers.weight = memory.retain();
    buffers.grad = memory;
    return grad;
  }

  lend(partition: Partition, fragment: Fragment, name: string): LentState {
    const { optimizer } = this;
    const kept = namedFragment({ optimizer, ...this.buffersOf(partition) }, fragment, name);
    return new LentState(kept, this.host);
  }

  refresh(partition: Partition): void {
    uploadRounded(this.buffersOf(partition).master, partition.weights);
  }

  get bytes(): Bytes {
    const all = [...this.buffers.values()].flatMap(tensorsOf);
    const own = new Set([this.control, ...all]);
    return { device: 0, host: [...own].reduce((sum, { bytes }) => sum + bytes, 0), disk: 0 };
  }

  protected disposeBuffers(buffers: HostPartition): void {
    for (const tile of buffers.tiles) disposeTile(tile);
    for (const tensor of tensorsOf(buffers)) tensor.release();
  }
}

/**
 * State in host memory for weights that stage 3 stores in host memory or on a disk (offload_param).
 * The update writes the weights in their storage, or copies them there. They are uploaded only when
 * a gather needs them.
 */
export class HostHomeOfOffloadedWeights extends HostHome {
  protected override weightFor(partition: Partition, memories: readonly Tensor[]): Tensor {
    return partition.place.memory?.retain() ?? super.weightFor(partition, memories);
  }

  override deliver(): void {}

  override finish(partition: Partition): Stream {
    return this.store(partition);
  }

  /**
   * For speculative weights, which are in gradient memory: swaps it with the memory of the previous
   * weights, which receives the next gradient. That gradient comes after the last gather of
   * backward.
   */
  override uploadAll(partition: Partition): void {
    exchangeSpeculative(this.buffersOf(partition), partition.place);
    this.finish(partition);
  }

  override refresh(partition: Partition): void {
    const { master } = this.buffersOf(partition);
    partition.place.store(master, this.host).synchronize();
  }
}

/**
 * Makes the speculative weights the weights of `place`. The previous memory becomes gradient
 * memory.
 */
export function exchangeSpeculative(buffers: HostPartition, place: WeightPlace): void {
  if (buffers.weight !== place.memory) buffers.grad = place.exchange?.(buffers.grad) as Tensor;
}

function tensorsOf({ master, grad, weight, ranges }: HostPartition): Tensor[] {
  return [master, grad, weight, ...stateTensors(ranges)];
}
