// StreamedSplitHome: split masters that the device updates; the upper halves are the bf16 weights.
import { halves, type SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import { Event, type Stream } from '../../runtime/stream.js';
import { held, Tensor } from '../../tensor/index.js';
import { sliceFlat } from '../flat.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import type { HostHomeOptions, OpenTile } from './host-home.js';
import type { Bytes, LentState } from './lent-state.js';
import { SplitFragments } from './split-fragments.js';
import { StreamedHome } from './streamed-home.js';
import type { HostTile, Tile } from './tiles.js';

/** Split masters with upper halves in any memory. Lent masters are f32 copies. */
export abstract class StreamedHalves extends StreamedHome {
  override readonly lendsCopies = true;
  private readonly fragments: SplitFragments;

  /** `rule`: for partitions with bf16 weights. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.fragments = new SplitFragments(device, rule, (partition) => this.buffersOf(partition));
  }

  override writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.fragments.write(partition, fragment, values, this.device.compute);
    this.windows.followCompute();
  }

  override lend(partition: Partition, fragment: Fragment, name: string): LentState {
    if (name !== 'master') return super.lend(partition, fragment, name);
    // The halves are in two memories and change on different streams.
    this.synchronize();
    return this.fragments.lend(partition, fragment, this.host);
  }
}

/** Replaces the masters by their lower halves, because only these stream. */
export function withLowerHalves({ state }: Tile): OpenTile {
  const { [halves.low]: low, ...rest } = state;
  return { master: (low as Tensor).retain(), state: rest };
}

/**
 * The common part for weights on the device and in host memory. Gradients stay in the memory that
 * backward wrote, from receive() to the end of the update. They grow while backward frees
 * activations.
 */
abstract class SplitAndStreamed extends StreamedHalves {
  /** Compute has read the gradients before their memory is freed. */
  private readonly read: Event;

  /** `rule` updates the partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.read = new Event(device);
  }

  protected override gradFor({ unit, device }: Partition): Tensor {
    return held(() => Tensor.empty([0], unit.gradDtype, device));
  }

  override receive(partition: Partition): void {
    this.d2h.wait(partition.ready);
    for (const { arrived } of this.tilesOf(partition)) arrived.record(this.d2h);
  }

  protected override landedIn({ grad }: Partition): Tensor {
    return grad as Tensor;
  }

  override gradOf({ grad }: Partition): Tensor | null {
    return grad && sliceFlat(grad, { offset: 0, numel: grad.numel });
  }

  override finish(partition: Partition): Stream {
    this.dropGrad(partition);
    return super.finish(partition);
  }

  /** The memory is freed after updates have read it. */
  protected dropGrad(partition: Partition): void {
    partition.grad?.buffer.sharedWith(this.host, this.read);
    partition.dropGrad();
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  /**
   * Nothing to refresh: the weights are half of the masters, so a change of the weights changes the
   * masters.
   */
  override refresh(): void {
    this.synchronize();
  }

  /** Without the weights, which belong to the unit. */
  override get bytes(): Bytes {
    const all = super.bytes;
    return { ...all, device: all.device - this.weightBytes };
  }

  protected get weightBytes(): number {
    return [...this.buffers.keys()].reduce((sum, one) => sum + one.weights.bytes, 0);
  }

  override dispose(): void {
    super.dispose();
    this.read.dispose();
  }
}

/**
 * Like StreamedHome, with 10.125 instead of 12 bytes per parameter each way: moments and lower
 * halves stream, and weights are updated in the model's memory. Host memory is the same. Only for
 * updates after the step decision, because the device must hold the weights of the last one.
 */
export class StreamedSplitHome extends SplitAndStreamed {
  protected override streamed(_: Partition, tile: Tile): OpenTile {
    return withLowerHalves(tile);
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    const { master: low, state } = super.open(partition, tile);
    const master = sliceFlat(partition.weights, tile.range);
    return { master, state: { ...state, [halves.low]: low } };
  }

  override close({ master, state }: OpenTile, changed: boolean): void {
    super.close({ master: state[halves.low] as Tensor, state }, changed);
    master.release();
  }

  /** The weights are already in the model's memory. */
  protected override upload(_: Partition, { updated }: HostTile): void {
    this.h2d.wait(updated);
  }
}

/**
 * For weights that stage 3 stores in host memory (offload_param: cpu). They stream with the rest of
 * their masters, 12.125 bytes each way, so there is no separate upload.
 */
export class StreamedSplitHomeOfOffloadedWeights extends SplitAndStreamed {
  protected override upload(): void {}

  override finish(partition: Partition): Stream {
    this.dropGrad(partition);
    const { down } = this.windows;
    this.buffersOf(partition).uploaded.record(down);
    return down;
  }

  /** With the weights, which no unit counts. */
  override get bytes(): Bytes {
    const all = super.bytes;
    return { ...all, host: all.host + this.weightBytes };
  }
}
