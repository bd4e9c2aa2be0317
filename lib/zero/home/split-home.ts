// SplitHome: state in pinned host memory with split masters; the bf16 weights are their upper
// halves.
import type { SplitMaster } from '../../optim/split-master.js';
import type { Device } from '../../runtime/device.js';
import type { Tensor } from '../../tensor/index.js';
import type { Fragment } from '../layout.js';
import type { Partition } from '../partition.js';
import {
  HostHome,
  HostHomeOfOffloadedWeights,
  type HostHomeOptions,
  type OpenTile,
} from './host-home.js';
import type { Bytes, LentState } from './lent-state.js';
import { SplitFragments } from './split-fragments.js';
import type { HostTile, Tile } from './tiles.js';
import { WeightSlots } from './weight-slots.js';

/**
 * Maximum elements per tile. Larger tiles need larger slots, smaller ones fill the driver's queues:
 * see tileSize().
 */
const LARGEST_TILE = 2 ** 26;

/**
 * Host memory per parameter: 8 bytes of moments, 2.125 bytes that restore the f32 master from its
 * bf16 weight, and one gradient element. The weights are on the device:
 *
 *   d2h stream   weights of a tile to a slot
 *   host stream  update, overwrites the slot
 *   h2d stream   weights of the tile from the slot
 *
 * Only for updates after the step decision, because the device must hold the weights of the last
 * one. Lent master weights are f32 copies.
 */
export class SplitHome extends HostHome {
  override readonly lendsCopies = true;
  private readonly fragments: SplitFragments;
  private readonly slots: WeightSlots;

  /** `rule` updates the partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, { ...options, tile: Math.min(options.tile, LARGEST_TILE) });
    this.fragments = new SplitFragments(device, rule, (partition) => this.buffersOf(partition));
    const { d2h: down, host: updates, h2d: up } = this;
    this.slots = new WeightSlots(device, { down, updates, up });
  }

  override adopt(partition: Partition): void {
    super.adopt(partition);
    for (const { range } of this.tilesOf(partition)) this.slots.makeRoom(range.numel);
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  protected override weightFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  override open(partition: Partition, tile: Tile): OpenTile {
    this.d2h.wait(this.buffersOf(partition).uploaded);
    return { master: this.slots.fetch(partition.weights, tile), state: tile.state };
  }

  protected override upload(partition: Partition, tile: HostTile): void {
    this.slots.send(partition.weights, tile);
  }

  override writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.fragments.write(partition, fragment, values, this.device.compute);
  }

  override lend(partition: Partition, fragment: Fragment, name: string): LentState {
    if (name !== 'master') return super.lend(partition, fragment, name);
    this.host.wait(this.buffersOf(partition).uploaded);
    return this.fragments.lend(partition, fragment, this.host);
  }

  /**
   * Nothing to refresh: the weights are half of the masters, so a change of the weights changes the
   * masters.
   */
  override refresh(): void {
    this.host.synchronize();
  }

  /** Without the weights, which belong to the unit. */
  override get bytes(): Bytes {
    const weights = [...this.buffers.keys()].reduce((sum, one) => sum + one.weights.bytes, 0);
    return { ...super.bytes, host: super.bytes.host - weights + this.slots.bytes };
  }

  override dispose(): void {
    super.dispose();
    this.slots.dispose();
  }
}

/**
 * Split masters of weights that stage 3 stores in host memory (offload_param: cpu), where updates
 * change them. An update reads and writes 26.25 bytes per parameter instead of 28.
 */
export class SplitHomeOfOffloadedWeights extends HostHomeOfOffloadedWeights {
  override readonly lendsCopies = true;
  private readonly fragments: SplitFragments;

  /** `rule` updates the partitions. */
  constructor(device: Device, rule: SplitMaster, options: HostHomeOptions) {
    super(device, rule, options);
    this.fragments = new SplitFragments(device, rule, (partition) => this.buffersOf(partition));
  }

  protected override masterFor({ weights }: Partition): Tensor {
    return weights.retain();
  }

  override writeMaster(partition: Partition, fragment: Fragment, values: Tensor): void {
    this.fragments.write(partition, fragment, values, this.device.compute);
  }

  override lend(partition: Partition, fragment: Fragment, name: string): LentState {
    if (name !== 'master') return super.lend(partition, fragment, name);
    return this.fragments.lend(partition, fragment, this.host);
  }

  override refresh(): void {
    this.host.synchronize();
  }
}
