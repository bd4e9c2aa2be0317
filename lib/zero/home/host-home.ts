// State in pinned host memory, which host threads update.
import type { Optimizer } from '../../optim/optimizer.js';
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import type { Tensor } from '../../tensor/index.js';
import { copyFlat, sliceFlat } from '../flat.js';
import type { Piece } from '../layout.js';
import type { Partition } from '../partition.js';
import type { TileTensors } from './home.js';
import { HostUpdates, memoryForWeights, type UpdatedPart } from './host-updates.js';
import { type Bytes, LentState } from './lent-state.js';
import { pinned, pinnedFilled, uploadRounded } from './pinned.js';
import { allocateState, namedPiece, type RangeState, stateTensors } from './range-state.js';
import { disposeTile, makeTiles, type Tile } from './tiles.js';
import type { WeightPlace } from './weight-place.js';

/** A partition's host side. */
export interface HostPart extends UpdatedPart {
  /**
   * [numel] f32, or their bf16 halves, see SplitHome; `weight` may be this memory, or that of the
   * gradient.
   */
  readonly master: Tensor;
  readonly ranges: readonly RangeState[];
  readonly tiles: readonly Tile[];
}

/** A tile's master weights and state where kernels read and write them. */
export type OpenTile = Pick<TileTensors, 'master' | 'state'>;

export interface HostHomeOptions {
  /** Tiles have at most so many elements, a multiple of 64. */
  tile: number;
  /**
   * The memory that takes gradients was read by an update before the last: the next gradient waits
   * for its tiles.
   */
  readBefore?: boolean;
}

/**
 * Host memory per parameter: 12 bytes of state and one gradient element, which the update turns
 * into the weight to upload in place. f32 weights are uploaded from the master instead, 16-bit ones
 * of f32 gradients from 2 bytes more.
 */
export class HostHome extends HostUpdates<HostPart> {
  readonly lendsCopies: boolean = false;
  /**
   * An update reads state where it is kept: a pass that stores little of it costs less than one
   * that stores all.
   */
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
    this.parts.set(partition, {
      ...{ master, grad, ranges },
      weight: this.weightFor(partition, [master, grad]),
      tiles: makeTiles(ranges, optimizer, { device, size: this.options.tile, allocate }),
      uploaded: new Event(device),
      uploading: false,
    });
  }

  /** Memory, held, that takes the partition's gradients. */
  protected gradFor({ numel, unit }: Partition): Tensor {
    return this.allocate(numel, unit.gradDtype);
  }

  /** Memory, held, for the partition's master weights. */
  protected masterFor({ numel }: Partition): Tensor {
    return pinned(this.device, [numel], 'f32');
  }

  /** The memory, held once more, that updates write the partition's weights to. */
  protected weightFor(partition: Partition, memories: readonly Tensor[]): Tensor {
    return memoryForWeights(partition, memories);
  }

  writeMaster(partition: Partition, piece: Piece, values: Tensor): void {
    const { master } = this.partOf(partition);
    copyFlat(master, piece, values, { offset: 0, numel: piece.numel }, this.device.compute);
  }

  acquire(partition: Partition, tile: Tile): TileTensors {
    const { master, weight } = this.partOf(partition);
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

  /** Where updates read the partition's gradient. */
  protected landedIn(partition: Partition): Tensor {
    return this.partOf(partition).grad;
  }

  release(tensors: TileTensors): void {
    for (const slice of [tensors.grad, tensors.weight]) slice?.release();
    this.close(tensors, true);
  }

  /** Kernels enqueued from now on see the state of a tile, until close(); one after the other. */
  open(partition: Partition, { range, state }: Tile): OpenTile {
    return { master: sliceFlat(this.partOf(partition).master, range), state };
  }

  /** `changed`: kernels wrote to master weights and state. */
  close({ master }: OpenTile, _changed: boolean): void {
    master.release();
  }

  /**
   * From now on `memory`, [numel] in the weights' dtype and made by allocate(), takes the
   * partition's gradients and gives its weights. Returns what took gradients before, which is the
   * caller's.
   */
  replaceGrad(partition: Partition, memory: Tensor): Tensor {
    const part = this.partOf(partition);
    const { grad } = part;
    part.weight.release();
    part.weight = memory.retain();
    part.grad = memory;
    return grad;
  }

  lend(partition: Partition, piece: Piece, name: string): LentState {
    const { optimizer } = this;
    const kept = namedPiece({ optimizer, ...this.partOf(partition) }, piece, name);
    return new LentState(kept, this.host);
  }

  refresh(partition: Partition): void {
    uploadRounded(this.partOf(partition).master, partition.weights);
  }

  get bytes(): Bytes {
    const all = [...this.parts.values()].flatMap(tensorsOf);
    const own = new Set([this.control, ...all]);
    return { device: 0, host: [...own].reduce((sum, { bytes }) => sum + bytes, 0), disk: 0 };
  }

  protected disposePart(part: HostPart): void {
    for (const tile of part.tiles) disposeTile(tile);
    for (const tensor of tensorsOf(part)) tensor.release();
  }
}

/**
 * State in host memory of weights that stage 3 keeps there too, or on a disk (offload_param): the
 * update writes them where they live, or sends them there, and nothing is uploaded before somebody
 * gathers them.
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
   * Of weights that were tried out, in memory that took gradients: it changes places with the
   * memory of those before, which takes the next gradient. That comes after backward has gathered
   * for the last time.
   */
  override uploadAll(partition: Partition): void {
    exchangeSpeculative(this.partOf(partition), partition.place);
    this.finish(partition);
  }

  override refresh(partition: Partition): void {
    const { master } = this.partOf(partition);
    partition.place.store(master, this.host).synchronize();
  }
}

/** Weights that were tried out are those of `place`, whose memory of before is the gradients'. */
export function exchangeSpeculative(part: HostPart, place: WeightPlace): void {
  if (part.weight !== place.memory) part.grad = place.exchange?.(part.grad) as Tensor;
}

function tensorsOf({ master, grad, weight, ranges }: HostPart): Tensor[] {
  return [master, grad, weight, ...stateTensors(ranges)];
}
